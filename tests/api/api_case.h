/* Cases of tests/flex told through the public header: the same tensors, expression and values, as a pl_problem and a pl_io.
 *
 * The library is thin, so its results must be flex's own, bit by bit; the numbers themselves are checked in tests/flex.
 * Header only; asserts stay with the caller, except for what cannot fail in a sound build. */
#ifndef TESTS_API_API_CASE_H
#define TESTS_API_API_CASE_H
#include "flex/attn_case.h"
#include "paceline/flex.h"

#define assert_pl_ok(call)                                                                         \
    says_check((err)(call), ERR_OK, (const char *const[]){NULL}, __FILE__, __LINE__)
#define assert_pl_says(call, code, ...)                                                            \
    says_check((err)(call), (err)(code), (const char *const[]){__VA_ARGS__, NULL}, __FILE__,       \
               __LINE__)

static inline pl_error api_capture(pl_problem *p, const expr_decl *d, const expr_value *v) {
    if (d->ndim) return pl_problem_array(p, d->name, (pl_type)v->type, d->ndim, v->dim, v->data);
    if (d->type == EXPR_FLOAT) return pl_problem_float(p, d->name, v->scalar.f);
    if (d->type == EXPR_BOOL) return pl_problem_bool(p, d->name, (int)v->scalar.i);
    return pl_problem_int(p, d->name, v->scalar.i);
}

/* NULL after a failure. */
static inline pl_problem *api_problem(const attn_case *c) {
    const flex_problem *f = &c->p;
    const pl_shape s = {sizeof s, f->batch,  f->q_heads, f->kv_heads,
                        f->q_len, f->kv_len, f->dim,     f->v_dim};
    pl_problem *p;
    pl_error e = pl_problem_create(&p, &s, (pl_type)f->type);
    if (e) return NULL;
    if (c->mask.e) e = pl_problem_mask(p, expr_source(c->mask.e));
    for (int i = 0; !e && i < c->mask.n; i++)
        e = api_capture(p, &c->mask.decl[i], &c->mask.value[i]);
    if (!e && c->score.e) e = pl_problem_score(p, expr_source(c->score.e));
    for (int i = 0; !e && i < c->score.n; i++) {
        e = api_capture(p, &c->score.decl[i], &c->score.value[i]);
        if (!e && c->score.wanted >> i & 1) e = pl_problem_gradient(p, c->score.decl[i].name, 1);
    }
    if (!e) e = pl_problem_sinks(p, c->sinks);
    if (!e) e = pl_problem_tiles(p, f->tile_q, f->tile_kv);
    if (!e) return p;
    pl_problem_free(p);
    return NULL;
}

static inline pl_io api_io(const attn_case *c, attn_result *r) {
    const flex_problem *p = &c->p;
    return (pl_io){.size = sizeof(pl_io),
                   .q = pl_view_dense(c->q, (pl_type)p->type, p->q_heads, p->q_len, p->dim),
                   .k = pl_view_dense(c->k, (pl_type)p->type, p->kv_heads, p->kv_len, p->dim),
                   .v = pl_view_dense(c->v, (pl_type)p->type, p->kv_heads, p->kv_len, p->v_dim),
                   .o = pl_out_dense(r->o, p->q_heads, p->q_len, p->v_dim),
                   .lse = r->lse,
                   .d_o = pl_view_dense(c->d_o, PL_F32, p->q_heads, p->q_len, p->v_dim),
                   .d_lse = c->d_lse,
                   .dq = pl_out_dense(r->dq, p->q_heads, p->q_len, p->dim),
                   .dk = pl_out_dense(r->dk, p->kv_heads, p->kv_len, p->dim),
                   .dv = pl_out_dense(r->dv, p->kv_heads, p->kv_len, p->v_dim)};
}

/* The gradients that a case wants; list: room for 8, last first, since order does not matter. */
static inline void api_gradients(const attn_case *c, attn_result *r, pl_io *io, pl_gradient *list) {
    float *at = r->learned;
    io->gradients = list;
    io->d_sinks = c->sinks ? r->d_sinks : NULL;
    for (int i = 0; i < c->score.n; at += c->score.elements[i++])
        if (c->score.wanted >> i & 1) io->n_gradients++;
    int64_t n = io->n_gradients;
    at = r->learned;
    for (int i = 0; i < c->score.n; at += c->score.elements[i++])
        if (c->score.wanted >> i & 1) list[--n] = (pl_gradient){c->score.decl[i].name, at};
}

/* A poisoned workspace of exactly the stated size. */
static inline void api_workspace(pl_io *io, size_t bytes) {
    io->workspace_bytes = bytes;
    io->workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!io->workspace) abort();
    memset(io->workspace, 0xff, bytes);
}

/* Forward and backward of a plan, each with a workspace of its own. */
static inline pl_error api_run(const pl_plan *plan, pl_device *d, pl_io *io) {
    api_workspace(io, pl_plan_forward_workspace(plan, d));
    pl_error e = pl_forward(plan, d, io);
    free(io->workspace);
    if (e) return e;
    api_workspace(io, pl_plan_backward_workspace(plan, d));
    e = pl_backward(plan, d, io);
    free(io->workspace);
    return e;
}

static inline int api_same(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof *a);
}
static inline int api_same_result(const attn_case *c, const attn_result *a, const attn_result *b) {
    return api_same(a->o, b->o, c->nq * c->p.v_dim) && api_same(a->lse, b->lse, c->nq) &&
           api_same(a->dq, b->dq, c->nq * c->p.dim) && api_same(a->dk, b->dk, c->nk * c->p.dim) &&
           api_same(a->dv, b->dv, c->nk * c->p.v_dim) &&
           api_same(a->learned, b->learned, c->score.n_learned) &&
           (!c->sinks || api_same(a->d_sinks, b->d_sinks, c->p.q_heads));
}

#endif
