/* The arithmetic of the language on one value: total, without undefined behaviour.
 *
 * Integers wrap in two's complement; floor division and modulo follow Python's signs and give 0 for a
 * zero divisor; a float becomes an integer by truncation, saturating, NaN giving 0. Float division
 * by zero follows IEEE 754. Functions are polynomials in double on fp32 operands, good to 1e-15, written without
 * branches and without a math library: every back end computes the same bits, and loops over them become vector code.
 * ops.def names these; nothing else defines what an operation means. */
#ifndef EXPR_OPS_H
#define EXPR_OPS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* What a float of the language is; expr_wide.c reads the list with double instead. */
typedef float ops_real;

static inline int64_t ops_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static inline int64_t ops_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static inline int64_t ops_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }

static inline int64_t ops_div(int64_t x, int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return ops_sub(0, x); /* INT64_MIN / -1 traps on x86 */
    int64_t quotient = x / y;
    return quotient - (x % y != 0 && (x < 0) != (y < 0));
}

static inline int64_t ops_mod(int64_t x, int64_t y) {
    if (y == 0 || y == -1) return 0;
    int64_t rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Zero divisors are meant: IEEE 754 says what they give, which the sanitizer need not report. */
#if defined(__clang__)
__attribute__((no_sanitize("float-divide-by-zero")))
#endif
static inline float
ops_quotient(float x, float y) {
    return x / y;
}

#if defined(__clang__)
__attribute__((no_sanitize("float-divide-by-zero")))
#endif
static inline double
ops_rsqrt(double x) {
    return 1.0 / sqrt(x);
}

static inline int64_t ops_truncate(float x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0f) return INT64_MAX;
    if (x < -9223372036854775808.0f) return INT64_MIN;
    return (int64_t)x;
}

/* c ? x : y by bits: a choice that compilers do not turn into a branch. */
static inline double ops_pick(int c, double x, double y) {
    uint64_t a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    b ^= (a ^ b) & -(uint64_t)(c != 0);
    memcpy(&y, &b, sizeof y);
    return y;
}
static inline double ops_within(double x, double low, double high) {
    x = ops_pick(x < low, low, x);
    return ops_pick(x > high, high, x); /* NaN stays */
}

/* Adding this rounds to an integer, which then stands in the lowest bits. */
#define OPS_ROUND  6755399441055744.0
#define OPS_LN2    0.69314718055994530942
#define OPS_LN2_HI 0.693147180369123816490
#define OPS_LN2_LO 1.90821492927058770002e-10

/* 2^k for the k in the lowest bits of rounded. NaN, whose lowest bits are 0, gives 1. */
static inline double ops_power(double rounded) {
    uint64_t k;
    double one = 1.0;
    uint64_t b;
    memcpy(&k, &rounded, sizeof k);
    memcpy(&b, &one, sizeof b);
    b += k << 52;
    memcpy(&one, &b, sizeof one);
    return one;
}

/* e^r - 1 for |r| <= ln 2 / 2. */
static inline double ops_expm1_near_0(double r) {
    double p = 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    return r + r * r * p;
}

/* The ends lie far beyond what fp32 holds. */
static inline double ops_exp(double x) {
    x = ops_within(x, -150.0, 130.0);
    double n = x * 1.4426950408889634 + OPS_ROUND, k = n - OPS_ROUND;
    double r = (x - k * OPS_LN2_HI) - k * OPS_LN2_LO;
    return ops_power(n) * (1.0 + ops_expm1_near_0(r));
}

static inline double ops_exp2(double x) {
    x = ops_within(x, -220.0, 190.0);
    double n = x + OPS_ROUND, k = n - OPS_ROUND;
    return ops_power(n) * (1.0 + ops_expm1_near_0((x - k) * OPS_LN2));
}

static inline double ops_tanh(double x) {
    double y = 2.0 * ops_within(x, -20.0, 20.0);
    double n = y * 1.4426950408889634 + OPS_ROUND, k = n - OPS_ROUND;
    double r = (y - k * OPS_LN2_HI) - k * OPS_LN2_LO, power = ops_power(n);
    double less_1 = (power - 1.0) + power * ops_expm1_near_0(r); /* e^2x - 1 */
    return copysign(less_1 / (less_1 + 2.0), x);                 /* -0 stays */
}

static inline double ops_sigmoid(double x) { return 1.0 / (1.0 + ops_exp(-x)); }

/* x = 2^k m, m from sqrt(1/2) to sqrt(2); log m = 2 artanh((m - 1) / (m + 1)). */
static inline double ops_log(double x) {
    const double root = 0.70710678118654752440, rounder = OPS_ROUND;
    uint64_t bits, from, whole;
    double m, k;
    memcpy(&bits, &x, sizeof bits);
    memcpy(&from, &root, sizeof from);
    memcpy(&whole, &rounder, sizeof whole);
    uint64_t shift = ((bits - from) >> 52 ^ 0x800) - 0x800; /* k, with its sign */
    bits -= shift << 52;
    whole += shift;
    memcpy(&m, &bits, sizeof m);
    memcpy(&k, &whole, sizeof k);
    k -= OPS_ROUND;
    double f = m - 1.0, s = f / (2.0 + f), z = s * s, p = 2.0 / 19.0;
    p = p * z + 2.0 / 17.0;
    p = p * z + 2.0 / 15.0;
    p = p * z + 2.0 / 13.0;
    p = p * z + 2.0 / 11.0;
    p = p * z + 2.0 / 9.0;
    p = p * z + 2.0 / 7.0;
    p = p * z + 2.0 / 5.0;
    p = p * z + 2.0 / 3.0;
    double v = k * OPS_LN2_HI + (s * (2.0 + z * p) + k * OPS_LN2_LO);
    v = ops_pick(!(x < INFINITY), x, v); /* +inf and NaN */
    v = ops_pick(x < 0.0, (double)NAN, v);
    return ops_pick(x == 0.0, (double)-INFINITY, v);
}

static inline float ops_pick_f(int c, float x, float y) {
    uint32_t a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    b ^= (a ^ b) & -(uint32_t)(c != 0);
    memcpy(&y, &b, sizeof y);
    return y;
}

#endif
