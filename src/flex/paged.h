/* Paged decode attention on the CPU: few query rows per sequence against a paged KV cache, exact mode.
 *
 * Keys are visited in splits of PAGED_SPLIT consecutive positions, splits merged left to right, then the extra keys in
 * splits of their own; all sums in a fixed order (written out in paged.c). A row's bits depend on its query and its
 * keys alone: not on the other rows, sequences or threads, nor on the instruction set. Keys that a row does not see are
 * never multiplied for it, so pages may hold anything past what is seen.
 * A page holds PAGED_PAGE tokens of one layer: K [page][token][kv_heads][dim], V likewise, fp32. */
#ifndef FLEX_PAGED_H
#define FLEX_PAGED_H
#include "dev/dev.h"

enum { PAGED_PAGE = 64, PAGED_SPLIT = 256 };

typedef struct paged_seq {
    const int32_t *pages; /* page ids of this sequence in order */
    int64_t n_keys;       /* keys in the pages (positions 0..n_keys-1) */
    int64_t rows;         /* query rows */
    int64_t
        first; /* causal: row i sees keys 0..first+i (first = position of row 0). -1: row i sees all n_keys */
    int64_t window; /* > 0: row i sees keys with (window_pos + i) - kv < window; 0: no window */
    int64_t window_pos;
    const float *q; /* [rows, q_heads, dim] */
    const float *
        extra_k; /* extra keys after the paged ones, seen by every row: [n_extra, kv_heads, dim]; or NULL */
    const float *extra_v;
    int64_t n_extra;
    float *o; /* [rows, q_heads, dim] */
} paged_seq;

typedef struct paged_args {
    int64_t q_heads, kv_heads, dim;
    float scale;
    const float *k_pool; /* page p: k_pool + p * PAGED_PAGE * kv_heads * dim */
    const float *v_pool;
    const paged_seq *seqs;
    int64_t n_seqs;
} paged_args;
MUST_CHECK err paged_attention(dev *d, const paged_args *args);

#endif
