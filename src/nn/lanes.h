/* Row primitives on sixteen lanes, the inner loops of this folder.
 *
 * One table per instruction set over the same text (lanes_body.h): no fused multiply-add and one order of sums, so the
 * portable, AVX2 and AVX-512 forms give the same bits. Nothing here knows of threads, heads or layers; rows may have any
 * length and any alignment. Private to nn. */
#ifndef NN_LANES_H
#define NN_LANES_H
#include "dev/dev.h"

typedef struct lanes {
    float (*sumsq)(const float *x, int64_t n);
    float (*dot3)(const float *a, const float *b, const float *w,
                  int64_t n); /* sum a*b*w; w NULL: ones */
    void (*scale)(float *y, const float *x, float s, const float *w,
                  int64_t n); /* y = x*s*w; w NULL: ones */
    /* dx = (+=) dy*w*rstd - x*c */
    void (*norm_back)(float *dx, const float *dy, const float *w, const float *x, float rstd,
                      float c, int add, int64_t n);
    void (*muladd)(float *acc, const float *a, const float *b, float s,
                   int64_t n); /* acc += a*b*s */
    /* (a, b) = (a*c - b*s*sign, b*c + a*s*sign) */
    void (*rotate)(float *a, float *b, const float *c, const float *s, float sign, int64_t n);
    void (*silu_mul)(float *y, const float *g, const float *u, int64_t n);
    void (*silu_back)(float *dg, float *du, const float *dy, const float *g, const float *u,
                      int64_t n);
    void (*add)(float *y, const float *x, int64_t n);
    float (*max)(const float *x, int64_t n, int *nan); /* -inf for n 0; *nan = 1 when one is NaN */
    double (*exp_sum)(float *x, float m, int64_t n); /* x = exp(x - m) in place; returns the sum */
    void (*axpby)(float *y, float a, const float *x, float b, int64_t n); /* y = a*x + b*y */
} lanes;

extern const lanes lanes__portable, lanes__avx2, lanes__avx512;
const lanes *lanes__of(const dev *d);

#endif
