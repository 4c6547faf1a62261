/* Packed weights: storage, the definition, and the cutting of products into kernel blocks.
 *
 * How a product is cut (by threads, by rows, by panels) is free, because a value of y depends on one row of x,
 * one row of W and the fixed order over k alone. Few rows: the panels are shared out among the threads and
 * streamed once. Many rows: tiles of rows x panels, where bf16 panels are widened to fp32 once per tile.
 * Nothing here allocates after packed_alloc. */
#include "dev/packed.h"
#include "dev/dev_private.h"
#include "dev/packed_private.h"
#include <math.h>
#include <string.h>

enum {
    TILE_ROWS = 96,       /* rows that share one widening */
    TASK_BYTES = 64 << 10 /* weights that are worth a task for one row */
};

static int64_t panels_of(int64_t n) { return (n + PACKED_PANEL - 1) / PACKED_PANEL; }

size_t packed_bytes(dtype type, int64_t n, int64_t k) {
    return (size_t)panels_of(n) * PACKED_PANEL * (size_t)k * dtype_size(type);
}

err packed_alloc(packed *out, arena *a, dtype type, int64_t n, int64_t k) {
    *out = (packed){.type = type, .n = n, .k = k};
    if (type != DT_BF16 && type != DT_F32)
        return err_set(ERR_INTERNAL, "packed weights are BF16 or F32, not %s", dtype_name(type));
    if (n < 0 || k < 0)
        return err_set(ERR_RANGE, "packed weights of %lld x %lld were asked for", (long long)n,
                       (long long)k);
    size_t panel;
    if (__builtin_mul_overflow((size_t)k, PACKED_PANEL * dtype_size(type), &panel))
        panel = SIZE_MAX;
    return arena_alloc(a, (size_t)panels_of(n), panel, &out->data);
}

/* Where W[row][0] is; the next kk is PACKED_PANEL further. */
static int64_t place(const packed *w, int64_t row) {
    return row / PACKED_PANEL * PACKED_PANEL * w->k + row % PACKED_PANEL;
}

void packed_set_rows(packed *w, int64_t row0, int64_t rows, const float *src, int64_t ld) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = place(w, row0 + r);
        const float *s = src + r * ld;
        if (w->type == DT_BF16) {
            bf16 *d = (bf16 *)w->data + at;
            for (int64_t kk = 0; kk < w->k; kk++) d[kk * PACKED_PANEL] = bf16_from_f32(s[kk]);
        } else {
            float *d = (float *)w->data + at;
            for (int64_t kk = 0; kk < w->k; kk++) d[kk * PACKED_PANEL] = s[kk];
        }
    }
}

void packed_row(const packed *w, int64_t row, float *dst) {
    int64_t at = place(w, row);
    if (w->type == DT_BF16) {
        const bf16 *s = (const bf16 *)w->data + at;
        for (int64_t kk = 0; kk < w->k; kk++) dst[kk] = bf16_to_f32(s[kk * PACKED_PANEL]);
    } else {
        const float *s = (const float *)w->data + at;
        for (int64_t kk = 0; kk < w->k; kk++) dst[kk] = s[kk * PACKED_PANEL];
    }
}

void packed_rows(const packed *w, int64_t row0, int64_t rows, float *dst, int64_t ld) {
    for (int64_t r = 0; r < rows; r++) packed_row(w, row0 + r, dst + r * ld);
}

static float element(const packed *w, int64_t at) {
    return w->type == DT_BF16 ? bf16_to_f32(((const bf16 *)w->data)[at])
                              : ((const float *)w->data)[at];
}

void packed_matmul_ref(const packed *w, const float *x, int64_t ldx, int64_t m, float *y,
                       int64_t ldy) {
    for (int64_t r = 0; r < m; r++)
        for (int64_t o = 0; o < w->n; o++) {
            int64_t at = place(w, o);
            float sum = 0;
            for (int64_t k0 = 0; k0 < w->k; k0 += PACKED_CHUNK) {
                int64_t k1 = k0 + PACKED_CHUNK < w->k ? k0 + PACKED_CHUNK : w->k;
                float acc = 0;
                for (int64_t kk = k0; kk < k1; kk++)
                    acc = fmaf(x[r * ldx + kk], element(w, at + kk * PACKED_PANEL), acc);
                sum = sum + acc;
            }
            y[r * ldy + o] = sum;
        }
}

/* A product and how it is shared out: tasks = row tiles x panel ranges. */
typedef struct job {
    const packed *w;
    const packed__kernel *kernel;
    int64_t panel0, panel1; /* panels of W that are computed */
    int64_t lanes;          /* outputs in panel1 - 1 */
    const float *x;
    int64_t ldx, m;
    float *y; /* y[0][0] belongs to panel0 */
    int64_t ldy;
    int64_t rows_each, panels_each, across;
} job;

static int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }

