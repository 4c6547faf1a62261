/* Attention by tiles beside fp32 matrix products of the same run; block masks are timed by bench_masks.
 *
 * Rates count 4 * D flops per head and visible cell forward and 2.5 times that backward (the usual rule, although our
 * backward does seven products where the rule counts five); cells are counted from the mask, not from the tiles that
 * are visited. The share is against gemm_f32 at 1536 x 1536 x 1536 on the same threads. Medians of several repeats, forward for
 * itself first, as the baseline script does: backward between two of them would take inputs out of the caches.
 * Usage: bench_flex [THREADS] [baseline]; with baseline, the cases of that script alone, one line each: forward, then forward
 * and backward as one. */
#include "core/clock.h"
#include "core/rng.h"
#include "core/str.h"
#include "dev/gemm.h"
#include "flex/flex.h"
#include "flex/paged.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_flex: %s\n", err_text());
    exit(1);
}

typedef struct bench {
    arena *memory;
    dev *d;
    double peak;  /* flop/s of gemm_f32 */
    int told;     /* the form of bf16 is printed */
    int baseline; /* the baseline script's cases alone */
} bench;

typedef struct mask_case {
    const char *name, *text; /* NULL: everything visible */
    expr_decl decl[2];
    expr_value value[2];
    int n;
} mask_case;

