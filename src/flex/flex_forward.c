/* Forward: one task is a query tile with a few heads of a group side by side; it walks the row's runs of key tiles.
 *
 * Scores are kept transposed, S^T[key, query] = K Q^T with Q packed once per task, so that keys and values are read
 * as they lie and the softmax runs down columns without sums across lanes. P is exactly 0 in hidden cells; full tiles
 * run without mask code. Inputs in bf16 go through flex_bf16.c where the CPU has a unit for them. A task owns its rows of o and lse,
 * so no result depends on threads, nor on how many tasks a thread takes at once. */
#include "flex/flex_private.h"
#include <math.h>
#include <string.h>

/* One thread's buffers, carved out of the workspace. N = heads * pad columns. */
typedef struct fwd_scratch {
    float *q;                   /* [N, D] rows before packing */
    float *panels;              /* [D, N] in panels */
    float *s;                   /* [tile_kv, N] */
    float *k, *v;               /* [tile_kv, D], [tile_kv, Dv] when they cannot be read in place */
    float *o;                   /* [heads, n, Dv] */
    float *m, *l, *corr;        /* [N] */
    uint8_t *mask, *mask_t;     /* [tile_q, tile_kv padded], [tile_kv, pad] in fp32 */
    void *expr, *score, *tiles; /* tiles: of flex_bf16.c, in place of q to o */
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
    const int64_t fp32 = p->bf16 ? 0 : 4;
    flex__carver c = {base, 0};
    s.q = flex__carve(&c, n * q->dim * fp32);
    s.panels = flex__carve(&c, n * q->dim * fp32);
    s.s = flex__carve(&c, tk * n * fp32);
    s.k = flex__carve(&c, tk * q->dim * fp32);
    s.v = flex__carve(&c, tk * q->v_dim * fp32);
    s.tiles = flex__carve(&c, p->bf16 ? (int64_t)flex__bf16_bytes(p) : 0);
    s.o = flex__carve(&c, n * q->v_dim * fp32);
    s.m = flex__carve(&c, n * 4);
    s.l = flex__carve(&c, n * 4);
    s.corr = flex__carve(&c, n * 4);
    s.mask = flex__carve(&c, q->tile_q * flex__pad(tk, TILE_LANES));
    s.mask_t = flex__carve(&c, p->bf16 ? 0 : tk * flex__pad(q->tile_q, TILE_LANES));
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

static void scale_output(const flex_plan *p, const flex__task *t, const fwd_scratch *s) {
    const int64_t dim = p->p.v_dim;
    for (int64_t g = 0; g < t->heads; g++)
        p->ops->scale_rows(s->o + g * t->n * dim, dim, t->n, dim, s->corr + g * t->pad);
}

/* A key tile that is visible in part. Through a score expression every cell of the tile has its raw product. */
static void partial_tile(fwd_run *x, const flex__task *t, const fwd_scratch *s, flex__scores *f,
                         const float *k, float *v, int64_t k0, int64_t nk) {
    const flex_plan *p = x->p;
    const int64_t cols = t->heads * t->pad;
    flex__mask_tile_t(p, t, k0, nk, s->mask, s->mask_t, s->expr, &x->left);
    if (p->grad) {
        flex__times_panels(p->ops, k, nk, p->p.dim, s->panels, cols, s->s, cols);
        through_score(t, s, f, k0, nk, s->mask_t);
    }
    flex__strip c;
    for (int64_t at = 0; at < cols; at += c.width) {
        c = flex__strip_at(t, at, nk, s->mask_t);
        if (!p->grad) flex__strip_times_panels(p->ops, &c, k, p->p.dim, s->panels, cols, s->s);
        const tile_scores sc = {.s = s->s + c.lo * cols + at,
                                .ld = cols,
                                .rows = c.hi - c.lo,
                                .cols = c.width,
                                .mask = s->mask_t + c.lo * t->pad + c.i,
                                .ldm = t->pad,
                                .scale = p->grad ? 1.0f : p->p.scale,
                                .m = s->m + at,
                                .l = s->l + at,
                                .corr = s->corr + at};
        p->ops->softmax_cols(&sc);
    }
    scale_output(p, t, s);
    const flex__masked_mm mm = {.heads = t->heads,
                                .m = t->n,
                                .n = p->p.v_dim,
                                .k = nk,
                                .a = s->s,
                                .sak = cols,
                                .a_head = t->pad,
                                .b = v,
                                .c = s->o,
                                .c_head = t->n * p->p.v_dim,
                                .mask = s->mask_t,
                                .sk = t->pad};
    flex__take_out(p->ops, &mm);
    for (int64_t at = 0; at < cols; at += c.width) {
        c = flex__strip_at(t, at, nk, s->mask_t);
        flex__strip_into(p->ops, &c, s->s, cols, v, p->p.v_dim, t->n, s->o);
    }
}

static void full_tile(const flex_plan *p, const flex__task *t, const fwd_scratch *s,
                      flex__scores *f, const float *k, const float *v, int64_t k0, int64_t nk) {
    const int64_t cols = t->heads * t->pad, dim = p->p.v_dim;
    flex__times_panels(p->ops, k, nk, p->p.dim, s->panels, cols, s->s, cols);
    if (p->grad) through_score(t, s, f, k0, nk, NULL);
    const tile_scores sc = {.s = s->s,
                            .ld = cols,
                            .rows = nk,
                            .cols = cols,
                            .scale = p->grad ? 1.0f : p->p.scale,
                            .m = s->m,
                            .l = s->l,
                            .corr = s->corr};
    p->ops->softmax_cols(&sc);
    scale_output(p, t, s);
    for (int64_t g = 0; g < t->heads; g++) {
        const tile_mm mm = {.m = t->n,
                            .n = dim,
                            .k = nk,
                            .a = s->s + g * t->pad,
                            .sam = 1,
                            .sak = cols,
                            .b = v,
                            .ldb = dim,
                            .c = s->o + g * t->n * dim,
                            .ldc = dim,
                            .add = 1};
        p->ops->gemm(&mm);
    }
}

/* One key tile: scores, softmax, and the product with values. */
static void forward_tile(fwd_run *x, const flex__task *t, const fwd_scratch *s, flex__scores *f,
                         int64_t tile, int full) {
    const flex_plan *p = x->p;
    const flex_problem *q = &p->p;
    const int64_t k0 = tile * q->tile_kv, nk = flex__min(q->tile_kv, q->kv_len - k0);
    const float *k = flex__rows(p->ops, &x->io->k, t->b, t->kv_head, k0, nk, q->dim, s->k, 0);
    const float *v = flex__rows(p->ops, &x->io->v, t->b, t->kv_head, k0, nk, q->v_dim, s->v, !full);
    if (full)
        full_tile(p, t, s, f, k, v, k0, nk);
    else
        partial_tile(x, t, s, f, k, s->v, k0, nk); /* v is the copy: rows may be taken out of it */
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

/* dst = o * factor: dim is a multiple of 8. */
static void write_row(float *dst, const float *o, int64_t dim, float factor) {
    typedef float quad __attribute__((vector_size(16)));
    for (int64_t d = 0; d < dim; d += 4) {
        quad x;
        memcpy(&x, o + d, sizeof x);
        x = x * factor;
        memcpy(dst + d, &x, sizeof x);
    }
}

/* Maxima and sums become LSE and what a row's sum of values is to be multiplied by, 0 where nothing was seen: in s->corr. */
static void finish_sums(const fwd_run *x, const flex__task *t, const fwd_scratch *s) {
    const flex_problem *q = &x->p->p;
    for (int64_t g = 0; g < t->heads; g++) {
        float *lse =
            x->io->lse ? x->io->lse + (t->b * q->q_heads + t->h0 + g) * q->q_len + t->start : NULL;
        for (int64_t i = 0; i < t->n; i++) {
            float l = s->l[g * t->pad + i], m = s->m[g * t->pad + i], factor = 1.0f;
            const int seen = l != 0.0f;
            if (q->sinks) factor = add_sink(q->sinks[t->h0 + g], &m, &l);
            s->corr[g * t->pad + i] = seen ? factor / l : 0.0f;
            if (lse) lse[i] = l == 0.0f ? -INFINITY : m + logf(l);
        }
        for (int64_t i = t->n; i < t->pad; i++) s->corr[g * t->pad + i] = 0.0f;
    }
}

static void write_rows(const fwd_run *x, const flex__task *t, const fwd_scratch *s) {
    const int64_t dim = x->p->p.v_dim;
    for (int64_t g = 0; g < t->heads; g++) {
        for (int64_t i = 0; i < t->n; i++) {
            float *dst = flex__out_at(&x->io->o, t->b, t->h0 + g, t->start + i);
            const float factor = s->corr[g * t->pad + i];
            if (factor == 0.0f)
                memset(dst, 0, (size_t)dim * sizeof *dst);
            else
                write_row(dst, s->o + (g * t->n + i) * dim, dim, factor);
        }
    }
}

/* All key tiles of a task, in fp32. */
static void walk(fwd_run *x, const flex__task *t, int64_t line, const fwd_scratch *s) {
    const flex_plan *p = x->p;
    const block_mask *m = &p->mask;
    flex__scores f = {.p = p, .q_lanes = 1, .left = &x->left, .bad = &x->bad};
    memset(s->o, 0, (size_t)(t->heads * t->n * p->p.v_dim) * sizeof(float));
    if (m->row_start[line] < m->row_start[line + 1])
        flex__pack_queries(p, &x->io->q, t, p->p.dim, s->q, s->panels);
    if (p->grad) flex__scores_open(&f, EXPR_SCORE_VALUE, s->score);
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        for (int64_t k = run->start; k < (int64_t)run->start + run->length; k++)
            forward_tile(x, t, s, &f, k, run->full);
    }
}

static void one_task(fwd_run *x, int64_t index, const fwd_scratch *scratch) {
    const flex_plan *p = x->p;
    const block_mask *m = &p->mask;
    const fwd_scratch s = *scratch;
    const flex__task t = flex__row_task(p, index);
    int64_t line = flex__line(m, t.b, t.h0) * m->q_tiles + t.tile, cols = t.heads * t.pad;
    memset(s.l, 0, (size_t)cols * sizeof(float));
    for (int64_t i = 0; i < cols; i++) s.m[i] = -INFINITY;
    if (p->bf16) {
        const flex__bf16_buffers b = {s.tiles, s.m, s.l, s.corr, s.mask, s.expr, &x->left};
        flex__bf16_walk(p, x->io, &t, line, &b);
        finish_sums(x, &t, &s);
        flex__bf16_write(p, x->io, &t, &b);
    } else {
        walk(x, &t, line, &s);
        finish_sums(x, &t, &s);
        write_rows(x, &t, &s);
    }
}

static err forward_tasks(void *ctx, int64_t chunk, int thread) {
    fwd_run *x = ctx;
    const flex_plan *p = x->p;
    const size_t bytes = carve(p, NULL).bytes;
    const fwd_scratch s = carve(p, x->workspace + bytes * (size_t)thread);
    for (int64_t i = p->chunk_start[chunk]; i < p->chunk_start[chunk + 1]; i++)
        one_task(x, p->row_order[i], &s);
    return ERR_OK;
}

static void begin_tiles(const flex_plan *p, char *workspace, int threads) {
    const size_t bytes = carve(p, NULL).bytes;
    for (int i = 0; i < threads; i++)
        flex__bf16_begin(p, carve(p, workspace + bytes * (size_t)i).tiles);
}

err flex_forward(const flex_plan *p, dev *d, flex_io *io) {
    if (p->reference) return flex_reference_forward(&p->p, io);
    if (dev_get_kind(d) == DEV_CUDA) return flex__on_device(p, d, io, 0);
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
    if (p->bf16) begin_tiles(p, x.workspace, dev_threads(d));
    TRY(pool_run(dev_pool(d), p->chunks, forward_tasks, &x));
    flex__tell_left(&x.left, io);
    return flex__scores_tell(&x.bad, &none);
}
