/* Plans for a CUDA device and the steps of their runs: see flex_cuda.h.
 *
 * Kernels are chosen by type and head size alone: tensor cores for 16-bit types, the plain form for fp32. The mask's
 * runs go into one block of tables together with the order of tiles, the longest first. Gradients of captures get slots
 * as on the CPU: as many as memory allows, or none where rows keep an array's elements apart. */
#include "flex/flex_cuda_private.h"
#include "flex/blockmask_lists.h"
#include "flex/flex_private.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 128,
    ALIGN = 256,
    STATIC_SHARED = 1024,
    MOST_SLOTS = 2048,
    DIRECT_BYTES = 4 << 20,
    SLOT_BYTES = 64 << 20
};
static const double most_blocks = 2147483647.0; /* of a grid */

/* ---- kernels ---- */

static unsigned row_bytes(int64_t dim) { return (unsigned)((dim + 63) / 64 * 64 * 2); }

/* Sizes that keep sums in registers and let two blocks share a multiprocessor at head size 128. */
static void choose_cuts(flex_cuda_plan *p) {
    const int64_t dim = p->p.dim > p->p.v_dim ? p->p.dim : p->p.v_dim;
    const int wide = dim > 128, score = p->p.score != NULL;
    const unsigned k = row_bytes(p->p.dim), v = row_bytes(p->p.v_dim);
    flex_cuda__cut *f = &p->forward, *q = &p->dq, *x = &p->dkv;
    *f = (flex_cuda__cut){
        .warps = 4, .mt = wide ? 1 : 2, .bn = 64, .stages = 1, .parts = 1, .blocks = 2};
    *q = (flex_cuda__cut){
        .warps = 4, .mt = wide ? 1 : 2, .bn = 32, .stages = 2, .parts = 1, .blocks = 2};
    *x = (flex_cuda__cut){
        .warps = wide ? 4 : 8, .mt = 1, .bn = 32, .stages = 2, .parts = 1, .blocks = wide ? 2 : 1};
    if (wide || (score && dim > 64)) q->bn = 16;
    if (dim <= 64) q->bn = x->bn = 64, x->stages = 1;
    if (wide) x->stages = 1, x->parts = 2;
    f->bm = f->warps * f->mt * 16, q->bm = q->warps * q->mt * 16, x->bm = x->warps * x->mt * 16;
    f->shared = (unsigned)f->bm * k + (unsigned)f->bn * (k + v);
    q->shared = (unsigned)(q->bm + q->stages * q->bn) * (k + v);
    x->shared = (unsigned)(x->bm + x->stages * x->bn) * (k + v);
}

static err check_shared(const flex_cuda_plan *p, size_t shared) {
    const flex_cuda__cut *cut[] = {&p->forward, &p->dq, &p->dkv};
    static const char *const name[] = {"forward", "backward by queries", "backward by keys"};
    for (int i = 0; i < 3 && !p->plain; i++) {
        if (cut[i]->shared + STATIC_SHARED <= shared) continue;
        return err_set(
            ERR_REFUSED,
            "attention: head dimensions %lld and %lld need %u bytes of shared memory for "
            "%s, and this device gives a block %zu; use a smaller head dimension",
            (long long)p->p.dim, (long long)p->p.v_dim, cut[i]->shared + STATIC_SHARED, name[i],
            shared);
    }
    return ERR_OK;
}

/* ---- the mask ---- */

static err check_tiles(const block_mask *m) {
    if (m->tile_q % TILE == 0 && m->tile_kv % TILE == 0) return ERR_OK;
    return err_set(ERR_RANGE,
                   "attention: tiles of %d x %d are given, and kernels for CUDA take multiples of "
                   "%d; build the mask with such tiles",
                   m->tile_q, m->tile_kv, TILE);
}

