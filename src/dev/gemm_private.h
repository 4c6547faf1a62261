/* The plain C matrix product's inner kernels: one per instruction set, all with the same bits.
 *
 * A kernel multiplies a packed strip of op(A), [kc][rows] with `rows` values side by side, with a packed strip of
 * op(B), [kc][cols], adding in order of kc with fused multiply-adds, and updates a corner of C:
 * C = beta * C + alpha * sum, each step rounded. beta 0 does not read C. Not for other folders. */
#ifndef DEV_GEMM_PRIVATE_H
#define DEV_GEMM_PRIVATE_H
#include "dev/gemm.h"

typedef struct gemm__block {
    int kc;
    const float *a; /* [kc][kernel rows], zeros past m */
    const float *b; /* [kc][kernel cols], zeros past n */
    float alpha, beta;
    float *c; /* [m][ldc] */
    int64_t ldc;
    int m, n; /* what is written: at most the kernel's rows and cols */
} gemm__block;

typedef struct gemm__kernel {
    int rows, cols; /* at most GEMM__ROWS and GEMM__COLS */
    void (*run)(const gemm__block *b);
} gemm__kernel;

/* Strips cut the blocks of gemm.c evenly: rows divide 96 and cols divide 256. */
enum { GEMM__ROWS = 12, GEMM__COLS = 32 };

void gemm__run_portable(const gemm__block *b);     /* 4 x 16 */
void gemm__run_portable_fma(const gemm__block *b); /* the same with the CPU's fused instruction */
void gemm__run_avx2(const gemm__block *b);         /* 6 x 16 */
void gemm__run_avx512(const gemm__block *b);       /* 12 x 32 */

#endif
