/* From a problem to a plan: checks with sentences, tile sizes, the block mask, the order of tasks, and the words that
 * explain it.
 *
 * Everything that depends on shapes alone is decided here, once; a run only walks. Tasks are sorted by cost, longest
 * first, so that threads end together; who runs which task changes no bit. Runs nothing itself. */
#include "core/env.h"
#include "flex/blockmask_lists.h"
#include "flex/flex_private.h"
#include "core/str.h"
#include <math.h>
#include <string.h>
#include <stdlib.h>

enum { DEFAULT_TILE = 64, MAX_TILE = 1024, MAX_COLUMNS = 256, MAX_SHARE = 8 };
enum { MAX_TASKS = 1 << 28, CHUNK_TASKS = 16, CHUNK_PARTS = 2 };
enum {
    WEIGHT_DQ = 3,
    WEIGHT_DKV = 4
}; /* products per tile: for dQ (S, dP, dQ); for dK and dV (S, dP, dK, dV) */

static err check_dim(const char *what, int64_t d) {
    if (d >= 8 && d <= 256 && d % 8 == 0) return ERR_OK;
    return err_set(ERR_SHAPE, "attention: %s is %lld; it must be a multiple of 8 from 8 to 256",
                   what, (long long)d);
}

static int is_tile(int32_t t) { return t >= 8 && t <= MAX_TILE && t % 8 == 0; }

static err check_tile(const char *what, int32_t t) {
    if (t == 0 || is_tile(t)) return ERR_OK;
    return err_set(
        ERR_RANGE,
        "attention: %s is %d; give a multiple of 8 from 8 to %d, or 0 to let the plan choose", what,
        t, MAX_TILE);
}

err flex__check_problem(const flex_problem *p) {
    const int64_t extents[] = {p->batch, p->q_len, p->kv_len};
    static const char *const names[] = {"batch", "query length", "key length"};
    for (int i = 0; i < 3; i++) {
        if (extents[i] < 0 || extents[i] > INT64_C(1) << 40)
            return err_set(ERR_RANGE, "attention: %s is %lld; it must be from 0 to 2^40", names[i],
                           (long long)extents[i]);
    }
    if (p->q_heads < 1 || p->kv_heads < 1)
        return err_set(
            ERR_SHAPE,
            "attention: %lld query heads and %lld key/value heads given; both must be at least 1",
            (long long)p->q_heads, (long long)p->kv_heads);
    if (p->q_heads % p->kv_heads)
        return err_set(
            ERR_SHAPE,
            "attention: %lld query heads cannot share %lld key/value heads evenly; use a divisor of %lld",
            (long long)p->q_heads, (long long)p->kv_heads, (long long)p->q_heads);
    TRY(check_dim("head dimension of q and k", p->dim));
    TRY(check_dim("head dimension of v", p->v_dim));
    if (p->type != DT_F32 && p->type != DT_BF16)
        return err_set(ERR_SHAPE, "attention: q, k and v are %s; F32 and BF16 are supported",
                       dtype_name(p->type));
    if (!isfinite(p->scale))
        return err_set(ERR_RANGE, "attention: scale is %g; it must be finite", (double)p->scale);
    double rows = (double)p->batch * (double)p->q_heads *
                  (double)(p->q_len > p->kv_len ? p->q_len : p->kv_len);
    if (rows * 256.0 * 8.0 > 0x1p62)
        return err_set(
            ERR_RANGE,
            "attention: batch %lld x %lld heads x length %lld is more than can be addressed",
            (long long)p->batch, (long long)p->q_heads,
            (long long)(p->q_len > p->kv_len ? p->q_len : p->kv_len));
    TRY(check_tile("tile_q", p->tile_q));
    TRY(check_tile("tile_kv", p->tile_kv));
    TRY(flex__check_score(p));
    if (!p->mask) return ERR_OK;
    if (!p->env)
        return err_set(ERR_USAGE, "attention: a mask is given without the values of its captures");
    return expr_check_env(p->mask, p->env);
}

