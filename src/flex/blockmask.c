/* Building a block mask: boxes of tiles are classified by interval analysis, and split only while undecided.
 *
 * The walk goes in Z order, so the boxes that cover a row of tiles come with rising keys and those that cover a column
 * with rising queries: both directions of runs are read off the same list. A single undecided tile is partial when
 * two of its cells differ, else it is counted. Four equal children become one box again, so the list follows the
 * boundary. Cells are never stored. */
#include "flex/blockmask.h"
#include "core/clock.h"
#include "flex/blockmask_private.h"
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TILE = 128 };
#define DEFAULT_BUDGET ((size_t)256 << 20)
#define MAX_EXTENT     (INT64_C(1) << 40)

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

err blockmask__afford(const blockmask__builder *w, size_t bytes) {
    char have[24], need[24];
    size_t sum = w->held + bytes;
    if (sum <= w->args.budget) return ERR_OK;
    return err_set(
        ERR_REFUSED,
        "mask: its tiles need %s so far and the budget is %s; raise the budget, use larger tiles, or simplify the mask",
        str_bytes((double)sum, need), str_bytes((double)w->args.budget, have));
}

err blockmask__push(blockmask__builder *w, int64_t q, int64_t k, int level, int full) {
    if (w->n == w->cap) {
        size_t next = w->cap ? w->cap * 2 : 256;
        TRY(blockmask__afford(w, next * sizeof *w->box));
        TRY(mem_grow(&w->box, &w->cap, w->n + 1, sizeof *w->box));
    }
    w->box[w->n++] = (blockmask__box){(int32_t)q, (int32_t)k, (uint8_t)level, (uint8_t)full};
    return ERR_OK;
}

err blockmask__leaves(const blockmask__builder *w, int64_t b, int64_t h, int64_t q, int64_t kv) {
    char where[INTERVAL_SAYS];
    interval_proofs_say(&w->out->proofs, where);
    return err_set(
        ERR_RANGE,
        "mask '%s' reads outside a captured array in the visible cell b=%lld h=%lld q=%lld kv=%lld%s%s; "
        "guard the load with && or bind a longer array",
        expr_source(w->args.mask), (long long)b, (long long)h, (long long)q, (long long)kv,
        *where ? ": " : "", where);
}

/* Looks for a visible cell whose evaluation reads outside an array: that is an error of the mask. */
static err check_loads(const blockmask__builder *w, const interval_box *c) {
    const block_mask_args *a = &w->args;
    for (int64_t q = c->q0; q <= c->q1; q++) {
        for (int64_t k = c->kv0; k <= c->kv1; k++) {
            int flag = 0;
            if (expr_eval_mask(a->mask, a->env, w->b, w->h, q, k, &flag) && flag)
                return blockmask__leaves(w, w->b, w->h, q, k);
        }
    }
    return ERR_OK;
}

/* Two cells that differ prove a tile partial. Corners and centre are enough for nearly all boundaries. */
static int cells_differ(const blockmask__builder *w, const interval_box *c) {
    const block_mask_args *a = &w->args;
    const int64_t at[5][2] = {{c->q0, c->kv0},
                              {c->q0, c->kv1},
                              {c->q1, c->kv0},
                              {c->q1, c->kv1},
                              {(c->q0 + c->q1) / 2, (c->kv0 + c->kv1) / 2}};
    int flag = 0, first = expr_eval_mask(a->mask, a->env, w->b, w->h, at[0][0], at[0][1], &flag);
    for (int i = 1; i < 5; i++) {
        if (expr_eval_mask(a->mask, a->env, w->b, w->h, at[i][0], at[i][1], &flag) != first)
            return 1;
    }
    return 0;
}

static int64_t count_cells(const uint8_t *cell, int64_t n) {
    int64_t seen = 0;
    for (; n >= 128; n -= 128, cell += 128) { /* short sums in bytes become vector code */
        uint8_t part = 0;
        for (int i = 0; i < 128; i++) part = (uint8_t)(part + cell[i]);
        seen += part;
    }
    for (int64_t i = 0; i < n; i++) seen += cell[i];
    return seen;
}

/* Every cell, for loads that leave. */
static err count_tile(blockmask__builder *w, int64_t q, int64_t k, const interval_box *c) {
    const int64_t nq = c->q1 - c->q0 + 1, nk = c->kv1 - c->kv0 + 1;
    int flag = 0;
    expr_tile_mask(w->args.mask, w->args.env, w->b, w->h, c->q0, nq, c->kv0, nk, w->cells, nk,
                   w->scratch, &flag);
    int64_t seen = count_cells(w->cells, nq * nk);
    if (flag) {
        w->out->may_leave = 1;
        TRY(check_loads(w, c));
    }
    return seen ? blockmask__push(w, q, k, 0, seen == nq * nk) : ERR_OK;
}

