/* The drafter's training backward: the forward's steps in reverse, every gradient of every tensor.
 *
 * Gradients of weights add to a buffer of the parameters' layout; the residual stream's gradient is updated in place through
 * each half layer. Context features collect gradient from every layer before fc sees it. The embedding and the target
 * are frozen: their gradients are never made. Sums have an order fixed by shapes. */
#include "model/drafter_acts.h"
#include <string.h>

typedef struct pass {
    const drafter_layout *l;
    const drafter_config *c;
    const float *w;
    float *g;
    dev *d;
    drafter_acts *t;
    arena *a;
    float *dx; /* [R,H] gradient of the residual stream */
    float *dc; /* [n,H] gradient of the context features */
} pass;

static err floats(arena *a, int64_t rows, int64_t width, float **out) {
    return arena_alloc_raw(a, (size_t)rows, (size_t)width * sizeof(float), out);
}

static err linear_back(pass *p, int64_t layer, int which, int64_t out, int64_t in, const float *x,
                       const float *dy, int64_t rows, float *dx, int add_dx) {
    const int64_t at = drafter__at(p->l, layer, which);
    return nn_linear_back(p->d, p->w + at, out, in, x, in, dy, out, rows, dx, in, add_dx,
                          p->g + at);
}

static err mlp_half(pass *p, int64_t layer, const drafter__layer *y) {
    const int64_t r = p->t->rows, h = p->c->hidden, i = p->c->intermediate;
    const int64_t norm = drafter__at(p->l, layer, DRAFTER__NORM2);
    float *dact, *dgate, *dup, *dxn;
    TRY(floats(p->a, r, i, &dact));
    TRY(floats(p->a, r, i, &dgate));
    TRY(floats(p->a, r, i, &dup));
    TRY(floats(p->a, r, h, &dxn));
    TRY(linear_back(p, layer, DRAFTER__DOWN, h, i, y->act, p->dx, r, dact, 0));
    TRY(nn_swiglu_back(p->d, dact, y->gate, y->up, r * i, dgate, dup));
    TRY(linear_back(p, layer, DRAFTER__GATE, i, h, y->xn2, dgate, r, dxn, 0));
    TRY(linear_back(p, layer, DRAFTER__UP, i, h, y->xn2, dup, r, dxn, 1));
    return nn_rmsnorm_back(p->d, dxn, h, y->mid, h, p->w + norm, y->rstd2, r, h, p->dx, h, 1,
                           p->g + norm);
}

/* Rotation and per-head norm, in place: d [rows, heads*D] of the rotated becomes that of raw. */
static err unrotate(pass *p, float *d, const float *raw, int64_t norm, const float *rstd,
                    int64_t rows, int64_t heads, const int32_t *position) {
    const int64_t dim = p->c->head_dim;
    TRY(nn_rope(p->d, &p->t->rope, d, heads * dim, position, rows, heads, 1));
    return nn_rmsnorm_back(p->d, d, dim, raw, dim, p->w + norm, rstd, rows * heads, dim, d, dim, 0,
                           p->g + norm);
}

/* Keys or values: d [n+R, K]; context rows give dc, noise rows add to dxn. */
static err project_both_back(pass *p, int64_t layer, int which, const drafter__layer *y,
                             const float *d, float *dxn) {
    const int64_t n = p->t->n, h = p->c->hidden, k = p->c->kv_heads * p->c->head_dim;
    TRY(linear_back(p, layer, which, k, h, p->t->c, d, n, p->dc, 1));
    return linear_back(p, layer, which, k, h, y->xn, d + n * k, p->t->rows, dxn, 1);
}

static err attend_back(pass *p, int64_t layer, drafter__layer *y, const float *d_o, float *dq,
                       float *dk, float *dv) {
    const drafter_config *c = p->c;
    const int64_t dim = c->head_dim, qw = c->heads * dim, kw = c->kv_heads * dim;
    const flex_plan *plan = drafter__plan_of(p->t, c, layer);
    const arena_mark m = arena_get_mark(p->a);
    flex_io io = drafter__attention(p->t, c, y);
    io.d_o = (flex_view){DT_F32, d_o, 0, dim, qw};
    io.dq = (flex_out){dq, 0, dim, qw};
    io.dk = (flex_out){dk, 0, dim, kw};
    io.dv = (flex_out){dv, 0, dim, kw};
    TRY(drafter__workspace(plan, p->d, 1, p->a, &io.workspace));
    err e = flex_backward(plan, p->d, &io);
    arena_reset(p->a, m);
    return e;
}

