/* Backward: two kinds of tasks over the same walk, both recomputing P from the saved LSE.
 *
 * A row task owns a query tile and makes dQ, as forward does, on transposed scores. A column task owns a key tile and
 * makes dK and dV, over all query heads of its kv head in order, on plain scores with K and V packed once. Seven
 * products a tile instead of five buy gradients that no other task adds to: no atomics, no order of arrival, the same
 * bits for any number of threads. delta = rowsum(dO * O) - dLSE is made first, one float a row, and with it the sinks'
 * gradients: d sink = - sum over its head's rows of exp(sink - LSE) * delta. Captured floats of a score get theirs from
 * row tasks, which then run in slots (flex_sums.c). */
#include "flex/flex_private.h"
#include <math.h>
#include <string.h>

/* One thread's buffers. A row task uses N = share * pad columns, a column task the padded key tile; the larger counts. */
typedef struct bwd_scratch {
    float *rows, *rows_o;     /* unpacked rows of q or k, of dO or v */
    float *panels, *panels_o; /* the same in panels */
    float *s, *dp;            /* scores of one tile */
    float *a, *b;             /* rows of the walked side: k or q [tile, D], v or dO [tile, Dv] */
    float *acc, *acc_v;       /* dQ [share, tile_q, D] or dK [tile_kv, D]; dV [tile_kv, Dv] */
    float *lse, *delta;       /* per query of the tile and head */
    uint8_t *mask, *mask_t;
    void *expr, *score;
    size_t bytes;
} bwd_scratch;

typedef struct bwd_run {
    const flex_plan *p;
    flex_io *io;
    float *delta;       /* [B, Hq, L] */
    double *sink_parts; /* one per task of delta_task */
    double *slots;      /* sums of captured gradients */
    char *workspace;
    flex__left left, bad, steep;
} bwd_run;

static bwd_scratch carve(const flex_plan *p, char *base) {
    const flex_problem *q = &p->p;
    int64_t tq = flex__pad(q->tile_q, TILE_LANES), tk = flex__pad(q->tile_kv, TILE_LANES),
            D = q->dim, E = q->v_dim;
    int64_t n = p->share * tq, wide = n > tk ? n : tk, tile = tq > tk ? tq : tk;
    bwd_scratch s;
    flex__carver c = {base, 0};
    s.rows = flex__carve(&c, wide * D * 4);
    s.rows_o = flex__carve(&c, wide * E * 4);
    s.panels = flex__carve(&c, wide * D * 4);
    s.panels_o = flex__carve(&c, wide * E * 4);
    s.s = flex__carve(&c, n * tk * 4);
    s.dp = flex__carve(&c, n * tk * 4);
    s.a = flex__carve(&c, tile * D * 4);
    s.b = flex__carve(&c, tile * E * 4);
    s.acc = flex__carve(&c, wide * D * 4);
    s.acc_v = flex__carve(&c, tk * E * 4);
    s.lse = flex__carve(&c, n * 4);
    s.delta = flex__carve(&c, n * 4);
    s.mask = flex__carve(&c, tq * tk);
    s.mask_t = flex__carve(&c, tq * tk);
    s.expr = flex__carve(&c, (int64_t)p->mask_scratch);
    s.score = flex__carve(&c, (int64_t)p->score_scratch);
    s.bytes = c.used;
    return s;
}

enum { DELTA_ROWS = 256 };

static int64_t delta_chunks(const flex_problem *q) {
    return (q->q_len + DELTA_ROWS - 1) / DELTA_ROWS;
}
static size_t delta_bytes(const flex_problem *q) {
    return (size_t)flex__pad(q->batch * q->q_heads * q->q_len * 4, 64);
}
static size_t sink_bytes(const flex_problem *q) {
    return q->sinks ? (size_t)flex__pad(q->batch * q->q_heads * delta_chunks(q) * 8, 64) : 0;
}

size_t flex_backward_workspace(const flex_plan *p, int threads) {
    return delta_bytes(&p->p) + sink_bytes(&p->p) + flex__sums_bytes(p) +
           carve(p, NULL).bytes * (size_t)threads;
}