static err make_mask(flex_cuda_plan *p, arena *a) {
    flex_problem *q = &p->p;
    if (q->blocks) {
        TRY(blockmask_fits(q->blocks, q->batch, q->q_heads, q->q_len, q->kv_len));
        p->mask = *q->blocks;
    } else {
        const block_mask_args args = {q->mask,   q->env,    q->batch,   q->q_heads,    q->q_len,
                                      q->kv_len, q->tile_q, q->tile_kv, q->mask_budget};
        TRY(blockmask_build(&p->mask, &args, a, NULL));
    }
    TRY(check_tiles(&p->mask));
    q->tile_q = p->mask.tile_q, q->tile_kv = p->mask.tile_kv;
    if (p->mask.partial && !q->mask)
        return err_set(ERR_USAGE,
                       "attention: %lld of the given tiles are partial; give the expression that "
                       "decides their cells",
                       (long long)p->mask.partial);
    return ERR_OK;
}

typedef struct costed {
    int64_t cost;
    int32_t tile;
} costed;

static int by_cost(const void *a, const void *b) {
    const costed *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return x->tile < y->tile ? -1 : x->tile > y->tile;
}

/* Tiles by how many others they meet, over all batches and heads; equal ones as they lie. */
static err order_tiles(const int64_t *start, const block_run *run, int64_t lines, int64_t tiles,
                       int32_t *out) {
    costed *c;
    TRY(mem_new((size_t)tiles + 1, sizeof *c, &c));
    for (int64_t t = 0; t < tiles; t++) {
        c[t].tile = (int32_t)t;
        for (int64_t line = 0; line < lines; line++)
            for (int64_t r = start[line * tiles + t]; r < start[line * tiles + t + 1]; r++)
                c[t].cost += run[r].length;
    }
    qsort(c, (size_t)tiles, sizeof *c, by_cost);
    for (int64_t t = 0; t < tiles; t++) out[t] = c[t].tile;
    mem_free(c);
    return ERR_OK;
}

static size_t take(size_t *used, size_t bytes) {
    size_t at = *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

_Static_assert(sizeof(block_run) == sizeof(flex_gpu_run), "runs are copied as they are");

static err make_tables(flex_cuda_plan *p, arena *a) {
    const block_mask *m = &p->mask;
    const int64_t lines = m->batch * m->heads, rows = lines * m->q_tiles,
                  cols = lines * m->kv_tiles;
    const size_t row_runs = (size_t)m->row_start[rows] * sizeof(block_run),
                 col_runs = (size_t)m->col_start[cols] * sizeof(block_run);
    size_t n = 0;
    p->row_start = take(&n, (size_t)(rows + 1) * 8),
    p->col_start = take(&n, (size_t)(cols + 1) * 8);
    p->row_run = take(&n, row_runs), p->col_run = take(&n, col_runs);
    p->row_order = take(&n, (size_t)m->q_tiles * 4),
    p->col_order = take(&n, (size_t)m->kv_tiles * 4);
    TRY(arena_alloc(a, n + 1, 1, &p->tables));
    p->tables_bytes = n;
    memcpy(p->tables + p->row_start, m->row_start, (size_t)(rows + 1) * 8);
    memcpy(p->tables + p->col_start, m->col_start, (size_t)(cols + 1) * 8);
    if (row_runs) memcpy(p->tables + p->row_run, m->row_run, row_runs);
    if (col_runs) memcpy(p->tables + p->col_run, m->col_run, col_runs);
    void *row_order = p->tables + p->row_order, *col_order = p->tables + p->col_order;
    TRY(order_tiles(m->row_start, m->row_run, lines, m->q_tiles, row_order));
    return order_tiles(m->col_start, m->col_run, lines, m->kv_tiles, col_order);
}

/* ---- captures ---- */

static int64_t elements_of(const flex_problem *q, int c) {
    return expr_value_count(&q->score_env->values[c], expr_capture(q->score, c)->ndim);
}

static void choose_sums(flex_cuda_plan *p, int c) {
    const flex_problem *q = &p->p;
    const int64_t extent[3] = {q->batch, q->q_heads, q->q_len};
    flex_gpu_capture *w = &p->wanted[p->n_wanted++];
    const unsigned owners = expr_grad_owners(p->grad, c) & 7u;
    *w = (flex_gpu_capture){.capture = c, .elements = elements_of(q, c)};
    if (owners && w->elements * 8 > DIRECT_BYTES) {
        w->owners = owners;
        w->slots = 1;
        for (int i = 0; i < 3; i++) w->slots *= owners >> i & 1 ? extent[i] : 1;
        return;
    }
    const int64_t rows = q->batch * q->q_heads * q->q_len;
    w->slots = flex__min(flex__min(MOST_SLOTS, SLOT_BYTES / (8 * (w->elements + 1))), rows);
    if (w->slots < 1) w->slots = 1;
}

static void count_workspace(flex_cuda_plan *p) {
    size_t n = 0, most = 0;
    (void)take(&n, FLEX_CUDA_WORDS * 8);
    p->delta = take(&n, (size_t)(p->p.batch * p->p.q_heads * p->p.q_len) * 4);
    p->sums = n;
    for (int i = 0; i < p->n_wanted; i++) {
        const flex_gpu_capture *w = &p->wanted[i];
        const size_t bytes = w->owners ? 0 : (size_t)(w->slots * w->elements) * 8;
        if (bytes > most) most = bytes;
    }
    (void)take(&n, most);
    p->workspace = n;
}

static err plan_score(flex_cuda_plan *p, arena *a) {
    const flex_problem *q = &p->p;
    const int64_t extent[4] = {q->batch, q->q_heads, q->q_len, q->kv_len};
    if (!q->score) return ERR_OK;
    TRY(err_context(expr_grad_create(&p->grad, q->score, q->score_grads, a), "attention: "));
    expr_cuda_types(q->score, q->score_env, p->score_types);
    const unsigned holds = expr_cuda_prove(q->score, q->score_env, extent);
    p->score_narrow = (holds & EXPR_CUDA_FITS_32) != 0;
    p->check |= expr_grad_has_loads(p->grad) && !(holds & EXPR_CUDA_INSIDE);
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++)
        if (q->score_grads >> c & 1) choose_sums(p, c);
    return ERR_OK;
}

