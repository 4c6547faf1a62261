/* Attention under masks beside the same attention with everything visible, forward and backward, from one run.
 *
 * Prints milliseconds (best of several), the share of cells in visited tiles, and GFLOP/s over the visited cells by
 * the usual rule: forward 4 x cells x head dim, backward 2.5 times that. The last columns are the time divided
 * by that of the unmasked run: a mask that leaves a share s should cost about s. Usage: bench_attention [THREADS] */
#include "core/clock.h"
#include "core/rng.h"
#include "flex/flex.h"
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 9, KV_HEADS = 3, DIM = 64, CONTEXT = 2048, REPEATS = 3 };

typedef struct timing {
    double forward, backward, visited;
} timing;

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_attention: %s\n", err_text());
    exit(1);
}

static float *draw(arena *a, int64_t n, uint64_t salt) {
    float *x = NULL;
    must(arena_alloc_raw(a, (size_t)n, sizeof *x, &x));
    for (int64_t i = 0; i < n; i++) x[i] = (float)rng_normal(1, RNG_TEST, salt, (uint64_t)i);
    return x;
}
static flex_view view(const float *x, int64_t rows) {
    return (flex_view){DT_F32, x, 0, rows * DIM, DIM};
}
static flex_out out(arena *a, int64_t heads, int64_t rows) {
    return (flex_out){draw(a, heads * rows * DIM, 9), 0, rows * DIM, DIM};
}

/* One problem of q_len x kv_len cells for all heads; text NULL: everything visible. */
static timing run(dev *d, const char *text, int64_t q_len, int64_t kv_len) {
    arena *a = NULL;
    expr *mask = NULL;
    const expr_env env = {0};
    flex_plan *plan = NULL;
    timing t = {1e9, 1e9, 0};
    must(arena_create(&a, "bench", 0));
    if (text) must(expr_compile(&mask, EXPR_MASK, text, NULL, 0));
    flex_problem p = {.batch = 1, .q_heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM, .v_dim = DIM};
    p.q_len = q_len;
    p.kv_len = kv_len;
    p.type = DT_F32;
    p.mask = mask;
    p.env = &env;
    must(flex_plan_create(&plan, d, &p, a));
    size_t need = flex_forward_workspace(plan, dev_threads(d));
    size_t back = flex_backward_workspace(plan, dev_threads(d));
    flex_io io = {.q = view(draw(a, HEADS * q_len * DIM, 1), q_len),
                  .k = view(draw(a, KV_HEADS * kv_len * DIM, 2), kv_len),
                  .v = view(draw(a, KV_HEADS * kv_len * DIM, 3), kv_len),
                  .d_o = view(draw(a, HEADS * q_len * DIM, 4), q_len)};
    io.lse = draw(a, HEADS * q_len, 5);
    io.o = out(a, HEADS, q_len);
    io.dq = out(a, HEADS, q_len);
    io.dk = out(a, KV_HEADS, kv_len);
    io.dv = out(a, KV_HEADS, kv_len);
    must(arena_alloc_raw(a, need > back ? need : back, 1, &io.workspace));
    for (int r = 0; r < REPEATS; r++) {
        double s = clock_seconds();
        must(flex_forward(plan, d, &io));
        double m = clock_seconds();
        must(flex_backward(plan, d, &io));
        double e = clock_seconds();
        if (m - s < t.forward) t.forward = m - s;
        if (e - m < t.backward) t.backward = e - m;
    }
    t.visited = flex_plan_visited(plan);
    expr_free(mask);
    arena_destroy(a);
    return t;
}

static void compare(dev *d, const char *name, const char *text, int64_t q_len, int64_t kv_len) {
    timing all = run(d, NULL, q_len, kv_len), t = run(d, text, q_len, kv_len);
    double flop = 4.0 * HEADS * (double)q_len * (double)kv_len * DIM * t.visited;
    printf(
        "%-14s %5lld x %5lld  visited %.3f  fwd %8.1f ms %6.1f GFLOP/s  bwd %8.1f ms %6.1f GFLOP/s  "
        "of unmasked: fwd %.3f bwd %.3f\n",
        name, (long long)q_len, (long long)kv_len, t.visited, 1e3 * t.forward,
        1e-9 * flop / t.forward, 1e3 * t.backward, 2.5e-9 * flop / t.backward,
        t.forward / all.forward, t.backward / all.backward);
}

int main(int argc, char **argv) {
    dev *d = NULL;
    const dev_config cfg = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    must(dev_open_cpu(&d, &cfg));
    printf(
        "attention in fp32, %d query heads, %d key heads, head dim %d, %d threads, %s, best of %d\n",
        HEADS, KV_HEADS, DIM, dev_threads(d), dev_isa_name(dev_get_isa(d)), REPEATS);
    compare(d, "causal", "kv <= q", CONTEXT, CONTEXT);
    compare(d, "window of 256", "kv <= q && q - kv < 256", CONTEXT, CONTEXT);
    /* A drafter's mask: 256 draft blocks of 8 slots, anchors every 8 positions. */
    compare(d, "draft blocks", "let k = q // 8; kv < 2048 ? kv < 8 * k : (kv - 2048) // 8 == k",
            CONTEXT, 2 * CONTEXT);
    dev_close(d);
    return 0;
}
