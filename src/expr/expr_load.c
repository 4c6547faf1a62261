/* Elements of captured arrays, by element type.
 *
 * Each element type has one reader; the gather loops are made from them. Places are trusted here:
 * expr_load__place has checked them, and -1 stands for "outside", which reads nothing and gives 0. */
#include "expr/expr_load.h"
#include <assert.h>

#define READ_AS(T) ((const T *)v->data)[at]
#define INTEGER_TYPES(X)                                                                           \
    X(DT_I64, READ_AS(int64_t))                                                                    \
    X(DT_I32, READ_AS(int32_t))                                                                    \
    X(DT_I16, READ_AS(int16_t))                                                                    \
    X(DT_I8, READ_AS(int8_t))                                                                      \
    X(DT_U8, READ_AS(uint8_t))                                                                     \
    X(DT_BOOL, READ_AS(uint8_t) != 0)
#define FLOAT_TYPES(X)                                                                             \
    X(DT_F32, READ_AS(float))                                                                      \
    X(DT_F64, (float)READ_AS(double))                                                              \
    X(DT_BF16, bf16_to_f32(READ_AS(bf16)))                                                         \
    X(DT_F16, f16_to_f32(READ_AS(f16)))

int expr_load__fits(expr_type type, dtype t) {
    int real = t == DT_F32 || t == DT_F64 || t == DT_BF16 || t == DT_F16;
    return (type == EXPR_FLOAT) == real && t >= 0 && t < DT_COUNT;
}

ir_val expr_load__element(const expr_value *v, expr_type type, int64_t at) {
    ir_val out = {0};
    switch (v->type) {
#define X(T, value)                                                                                \
    case T: out.i = value; break;
        INTEGER_TYPES(X)
#undef X
#define X(T, value)                                                                                \
    case T: out.f = value; break;
        FLOAT_TYPES(X)
#undef X
    default: assert(0 && "element type checked when bound");
    }
    if (type == EXPR_BOOL) out.i = out.i != 0;
    return out;
}

static void gather_int(const expr_value *v, const int64_t *place, int64_t n, int64_t *out) {
    switch (v->type) {
#define X(T, value)                                                                                \
    case T:                                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                          \
            int64_t at = place[i];                                                                 \
            out[i] = at < 0 ? 0 : value;                                                           \
        }                                                                                          \
        break;
        INTEGER_TYPES(X)
#undef X
    default: assert(0 && "element type checked when bound");
    }
}

static void gather_float(const expr_value *v, const int64_t *place, int64_t n, float *out) {
    switch (v->type) {
#define X(T, value)                                                                                \
    case T:                                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                          \
            int64_t at = place[i];                                                                 \
            out[i] = at < 0 ? 0.0f : value;                                                        \
        }                                                                                          \
        break;
        FLOAT_TYPES(X)
#undef X
    default: assert(0 && "element type checked when bound");
    }
}

void expr_load__gather(const expr_value *v, expr_type type, const int64_t *place, int64_t n,
                       void *out) {
    if (type == EXPR_INT) {
        gather_int(v, place, n, out);
    } else if (type == EXPR_FLOAT) {
        gather_float(v, place, n, out);
    } else {
        uint8_t *bytes = out;
        for (int64_t i = 0; i < n; i++)
            bytes[i] = place[i] >= 0 && expr_load__element(v, type, place[i]).i != 0;
    }
}
