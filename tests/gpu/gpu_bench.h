/* Times of attention kernels at the shapes of the PyTorch baseline: forward, backward, block TFLOP/s.
 *
 * Medians of 20 runs after 5, by events, on random data. A block is a visited tile of 128 x 128 cells; forward counts
 * 4 x cells x D operations, backward 2.5 times as many. Memory beside inputs and outputs is printed as the driver sees it. */
#ifndef TESTS_GPU_GPU_BENCH_H
#define TESTS_GPU_GPU_BENCH_H
#include "gpu_case.h"
#include "core/clock.h"
#include <stdlib.h>

typedef struct gpu_bench {
    const char *name, *mask, *score;
    int64_t q_heads, kv_heads, q_len, kv_len, dim, context, anchors;
} gpu_bench;

static const gpu_bench gpu_benches[] = {
#define DFLASH "kv < n ? kv < anchor[q // 16] : (kv - n) // 16 == q // 16"
    {"dflash ctx4096 na512 h32/8 d128", DFLASH, NULL, 32, 8, 8192, 12288, 128, 4096, 512},
    {"dflash ctx3072 na512 h32/8 d128", DFLASH, NULL, 32, 8, 8192, 11264, 128, 3072, 512},
    {"dflash ctx16384 na512 h32/8 d128", DFLASH, NULL, 32, 8, 8192, 24576, 128, 16384, 512},
    {"causal 16k h32/8 d128", "q >= kv", NULL, 32, 8, 16384, 16384, 128, 0, 0},
    {"causal 8k h32/8 d64", "q >= kv", NULL, 32, 8, 8192, 8192, 64, 0, 0},
    {"window 1024 32k h32/8 d128", "q >= kv && q - kv < 1024", NULL, 32, 8, 32768, 32768, 128, 0,
     0},
    {"documents causal 16k h32/8 d128", "q >= kv && doc[q] == doc[kv]", NULL, 32, 8, 16384, 16384,
     128, 0, 0},
    {"soft-cap causal 16k h32/8 d128", "q >= kv", "30.0 * tanh(s / 30.0)", 32, 8, 16384, 16384, 128,
     0, 0},
    {"ALiBi causal 16k h32/8 d128", "q >= kv", "s + slope[h] * float(kv - q)", 32, 8, 16384, 16384,
     128, 0, 0},
    /* never dense: the size at which a dense run takes 298 GB, and lengths that differ 64 times */
    {"dflash ctx38304 na2048 h32/8 d128", DFLASH, NULL, 32, 8, 32768, 71072, 128, 38304, 2048},
    {"window 1024 8k h32/8 d128", "q >= kv && q - kv < 1024", NULL, 32, 8, 8192, 8192, 128, 0, 0},
    {"window 1024 64k h32/8 d128", "q >= kv && q - kv < 1024", NULL, 32, 8, 65536, 65536, 128, 0,
     0},
    {"window 1024 512k h32/8 d128", "q >= kv && q - kv < 1024", NULL, 32, 8, 524288, 524288, 128, 0,
     0},
    /* the same logic where the CPU plays the device */
    {"dflash ctx192 na12 h2/1 d128", DFLASH, NULL, 2, 1, 192, 384, 128, 192, 12},
    {"window 64 700 h1/1 d64", "q >= kv && q - kv < 64", NULL, 1, 1, 700, 700, 64, 0, 0},
};
enum { GPU_LARGE = 9, GPU_SMALL = 13 }; /* the first of these */
enum { GPU_BENCHES = sizeof gpu_benches / sizeof *gpu_benches };

/* What the expressions capture, for the largest shape. */
typedef struct gpu_bench_env {
    expr_decl decl[4];
    expr_value value[4];
    expr_env env;
    int32_t anchor[2048], doc[16384];
    float slope[32];
} gpu_bench_env;