static float *drawn(bench *b, int64_t n) {
    float *x;
    must(arena_alloc_raw(b->memory, (size_t)n, sizeof *x, &x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rng_bits(1, RNG_TEST, 0, (uint64_t)i) >> 40) * 0x1p-23f - 1.0f;
    return x;
}

/* The same numbers in bf16 or fp32, as inputs of attention. */
static const void *drawn_as(bench *b, dtype type, int64_t n) {
    const float *x = drawn(b, n);
    bf16 *y;
    if (type == DT_F32) return x;
    must(arena_alloc_raw(b->memory, (size_t)n, sizeof *y, &y));
    for (int64_t i = 0; i < n; i++) y[i] = bf16_from_f32(x[i]);
    return y;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void product_rate(bench *b) {
    enum { N = 1536 };
    gemm_args g = {.m = N,
                   .n = N,
                   .k = N,
                   .alpha = 1,
                   .a = drawn(b, N * N),
                   .lda = N,
                   .b = drawn(b, N * N),
                   .ldb = N,
                   .c = drawn(b, N * N),
                   .ldc = N};
    double best = 1e30;
    for (int i = 0; i < 6; i++) {
        double t = clock_seconds();
        must(gemm_f32(b->d, &g));
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    b->peak = 2.0 * N * N * N / best;
}

static double visible_cells(const mask_case *m, const expr *e, const expr_env *env, int64_t L,
                            int64_t S) {
    double n = 0;
    int flag;
    if (!m->text) return (double)L * (double)S;
    for (int64_t q = 0; q < L; q++) {
        for (int64_t k = 0; k < S; k++) n += expr_eval_mask(e, env, 0, 0, q, k, &flag);
    }
    return n;
}

/* The plan's own words about its arithmetic. */
static int tell_form(const flex_plan *plan) {
    static const char *const before = "forward's products: ";
    str text = {0};
    must(flex_plan_explain(plan, &text));
    const char *at = strstr(text.s, before);
    if (at)
        printf("bf16 forward: %.*s\n", (int)strcspn(at + strlen(before), "\n"),
               at + strlen(before));
    else
        printf("bf16 forward: inputs widened, products in fp32\n");
    str_free(&text);
    return 1;
}

enum { REPEATS = 7 };

static void attention(bench *b, const mask_case *m, dtype type, int64_t hq, int64_t hkv, int64_t L,
                      int64_t S, int64_t D) {
    arena_mark mark = arena_get_mark(b->memory);
    expr *e = NULL;
    flex_plan *plan;
    const expr_env env = {m->value, 0, 0};
    if (m->text) must(expr_compile(&e, EXPR_MASK, m->text, m->decl, m->n));
    const flex_problem p = {.batch = 1,
                            .q_heads = hq,
                            .kv_heads = hkv,
                            .q_len = L,
                            .kv_len = S,
                            .dim = D,
                            .v_dim = D,
                            .type = type,
                            .mask = e,
                            .env = &env};
    must(flex_plan_create(&plan, b->d, &p, b->memory));
    if (type == DT_BF16 && !b->told) b->told = tell_form(plan);
    flex_io io = {.q = {type, drawn_as(b, type, hq * L * D), 0, L * D, D},
                  .k = {type, drawn_as(b, type, hkv * S * D), 0, S * D, D},
                  .v = {type, drawn_as(b, type, hkv * S * D), 0, S * D, D},
                  .o = {drawn(b, hq * L * D), 0, L * D, D},
                  .lse = drawn(b, hq * L),
                  .d_o = {DT_F32, drawn(b, hq * L * D), 0, L * D, D},
                  .dq = {drawn(b, hq * L * D), 0, L * D, D},
                  .dk = {drawn(b, hkv * S * D), 0, S * D, D},
                  .dv = {drawn(b, hkv * S * D), 0, S * D, D}};
    size_t f = flex_forward_workspace(plan, dev_threads(b->d)),
           w = flex_backward_workspace(plan, dev_threads(b->d));
    must(arena_alloc_raw(b->memory, f > w ? f : w, 1, &io.workspace));
    const double flop = 4.0 * (double)(hq * D) * visible_cells(m, e, &env, L, S);
    double median[2] = {0};
    for (int back = 0; back < 2; back++) {
        double times[REPEATS];
        for (int i = -2; i < REPEATS; i++) { /* the first ones warm up */
            const double t = clock_seconds();
            if (!back || b->baseline) must(flex_forward(plan, b->d, &io));
            if (back) must(flex_backward(plan, b->d, &io));
            if (i >= 0) times[i] = clock_seconds() - t;
        }
        qsort(times, REPEATS, sizeof *times, by_value);
        median[back] = times[REPEATS / 2];
    }
    printf("%-4s %-10s %3lld %3lld/%-2lld %5lld x %-5lld %9.3f %8.1f %6.0f%%",
           type == DT_F32 ? "fp32" : "bf16", m->name, (long long)D, (long long)hq, (long long)hkv,
           (long long)L, (long long)S, median[0] * 1e3, flop / median[0] * 1e-9,
           100 * flop / median[0] / b->peak);
    if (b->baseline)
        printf(" %9.3f", median[1] * 1e3);
    else
        printf(" %9.2f %8.1f %6.0f%%", median[1] * 1e3, 2.5 * flop / median[1] * 1e-9,
               250 * flop / median[1] / b->peak);
    printf("\n");
    expr_free(e);
    arena_reset(b->memory, mark);
}

static void decoding(bench *b, int64_t rows, int64_t keys) {
    enum { HQ = 9, HKV = 3, D = 64 };
    arena_mark mark = arena_get_mark(b->memory);
    int64_t pages = (keys + PAGED_PAGE - 1) / PAGED_PAGE, cells = pages * PAGED_PAGE * HKV * D;
    int32_t *page;
    must(arena_alloc(b->memory, (size_t)pages, sizeof *page, &page));
    for (int64_t i = 0; i < pages; i++) page[i] = (int32_t)i;
    const paged_seq s = {.pages = page,
                         .n_keys = keys,
                         .rows = rows,
                         .first = keys - rows,
                         .q = drawn(b, rows * HQ * D),
                         .o = drawn(b, rows * HQ * D)};
    const paged_args a = {.q_heads = HQ,
                          .kv_heads = HKV,
                          .dim = D,
                          .scale = 0.125f,
                          .k_pool = drawn(b, cells),
                          .v_pool = drawn(b, cells),
                          .seqs = &s,
                          .n_seqs = 1};
    double best = 1e30;
    for (int i = 0; i < 50; i++) {
        double t = clock_seconds();
        must(paged_attention(b->d, &a));
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    printf("%5lld %6lld %10.1f us %8.1f GFLOP/s %8.1f GB/s of keys and values\n", (long long)rows,
           (long long)keys, best * 1e6, 4.0 * HQ * D * (double)(rows * keys) / best * 1e-9,
           8.0 * HKV * D * (double)keys / best * 1e-9);
    arena_reset(b->memory, mark);
}

enum { ANCHORS = 64 };

static void all(bench *b, int32_t *anchor) {
    static const char *const dflash =
        "kv < context ? kv < anchor[q // 16] : (kv - context) // 16 == q // 16";
    const mask_case full = {.name = "full"}, causal = {.name = "causal", .text = "q >= kv"};
    mask_case window = {
        .name = "window", .text = "q >= kv && q - kv < w", .decl = {{"w", EXPR_INT, 0}}, .n = 1};
    mask_case draft = {.name = "dflash",
                       .text = dflash,
                       .decl = {{"anchor", EXPR_INT, 1}, {"context", EXPR_INT, 0}},
                       .n = 2};
    draft.value[0] = (expr_value){.type = DT_I32, .dim = {ANCHORS}, .data = anchor};
    printf("gemm_f32 %.1f GFLOP/s (%s, %s, %d threads)\n\n", b->peak * 1e-9, dev_blas_path(b->d),
           dev_isa_name(dev_get_isa(b->d)), dev_threads(b->d));
    printf("     mask         D  heads       L x S       fwd ms  GFLOP/s  share%s\n",
           b->baseline ? "  both ms" : "    bwd ms  GFLOP/s  share");
    window.value[0].scalar.i = 256;
    draft.value[1].scalar.i = 1024;
    for (int i = 0; i < ANCHORS; i++) anchor[i] = 8 + 16 * i; /* 512 on average, as drawn ones */
    for (int i = 0; i < 2; i++) {
        const dtype type = i ? DT_BF16 : DT_F32;
        if (!b->baseline) attention(b, &full, type, 4, 4, 1024, 1024, 128);
        if (!b->baseline) attention(b, &full, type, 4, 4, 1024, 1024, 64);
        attention(b, &causal, type, 8, 8, 2048, 2048, 64);
        attention(b, &window, type, 8, 8, 4096, 4096, 64);
        attention(b, &draft, type, 8, 8, 1024, 2048, 64);
        if (!b->baseline) attention(b, &draft, type, 9, 3, 1024, 2048, 64);
    }
    if (b->baseline) return;
    printf("\npaged attention, 9 query heads on 3, D 64\n rows   keys\n");
    for (int64_t rows = 1; rows <= 16; rows *= 4) {
        decoding(b, rows, 256);
        decoding(b, rows, 2048);
    }
}

int main(int argc, char **argv) {
    bench b = {.baseline = argc > 2 && !strcmp(argv[2], "baseline")};
    const dev_config cfg = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    int32_t *anchor;
    if (argc > 3 || (argc > 2 && !b.baseline)) {
        fprintf(stderr, "usage: bench_flex [THREADS] [baseline]\n");
        return 2;
    }
    must(arena_create(&b.memory, "bench", 0));
    must(dev_open_cpu(&b.d, &cfg));
    must(arena_alloc(b.memory, ANCHORS, sizeof *anchor, &anchor));
    product_rate(&b);
    all(&b, anchor);
    dev_close(b.d);
    arena_destroy(b.memory);
    return 0;
}
