/* Attention's forward arithmetic on tiles of bf16: products of pairs with fp32 sums, as matrix units do them.
 *
 * Operands are 16 x 16 words of two bf16 (32 values deep) and everything is padded to that, so no product has an edge. A weight
 * of the softmax goes into a product as a sum of two bf16, high + low, which keeps 16 of its bits: results are as near as those of
 * the fp32 forms. Each column of a product depends on its own column of B alone, each row on its own row of A.
 * Subnormal inputs and sums count as 0, as the hardware has it. Knows nothing of attention beyond one tile. */
#ifndef FLEX_TILE_BF16_H
#define FLEX_TILE_BF16_H
#include "core/dtype.h"
#include "dev/dev.h"

enum { TILE_BF16_ROWS = 16, TILE_BF16_DEPTH = 32 };

/* C[m, n] = (add ? C : 0) + A B (+ A B2). m, n multiples of 16, k of 32. A: rows of bf16, lda values apart. B: words
 * [k/2, ldb], a word holding the values of rows 2i (low half) and 2i+1. b2 NULL: one product. */
typedef struct tile_bf16_mm {
    int64_t m, n, k;
    const bf16 *a;
    int64_t lda;
    const uint32_t *b, *b2;
    int64_t ldb;
    float *c;
    int64_t ldc;
    int add;
} tile_bf16_mm;

/* Columns of scores become weights 2^(scale*s - m), written as words of two keys, [keys/2, ld]: 0 for keys outside lo..hi and
 * for hidden ones. m, l, corr as in tile_scores; sums are of the weights in fp32. cols: a multiple of 16. */
typedef struct tile_bf16_softmax {
    const float *s; /* [keys, ld] raw q·k */
    int64_t ld, cols;
    int64_t lo, hi;           /* keys that take part */
    int64_t from, to;         /* keys whose words are written: even, around lo..hi */
    uint32_t *p_high, *p_low; /* [keys/2, ld] */
    const uint8_t *mask;      /* [keys, ldm]; NULL: all visible */
    int64_t ldm;
    float scale;
    float *m, *l, *corr; /* [cols] */
} tile_bf16_softmax;

typedef struct tile_bf16 {
    const char *name;
    /* Around the products of a thread: takes and gives back its matrix unit. */
    void (*open)(void);
    void (*close)(void);
    void (*mm)(const tile_bf16_mm *g);
    void (*softmax)(const tile_bf16_softmax *t);
    /* x[i, j] *= f[j] over [rows, cols], cols a multiple of 16; blocks of 16 factors 1 are left alone. */
    void (*scale_cols)(float *x, int64_t ld, int64_t rows, int64_t cols, const float *f);
    /* dst[c*ldd + r] = src[r*ld + c] for words; rows, cols multiples of 16. */
    void (*turn)(const uint32_t *src, int64_t ld, int64_t rows, int64_t cols, uint32_t *dst,
                 int64_t ldd);
    /* Rows v[n, dim], ld values apart, turned: dst[d*ldd + i] is the word of rows 2i and 2i+1 at d; zeros up to multiples of 32
     * rows and columns. Returns whether every value is finite. */
    int (*pack_values)(const bf16 *v, int64_t ld, int64_t n, int64_t dim, uint32_t *dst,
                       int64_t ldd);
} tile_bf16;

/* The form for a device's matrix unit or dot products of bf16, NULL where it has none that may be used. */
const tile_bf16 *tile_bf16_get(const dev *d);
/* The same arithmetic in plain C, with the orders of sums that the manual states: what the others are compared with. */
const tile_bf16 *tile_bf16_plain(void);       /* of tiles, as AMX */
const tile_bf16 *tile_bf16_plain_pairs(void); /* of pairs of values, as AVX512-BF16 */

extern const tile_bf16 tile_bf16__amx, tile_bf16__avx512bf16;

#define BLOCK_ALWAYS static inline __attribute__((always_inline))

#endif
