/* The parts of a block that act on rows alone: norms, projections, RoPE, MLP. Shared by training and decoding.
 *
 * Every product is packed_matmul, so a row's bits do not depend on how many rows stand beside it. The MLP works through
 * chunks of rows, which bounds its wide buffers. Attention is the caller's: it stands between the two halves. */
#include "model/target_parts.h"
#include <string.h>

enum { MLP_ROWS = 512 };

static int64_t qkv_width(const target_config *c) {
    return (c->heads + 2 * c->kv_heads) * c->head_dim;
}
static size_t padded(int64_t elements) { return ((size_t)elements * sizeof(float) + 63) / 64 * 64; }

size_t target__rows_bytes(const target *t, int64_t n) {
    const target_config *c = &t->cfg;
    int64_t chunk = n < MLP_ROWS ? n : MLP_ROWS;
    return 2 * padded(n * c->hidden) + padded(n * qkv_width(c)) +
           padded(n * c->heads * c->head_dim) + padded(chunk * 2 * c->intermediate) +
           padded(chunk * c->intermediate);
}

err target__rows_alloc(target__rows *r, const target *t, dev *d, int64_t n, arena *a) {
    const target_config *c = &t->cfg;
    size_t f = sizeof(float);
    *r = (target__rows){.t = t, .d = d, .n = n, .chunk = n < MLP_ROWS ? n : MLP_ROWS};
    TRY(arena_alloc_raw(a, (size_t)(n * c->hidden), f, &r->x));
    TRY(arena_alloc_raw(a, (size_t)(n * c->hidden), f, &r->y));
    TRY(arena_alloc_raw(a, (size_t)(n * qkv_width(c)), f, &r->qkv));
    TRY(arena_alloc_raw(a, (size_t)(n * c->heads * c->head_dim), f, &r->o));
    TRY(arena_alloc_raw(a, (size_t)(r->chunk * 2 * c->intermediate), f, &r->gu));
    return arena_alloc_raw(a, (size_t)(r->chunk * c->intermediate), f, &r->act);
}

err target__before_attention(target__rows *r, int64_t layer) {
    const target_config *c = &r->t->cfg;
    const target__layer *l = &r->t->layer[layer];
    int64_t h = c->hidden, width = qkv_width(c);
    TRY(nn_rmsnorm(r->d, r->x, h, l->attn_norm, c->rms_eps, r->n, h, r->y, h, NULL));
    TRY(packed_matmul(r->d, &l->qkv, r->y, h, r->n, r->qkv, width));
    return nn_rope(r->d, &r->t->rope, r->qkv, width, r->position, r->n, c->heads + c->kv_heads, 0);
}

err target__after_attention(target__rows *r, int64_t layer) {
    const target_config *c = &r->t->cfg;
    const target__layer *l = &r->t->layer[layer];
    int64_t h = c->hidden, q = c->heads * c->head_dim;
    TRY(packed_matmul(r->d, &l->o, r->o, q, r->n, r->y, h));
    TRY(nn_add(r->d, r->x, r->y, r->n * h));
    TRY(nn_rmsnorm(r->d, r->x, h, l->mlp_norm, c->rms_eps, r->n, h, r->y, h, NULL));
    for (int64_t i = 0; i < r->n; i += r->chunk) {
        int64_t n = r->n - i < r->chunk ? r->n - i : r->chunk;
        float *y = r->y + i * h;
        TRY(packed_matmul(r->d, &l->gate_up, y, h, n, r->gu, 2 * c->intermediate));
        TRY(nn_swiglu_rows(r->d, r->gu, n, c->intermediate, r->act));
        TRY(packed_matmul(r->d, &l->down, r->act, c->intermediate, n, y, h));
    }
    return nn_add(r->d, r->x, r->y, r->n * h);
}

void target__store_taps(const target__rows *r, int64_t layer, const int64_t *taps, int n_taps,
                        float *out) {
    int64_t h = r->t->cfg.hidden;
    for (int k = 0; k < n_taps; k++)
        for (int64_t i = 0; taps[k] == layer && i < r->n; i++)
            memcpy(out + (i * n_taps + k) * h, r->x + i * h, (size_t)h * sizeof(float));
}

err target__check_taps(const target *t, const int64_t *taps, int n_taps) {
    for (int k = 0; k < n_taps; k++)
        if (taps[k] < 0 || taps[k] >= t->cfg.layers)
            return err_set(ERR_RANGE,
                           "tap %lld is outside the target's %lld layers (taps count block outputs "
                           "from 0)",
                           (long long)taps[k], (long long)t->cfg.layers);
    return ERR_OK;
}