static err delta_task(void *ctx, int64_t task, int thread) {
    bwd_run *x = ctx;
    const flex_problem *q = &x->p->p;
    int64_t chunks = delta_chunks(q), line = task / chunks, l0 = task % chunks * DELTA_ROWS;
    int64_t b = line / q->q_heads, h = line % q->q_heads, l1 = flex__min(l0 + DELTA_ROWS, q->q_len);
    double sink = 0.0;
    (void)thread;
    for (int64_t l = l0; l < l1; l++) {
        const float *o = flex__out_at(&x->io->o, b, h, l), *d_o = flex__at(&x->io->d_o, b, h, l);
        int64_t at = line * q->q_len + l;
        float dot = x->p->ops->dot(o, d_o, q->v_dim);
        x->delta[at] = x->io->d_lse ? dot - x->io->d_lse[at] : dot;
        if (q->sinks && q->sinks[h] > -INFINITY)
            sink -= exp((double)q->sinks[h] - (double)x->io->lse[at]) * (double)x->delta[at];
    }
    if (q->sinks) x->sink_parts[task] = sink;
    return ERR_OK;
}

/* Over batch entries and chunks of rows, in order. */
static void add_sinks(const bwd_run *x) {
    const flex_problem *q = &x->p->p;
    int64_t chunks = delta_chunks(q);
    for (int64_t h = 0; q->sinks && h < q->q_heads; h++) {
        double sum = 0.0;
        for (int64_t b = 0; b < q->batch; b++) {
            for (int64_t c = 0; c < chunks; c++)
                sum += x->sink_parts[(b * q->q_heads + h) * chunks + c];
        }
        x->io->d_sinks[h] = (float)sum;
    }
}

/* LSE and delta of rows l .. l+n-1 of head h; an empty row gets LSE +inf, so that its P is exp(-inf) = 0. */
static void load_rows(const bwd_run *x, int64_t b, int64_t h, int64_t l, int64_t n, int64_t pad,
                      float *lse, float *delta) {
    const flex_problem *q = &x->p->p;
    int64_t at = (b * q->q_heads + h) * q->q_len + l;
    for (int64_t i = 0; i < pad; i++) {
        float v = i < n ? x->io->lse[at + i] : INFINITY;
        lse[i] = v == -INFINITY ? INFINITY : v;
        delta[i] = i < n && lse[i] != INFINITY ? x->delta[at + i] : 0.0f;
    }
}

/* ---- row tasks: dQ ---- */

/* The tile's raw products become dS through the score, head by head. mask: [nk, pad] or NULL. */
static void dq_through_score(const flex__task *t, const bwd_scratch *s, flex__scores *f, int64_t k0,
                             int64_t nk, const uint8_t *mask) {
    for (int64_t g = 0; g < t->heads; g++) {
        const flex__score_tile tile = {.at = {t->b, t->h0 + g, t->start, k0, nk, t->n},
                                       .s = s->s + g * t->pad,
                                       .dp = s->dp + g * t->pad,
                                       .ld = t->heads * t->pad,
                                       .mask = mask,
                                       .ldm = t->pad};
        flex__scores_grad(f, &tile, t->pad, s->lse + g * t->pad, s->delta + g * t->pad);
    }
}

/* A key tile that is visible in part, strip by strip. Through a score expression every cell of the tile has its raw product. */
static void dq_partial(bwd_run *x, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                       float *k, const float *v, int64_t k0, int64_t nk) {
    const flex_plan *p = x->p;
    const int64_t cols = t->heads * t->pad, dim = p->p.dim, v_dim = p->p.v_dim;
    flex__strip c;
    flex__mask_tile_t(p, t, k0, nk, s->mask, s->mask_t, s->expr, &x->left);
    if (p->grad) {
        flex__times_panels(p->ops, k, nk, dim, s->panels, cols, s->s, cols);
        flex__times_panels(p->ops, v, nk, v_dim, s->panels_o, cols, s->dp, cols);
        dq_through_score(t, s, f, k0, nk, s->mask_t);
    }
    for (int64_t at = 0; !p->grad && at < cols; at += c.width) {
        c = flex__strip_at(t, at, nk, s->mask_t);
        flex__strip_times_panels(p->ops, &c, k, dim, s->panels, cols, s->s);
        flex__strip_times_panels(p->ops, &c, v, v_dim, s->panels_o, cols, s->dp);
        const tile_scores sc = {.s = s->s + c.lo * cols + at,
                                .dp = s->dp + c.lo * cols + at,
                                .ld = cols,
                                .rows = c.hi - c.lo,
                                .cols = c.width,
                                .mask = s->mask_t + c.lo * t->pad + c.i,
                                .ldm = t->pad,
                                .scale = p->p.scale,
                                .lse = s->lse + at,
                                .delta = s->delta + at};
        p->ops->grad_cols(&sc);
    }
    const flex__masked_mm mm = {.heads = t->heads,
                                .m = t->n,
                                .n = dim,
                                .k = nk,
                                .a = s->s,
                                .sak = cols,
                                .a_head = t->pad,
                                .b = k,
                                .c = s->acc,
                                .c_head = t->n * dim,
                                .mask = s->mask_t,
                                .sk = t->pad};
    flex__take_out(p->ops, &mm);
    for (int64_t at = 0; at < cols; at += c.width) {
        c = flex__strip_at(t, at, nk, s->mask_t);
        flex__strip_into(p->ops, &c, s->s, cols, k, dim, t->n, s->acc);
    }
}

