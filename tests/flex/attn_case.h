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
    /* the sizes of the terms of sums, added: attn_dense_run alone; else NULL */
    float *learned_terms, *sinks_terms, *dq_terms, *dk_terms;
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
static inline int attn_by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Where a score has a step or a kink, a logit that is rounded in another way may fall on its other side: such places
 * are moved to the middle of the widest gap between logits within 0.3. */
static inline void attn_case_part_logits(attn_case *c) {
    const flex_problem *p = &c->p;
    int64_t n = 0, group = p->q_heads / p->kv_heads, D = p->dim;
    float *x = numbers_poisoned(c->nq * p->kv_len), *q = numbers_poisoned(c->nq * D),
          *k = numbers_poisoned(c->nk * D);
    double scale = p->scale != 0.0f || p->zero_scale ? (double)p->scale : 1 / sqrt((double)D);
    dtype_to_f32(p->type, c->q, q, (size_t)(c->nq * D));
    dtype_to_f32(p->type, c->k, k, (size_t)(c->nk * D));
    for (int64_t i = 0; i < c->nq; i++)
        for (int64_t j = 0; j < p->kv_len; j++) {
            double dot = 0;
            for (int64_t e = 0; e < D; e++)
                dot += (double)q[i * D + e] *
                       (double)k[(i / p->q_len / group * p->kv_len + j) * D + e];
            x[n++] = (float)(dot * scale);
        }
    qsort(x, (size_t)n, sizeof *x, attn_by_size);
    for (int s = 0; s < c->score.n; s++) {
        const float at = c->score.value[s].scalar.f;
        float low = at - 0.3f, best = 0;
        for (int64_t i = 0; i <= n && low < at + 0.3f; i++) {
            float next = i < n ? fminf(x[i], at + 0.3f) : at + 0.3f;
            if (next < low) continue;
            if (next - low > best) best = next - low, c->score.value[s].scalar.f = (next + low) / 2;
            low = next;
        }
    }
    free(x), free(q), free(k);
}
/* Adds a score of a kind, and sinks. */
static inline void attn_case_score(attn_case *c, int kind, int sinks, uint64_t seed) {
    attn_score_make(&c->score, kind, c->p.batch, c->p.q_heads, c->p.q_len, c->p.kv_len, seed);
    if (kind == SCORE_CUT || kind == SCORE_CLAMPED) attn_case_part_logits(c);
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
    return (attn_result){.o = numbers_poisoned(c->nq * c->p.v_dim),
                         .lse = numbers_poisoned(c->nq),
                         .dq = numbers_poisoned(c->nq * c->p.dim),
                         .dk = numbers_poisoned(c->nk * c->p.dim),
                         .dv = numbers_poisoned(c->nk * c->p.v_dim),
                         .learned = numbers_poisoned(c->score.n_learned),
                         .d_sinks = numbers_poisoned(c->p.q_heads)};
}
static inline void attn_result_free(attn_result *r) {
    free(r->o), free(r->lse), free(r->dq), free(r->dk), free(r->dv);
    free(r->learned), free(r->d_sinks), free(r->learned_terms), free(r->sinks_terms);
    free(r->dq_terms), free(r->dk_terms);
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
