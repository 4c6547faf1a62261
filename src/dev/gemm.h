/* Matrix products in fp32 for training: C = alpha * op(A) op(B) + beta * C, row-major, fp32 accumulate.
 *
 * The product is cut into tiles whose bounds depend on M, N, K alone; each tile is one call of a serial
 * CBLAS (or the plain C kernel), summed over K in fixed order: the bits do not depend on the number of threads.
 * They do depend on the library (serial CBLAS or plain C), which is why checkpoints record its path.
 * beta == 0 never reads C (NaN there does not spread). M, N or K of 0 are valid. */
#ifndef DEV_GEMM_H
#define DEV_GEMM_H
#include "dev/dev.h"

typedef struct gemm_args {
    int64_t m, n, k;
    int ta, tb; /* 1: A is stored [k, m]; B is stored [n, k] */
    float alpha, beta;
    const float *a;
    int64_t lda; /* leading dimensions in elements */
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
} gemm_args;

MUST_CHECK err gemm_f32(dev *d, const gemm_args *g);
/* One serial call on the calling thread, for use inside pool tasks (attention tiles). Extents < 2^31. */
void gemm_serial(const dev *d, const gemm_args *g);

#endif
