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

static err push(blockmask__builder *w, int64_t q, int64_t k, int64_t nq, int64_t nk, int full) {
    if (w->n == w->cap) {
        size_t next = w->cap ? w->cap * 2 : 256;
        TRY(blockmask__afford(w, next * sizeof *w->box));
        TRY(mem_grow(&w->box, &w->cap, w->n + 1, sizeof *w->box));
    }
    w->box[w->n++] = (blockmask__box){(int32_t)q, (int32_t)k, (int32_t)nq, (int32_t)nk, full};
    return ERR_OK;
}

/* Looks for a visible cell whose evaluation reads outside an array: that is an error of the mask. */
static err check_loads(const blockmask__builder *w, const interval_box *c) {
    const block_mask_args *a = &w->args;
    for (int64_t q = c->q0; q <= c->q1; q++) {
        for (int64_t k = c->kv0; k <= c->kv1; k++) {
            int flag = 0;
            if (!expr_eval_mask(a->mask, a->env, w->b, w->h, q, k, &flag) || !flag) continue;
            return err_set(
                ERR_RANGE,
                "mask '%s' reads outside a captured array in the visible cell b=%lld h=%lld q=%lld kv=%lld; "
                "guard the load with && or bind a longer array",
                expr_source(a->mask), (long long)w->b, (long long)w->h, (long long)q, (long long)k);
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

static err decide_tile(blockmask__builder *w, int64_t q, int64_t k, const interval_box *c,
                       int may_leave) {
    const block_mask_args *a = &w->args;
    if (!may_leave && cells_differ(w, c)) return push(w, q, k, 1, 1, 0);
    int64_t nq = c->q1 - c->q0 + 1, nk = c->kv1 - c->kv0 + 1, seen = 0;
    int flag = 0;
    w->out->undecided++;
    expr_tile_mask(a->mask, a->env, w->b, w->h, c->q0, nq, c->kv0, nk, w->cells, nk, w->scratch,
                   &flag);
    for (int64_t i = 0; i < nq * nk; i++) seen += w->cells[i];
    if (flag) {
        w->out->may_leave = 1;
        TRY(check_loads(w, c));
    }
    return seen ? push(w, q, k, 1, 1, seen == nq * nk) : ERR_OK;
}

/* Boxes from w->n == from on that cover nq x nk tiles alike are one box. */
static void collapse(blockmask__builder *w, size_t from, int64_t q, int64_t k, int64_t nq,
                     int64_t nk) {
    int64_t area = 0;
    if (w->n - from > 4 || w->n - from < 2) return;
    for (size_t i = from; i < w->n; i++) {
        if (w->box[i].full != w->box[from].full) return;
        area += (int64_t)w->box[i].nq * w->box[i].nk;
    }
    if (area != nq * nk) return;
    w->n = from + 1;
    w->box[from] =
        (blockmask__box){(int32_t)q, (int32_t)k, (int32_t)nq, (int32_t)nk, w->box[from].full};
}

static err visit(blockmask__builder *w, int64_t q, int64_t k, int64_t side) {
    const block_mask_args *a = &w->args;
    int64_t nq = min64(side, w->out->q_tiles - q), nk = min64(side, w->out->kv_tiles - k);
    if (nq <= 0 || nk <= 0) return ERR_OK;
    const interval_box c = {.b0 = w->b,
                            .b1 = w->b,
                            .h0 = w->h,
                            .h1 = w->h,
                            .q0 = q * a->tile_q,
                            .q1 = min64((q + nq) * a->tile_q, a->q_len) - 1,
                            .kv0 = k * a->tile_kv,
                            .kv1 = min64((k + nk) * a->tile_kv, a->kv_len) - 1};
    int may_leave = 0;
    interval_verdict v =
        a->mask ? interval_classify(a->mask, a->env, w->tables, &c, &may_leave) : INTERVAL_ALL;
    if (v == INTERVAL_NONE) return ERR_OK;
    if (v == INTERVAL_ALL && !may_leave) return push(w, q, k, nq, nk, 1);
    if (nq == 1 && nk == 1) return decide_tile(w, q, k, &c, may_leave);
    size_t from = w->n;
    int64_t half = side / 2;
    TRY(visit(w, q, k, half));
    TRY(visit(w, q, k + half, half));
    TRY(visit(w, q + half, k, half));
    TRY(visit(w, q + half, k + half, half));
    collapse(w, from, q, k, nq, nk);
    return ERR_OK;
}

err blockmask__visit(blockmask__builder *w) {
    int64_t side = 1;
    while (side < w->out->q_tiles || side < w->out->kv_tiles) side *= 2;
    return visit(w, 0, 0, side);
}

static err resolve(const block_mask_args *args, block_mask *m, block_mask_args *a) {
    *a = *args;
    if (!a->tile_q) a->tile_q = DEFAULT_TILE;
    if (!a->tile_kv) a->tile_kv = DEFAULT_TILE;
    if (!a->budget) a->budget = DEFAULT_BUDGET;
    if (a->q_len < 0 || a->kv_len < 0 || a->batch < 0 || a->heads < 0 || a->tile_q < 1 ||
        a->tile_kv < 1)
        return err_set(ERR_RANGE,
                       "mask: lengths, batch and heads must not be negative and tiles at least 1");
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

/* Tables, tile buffers; all in the temporary arena. */
static err prepare(blockmask__builder *w, arena *temp) {
    const block_mask_args *a = &w->args;
    arena_stats s;
    TRY(arena_alloc(temp, (size_t)(a->batch * a->heads) + 1, sizeof *w->first, &w->first));
    if (a->mask) {
        interval_tables *t;
        TRY(interval_tables_create(&t, a->mask, a->env, temp));
        w->tables = t;
        TRY(arena_alloc_raw(temp, (size_t)a->tile_q, (size_t)a->tile_kv, &w->cells));
        TRY(arena_alloc_raw(temp, expr_tile_scratch(a->mask, a->tile_q, a->tile_kv), 1,
                            &w->scratch));
    }
    arena_get_stats(temp, &s);
    w->held = s.used;
    return ERR_OK;
}

static err build(blockmask__builder *w, arena *a) {
    block_mask *m = w->out;
    int64_t entries = w->args.batch * w->args.heads;
    for (int64_t i = 0; i < entries; i++) {
        w->b = i / w->args.heads, w->h = i % w->args.heads;
        w->first[i] = (int64_t)w->n;
        TRY(blockmask__visit(w));
    }
    w->first[entries] = (int64_t)w->n;
    for (size_t i = 0; i < w->n; i++) {
        int64_t tiles = (int64_t)w->box[i].nq * w->box[i].nk;
        if (w->box[i].full)
            m->full += tiles;
        else
            m->partial += tiles;
    }
    m->empty = entries * m->q_tiles * m->kv_tiles - m->full - m->partial;
    TRY(blockmask__runs(w, a));
    m->peak_bytes = w->held + w->cap * sizeof *w->box + m->bytes;
    m->no_empty_row = blockmask__no_empty_row(w);
    return ERR_OK;
}

err blockmask_build(block_mask *out, const block_mask_args *args, arena *a, dev *d) {
    double start = clock_seconds();
    blockmask__builder w = {.out = out};
    arena *temp;
    (void)d; /* the boundary is short work: one thread */
    TRY(resolve(args, out, &w.args));
    TRY(arena_create(&temp, "mask build", 0));
    err e = prepare(&w, temp);
    if (!e) e = build(&w, a);
    mem_free(w.box);
    arena_destroy(temp);
    out->build_ms = (clock_seconds() - start) * 1e3;
    return e;
}

err blockmask_brute(const block_mask_args *args, uint8_t *kinds) {
    block_mask m;
    block_mask_args a;
    TRY(resolve(args, &m, &a));
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