/* A few rows, then as many again and again, until one cell is hidden and one is visible: most mixed tiles show it early. */
static err count_until_mixed(blockmask__builder *w, int64_t q, int64_t k, const interval_box *c) {
    enum { FIRST = 4 };
    const int64_t nk = c->kv1 - c->kv0 + 1;
    int64_t seen = 0, looked_at = 0;
    for (int64_t at = c->q0, nq = FIRST; at <= c->q1; at += nq, nq = at - c->q0) {
        int flag = 0;
        nq = min64(nq, c->q1 - at + 1);
        expr_tile_mask(w->args.mask, w->args.env, w->b, w->h, at, nq, c->kv0, nk, w->cells, nk,
                       w->scratch, &flag);
        seen += count_cells(w->cells, nq * nk);
        looked_at += nq * nk;
        if (seen && seen < looked_at) return blockmask__push(w, q, k, 0, 0);
    }
    return seen ? blockmask__push(w, q, k, 0, 1) : ERR_OK;
}

err blockmask__decide_tile(blockmask__builder *w, int64_t q, int64_t k) {
    const block_mask_args *a = &w->args;
    const interval_box c = blockmask__cells(w, q, k, 1, 1);
    int may_leave = 0;
    interval_verdict v = interval_classify(a->mask, a->env, w->tables, &c, &may_leave);
    if (v == INTERVAL_NONE) return ERR_OK;
    if (v == INTERVAL_ALL && !may_leave) return blockmask__push(w, q, k, 0, 1);
    if (!may_leave && (!w->far || !w->far->arrays.leaves) && cells_differ(w, &c))
        return blockmask__push(w, q, k, 0, 0);
    if (w->far)
        return blockmask__push(w, q, k, 0, may_leave ? BLOCKMASK__ASKED_LOADS : BLOCKMASK__ASKED);
    w->out->undecided++;
    return may_leave ? count_tile(w, q, k, &c) : count_until_mixed(w, q, k, &c);
}

static int64_t area(const blockmask__builder *w, const blockmask__box *x) {
    return blockmask__length(x->level, x->q, w->out->q_tiles) *
           blockmask__length(x->level, x->k, w->out->kv_tiles);
}

/* Boxes from w->n == from on that cover the box of this level alike are one box. */
static void collapse(blockmask__builder *w, size_t from, int64_t q, int64_t k, int level) {
    const blockmask__box whole = {(int32_t)q, (int32_t)k, (uint8_t)level, w->box[from].full};
    int64_t tiles = 0;
    if (w->n - from > 4 || w->n - from < 2 || whole.full > 1) return;
    for (size_t i = from; i < w->n; i++) {
        if (w->box[i].full != whole.full) return;
        tiles += area(w, &w->box[i]);
    }
    if (tiles != area(w, &whole)) return;
    w->n = from + 1;
    w->box[from] = whole;
}

interval_box blockmask__cells(const blockmask__builder *w, int64_t q, int64_t k, int64_t nq,
                              int64_t nk) {
    const block_mask_args *a = &w->args;
    return (interval_box){.b0 = w->b,
                          .b1 = w->b,
                          .h0 = w->h,
                          .h1 = w->h,
                          .q0 = q * a->tile_q,
                          .q1 = min64((q + nq) * a->tile_q, a->q_len) - 1,
                          .kv0 = k * a->tile_kv,
                          .kv1 = min64((k + nk) * a->tile_kv, a->kv_len) - 1};
}

static err visit(blockmask__builder *w, int64_t q, int64_t k, int level) {
    const block_mask_args *a = &w->args;
    if (q >= w->out->q_tiles || k >= w->out->kv_tiles) return ERR_OK;
    int64_t nq = blockmask__length(level, q, w->out->q_tiles),
            nk = blockmask__length(level, k, w->out->kv_tiles);
    const interval_box c = blockmask__cells(w, q, k, nq, nk);
    int may_leave = 0;
    interval_verdict v =
        a->mask ? interval_classify(a->mask, a->env, w->tables, &c, &may_leave) : INTERVAL_ALL;
    if (v == INTERVAL_NONE) return ERR_OK;
    if (v == INTERVAL_ALL && !may_leave) return blockmask__push(w, q, k, level, 1);
    if (nq == 1 && nk == 1) return blockmask__decide_tile(w, q, k);
    if (w->many && level <= BLOCKMASK__LEVEL) return blockmask__visit_block(w, q, k, level);
    size_t from = w->n;
    int64_t half = (int64_t)1 << --level;
    TRY(visit(w, q, k, level));
    TRY(visit(w, q, k + half, level));
    TRY(visit(w, q + half, k, level));
    TRY(visit(w, q + half, k + half, level));
    if (w->n > from) collapse(w, from, q, k, level + 1);
    return ERR_OK;
}

