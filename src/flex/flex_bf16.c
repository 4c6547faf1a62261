/* Forward's walk over key tiles in bf16: as in flex_forward.c, with products of a matrix unit and without a score expression.
 *
 * S^T[key, query] = K Q^T reads keys as they lie where they are whole tiles, else a copy with zeros around; queries are words of
 * pairs, packed once per task. O^T[dv, query] += V^T P keeps sums transposed, so that the softmax's factors are one vector along a
 * row; values are turned once per tile for all heads. Values that are not finite are taken out of products, in full tiles too: a
 * weight is a sum of two parts, and infinity times those is no number. Writes no row of the result: forward does. */
#include "flex/flex_private.h"
#include <string.h>

/* One thread's buffers; N columns, lengths padded to whole tiles: Dp, Ep (of v), Kp keys. */
typedef struct buffers {
    bf16 *q, *k, *v; /* [N, Dp], [Kp, Dp], [tile_kv, Dv]; k, v where they cannot be read in place */
    uint32_t *queries;    /* [Dp/2, N] words */
    uint32_t *values;     /* [Ep, Kp/2] words */
    uint32_t *high, *low; /* [Kp/2, 32] weights of a strip */
    float *s, *o;         /* [Kp, 32] of a strip, [Ep, N] */
    size_t bytes;
} buffers;

typedef struct walk {
    const flex_plan *p;
    const flex_io *io;
    const flex__task *t;
    const flex__bf16_buffers *out;
    buffers b;
    int64_t n, dim, v_dim, keys; /* N of this task, Dp, Ep, Kp */
} walk;

static int64_t depth(int64_t n) { return flex__pad(n, TILE_BF16_DEPTH); }
/* Where the tiles around a strip's keys begin. */
static int64_t first_key(const flex__strip *c) { return c->lo / TILE_BF16_DEPTH * TILE_BF16_DEPTH; }

#define LOG2_E 1.44269504088896341f
#define LN_2   0.693147180559945309f

static buffers carve(const flex_plan *p, char *base) {
    const flex_problem *q = &p->p;
    const int64_t n = p->share * flex__pad(q->tile_q, TILE_LANES), keys = depth(q->tile_kv),
                  dim = depth(q->dim), v_dim = flex__pad(q->v_dim, TILE_BF16_ROWS);
    buffers b;
    flex__carver c = {base, 0};
    b.q = flex__carve(&c, n * dim * 2);
    b.k = flex__carve(&c, keys * dim * 2);
    b.v = flex__carve(&c, q->tile_kv * q->v_dim * 2);
    b.queries = flex__carve(&c, n * dim * 2);
    b.values = flex__carve(&c, keys * depth(v_dim) * 2);
    b.high = flex__carve(&c, keys * FLEX__STRIP * 2);
    b.low = flex__carve(&c, keys * FLEX__STRIP * 2);
    b.s = flex__carve(&c, keys * FLEX__STRIP * 4);
    b.o = flex__carve(&c, v_dim * n * 4);
    b.bytes = c.used;
    return b;
}

size_t flex__bf16_bytes(const flex_plan *p) { return carve(p, NULL).bytes; }

/* Rows of a view to dst[n, ld], zeros behind dim and in the rows up to padded. */
static void copy_rows(const walk *w, const flex_view *v, int64_t h, int64_t l, int64_t n,
                      int64_t padded, int64_t dim, bf16 *dst, int64_t ld) {
    for (int64_t i = 0; i < n; i++) {
        memcpy(dst + i * ld, flex__at(v, w->t->b, h, l + i), (size_t)dim * sizeof *dst);
        memset(dst + i * ld + dim, 0, (size_t)(ld - dim) * sizeof *dst);
    }
    memset(dst + n * ld, 0, (size_t)((padded - n) * ld) * sizeof *dst);
}

