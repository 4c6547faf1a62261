/* Constants of the exponential used on tiles, so that every instruction set computes the same bits.
 *
 * exp(x) = 2^n * e^r, n = round(x log2 e) by the magic-number trick, r reduced in two parts of ln 2, e^r by the
 * polynomial of Cephes' expf (below 1 ulp on |r| <= ln2/2). Below EXP_LOW the result is 0: no denormals are made. */
#ifndef FLEX_TILEOPS_EXP_H
#define FLEX_TILEOPS_EXP_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXP_LOW    -87.33654f
#define EXP_HIGH   88.37626f /* above: +inf */
#define EXP_MAGIC  12582912.0f
#define EXP_LOG2E  1.44269504088896341f
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO -2.12194440e-4f
#define EXP_C0     1.9875691500e-4f
#define EXP_C1     1.3981999507e-3f
#define EXP_C2     8.3334519073e-3f
#define EXP_C3     4.1665795894e-2f
#define EXP_C4     1.6666665459e-1f
#define EXP_C5     5.0000001201e-1f

/* One number. */
static inline float tileops_exp(float x) {
    if (x < EXP_LOW) return 0.0f;
    if (x > EXP_HIGH) return INFINITY;
    float t = fmaf(x, EXP_LOG2E, EXP_MAGIC), n = t - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float p = EXP_C0;
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C5);
    p = fmaf(p, r * r, r) + 1.0f;
    uint32_t bits, shift;
    memcpy(&bits, &p, 4);
    memcpy(&shift, &t, 4);
    bits += shift << 23;
    memcpy(&p, &bits, 4);
    return x != x ? x : p;
}

#endif
