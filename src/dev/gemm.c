/* fp32 matrix products: fixed tiles over the pool, each one serial call.
 *
 * With a CBLAS the tile shape follows from M, N and K alone, so the bits do not depend on the number of threads.
 * Without one, tiles go through the blocked product below: strips of op(A) and op(B) are packed on the stack
 * (which also undoes transposition and pads edges with zeros), and an inner kernel of the machine's
 * instruction set does the rest. There a value's bits depend on its row, its column and K alone (sums over
 * blocks of 256 in order), so tiles may be as large as the number of threads allows. */
#include "dev/gemm.h"
#include "dev/dev_private.h"
#include "dev/gemm_private.h"
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum {
    BLOCK_K = 256,
    BLOCK_M = 96,
    BLOCK_N = 256,
    PACK_K = 32,
    TILE = 256,          /* longest side of a tile of a large product */
    TILE_PLAIN = 768,    /* the same in plain C */
    TILE_LEAST = 64,     /* sides are not cut below this */
    TILES_WANTED = 32,   /* by CBLAS: enough for 16 threads to share evenly */
    WORK_LEAST = 1 << 19 /* multiply-adds that are worth a task */
};
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

/* C = beta * C: all that is left when K is 0 or alpha is 0. */
static void scale(const gemm_args *g) {
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = g->c + i * g->ldc + j;
            *c = g->beta == 0 ? 0 : g->beta * *c;
        }
}

/* dst[kk][0..3] = src[0..3][kk] */
static void transpose4(float *dst, const float *src, int64_t ld, int width, int kc) {
    const float *s0 = src, *s1 = src + ld, *s2 = src + 2 * ld, *s3 = src + 3 * ld;
    int kk = 0;
#if defined(__SSE__)
    for (; kk + 4 <= kc; kk += 4) {
        __m128 r0 = _mm_loadu_ps(s0 + kk), r1 = _mm_loadu_ps(s1 + kk);
        __m128 r2 = _mm_loadu_ps(s2 + kk), r3 = _mm_loadu_ps(s3 + kk);
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        float *to = dst + kk * width;
        _mm_storeu_ps(to, r0);
        _mm_storeu_ps(to + width, r1);
        _mm_storeu_ps(to + 2 * width, r2);
        _mm_storeu_ps(to + 3 * width, r3);
    }
#endif
    for (; kk < kc; kk++) {
        float *to = dst + kk * width;
        to[0] = s0[kk], to[1] = s1[kk], to[2] = s2[kk], to[3] = s3[kk];
    }
}

static void transpose(float *dst, const float *src, int64_t ld, int width, int count, int kc) {
    int lane = 0;
    for (; lane + 4 <= count; lane += 4) transpose4(dst + lane, src + lane * ld, ld, width, kc);
    for (; lane < count; lane++)
        for (int kk = 0; kk < kc; kk++) dst[kk * width + lane] = src[lane * ld + kk];
}

/* Packs `count` lanes of a strip of width `width`: dst[kk][width] from lanes that lie side by side
 * (src[kk][lane]) or one below the other (src[lane][kk]); lanes past count become zeros. */
static void pack(float *dst, const float *src, int64_t ld, int side_by_side, int width, int count,
                 int kc) {
    if (count < width) memset(dst, 0, sizeof *dst * (size_t)width * (size_t)kc);
    if (side_by_side) {
        for (int kk = 0; kk < kc; kk++)
            memcpy(dst + kk * width, src + kk * ld, sizeof *dst * (size_t)count);
        return;
    }
    for (int k0 = 0; k0 < kc; k0 += PACK_K) /* a piece of dst that stays in the nearest cache */
        transpose(dst + k0 * width, src + k0, ld, width, count,
                  kc - k0 < PACK_K ? kc - k0 : PACK_K);
}

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* One block of rows against a packed block of B. */
static void block_rows(const gemm__kernel *kernel, const gemm_args *g, int64_t i0, int64_t j0,
                       int64_t k0, int kc, const float *bp) {
    _Alignas(64) float ap[BLOCK_M * BLOCK_K];
    int mb = least(BLOCK_M, g->m - i0), nb = least(BLOCK_N, g->n - j0);
    const float *a = g->a + (g->ta ? k0 * g->lda + i0 : i0 * g->lda + k0);
    for (int i = 0; i < mb; i += kernel->rows)
        pack(ap + i * kc, a + (g->ta ? i : i * g->lda), g->lda, g->ta, kernel->rows,
             least(kernel->rows, mb - i), kc);
    gemm__block b = {.kc = kc, .alpha = g->alpha, .beta = k0 ? 1 : g->beta, .ldc = g->ldc};
    for (int j = 0; j < nb; j += kernel->cols)
        for (int i = 0; i < mb; i += kernel->rows) {
            b.a = ap + i * kc;
            b.b = bp + j * kc;
            b.c = g->c + (i0 + i) * g->ldc + j0 + j;
            b.m = least(kernel->rows, mb - i);
            b.n = least(kernel->cols, nb - j);
            kernel->run(&b);
        }
}