static void pack_queries(const walk *w) {
    const flex__task *t = w->t;
    for (int64_t g = 0; g < t->heads; g++)
        copy_rows(w, &w->io->q, t->h0 + g, t->start, t->n, t->pad, w->p->p.dim,
                  w->b.q + g * t->pad * w->dim, w->dim);
    w->p->bf16->turn((const void *)w->b.q, w->dim / 2, w->n, w->dim / 2, w->b.queries, w->n);
}

/* Keys k0 .. of a tile as rows of whole tiles; *ld: values from row to row. */
static const bf16 *keys_of(const walk *w, int64_t k0, int64_t nk, int64_t *ld) {
    const flex_view *k = &w->io->k;
    *ld = k->sl;
    if (nk == depth(nk) && w->dim == w->p->p.dim) return flex__at(k, w->t->b, w->t->kv_head, k0);
    copy_rows(w, k, w->t->kv_head, k0, nk, depth(nk), w->p->p.dim, w->b.k, *ld = w->dim);
    return w->b.k;
}

/* Scores and weights of a strip, of the keys from .. to that surround its own. */
static void weights_of(const walk *w, const bf16 *k, int64_t ldk, const flex__strip *c,
                       const uint8_t *mask) {
    const int64_t from = first_key(c), to = depth(c->hi);
    const tile_bf16_mm g = {.m = to - from,
                            .n = c->width,
                            .k = w->dim,
                            .a = k + from * ldk,
                            .lda = ldk,
                            .b = w->b.queries + c->x,
                            .ldb = w->n,
                            .c = w->b.s + from * FLEX__STRIP,
                            .ldc = FLEX__STRIP};
    const tile_bf16_softmax s = {.s = w->b.s,
                                 .ld = FLEX__STRIP,
                                 .cols = c->width,
                                 .lo = c->lo,
                                 .hi = c->hi,
                                 .from = from,
                                 .to = to,
                                 .p_high = w->b.high,
                                 .p_low = w->b.low,
                                 .mask = mask ? mask + c->i : NULL,
                                 .ldm = w->t->pad,
                                 .scale = w->p->p.scale * LOG2_E,
                                 .m = w->out->m + c->x,
                                 .l = w->out->l + c->x,
                                 .corr = w->out->corr + c->x};
    w->p->bf16->mm(&g);
    w->p->bf16->softmax(&s);
}

static void values_times(const walk *w, const flex__strip *c) {
    const int64_t from = first_key(c), to = depth(c->hi);
    const tile_bf16_mm g = {.m = w->v_dim,
                            .n = c->width,
                            .k = to - from,
                            .a = (const bf16 *)(const void *)w->b.values + from,
                            .lda = w->keys,
                            .b = w->b.high + from / 2 * FLEX__STRIP,
                            .b2 = w->b.low + from / 2 * FLEX__STRIP,
                            .ldb = FLEX__STRIP,
                            .c = w->b.o + c->x,
                            .ldc = w->n,
                            .add = 1};
    w->p->bf16->mm(&g);
}

/* The weight of key i and column j of the strip at work. */
static float weight_at(const walk *w, int64_t i, int64_t j) {
    const int up = i & 1 ? 16 : 0;
    const int64_t at = i / 2 * FLEX__STRIP + j;
    return bf16_to_f32((bf16)(w->b.high[at] >> up)) + bf16_to_f32((bf16)(w->b.low[at] >> up));
}

static int row_finite(const bf16 *v, int64_t n) {
    int finite = 1;
    for (int64_t d = 0; d < n; d++) finite &= (v[d] & 0x7f80u) != 0x7f80u;
    return finite;
}

/* Values k0 .. as operands of products, without the rows that are not finite. Returns whether all are. */
static int pack_values(const walk *w, int64_t k0, int64_t nk) {
    const tile_bf16 *ops = w->p->bf16;
    const flex_view *v = &w->io->v;
    const int64_t dim = w->p->p.v_dim, ld = w->keys / 2;
    if (ops->pack_values(flex__at(v, w->t->b, w->t->kv_head, k0), v->sl, nk, dim, w->b.values, ld))
        return 1;
    copy_rows(w, v, w->t->kv_head, k0, nk, nk, dim, w->b.v, dim);
    for (int64_t i = 0; i < nk; i++) {
        if (!row_finite(w->b.v + i * dim, dim))
            memset(w->b.v + i * dim, 0, (size_t)dim * sizeof *w->b.v);
    }
    return ops->pack_values(w->b.v, dim, nk, dim, w->b.values, ld) && 0;
}

