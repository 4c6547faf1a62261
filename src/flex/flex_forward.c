/* Forward: one task is a query tile with a few heads of a group side by side; it walks the row's runs of key tiles.
 *
 * Scores are kept transposed, S^T[key, query] = K Q^T with Q packed once per task, so that keys and values are read
 * as they lie and the softmax runs down columns without sums across lanes. P is exactly 0 in hidden cells; full tiles
 * run without mask code. A task owns its rows of o and lse, so no result depends on threads. */
#include "flex/flex_private.h"
#include <math.h>
#include <string.h>

/* One thread's buffers, carved out of the workspace. N = heads * pad columns. */
typedef struct fwd_scratch {
    float *q;               /* [N, D] rows before packing */
    float *panels;          /* [D, N] in panels */
    float *s;               /* [tile_kv, N] */
    float *k, *v;           /* [tile_kv, D], [tile_kv, Dv] when they cannot be read in place */
    float *o;               /* [heads, tile_q, Dv] */
    float *m, *l, *corr;    /* [N] */
    uint8_t *mask, *mask_t; /* [tile_q, tile_kv padded], [tile_kv, pad] */
    void *expr, *score;
    size_t bytes;
} fwd_scratch;

typedef struct fwd_run {
    const flex_plan *p;
    flex_io *io;
    char *workspace;
    flex__left left, bad;
} fwd_run;

static fwd_scratch carve(const flex_plan *p, char *base) {
    const flex_problem *q = &p->p;
    int64_t n = p->share * flex__pad(q->tile_q, TILE_LANES), tk = q->tile_kv;
    fwd_scratch s;
    flex__carver c = {base, 0};
    s.q = flex__carve(&c, n * q->dim * 4);
    s.panels = flex__carve(&c, n * q->dim * 4);
    s.s = flex__carve(&c, tk * n * 4);
    s.k = flex__carve(&c, tk * q->dim * 4);
    s.v = flex__carve(&c, tk * q->v_dim * 4);
    s.o = flex__carve(&c, p->share * q->tile_q * q->v_dim * 4);
    s.m = flex__carve(&c, n * 4);
    s.l = flex__carve(&c, n * 4);
    s.corr = flex__carve(&c, n * 4);
    s.mask = flex__carve(&c, q->tile_q * flex__pad(tk, TILE_LANES));
    s.mask_t = flex__carve(&c, tk * flex__pad(q->tile_q, TILE_LANES));
    s.expr = flex__carve(&c, (int64_t)p->mask_scratch);
    s.score = flex__carve(&c, (int64_t)p->score_scratch);
    s.bytes = c.used;
    return s;
}

size_t flex_forward_workspace(const flex_plan *p, int threads) {
    return carve(p, NULL).bytes * (size_t)threads;
}

/* Raw products of a key tile become scores, head by head. mask: [nk, pad] or NULL. */
static void through_score(const flex__task *t, const fwd_scratch *s, flex__scores *f, int64_t k0,
                          int64_t nk, const uint8_t *mask) {
    for (int64_t g = 0; g < t->heads; g++) {
        const flex__score_tile tile = {.at = {t->b, t->h0 + g, t->start, k0, nk, t->n},
                                       .s = s->s + g * t->pad,
                                       .ld = t->heads * t->pad,
                                       .mask = mask,
                                       .ldm = t->pad};
        flex__scores_forward(f, &tile);
    }
}

/* One key tile: scores, softmax, and the product with values. */
static void forward_tile(fwd_run *x, const flex__task *t, const fwd_scratch *s, flex__scores *f,
                         int64_t tile, int full) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const tileops *ops = p->ops;
    int64_t k0 = tile * q->tile_kv, nk = flex__min(q->tile_kv, q->kv_len - k0),
            cols = t->heads * t->pad;
    const float *k = flex__rows(ops, &x->io->k, t->b, t->kv_head, k0, nk, q->dim, s->k, 0);
    float *v = (float *)flex__rows(ops, &x->io->v, t->b, t->kv_head, k0, nk, q->v_dim, s->v, !full);
    flex__times_panels(ops, k, nk, q->dim, s->panels, cols, s->s, cols);
    if (!full) flex__mask_tile_t(p, t, k0, nk, s->mask, s->mask_t, s->expr, &x->left);
    if (p->grad) through_score(t, s, f, k0, nk, full ? NULL : s->mask_t);
    tile_scores sc = {.s = s->s,
                      .ld = cols,
                      .rows = nk,
                      .cols = cols,
                      .scale = p->grad ? 1.0f : q->scale,
                      .m = s->m,
                      .l = s->l,
                      .corr = s->corr};
    if (full) {
        ops->softmax_cols(&sc);
    } else {
        sc.cols = t->pad;
        sc.mask = s->mask_t;
        sc.ldm = t->pad;
        for (int64_t g = 0; g < t->heads; g++) {
            ops->softmax_cols(&sc);
            sc.s += t->pad, sc.m += t->pad, sc.l += t->pad, sc.corr += t->pad;
        }
    }
    for (int64_t g = 0; g < t->heads; g++)
        ops->scale_rows(s->o + g * t->n * q->v_dim, q->v_dim, t->n, q->v_dim, s->corr + g * t->pad);
    const flex__masked_mm mm = {.heads = t->heads,
                                .m = t->n,
                                .n = q->v_dim,
                                .k = nk,
                                .a = s->s,
                                .sak = cols,
                                .a_head = t->pad,
                                .b = v,
                                .c = s->o,
                                .c_head = t->n * q->v_dim,
                                .mask = full ? NULL : s->mask_t,
                                .sk = t->pad};
    flex__mm_masked(ops, &mm);
}