/* All chunks of k for some rows and one group of panels. */
static void group(const job *j, int64_t row0, int64_t row1, int64_t p0, int64_t p1) {
    _Alignas(64) float wide[PACKED__PANELS * (PACKED_CHUNK + 1) * PACKED_PANEL];
    const int64_t wide_stride =
        (PACKED_CHUNK + 1) * PACKED_PANEL; /* + 1: panels start in different cache sets */
    const packed *w = j->w;
    int is_bf16 = w->type == DT_BF16, widen = is_bf16 && row1 - row0 > j->kernel->widen_above;
    packed__block b = {.panels = (int)(p1 - p0), .ldx = j->ldx, .ldy = j->ldy};
    b.lanes = p1 == j->panel1 ? (int)j->lanes : PACKED_PANEL;
    b.first = 1;
    for (int64_t k0 = 0; k0 < w->k; k0 += PACKED_CHUNK, b.first = 0) {
        b.kc = (int)lower(PACKED_CHUNK, w->k - k0);
        int64_t at = (p0 * w->k + k0) * PACKED_PANEL;
        b.stride = widen ? wide_stride : w->k * PACKED_PANEL;
        if (widen) {
            for (int p = 0; p < b.panels; p++)
                j->kernel->widen((const bf16 *)w->data + at + p * w->k * PACKED_PANEL,
                                 wide + p * wide_stride, b.kc * PACKED_PANEL);
            b.w = wide;
        } else {
            b.w = (const char *)w->data + at * (int64_t)dtype_size(w->type);
        }
        for (int64_t r = row0; r < row1; r += b.rows) {
            int64_t left = row1 - r, blocks = (left + j->kernel->rows - 1) / j->kernel->rows;
            b.rows = (int)((left + blocks - 1) / blocks); /* 9 rows are 5 and 4, not 8 and 1 */
            b.x = j->x + r * j->ldx + k0;
            b.y = j->y + r * j->ldy + (p0 - j->panel0) * PACKED_PANEL;
            if (is_bf16 && !widen)
                j->kernel->bf16(&b);
            else
                j->kernel->f32(&b);
        }
    }
}

static err job_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    const job *j = ctx;
    int64_t row0 = task / j->across * j->rows_each, row1 = lower(row0 + j->rows_each, j->m);
    int64_t p0 = j->panel0 + task % j->across * j->panels_each,
            p1 = lower(p0 + j->panels_each, j->panel1);
    int step = row1 - row0 <= 2 ? j->kernel->panels_few : j->kernel->panels;
    for (; p0 < p1; p0 += step) group(j, row0, row1, p0, lower(p0 + step, p1));
    return ERR_OK;
}

static const packed__kernel *choose(const dev *d) {
#if defined(__x86_64__)
    if (d->isa == DEV_ISA_AVX512) return &packed__avx512;
    if (d->isa == DEV_ISA_AVX2) return &packed__avx2;
    if (d->fma) return &packed__portable_fma;
#else
    (void)d;
#endif
    return &packed__portable;
}

/* Panels per task: whole groups, about four tasks a thread and row tile, and none too small to be worth it. */
static void share_out(job *j, int threads) {
    int64_t panels = j->panel1 - j->panel0, tiles;
    j->rows_each = j->m <= TILE_ROWS ? j->m : TILE_ROWS;
    tiles = (j->m + j->rows_each - 1) / j->rows_each;
    int64_t step = j->m <= 2 ? j->kernel->panels_few : j->kernel->panels;
    int64_t bytes = PACKED_PANEL * j->w->k * (int64_t)dtype_size(j->w->type) * j->rows_each;
    int64_t wanted = threads == 1 ? 1 : (4 * threads + tiles - 1) / tiles;
    int64_t each = (panels + wanted - 1) / wanted;
    int64_t least = bytes ? (TASK_BYTES + bytes - 1) / bytes : panels;
    if (each < least) each = least;
    if (j->m > 2 * PACKED__ROWS && each > 4 * step)
        each = 4 * step; /* the rows' chunk stays in cache */
    j->panels_each = (each + step - 1) / step * step;
    j->across = (panels + j->panels_each - 1) / j->panels_each;
}

err packed_matmul_part(dev *d, const packed *w, int64_t n0, int64_t n1, const float *x, int64_t ldx,
                       int64_t m, float *y, int64_t ldy) {
    if (n0 % PACKED_PANEL != 0 || n0 < 0 || n1 > w->n)
        return err_set(ERR_INTERNAL,
                       "outputs %lld to %lld of packed weights with %lld rows were asked for",
                       (long long)n0, (long long)n1, (long long)w->n);
    if (m <= 0 || n1 <= n0) return ERR_OK;
    if (w->k == 0) {
        for (int64_t r = 0; r < m; r++) memset(y + r * ldy, 0, sizeof *y * (size_t)(n1 - n0));
        return ERR_OK;
    }
    job j = {.w = w, .kernel = choose(d), .x = x, .ldx = ldx, .m = m, .y = y, .ldy = ldy};
    j.panel0 = n0 / PACKED_PANEL;
    j.panel1 = panels_of(n1);
    j.lanes = n1 - (j.panel1 - 1) * PACKED_PANEL;
    share_out(&j, d->threads);
    return pool_run(d->pool, (m + j.rows_each - 1) / j.rows_each * j.across, job_task, &j);
}

err packed_matmul(dev *d, const packed *w, const float *x, int64_t ldx, int64_t m, float *y,
                  int64_t ldy) {
    return packed_matmul_part(d, w, 0, w->n, x, ldx, m, y, ldy);
}
