/* The drafter's training forward over one row: context features, then the layers over all draft blocks at once.
 *
 * C = hidden_norm(fc(taps)) is made once; every layer projects C and its own normed noise rows to keys and values,
 * norms q and k per head, rotates them by position, and attends under the drafter's mask. Context rows get no query,
 * no output projection and no MLP. All in fp32; what backward needs stays in the arena (drafter_acts.h). It computes
 * neither logits nor loss. */
#include "model/drafter_acts.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

typedef struct pass {
    const drafter_layout *l;
    const drafter_config *c;
    const float *w;
    dev *d;
    drafter_acts *t;
    arena *a;
} pass;

static err floats(arena *a, int64_t rows, int64_t width, float **out) {
    return arena_alloc_raw(a, (size_t)rows, (size_t)width * sizeof(float), out);
}

/* Checks the row and fills positions, document starts and the ids of the noise rows [R]. */
static err place_rows(pass *p, const drafter_row *row, int32_t *ids) {
    drafter_acts *t = p->t;
    const int64_t bs = p->c->block_size;
    memcpy(t->position, row->position, (size_t)t->n * sizeof *t->position);
    for (int64_t b = 0; b < t->blocks; b++) {
        const int64_t a = row->anchor[b];
        if (a < -1 || a >= t->n)
            return err_set(ERR_RANGE,
                           "anchor %" PRId64 " of block %" PRId64 " is outside the row of %" PRId64
                           " tokens",
                           a, b, t->n);
        const int64_t at = a < 0 ? 0 : row->position[a], start = a < 0 ? 0 : a - at;
        if (a >= 0 &&
            (start < 0 || row->document[start] != row->document[a] || row->position[start] != 0))
            return err_set(ERR_RANGE,
                           "the document of row index %" PRId64
                           " is not one run of tokens with positions from 0",
                           a);
        t->start[b] = (int32_t)start;
        for (int64_t k = 0; k < bs; k++) {
            t->position[t->n + b * bs + k] = (int32_t)(at + k);
            ids[b * bs + k] = a >= 0 && k == 0 ? row->tokens[a] : p->c->mask_token;
        }
    }
    return ERR_OK;
}

static err context(pass *p, const drafter_row *row) {
    drafter_acts *t = p->t;
    const int64_t h = p->c->hidden, in = p->c->n_taps * h;
    TRY(floats(p->a, t->n, h, &t->c_raw));
    TRY(floats(p->a, t->n, h, &t->c));
    TRY(floats(p->a, t->n, 1, &t->c_rstd));
    TRY(nn_linear(p->d, p->w + drafter__shared(p->l, DRAFTER__FC), h, in, row->taps, in, t->n,
                  t->c_raw, h, 0));
    return nn_rmsnorm(p->d, t->c_raw, h, p->w + drafter__shared(p->l, DRAFTER__HIDDEN_NORM),
                      p->c->rms_eps, t->n, h, t->c, h, t->c_rstd);
}

static err layer_memory(pass *p, drafter__layer *y) {
    const drafter_config *c = p->c;
    const int64_t r = p->t->rows, s = p->t->n + r, h = c->hidden, i = c->intermediate;
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    const struct {
        float **to;
        int64_t rows, width;
    } part[] = {{&y->rstd1, r, 1},
                {&y->xn, r, h},
                {&y->q_raw, r, q},
                {&y->rstd_q, r, c->heads},
                {&y->q, r, q},
                {&y->k_raw, s, k},
                {&y->rstd_k, s, c->kv_heads},
                {&y->k, s, k},
                {&y->v, s, k},
                {&y->o, r, q},
                {&y->lse, c->heads, r},
                {&y->mid, r, h},
                {&y->rstd2, r, 1},
                {&y->xn2, r, h},
                {&y->gate, r, i},
                {&y->up, r, i},
                {&y->act, r, i}};
    for (size_t j = 0; j < sizeof part / sizeof *part; j++)
        TRY(floats(p->a, part[j].rows, part[j].width, part[j].to));
    return ERR_OK;
}