err blockmask__visit(blockmask__builder *w) {
    int level = 0;
    while ((int64_t)1 << level < w->out->q_tiles || (int64_t)1 << level < w->out->kv_tiles) level++;
    return visit(w, 0, 0, level);
}

/* Fills in defaults; batch and heads become 1 where the expression does not name them. */
static err resolve(const block_mask_args *args, block_mask *m, block_mask_args *a) {
    *a = *args;
    if (!a->tile_q) a->tile_q = DEFAULT_TILE;
    if (!a->tile_kv) a->tile_kv = DEFAULT_TILE;
    if (!a->budget) a->budget = DEFAULT_BUDGET;
    const int64_t extents[] = {a->batch, a->heads, a->q_len, a->kv_len};
    static const char *const names[] = {"batch", "number of heads", "query length", "key length"};
    for (int i = 0; i < 4; i++) {
        if (extents[i] >= 0 && extents[i] <= MAX_EXTENT) continue;
        return err_set(ERR_RANGE, "mask: %s is %lld; it must be from 0 to 2^40", names[i],
                       (long long)extents[i]);
    }
    if (a->tile_q < 1 || a->tile_kv < 1)
        return err_set(ERR_RANGE, "mask: tiles of %d x %d cells; both must be at least 1",
                       a->tile_q, a->tile_kv);
    unsigned uses = a->mask ? expr_uses(a->mask) : 0;
    if (a->batch && !(uses & 1u)) a->batch = 1;
    if (a->heads && !(uses & 2u)) a->heads = 1;
    *m = (block_mask){.batch = a->batch,
                      .heads = a->heads,
                      .q_len = a->q_len,
                      .kv_len = a->kv_len,
                      .tile_q = a->tile_q,
                      .tile_kv = a->tile_kv};
    m->q_tiles = (a->q_len + a->tile_q - 1) / a->tile_q;
    m->kv_tiles = (a->kv_len + a->tile_kv - 1) / a->tile_kv;
    if (m->q_tiles > INT32_MAX / 2 || m->kv_tiles > INT32_MAX / 2)
        return err_set(
            ERR_REFUSED,
            "mask: %lld x %lld tiles are more than 2^30 along one side; use larger tiles",
            (long long)m->q_tiles, (long long)m->kv_tiles);
    return a->mask ? expr_check_env(a->mask, a->env) : ERR_OK;
}

/* Proofs over all cells. A load that is outside in every cell is a mistake wherever it is; batch and heads that the mask is
 * proven not to depend on are stored once. */
static err prove(blockmask__builder *w, const interval_box *all, arena *a, arena *temp) {
    block_mask *m = w->out;
    interval_load *load;
    TRY(interval_prove(&m->proofs, w->tables, all, temp));
    TRY(arena_alloc_raw(a, (size_t)m->proofs.n_loads, sizeof *load, &load));
    for (int i = 0; i < m->proofs.n_loads; i++) {
        load[i] = m->proofs.load[i];
        if (load[i].place != INTERVAL_OUTSIDE || memcmp(&load[i].box, all, sizeof *all)) continue;
        char where[INTERVAL_SAYS];
        interval_proofs_say(&m->proofs, where);
        return err_set(ERR_RANGE,
                       "mask '%s' never reads inside a captured array: %s; bind a longer array",
                       expr_source(w->args.mask), where);
    }
    m->proofs.load = load;
    if (!m->proofs.by_batch) m->batch = w->args.batch = 1;
    if (!m->proofs.by_head) m->heads = w->args.heads = 1;
    return ERR_OK;
}

