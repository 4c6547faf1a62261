/* Masks as lists of tiles, in and out: PyTorch's BlockMask, and masks given by hand.
 *
 * Reading, judging and writing lists is flex/blockmask_lists; here they are joined with a problem's expression and extents,
 * and copied into the caller's arrays. Keeps no list. */
#include "api/api_private.h"
#include "flex/blockmask_lists.h"
#include <string.h>

static blockmask_side side(const pl_side *s) {
    return (blockmask_side){s->count, s->index, s->full_count, s->full_index};
}

static err import(pl_mask *m, const pl_problem *p, const pl_lists *l) {
    const blockmask_lists lists = {.batch = l->batch,
                                   .heads = l->heads,
                                   .q_len = p->shape.q_len,
                                   .kv_len = p->shape.kv_len,
                                   .tile_q = l->tile_q,
                                   .tile_kv = l->tile_kv,
                                   .kv = side(&l->by_q),
                                   .q = side(&l->by_kv)};
    TRY(pl__mask_start(m, p));
    TRY(blockmask_import(&m->built, &lists, p->mask_budget, m->memory));
    return blockmask_fits(&m->built, m->batch, m->heads, p->shape.q_len, p->shape.kv_len);
}

static err create(pl_mask **out, const pl_problem *p, const pl_lists *l) {
    pl_mask *m;
    TRY(pl__need(p, "pl_mask_import", "the problem"));
    TRY(pl__need(l, "pl_mask_import", "the lists"));
    TRY(pl__check_size("pl_lists", l->size, sizeof *l, sizeof *l));
    TRY(mem_new(1, sizeof *m, &m));
    err e = import(m, p, l);
    if (e)
        pl_mask_free(m);
    else
        *out = m;
    return e;
}

pl_error pl_mask_import(pl_mask **out, const pl_problem *p, const pl_lists *lists) {
    err e = pl__need(out, "pl_mask_import", "out");
    if (e) return pl__result(e);
    *out = NULL;
    return pl__result(create(out, p, lists));
}

static err copy_out(const pl_mask *m, int by_kv, int32_t *const to[4], arena *temp) {
    const block_mask *b = m->mask;
    blockmask_lists l;
    TRY(blockmask_export(&l, b, temp));
    const blockmask_side *s = by_kv ? &l.q : &l.kv;
    const int32_t *const from[4] = {s->count, s->index, s->full_count, s->full_index};
    size_t lines = (size_t)(b->batch * b->heads * (by_kv ? b->kv_tiles : b->q_tiles)),
           across = (size_t)(by_kv ? b->q_tiles : b->kv_tiles);
    for (int i = 0; i < 4; i++) {
        size_t n = i % 2 ? lines * across : lines;
        if (n) memcpy(to[i], from[i], n * sizeof **to);
    }
    return ERR_OK;
}

static err export(const pl_mask *m, int by_kv, int32_t *const to[4]) {
    static const char *const names[] = {"count", "index", "full_count", "full_index"};
    arena *temp;
    TRY(pl__need(m, "pl_mask_export", "the mask"));
    for (int i = 0; i < 4; i++) TRY(pl__need(to[i], "pl_mask_export", names[i]));
    TRY(arena_create(&temp, "mask lists", 0));
    err e = copy_out(m, by_kv, to, temp);
    arena_destroy(temp);
    return e;
}

pl_error pl_mask_export(const pl_mask *m, int by_kv, int32_t *count, int32_t *index,
                        int32_t *full_count, int32_t *full_index) {
    int32_t *const to[4] = {count, index, full_count, full_index};
    return pl__result(export(m, by_kv, to));
}

static err check(const pl_mask *m, int64_t *loose) {
    TRY(pl__need(m, "pl_mask_check", "the mask"));
    const block_mask_args args = {.mask = m->program->mask,
                                  .env = &m->program->env,
                                  .batch = m->batch,
                                  .heads = m->heads,
                                  .q_len = m->mask->q_len,
                                  .kv_len = m->mask->kv_len};
    return blockmask_check(m->mask, &args, loose);
}

pl_error pl_mask_check(const pl_mask *m, int64_t *loose) { return pl__result(check(m, loose)); }
