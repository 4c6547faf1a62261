/* Attention cases on a GPU, or on the device that tests/emu plays: plans loaded side by side, steps run, results back.
 *
 * On the emulated device every array is an allocation of its own, so that whatever leaves it is told. A case is an attn_case with tensors rounded to its type; the definition reads the same rounded values in fp32. Kernels
 * come through the cache, in a folder of the test's own. Outputs are poisoned before each run. */
#ifndef TESTS_GPU_GPU_CASE_H
#define TESTS_GPU_GPU_CASE_H
#include "core/pool.h"
#include "dev/dev_cuda.h"
#include "flex/attn_case.h"
#include "flex/flex_cuda_run.h"
#include "support/files.h"

enum { GPU_BYTES = 3 }; /* GiB of device memory */
enum { GPU_OWN = 128 };

typedef struct gpu_own { /* arrays with an allocation each */
    dev_arena *a[GPU_OWN];
    size_t n;
} gpu_own;

typedef struct gpu_world {
    files_dir dir;
    char folder[600];
    cuda_system *sys;
    dev *d;
    dev_stream *s;
    dev_arena *memory;
    pool *threads;
    gpu_own *own; /* NULL: a real device */
    int few;      /* under a tool that slows kernels down, as if they were emulated */
} gpu_world;

/* 0, after saying why, where there is no usable GPU. */
static inline int gpu_world_open(gpu_world *w) {
    memset(w, 0, sizeof *w);
    w->dir = files_begin();
    snprintf(w->folder, sizeof w->folder, "%s/kernels", w->dir.path);
    const kernel_cache_config cache = {.folder = w->folder};
    err e = cuda_system_open(&w->sys, &(cuda_system_config){.cache = &cache});
    if (!e) e = dev_open_cuda(&w->d, w->sys, 0, &(dev_config){.threads = 1, .blas = "none"});
    if (e) {
        printf("skipped: %s\n", err_text());
        return 0;
    }
    assert_ok(dev_stream_create(&w->s, w->d));
    assert_ok(dev_arena_create(&w->memory, w->d, "cases", (size_t)GPU_BYTES << 30));
    assert_ok(pool_create(&w->threads, pool_cpus()));
    printf("%s, %s\n", dev_cuda_info(w->d)->name, dev_arch(w->d));
    if (strstr(dev_cuda_info(w->d)->name, "emulated")) w->own = calloc(1, sizeof *w->own);
    return 1;
}
/* A smaller number where each thread of a kernel is played by the CPU, or slowed down. */
static inline int64_t gpu_fewer(const gpu_world *w, int64_t real, int64_t emulated) {
    return w->own || w->few ? emulated : real;
}
static inline size_t gpu_mark(const gpu_world *w) {
    return w->own ? w->own->n : dev_arena_mark(w->memory);
}
static inline void gpu_reset(const gpu_world *w, size_t mark) {
    if (!w->own) dev_arena_reset(w->memory, mark);
    while (w->own && w->own->n > mark) dev_arena_destroy(w->own->a[--w->own->n]);
}
static inline void gpu_world_close(gpu_world *w) {
    if (w->d) {
        pool_destroy(w->threads);
        gpu_reset(w, 0);
        free(w->own);
        dev_arena_destroy(w->memory);
        dev_stream_destroy(w->s);
        dev_close(w->d);
    }
    cuda_system_close(w->sys);
    files_end(&w->dir);
}
/* A group's set-up and tear-down with a world as its state; without a GPU its d is NULL, and each test skips. */
static inline int gpu_world_set_up(void **state) {
    gpu_world *w = calloc(1, sizeof *w);
    if (!w) return 1;
    *state = w;
    (void)gpu_world_open(w);
    return 0;
}
static inline int gpu_world_tear_down(void **state) {
    gpu_world_close(*state);
    free(*state);
    return 0;
}

typedef struct gpu_case {
    attn_case c; /* type F32: the rounded values widened */
    dtype type;
    flex_cuda_plan *plan;
    flex_cuda_code *code;
    arena *a;
    void *q, *k, *v, *d_o; /* in type */
    attn_result got, want;
    uint64_t words[FLEX_CUDA_WORDS];
} gpu_case;