/* ---- plans ---- */

static err check_problem(const flex_problem *problem) {
    flex_problem like = *problem;
    if (like.type == DT_F16) like.type = DT_BF16; /* the rest of the checks is the same */
    like.tile_q = like.tile_kv = 0;
    TRY(flex__check_problem(&like));
    TRY(flex__check_score(&like));
    const double cells =
        (double)like.batch * (double)like.q_heads * (double)like.q_len * (double)(like.kv_len + 1);
    if (cells < 0x1p62) return ERR_OK;
    return err_set(ERR_RANGE,
                   "attention: %lld x %lld x %lld x %lld cells are more than can be numbered",
                   (long long)like.batch, (long long)like.q_heads, (long long)like.q_len,
                   (long long)like.kv_len);
}

/* Plain kernels have four rows in a block. */
static err check_grids(const flex_cuda_plan *p) {
    const flex_problem *q = &p->p;
    const double rows = (double)q->batch * (double)q->q_heads * (double)(q->q_len + TILE),
                 keys = (double)q->batch * (double)q->kv_heads * (double)(q->kv_len + TILE);
    if ((rows > keys ? rows : keys) / 4.0 <= most_blocks) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "attention: batch %lld x %lld heads x length %lld is more than one launch on a "
                   "CUDA device takes; split the batch",
                   (long long)q->batch, (long long)q->q_heads,
                   (long long)(q->q_len > q->kv_len ? q->q_len : q->kv_len));
}

err flex_cuda_plan_create(flex_cuda_plan **out, const flex_problem *problem, size_t shared,
                          arena *a) {
    flex_cuda_plan *p;
    TRY(check_problem(problem));
    TRY(arena_alloc(a, 1, sizeof *p, &p));
    p->p = *problem;
    flex_problem *q = &p->p;
    if (q->scale == 0.0f && !q->zero_scale) q->scale = 1.0f / sqrtf((float)q->dim);
    if (!q->tile_q) q->tile_q = TILE;
    if (!q->tile_kv) q->tile_kv = TILE;
    p->plain = q->type == DT_F32;
    choose_cuts(p);
    TRY(check_shared(p, shared));
    TRY(check_grids(p));
    TRY(make_mask(p, a));
    TRY(make_tables(p, a));
    if (q->mask) {
        expr_cuda_types(q->mask, q->env, p->mask_types);
        p->check = p->mask.may_leave; /* given lists know nothing of loads and say so */
    }
    TRY(plan_score(p, a));
    count_workspace(p);
    *out = p;
    return ERR_OK;
}

