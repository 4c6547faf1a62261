/* Attention cases on a GPU: texts compiled side by side, steps run, results back as floats.
 *
 * A case is an attn_case with tensors rounded to its type; the definition reads the same rounded values in fp32. Texts
 * that are equal are compiled once. Outputs are poisoned before each run. */
#ifndef TESTS_FLEX_GPU_CASE_H
#define TESTS_FLEX_GPU_CASE_H
#include "attn_case.h"
#include "core/pool.h"
#include "flex/flex_cuda.h"
#include "support/gpu.h"
#include "support/nvrtc.h"

enum { GPU_TEXTS = 4000 };
typedef struct gpu_text {
    str text;
    char *cubin;
    void *module;
} gpu_text;
typedef struct gpu_texts {
    gpu g;
    nvrtc n;
    gpu_text *t;
    int n_texts, failed;
} gpu_texts;

typedef struct gpu_case {
    attn_case c; /* type F32: the rounded values widened */
    dtype type;
    flex_cuda_plan *plan;
    arena *a;
    int text[FLEX_CUDA_TEXTS];
    void *q, *k, *v, *d_o; /* in type */
    attn_result got, want;
    uint64_t words[FLEX_CUDA_WORDS];
} gpu_case;

static inline int gpu_texts_add(gpu_texts *all, str *text) {
    for (int i = 0; i < all->n_texts; i++) {
        if (all->t[i].text.n == text->n && !memcmp(all->t[i].text.s, text->s, text->n)) {
            str_free(text);
            return i;
        }
    }
    if (all->n_texts == GPU_TEXTS) abort();
    all->t[all->n_texts].text = *text;
    return all->n_texts++;
}

static inline err gpu_compile_task(void *ctx, int64_t i, int thread) {
    gpu_texts *all = ctx;
    size_t size;
    (void)thread;
    if (!all->t[i].cubin)
        all->t[i].cubin =
            nvrtc_cubin(&all->n, all->t[i].text.s, "attention", all->g.arch, &size, NULL);
    return all->t[i].cubin ? ERR_OK : ERR_INTERNAL;
}
static inline void gpu_texts_compile(gpu_texts *all, pool *threads) {
    if (pool_run(threads, all->n_texts, gpu_compile_task, all)) abort();
    for (int i = 0; i < all->n_texts; i++)
        if (!all->t[i].module) GPU(&all->g, load(&all->t[i].module, all->t[i].cubin));
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
    if (score || sinks) attn_case_score(&x->c, score, sinks, seed);
    x->q = gpu_round(x->type, x->c.q, x->c.nq * p->dim);
    x->k = gpu_round(x->type, x->c.k, x->c.nk * p->dim);
    x->v = gpu_round(x->type, x->c.v, x->c.nk * p->v_dim);
    x->d_o = gpu_round(x->type, x->c.d_o, x->c.nq * p->v_dim);
}
static inline void gpu_case_plan(gpu_case *x, gpu_texts *all) {
    flex_problem p = x->c.p;
    p.type = x->type;
    p.tile_q = p.tile_kv = 0;
    assert_ok(arena_create(&x->a, "gpu case", 0));
    assert_ok(flex_cuda_plan_create(&x->plan, &p, (size_t)all->g.shared, x->a));
    for (int i = 0; i < FLEX_CUDA_TEXTS; i++) {
        str text = {0};
        x->text[i] = -1;
        if (!flex_cuda_needs(x->plan, (flex_cuda_text)i, 0) &&
            !flex_cuda_needs(x->plan, (flex_cuda_text)i, 1))
            continue;
        assert_ok(flex_cuda_put_text(x->plan, (flex_cuda_text)i, &text));
        x->text[i] = gpu_texts_add(all, &text);
    }
}

static inline void gpu_steps(const gpu_texts *all, const int *text, const flex_cuda_steps *s) {
    const gpu *g = &all->g;
    for (int i = 0; i < s->n; i++) {
        const flex_cuda_step *x = &s->step[i];
        if (!x->function) {
            GPU(g, set8_later(x->fill, (unsigned char)x->fill_value, x->fill_bytes, NULL));
            continue;
        }
        void *f, *args[1] = {(void *)x->args};
        GPU(g, function(&f, all->t[text[x->text]].module, x->function));
        GPU(g, set_attribute(f, 8, (int)x->shared));
        gpu_must(
            g, g->launch(f, x->grid[0], x->grid[1], 1, x->block, 1, 1, x->shared, NULL, args, NULL),
            x->function);
    }
}

static inline flex_cuda_view gpu_view(uint64_t at, int64_t heads, int64_t len, int64_t dim) {
    return (flex_cuda_view){at, heads * len * dim, len * dim, dim};
}
static inline float *gpu_back(const gpu *g, uint64_t at, dtype type, int64_t n) {
    size_t size = dtype_size(type);
    float *x = numbers_poisoned(n);
    void *raw = malloc((size_t)n * size + 1);
    if (!raw) abort();
    if (n) GPU(g, out(raw, at, (size_t)n * size));
    dtype_to_f32(type, raw, x, (size_t)n);
    free(raw);
    return x;
}