static inline uint64_t gpu_new(const gpu_world *w, size_t bytes, int fill) {
    dev_address at;
    dev_arena *from = w->memory;
    if (w->own) {
        assert_true(w->own->n < GPU_OWN);
        assert_ok(dev_arena_create(&from, w->d, "an array", bytes + 1));
        w->own->a[w->own->n++] = from;
    }
    assert_ok(dev_arena_alloc(from, bytes + 1, &at));
    assert_ok(dev_set_bytes(w->s, at, fill, bytes + 1));
    return at;
}
static inline uint64_t gpu_copy(const gpu_world *w, const void *from, size_t bytes) {
    uint64_t at = gpu_new(w, bytes, 0);
    if (bytes) assert_ok(dev_copy_in(w->s, at, from, bytes));
    return at;
}
static inline void gpu_out(const gpu_world *w, void *to, uint64_t from, size_t bytes) {
    if (bytes) assert_ok(dev_copy_out(w->s, to, from, bytes));
    assert_ok(dev_stream_wait(w->s));
}

static inline void *gpu_round(dtype type, float *x, int64_t n) {
    uint16_t *y = malloc((size_t)(n + 1) * sizeof *y);
    if (!y) abort();
    if (type == DT_F32) {
        free(y);
        y = malloc((size_t)(n + 1) * sizeof *x);
        if (!y) abort();
        memcpy(y, x, (size_t)n * sizeof *x);
        return y;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = type == DT_BF16 ? bf16_from_f32(x[i]) : f16_from_f32(x[i]);
        x[i] = type == DT_BF16 ? bf16_to_f32(y[i]) : f16_to_f32(y[i]);
    }
    return y;
}
/* p->type is the type on the GPU. */
static inline void gpu_case_make(gpu_case *x, const flex_problem *p, int mask, int score, int sinks,
                                 uint64_t seed) {
    flex_problem like = *p;
    memset(x, 0, sizeof *x);
    x->type = p->type;
    like.type = DT_F32;
    attn_case_make(&x->c, &like, mask, seed);
    x->q = gpu_round(x->type, x->c.q, x->c.nq * p->dim);
    x->k = gpu_round(x->type, x->c.k, x->c.nk * p->dim);
    x->v = gpu_round(x->type, x->c.v, x->c.nk * p->v_dim);
    x->d_o = gpu_round(x->type, x->c.d_o, x->c.nq * p->v_dim);
    if (score || sinks) attn_case_score(&x->c, score, sinks, seed);
}
static inline void gpu_case_plan(gpu_case *x, const gpu_world *w) {
    flex_problem p = x->c.p;
    p.type = x->type;
    p.tile_q = p.tile_kv = 0;
    assert_ok(arena_create(&x->a, "gpu case", 0));
    assert_ok(flex_cuda_plan_create(&x->plan, &p, (size_t)dev_cuda_info(w->d)->shared_block, x->a));
}
/* Kernels of n cases, side by side. */
typedef struct gpu_loading {
    gpu_case *x;
    const gpu_world *w;
} gpu_loading;
static inline err gpu_load_task(void *ctx, int64_t i, int thread) {
    gpu_loading *l = ctx;
    (void)thread;
    return flex_cuda_load(&l->x[i].code, l->x[i].plan, l->w->d, 1, l->x[i].a);
}
static inline void gpu_cases_load(gpu_case *x, int n, const gpu_world *w) {
    gpu_loading l = {x, w};
    assert_ok(pool_run(w->threads, n, gpu_load_task, &l));
}

static inline flex_cuda_view gpu_view(uint64_t at, int64_t heads, int64_t len, int64_t dim) {
    return (flex_cuda_view){at, heads * len * dim, len * dim, dim};
}
static inline float *gpu_back(const gpu_world *w, uint64_t at, dtype type, int64_t n) {
    size_t size = dtype_size(type);
    float *x = numbers_poisoned(n);
    void *raw = malloc((size_t)n * size + 1);
    if (!raw) abort();
    gpu_out(w, raw, at, (size_t)n * size);
    dtype_to_f32(type, raw, x, (size_t)n);
    free(raw);
    return x;
}

static inline void gpu_arrays(const gpu_world *w, const expr *e, const expr_env *env,
                              flex_cuda_address *at) {
    for (int i = 0; e && i < expr_capture_count(e); i++) {
        const expr_value *v = &env->values[i];
        const int ndim = expr_capture(e, i)->ndim;
        if (ndim) at[i] = gpu_copy(w, v->data, expr_value_bytes(v, ndim));
    }
}

