/* Forward's walk over key tiles in bf16: as in flex_forward.c, with products of a matrix unit and without a score expression.
 *
 * S^T[key, query] = K Q^T reads keys as they lie where they are whole tiles, else a copy with zeros around; queries are words of
 * pairs, packed once per task. O^T[dv, query] += V^T P keeps sums transposed, so that the softmax's factors are one vector along a
 * row; values are turned once per tile for all heads. A thread keeps its last turned values and mask tiles for the tasks that it
 * takes next: neighbours see the same keys, heads the same mask, and tiles of a mask of q - kv alone are copies of each other.
 * Values that are not finite are taken out of products, in full tiles too: a weight is a sum of two parts, and infinity times
 * those is no number. LSE and the sums' last factors are forward's. */
#include "flex/flex_private.h"
#include <string.h>

/* What a thread keeps: values in a slot by their place, the last masks in turn. The tag says whose a slot is; nk 0: nothing yet. */
enum { MASK_SLOTS = 8, VALUE_SLOTS = 16, MASK_BYTES = 64 << 10, VALUE_BYTES = 128 << 10 };
typedef struct mask_tag {
    int64_t b, h, q, k, n, nk; /* q 0 and k the distance to q where that decides all */
} mask_tag;
typedef struct mask_tags {
    mask_tag of[MASK_SLOTS];
    int64_t next; /* slot to be given away */
} mask_tags;
typedef struct value_tag {
    int64_t b, kv_head, k0, nk;
    int finite;
} value_tag;
/* The keys that a strip's queries see: none where lo = hi. */
typedef struct span {
    int32_t lo, hi;
} span;