static void dq_full(const flex_plan *p, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                    const float *k, const float *v, int64_t k0, int64_t nk) {
    const int64_t cols = t->heads * t->pad;
    flex__times_panels(p->ops, k, nk, p->p.dim, s->panels, cols, s->s, cols);
    flex__times_panels(p->ops, v, nk, p->p.v_dim, s->panels_o, cols, s->dp, cols);
    const tile_scores sc = {.s = s->s,
                            .dp = s->dp,
                            .ld = cols,
                            .rows = nk,
                            .cols = cols,
                            .scale = p->p.scale,
                            .lse = s->lse,
                            .delta = s->delta};
    if (p->grad)
        dq_through_score(t, s, f, k0, nk, NULL);
    else
        p->ops->grad_cols(&sc);
    for (int64_t g = 0; g < t->heads; g++) {
        const flex__strip c = {.x = g * t->pad, .width = t->pad, .g = g, .hi = nk};
        flex__strip_into(p->ops, &c, s->s, cols, k, p->p.dim, t->n, s->acc);
    }
}

static void dq_tile(bwd_run *x, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                    int64_t tile, int full) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const int64_t k0 = tile * q->tile_kv, nk = flex__min(q->tile_kv, q->kv_len - k0);
    const float *k = flex__rows(p->ops, &x->io->k, t->b, t->kv_head, k0, nk, q->dim, s->a, !full);
    const float *v = flex__rows(p->ops, &x->io->v, t->b, t->kv_head, k0, nk, q->v_dim, s->b, 0);
    if (full)
        dq_full(p, t, s, f, k, v, k0, nk);
    else
        dq_partial(x, t, s, f, s->a, v, k0, nk); /* k is the copy: rows may be taken out of it */
}

static void dq_task(bwd_run *x, int64_t index, const bwd_scratch *s, const expr_score_sums *sums) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const block_mask *m = &p->mask;
    flex__task t = flex__row_task(p, index);
    flex__scores f = {
        .p = p, .q_lanes = 1, .left = &x->left, .bad = &x->bad, .steep = &x->steep, .sums = sums};
    if (p->grad)
        flex__scores_open(&f, p->sums.n_wanted ? EXPR_SCORE_CAPTURES : EXPR_SCORE_SLOPE, s->score);
    int64_t line = flex__line(m, t.b, t.h0) * m->q_tiles + t.tile;
    memset(s->acc, 0, (size_t)(t.heads * t.n * q->dim) * sizeof(float));
    if (m->row_start[line] < m->row_start[line + 1]) {
        flex__pack_queries(p, &x->io->q, &t, q->dim, s->rows, s->panels);
        flex__pack_queries(p, &x->io->d_o, &t, q->v_dim, s->rows_o, s->panels_o);
        for (int64_t g = 0; g < t.heads; g++)
            load_rows(x, t.b, t.h0 + g, t.start, t.n, t.pad, s->lse + g * t.pad,
                      s->delta + g * t.pad);
    }
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        for (int64_t k = run->start; k < (int64_t)run->start + run->length; k++)
            dq_tile(x, &t, s, &f, k, run->full);
    }
    for (int64_t g = 0; g < t.heads; g++) {
        for (int64_t i = 0; i < t.n; i++)
            memcpy(flex__out_at(&x->io->dq, t.b, t.h0 + g, t.start + i),
                   s->acc + (g * t.n + i) * q->dim, (size_t)q->dim * sizeof(float));
    }
}

/* ---- column tasks: dK and dV ---- */

/* Keys of a column task that are done at a time: a strip, or a whole panel where all is visible. */
static flex__strip keys_at(const flex__task *t, int64_t at, int64_t nq, const uint8_t *mask) {
    if (mask) return flex__strip_at(t, at, nq, mask);
    return (flex__strip){.x = at, .i = at, .width = flex__min(TILE_PANEL, t->pad - at), .hi = nq};
}