/* Device memory for all of a case, outputs poisoned. */
static inline flex_cuda_io gpu_case_io(const gpu_case *x, const gpu_world *w) {
    const flex_problem *p = &x->c.p;
    const size_t size = dtype_size(x->type);
    const int64_t nq = x->c.nq, nk = x->c.nk;
    size_t tables;
    const void *host = flex_cuda_tables(x->plan, &tables);
#define IN(data, n, h, len, dim) gpu_view(gpu_copy(w, data, (size_t)(n)*size), h, len, dim)
#define OUT(n, h, len, dim)      gpu_view(gpu_new(w, (size_t)(n)*size, 0xff), h, len, dim)
    flex_cuda_io io = {.q = IN(x->q, nq * p->dim, p->q_heads, p->q_len, p->dim),
                       .k = IN(x->k, nk * p->dim, p->kv_heads, p->kv_len, p->dim),
                       .v = IN(x->v, nk * p->v_dim, p->kv_heads, p->kv_len, p->v_dim),
                       .o = OUT(nq * p->v_dim, p->q_heads, p->q_len, p->v_dim),
                       .d_o = IN(x->d_o, nq * p->v_dim, p->q_heads, p->q_len, p->v_dim),
                       .dq = OUT(nq * p->dim, p->q_heads, p->q_len, p->dim),
                       .dk = OUT(nk * p->dim, p->kv_heads, p->kv_len, p->dim),
                       .dv = OUT(nk * p->v_dim, p->kv_heads, p->kv_len, p->v_dim)};
#undef IN
#undef OUT
    io.lse = gpu_new(w, (size_t)nq * 4, 0xff);
    io.d_lse = gpu_copy(w, x->c.d_lse, (size_t)nq * 4);
    if (p->sinks) io.sinks = gpu_copy(w, p->sinks, (size_t)p->q_heads * 4);
    io.d_sinks = gpu_new(w, (size_t)p->q_heads * 4, 0xff);
    for (int i = 0; i < x->c.score.n; i++)
        io.d_capture[i] = gpu_new(w, (size_t)x->c.score.elements[i] * 4, 0xff);
    gpu_arrays(w, p->mask, p->env, io.mask_arrays);
    gpu_arrays(w, p->score, p->score_env, io.score_arrays);
    io.tables = gpu_copy(w, host, tables);
    io.workspace = gpu_new(w, flex_cuda_workspace(x->plan), 0xff);
    return io;
}
static inline attn_result gpu_case_back(const gpu_case *x, const gpu_world *w,
                                        const flex_cuda_io *io) {
    const flex_problem *p = &x->c.p;
    attn_result r = {.o = gpu_back(w, io->o.data, x->type, x->c.nq * p->v_dim),
                     .lse = gpu_back(w, io->lse, DT_F32, x->c.nq),
                     .dq = gpu_back(w, io->dq.data, x->type, x->c.nq * p->dim),
                     .dk = gpu_back(w, io->dk.data, x->type, x->c.nk * p->dim),
                     .dv = gpu_back(w, io->dv.data, x->type, x->c.nk * p->v_dim),
                     .learned = numbers_poisoned(x->c.score.n_learned),
                     .d_sinks = gpu_back(w, io->d_sinks, DT_F32, p->q_heads)};
    float *at = r.learned;
    for (int i = 0; i < x->c.score.n; at += x->c.score.elements[i++])
        if (x->c.score.elements[i])
            gpu_out(w, at, io->d_capture[i], (size_t)x->c.score.elements[i] * 4);
    return r;
}
static inline void gpu_case_steps(gpu_case *x, const gpu_world *w, const flex_cuda_io *io,
                                  int backward) {
    flex_cuda_steps s;
    if (backward)
        assert_ok(flex_cuda_backward(x->plan, io, x->a, &s));
    else
        assert_ok(flex_cuda_forward(x->plan, io, x->a, &s));
    assert_ok(flex_cuda_run(x->code, w->s, &s));
}
static inline void gpu_case_run_some(gpu_case *x, const gpu_world *w, int backward) {
    const size_t mark = gpu_mark(w);
    flex_cuda_io io = gpu_case_io(x, w);
    gpu_case_steps(x, w, &io, 0);
    if (backward) gpu_case_steps(x, w, &io, 1);
    gpu_out(w, x->words, io.workspace, sizeof x->words);
    x->got = gpu_case_back(x, w, &io);
    gpu_reset(w, mark);
}
static inline void gpu_case_run(gpu_case *x, const gpu_world *w) { gpu_case_run_some(x, w, 1); }
static inline void gpu_case_free(gpu_case *x) {
    free(x->q), free(x->k), free(x->v), free(x->d_o);
    attn_case_free(&x->c);
    attn_result_free(&x->got), attn_result_free(&x->want);
    arena_destroy(x->a);
    memset(x, 0, sizeof *x);
}

#endif
