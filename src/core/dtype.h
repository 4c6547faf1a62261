/* Element types and their conversions.
 *
 * bf16 and f16 are rounded to nearest even; NaN stays NaN (quiet). Conversions work on bits, so they are the
 * same on every machine. Nothing here scales or dequantises. */
#ifndef CORE_DTYPE_H
#define CORE_DTYPE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; /* bits of a bfloat16 */
typedef uint16_t f16;  /* bits of an IEEE half */

typedef enum dtype {
    DT_F32,
    DT_F64,
    DT_F16,
    DT_BF16,
    DT_I8,
    DT_U8,
    DT_I16,
    DT_I32,
    DT_I64,
    DT_BOOL,
    DT_COUNT
} dtype;

size_t dtype_size(dtype t);
const char *dtype_name(dtype t); /* safetensors spelling: "F32", "BF16", "I64", "BOOL"... */
int dtype_parse(const char *name, dtype *out); /* 1 if known */

static inline float bf16_to_f32(bf16 x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline bf16 bf16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (bf16)((u >> 16) | 0x40u);
    return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float f16_to_f32(f16 x);
f16 f16_from_f32(float f);
/* n elements of type t at src (any alignment) to fp32/double/int64; exact where representable.
 * Integers and BOOL convert by value. */
void dtype_to_f32(dtype t, const void *src, float *dst, size_t n);
void dtype_to_f64(dtype t, const void *src, double *dst, size_t n);
void dtype_to_i64(dtype t, const void *src, int64_t *dst, size_t n); /* integers and BOOL only */
int dtype_is_float(dtype t);
void dtype_from_f32(dtype t, const float *src, void *dst, size_t n); /* float types only */

#endif
