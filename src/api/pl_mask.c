/* Masks of the public library: the block mask of a problem's mask alone, its counts, and its tiles.
 *
 * A mask owns its runs and its expression, so it may be given to several problems (pl_plan.c checks that they fit). What is
 * decided about tiles is flex/blockmask; this file copies it out. */
#include "api/api_private.h"
#include <string.h>

err pl__mask_start(pl_mask *m, const pl_problem *p) {
    if (p->given)
        return err_set(ERR_USAGE, "the problem has a mask that is made already "
                                  "(pl_problem_use_mask); give it a text to make another");
    TRY(pl__program_make(&m->own, p));
    TRY(arena_create(&m->memory, "mask", 0));
    m->program = &m->own;
    m->mask = &m->built;
    m->batch = p->shape.batch;
    m->heads = p->shape.q_heads;
    return ERR_OK;
}

static err build(pl_mask *m, const pl_problem *p, pl_device *d) {
    TRY(pl__mask_start(m, p));
    const block_mask_args args = {.mask = m->own.mask,
                                  .env = &m->own.env,
                                  .batch = p->shape.batch,
                                  .heads = p->shape.q_heads,
                                  .q_len = p->shape.q_len,
                                  .kv_len = p->shape.kv_len,
                                  .tile_q = p->tile_q,
                                  .tile_kv = p->tile_kv,
                                  .budget = p->mask_budget};
    return blockmask_build(&m->built, &args, m->memory, d ? d->dev : NULL);
}

static err create(pl_mask **out, const pl_problem *p, pl_device *d) {
    pl_mask *m;
    TRY(pl__need(p, "pl_mask_create", "the problem"));
    TRY(mem_new(1, sizeof *m, &m));
    err e = build(m, p, d);
    if (e)
        pl_mask_free(m);
    else
        *out = m;
    return e;
}

pl_error pl_mask_create(pl_mask **out, const pl_problem *p, pl_device *d) {
    err e = pl__need(out, "pl_mask_create", "out");
    if (e) return pl__result(e);
    *out = NULL;
    return pl__result(create(out, p, d));
}

void pl_mask_free(pl_mask *m) {
    if (!m) return;
    pl__program_free(&m->own);
    arena_destroy(m->memory);
    mem_free(m);
}

static err get_info(const pl_mask *m, pl_mask_info *info) {
    TRY(pl__need(m, "pl_mask_get_info", "the mask"));
    TRY(pl__need(info, "pl_mask_get_info", "info"));
    TRY(pl__check_size("pl_mask_info", info->size, sizeof *info, sizeof *info));
    const block_mask *b = m->mask;
    *info = (pl_mask_info){.size = info->size,
                           .batch = m->batch,
                           .heads = m->heads,
                           .stored_batch = b->batch,
                           .stored_heads = b->heads,
                           .q_len = b->q_len,
                           .kv_len = b->kv_len,
                           .tile_q = b->tile_q,
                           .tile_kv = b->tile_kv,
                           .q_tiles = b->q_tiles,
                           .kv_tiles = b->kv_tiles,
                           .empty = b->empty,
                           .partial = b->partial,
                           .full = b->full,
                           .undecided = b->undecided,
                           .bytes = b->bytes,
                           .peak_bytes = b->peak_bytes,
                           .build_ms = b->build_ms,
                           .no_empty_row = b->no_empty_row,
                           .may_leave = b->may_leave};
    return ERR_OK;
}

pl_error pl_mask_get_info(const pl_mask *m, pl_mask_info *info) {
    return pl__result(get_info(m, info));
}

static err tiles(const pl_mask *m, int64_t b, int64_t h, uint8_t *kinds, size_t capacity) {
    TRY(pl__need(m, "pl_mask_tiles", "the mask"));
    const block_mask *k = m->mask;
    size_t need = (size_t)k->q_tiles * (size_t)k->kv_tiles;
    if (need) TRY(pl__need(kinds, "pl_mask_tiles", "kinds"));
    if (b < 0 || b >= m->batch || h < 0 || h >= m->heads)
        return err_set(ERR_RANGE,
                       "pl_mask_tiles: batch %lld, head %lld is outside the mask's %lld and %lld",
                       (long long)b, (long long)h, (long long)m->batch, (long long)m->heads);
    if (capacity < need)
        return err_set(ERR_RANGE,
                       "pl_mask_tiles: %zu bytes are too few for the %lld x %lld tiles; "
                       "%zu are needed",
                       capacity, (long long)k->q_tiles, (long long)k->kv_tiles, need);
    if (need) memset(kinds, PL_TILE_EMPTY, need);
    int64_t entry = (k->batch == 1 ? 0 : b) * k->heads + (k->heads == 1 ? 0 : h);
    for (int64_t row = 0; row < k->q_tiles; row++) {
        int64_t at = entry * k->q_tiles + row;
        for (int64_t r = k->row_start[at]; r < k->row_start[at + 1]; r++)
            memset(kinds + row * k->kv_tiles + k->row_run[r].start,
                   k->row_run[r].full ? PL_TILE_FULL : PL_TILE_PARTIAL,
                   (size_t)k->row_run[r].length);
    }
    return ERR_OK;
}

pl_error pl_mask_tiles(const pl_mask *m, int64_t b, int64_t h, uint8_t *kinds, size_t capacity) {
    return pl__result(tiles(m, b, h, kinds, capacity));
}