static err check_view(const char *what, dtype have, const void *data, dtype want, int64_t cells) {
    if (have != want)
        return err_set(ERR_SHAPE, "attention: %s is %s where the plan was made for %s", what,
                       dtype_name(have), dtype_name(want));
    if (cells > 0 && !data) return err_set(ERR_USAGE, "attention: %s has no data", what);
    return ERR_OK;
}

err flex__check_io(const flex_problem *p, const flex_io *io, int backward) {
    int64_t nq = p->batch * p->q_heads * p->q_len, nk = p->batch * p->kv_heads * p->kv_len;
    TRY(check_view("q", io->q.type, io->q.data, p->type, nq));
    TRY(check_view("k", io->k.type, io->k.data, p->type, nk));
    TRY(check_view("v", io->v.type, io->v.data, p->type, nk));
    TRY(check_view("o", DT_F32, io->o.data, DT_F32, nq));
    if (!backward) return ERR_OK;
    TRY(check_view("the gradient of o", io->d_o.type, io->d_o.data, DT_F32, nq));
    TRY(check_view("lse (which backward needs)", DT_F32, io->lse, DT_F32, nq));
    TRY(check_view("dq", DT_F32, io->dq.data, DT_F32, nq));
    TRY(check_view("dk", DT_F32, io->dk.data, DT_F32, nk));
    TRY(check_view("dv", DT_F32, io->dv.data, DT_F32, nk));
    if (p->sinks) TRY(check_view("the gradient of the sinks", DT_F32, io->d_sinks, DT_F32, 1));
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) {
        if (p->score_grads >> c & 1)
            TRY(check_view("a captured value's gradient", DT_F32, io->d_capture[c], DT_F32, 1));
    }
    return ERR_OK;
}

/* ---- tasks, longest first ---- */

typedef struct costed {
    int64_t cost, index;
} costed;

