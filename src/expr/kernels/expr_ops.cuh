/* The operations of the language as device functions: what ops.def's last column names.
 *
 * Meant to equal ops.h bit for bit: integers wrap at their width, // and % floor and give 0 for a zero divisor, floats
 * are rounded at each operation and never fused. Functions beyond the four operations are those of ops.h in
 * double, rounded once; scores take the _near forms in fp32, at most 8 units in the last place apart, and so is their division. Plain C apart from the qualifiers,
 * so that the host can compile generated text and compare. Loads outside an array give 0; place -1 says so. */
#ifdef __CUDACC_RTC__
#pragma nv_diag_suppress 177 /* a program uses some of these */
#endif
#ifndef PX_FN
#define PX_FN static __device__ __forceinline__
#endif
typedef long long px_i64;
typedef int px_i32;

PX_FN float px_float_of_bits(unsigned bits) { return __uint_as_float(bits); }
PX_FN px_i64 px_add64(px_i64 x, px_i64 y) {
    return (px_i64)((unsigned long long)x + (unsigned long long)y);
}
PX_FN px_i64 px_sub64(px_i64 x, px_i64 y) {
    return (px_i64)((unsigned long long)x - (unsigned long long)y);
}
PX_FN px_i64 px_mul64(px_i64 x, px_i64 y) {
    return (px_i64)((unsigned long long)x * (unsigned long long)y);
}
PX_FN px_i32 px_add32(px_i32 x, px_i32 y) { return (px_i32)((unsigned)x + (unsigned)y); }
PX_FN px_i32 px_sub32(px_i32 x, px_i32 y) { return (px_i32)((unsigned)x - (unsigned)y); }
PX_FN px_i32 px_mul32(px_i32 x, px_i32 y) { return (px_i32)((unsigned)x * (unsigned)y); }

#define PX_INTEGERS(W)                                                                             \
    PX_FN px_i##W px_neg##W(px_i##W x) { return px_sub##W(0, x); }                                 \
    PX_FN px_i##W px_div##W(px_i##W x, px_i##W y) {                                                \
        if (y == 0) return 0;                                                                      \
        if (y == -1) return px_sub##W(0, x);                                                       \
        px_i##W quotient = x / y;                                                                  \
        return quotient - (quotient * y != x && (x < 0) != (y < 0));                               \
    }                                                                                              \
    PX_FN px_i##W px_mod##W(px_i##W x, px_i##W y) {                                                \
        if (y == 0 || y == -1) return 0;                                                           \
        px_i##W rest = x % y;                                                                      \
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;                               \
    }                                                                                              \
    PX_FN int px_lt##W(px_i##W x, px_i##W y) { return x < y; }                                     \
    PX_FN int px_le##W(px_i##W x, px_i##W y) { return x <= y; }                                    \
    PX_FN int px_eq##W(px_i##W x, px_i##W y) { return x == y; }                                    \
    PX_FN int px_ne##W(px_i##W x, px_i##W y) { return x != y; }                                    \
    PX_FN px_i##W px_min##W(px_i##W x, px_i##W y) { return x < y ? x : y; }                        \
    PX_FN px_i##W px_max##W(px_i##W x, px_i##W y) { return x > y ? x : y; }                        \
    PX_FN px_i##W px_abs##W(px_i##W x) { return x < 0 ? px_sub##W(0, x) : x; }
PX_INTEGERS(64)
PX_INTEGERS(32)

PX_FN float px_to_f64(px_i64 x) { return __ll2float_rn(x); }
PX_FN float px_to_f32(px_i32 x) { return __int2float_rn(x); }
PX_FN px_i64 px_to_i64(float x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0f) return 9223372036854775807LL;
    if (x < -9223372036854775808.0f) return -9223372036854775807LL - 1;
    return (px_i64)x;
}
PX_FN px_i32 px_to_i32(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x < -2147483648.0f) return -2147483647 - 1;
    return (px_i32)x;
}

PX_FN float px_neg_f(float x) { return -x; }
PX_FN int px_lt_f(float x, float y) { return x < y; }
PX_FN int px_le_f(float x, float y) { return x <= y; }
PX_FN int px_eq_f(float x, float y) { return x == y; }
PX_FN int px_ne_f(float x, float y) { return x != y; }
PX_FN float px_min_f(float x, float y) { return x < y || x != x ? x : y; }
PX_FN float px_max_f(float x, float y) { return x > y || x != x ? x : y; }
PX_FN float px_abs_f(float x) { return fabsf(x); }
PX_FN float px_floor_f(float x) { return floorf(x); }
PX_FN int px_not(int x) { return x ^ 1; }
PX_FN int px_eq_b(int x, int y) { return x == y; }
PX_FN int px_ne_b(int x, int y) { return x ^ y; }