/* One thread's buffers; N columns, lengths padded to whole tiles: Dp, Ep (of v), Kp keys. */
typedef struct buffers {
    bf16 *q, *k,
        *v; /* [tile_q padded, Dp], [Kp, Dp], [tile_kv, Dv]: what cannot be read in place */
    uint32_t *queries; /* [Dp/2, N] words */
    uint32_t *values;  /* [slots, Ep, Kp/2] words */
    uint8_t *masks;    /* [slots, tile_kv, tile_q padded] */
    span *spans;       /* [slots, strips] */
    mask_tags *mask_tags;
    value_tag *value_tag; /* [slots] */
    uint32_t *high, *low; /* [Kp/2, 32] weights of a strip */
    float *s, *o;         /* [Kp, 32] of a strip, [Ep, N] */
    int64_t mask_slots, value_slots, mask_size, strips, value_size; /* sizes of one slot */
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
static int64_t slots(int64_t most, int64_t bytes, int64_t size) {
    return bytes / size < 1 ? 1 : flex__min(most, bytes / size);
}

#define LOG2_E 1.44269504088896341f
#define LN_2   0.693147180559945309f

static buffers carve(const flex_plan *p, char *base) {
    const flex_problem *q = &p->p;
    const int64_t pad = flex__pad(q->tile_q, TILE_LANES), n = p->share * pad,
                  keys = depth(q->tile_kv), dim = depth(q->dim),
                  v_dim = flex__pad(q->v_dim, TILE_BF16_ROWS);
    buffers b;
    b.mask_size = q->tile_kv * pad;
    b.value_size = keys / 2 * depth(v_dim);
    b.strips = (pad + FLEX__STRIP - 1) / FLEX__STRIP;
    b.mask_slots = slots(MASK_SLOTS, MASK_BYTES, b.mask_size);
    b.value_slots = slots(VALUE_SLOTS, VALUE_BYTES, b.value_size * 4);
    flex__carver c = {base, 0};
    b.q = flex__carve(&c, pad * dim * 2);
    b.k = flex__carve(&c, keys * dim * 2);
    b.v = flex__carve(&c, q->tile_kv * q->v_dim * 2);
    b.queries = flex__carve(&c, n * dim * 2);
    b.values = flex__carve(&c, b.value_slots * b.value_size * 4);
    b.masks = flex__carve(&c, b.mask_slots * b.mask_size);
    b.spans = flex__carve(&c, b.mask_slots * b.strips * (int64_t)sizeof *b.spans);
    b.mask_tags = flex__carve(&c, (int64_t)sizeof *b.mask_tags);
    b.value_tag = flex__carve(&c, VALUE_SLOTS * (int64_t)sizeof *b.value_tag);
    b.high = flex__carve(&c, keys * FLEX__STRIP * 2);
    b.low = flex__carve(&c, keys * FLEX__STRIP * 2);
    b.s = flex__carve(&c, keys * FLEX__STRIP * 4);
    b.o = flex__carve(&c, v_dim * n * 4);
    b.bytes = c.used;
    return b;
}

size_t flex__bf16_bytes(const flex_plan *p) { return carve(p, NULL).bytes; }

void flex__bf16_begin(const flex_plan *p, void *tiles) {
    const buffers b = carve(p, tiles);
    memset(b.mask_tags, 0, sizeof *b.mask_tags);
    memset(b.value_tag, 0, VALUE_SLOTS * sizeof *b.value_tag);
}

/* Rows of a view to dst[n, ld], zeros behind dim and in the rows up to padded. */
static void copy_rows(const walk *w, const flex_view *v, int64_t h, int64_t l, int64_t n,
                      int64_t padded, int64_t dim, bf16 *dst, int64_t ld) {
    for (int64_t i = 0; i < n; i++) {
        memcpy(dst + i * ld, flex__at(v, w->t->b, h, l + i), (size_t)dim * sizeof *dst);
        memset(dst + i * ld + dim, 0, (size_t)(ld - dim) * sizeof *dst);
    }
    memset(dst + n * ld, 0, (size_t)((padded - n) * ld) * sizeof *dst);
}

/* Whether rows can be read as they lie, as words of two values: whole tiles, at even places. */
static int in_words(const walk *w, const flex_view *v, const void *row) {
    return w->t->n == w->t->pad && w->dim == w->p->p.dim && v->sl % 2 == 0 &&
           (uintptr_t)row % sizeof(uint32_t) == 0;
}

static void pack_queries(const walk *w) {
    const flex__task *t = w->t;
    const flex_view *v = &w->io->q;
    for (int64_t g = 0; g < t->heads; g++) {
        const void *row = flex__at(v, t->b, t->h0 + g, t->start);
        const int there = in_words(w, v, row);
        if (!there) copy_rows(w, v, t->h0 + g, t->start, t->n, t->pad, w->p->p.dim, w->b.q, w->dim);
        w->p->bf16->turn(there ? row : w->b.q, (there ? v->sl : w->dim) / 2, t->pad, w->dim / 2,
                         w->b.queries + g * t->pad, w->n);
    }
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

static void values_times(const walk *w, const uint32_t *values, const flex__strip *c) {
    const int64_t from = first_key(c), to = depth(c->hi);
    const tile_bf16_mm g = {.m = w->v_dim,
                            .n = c->width,
                            .k = to - from,
                            .a = (const bf16 *)(const void *)values + from,
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

/* Turns values k0 .. without the rows that are not finite. Returns whether all are. */
static int turn_values(const walk *w, int64_t k0, int64_t nk, uint32_t *dst) {
    const tile_bf16 *ops = w->p->bf16;
    const flex_view *v = &w->io->v;
    const int64_t dim = w->p->p.v_dim, ld = w->keys / 2;
    if (ops->pack_values(flex__at(v, w->t->b, w->t->kv_head, k0), v->sl, nk, dim, dst, ld))
        return 1;
    copy_rows(w, v, w->t->kv_head, k0, nk, nk, dim, w->b.v, dim);
    for (int64_t i = 0; i < nk; i++) {
        if (!row_finite(w->b.v + i * dim, dim))
            memset(w->b.v + i * dim, 0, (size_t)dim * sizeof *w->b.v);
    }
    return ops->pack_values(w->b.v, dim, nk, dim, dst, ld) && 0;
}

/* Values k0 .. as operands of products, kept from an earlier tile or turned now. */
static const uint32_t *values_of(const walk *w, int64_t k0, int64_t nk, int *finite) {
    const int64_t slot = k0 / w->p->p.tile_kv % w->b.value_slots;
    uint32_t *values = w->b.values + slot * w->b.value_size;
    value_tag *tag = &w->b.value_tag[slot];
    if (tag->nk != nk || tag->k0 != k0 || tag->b != w->t->b || tag->kv_head != w->t->kv_head) {
        *tag = (value_tag){w->t->b, w->t->kv_head, k0, nk, 0};
        tag->finite = turn_values(w, k0, nk, values);
    }
    *finite = tag->finite;
    return values;
}

/* A tile is known by its distance from the diagonal where the mask is a matter of that alone and no load can leave an array, which
 * would be told by cell. */
static mask_tag tag_of(const walk *w, int64_t k0, int64_t nk) {
    const flex__task *t = w->t;
    const block_mask *m = &w->p->mask;
    const int near = m->proofs.diagonal && !m->may_leave;
    return (mask_tag){.b = m->batch == 1 ? 0 : t->b,
                      .h = m->heads == 1 ? 0 : t->h0,
                      .q = near ? 0 : t->start,
                      .k = near ? k0 - t->start : k0,
                      .n = t->n,
                      .nk = nk};
}

/* Mask bytes [nk, pad] of keys k0 .., kept or made now, with the keys that strips see. */
static const uint8_t *mask_of(const walk *w, int64_t k0, int64_t nk, const span **spans) {
    const flex__task *t = w->t;
    mask_tags *tags = w->b.mask_tags;
    const mask_tag want = tag_of(w, k0, nk);
    int64_t slot = 0;
    while (slot < w->b.mask_slots && memcmp(&tags->of[slot], &want, sizeof want)) slot++;
    const int kept = slot < w->b.mask_slots;
    if (!kept) tags->of[slot = tags->next++ % w->b.mask_slots] = want;
    uint8_t *mask = w->b.masks + slot * w->b.mask_size;
    span *seen = w->b.spans + slot * w->b.strips;
    *spans = seen;
    if (kept) return mask;
    flex__mask_tile_t(w->p, t, k0, nk, w->out->mask, mask, w->out->expr, w->out->left);
    for (int64_t i = 0; i < t->pad; i += FLEX__STRIP) {
        const flex__strip c = flex__strip_at(t, i, nk, mask);
        seen[i / FLEX__STRIP] = (span){(int32_t)c.lo, (int32_t)c.hi};
    }
    return mask;
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

/* One key tile, strip by strip, so that scores and weights stay in the nearest cache. */
static void one_tile(const walk *w, int64_t k0, int64_t nk, int full) {
    const flex__task *t = w->t;
    int64_t ldk;
    int finite;
    const span all = {0, (int32_t)nk}, *spans = NULL;
    const uint8_t *mask = full ? NULL : mask_of(w, k0, nk, &spans);
    const bf16 *k = keys_of(w, k0, nk, &ldk);
    const uint32_t *values = values_of(w, k0, nk, &finite);
    for (int64_t g = 0; g < t->heads; g++) {
        for (int64_t i = 0; i < t->pad; i += FLEX__STRIP) {
            const span s = full ? all : spans[i / FLEX__STRIP];
            const flex__strip c = {
                g * t->pad + i, flex__min(FLEX__STRIP, t->pad - i), g, i, s.lo, s.hi};
            if (c.lo == c.hi) continue; /* nothing seen: maximum, sum and result stay */
            weights_of(w, k, ldk, &c, mask);
            w->p->bf16->scale_cols(w->b.o + c.x, w->n, w->v_dim, c.width, w->out->corr + c.x);
            if (!finite) add_left_out(w, k0, &c, mask);
            values_times(w, values, &c);
        }
    }
}

static walk walk_of(const flex_plan *p, const flex_io *io, const flex__task *t,
                    const flex__bf16_buffers *b) {
    return (walk){.p = p,
                  .io = io,
                  .t = t,
                  .out = b,
                  .b = carve(p, b->tiles),
                  .n = t->heads * t->pad,
                  .dim = depth(p->p.dim),
                  .v_dim = flex__pad(p->p.v_dim, TILE_BF16_ROWS),
                  .keys = depth(p->p.tile_kv)};
}

void flex__bf16_walk(const flex_plan *p, const flex_io *io, const flex__task *t, int64_t line,
                     const flex__bf16_buffers *b) {
    const block_mask *m = &p->mask;
    const int64_t tile = p->p.tile_kv;
    const walk w = walk_of(p, io, t, b);
    memset(w.b.o, 0, (size_t)(w.v_dim * w.n) * sizeof *w.b.o);
    if (m->row_start[line] == m->row_start[line + 1]) return; /* l stays 0: nothing seen */
    pack_queries(&w);
    p->bf16->open();
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        for (int64_t k = run->start; k < (int64_t)run->start + run->length; k++) {
            const int64_t k0 = k * tile, nk = flex__min(tile, p->p.kv_len - k0);
            one_tile(&w, k0, nk, run->full);
        }
    }
    p->bf16->close();
    for (int64_t j = 0; j < w.n; j++) b->m[j] *= LN_2; /* maxima were of powers of two */
}

void flex__bf16_write(const flex_plan *p, const flex_io *io, const flex__task *t,
                      const flex__bf16_buffers *b) {
    const walk w = walk_of(p, io, t, b);
    p->bf16->scale_cols(w.b.o, w.n, p->p.v_dim, w.n, b->corr);
    for (int64_t g = 0; g < t->heads; g++)
        p->ops->transpose(w.b.o + g * t->pad, w.n, p->p.v_dim, t->n,
                          flex__out_at(&io->o, t->b, t->h0 + g, t->start), io->o.sl);
}
