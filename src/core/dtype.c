/* Element types: names, sizes and conversions in plain loops.
 *
 * Half precision is converted by its bits, so no compiler or CPU support is needed and the result is the
 * same everywhere. Sources may have any alignment: elements are read with memcpy.
 * Nothing here scales or dequantises; block formats belong to the reader of their file. */
#include "core/dtype.h"

static const struct {
    const char *name;
    size_t size;
} types[DT_COUNT] = {
    [DT_F32] = {"F32", 4}, [DT_F64] = {"F64", 8},   [DT_F16] = {"F16", 2}, [DT_BF16] = {"BF16", 2},
    [DT_I8] = {"I8", 1},   [DT_U8] = {"U8", 1},     [DT_I16] = {"I16", 2}, [DT_I32] = {"I32", 4},
    [DT_I64] = {"I64", 8}, [DT_BOOL] = {"BOOL", 1},
};

size_t dtype_size(dtype t) { return types[t].size; }

const char *dtype_name(dtype t) { return types[t].name; }

int dtype_parse(const char *name, dtype *out) {
    for (int t = 0; t < DT_COUNT; t++) {
        if (strcmp(name, types[t].name) != 0) continue;
        *out = (dtype)t;
        return 1;
    }
    return 0;
}

float f16_to_f32(f16 x) {
    uint32_t sign = (uint32_t)(x >> 15) << 31, exponent = (x >> 10) & 31u, mantissa = x & 1023u, u;
    if (exponent == 31) {
        u = sign | 0x7f800000u | mantissa << 13;
        if (mantissa) u |= 0x400000u; /* quiet */
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        float tiny = (float)mantissa * 0x1p-24f; /* subnormal or zero: exact */
        memcpy(&u, &tiny, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

f16 f16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (f16)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (f16)(sign | 0x7c00u); /* 65520 and up round to infinity */
    if (magnitude < 0x38800000u) {                              /* below 2^-14: a subnormal half */
        float m;
        memcpy(&m, &magnitude, 4);
        m +=
            0.5f; /* the last bit of 0.5's binade is 2^-24, so the addition rounds to nearest even */
        uint32_t r;
        memcpy(&r, &m, 4);
        return (f16)(sign | (r - 0x3f000000u));
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return (f16)(sign | ((magnitude - 0x38000000u) >> 13));
}

#define CONVERT(type, expr)                                                                        \
    for (size_t i = 0; i < n; i++) {                                                               \
        type v;                                                                                    \
        memcpy(&v, bytes + i * sizeof v, sizeof v);                                                \
        dst[i] = expr;                                                                             \
    }                                                                                              \
    return

void dtype_to_f32(dtype t, const void *src, float *dst, size_t n) {
    const unsigned char *bytes = src;
    switch (t) {
    case DT_F32:
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    case DT_F64: CONVERT(double, (float)v);
    case DT_F16: CONVERT(f16, f16_to_f32(v));
    case DT_BF16: CONVERT(bf16, bf16_to_f32(v));
    case DT_I8: CONVERT(int8_t, (float)v);
    case DT_U8: CONVERT(uint8_t, (float)v);
    case DT_I16: CONVERT(int16_t, (float)v);
    case DT_I32: CONVERT(int32_t, (float)v);
    case DT_I64: CONVERT(int64_t, (float)v);
    case DT_BOOL: CONVERT(uint8_t, (float)(v != 0));
    case DT_COUNT: return;
    }
}

void dtype_to_f64(dtype t, const void *src, double *dst, size_t n) {
    const unsigned char *bytes = src;
    switch (t) {
    case DT_F32: CONVERT(float, (double)v);
    case DT_F64:
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    case DT_F16: CONVERT(f16, (double)f16_to_f32(v));
    case DT_BF16: CONVERT(bf16, (double)bf16_to_f32(v));
    case DT_I8: CONVERT(int8_t, (double)v);
    case DT_U8: CONVERT(uint8_t, (double)v);
    case DT_I16: CONVERT(int16_t, (double)v);
    case DT_I32: CONVERT(int32_t, (double)v);
    case DT_I64: CONVERT(int64_t, (double)v);
    case DT_BOOL: CONVERT(uint8_t, (double)(v != 0));
    case DT_COUNT: return;
    }
}

int dtype_is_float(dtype t) { return t == DT_F32 || t == DT_F64 || t == DT_F16 || t == DT_BF16; }

void dtype_to_i64(dtype t, const void *src, int64_t *dst, size_t n) {
    const unsigned char *bytes = src;
    switch (t) {
    case DT_I8: CONVERT(int8_t, (int64_t)v);
    case DT_U8: CONVERT(uint8_t, (int64_t)v);
    case DT_I16: CONVERT(int16_t, (int64_t)v);
    case DT_I32: CONVERT(int32_t, (int64_t)v);
    case DT_I64:
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    case DT_BOOL: CONVERT(uint8_t, (int64_t)(v != 0));
    case DT_F32:
    case DT_F64:
    case DT_F16:
    case DT_BF16:
    case DT_COUNT: return;
    }
}

void dtype_from_f32(dtype t, const float *src, void *dst, size_t n) {
    unsigned char *bytes = dst;
    for (size_t i = 0; i < n; i++) {
        double wide = (double)src[i];
        bf16 b = bf16_from_f32(src[i]);
        switch (t) {
        case DT_F32: memcpy(bytes + i * 4, src + i, 4); break;
        case DT_F64: memcpy(bytes + i * 8, &wide, 8); break;
        case DT_BF16: memcpy(bytes + i * 2, &b, 2); break;
        case DT_F16: {
            f16 h = f16_from_f32(src[i]);
            memcpy(bytes + i * 2, &h, 2);
            break;
        }
        default: return;
        }
    }
}
