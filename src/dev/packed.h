/* Packed weights: the one matrix format of frozen models and of decoding.
 *
 * A weight W [n, k] (n outputs) is stored as panels of 16 outputs: panel p holds, for each kk in 0..k-1, the
 * 16 values W[16p .. 16p+15][kk] side by side (zeros past n). bf16 for targets and exported drafters,
 * fp32 for drafters kept in F32. The same storage serves one row (streamed at memory speed) and
 * thousands (register-blocked), and gives embedding rows back (packed_row).
 *
 * y[r][o] = sum over kk of x[r][kk] * W[o][kk] is computed as: for each k-chunk of PACKED_CHUNK elements,
 * acc = fma(x, w, acc) in order of kk from 0; y = y + acc in order of chunks. So the bits of a row depend on that
 * row and W alone: not on the other rows, their number, the thread count, or the instruction set
 * (portable, AVX2 and AVX-512 forms give the same bits). That is what makes greedy speculative text
 * equal plain text. Definition: packed_matmul_ref in packed.c. */
#ifndef DEV_PACKED_H
#define DEV_PACKED_H
#include "core/arena.h"
#include "core/dtype.h"
#include "dev/dev.h"

enum { PACKED_PANEL = 16, PACKED_CHUNK = 256 };

typedef struct packed {
    dtype type;   /* DT_BF16 or DT_F32 */
    int64_t n, k; /* outputs, inputs */
    void *data;   /* [ceil(n/16)][k][16] of type, in the arena it was made in */
} packed;

size_t packed_bytes(dtype type, int64_t n, int64_t k);
MUST_CHECK err packed_alloc(packed *out, arena *a, dtype type, int64_t n, int64_t k); /* zeros */
/* Rows row0..row0+rows-1 of W from fp32 [rows, k]; bf16 storage rounds to nearest even. */
void packed_set_rows(packed *w, int64_t row0, int64_t rows, const float *src, int64_t ld);
/* W[row] as fp32 [k]. */
void packed_row(const packed *w, int64_t row, float *dst);
/* W[row0..row0+rows) as fp32 [rows, k], for gemm tiles. */
void packed_rows(const packed *w, int64_t row0, int64_t rows, float *dst, int64_t ld);
/* y[m, ldy] = x[m, ldx] W^T. Every row's bits as defined above. m >= 0. */
MUST_CHECK err packed_matmul(dev *d, const packed *w, const float *x, int64_t ldx, int64_t m,
                             float *y, int64_t ldy);
/* The same for outputs n0..n1-1 only (n0 a multiple of 16), y[m][0..n1-n0): vocabulary tiles of the head. */
MUST_CHECK err packed_matmul_part(dev *d, const packed *w, int64_t n0, int64_t n1, const float *x,
                                  int64_t ldx, int64_t m, float *y, int64_t ldy);
/* One thread, plain loops: the definition. */
void packed_matmul_ref(const packed *w, const float *x, int64_t ldx, int64_t m, float *y,
                       int64_t ldy);

#endif