/* Adds the rows that were left out to the columns of a strip that see them. */
static void add_left_out(const walk *w, int64_t k0, const flex__strip *c, const uint8_t *mask) {
    const int64_t dim = w->p->p.v_dim;
    for (int64_t i = c->lo; i < c->hi; i++) {
        const bf16 *v = flex__at(&w->io->v, w->t->b, w->t->kv_head, k0 + i);
        if (row_finite(v, dim)) continue;
        for (int64_t j = 0; j < c->width; j++) {
            if (mask && !mask[i * w->t->pad + c->i + j]) continue;
            const float p = weight_at(w, i, j);
            for (int64_t d = 0; d < dim; d++) w->b.o[d * w->n + c->x + j] += p * bf16_to_f32(v[d]);
        }
    }
}

/* One key tile, strip by strip, so that scores and weights stay in the nearest cache. mask: [nk, pad], NULL: full. */
static void one_tile(const walk *w, int64_t k0, int64_t nk, const uint8_t *mask) {
    int64_t ldk;
    const bf16 *k = keys_of(w, k0, nk, &ldk);
    const int finite = pack_values(w, k0, nk);
    flex__strip c;
    for (int64_t x = 0; x < w->n; x += c.width) {
        c = flex__strip_at(w->t, x, nk, mask);
        if (c.lo == c.hi) continue; /* nothing seen: maximum, sum and result stay */
        weights_of(w, k, ldk, &c, mask);
        w->p->bf16->scale_cols(w->b.o + x, w->n, w->v_dim, c.width, w->out->corr + x);
        if (!finite) add_left_out(w, k0, &c, mask);
        values_times(w, &c);
    }
}

/* The sums, turned to rows. A head's padding lands in the next head's rows, which come after it. */
static void rows_of(const walk *w) {
    const flex__task *t = w->t;
    for (int64_t g = 0; g < t->heads; g++)
        w->p->ops->transpose(w->b.o + g * t->pad, w->n, w->p->p.v_dim, t->pad,
                             w->out->o + g * t->n * w->p->p.v_dim, w->p->p.v_dim);
}

void flex__bf16_walk(const flex_plan *p, const flex_io *io, const flex__task *t, int64_t line,
                     const flex__bf16_buffers *b) {
    const block_mask *m = &p->mask;
    const int64_t tile = p->p.tile_kv;
    const walk w = {.p = p,
                    .io = io,
                    .t = t,
                    .out = b,
                    .b = carve(p, b->tiles),
                    .n = t->heads * t->pad,
                    .dim = depth(p->p.dim),
                    .v_dim = flex__pad(p->p.v_dim, TILE_BF16_ROWS),
                    .keys = depth(tile)};
    if (m->row_start[line] == m->row_start[line + 1]) return; /* l stays 0: nothing seen */
    memset(w.b.o, 0, (size_t)(w.v_dim * w.n) * sizeof *w.b.o);
    pack_queries(&w);
    p->bf16->open();
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        for (int64_t k = run->start; k < (int64_t)run->start + run->length; k++) {
            const int64_t k0 = k * tile, nk = flex__min(tile, p->p.kv_len - k0);
            if (!run->full) flex__mask_tile_t(p, t, k0, nk, b->mask, b->mask_t, b->expr, b->left);
            one_tile(&w, k0, nk, run->full ? NULL : b->mask_t);
        }
    }
    p->bf16->close();
    for (int64_t j = 0; j < w.n; j++) b->m[j] *= LN_2; /* maxima were of powers of two */
    rows_of(&w);
}
