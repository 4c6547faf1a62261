/* The drafter's decoding form: every matrix packed once, norms as plain arrays, everything in one arena.
 *
 * In bf16 each weight is rounded once here, norms too: that is the snapshot which a saved file holds, so evaluation during
 * training and decoding from the file give the same drafts. The target's embedding and head are borrowed.
 * Immutable after packing: any number of threads may read it. The passes are in drafter_decode.c. */
#include "model/drafter_packed.h"
#include <inttypes.h>

typedef struct packer {
    drafter *dr;
    const drafter_layout *l;
    const float *params;
    dtype type;
} packer;

static err matrix(const packer *k, const drafter_tensor *t, packed *out) {
    TRY(packed_alloc(out, k->dr->memory, k->type, t->dim[0], t->dim[1]));
    packed_set_rows(out, 0, t->dim[0], k->params + t->offset, t->dim[1]);
    return ERR_OK;
}

static err vector(const packer *k, const drafter_tensor *t, float **out) {
    TRY(arena_alloc_raw(k->dr->memory, (size_t)t->count, sizeof(float), out));
    const float *w = k->params + t->offset;
    for (int64_t i = 0; i < t->count; i++)
        (*out)[i] = k->type == DT_BF16 ? bf16_to_f32(bf16_from_f32(w[i])) : w[i];
    return ERR_OK;
}

static err layer(const packer *k, int64_t i) {
    drafter__packed_layer *y = &k->dr->layer[i];
    const drafter_tensor *t = &k->l->t[i * DRAFTER__PER_LAYER];
    const struct {
        int which;
        packed *to;
    } m[] = {{DRAFTER__Q, &y->q},      {DRAFTER__K, &y->k},       {DRAFTER__V, &y->v},
             {DRAFTER__O, &y->o},      {DRAFTER__GATE, &y->gate}, {DRAFTER__UP, &y->up},
             {DRAFTER__DOWN, &y->down}};
    for (size_t j = 0; j < sizeof m / sizeof *m; j++) TRY(matrix(k, &t[m[j].which], m[j].to));
    TRY(vector(k, &t[DRAFTER__NORM1], &y->norm1));
    TRY(vector(k, &t[DRAFTER__NORM2], &y->norm2));
    TRY(vector(k, &t[DRAFTER__QNORM], &y->q_norm));
    return vector(k, &t[DRAFTER__KNORM], &y->k_norm);
}

static err pack(const packer *k) {
    drafter *dr = k->dr;
    const drafter_tensor *shared = &k->l->t[dr->cfg.layers * DRAFTER__PER_LAYER];
    TRY(arena_create(&dr->memory, "drafter", 0));
    TRY(arena_alloc(dr->memory, (size_t)dr->cfg.layers, sizeof *dr->layer, &dr->layer));
    for (int64_t i = 0; i < dr->cfg.layers; i++) TRY(layer(k, i));
    TRY(matrix(k, &shared[DRAFTER__FC], &dr->fc));
    TRY(vector(k, &shared[DRAFTER__HIDDEN_NORM], &dr->hidden_norm));
    TRY(vector(k, &shared[DRAFTER__NORM], &dr->norm));
    /* A block may reach past the last position that the target itself can hold. */
    int64_t longest = target_get_config(dr->target)->context;
    if (dr->cfg.max_position < longest) longest = dr->cfg.max_position;
    return nn_rope_table(&dr->rope, &dr->cfg.rope, longest + dr->cfg.block_size, dr->memory);
}

err drafter_pack(drafter **out, const drafter_layout *l, const float *params, dtype type,
                 const target *t) {
    *out = NULL;
    if (type != DT_BF16 && type != DT_F32)
        return err_set(ERR_RANGE, "a drafter decodes from BF16 or F32 weights, not %s",
                       dtype_name(type));
    TRY(drafter_check_target(&l->cfg, t));
    drafter *dr = NULL;
    TRY(mem_new(1, sizeof *dr, &dr));
    dr->cfg = l->cfg;
    dr->target = t;
    packer k = {.dr = dr, .l = l, .params = params, .type = type};
    err e = pack(&k);
    if (e)
        drafter_free(dr);
    else
        *out = dr;
    return e;
}

static err load_params(drafter **out, const char *dir, const target *t, const drafter_config *c,
                       arena *a) {
    drafter_layout l;
    float *params = NULL;
    dtype stored = DT_BF16;
    TRY(drafter_layout_make(&l, c, a));
    TRY(arena_alloc_raw(a, (size_t)l.total, sizeof *params, &params));
    TRY(drafter_read_params(&l, dir, params, &stored));
    return drafter_pack(out, &l, params, stored, t);
}

err drafter_load(drafter **out, const char *dir, const target *t) {
    *out = NULL;
    drafter_config c;
    arena *a = NULL;
    TRY(drafter_read_config(&c, dir));
    err e = drafter_check_target(&c, t);
    if (e) return err_context(e, "%s: ", dir);
    TRY(arena_create(&a, "drafter file", 0));
    e = load_params(out, dir, t, &c, a);
    arena_destroy(a);
    return e;
}

void drafter_free(drafter *dr) {
    if (!dr) return;
    arena_destroy(dr->memory);
    mem_free(dr);
}

const drafter_config *drafter_get_config(const drafter *dr) { return &dr->cfg; }

size_t drafter_bytes(const drafter *dr) {
    arena_stats s;
    arena_get_stats(dr->memory, &s);
    return s.reserved + sizeof *dr;
}
