/* Attention over whole rows in fp32, as a dense implementation would do it: the error that rounding alone makes.
 *
 * Scores by the fp32 definition, sums in fp32, derivatives of the score from the double definition at the fp32 logit.
 * Tests allow the tiles twice this error. Writes through the same flex_io as the others; contiguous tensors only. */
#ifndef TESTS_FLEX_ATTN_DENSE_H
#define TESTS_FLEX_ATTN_DENSE_H
#include "attn_case.h"

typedef struct attn_dense {
    const attn_case *c;
    attn_result *r;
    expr_grad *g;
    float *q, *k, *v; /* widened */
    float *raw, *s;   /* [S] */
    float scale;
} attn_dense;

static inline float *attn_dense_widen(dtype type, const void *x, int64_t n) {
    float *y = numbers_poisoned(n);
    dtype_to_f32(type, x, y, (size_t)n);
    return y;
}

static inline void attn_dense_scores(attn_dense *d, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = &d->c->p;
    int64_t D = p->dim, kv = b * p->kv_heads + h / (p->q_heads / p->kv_heads);
    const float *q = d->q + ((b * p->q_heads + h) * p->q_len + i) * D;
    for (int64_t j = 0; j < p->kv_len; j++) {
        const float *k = d->k + (kv * p->kv_len + j) * D;
        float dot = 0;
        int flag = 0;
        for (int64_t e = 0; e < D; e++) dot += q[e] * k[e];
        d->raw[j] = d->s[j] = dot * d->scale;
        if (p->score)
            d->s[j] = expr_eval_score(p->score, p->score_env, b, h, i, j, d->raw[j], &flag);
        if (p->mask && !expr_eval_mask(p->mask, p->env, b, h, i, j, &flag)) d->s[j] = -INFINITY;
    }
}

static inline void attn_dense_forward(attn_dense *d, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = &d->c->p;
    int64_t E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i,
            kv = b * p->kv_heads + h / (p->q_heads / p->kv_heads);
    float *o = d->r->o + row * E, top = p->sinks ? p->sinks[h] : -INFINITY, sum;
    for (int64_t j = 0; j < p->kv_len; j++) top = d->s[j] > top ? d->s[j] : top;
    memset(o, 0, (size_t)E * sizeof *o);
    d->r->lse[row] = -INFINITY;
    if (top == -INFINITY) return;
    sum = p->sinks ? expf(p->sinks[h] - top) : 0;
    for (int64_t j = 0; j < p->kv_len; j++) {
        float w = expf(d->s[j] - top);
        sum += w;
        for (int64_t e = 0; e < E; e++) o[e] += w * d->v[(kv * p->kv_len + j) * E + e];
    }
    for (int64_t e = 0; e < E; e++) o[e] /= sum;
    d->r->lse[row] = top + logf(sum);
}

/* The gradient by score j, a difference of two terms that add to *size, passed on; returns the gradient by q·k, and
 * what its terms add to. */
static inline float attn_dense_pass(attn_dense *d, int64_t b, int64_t h, int64_t i, int64_t j,
                                    float ds, float *size) {
    const flex_problem *p = &d->c->p;
    double slope, site[32];
    int64_t place[32];
    int flag = 0;
    const float sum = *size;
    *size *= fabsf(d->scale);
    if (!p->score || sum == 0.0f) return ds * d->scale;
    (void)expr_grad_eval(d->g, p->score_env, b, h, i, j, (double)d->raw[j], &slope, site, place,
                         &flag);
    for (int k = 0; k < expr_grad_sites(d->g); k++) {
        int64_t at = place[k];
        for (int c = 0; c < expr_grad_capture(d->g, k); c++) at += d->c->score.elements[c];
        if (place[k] < 0) continue;
        d->r->learned[at] += ds * (float)site[k];
        d->r->learned_terms[at] += sum * fabsf((float)site[k]);
    }
    *size *= fabsf((float)slope);
    return ds * (float)slope * d->scale;
}