/* The functions of ops.h, step by step: polynomials in double, each operation rounded. */
#define PX_STEP(p, x, c) __dadd_rn(__dmul_rn(p, x), c)
#define PX_ROUND 6755399441055744.0
#define PX_LN2_HI 0.693147180369123816490
#define PX_LN2_LO 1.90821492927058770002e-10
PX_FN double px_within(double x, double low, double high) {
    x = x < low ? low : x;
    return x > high ? high : x; /* NaN stays */
}
PX_FN double px_power(double rounded) {
    return __longlong_as_double((long long)(0x3ff0000000000000ULL + ((unsigned long long)__double_as_longlong(rounded) << 52)));
}
PX_FN double px_expm1_near_0(double r) {
    double p = 1.0 / 479001600.0;
    p = PX_STEP(p, r, 1.0 / 39916800.0);
    p = PX_STEP(p, r, 1.0 / 3628800.0);
    p = PX_STEP(p, r, 1.0 / 362880.0);
    p = PX_STEP(p, r, 1.0 / 40320.0);
    p = PX_STEP(p, r, 1.0 / 5040.0);
    p = PX_STEP(p, r, 1.0 / 720.0);
    p = PX_STEP(p, r, 1.0 / 120.0);
    p = PX_STEP(p, r, 1.0 / 24.0);
    p = PX_STEP(p, r, 1.0 / 6.0);
    p = PX_STEP(p, r, 0.5);
    return __dadd_rn(r, __dmul_rn(__dmul_rn(r, r), p));
}
/* n: x / ln 2 rounded, in the lowest bits; the rest of x. */
PX_FN double px_rest(double x, double *n) {
    *n = __dadd_rn(__dmul_rn(x, 1.4426950408889634), PX_ROUND);
    const double k = __dsub_rn(*n, PX_ROUND);
    return __dsub_rn(__dsub_rn(x, __dmul_rn(k, PX_LN2_HI)), __dmul_rn(k, PX_LN2_LO));
}
PX_FN double px_exp(double x) {
    double n;
    const double r = px_rest(px_within(x, -150.0, 130.0), &n);
    return __dmul_rn(px_power(n), __dadd_rn(1.0, px_expm1_near_0(r)));
}
PX_FN double px_exp2(double x) {
    x = px_within(x, -220.0, 190.0);
    const double n = __dadd_rn(x, PX_ROUND), k = __dsub_rn(n, PX_ROUND);
    const double r = __dmul_rn(__dsub_rn(x, k), 0.69314718055994530942);
    return __dmul_rn(px_power(n), __dadd_rn(1.0, px_expm1_near_0(r)));
}
PX_FN double px_tanh(double x) {
    double n;
    const double r = px_rest(__dmul_rn(2.0, px_within(x, -20.0, 20.0)), &n), power = px_power(n);
    const double less_1 = __dadd_rn(__dsub_rn(power, 1.0), __dmul_rn(power, px_expm1_near_0(r)));
    return copysign(__ddiv_rn(less_1, __dadd_rn(less_1, 2.0)), x); /* -0 stays */
}
PX_FN double px_log(double x) {
    unsigned long long bits = (unsigned long long)__double_as_longlong(x);
    const unsigned long long from = (unsigned long long)__double_as_longlong(0.70710678118654752440);
    const unsigned long long shift = ((bits - from) >> 52 ^ 0x800) - 0x800;
    const double m = __longlong_as_double((long long)(bits - (shift << 52)));
    const double k = __dsub_rn(__longlong_as_double((long long)((unsigned long long)__double_as_longlong(PX_ROUND) + shift)), PX_ROUND);
    const double f = __dsub_rn(m, 1.0), s = __ddiv_rn(f, __dadd_rn(2.0, f)), z = __dmul_rn(s, s);
    double p = 2.0 / 19.0;
    p = PX_STEP(p, z, 2.0 / 17.0);
    p = PX_STEP(p, z, 2.0 / 15.0);
    p = PX_STEP(p, z, 2.0 / 13.0);
    p = PX_STEP(p, z, 2.0 / 11.0);
    p = PX_STEP(p, z, 2.0 / 9.0);
    p = PX_STEP(p, z, 2.0 / 7.0);
    p = PX_STEP(p, z, 2.0 / 5.0);
    p = PX_STEP(p, z, 2.0 / 3.0);
    const double low = __dadd_rn(__dmul_rn(s, __dadd_rn(2.0, __dmul_rn(z, p))), __dmul_rn(k, PX_LN2_LO));
    const double v = __dadd_rn(__dmul_rn(k, PX_LN2_HI), low);
    if (x == 0.0) return (double)-px_float_of_bits(0x7f800000u);
    if (x < 0.0) return (double)px_float_of_bits(0x7fc00000u);
    return x < (double)px_float_of_bits(0x7f800000u) ? v : x; /* +inf and NaN */
}
PX_FN float px_real_div(float x, float y) { return __fdiv_rn(x, y); }
PX_FN float px_real_exp(float x) { return (float)px_exp((double)x); }
PX_FN float px_real_exp2(float x) { return (float)px_exp2((double)x); }
PX_FN float px_real_log(float x) { return (float)px_log((double)x); }
PX_FN float px_real_rsqrt(float x) { return (float)__ddiv_rn(1.0, __dsqrt_rn((double)x)); }
PX_FN float px_real_tanh(float x) { return (float)px_tanh((double)x); }
PX_FN float px_real_sigmoid(float x) {
    return (float)__ddiv_rn(1.0, __dadd_rn(1.0, px_exp(-(double)x)));
}
#ifndef PX_NEAR_IS_EXACT
PX_FN float px_real_exp_near(float x) { return expf(x); }
PX_FN float px_real_exp2_near(float x) { return exp2f(x); }
PX_FN float px_real_log_near(float x) { return logf(x); }
PX_FN float px_real_rsqrt_near(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }
PX_FN float px_real_div_near(float x, float y) { return __fdividef(x, y); }
/* 1 - 2 / (e^2x + 1), and a polynomial near 0, where that would cancel. */
PX_FN float px_real_tanh_near(float x) {
    const float e = exp2f(x * 2.885390082f), far = 1.0f - __fdividef(2.0f, e + 1.0f), xx = x * x;
    float p = __fmaf_rn(xx, 0.0218694885f, -0.0539682540f);
    p = __fmaf_rn(p, xx, 0.1333333333f);
    p = __fmaf_rn(p, xx, -0.3333333333f);
    p = __fmaf_rn(p * xx, x, x);
    return fabsf(x) < 0.25f ? p : far;
}
PX_FN float px_real_sigmoid_near(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
#endif

/* Row-major places; -1 when an index leaves the array. Always in 64 bits. */
PX_FN px_i64 px_at1(const px_value *v, px_i64 i) { return i >= 0 && i < v->dim[0] ? i : -1; }
PX_FN px_i64 px_at2(const px_value *v, px_i64 i, px_i64 j) {
    return i >= 0 && i < v->dim[0] && j >= 0 && j < v->dim[1] ? i * v->dim[1] + j : -1;
}
PX_FN px_i64 px_at3(const px_value *v, px_i64 i, px_i64 j, px_i64 k) {
    px_i64 at = px_at2(v, i, j);
    return at >= 0 && k >= 0 && k < v->dim[2] ? at * v->dim[2] + k : -1;
}
PX_FN px_i64 px_at4(const px_value *v, px_i64 i, px_i64 j, px_i64 k, px_i64 l) {
    px_i64 at = px_at3(v, i, j, k);
    return at >= 0 && l >= 0 && l < v->dim[3] ? at * v->dim[3] + l : -1;
}

PX_FN float px_bf16_bits(unsigned short x) { return px_float_of_bits((unsigned)x << 16); }
PX_FN float px_f16_bits(unsigned short x) {
    unsigned sign = (unsigned)(x & 0x8000) << 16, mantissa = x & 0x3ffu, exponent = x >> 10 & 31u;
    if (exponent == 31) return px_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return px_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = __fmul_rn((float)mantissa, px_float_of_bits(0x33800000u)); /* * 2^-24 */
    return sign ? -tiny : tiny;
}
#define PX_LOAD(name, element, result, value)                                                      \
    PX_FN result px_load_##name(const px_value *v, px_i64 at) {                                    \
        if (at < 0) return 0;                                                                      \
        const element x = ((const element *)v->data)[at];                                          \
        return value;                                                                              \
    }
PX_LOAD(i64, long long, px_i64, x)
PX_LOAD(i32, int, px_i64, x)
PX_LOAD(i16, short, px_i64, x)
PX_LOAD(i8, signed char, px_i64, x)
PX_LOAD(u8, unsigned char, px_i64, x)
PX_LOAD(bool, unsigned char, px_i64, x != 0)
PX_LOAD(f32, float, float, x)
PX_LOAD(f64, double, float, (float)x)
PX_LOAD(bf16, unsigned short, float, px_bf16_bits(x))
PX_LOAD(f16, unsigned short, float, px_f16_bits(x))