const block_mask *flex_cuda_plan_mask(const flex_cuda_plan *p) { return &p->mask; }
size_t flex_cuda_workspace(const flex_cuda_plan *p) { return p->workspace; }
const void *flex_cuda_tables(const flex_cuda_plan *p, size_t *bytes) {
    *bytes = p->tables_bytes;
    return p->tables;
}

int flex_cuda_needs(const flex_cuda_plan *p, flex_cuda_text which, int backward) {
    switch (which) {
    case FLEX_CUDA_FORWARD: return !backward;
    case FLEX_CUDA_CHECK: return !backward && p->check;
    case FLEX_CUDA_DKV: return backward && !p->plain;
    case FLEX_CUDA_CAPTURES: return backward && p->n_wanted > 0;
    default: return backward;
    }
}

/* ---- arguments ---- */

static void *pointer(flex_cuda_address at) {
    return (void *)(uintptr_t)at; /* means something on the device alone */
}

static flex_gpu_view view_of(const flex_cuda_plan *p, const flex_cuda_view *v) {
    const int64_t unit = 16 / (int64_t)dtype_size(p->p.type);
    const int whole =
        v->data % 16 == 0 && v->sb % unit == 0 && v->sh % unit == 0 && v->sl % unit == 0;
    return (flex_gpu_view){pointer(v->data), v->sb, v->sh, v->sl, whole};
}

static void fill_env(px_env *out, const expr *e, const expr_env *env,
                     const flex_cuda_address *arrays) {
    const void *at[EXPR_MAX_CAPTURES];
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++) at[i] = pointer(arrays[i]);
    if (e) expr_cuda_fill(out, e, env, at);
}

static void fill_tables(const flex_cuda_plan *p, flex_cuda_address at, flex_gpu_args *g) {
    const block_mask *m = &p->mask;
    g->tile_q = m->tile_q, g->tile_kv = m->tile_kv;
    g->q_tiles = m->q_tiles, g->kv_tiles = m->kv_tiles;
    g->mask_batch = m->batch, g->mask_heads = m->heads;
    g->row_start = pointer(at + p->row_start), g->col_start = pointer(at + p->col_start);
    g->row_run = pointer(at + p->row_run), g->col_run = pointer(at + p->col_run);
    g->row_order = pointer(at + p->row_order), g->col_order = pointer(at + p->col_order);
}

static err make_args(const flex_cuda_plan *p, const flex_cuda_io *io, arena *a,
                     flex_gpu_args **out) {
    const flex_problem *q = &p->p;
    flex_gpu_args *g;
    TRY(arena_alloc(a, 1, sizeof *g, &g));
    g->q = view_of(p, &io->q), g->k = view_of(p, &io->k), g->v = view_of(p, &io->v);
    g->o = view_of(p, &io->o), g->d_o = view_of(p, &io->d_o);
    g->dq = view_of(p, &io->dq), g->dk = view_of(p, &io->dk), g->dv = view_of(p, &io->dv);
    g->lse = pointer(io->lse), g->d_lse = pointer(io->d_lse);
    g->sinks = q->sinks ? pointer(io->sinks) : NULL, g->d_sinks = pointer(io->d_sinks);
    g->batch = q->batch, g->q_heads = q->q_heads, g->kv_heads = q->kv_heads;
    g->group = q->q_heads / q->kv_heads, g->q_len = q->q_len, g->kv_len = q->kv_len;
    g->scale = q->scale;
    g->mask_narrow = p->mask.proofs.fits_32, g->score_narrow = p->score_narrow;
    fill_tables(p, io->tables, g);
    g->left = pointer(io->workspace), g->bad = pointer(io->workspace + 8);
    g->delta = pointer(io->workspace + p->delta);
    fill_env(&g->mask_env, q->mask, q->env, io->mask_arrays);
    fill_env(&g->score_env, q->score, q->score_env, io->score_arrays);
    *out = g;
    return ERR_OK;
}