static void plain(const gemm__kernel *kernel, const gemm_args *g) {
    _Alignas(64) float bp[BLOCK_N * BLOCK_K];
    for (int64_t j0 = 0; j0 < g->n; j0 += BLOCK_N)
        for (int64_t k0 = 0; k0 < g->k; k0 += BLOCK_K) {
            int kc = least(BLOCK_K, g->k - k0), nb = least(BLOCK_N, g->n - j0);
            const float *b = g->b + (g->tb ? j0 * g->ldb + k0 : k0 * g->ldb + j0);
            for (int j = 0; j < nb; j += kernel->cols)
                pack(bp + j * kc, b + (g->tb ? j * g->ldb : j), g->ldb, !g->tb, kernel->cols,
                     least(kernel->cols, nb - j), kc);
            for (int64_t i0 = 0; i0 < g->m; i0 += BLOCK_M)
                block_rows(kernel, g, i0, j0, k0, kc, bp);
        }
}

static gemm__kernel choose(const dev *d) {
#if defined(__x86_64__)
    if (d->isa == DEV_ISA_AVX512) return (gemm__kernel){12, 32, gemm__run_avx512};
    if (d->isa == DEV_ISA_AVX2) return (gemm__kernel){6, 16, gemm__run_avx2};
    if (d->fma) return (gemm__kernel){4, 16, gemm__run_portable_fma};
#else
    (void)d;
#endif
    return (gemm__kernel){4, 16, gemm__run_portable};
}

void gemm_serial(const dev *d, const gemm_args *g) {
    if (g->m <= 0 || g->n <= 0) return;
    if (g->k <= 0 || g->alpha == 0) {
        scale(g);
        return;
    }
    if (d->blas.sgemm) {
        d->blas.sgemm(ROW_MAJOR, g->ta ? TRANS : NO_TRANS, g->tb ? TRANS : NO_TRANS, (int)g->m,
                      (int)g->n, (int)g->k, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb, g->beta,
                      g->c, (int)g->ldc);
        return;
    }
    gemm__kernel kernel = choose(d);
    plain(&kernel, g);
}

/* Cuts a side of length n into equal parts of at most `most`, in steps of 16. */
static int64_t even(int64_t n, int64_t most) {
    int64_t parts = (n + most - 1) / most, part = (n + parts - 1) / parts;
    return (part + 15) / 16 * 16;
}

static int64_t parts_of(int64_t n, int64_t part) { return (n + part - 1) / part; }

static void tile_shape(const dev *d, int64_t m, int64_t n, int64_t k, int64_t *tm, int64_t *tn) {
    int64_t most = d->blas.sgemm ? TILE : TILE_PLAIN;
    int64_t wanted = d->blas.sgemm ? TILES_WANTED : d->threads == 1 ? 1 : 4 * d->threads;
    *tm = even(m, most);
    *tn = even(n, m < TILE_LEAST ? 4 * most : most);
    while (parts_of(m, *tm) * parts_of(n, *tn) < wanted) {
        int64_t *longer = *tm > *tn ? tm : tn;
        if (*longer <= TILE_LEAST || *tm * *tn * k / 2 < WORK_LEAST) break;
        *longer = even(longer == tm ? m : n, *longer / 2);
    }
}

typedef struct tiles {
    const dev *d;
    const gemm_args *g;
    int64_t tm, tn, across;
} tiles;

static err tile_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    const tiles *t = ctx;
    gemm_args g = *t->g;
    int64_t i = task / t->across * t->tm, j = task % t->across * t->tn;
    g.a += g.ta ? i : i * g.lda;
    g.b += g.tb ? j * g.ldb : j;
    g.c += i * g.ldc + j;
    if (g.m - i < t->tm)
        g.m -= i;
    else
        g.m = t->tm;
    if (g.n - j < t->tn)
        g.n -= j;
    else
        g.n = t->tn;
    gemm_serial(t->d, &g);
    return ERR_OK;
}

err gemm_f32(dev *d, const gemm_args *g) {
    if (g->m <= 0 || g->n <= 0) return ERR_OK;
    if (g->k > INT32_MAX || g->lda > INT32_MAX || g->ldb > INT32_MAX || g->ldc > INT32_MAX)
        return err_set(ERR_RANGE,
                       "a matrix product has an inner extent or row length of 2^31 or more");
    tiles t = {.d = d, .g = g};
    tile_shape(d, g->m, g->n, g->k, &t.tm, &t.tn);
    t.across = parts_of(g->n, t.tn);
    return pool_run(d->pool, parts_of(g->m, t.tm) * t.across, tile_task, &t);
}
