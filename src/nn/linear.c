/* The trainable linear layer in fp32: y = x W^T and its two gradients, as calls of the device's matrix product.
 *
 * W is [out, in] as in checkpoints; there is no bias. The frozen layers of a target and all of decoding use packed
 * weights instead (dev/packed.h), whose row bits do not depend on the number of rows. */
#include "dev/gemm.h"
#include "nn/nn.h"

err nn_linear(dev *d, const float *w, int64_t out, int64_t in, const float *x, int64_t ldx,
              int64_t n, float *y, int64_t ldy, int add_y) {
    gemm_args g = {.m = n, .n = out, .k = in, .tb = 1, .alpha = 1, .beta = add_y ? 1.0f : 0.0f};
    g.a = x;
    g.lda = ldx;
    g.b = w;
    g.ldb = in;
    g.c = y;
    g.ldc = ldy;
    return gemm_f32(d, &g);
}

err nn_linear_back(dev *d, const float *w, int64_t out, int64_t in, const float *x, int64_t ldx,
                   const float *dy, int64_t lddy, int64_t n, float *dx, int64_t lddx, int add_dx,
                   float *dw) {
    if (dx) {
        gemm_args g = {.m = n, .n = in, .k = out, .alpha = 1, .beta = add_dx ? 1.0f : 0.0f};
        g.a = dy;
        g.lda = lddy;
        g.b = w;
        g.ldb = in;
        g.c = dx;
        g.ldc = lddx;
        TRY(gemm_f32(d, &g));
    }
    if (dw) {
        gemm_args g = {.m = out, .n = in, .k = n, .ta = 1, .alpha = 1, .beta = 1};
        g.a = dy;
        g.lda = lddy;
        g.b = x;
        g.ldb = ldx;
        g.c = dw;
        g.ldc = in;
        TRY(gemm_f32(d, &g));
    }
    return ERR_OK;
}
