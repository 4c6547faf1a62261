/* The arithmetic of the language on one value: total, without undefined behaviour.
 *
 * Integers wrap in two's complement; floor division and modulo follow Python's signs and give 0 for a
 * zero divisor; a float becomes an integer by truncation, saturating, NaN giving 0. Float division
 * by zero follows IEEE 754. ops.def names these; nothing else defines what an operation means. */
#ifndef EXPR_OPS_H
#define EXPR_OPS_H
#include <math.h>
#include <stdint.h>

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

#endif
