/* Random batches for paged attention, and its definition in double for one row and head.
 *
 * Pages are shuffled and everything that no row may see is NaN: the rest of the last page, unused pages, and keys that a
 * causal row or a window hides are only sometimes finite. Header only; the CPU's and the GPU's tests draw from it. */
#ifndef TESTS_FLEX_PAGED_BATCH_H
#define TESTS_FLEX_PAGED_BATCH_H
#include "flex/paged.h"
#include "support/numbers.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAGED_BATCH_SEQS = 8 };

typedef struct paged_batch {
    paged_args a;
    paged_seq seq[PAGED_BATCH_SEQS];
    void *block[PAGED_BATCH_SEQS * 5 + 2];
    int n_blocks;
} paged_batch;

static inline void *paged_batch_keep(paged_batch *b, void *p) {
    return b->block[b->n_blocks++] = p;
}

/* Row r of sequence q sees paged keys *lo .. *hi-1. */
static inline void paged_batch_visible(const paged_seq *q, int64_t r, int64_t *lo, int64_t *hi) {
    *lo = q->window > 0 ? q->window_pos + r - q->window + 1 : 0;
    if (*lo < 0) *lo = 0;
    *hi = q->first >= 0 && q->first + r + 1 < q->n_keys ? q->first + r + 1 : q->n_keys;
}

static inline void paged_batch_draw_sequence(paged_batch *b, int i, uint64_t s, int64_t longest) {
    static const int64_t widths[] = {1, 1, 2, 5, 8, 16, 17};
    paged_seq *q = &b->seq[i];
    const paged_args *a = &b->a;
    uint64_t at = (uint64_t)i * 16;
    q->rows = widths[numbers_below(s, 40, at, 7)];
    q->n_keys = numbers_below(s, 41, at, longest);
    q->first = -1;
    if (numbers_below(s, 42, at,
                      2)) { /* the rows are the last positions, sometimes not all of them */
        q->first = q->n_keys - q->rows - numbers_below(s, 43, at, 2);
        if (q->first < 0) q->first = 0;
    }
    if (numbers_below(s, 44, at, 3) == 0) {
        q->window = 1 + numbers_below(s, 45, at, 300);
        q->window_pos = q->first >= 0 ? q->first : q->n_keys;
    }
    if (numbers_below(s, 46, at, 3) == 0)
        q->n_extra = 1 + numbers_below(s, 47, at, numbers_below(s, 48, at, 5) ? 17 : 300);
    int64_t row = a->kv_heads * a->dim;
    q->q = paged_batch_keep(b, numbers_new(q->rows * a->q_heads * a->dim, s, 50 + at, 1.0f));
    q->extra_k = paged_batch_keep(b, numbers_new(q->n_extra * row, s, 51 + at, 1.0f));
    q->extra_v = paged_batch_keep(b, numbers_new(q->n_extra * row, s, 52 + at, 1.0f));
    q->o = paged_batch_keep(b, numbers_poisoned(q->rows * a->q_heads * a->dim));
}