/* Products of one head's query tile with the packed key tile, and through P to dS, in the strip's cells. */
static void dkv_strip(const flex_plan *p, const flex__task *t, const bwd_scratch *s,
                      const flex__strip *c, const float *rows, const float *rows_o,
                      const uint8_t *mask) {
    flex__strip_times_panels(p->ops, c, rows, p->p.dim, s->panels, t->pad, s->s);
    flex__strip_times_panels(p->ops, c, rows_o, p->p.v_dim, s->panels_o, t->pad, s->dp);
    const tile_scores sc = {.s = s->s + c->lo * t->pad + c->x,
                            .dp = s->dp + c->lo * t->pad + c->x,
                            .ld = t->pad,
                            .rows = c->hi - c->lo,
                            .cols = c->width,
                            .mask = mask ? mask + c->lo * t->pad + c->x : NULL,
                            .ldm = t->pad,
                            .scale = p->p.scale,
                            .lse = s->lse + c->lo,
                            .delta = s->delta + c->lo};
    p->ops->grad_rows(&sc);
}

/* One head's query tile against the packed key tile: P in s, dS in dp. */
static void dkv_scores(bwd_run *x, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                       int64_t h, int64_t q0, int64_t nq, const float *rows, const float *rows_o,
                       const uint8_t *mask) {
    const flex_plan *p = x->p;
    flex__strip c;
    load_rows(x, t->b, h, q0, nq, nq, s->lse, s->delta);
    if (p->grad) {
        const flex__score_tile tile = {.at = {t->b, h, q0, t->start, nq, t->n},
                                       .s = s->s,
                                       .dp = s->dp,
                                       .ld = t->pad,
                                       .mask = mask,
                                       .ldm = t->pad};
        flex__times_panels(p->ops, rows, nq, p->p.dim, s->panels, t->pad, s->s, t->pad);
        flex__times_panels(p->ops, rows_o, nq, p->p.v_dim, s->panels_o, t->pad, s->dp, t->pad);
        flex__scores_grad(f, &tile, t->pad, s->lse, s->delta);
        return;
    }
    for (int64_t at = 0; at < t->pad; at += c.width) {
        c = keys_at(t, at, nq, mask);
        dkv_strip(p, t, s, &c, rows, rows_o, mask);
    }
}

static void dkv_head(bwd_run *x, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                     int64_t h, int64_t q0, int64_t nq, int full) {
    const flex_problem *q = &x->p->p;
    const tileops *ops = x->p->ops;
    const uint8_t *mask = full ? NULL : s->mask;
    float *rows = (float *)flex__rows(ops, &x->io->q, t->b, h, q0, nq, q->dim, s->a, !full);
    float *rows_o = (float *)flex__rows(ops, &x->io->d_o, t->b, h, q0, nq, q->v_dim, s->b, !full);
    dkv_scores(x, t, s, f, h, q0, nq, rows, rows_o, mask);
    flex__masked_mm mm = {.heads = 1,
                          .m = t->n,
                          .n = q->v_dim,
                          .k = nq,
                          .a = s->s,
                          .sak = t->pad,
                          .b = rows_o,
                          .c = s->acc_v,
                          .mask = mask,
                          .sk = t->pad};
    flex__take_out(ops, &mm);
    mm.n = q->dim, mm.a = s->dp, mm.b = rows, mm.c = s->acc;
    flex__take_out(ops, &mm);
    flex__strip c;
    for (int64_t at = 0; at < t->pad; at += c.width) {
        c = keys_at(t, at, nq, mask);
        flex__strip_into(ops, &c, s->s, t->pad, rows_o, q->v_dim, t->n, s->acc_v);
        flex__strip_into(ops, &c, s->dp, t->pad, rows, q->dim, t->n, s->acc);
    }
}

/* The column's runs for heads h0 .. h0+heads-1, which share them. */
static void dkv_column(bwd_run *x, const flex__task *t, const bwd_scratch *s, flex__scores *f,
                       int64_t h0, int64_t heads) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const block_mask *m = &p->mask;
    int64_t line = flex__line(m, t->b, h0) * m->kv_tiles + t->tile;
    for (int64_t r = m->col_start[line]; r < m->col_start[line + 1]; r++) {
        const block_run *run = &m->col_run[r];
        for (int64_t tile = run->start; tile < (int64_t)run->start + run->length; tile++) {
            int64_t q0 = tile * q->tile_q, nq = flex__min(q->tile_q, q->q_len - q0);
            if (!run->full)
                flex__mask_tile(p, t->b, h0, q0, nq, t->start, t->n, s->mask, t->pad, s->expr,
                                &x->left);
            for (int64_t h = h0; h < h0 + heads; h++) dkv_head(x, t, s, f, h, q0, nq, run->full);
        }
    }
}

