/* Helpers of both directions: rows in and out of strided views, packing, mask bytes, and products over cells that a
 * mask hides one by one.
 *
 * A product over hidden cells has factor 0 there, and 0 times NaN is NaN; so rows that are not finite are taken out
 * of it and added to the cells that see them alone. Finite rows need nothing: adding 0 changes no bit. */
#include "flex/flex_private.h"
#include <string.h>

const float *flex__rows(const tileops *ops, const flex_view *v, int64_t b, int64_t h, int64_t l,
                        int64_t n, int64_t dim, float *buf, int apart) {
    if (v->type == DT_F32 && v->sl == dim && !apart) return flex__at(v, b, h, l);
    for (int64_t i = 0; i < n; i++) {
        const void *row = flex__at(v, b, h, l + i);
        if (v->type == DT_F32)
            memcpy(buf + i * dim, row, (size_t)dim * sizeof(float));
        else
            ops->widen(row, buf + i * dim, dim);
    }
    return buf;
}

void flex__panels(const tileops *ops, const float *rows, int64_t n, int64_t pad, int64_t dim,
                  float *dst) {
    for (int64_t c = 0; c < pad; c += TILE_PANEL) {
        int64_t w = flex__min(TILE_PANEL, pad - c), real = n - c < w ? (n > c ? n - c : 0) : w;
        float *panel = dst + c * dim; /* [dim, w] */
        for (int64_t d = 0; real < w && d < dim; d++)
            memset(panel + d * w + real, 0, (size_t)(w - real) * sizeof(float));
        if (real > 0) ops->transpose(rows + c * dim, dim, real, dim, panel, w);
    }
}

void flex__times_panels(const tileops *ops, const float *a, int64_t m, int64_t k,
                        const float *panels, int64_t pad, float *s, int64_t ld) {
    for (int64_t c = 0; c < pad; c += TILE_PANEL) {
        int64_t w = flex__min(TILE_PANEL, pad - c);
        const tile_mm g = {.m = m,
                           .n = w,
                           .k = k,
                           .a = a,
                           .sam = k,
                           .sak = 1,
                           .b = panels + c * k,
                           .ldb = w,
                           .c = s + c,
                           .ldc = ld};
        ops->gemm(&g);
    }
}

/* Finds the first cell of a tile whose evaluation leaves an array. */
static void report_left(const flex_plan *p, int64_t b, int64_t h, int64_t q0, int64_t nq,
                        int64_t k0, int64_t nk, flex__left *left) {
    for (int64_t i = 0; i < nq; i++) {
        for (int64_t j = 0; j < nk; j++) {
            int flag = 0;
            (void)expr_eval_mask(p->p.mask, p->p.env, b, h, q0 + i, k0 + j, &flag);
            if (!flag) continue;
            flex__report(left, (const int64_t[4]){b, h, q0 + i, k0 + j}, 0.0f, 0.0f);
            return;
        }
    }
}

void flex__mask_tile(const flex_plan *p, int64_t b, int64_t h, int64_t q0, int64_t nq, int64_t k0,
                     int64_t nk, uint8_t *out, int64_t ld, void *scratch, flex__left *left) {
    int flag = 0;
    if (nk < ld) memset(out, 0, (size_t)(nq * ld));
    if (p->mask.batch == 1) b = 0;
    if (p->mask.heads == 1) h = 0;
    expr_tile_mask(p->p.mask, p->p.env, b, h, q0, nq, k0, nk, out, ld, scratch, &flag);
    if (flag) report_left(p, b, h, q0, nq, k0, nk, left);
}

static inline __attribute__((always_inline)) void exchange(uint64_t w[8], const int d,
                                                           const uint64_t low) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (i & d) continue;
        const uint64_t a = w[i], b = w[i + d];
        w[i] = (a & low) | (b & low) << (8 * d);
        w[i + d] = (a >> (8 * d) & low) | (b & ~low);
    }
}

/* out[j, i] = in[i, j], by blocks of 8 x 8: eight words of eight bytes are exchanged in halves, quarters and eighths. */
static void transpose_8x8(const uint8_t *in, int64_t ld, uint8_t *out, int64_t ldo) {
    uint64_t w[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) memcpy(&w[i], in + i * ld, 8);
    exchange(w, 4, 0x00000000ffffffffu);
    exchange(w, 2, 0x0000ffff0000ffffu);
    exchange(w, 1, 0x00ff00ff00ff00ffu);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) memcpy(out + i * ldo, &w[i], 8);
}