/* Gives each sequence shuffled pages and fills what is written of them; keys that no row sees stay NaN half the time. */
static inline void paged_batch_fill_pages(paged_batch *b, uint64_t s) {
    paged_args *a = &b->a;
    int64_t need = 0, row = a->kv_heads * a->dim, used = 0;
    for (int64_t i = 0; i < a->n_seqs; i++) need += b->seq[i].n_keys / PAGED_PAGE + 1;
    int64_t *order = malloc((size_t)(need + 3) * sizeof *order);
    rng_permutation(s, RNG_TEST, 60, need + 3, order);
    float *k = paged_batch_keep(b, numbers_poisoned((need + 3) * PAGED_PAGE * row)),
          *v = paged_batch_keep(b, numbers_poisoned((need + 3) * PAGED_PAGE * row));
    int show_hidden = (int)numbers_below(s, 61, 0, 2);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        paged_seq *q = &b->seq[i];
        int32_t *pages =
            paged_batch_keep(b, malloc((size_t)(q->n_keys / PAGED_PAGE + 1) * sizeof *pages));
        for (int64_t p = 0; p <= q->n_keys / PAGED_PAGE; p++) pages[p] = (int32_t)order[used++];
        q->pages = pages;
        for (int64_t j = 0; j < q->n_keys; j++) {
            int seen = show_hidden;
            for (int64_t r = 0; r < q->rows && !seen; r++) {
                int64_t lo, hi;
                paged_batch_visible(q, r, &lo, &hi);
                seen = j >= lo && j < hi;
            }
            int64_t at = ((int64_t)pages[j / PAGED_PAGE] * PAGED_PAGE + j % PAGED_PAGE) * row;
            if (!seen) continue;
            numbers_fill(k + at, row, s, 1000 + (uint64_t)(i * 100000 + j), 1.0f);
            numbers_fill(v + at, row, s, 1001 + (uint64_t)(i * 100000 + j) + (1u << 30), 1.0f);
        }
    }
    free(order);
    a->k_pool = k, a->v_pool = v;
}

static inline void paged_batch_draw(paged_batch *b, uint64_t s, int64_t longest) {
    static const int64_t heads[][2] = {{1, 1}, {3, 1}, {9, 3}, {8, 2}, {4, 4}, {71, 1}};
    static const int64_t dims[] = {8, 24, 64, 128, 136, 256};
    memset(b, 0, sizeof *b);
    const int64_t *h = heads[numbers_below(s, 62, 0, 6)];
    b->a = (paged_args){
        .q_heads = h[0], .kv_heads = h[1], .dim = dims[numbers_below(s, 63, 0, 6)], .seqs = b->seq};
    b->a.scale = (float)(1 / sqrt((double)b->a.dim));
    b->a.n_seqs = 1 + numbers_below(s, 64, 0, PAGED_BATCH_SEQS);
    for (int i = 0; i < b->a.n_seqs; i++) paged_batch_draw_sequence(b, i, s, longest);
    paged_batch_fill_pages(b, s);
}
static inline void paged_batch_drop(paged_batch *b) {
    for (int i = 0; i < b->n_blocks; i++) free(b->block[i]);
}

/* One row and head in double; w: room for all keys. */
static inline void paged_batch_define(const paged_args *a, const paged_seq *q, int64_t r, int64_t h,
                                      double *w, double *o) {
    int64_t kvh = h / (a->q_heads / a->kv_heads), row = a->kv_heads * a->dim, lo, hi,
            n = q->n_keys + q->n_extra;
    const float *x = q->q + (r * a->q_heads + h) * a->dim;
    double top = -INFINITY, sum = 0;
    paged_batch_visible(q, r, &lo, &hi);
    for (int64_t d = 0; d < a->dim; d++) o[d] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = 0; j < n; j++) {
            if (j < q->n_keys && (j < lo || j >= hi)) continue;
            int64_t at =
                j < q->n_keys
                    ? ((int64_t)q->pages[j / PAGED_PAGE] * PAGED_PAGE + j % PAGED_PAGE) * row
                    : (j - q->n_keys) * row;
            const float *k = (j < q->n_keys ? a->k_pool : q->extra_k) + at + kvh * a->dim;
            const float *v = (j < q->n_keys ? a->v_pool : q->extra_v) + at + kvh * a->dim;
            if (pass == 0) {
                w[j] = 0;
                for (int64_t d = 0; d < a->dim; d++) w[j] += (double)x[d] * (double)k[d];
                w[j] *= (double)a->scale;
                if (w[j] > top) top = w[j];
            } else {
                double p = exp(w[j] - top);
                sum += p;
                for (int64_t d = 0; d < a->dim; d++) o[d] += p * (double)v[d];
            }
        }
    }
    for (int64_t d = 0; sum > 0 && d < a->dim; d++) o[d] /= sum;
}

#endif