static err attention_half(pass *p, int64_t layer, drafter__layer *y) {
    const drafter_config *c = p->c;
    const drafter_layout *l = p->l;
    const int64_t r = p->t->rows, s = p->t->n + r, h = c->hidden;
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    const int64_t norm = drafter__at(l, layer, DRAFTER__NORM1);
    float *d_o, *dq, *dk, *dv, *dxn;
    TRY(floats(p->a, r, q, &d_o));
    TRY(floats(p->a, r, q, &dq));
    TRY(floats(p->a, s, k, &dk));
    TRY(floats(p->a, s, k, &dv));
    TRY(floats(p->a, r, h, &dxn));
    TRY(linear_back(p, layer, DRAFTER__O, h, q, y->o, p->dx, r, d_o, 0));
    TRY(attend_back(p, layer, y, d_o, dq, dk, dv));
    TRY(unrotate(p, dq, y->q_raw, drafter__at(l, layer, DRAFTER__QNORM), y->rstd_q, r, c->heads,
                 p->t->position + p->t->n));
    TRY(unrotate(p, dk, y->k_raw, drafter__at(l, layer, DRAFTER__KNORM), y->rstd_k, s, c->kv_heads,
                 p->t->position));
    TRY(linear_back(p, layer, DRAFTER__Q, q, h, y->xn, dq, r, dxn, 0));
    TRY(project_both_back(p, layer, DRAFTER__K, y, dk, dxn));
    TRY(project_both_back(p, layer, DRAFTER__V, y, dv, dxn));
    return nn_rmsnorm_back(p->d, dxn, h, y->x, h, p->w + norm, y->rstd1, r, h, p->dx, h, 1,
                           p->g + norm);
}

static err context_back(pass *p, const drafter_row *row) {
    const drafter_acts *t = p->t;
    const int64_t h = p->c->hidden, in = p->c->n_taps * h;
    const int64_t norm = drafter__shared(p->l, DRAFTER__HIDDEN_NORM);
    const int64_t fc = drafter__shared(p->l, DRAFTER__FC);
    TRY(nn_rmsnorm_back(p->d, p->dc, h, t->c_raw, h, p->w + norm, t->c_rstd, t->n, h, p->dc, h, 0,
                        p->g + norm));
    return nn_linear_back(p->d, p->w + fc, h, in, row->taps, in, p->dc, h, t->n, NULL, 0, 0,
                          p->g + fc);
}

static err run(pass *p, const drafter_row *row, const float *d_hidden) {
    const drafter_acts *t = p->t;
    const int64_t r = t->rows, h = p->c->hidden;
    const int64_t norm = drafter__shared(p->l, DRAFTER__NORM);
    TRY(floats(p->a, r, h, &p->dx));
    TRY(arena_alloc(p->a, (size_t)t->n, (size_t)h * sizeof(float), &p->dc));
    TRY(nn_rmsnorm_back(p->d, d_hidden, h, t->last, h, p->w + norm, t->last_rstd, r, h, p->dx, h, 0,
                        p->g + norm));
    for (int64_t i = p->c->layers - 1; i >= 0; i--) {
        const arena_mark m = arena_get_mark(p->a);
        TRY(mlp_half(p, i, &t->layer[i]));
        arena_reset(p->a, m);
        TRY(attention_half(p, i, &t->layer[i]));
        arena_reset(p->a, m);
    }
    return context_back(p, row);
}

err drafter_backward(const drafter_layout *l, const float *params, dev *d, const drafter_row *row,
                     drafter_acts *acts, const float *d_hidden, float *grads, arena *a) {
    const arena_mark start = arena_get_mark(a);
    pass p = {.l = l, .c = &l->cfg, .w = params, .g = grads, .d = d, .t = acts, .a = a};
    err e = run(&p, row, d_hidden);
    drafter_acts_release(acts);
    arena_reset(a, start);
    return e;
}