static inline void attn_dense_backward(attn_dense *d, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = &d->c->p;
    int64_t D = p->dim, E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i,
            kv = b * p->kv_heads + h / (p->q_heads / p->kv_heads);
    const float *go = d->c->d_o + row * E, lse = d->r->lse[row];
    float delta = -d->c->d_lse[row], size = fabsf(delta);
    if (lse == -INFINITY) return;
    for (int64_t e = 0; e < E; e++) {
        delta += go[e] * d->r->o[row * E + e];
        size += fabsf(go[e] * d->r->o[row * E + e]);
    }
    if (p->sinks) {
        d->r->d_sinks[h] -= expf(p->sinks[h] - lse) * delta;
        d->r->sinks_terms[h] += expf(p->sinks[h] - lse) * size;
    }
    for (int64_t j = 0; j < p->kv_len; j++) {
        int64_t at = kv * p->kv_len + j;
        float w = expf(d->s[j] - lse), dp = 0, sum = size;
        if (d->s[j] == -INFINITY) continue;
        for (int64_t e = 0; e < E; e++) {
            dp += go[e] * d->v[at * E + e];
            sum += fabsf(go[e] * d->v[at * E + e]);
            d->r->dv[at * E + e] += w * go[e];
        }
        sum *= w;
        float ds = attn_dense_pass(d, b, h, i, j, w * (dp - delta), &sum);
        for (int64_t e = 0; e < D; e++) {
            d->r->dq[row * D + e] += ds * d->k[at * D + e];
            d->r->dk[at * D + e] += ds * d->q[row * D + e];
            d->r->dq_terms[row * D + e] += sum * fabsf(d->k[at * D + e]);
            d->r->dk_terms[at * D + e] += sum * fabsf(d->q[row * D + e]);
        }
    }
}

/* What attn_far would say of errors as large as all terms of a sum: the largest of terms[n] beside 1 + the largest wanted value. */
static inline double attn_dense_terms(const float *terms, const float *want, int64_t n) {
    double size = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        size = fmax(size, (double)terms[i]);
        most = fmax(most, fabs((double)want[i]));
    }
    return size / (1 + most);
}

static inline attn_result attn_dense_run(const attn_case *c) {
    const flex_problem *p = &c->p;
    attn_result r = attn_result_new(c);
    attn_dense d = {.c = c, .r = &r};
    arena *a;
    assert_ok(arena_create(&a, "dense", 0));
    if (p->score) assert_ok(expr_grad_create(&d.g, p->score, p->score_grads, a));
    d.scale = p->scale != 0.0f || p->zero_scale ? p->scale : 1 / sqrtf((float)p->dim);
    d.q = attn_dense_widen(p->type, c->q, c->nq * p->dim);
    d.k = attn_dense_widen(p->type, c->k, c->nk * p->dim);
    d.v = attn_dense_widen(p->type, c->v, c->nk * p->v_dim);
    d.raw = numbers_poisoned(p->kv_len), d.s = numbers_poisoned(p->kv_len);
    memset(r.dq, 0, (size_t)(c->nq * p->dim) * 4), memset(r.dk, 0, (size_t)(c->nk * p->dim) * 4);
    memset(r.dv, 0, (size_t)(c->nk * p->v_dim) * 4);
    memset(r.learned, 0, (size_t)c->score.n_learned * 4);
    memset(r.d_sinks, 0, (size_t)p->q_heads * 4);
    r.learned_terms = calloc((size_t)c->score.n_learned + 1, 4);
    r.sinks_terms = calloc((size_t)p->q_heads, 4);
    r.dq_terms = calloc((size_t)(c->nq * p->dim) + 1, 4);
    r.dk_terms = calloc((size_t)(c->nk * p->dim) + 1, 4);
    if (!r.learned_terms || !r.sinks_terms || !r.dq_terms || !r.dk_terms) abort();
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->q_heads; h++)
            for (int64_t i = 0; i < p->q_len; i++) {
                attn_dense_scores(&d, b, h, i);
                attn_dense_forward(&d, b, h, i);
                attn_dense_backward(&d, b, h, i);
            }
    free(d.q), free(d.k), free(d.v), free(d.raw), free(d.s);
    arena_destroy(a);
    return r;
}

#endif