/* Keys or values of both sources into one buffer [n+R, K]: context rows first. */
static err project_both(pass *p, int64_t layer, int which, const drafter__layer *y, float *out) {
    const int64_t h = p->c->hidden, k = p->c->kv_heads * p->c->head_dim, n = p->t->n;
    const float *w = p->w + drafter__at(p->l, layer, which);
    TRY(nn_linear(p->d, w, k, h, p->t->c, h, n, out, k, 0));
    return nn_linear(p->d, w, k, h, y->xn, h, p->t->rows, out + n * k, k, 0);
}

/* Per-head norm of raw [rows, heads*D] into out, then rotation. */
static err norm_and_rotate(pass *p, const float *raw, const float *w, float *rstd, int64_t rows,
                           int64_t heads, const int32_t *position, float *out) {
    const int64_t dim = p->c->head_dim;
    TRY(nn_rmsnorm(p->d, raw, dim, w, p->c->rms_eps, rows * heads, dim, out, dim, rstd));
    return nn_rope(p->d, &p->t->rope, out, heads * dim, position, rows, heads, 0);
}

static err attend(pass *p, int64_t layer, drafter__layer *y) {
    const flex_plan *plan = drafter__plan_of(p->t, p->c, layer);
    const arena_mark m = arena_get_mark(p->a);
    flex_io io = drafter__attention(p->t, p->c, y);
    TRY(drafter__workspace(plan, p->d, 0, p->a, &io.workspace));
    err e = flex_forward(plan, p->d, &io);
    arena_reset(p->a, m);
    return e;
}

static err attention_half(pass *p, int64_t layer, drafter__layer *y) {
    const drafter_config *c = p->c;
    const int64_t r = p->t->rows, s = p->t->n + r, h = c->hidden, q = c->heads * c->head_dim;
    const float *w = p->w;
    const drafter_layout *l = p->l;
    TRY(nn_rmsnorm(p->d, y->x, h, w + drafter__at(l, layer, DRAFTER__NORM1), c->rms_eps, r, h,
                   y->xn, h, y->rstd1));
    TRY(nn_linear(p->d, w + drafter__at(l, layer, DRAFTER__Q), q, h, y->xn, h, r, y->q_raw, q, 0));
    TRY(project_both(p, layer, DRAFTER__K, y, y->k_raw));
    TRY(project_both(p, layer, DRAFTER__V, y, y->v));
    TRY(norm_and_rotate(p, y->q_raw, w + drafter__at(l, layer, DRAFTER__QNORM), y->rstd_q, r,
                        c->heads, p->t->position + p->t->n, y->q));
    TRY(norm_and_rotate(p, y->k_raw, w + drafter__at(l, layer, DRAFTER__KNORM), y->rstd_k, s,
                        c->kv_heads, p->t->position, y->k));
    TRY(attend(p, layer, y));
    memcpy(y->mid, y->x, (size_t)(r * h) * sizeof(float));
    return nn_linear(p->d, w + drafter__at(l, layer, DRAFTER__O), h, q, y->o, q, r, y->mid, h, 1);
}

static err mlp_half(pass *p, int64_t layer, drafter__layer *y, float *out) {
    const int64_t r = p->t->rows, h = p->c->hidden, i = p->c->intermediate;
    const float *w = p->w;
    const drafter_layout *l = p->l;
    TRY(nn_rmsnorm(p->d, y->mid, h, w + drafter__at(l, layer, DRAFTER__NORM2), p->c->rms_eps, r, h,
                   y->xn2, h, y->rstd2));
    TRY(nn_linear(p->d, w + drafter__at(l, layer, DRAFTER__GATE), i, h, y->xn2, h, r, y->gate, i,
                  0));
    TRY(nn_linear(p->d, w + drafter__at(l, layer, DRAFTER__UP), i, h, y->xn2, h, r, y->up, i, 0));
    TRY(nn_swiglu(p->d, y->gate, y->up, r * i, y->act));
    memcpy(out, y->mid, (size_t)(r * h) * sizeof(float));
    return nn_linear(p->d, w + drafter__at(l, layer, DRAFTER__DOWN), h, i, y->act, i, r, out, h, 1);
}