/* ---- steps ---- */

static void add_fill(flex_cuda_steps *s, flex_cuda_address at, int value, size_t bytes) {
    if (bytes)
        s->step[s->n++] = (flex_cuda_step){.fill = at, .fill_bytes = bytes, .fill_value = value};
}

static void add_launch(flex_cuda_steps *s, flex_cuda_text text, const char *function,
                       const flex_gpu_args *g, int64_t blocks, int parts, int threads,
                       unsigned shared) {
    if (blocks == 0) return;
    s->step[s->n++] = (flex_cuda_step){.text = text,
                                       .function = function,
                                       .grid = {(unsigned)blocks, (unsigned)parts},
                                       .block = (unsigned)threads,
                                       .shared = shared,
                                       .args = g,
                                       .arg_bytes = sizeof *g};
}

static err begin(flex_cuda_steps *s, int most, arena *a) {
    s->n = 0;
    return arena_alloc(a, (size_t)most, sizeof *s->step, &s->step);
}

static err check_io(const flex_cuda_plan *p, const flex_cuda_io *io, int backward) {
    const flex_problem *q = &p->p;
    const int64_t nq = q->batch * q->q_heads * q->q_len, nk = q->batch * q->kv_heads * q->kv_len;
    const struct {
        const char *name;
        flex_cuda_address at;
        int64_t rows;
    } need[] = {{"q", io->q.data, nq},
                {"k", io->k.data, nk},
                {"v", io->v.data, nk},
                {"o", io->o.data, nq},
                {"the workspace", io->workspace, 1},
                {"the tables", io->tables, 1},
                {"the gradient of o", io->d_o.data, nq},
                {"lse (which backward needs)", io->lse, nq},
                {"dq", io->dq.data, nq},
                {"dk", io->dk.data, nk},
                {"dv", io->dv.data, nk}};
    for (size_t i = 0; i < (backward ? sizeof need / sizeof *need : 6); i++) {
        if (need[i].rows && !need[i].at)
            return err_set(ERR_USAGE, "attention: %s has no device memory", need[i].name);
    }
    return ERR_OK;
}

/* Blocks of threads over tiles of a cut. */
static int64_t blocks_of(const flex_cuda__cut *c, int64_t tiles, int32_t tile, int64_t heads) {
    return tiles * (tile / c->bm) * heads;
}

err flex_cuda_forward(const flex_cuda_plan *p, const flex_cuda_io *io, arena *a,
                      flex_cuda_steps *out) {
    const flex_problem *q = &p->p;
    const int64_t heads = q->batch * q->q_heads, rows = heads * q->q_len;
    flex_gpu_args *g;
    TRY(check_io(p, io, 0));
    TRY(begin(out, 4, a));
    TRY(make_args(p, io, a, &g));
    add_fill(out, io->workspace, 0xff, FLEX_CUDA_WORDS * 8);
    if (p->check) add_launch(out, FLEX_CUDA_CHECK, "flex_check", g, (rows + 3) / 4, 1, 128, 0);
    if (p->plain)
        add_launch(out, FLEX_CUDA_FORWARD, "flex_plain_forward", g, (rows + 3) / 4, 1, 128, 0);
    else
        add_launch(out, FLEX_CUDA_FORWARD, "flex_forward", g,
                   blocks_of(&p->forward, p->mask.q_tiles, q->tile_q, heads), 1,
                   32 * p->forward.warps, p->forward.shared);
    return ERR_OK;
}

