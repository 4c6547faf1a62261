/* The target's forward over one flattened training row: causal inside documents, taps captured, stopped after the last tap.
 *
 * Attention runs through flex with the expression of compile_mask over the row's document ids, one plan for all layers.
 * Nothing is kept for a backward: the target is frozen. Taps are looked over for values that are not finite, because a drafter
 * trained on them would be broken without a sign. */
#include "model/target_parts.h"
#include <math.h>
#include <string.h>

typedef struct attention {
    flex_plan *plan;
    flex_io io;
    expr_value doc;
    expr_env env;
    flex_problem problem;
} attention;

static err plan_attention(attention *at, const target *t, dev *d, const target_row *row,
                          const target__rows *r, arena *a) {
    const target_config *c = &t->cfg;
    int64_t width = (c->heads + 2 * c->kv_heads) * c->head_dim;
    at->doc = (expr_value){.type = DT_I32, .dim = {row->n}, .data = row->document};
    at->env = (expr_env){.values = &at->doc};
    at->problem = (flex_problem){.batch = 1, .q_heads = c->heads, .kv_heads = c->kv_heads};
    at->problem.q_len = at->problem.kv_len = row->n;
    at->problem.dim = at->problem.v_dim = c->head_dim;
    at->problem.type = DT_F32;
    at->problem.mask = t->mask;
    at->problem.env = &at->env;
    TRY(flex_plan_create(&at->plan, d, &at->problem, a));
    flex_view v = {.type = DT_F32, .data = r->qkv, .sh = c->head_dim, .sl = width};
    at->io = (flex_io){.q = v, .k = v, .v = v};
    at->io.k.data = r->qkv + c->heads * c->head_dim;
    at->io.v.data = r->qkv + (c->heads + c->kv_heads) * c->head_dim;
    at->io.o = (flex_out){.data = r->o, .sh = c->head_dim, .sl = c->heads * c->head_dim};
    return arena_alloc_raw(a, flex_forward_workspace(at->plan, dev_threads(d)), 1,
                           &at->io.workspace);
}

static err check_finite(const target *t, const target_row *row) {
    int64_t width = row->n_taps * t->cfg.hidden;
    for (int64_t i = 0; i < row->n; i++)
        for (int64_t k = 0; k < width; k++)
            if (!isfinite(row->taps_out[i * width + k]))
                return err_set(ERR_NUMERIC,
                               "tap %lld of token %lld (document %d, position %d) is not finite",
                               (long long)row->taps[k / t->cfg.hidden], (long long)i,
                               (int)row->document[i], (int)row->position[i]);
    return ERR_OK;
}

/* The last layer that is needed; -1: none. */
static int64_t last_layer(const target *t, const target_row *row) {
    int64_t last = -1;
    if (row->logits_out || row->hidden_out) return t->cfg.layers - 1;
    for (int k = 0; k < row->n_taps; k++)
        if (row->taps[k] > last) last = row->taps[k];
    return last;
}

static err finish(const target *t, dev *d, const target_row *row, target__rows *r) {
    const target_config *c = &t->cfg;
    int64_t h = c->hidden;
    if (row->n_taps) TRY(check_finite(t, row));
    if (!row->logits_out && !row->hidden_out) return ERR_OK;
    TRY(nn_rmsnorm(d, r->x, h, t->norm, c->rms_eps, r->n, h, r->y, h, NULL));
    if (row->hidden_out) memcpy(row->hidden_out, r->y, (size_t)(r->n * h) * sizeof(float));
    if (!row->logits_out) return ERR_OK;
    return packed_matmul(d, &t->head, r->y, h, r->n, row->logits_out, c->vocab);
}

static err forward(const target *t, dev *d, const target_row *row, arena *a) {
    target__rows r;
    attention at;
    TRY(target__rows_alloc(&r, t, d, row->n, a));
    r.position = row->position;
    TRY(plan_attention(&at, t, d, row, &r, a));
    TRY(nn_embed(d, &t->embed, row->tokens, row->n, r.x, t->cfg.hidden));
    int64_t last = last_layer(t, row);
    for (int64_t i = 0; i <= last; i++) {
        TRY(target__before_attention(&r, i));
        TRY(flex_forward(at.plan, d, &at.io));
        TRY(target__after_attention(&r, i));
        target__store_taps(&r, i, row->taps, row->n_taps, row->taps_out);
    }
    return finish(t, d, row, &r);
}

err target_forward(const target *t, dev *d, const target_row *row, arena *a) {
    TRY(target__check_taps(t, row->taps, row->n_taps));
    if (row->n < 1 || last_layer(t, row) < 0) return ERR_OK;
    arena_mark m = arena_get_mark(a);
    err e = forward(t, d, row, a);
    arena_reset(a, m);
    return e;
}

size_t target_forward_bytes(const target *t, int64_t n, int64_t docs, int threads) {
    const target_config *c = &t->cfg;
    int64_t tiles = (n + 63) / 64;
    /* The plan: runs of both directions, tables over the ids, and what building them takes on the way. A row of tiles
     * meets at most the documents that overlap its rows: two runs each. */
    size_t plan = 65536 + (size_t)(tiles * 256 + (tiles + docs) * 256);
    /* Per thread: a tile of scores and copies of its rows of q, k, v and o. */
    size_t tile = (size_t)(128 * 128 * 6 + 128 * c->head_dim * 8) * sizeof(float) + 65536;
    return target__rows_bytes(t, n) + plan + tile * (size_t)threads;
}
