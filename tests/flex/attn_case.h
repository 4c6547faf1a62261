/* One attention case for tests: a problem with random tensors, run by tiles and by the definition.
 *
 * Outputs are poisoned with NaN before each run, so an entry that is not written shows. Inputs are drawn in fp32 and
 * rounded to bf16 where the case asks for it; the definition reads the same rounded values. */
#ifndef TESTS_FLEX_ATTN_CASE_H
#define TESTS_FLEX_ATTN_CASE_H
#include "attn_masks.h"
#include "attn_scores.h"
#include "flex/flex.h"
#include "support/says.h"

typedef struct attn_result {
    float *o, *lse, *dq, *dk, *dv;
    float *learned,
        *d_sinks; /* gradients of the score's float captures, one after the other; of the sinks */
} attn_result;

typedef struct attn_case {
    flex_problem p;
    attn_mask mask;
    attn_score score; /* after attn_case_score */
    float *sinks;
    void *q, *k, *v; /* contiguous, of p.type */
    float *d_o, *d_lse;
    int64_t nq, nk; /* rows: B*Hq*L, B*Hkv*S */
} attn_case;

static inline void *attn_tensor(dtype type, int64_t n, uint64_t seed, uint64_t stream) {
    float *x = numbers_new(n, seed, stream, 1.0f);
    if (type == DT_F32) return x;
    bf16 *y = malloc((size_t)(n + 1) * sizeof *y);
    if (!y) abort();
    for (int64_t i = 0; i < n; i++) y[i] = bf16_from_f32(x[i]);
    free(x);
    return y;
}
/* p: shapes, type, tiles; lengths are replaced by the mask's. */
static inline void attn_case_make(attn_case *c, const flex_problem *p, int kind, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->p = *p;
    attn_mask_make(&c->mask, kind, p->batch, p->q_len, p->kv_len, seed);
    c->p.q_len = c->mask.q_len, c->p.kv_len = c->mask.kv_len;
    c->p.mask = c->mask.e, c->p.env = &c->mask.env;
    c->nq = p->batch * p->q_heads * c->p.q_len, c->nk = p->batch * p->kv_heads * c->p.kv_len;
    c->q = attn_tensor(p->type, c->nq * p->dim, seed, 1);
    c->k = attn_tensor(p->type, c->nk * p->dim, seed, 2);
    c->v = attn_tensor(p->type, c->nk * p->v_dim, seed, 3);
    c->d_o = numbers_new(c->nq * p->v_dim, seed, 4, 1.0f);
    c->d_lse = numbers_new(c->nq, seed, 5, 1.0f);
}
/* Adds a score of a kind, and sinks. */
static inline void attn_case_score(attn_case *c, int kind, int sinks, uint64_t seed) {
    attn_score_make(&c->score, kind, c->p.batch, c->p.q_heads, c->p.q_len, c->p.kv_len, seed);
    c->p.score = c->score.e, c->p.score_env = &c->score.env;
    c->p.score_grads = c->score.wanted;
    if (sinks) c->sinks = numbers_new(c->p.q_heads, seed, 6, 1.0f);
    c->p.sinks = c->sinks;
}
static inline void attn_case_free(attn_case *c) {
    free(c->q), free(c->k), free(c->v), free(c->d_o), free(c->d_lse), free(c->sinks);
    attn_mask_free(&c->mask);
    attn_score_free(&c->score);
}
static inline attn_result attn_result_new(const attn_case *c) {
    return (attn_result){numbers_poisoned(c->nq * c->p.v_dim), numbers_poisoned(c->nq),
                         numbers_poisoned(c->nq * c->p.dim),   numbers_poisoned(c->nk * c->p.dim),
                         numbers_poisoned(c->nk * c->p.v_dim), numbers_poisoned(c->score.n_learned),
                         numbers_poisoned(c->p.q_heads)};
}
static inline void attn_result_free(attn_result *r) {
    free(r->o), free(r->lse), free(r->dq), free(r->dk), free(r->dv);
    free(r->learned), free(r->d_sinks);
}

static inline flex_view attn_view(dtype type, const void *data, int64_t heads, int64_t len,
                                  int64_t dim) {
    return (flex_view){type, data, heads * len * dim, len * dim, dim};
}
static inline flex_out attn_out(float *data, int64_t heads, int64_t len, int64_t dim) {
    return (flex_out){data, heads * len * dim, len * dim, dim};
}
static inline flex_io attn_io(const attn_case *c, attn_result *r) {
    const flex_problem *p = &c->p;
    flex_io io = {.q = attn_view(p->type, c->q, p->q_heads, p->q_len, p->dim),
                  .k = attn_view(p->type, c->k, p->kv_heads, p->kv_len, p->dim),
                  .v = attn_view(p->type, c->v, p->kv_heads, p->kv_len, p->v_dim),
                  .o = attn_out(r->o, p->q_heads, p->q_len, p->v_dim),
                  .lse = r->lse,
                  .d_o = attn_view(DT_F32, c->d_o, p->q_heads, p->q_len, p->v_dim),
                  .d_lse = c->d_lse,
                  .dq = attn_out(r->dq, p->q_heads, p->q_len, p->dim),
                  .dk = attn_out(r->dk, p->kv_heads, p->kv_len, p->dim),
                  .dv = attn_out(r->dv, p->kv_heads, p->kv_len, p->v_dim),
                  .d_sinks = r->d_sinks};
    float *at = r->learned;
    for (int i = 0; i < c->score.n; at += c->score.elements[i++]) io.d_capture[i] = at;
    return io;
}
static inline void *attn_workspace(const flex_plan *plan, dev *d) {
    size_t f = flex_forward_workspace(plan, dev_threads(d)),
           b = flex_backward_workspace(plan, dev_threads(d));
    size_t n = ((f > b ? f : b) + 63) / 64 * 64 + 64;
    void *w = aligned_alloc(64, n);
    if (!w) abort();
    memset(w, 0xff, n); /* NaN */
    return w;
}
/* Plan, forward, backward by tiles with the given views. */
static inline void attn_run_io(const flex_problem *p, flex_io *io, dev *d) {
    arena *a;
    flex_plan *plan;
    assert_ok(arena_create(&a, "case", 0));
    assert_ok(flex_plan_create(&plan, d, p, a));
    io->workspace = attn_workspace(plan, d);
    assert_ok(flex_forward(plan, d, io));
    assert_ok(flex_backward(plan, d, io));
    free(io->workspace);
    arena_destroy(a);
}
static inline attn_result attn_run(const attn_case *c, dev *d) {
    attn_result r = attn_result_new(c);
    flex_io io = attn_io(c, &r);
    attn_run_io(&c->p, &io, d);
    return r;
}
static inline attn_result attn_reference(const attn_case *c) {
    attn_result r = attn_result_new(c);
    flex_io io = attn_io(c, &r);
    assert_ok(flex_reference_forward(&c->p, &io));
    assert_ok(flex_reference_backward(&c->p, &io));
    return r;
}
static inline dev *attn_dev(int threads) {
    dev *d;
    const dev_config cfg = {.threads = threads, .blas = "none"};
    assert_ok(dev_open_cpu(&d, &cfg));
    return d;
}
/* Largest difference over (1 + the size of the largest wanted value); equal infinities differ by 0. */
static inline double attn_far(const float *got, const float *want, int64_t n) {
    double far = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue;
        double e = fabs((double)got[i] - (double)want[i]);
        if (!(e < INFINITY)) return INFINITY;
        if (e > far) far = e;
        if (fabs((double)want[i]) > size) size = fabs((double)want[i]);
    }
    return far / (1 + size);
}

#endif