static void transpose_bytes(const uint8_t *in, int64_t ld, int64_t rows, int64_t cols, uint8_t *out,
                            int64_t ldo) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) {
        int64_t j = 0;
        for (; j + 8 <= cols; j += 8) transpose_8x8(in + i * ld + j, ld, out + j * ldo + i, ldo);
        for (; j < cols; j++)
            for (int64_t r = i; r < i + 8; r++) out[j * ldo + r] = in[r * ld + j];
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) out[j * ldo + i] = in[i * ld + j];
}

void flex__mask_tile_t(const flex_plan *p, const flex__task *t, int64_t k0, int64_t nk,
                       uint8_t *out, uint8_t *out_t, void *scratch, flex__left *left) {
    flex__mask_tile(p, t->b, t->h0, t->start, t->n, k0, nk, out, nk, scratch, left);
    if (t->n < t->pad) memset(out_t, 0, (size_t)(nk * t->pad));
    transpose_bytes(out, nk, t->n, nk, out_t, t->pad);
}

/* Whether any of width (16 or 32) mask bytes is set. */
static inline int any_set(const uint8_t *m, int64_t width) {
    uint64_t w[4] = {0};
    memcpy(w, m, (size_t)width);
    return (w[0] | w[1] | w[2] | w[3]) != 0;
}

flex__strip flex__strip_at(const flex__task *t, int64_t x, int64_t nk, const uint8_t *mask) {
    flex__strip s = {.x = x, .g = x / t->pad, .i = x % t->pad, .hi = nk};
    s.width = flex__min(FLEX__STRIP - x % FLEX__STRIP, t->pad - s.i);
    if (!mask) return s;
    while (s.lo < nk && !any_set(mask + s.lo * t->pad + s.i, s.width)) s.lo++;
    while (s.hi > s.lo && !any_set(mask + (s.hi - 1) * t->pad + s.i, s.width)) s.hi--;
    return s;
}

void flex__strip_times_panels(const tileops *ops, const flex__strip *c, const float *a, int64_t k,
                              const float *panels, int64_t pad, float *s) {
    const int64_t panel = c->x / TILE_PANEL * TILE_PANEL;
    const tile_mm g = {.m = c->hi - c->lo,
                       .n = c->width,
                       .k = k,
                       .a = a + c->lo * k,
                       .sam = k,
                       .sak = 1,
                       .b = panels + panel * k + (c->x - panel),
                       .ldb = flex__min(TILE_PANEL, pad - panel),
                       .c = s + c->lo * pad + c->x,
                       .ldc = pad};
    if (g.m > 0) ops->gemm(&g);
}

void flex__strip_into(const tileops *ops, const flex__strip *c, const float *s, int64_t cols,
                      const float *b, int64_t n, int64_t rows, float *to) {
    const tile_mm g = {.m = flex__min(c->width, rows - c->i),
                       .n = n,
                       .k = c->hi - c->lo,
                       .a = s + c->lo * cols + c->x,
                       .sam = 1,
                       .sak = cols,
                       .b = b + c->lo * n,
                       .ldb = n,
                       .c = to + (c->g * rows + c->i) * n,
                       .ldc = n,
                       .add = 1};
    if (g.m > 0 && g.k > 0) ops->gemm(&g);
}

void flex__pack_queries(const flex_plan *p, const flex_view *v, const flex__task *t, int64_t dim,
                        float *rows, float *panels) {
    for (int64_t g = 0; g < t->heads; g++) {
        float *dst = rows + g * t->pad * dim;
        (void)flex__rows(p->ops, v, t->b, t->h0 + g, t->start, t->n, dim, dst, 1);
        memset(dst + t->n * dim, 0, (size_t)((t->pad - t->n) * dim) * sizeof(float));
    }
    flex__panels(p->ops, rows, t->heads * t->pad, t->heads * t->pad, dim, panels);
}

void flex__tell_left(const flex__left *left, flex_io *io) {
    if (!left->found) return;
    if (io->left) *io->left = 1;
    memcpy(io->left_cell, left->cell, sizeof left->cell);
}

/* Takes row k of B out of the product: adds it where it is seen, then makes it zero. */
static void take_out(const flex__masked_mm *g, int64_t k) {
    float *row = g->b + k * g->n;
    for (int64_t h = 0; h < g->heads; h++) {
        for (int64_t i = 0; i < g->m; i++) {
            if (!g->mask[i + k * g->sk]) continue;
            float a = g->a[h * g->a_head + i + k * g->sak], *c = g->c + h * g->c_head + i * g->n;
            for (int64_t d = 0; d < g->n; d++) c[d] += a * row[d];
        }
    }
    memset(row, 0, (size_t)g->n * sizeof(float));
}

void flex__take_out(const tileops *ops, const flex__masked_mm *g) {
    for (int64_t k = 0; g->mask && k < g->k; k++) {
        if (!ops->all_finite(g->b + k * g->n, g->n)) take_out(g, k);
    }
}