static err layers(pass *p, const packed *embedding, const int32_t *ids) {
    drafter_acts *t = p->t;
    const int64_t r = t->rows, h = p->c->hidden;
    TRY(arena_alloc(p->a, (size_t)p->c->layers, sizeof *t->layer, &t->layer));
    float *x = NULL;
    TRY(floats(p->a, r, h, &x));
    TRY(nn_embed(p->d, embedding, ids, r, x, h));
    for (int64_t i = 0; i < p->c->layers; i++) {
        drafter__layer *y = &t->layer[i];
        float *out = NULL;
        y->x = x;
        TRY(layer_memory(p, y));
        TRY(floats(p->a, r, h, &out));
        TRY(attention_half(p, i, y));
        TRY(mlp_half(p, i, y, out));
        x = out;
    }
    t->last = x;
    return ERR_OK;
}

static err run(pass *p, const target *tg, const drafter_row *row, float *hidden_out) {
    drafter_acts *t = p->t;
    const int64_t r = t->rows, h = p->c->hidden;
    int32_t *ids = NULL, top = 0;
    TRY(arena_alloc_raw(p->a, (size_t)(t->n + r), sizeof *t->position, &t->position));
    TRY(arena_alloc_raw(p->a, (size_t)t->blocks, sizeof *t->start, &t->start));
    TRY(arena_alloc_raw(p->a, (size_t)r, sizeof *ids, &ids));
    TRY(place_rows(p, row, ids));
    for (int64_t i = 0; i < t->n + r; i++)
        if (t->position[i] > top) top = t->position[i];
    TRY(nn_rope_table(&t->rope, &p->c->rope, (int64_t)top + 1, p->a));
    TRY(context(p, row));
    TRY(drafter__plans(t, p->c, p->d, row, p->a));
    TRY(layers(p, target_embedding(tg), ids));
    TRY(floats(p->a, r, 1, &t->last_rstd));
    return nn_rmsnorm(p->d, t->last, h, p->w + drafter__shared(p->l, DRAFTER__NORM), p->c->rms_eps,
                      r, h, hidden_out, h, t->last_rstd);
}

err drafter_forward(const drafter_layout *l, const float *params, const target *t, dev *d,
                    const drafter_row *row, float *hidden_out, float *features_out,
                    drafter_acts **acts, arena *a) {
    const arena_mark start = arena_get_mark(a);
    drafter_acts *s = NULL;
    TRY(arena_alloc(a, 1, sizeof *s, &s));
    s->n = row->n;
    s->blocks = row->n_anchors;
    s->rows = row->n_anchors * l->cfg.block_size;
    pass p = {.l = l, .c = &l->cfg, .w = params, .d = d, .t = s, .a = a};
    err e = run(&p, t, row, hidden_out);
    if (!e && features_out)
        memcpy(features_out, s->c, (size_t)(s->n * l->cfg.hidden) * sizeof(float));
    if (!e && acts) {
        *acts = s;
        return ERR_OK;
    }
    drafter_acts_release(s);
    arena_reset(a, start);
    return e;
}

/* ---- how much of the arena both directions take at most ---- */

static size_t block(int64_t rows, int64_t width) {
    return ((size_t)rows * (size_t)width * sizeof(float) + 63) / 64 * 64 + 64;
}

size_t drafter_train_bytes(const drafter_layout *l, int64_t n, int64_t n_anchors, int threads) {
    const drafter_config *c = &l->cfg;
    const int64_t r = n_anchors * c->block_size, s = n + r, h = c->hidden, i = c->intermediate;
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    size_t layer = 4 * block(r, h) + 2 * block(r, 1) + 3 * block(r, q) + block(r, c->heads) +
                   3 * block(s, k) + block(s, c->kv_heads) + block(c->heads, r) + 3 * block(r, i) +
                   sizeof(drafter__layer);
    size_t shared = 3 * block(s, 1) + 2 * block(n, h) + 2 * block(n, 1) + 2 * block(r, 1) +
                    block(r, h) + 2 * block(n + c->block_size, c->head_dim / 2) +
                    sizeof(drafter_acts) + 128;
    size_t back =
        2 * block(n, h) + 3 * block(r, h) + 3 * block(r, i) + 2 * block(r, q) + 2 * block(s, k);
    return (size_t)c->layers * layer + shared + back + drafter__attention_bytes(c, r, s, threads);
}