static void dkv_task(bwd_run *x, int64_t index, const bwd_scratch *s) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    flex__task t = flex__col_task(p, index);
    flex__scores f = {.p = p, .left = &x->left, .bad = &x->bad, .steep = &x->steep};
    if (p->grad) flex__scores_open(&f, EXPR_SCORE_SLOPE, s->score);
    memset(s->acc, 0, (size_t)(t.n * q->dim) * sizeof(float));
    memset(s->acc_v, 0, (size_t)(t.n * q->v_dim) * sizeof(float));
    const float *k =
        flex__rows(p->ops, &x->io->k, t.b, t.kv_head, t.start, t.n, q->dim, s->rows, 0);
    const float *v =
        flex__rows(p->ops, &x->io->v, t.b, t.kv_head, t.start, t.n, q->v_dim, s->rows_o, 0);
    flex__panels(p->ops, k, t.n, t.pad, q->dim, s->panels);
    flex__panels(p->ops, v, t.n, t.pad, q->v_dim, s->panels_o);
    if (p->mask.heads == 1) {
        dkv_column(x, &t, s, &f, t.h0, t.heads);
    } else {
        for (int64_t g = 0; g < t.heads; g++) dkv_column(x, &t, s, &f, t.h0 + g, 1);
    }
    for (int64_t j = 0; j < t.n; j++) {
        memcpy(flex__out_at(&x->io->dk, t.b, t.kv_head, t.start + j), s->acc + j * q->dim,
               (size_t)q->dim * sizeof(float));
        memcpy(flex__out_at(&x->io->dv, t.b, t.kv_head, t.start + j), s->acc_v + j * q->v_dim,
               (size_t)q->v_dim * sizeof(float));
    }
}

/* The row tasks of a slot, in order, with the slot's sums. */
static void slot_task(bwd_run *x, int64_t slot, const bwd_scratch *s) {
    const flex__sums *sums = &x->p->sums;
    if (!sums->start) {
        dq_task(x, slot, s, NULL);
        return;
    }
    expr_score_sums to = flex__sums_of(x->p, x->io, x->slots, slot);
    for (int64_t i = sums->start[slot]; i < sums->start[slot + 1]; i++)
        dq_task(x, sums->task[i], s, &to);
}

static err backward_task(void *ctx, int64_t task, int thread) {
    bwd_run *x = ctx;
    const flex_plan *p = x->p;
    bwd_scratch s = carve(p, x->workspace + carve(p, NULL).bytes * (size_t)thread);
    int64_t index = p->all_order[task];
    if (index < p->sums.slots)
        slot_task(x, index, &s);
    else
        dkv_task(x, index - p->sums.slots, &s);
    return ERR_OK;
}

static bwd_run start_run(const flex_plan *p, flex_io *io) {
    const flex_problem *q = &p->p;
    char *at = io->workspace;
    bwd_run x = {.p = p,
                 .io = io,
                 .left.lock = PTHREAD_MUTEX_INITIALIZER,
                 .bad.lock = PTHREAD_MUTEX_INITIALIZER,
                 .steep.lock = PTHREAD_MUTEX_INITIALIZER};
    x.delta = (float *)(void *)at;
    x.sink_parts = (double *)(void *)(at += delta_bytes(q));
    x.slots = (double *)(void *)(at += sink_bytes(q));
    x.workspace = at + flex__sums_bytes(p);
    return x;
}

err flex_backward(const flex_plan *p, dev *d, flex_io *io) {
    const flex_problem *q = &p->p;
    if (p->reference) return flex_reference_backward(q, io);
    if (dev_get_kind(d) == DEV_CUDA) return flex__on_device(p, d, io, 1);
    TRY(flex__check_io(q, io, 1));
    TRY(flex__check_sinks(q));
    if (p->row_tasks + p->col_tasks == 0 && !q->sinks && !p->sums.n_wanted) return ERR_OK;
    if (!io->workspace || (uintptr_t)io->workspace % 64)
        return err_set(ERR_USAGE,
                       "attention: backward needs a workspace of %zu bytes, aligned to 64",
                       flex_backward_workspace(p, dev_threads(d)));
    bwd_run x = start_run(p, io);
    TRY(flex__sums_clear(p, d, io, x.slots));
    TRY(pool_run(dev_pool(d), q->batch * q->q_heads * delta_chunks(q), delta_task, &x));
    add_sinks(&x);
    TRY(pool_run(dev_pool(d), p->sums.slots + p->col_tasks, backward_task, &x));
    TRY(flex__sums_finish(p, d, io, x.slots));
    flex__tell_left(&x.left, io);
    return flex__scores_tell(&x.bad, &x.steep);
}
