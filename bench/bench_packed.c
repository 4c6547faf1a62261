/* Rates of packed weights beside fp32 products and the speed of reading memory, all from one run.
 *
 * For n x k weights and m rows: GFLOP/s (2 m n k / time) of the packed product in bf16 and fp32, of gemm_f32 with the
 * CBLAS found here and in plain C, and GB/s of weights for one row. The weights of the one-row rows are
 * larger than the caches. Best of several repeats; ratios mean more than the figures themselves.
 * Usage: bench_packed [THREADS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/arena.h"
#include "core/clock.h"
#include "core/rng.h"
#include "dev/gemm.h"
#include "dev/packed.h"

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_packed: %s\n", err_text());
    exit(1);
}

typedef struct bench {
    arena *memory;
    dev *best, *plain; /* with the CBLAS found here, and without */
    float *x, *y, *w;
    packed half, full;
    int64_t n, k;
} bench;

enum { MAX_ROWS = 2048 };

static dev *open_dev(int threads, const char *blas) {
    dev *d;
    dev_config cfg = {.threads = threads, .blas = blas};
    must(dev_open_cpu(&d, &cfg));
    return d;
}

static void fill(float *v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)(rng_bits(1, RNG_TEST, 0, (uint64_t)i) >> 40) * 0x1p-24f - 0.5f;
}

static void prepare(bench *b, int64_t n, int64_t k) {
    b->n = n;
    b->k = k;
    must(arena_alloc_raw(b->memory, (size_t)(n * k), sizeof(float), &b->w));
    must(arena_alloc_raw(b->memory, (size_t)(MAX_ROWS * k), sizeof(float), &b->x));
    must(arena_alloc_raw(b->memory, (size_t)(MAX_ROWS * n), sizeof(float), &b->y));
    fill(b->w, n * k);
    fill(b->x, MAX_ROWS * k);
    must(packed_alloc(&b->half, b->memory, DT_BF16, n, k));
    must(packed_alloc(&b->full, b->memory, DT_F32, n, k));
    packed_set_rows(&b->half, 0, n, b->w, k);
    packed_set_rows(&b->full, 0, n, b->w, k);
}

static void product(bench *b, int what, int64_t m) {
    gemm_args g = {
        .m = m, .n = b->n, .k = b->k, .tb = 1, .alpha = 1, .a = b->x, .lda = b->k, .b = b->w};
    g.ldb = b->k;
    g.c = b->y;
    g.ldc = b->n;
    switch (what) {
    case 0: must(packed_matmul(b->best, &b->half, b->x, b->k, m, b->y, b->n)); break;
    case 1: must(packed_matmul(b->best, &b->full, b->x, b->k, m, b->y, b->n)); break;
    case 2: must(gemm_f32(b->best, &g)); break;
    default: must(gemm_f32(b->plain, &g)); break;
    }
}

/* Best seconds of one product. */
static double best_time(bench *b, int what, int64_t m) {
    double best = 1e30, start = clock_seconds();
    for (int i = 0; i < 3 || clock_seconds() - start < 0.15; i++) {
        double t = clock_seconds();
        product(b, what, m);
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    return best;
}

typedef struct reading {
    const uint64_t *data;
    int64_t words, tasks;
    uint64_t sums[64];
} reading;

static err read_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    reading *r = ctx;
    const uint64_t *p = r->data + task * (r->words / r->tasks);
    uint64_t s[8] = {0};
    for (int64_t i = 0; i + 8 <= r->words / r->tasks; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + j];
    r->sums[task] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return ERR_OK;
}

static void memory_speed(bench *b) {
    reading r = {
        .data = (const uint64_t *)(const void *)b->w, .words = b->n * b->k / 2, .tasks = 64};
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        double t = clock_seconds();
        must(pool_run(dev_pool(b->best), r.tasks, read_task, &r));
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    uint64_t all = 0;
    for (int i = 0; i < 64; i++) all += r.sums[i];
    printf("reading %.0f MB: %.1f GB/s (checksum %llx)\n", (double)r.words * 8e-6,
           (double)r.words * 8e-9 / best, (unsigned long long)all);
}

static void table(bench *b, int64_t n, int64_t k, const int64_t *rows, int count) {
    arena_mark mark = arena_get_mark(b->memory);
    prepare(b, n, k);
    printf("\nn %lld, k %lld (bf16 %.1f MB)\n", (long long)n, (long long)k,
           (double)packed_bytes(DT_BF16, n, k) * 1e-6);
    if (n * k > 20000000) memory_speed(b);
    printf("%6s %14s %14s %12s %12s %12s %12s\n", "rows", "bf16 GFLOP/s", "fp32 GFLOP/s", "cblas",
           "plain C", "bf16 GB/s", "bf16/cblas");
    for (int i = 0; i < count; i++) {
        double t[4], flop = 2e-9 * (double)rows[i] * (double)n * (double)k;
        for (int what = 0; what < 4; what++) t[what] = best_time(b, what, rows[i]);
        printf("%6lld %14.1f %14.1f %12.1f %12.1f %12.1f %12.2f\n", (long long)rows[i], flop / t[0],
               flop / t[1], flop / t[2], flop / t[3],
               (double)packed_bytes(DT_BF16, n, k) * 1e-9 / t[0], t[2] / t[0]);
    }
    arena_reset(b->memory, mark);
}

int main(int argc, char **argv) {
    bench b = {0};
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    must(arena_create(&b.memory, "bench", 0));
    b.best = open_dev(threads, NULL);
    b.plain = open_dev(threads, "none");
    printf("threads %d, %s, cblas: %s\n", dev_threads(b.best), dev_isa_name(dev_get_isa(b.best)),
           dev_blas_path(b.best));
    static const int64_t many[] = {1, 4, 8, 16, 64, 512, 2048}, few[] = {1, 2, 4, 8};
    table(&b, 1536, 576, many, 7);
    table(&b, 576, 1536, many, 7);
    table(&b, 49152, 576, few, 4);
    dev_close(b.best);
    dev_close(b.plain);
    arena_destroy(b.memory);
    return 0;
}