/* Tables and proofs, tile buffers; all but the proofs in the temporary arena. */
static err prepare(blockmask__builder *w, arena *mem, arena *temp) {
    const block_mask_args *a = &w->args;
    const interval_box all = {0, a->batch - 1, 0, a->heads - 1, 0, a->q_len - 1, 0, a->kv_len - 1};
    int some = a->batch && a->heads && a->q_len && a->kv_len;
    arena_stats s;
    w->out->proofs.fits_32 = 1;
    if (a->mask) {
        interval_tables *t;
        const int apart = w->far && w->far->arrays.leaves;
        TRY(interval_tables_create_far(&t, a->mask, a->env, apart ? &w->far->arrays : NULL, temp));
        w->tables = t;
        if (some) TRY(prove(w, &all, mem, temp));
        if (some) TRY(interval_many_create(&w->many, t, &all, temp));
        for (int i = 0; w->many && i < 2; i++)
            TRY(arena_alloc_raw(temp, BLOCKMASK__SIDE * BLOCKMASK__SIDE, sizeof *w->part[i],
                                &w->part[i]));
        TRY(blockmask__afford(w, (size_t)a->tile_q * (size_t)a->tile_kv));
        if (!w->far) {
            TRY(arena_alloc_raw(temp, (size_t)a->tile_q, (size_t)a->tile_kv, &w->cells));
            TRY(arena_alloc_raw(temp, expr_tile_scratch(a->mask, a->tile_q, a->tile_kv), 1,
                                &w->scratch));
        }
    }
    size_t entries;
    if (__builtin_mul_overflow((size_t)a->batch, (size_t)a->heads, &entries) ||
        entries > SIZE_MAX / 2 / sizeof *w->first)
        entries = SIZE_MAX / 2 / sizeof *w->first; /* beyond every budget */
    TRY(blockmask__afford(w, entries * sizeof *w->first));
    TRY(arena_alloc(temp, entries + 1, sizeof *w->first, &w->first));
    arena_get_stats(temp, &s);
    w->held = s.used;
    return ERR_OK;
}

/* Runs by way of boxes. */
static err build_boxes(blockmask__builder *w, arena *a) {
    block_mask *m = w->out;
    int64_t entries = w->args.batch * w->args.heads;
    for (int64_t i = 0; i < entries; i++) {
        w->b = i / w->args.heads, w->h = i % w->args.heads;
        w->first[i] = (int64_t)w->n;
        TRY(blockmask__visit(w));
    }
    w->first[entries] = (int64_t)w->n;
    if (w->far) TRY(blockmask__ask(w));
    for (size_t i = 0; i < w->n; i++)
        *(w->box[i].full ? &m->full : &m->partial) += area(w, &w->box[i]);
    m->empty = entries * m->q_tiles * m->kv_tiles - m->full - m->partial;
    TRY(blockmask__runs(w, a));
    m->peak_bytes = w->held + w->cap * sizeof *w->box + m->bytes;
    if (w->far) m->peak_bytes += blockmask__ask_bytes();
    return ERR_OK;
}

static err build(blockmask__builder *w, arena *a, arena *temp) {
    TRY(blockmask__is_diagonal(w) ? blockmask__diagonal(w, a) : build_boxes(w, a));
    return blockmask__no_empty_row(w, temp);
}

err blockmask_build(block_mask *out, const block_mask_args *args, arena *a, dev *d) {
    (void)d; /* the boundary is short work: one thread */
    return blockmask__build(out, args, NULL, a);
}

err blockmask__build(block_mask *out, const block_mask_args *args, const blockmask__far *far,
                     arena *a) {
    double start = clock_seconds();
    blockmask__builder w = {.out = out, .far = far};
    arena *temp;
    TRY(resolve(args, out, &w.args));
    TRY(arena_create(&temp, "mask build", 0));
    err e = prepare(&w, a, temp);
    if (!e) e = build(&w, a, temp);
    mem_free(w.box);
    arena_destroy(temp);
    out->build_ms = (clock_seconds() - start) * 1e3;
    return e;
}

err blockmask_brute(const block_mask_args *args, uint8_t *kinds) {
    block_mask m;
    block_mask_args a;
    TRY(resolve(args, &m, &a));
    a.batch = args->batch, a.heads = args->heads;
    for (int64_t e = 0; e < a.batch * a.heads; e++) {
        for (int64_t t = 0; t < m.q_tiles * m.kv_tiles; t++) {
            int64_t q0 = t / m.kv_tiles * a.tile_q, k0 = t % m.kv_tiles * a.tile_kv, seen = 0;
            int64_t q1 = min64(q0 + a.tile_q, a.q_len), k1 = min64(k0 + a.tile_kv, a.kv_len);
            for (int64_t q = q0; q < q1; q++) {
                for (int64_t k = k0; k < k1; k++) {
                    int flag = 0;
                    seen += !a.mask ||
                            expr_eval_mask(a.mask, a.env, e / a.heads, e % a.heads, q, k, &flag);
                }
            }
            kinds[e * m.q_tiles * m.kv_tiles + t] = seen == 0                       ? 0
                                                    : seen == (q1 - q0) * (k1 - k0) ? 2
                                                                                    : 1;
        }
    }
    return ERR_OK;
}