/* Steps of one captured array's gradient. */
static err add_capture(const flex_cuda_plan *p, const flex_cuda_io *io, const flex_gpu_args *base,
                       int i, arena *a, flex_cuda_steps *out) {
    const flex_gpu_capture *w = &p->wanted[i];
    const flex_cuda_address into = io->d_capture[w->capture], sums = io->workspace + p->sums;
    flex_gpu_args *g;
    if (w->elements == 0) return ERR_OK;
    if (!into)
        return err_set(ERR_USAGE, "attention: the gradient of `%s` has no device memory",
                       expr_capture(p->p.score, w->capture)->name);
    TRY(arena_alloc(a, 1, sizeof *g, &g));
    *g = *base;
    g->wanted = *w;
    g->wanted.out = pointer(into);
    g->wanted.sums = w->owners ? NULL : pointer(sums);
    if (w->owners)
        add_fill(out, into, 0, (size_t)w->elements * 4);
    else
        add_fill(out, sums, 0, (size_t)(w->slots * w->elements) * 8);
    add_launch(out, FLEX_CUDA_CAPTURES, "flex_captures", g, (w->slots + 3) / 4, 1, 128, 0);
    if (!w->owners)
        add_launch(out, FLEX_CUDA_CAPTURES, "flex_captures_sum", g, (w->elements + 255) / 256, 1,
                   256, 0);
    return ERR_OK;
}

err flex_cuda_backward(const flex_cuda_plan *p, const flex_cuda_io *io, arena *a,
                       flex_cuda_steps *out) {
    const flex_problem *q = &p->p;
    const int64_t heads = q->batch * q->q_heads, rows = heads * q->q_len,
                  kv_heads = q->batch * q->kv_heads, keys = kv_heads * q->kv_len;
    flex_gpu_args *g;
    TRY(check_io(p, io, 1));
    TRY(begin(out, 4 + 3 * p->n_wanted, a));
    TRY(make_args(p, io, a, &g));
    add_launch(out, FLEX_CUDA_ROWS, "flex_delta", g, (rows + 7) / 8, 1, 256, 0);
    if (q->sinks && !io->d_sinks)
        return err_set(ERR_USAGE, "attention: the gradient of the sinks has no device memory");
    if (q->sinks) add_launch(out, FLEX_CUDA_ROWS, "flex_sinks", g, q->q_heads, 1, 256, 0);
    if (p->plain) {
        add_launch(out, FLEX_CUDA_DQ, "flex_plain_dq", g, (rows + 3) / 4, 1, 128, 0);
        add_launch(out, FLEX_CUDA_DQ, "flex_plain_dkv", g, (keys + 3) / 4, 1, 128, 0);
    } else {
        add_launch(out, FLEX_CUDA_DQ, "flex_dq", g,
                   blocks_of(&p->dq, p->mask.q_tiles, q->tile_q, heads), 1, 32 * p->dq.warps,
                   p->dq.shared);
        add_launch(out, FLEX_CUDA_DKV, "flex_dkv", g,
                   blocks_of(&p->dkv, p->mask.kv_tiles, q->tile_kv, kv_heads), p->dkv.parts,
                   32 * p->dkv.warps, p->dkv.shared);
    }
    for (int i = 0; i < p->n_wanted; i++) TRY(add_capture(p, io, g, i, a, out));
    return ERR_OK;
}

/* ---- what a run has met ---- */

err flex_cuda_judge(const flex_cuda_plan *p, const uint64_t word[FLEX_CUDA_WORDS], int *left,
                    int64_t cell[4]) {
    const flex_problem *q = &p->p;
    *left = word[0] != UINT64_MAX;
    if (*left) {
        int64_t at = (int64_t)word[0];
        cell[3] = at % q->kv_len, at /= q->kv_len;
        cell[2] = at % q->q_len, at /= q->q_len;
        cell[1] = at % q->q_heads, cell[0] = at / q->q_heads;
    }
    if (word[1] == UINT64_MAX) return ERR_OK;
    const int64_t row = (int64_t)word[1];
    return err_set(
        ERR_NUMERIC,
        "attention: a score of row b %lld, h %lld, q %lld, the first such row, is NaN or "
        "+inf; change the score there or hide the cell (-inf hides it)",
        (long long)(row / q->q_len / q->q_heads), (long long)(row / q->q_len % q->q_heads),
        (long long)(row % q->q_len));
}