/* The sink joins the denominator: *l of the row's sum stays relative to its maximum *m, which may rise to the sink. The
 * factor is what the row's own terms shrink by. */
static float add_sink(float sink, float *m, float *l) {
    float top = *m > sink ? *m : sink;
    if (top == -INFINITY) return 1.0f;
    float factor = expf(*m - top);
    *l = *l * factor + expf(sink - top);
    *m = top;
    return factor;
}

static void write_rows(const fwd_run *x, const flex__task *t, const fwd_scratch *s) {
    const flex_problem *q = &x->p->p;
    for (int64_t g = 0; g < t->heads; g++) {
        for (int64_t i = 0; i < t->n; i++) {
            const float *o = s->o + (g * t->n + i) * q->v_dim;
            float *dst = flex__out_at(&x->io->o, t->b, t->h0 + g, t->start + i),
                  l = s->l[g * t->pad + i], m = s->m[g * t->pad + i], factor = 1.0f;
            int seen = l != 0.0f;
            if (q->sinks) factor = add_sink(q->sinks[t->h0 + g], &m, &l);
            if (!seen) memset(dst, 0, (size_t)q->v_dim * sizeof(float));
            for (int64_t d = 0; seen && d < q->v_dim; d++)
                dst[d] = q->sinks ? o[d] * factor / l : o[d] / l;
            if (x->io->lse)
                x->io->lse[(t->b * q->q_heads + t->h0 + g) * q->q_len + t->start + i] =
                    l == 0.0f ? -INFINITY : m + logf(l);
        }
    }
}

static err forward_task(void *ctx, int64_t task, int thread) {
    fwd_run *x = ctx;
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const block_mask *m = &p->mask;
    size_t bytes = carve(p, NULL).bytes;
    fwd_scratch s = carve(p, x->workspace + bytes * (size_t)thread);
    flex__task t = flex__row_task(p, p->row_order[task]);
    flex__scores f = {.p = p, .q_lanes = 1, .left = &x->left, .bad = &x->bad};
    int64_t line = flex__line(m, t.b, t.h0) * m->q_tiles + t.tile, cols = t.heads * t.pad;
    memset(s.o, 0, (size_t)(t.heads * t.n * q->v_dim) * sizeof(float));
    memset(s.l, 0, (size_t)cols * sizeof(float));
    for (int64_t i = 0; i < cols; i++) s.m[i] = -INFINITY;
    if (m->row_start[line] < m->row_start[line + 1])
        flex__pack_queries(p, &x->io->q, &t, q->dim, s.q, s.panels);
    if (p->grad) flex__scores_open(&f, EXPR_SCORE_VALUE, s.score);
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        for (int64_t k = run->start; k < (int64_t)run->start + run->length; k++)
            forward_tile(x, &t, &s, &f, k, run->full);
    }
    write_rows(x, &t, &s);
    return ERR_OK;
}

err flex_forward(const flex_plan *p, dev *d, flex_io *io) {
    if (p->reference) return flex_reference_forward(&p->p, io);
    TRY(flex__check_io(&p->p, io, 0));
    if (p->row_tasks == 0) return ERR_OK;
    if (!io->workspace || (uintptr_t)io->workspace % 64)
        return err_set(ERR_USAGE,
                       "attention: forward needs a workspace of %zu bytes, aligned to 64",
                       flex_forward_workspace(p, dev_threads(d)));
    fwd_run x = {.p = p,
                 .io = io,
                 .workspace = io->workspace,
                 .left.lock = PTHREAD_MUTEX_INITIALIZER,
                 .bad.lock = PTHREAD_MUTEX_INITIALIZER};
    const flex__left none = {0};
    TRY(flex__check_sinks(&p->p));
    TRY(pool_run(dev_pool(d), p->row_tasks, forward_task, &x));
    flex__tell_left(&x.left, io);
    return flex__scores_tell(&x.bad, &none);
}
