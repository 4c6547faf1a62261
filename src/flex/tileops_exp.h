/* Constants of the exponential used on tiles, so that every instruction set computes the same bits.
 *
 * exp(x) = 2^n * e^r, n = round(x log2 e) by the magic-number trick, r reduced in two parts of ln 2, e^r by the
 * polynomial of Cephes' expf (below 1 ulp on |r| <= ln2/2). Below EXP_LOW the result is 0: no denormals are made. */
#ifndef FLEX_TILEOPS_EXP_H
#define FLEX_TILEOPS_EXP_H

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

#endif