static int by_cost(const void *a, const void *b) {
    const costed *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int64_t tiles_in(const int64_t *start, const block_run *run, int64_t line) {
    int64_t n = 0;
    for (int64_t r = start[line]; r < start[line + 1]; r++) n += run[r].length;
    return n;
}

flex__task flex__row_task(const flex_plan *p, int64_t index) {
    flex__task t = {0};
    t.tile = index % p->mask.q_tiles;
    index /= p->mask.q_tiles;
    int64_t part = index % p->shares;
    index /= p->shares;
    t.kv_head = index % p->p.kv_heads;
    t.b = index / p->p.kv_heads;
    t.h0 = t.kv_head * p->group + part * p->share;
    t.heads = flex__min(p->share, p->group - part * p->share);
    t.start = t.tile * p->mask.tile_q;
    t.n = flex__min(p->mask.tile_q, p->p.q_len - t.start);
    t.pad = flex__pad(t.n, TILE_LANES);
    return t;
}

flex__task flex__col_task(const flex_plan *p, int64_t index) {
    flex__task t = {0};
    t.tile = index % p->mask.kv_tiles;
    index /= p->mask.kv_tiles;
    t.kv_head = index % p->p.kv_heads;
    t.b = index / p->p.kv_heads;
    t.h0 = t.kv_head * p->group;
    t.heads = p->group;
    t.start = t.tile * p->mask.tile_kv;
    t.n = flex__min(p->mask.tile_kv, p->p.kv_len - t.start);
    t.pad = flex__pad(t.n, TILE_LANES);
    return t;
}

static int64_t row_cost(const flex_plan *p, int64_t index) {
    flex__task t = flex__row_task(p, index);
    const block_mask *m = &p->mask;
    int64_t line = flex__line(m, t.b, t.h0) * m->q_tiles + t.tile;
    return t.heads * t.n * tiles_in(m->row_start, m->row_run, line) * m->tile_kv;
}

static int64_t col_cost(const flex_plan *p, int64_t index) {
    flex__task t = flex__col_task(p, index);
    const block_mask *m = &p->mask;
    int64_t tiles = 0, apart = m->heads == 1 ? 1 : t.heads;
    for (int64_t g = 0; g < apart; g++)
        tiles +=
            tiles_in(m->col_start, m->col_run, flex__line(m, t.b, t.h0 + g) * m->kv_tiles + t.tile);
    return t.heads / apart * t.n * tiles * m->tile_q;
}

/* Cost of a slot of row tasks; a slot is a task where no captured gradient is wanted. */
static int64_t slot_cost(const flex__sums *s, const int64_t *cost, int64_t slot) {
    int64_t sum = 0;
    if (!s->start) return cost[slot];
    for (int64_t i = s->start[slot]; i < s->start[slot + 1]; i++) sum += cost[s->task[i]];
    return sum;
}

/* The place of a row task among those of equal cost, and back: rows of a head side by side, whose keys are the same ones, where the
 * mask is a matter of q - kv; else heads of a row, whose mask is the same one. */
static int64_t place_of(const flex_plan *p, int64_t index) {
    const int64_t tiles = p->mask.q_tiles;
    if (p->mask.proofs.diagonal) return index;
    return index % tiles * (p->row_tasks / tiles) + index / tiles;
}
static int64_t task_at(const flex_plan *p, int64_t place) {
    const int64_t lines = p->row_tasks / p->mask.q_tiles;
    if (p->mask.proofs.diagonal) return place;
    return place % lines * p->mask.q_tiles + place / lines;
}

/* Both orders: rows alone for forward, slots of rows and columns together for backward. */
static err fill_orders(flex_plan *p, const int64_t *cost, costed *c, arena *a) {
    size_t rows = (size_t)p->row_tasks, slots = (size_t)p->sums.slots,
           all = slots + (size_t)p->col_tasks;
    int64_t *row_order, *all_order;
    TRY(arena_alloc_raw(a, rows, sizeof *row_order, &row_order));
    TRY(arena_alloc_raw(a, all, sizeof *all_order, &all_order));
    for (size_t i = 0; i < rows; i++) c[i] = (costed){cost[i], place_of(p, (int64_t)i)};
    qsort(c, rows, sizeof *c, by_cost);
    for (size_t i = 0; i < rows; i++) row_order[i] = task_at(p, c[i].index);
    for (size_t i = 0; i < slots; i++)
        c[i] = (costed){WEIGHT_DQ * slot_cost(&p->sums, cost, (int64_t)i), (int64_t)i};
    for (size_t i = slots; i < all; i++)
        c[i] = (costed){WEIGHT_DKV * col_cost(p, (int64_t)(i - slots)), (int64_t)i};
    qsort(c, all, sizeof *c, by_cost);
    for (size_t i = 0; i < all; i++) all_order[i] = c[i].index;
    p->row_order = row_order;
    p->all_order = all_order;
    return ERR_OK;
}

/* What a thread takes at once: at most CHUNK_TASKS, so that neighbours share what they packed, and at most a part of the work that is
 * left, so that threads still end together. Bits do not depend on it. */
static err cut_chunks(flex_plan *p, const int64_t *cost, int threads, arena *a) {
    int64_t *start, n = 0;
    double left = 0.0;
    TRY(arena_alloc_raw(a, (size_t)p->row_tasks + 1, sizeof *start, &start));
    for (int64_t i = 0; i < p->row_tasks; i++) left += (double)cost[i];
    for (int64_t i = 0; i < p->row_tasks;) {
        const double most = left / (CHUNK_PARTS * threads);
        const int64_t from = i;
        double taken = 0.0;
        do {
            taken += (double)cost[p->row_order[i++]];
        } while (i < p->row_tasks && i - from < CHUNK_TASKS &&
                 taken + (double)cost[p->row_order[i]] <= most);
        start[n++] = from;
        left -= taken;
    }
    start[n] = p->row_tasks;
    p->chunk_start = start;
    p->chunks = n;
    return ERR_OK;
}

static err order_tasks(flex_plan *p, int threads, arena *a) {
    size_t rows = (size_t)p->row_tasks;
    int64_t *cost = NULL;
    costed *c = NULL;
    err e = ERR_OK;
    TRY_GOTO(mem_new(rows + 1, sizeof *cost, &cost), done);
    TRY_GOTO(mem_new(rows + (size_t)p->col_tasks + 1, sizeof *c, &c), done);
    for (size_t i = 0; i < rows; i++) cost[i] = row_cost(p, (int64_t)i);
    TRY_GOTO(flex__plan_sums(p, cost, a), done);
    TRY_GOTO(fill_orders(p, cost, c, a), done);
    TRY_GOTO(cut_chunks(p, cost, threads, a), done);
done:
    mem_free(cost);
    mem_free(c);
    return e;
}

static double share_visited(const block_mask *m) {
    double cells = (double)m->q_len * (double)m->kv_len * (double)m->batch * (double)m->heads,
           seen = 0.0;
    for (int64_t line = 0; cells > 0.0 && line < m->batch * m->heads * m->q_tiles; line++) {
        int64_t rows = flex__min(m->tile_q, m->q_len - line % m->q_tiles * m->tile_q);
        for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
            int64_t k0 = (int64_t)m->row_run[r].start * m->tile_kv;
            seen += (double)rows *
                    (double)flex__min((int64_t)m->row_run[r].length * m->tile_kv, m->kv_len - k0);
        }
    }
    return cells > 0.0 ? seen / cells : 0.0;
}