static int gpu_bench_by_value(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static inline void gpu_bench_bind(gpu_bench_env *e, const gpu_bench *b) {
    static const int lengths[] = {1000, 3000, 500, 7000, 2500, 2384};
    int at = 0;
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < lengths[i]; k++) e->doc[at++] = i;
    for (int i = 0; i < 32; i++) e->slope[i] = exp2f(-0.25f * (float)(i + 1));
    for (int i = 0; i < b->anchors; i++) { /* distinct, sorted */
        for (int taken = 1; taken;) {
            e->anchor[i] =
                1 + (int32_t)numbers_below(17, (uint64_t)i, (uint64_t)taken, b->context - 16);
            taken = taken + 1;
            for (int k = 0; k < i; k++)
                if (e->anchor[k] == e->anchor[i]) goto again;
            break;
        again:;
        }
    }
    qsort(e->anchor, (size_t)b->anchors, sizeof *e->anchor, gpu_bench_by_value);
    e->decl[0] = (expr_decl){"n", EXPR_INT, 0}, e->decl[1] = (expr_decl){"anchor", EXPR_INT, 1};
    e->decl[2] = (expr_decl){"doc", EXPR_INT, 1}, e->decl[3] = (expr_decl){"slope", EXPR_FLOAT, 1};
    e->value[0] = (expr_value){.scalar.i = b->context};
    e->value[1] = (expr_value){.type = DT_I32, .dim = {b->anchors}, .data = e->anchor};
    e->value[2] = (expr_value){.type = DT_I32, .dim = {16384}, .data = e->doc};
    e->value[3] = (expr_value){.type = DT_F32, .dim = {32}, .data = e->slope};
    e->env = (expr_env){e->value, 0, 0};
}

/* Random bf16, a block of them over and over. */
static inline uint64_t gpu_bench_tensor(const gpu_world *w, dev_arena *m, int64_t n,
                                        uint64_t stream) {
    enum { BLOCK = 1 << 20 };
    float *x = numbers_new(BLOCK, 5, stream, 1.0f);
    uint16_t *y = malloc(BLOCK * sizeof *y);
    dev_address at;
    assert_ok(dev_arena_alloc(m, (size_t)n * 2, &at));
    if (!y) abort();
    for (int i = 0; i < BLOCK; i++) y[i] = bf16_from_f32(x[i]);
    for (int64_t i = 0; i < n; i += BLOCK)
        assert_ok(dev_copy_in(w->s, at + (uint64_t)i * 2, y,
                              (size_t)(n - i < BLOCK ? n - i : BLOCK) * 2));
    free(x), free(y);
    return at;
}