typedef struct gpu_memory {
    uint64_t at[128];
    int n;
} gpu_memory;
static inline uint64_t gpu_keep(gpu_memory *m, uint64_t at) {
    if (m->n == 128) abort();
    return m->at[m->n++] = at;
}
static inline void gpu_free_all(const gpu *g, gpu_memory *m) {
    while (m->n) GPU(g, mem_free(m->at[--m->n]));
}
static inline void gpu_arrays(const gpu *g, gpu_memory *m, const expr *e, const expr_env *env,
                              flex_cuda_address *at) {
    for (int i = 0; e && i < expr_capture_count(e); i++) {
        int64_t n = 1;
        const expr_decl *d = expr_capture(e, i);
        for (int k = 0; k < d->ndim; k++) n *= env->values[i].dim[k];
        if (d->ndim)
            at[i] = gpu_keep(
                m, gpu_copy(g, env->values[i].data, (size_t)n * dtype_size(env->values[i].type)));
    }
}

/* Device memory for all of a case, outputs poisoned. */
static inline flex_cuda_io gpu_case_io(const gpu_case *x, const gpu *g, gpu_memory *m) {
    const flex_problem *p = &x->c.p;
    const size_t size = dtype_size(x->type);
    const int64_t nq = x->c.nq, nk = x->c.nk;
    size_t tables;
    const void *host = flex_cuda_tables(x->plan, &tables);
#define IN(data, n, h, len, dim)                                                                   \
    gpu_view(gpu_keep(m, gpu_copy(g, data, (size_t)(n)*size)), h, len, dim)
#define OUT(n, h, len, dim) gpu_view(gpu_keep(m, gpu_new(g, (size_t)(n)*size, 0xff)), h, len, dim)
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
    io.lse = gpu_keep(m, gpu_new(g, (size_t)nq * 4, 0xff));
    io.d_lse = gpu_keep(m, gpu_copy(g, x->c.d_lse, (size_t)nq * 4));
    if (p->sinks) io.sinks = gpu_keep(m, gpu_copy(g, p->sinks, (size_t)p->q_heads * 4));
    io.d_sinks = gpu_keep(m, gpu_new(g, (size_t)p->q_heads * 4, 0xff));
    for (int i = 0; i < x->c.score.n; i++)
        io.d_capture[i] = gpu_keep(m, gpu_new(g, (size_t)x->c.score.elements[i] * 4, 0xff));
    gpu_arrays(g, m, p->mask, p->env, io.mask_arrays);
    gpu_arrays(g, m, p->score, p->score_env, io.score_arrays);
    io.tables = gpu_keep(m, gpu_copy(g, host, tables));
    io.workspace = gpu_keep(m, gpu_new(g, flex_cuda_workspace(x->plan), 0xff));
    return io;
}
static inline attn_result gpu_case_back(const gpu_case *x, const gpu *g, const flex_cuda_io *io) {
    const flex_problem *p = &x->c.p;
    attn_result r = {gpu_back(g, io->o.data, x->type, x->c.nq * p->v_dim),
                     gpu_back(g, io->lse, DT_F32, x->c.nq),
                     gpu_back(g, io->dq.data, x->type, x->c.nq * p->dim),
                     gpu_back(g, io->dk.data, x->type, x->c.nk * p->dim),
                     gpu_back(g, io->dv.data, x->type, x->c.nk * p->v_dim),
                     numbers_poisoned(x->c.score.n_learned),
                     gpu_back(g, io->d_sinks, DT_F32, p->q_heads)};
    float *at = r.learned;
    for (int i = 0; i < x->c.score.n; at += x->c.score.elements[i++])
        if (x->c.score.elements[i])
            GPU(g, out(at, io->d_capture[i], (size_t)x->c.score.elements[i] * 4));
    return r;
}
static inline void gpu_case_steps(gpu_case *x, const gpu_texts *all, const flex_cuda_io *io,
                                  int backward) {
    flex_cuda_steps s;
    if (backward)
        assert_ok(flex_cuda_backward(x->plan, io, x->a, &s));
    else
        assert_ok(flex_cuda_forward(x->plan, io, x->a, &s));
    gpu_steps(all, x->text, &s);
}
static inline void gpu_case_run(gpu_case *x, const gpu_texts *all) {
    gpu_memory m = {.n = 0};
    flex_cuda_io io = gpu_case_io(x, &all->g, &m);
    gpu_case_steps(x, all, &io, 0);
    gpu_case_steps(x, all, &io, 1);
    GPU(&all->g, wait());
    GPU(&all->g, out(x->words, io.workspace, sizeof x->words));
    x->got = gpu_case_back(x, &all->g, &io);
    gpu_free_all(&all->g, &m);
}
static inline void gpu_case_free(gpu_case *x) {
    free(x->q), free(x->k), free(x->v), free(x->d_o);
    attn_case_free(&x->c);
    attn_result_free(&x->got), attn_result_free(&x->want);
    arena_destroy(x->a);
    memset(x, 0, sizeof *x);
}

#endif
