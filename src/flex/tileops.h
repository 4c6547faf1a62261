/* Arithmetic on tiles: the inner loops of attention, one table of functions per instruction set.
 *
 * Every element of a product is one chain acc = acc + a*b in order of k, so its bits do not depend on how the tile
 * is cut or on the other rows. The AVX2, AVX-512 and exact forms use fused multiply-add and give the same bits; the
 * portable form multiplies and adds apart, which is what a CPU without fused instructions does fast.
 * Knows nothing of masks beyond bytes, nor of layouts: callers pack. */
#ifndef FLEX_TILEOPS_H
#define FLEX_TILEOPS_H
#include "core/dtype.h"
#include "dev/dev.h"

enum {
    TILE_PANEL = 64,
    TILE_LANES = 16
}; /* packed operands: panels of 64 columns; widths padded to 16 */

/* C[m, n] = (add ? C : 0) + A B, A(i, k) = a[i*sam + k*sak], B row-major [k, n], n a multiple of 8. */
typedef struct tile_mm {
    int64_t m, n, k;
    const float *a;
    int64_t sam, sak;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    int add;
} tile_mm;

/* Scores of one tile with queries along columns (keys along rows) or along rows. mask: a byte per cell of the same
 * orientation, 0 hidden, or NULL: all visible. Columns are a multiple of 16, the mask's rows padded likewise. */
typedef struct tile_scores {
    float *s;  /* [rows, ld] raw q·k on entry */
    float *dp; /* backward: [rows, ld] dO·v */
    int64_t ld, rows, cols;
    const uint8_t *mask;
    int64_t ldm;
    float scale;
    float *m, *l,
        *corr; /* forward, per column: running maximum and sum, factor for what was summed before */
    const float *lse,
        *delta; /* backward, per query: LSE (+inf for an empty row) and rowsum(dO*O) - dLSE */
} tile_scores;

typedef struct tileops {
    const char *name;
    void (*gemm)(const tile_mm *g);
    /* dst[c*ldd + r] = src[r*ld + c] for r < rows, c < cols (a multiple of 8). */
    void (*transpose)(const float *src, int64_t ld, int64_t rows, int64_t cols, float *dst,
                      int64_t ldd);
    /* s := P = exp(scale*s - m) with the new m, 0 where hidden; m, l, corr updated. Queries along columns. */
    void (*softmax_cols)(const tile_scores *t);
    /* s := dS = scale * P * (dp - delta), 0 where hidden. Queries along columns. */
    void (*grad_cols)(const tile_scores *t);
    /* s := P and dp := dS, 0 where hidden. Queries along rows. */
    void (*grad_rows)(const tile_scores *t);
    /* x[i, 0..n) *= f[i]; rows of factor 1 are left alone. */
    void (*scale_rows)(float *x, int64_t ld, int64_t rows, int64_t n, const float *f);
    /* s[0..n) := exp(scale*s - max), -inf giving 0; the maximum of scale*s and the sum over 16 lanes and a tree. */
    void (*softmax_row)(float *s, int64_t n, float scale, float *max, float *sum);
    /* o := o*a + p*b over n elements. */
    void (*blend)(float *o, const float *p, int64_t n, float a, float b);
    void (*widen)(const bf16 *src, float *dst, int64_t n);
    /* Sum over i of a[i]*b[i], n a multiple of 8. */
    float (*dot)(const float *a, const float *b, int64_t n);
    int (*all_finite)(const float *x, int64_t n);
} tileops;

/* The fastest form for an instruction set. */
const tileops *tileops_get(dev_isa isa);
/* The form whose bits are the same on every CPU: as tileops_get, with fused arithmetic in portable C too. */
const tileops *tileops_get_exact(dev_isa isa);

extern const tileops tileops__avx2, tileops__avx512;

#endif