static int gpu_bench_by_time(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static inline double gpu_bench_time(const gpu_world *w, const gpu_case *x, const flex_cuda_steps *s,
                                    int runs) {
    double ms[20];
    dev_event *from, *to;
    assert_ok(dev_event_create(&from, w->d));
    assert_ok(dev_event_create(&to, w->d));
    for (int i = -(runs + 3) / 4; i < runs; i++) {
        assert_ok(dev_event_record(from, w->s));
        assert_ok(flex_cuda_run(x->code, w->s, s));
        assert_ok(dev_event_record(to, w->s));
        assert_ok(dev_event_wait(to));
        if (i >= 0) assert_ok(dev_event_ms(from, to, &ms[i]));
    }
    dev_event_destroy(from);
    dev_event_destroy(to);
    qsort(ms, (size_t)runs, sizeof *ms, gpu_bench_by_time);
    return ms[runs / 2];
}

static inline void gpu_bench_plan(const gpu_bench *b, gpu_bench_env *e, const gpu_world *w,
                                  gpu_case *x) {
    gpu_bench_bind(e, b);
    memset(x, 0, sizeof *x);
    flex_problem *p = &x->c.p;
    *p = (flex_problem){.batch = 1,
                        .q_heads = b->q_heads,
                        .kv_heads = b->kv_heads,
                        .q_len = b->q_len,
                        .kv_len = b->kv_len,
                        .dim = b->dim,
                        .v_dim = b->dim,
                        .type = DT_BF16,
                        .env = &e->env,
                        .score_env = &e->env};
    expr *mask = NULL, *score = NULL;
    assert_ok(expr_compile(&mask, EXPR_MASK, b->mask, e->decl, 4));
    if (b->score) assert_ok(expr_compile(&score, EXPR_SCORE, b->score, e->decl, 4));
    p->mask = mask, p->score = score;
    x->type = DT_BF16;
    x->c.nq = p->q_heads * p->q_len, x->c.nk = p->kv_heads * p->kv_len;
    gpu_case_plan(x, w);
}

/* At most 20 timed runs. Fails when a run takes memory beside what was planned, as the driver sees it. */
static inline void gpu_bench_run(const gpu_bench *b, gpu_case *x, const gpu_world *w, int runs) {
    const flex_problem *p = &x->c.p;
    size_t tables;
    uint64_t before, after, warm, later, total;
    dev_arena *m, *beside;
    const void *host = flex_cuda_tables(x->plan, &tables);
    const int64_t nq = x->c.nq * b->dim, nk = x->c.nk * b->dim;
    assert_ok(dev_arena_create(&m, w->d, "tensors",
                               (size_t)(4 * (nq + nk)) * 2 + (size_t)x->c.nq * 4 + (1 << 20)));
    flex_cuda_io io = {0};
    flex_cuda_view *views[] = {&io.q, &io.o, &io.d_o, &io.dq, &io.k, &io.v, &io.dk, &io.dv};
    for (int i = 0; i < 8; i++) {
        const int query = i < 4;
        *views[i] =
            gpu_view(gpu_bench_tensor(w, m, query ? nq : nk, (uint64_t)i),
                     query ? p->q_heads : p->kv_heads, query ? p->q_len : p->kv_len, b->dim);
    }
    assert_ok(dev_arena_alloc(m, (size_t)x->c.nq * 4, &io.lse));
    assert_ok(dev_memory(w->d, &before, &total));
    assert_ok(
        dev_arena_create(&beside, w->d, "beside", tables + flex_cuda_workspace(x->plan) + 512));
    assert_ok(dev_arena_alloc(beside, tables, &io.tables));
    assert_ok(dev_arena_alloc(beside, flex_cuda_workspace(x->plan), &io.workspace));
    assert_ok(dev_memory(w->d, &after, &total));
    assert_ok(dev_copy_in(w->s, io.tables, host, tables));
    gpu_arrays(w, p->mask, p->env, io.mask_arrays);
    gpu_arrays(w, p->score, p->score_env, io.score_arrays);
    flex_cuda_steps forward, backward;
    assert_ok(flex_cuda_forward(x->plan, &io, x->a, &forward));
    assert_ok(flex_cuda_backward(x->plan, &io, x->a, &backward));
    (void)gpu_bench_time(w, x, &forward, 1);
    (void)gpu_bench_time(w, x, &backward, 1);
    assert_ok(dev_memory(w->d, &warm, &total)); /* a first launch loads its kernel */
    const double f = gpu_bench_time(w, x, &forward, runs),
                 r = gpu_bench_time(w, x, &backward, runs);
    assert_ok(dev_memory(w->d, &later, &total));
    assert_true(later == warm);
    assert_true(before - after <= tables + flex_cuda_workspace(x->plan) + ((size_t)4 << 20));
    const block_mask *mask = flex_cuda_plan_mask(x->plan);
    const double blocks = (double)(mask->partial + mask->full),
                 flop = 4.0 * blocks * 128 * 128 * (double)b->dim * (double)p->q_heads;
    printf(
        "%-34s fwd %7.3f ms bwd %7.3f ms; blocks %lld; block TFLOP/s fwd %.0f bwd %.0f; beside "
        "tensors: %.2f MiB planned, %.2f MiB by the driver; dense fp32 scores %.1f GiB; mask %.2f ms\n",
        b->name, f, r, (long long)(mask->partial + mask->full), flop / f / 1e9,
        2.5 * flop / r / 1e9, (double)(tables + flex_cuda_workspace(x->plan)) / 0x1p20,
        (double)(before - after) / 0x1p20,
        4.0 * (double)p->q_heads * (double)p->q_len * (double)p->kv_len / 0x1p30, mask->build_ms);
    fflush(stdout);
    dev_arena_destroy(beside);
    dev_arena_destroy(m);
}

/* Benches from .. to - 1. */
static inline void gpu_bench_some(const gpu_world *w, int from, int to, int runs) {
    static gpu_case x[GPU_BENCHES];
    static gpu_bench_env env[GPU_BENCHES];
    for (int i = from; i < to; i++) gpu_bench_plan(&gpu_benches[i], &env[i], w, &x[i]);
    for (int warm = 0; warm < 2; warm++) {
        const double start = clock_seconds();
        gpu_cases_load(&x[from], to - from, w);
        printf("kernels of %d cases, %s: %.3f s by %d threads\n", to - from,
               warm ? "found" : "cold", clock_seconds() - start, pool_threads(w->threads));
    }
    for (int i = from; i < to; i++) gpu_bench_run(&gpu_benches[i], &x[i], w, runs);
    for (int i = from; i < to; i++) {
        expr_free((expr *)x[i].c.p.mask);
        expr_free((expr *)x[i].c.p.score);
        arena_destroy(x[i].a);
    }
}

#endif