static err choose_reference(int *on) {
    const char *text = env_get(ENV_PACELINE_REFERENCE);
    *on = text && !strcmp(text, "1");
    if (!text || *on || !strcmp(text, "0")) return ERR_OK;
    return err_set(ERR_USAGE, "PACELINE_REFERENCE is '%s'; it must be 0 or 1", text);
}

/* Tiles that are listed once for all batch entries or heads, and cells of theirs that the expression decides for each: what is
 * evaluated once for all that share an entry needs entries of their own. */
static err take_given(flex_plan *p, arena *a) {
    const flex_problem *q = &p->p;
    const block_mask *m = q->blocks;
    const unsigned uses = m->given && m->partial ? expr_uses(q->mask) : 0;
    const int64_t batch = uses & 1u ? q->batch : m->batch,
                  heads = uses & 2u ? q->q_heads : m->heads;
    p->mask = *m;
    if (batch == m->batch && heads == m->heads) return ERR_OK;
    return blockmask_spread(&p->mask, m, batch, heads, q->mask_budget, a);
}

/* Given tiles are taken as they are, when they are of these tensors; else they are built from the expression. */
static err make_mask(flex_plan *p, arena *a, dev *d) {
    flex_problem *q = &p->p;
    if (!q->blocks) {
        const block_mask_args args = {q->mask,   q->env,    q->batch,   q->q_heads,    q->q_len,
                                      q->kv_len, q->tile_q, q->tile_kv, q->mask_budget};
        return blockmask_build(&p->mask, &args, a, d);
    }
    if (p->reference && q->blocks->given)
        return err_set(ERR_USAGE,
                       "PACELINE_REFERENCE is 1, and the plain definition knows expressions only, "
                       "not given tiles; unset it or build the mask from its expression");
    TRY(blockmask_fits(q->blocks, q->batch, q->q_heads, q->q_len, q->kv_len));
    if (!is_tile(q->blocks->tile_q) || !is_tile(q->blocks->tile_kv))
        return err_set(
            ERR_RANGE,
            "attention: the given mask has tiles of %d x %d cells; make it with multiples "
            "of 8 from 8 to %d",
            q->blocks->tile_q, q->blocks->tile_kv, MAX_TILE);
    if (q->blocks->partial && !q->mask)
        return err_set(
            ERR_USAGE,
            "attention: %lld of the given tiles are partial; give the expression that decides their cells",
            (long long)q->blocks->partial);
    TRY(take_given(p, a));
    q->tile_q = p->mask.tile_q, q->tile_kv = p->mask.tile_kv;
    return ERR_OK;
}

