/* Times of attention kernels at the shapes of the PyTorch baseline: forward, backward, block TFLOP/s.
 *
 * Medians of 20 runs after 5, by events, on random data. A block is a visited tile of 128 x 128 cells; forward counts
 * 4 x cells x D operations, backward 2.5 times as many. Memory beside inputs and outputs is printed as the driver sees it. */
#ifndef TESTS_FLEX_GPU_BENCH_H
#define TESTS_FLEX_GPU_BENCH_H
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
};
enum { GPU_BENCHES = sizeof gpu_benches / sizeof *gpu_benches };

/* What the expressions capture, for the largest shape. */
typedef struct gpu_bench_env {
    expr_decl decl[4];
    expr_value value[4];
    expr_env env;
    int32_t anchor[512], doc[16384];
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
static inline uint64_t gpu_bench_tensor(const gpu *g, gpu_memory *m, int64_t n, uint64_t stream) {
    enum { BLOCK = 1 << 20 };
    float *x = numbers_new(BLOCK, 5, stream, 1.0f);
    uint16_t *y = malloc(BLOCK * sizeof *y);
    uint64_t at = gpu_keep(m, gpu_new(g, (size_t)n * 2, 0));
    if (!y) abort();
    for (int i = 0; i < BLOCK; i++) y[i] = bf16_from_f32(x[i]);
    for (int64_t i = 0; i < n; i += BLOCK)
        GPU(g, in(at + (uint64_t)i * 2, y, (size_t)(n - i < BLOCK ? n - i : BLOCK) * 2));
    free(x), free(y);
    return at;
}

static int gpu_bench_by_time(const void *a, const void *b) {
    const float *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static inline float gpu_bench_time(const gpu_texts *all, const int *text,
                                   const flex_cuda_steps *s) {
    enum { RUNS = 20, WARM = 5 };
    float ms[RUNS];
    void *from, *to;
    const gpu *g = &all->g;
    GPU(g, event(&from, 0));
    GPU(g, event(&to, 0));
    for (int i = -WARM; i < RUNS; i++) {
        GPU(g, record(from, NULL));
        gpu_steps(all, text, s);
        GPU(g, record(to, NULL));
        GPU(g, event_wait(to));
        if (i >= 0) GPU(g, elapsed(&ms[i], from, to));
    }
    qsort(ms, RUNS, sizeof *ms, gpu_bench_by_time);
    return ms[RUNS / 2];
}

static inline void gpu_bench_plan(const gpu_bench *b, gpu_bench_env *e, gpu_texts *all,
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
    gpu_case_plan(x, all);
}

static inline void gpu_bench_run(const gpu_bench *b, gpu_case *x, const gpu_texts *all) {
    const gpu *g = &all->g;
    const flex_problem *p = &x->c.p;
    gpu_memory m = {.n = 0};
    size_t tables, before, after, total;
    const void *host = flex_cuda_tables(x->plan, &tables);
    const int64_t nq = x->c.nq * b->dim, nk = x->c.nk * b->dim;
    flex_cuda_io io = {0};
    flex_cuda_view *views[] = {&io.q, &io.o, &io.d_o, &io.dq, &io.k, &io.v, &io.dk, &io.dv};
    for (int i = 0; i < 8; i++) {
        const int query = i < 4;
        *views[i] =
            gpu_view(gpu_bench_tensor(g, &m, query ? nq : nk, (uint64_t)i),
                     query ? p->q_heads : p->kv_heads, query ? p->q_len : p->kv_len, b->dim);
    }
    io.lse = gpu_keep(&m, gpu_new(g, (size_t)x->c.nq * 4, 0));
    GPU(g, mem_info(&before, &total));
    gpu_arrays(g, &m, p->mask, p->env, io.mask_arrays);
    gpu_arrays(g, &m, p->score, p->score_env, io.score_arrays);
    io.tables = gpu_keep(&m, gpu_copy(g, host, tables));
    io.workspace = gpu_keep(&m, gpu_new(g, flex_cuda_workspace(x->plan), 0));
    GPU(g, mem_info(&after, &total));
    flex_cuda_steps forward, backward;
    assert_ok(flex_cuda_forward(x->plan, &io, x->a, &forward));
    assert_ok(flex_cuda_backward(x->plan, &io, x->a, &backward));
    const float f = gpu_bench_time(all, x->text, &forward),
                r = gpu_bench_time(all, x->text, &backward);
    const block_mask *mask = flex_cuda_plan_mask(x->plan);
    const double blocks = (double)(mask->partial + mask->full),
                 flop = 4.0 * blocks * 128 * 128 * (double)b->dim * (double)p->q_heads;
    printf(
        "%-34s fwd %7.3f ms bwd %7.3f ms; blocks %lld; block TFLOP/s fwd %.0f bwd %.0f; beside "
        "tensors: %.2f MiB planned, %.2f MiB by the driver; dense fp32 scores %.1f GiB; mask %.2f ms\n",
        b->name, (double)f, (double)r, (long long)(mask->partial + mask->full),
        flop / (double)f / 1e9, 2.5 * flop / (double)r / 1e9,
        (double)(tables + flex_cuda_workspace(x->plan)) / 0x1p20, (double)(before - after) / 0x1p20,
        4.0 * (double)p->q_heads * (double)p->q_len * (double)p->kv_len / 0x1p30, mask->build_ms);
    fflush(stdout);
    gpu_free_all(g, &m);
}

static inline void gpu_bench_all(gpu_texts *all, pool *threads) {
    static gpu_case x[GPU_BENCHES];
    static gpu_bench_env env[GPU_BENCHES];
    for (int i = 0; i < GPU_BENCHES; i++) gpu_bench_plan(&gpu_benches[i], &env[i], all, &x[i]);
    const double start = clock_seconds();
    gpu_texts_compile(all, threads);
    printf("%d texts compiled in %.1f s by %d threads\n", all->n_texts, clock_seconds() - start,
           pool_threads(threads));
    for (int i = 0; i < GPU_BENCHES; i++) gpu_bench_run(&gpu_benches[i], &x[i], all);
    for (int i = 0; i < GPU_BENCHES; i++) {
        expr_free((expr *)x[i].c.p.mask);
        expr_free((expr *)x[i].c.p.score);
        arena_destroy(x[i].a);
    }
}

#endif
