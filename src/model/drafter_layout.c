/* The drafter's tensors in one flat fp32 buffer: names, shapes, offsets, and the first weights.
 *
 * One table row per kind of tensor is the only place that knows a name or a shape. Offsets are rounded up
 * to 16 elements and the gaps stay zero, so a gradient, a moment or a checkpoint of the same layout can be
 * treated as one vector. It neither reads nor writes files. */
#include "core/rng.h"
#include "model/drafter_parts.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* First weights (drafter_init). Without the copy path every slot starts by predicting the mask token, whose embedding it
 * is, and learns to look at its neighbours late; with it a slot starts as a mean of the target's late features, which the
 * head can read. The last norm starts below 1 so that the first, wrong logits are soft. */
#define COPY_GAIN  4.0f
#define FIRST_NORM 0.4f

typedef struct row {
    const char *name;
    int ndim;
    int64_t d0, d1;
} row;

static void layer_rows(const drafter_config *c, row r[DRAFTER__PER_LAYER]) {
    const int64_t h = c->hidden, i = c->intermediate, q = c->heads * c->head_dim,
                  kv = c->kv_heads * c->head_dim;
    r[DRAFTER__NORM1] = (row){"input_layernorm", 1, h, 1};
    r[DRAFTER__Q] = (row){"self_attn.q_proj", 2, q, h};
    r[DRAFTER__K] = (row){"self_attn.k_proj", 2, kv, h};
    r[DRAFTER__V] = (row){"self_attn.v_proj", 2, kv, h};
    r[DRAFTER__O] = (row){"self_attn.o_proj", 2, h, q};
    r[DRAFTER__QNORM] = (row){"self_attn.q_norm", 1, c->head_dim, 1};
    r[DRAFTER__KNORM] = (row){"self_attn.k_norm", 1, c->head_dim, 1};
    r[DRAFTER__NORM2] = (row){"post_attention_layernorm", 1, h, 1};
    r[DRAFTER__GATE] = (row){"mlp.gate_proj", 2, i, h};
    r[DRAFTER__UP] = (row){"mlp.up_proj", 2, i, h};
    r[DRAFTER__DOWN] = (row){"mlp.down_proj", 2, h, i};
}

static void place(drafter_layout *l, drafter_tensor *t, const row *r) {
    t->ndim = r->ndim;
    t->dim[0] = r->d0;
    t->dim[1] = r->d1;
    t->count = r->d0 * r->d1;
    t->decay = r->ndim == 2;
    t->offset = l->total;
    l->total += (t->count + 15) / 16 * 16;
}

err drafter_layout_make(drafter_layout *out, const drafter_config *c, arena *a) {
    TRY(drafter_config_check(c));
    *out = (drafter_layout){.cfg = *c, .n = (int)c->layers * DRAFTER__PER_LAYER + DRAFTER__SHARED};
    TRY(arena_alloc(a, (size_t)out->n, sizeof *out->t, &out->t));
    row rows[DRAFTER__PER_LAYER];
    layer_rows(c, rows);
    for (int64_t i = 0; i < c->layers; i++)
        for (int k = 0; k < DRAFTER__PER_LAYER; k++) {
            drafter_tensor *t = &out->t[i * DRAFTER__PER_LAYER + k];
            snprintf(t->name, sizeof t->name, "layers.%" PRId64 ".%s.weight", i, rows[k].name);
            place(out, t, &rows[k]);
        }
    const row shared[DRAFTER__SHARED] = {{"fc", 2, c->hidden, c->n_taps * c->hidden},
                                         {"hidden_norm", 1, c->hidden, 1},
                                         {"norm", 1, c->hidden, 1}};
    for (int k = 0; k < DRAFTER__SHARED; k++) {
        drafter_tensor *t = &out->t[c->layers * DRAFTER__PER_LAYER + k];
        snprintf(t->name, sizeof t->name, "%s.weight", shared[k].name);
        place(out, t, &shared[k]);
    }
    assert(out->total % 16 == 0);
    return ERR_OK;
}

const drafter_tensor *drafter_find(const drafter_layout *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->t[i].name, name) == 0) return &l->t[i];
    return NULL;
}

/* Adds a path on which features reach the residual stream unchanged: fc passes the last tap, and layer i's values and outputs
 * pass dimensions kv*i .. kv*(i+1)-1 (mod hidden), shared by the query heads of a group. */
static void copy_path(const drafter_layout *l, float *params) {
    const drafter_config *c = &l->cfg;
    const int64_t h = c->hidden, d = c->head_dim, q = c->heads * d, kv = c->kv_heads * d,
                  group = c->heads / c->kv_heads;
    float *fc = params + l->t[c->layers * DRAFTER__PER_LAYER].offset;
    for (int64_t i = 0; i < h; i++) fc[i * c->n_taps * h + (c->n_taps - 1) * h + i] += 1.0f;
    for (int64_t i = 0; i < c->layers; i++) {
        const drafter_tensor *t = &l->t[i * DRAFTER__PER_LAYER];
        float *v = params + t[DRAFTER__V].offset, *o = params + t[DRAFTER__O].offset;
        for (int64_t r = 0; r < kv; r++) {
            const int64_t to = (kv * i + r) % h;
            v[r * h + to] += 1.0f;
            for (int64_t j = 0; j < group; j++)
                o[to * q + (r / d * group + j) * d + r % d] += COPY_GAIN / (float)group;
        }
    }
}

void drafter_init(const drafter_layout *l, int64_t seed, float *params) {
    memset(params, 0, (size_t)l->total * sizeof *params);
    for (int i = 0; i < l->n; i++) {
        float *w = params + l->t[i].offset;
        for (int64_t e = 0; e < l->t[i].count; e++)
            w[e] =
                l->t[i].decay
                    ? (float)(0.02 * rng_normal((uint64_t)seed, RNG_INIT, (uint64_t)i, (uint64_t)e))
                    : 1.0f;
    }
    copy_path(l, params);
    float *norm = params + l->t[l->n - 1].offset;
    for (int64_t e = 0; e < l->t[l->n - 1].count; e++) norm[e] = FIRST_NORM;
}