err flex_plan_create(flex_plan **out, dev *d, const flex_problem *problem, arena *a) {
    flex_plan *p;
    TRY(flex__check_problem(problem));
    TRY(arena_alloc(a, 1, sizeof *p, &p));
    TRY(choose_reference(&p->reference));
    p->p = *problem;
    flex_problem *q = &p->p;
    if (q->scale == 0.0f && !q->zero_scale) q->scale = (float)(1.0 / sqrt((double)q->dim));
    if (!q->tile_q) q->tile_q = DEFAULT_TILE;
    if (!q->tile_kv) q->tile_kv = DEFAULT_TILE;
    p->ops = tileops_get(dev_get_isa(d));
    if (q->type == DT_BF16 && !q->score) p->bf16 = tile_bf16_get(d);
    TRY(make_mask(p, a, d));
    p->group = q->q_heads / q->kv_heads;
    p->share =
        flex__min(flex__min(p->group, MAX_SHARE), MAX_COLUMNS / flex__pad(q->tile_q, TILE_LANES));
    if (p->share < 1 || p->mask.heads > 1) p->share = 1;
    p->shares = (p->group + p->share - 1) / p->share;
    p->share = (p->group + p->shares - 1) / p->shares; /* as even as can be */
    p->row_tasks = q->batch * q->kv_heads * p->shares * p->mask.q_tiles;
    p->col_tasks = q->batch * q->kv_heads * p->mask.kv_tiles;
    const double tasks = (double)q->batch * (double)q->kv_heads *
                         ((double)p->shares * (double)p->mask.q_tiles + (double)p->mask.kv_tiles);
    if (tasks > MAX_TASKS)
        return err_set(
            ERR_REFUSED,
            "attention: batch %lld x %lld key/value heads x tiles make %.3g tasks, and a plan "
            "orders 2^28 at most; split the batch",
            (long long)q->batch, (long long)q->kv_heads, tasks);
    if (q->mask) p->mask_scratch = expr_tile_scratch(q->mask, q->tile_q, q->tile_kv);
    p->visited = share_visited(&p->mask);
    TRY(flex__plan_score(p, a));
    TRY(flex__plan_leaves(p));
    TRY(order_tasks(p, dev_threads(d), a));
    *out = p;
    return ERR_OK;
}

const block_mask *flex_plan_mask(const flex_plan *p) { return &p->mask; }
const flex_problem *flex_plan_problem(const flex_plan *p) { return &p->p; }
double flex_plan_visited(const flex_plan *p) { return p->visited; }

double flex_dense_bytes(const flex_plan *p) {
    const flex_problem *q = &p->p;
    return 4.0 * (double)q->batch * (double)q->q_heads * (double)q->q_len * (double)q->kv_len;
}

err flex_plan_explain(const flex_plan *p, str *out) {
    const flex_problem *q = &p->p;
    char a[24], b[24], c[24];
    TRY(str_printf(
        out,
        "attention: q [%lld, %lld, %lld, %lld], k [%lld, %lld, %lld, %lld], v dim %lld, %s, scale %g\n",
        (long long)q->batch, (long long)q->q_heads, (long long)q->q_len, (long long)q->dim,
        (long long)q->batch, (long long)q->kv_heads, (long long)q->kv_len, (long long)q->dim,
        (long long)q->v_dim, dtype_name(q->type), (double)q->scale));
    if (p->reference)
        TRY(str_printf(out, "PACELINE_REFERENCE is 1: runs go cell by cell through the plain "
                            "definition, not through the kernel named here\n"));
    TRY(str_printf(
        out,
        "kernel: CPU tiles of %d x %d, %s arithmetic in fp32 (the widest this CPU and PACELINE_ISA allow)\n",
        q->tile_q, q->tile_kv, p->ops->name));
    if (p->bf16)
        TRY(str_printf(out, "  forward's products: %s, bf16 pairs with fp32 sums\n",
                       p->bf16->name));
    TRY(str_printf(
        out,
        "  %lld query heads of a group side by side; %lld forward tasks, %lld backward tasks, longest first\n",
        (long long)p->share, (long long)p->row_tasks, (long long)(p->sums.slots + p->col_tasks)));
    TRY(blockmask_explain(&p->mask, out));
    TRY(flex__explain_score(p, out));
    TRY(str_printf(out, "share of cells in visited tiles: %.4f\n", p->visited));
    TRY(str_printf(
        out,
        "workspace with one thread: forward %s, backward %s; a dense score matrix would take %s\n",
        str_bytes((double)flex_forward_workspace(p, 1), a),
        str_bytes((double)flex_backward_workspace(p, 1), b), str_bytes(flex_dense_bytes(p), c)));
    return str_printf(out, "compiles: 0 (no code is generated on a CPU)\n");
}
