/* Portable tile arithmetic and the choice of a table.
 *
 * The vector is four floats in GNU C, which every target of gcc and clang lowers. Included twice: once with multiply
 * and add apart (fast everywhere) and once with fmaf (the bits of the wide forms). Detects nothing: dev does. */
#include "flex/tileops.h"
#include <math.h>
#include <string.h>

#define VW 4
#define MR 4
#define NV 2
typedef float vf __attribute__((vector_size(16)));

static inline vf v_zero(void) { return (vf){0.0f, 0.0f, 0.0f, 0.0f}; }
static inline vf v_set(float x) { return (vf){x, x, x, x}; }
static inline vf v_load(const float *p) {
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void v_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
/* Lengths are multiples of 8 here, so a vector of four is always whole. */
static inline vf v_load_n(const float *p, int64_t n) { return (void)n, v_load(p); }
static inline void v_store_n(float *p, vf x, int64_t n) { (void)n, v_store(p, x); }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_max(vf x, vf m) {
    for (int i = 0; i < VW; i++) m[i] = x[i] > m[i] ? x[i] : m[i];
    return m;
}
static inline vf v_or_zero(vf x) {
    for (int i = 0; i < VW; i++) x[i] = x[i] == -INFINITY ? 0.0f : x[i];
    return x;
}
static inline vf v_select(const uint8_t *m, vf yes, vf no) {
    for (int i = 0; i < VW; i++) yes[i] = m[i] ? yes[i] : no[i];
    return yes;
}
static inline vf v_widen(const bf16 *p) {
    return (vf){bf16_to_f32(p[0]), bf16_to_f32(p[1]), bf16_to_f32(p[2]), bf16_to_f32(p[3])};
}

/* exp as in tileops_exp.h, one lane at a time. */
#include "flex/tileops_exp.h"
static inline float exp_one(float x) {
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
static inline vf v_exp(vf x) {
    return (vf){exp_one(x[0]), exp_one(x[1]), exp_one(x[2]), exp_one(x[3])};
}

static inline vf v_fma_apart(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_fma_fused(vf a, vf b, vf c) {
    return (vf){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]),
                fmaf(a[3], b[3], c[3])};
}

#define v_fma      v_fma_apart
#define BODY(x)    x##_apart
#define BODY_NAME  "portable"
#define BODY_TABLE static const tileops table_apart
#include "flex/tileops_body.h"
#undef v_fma
#undef BODY
#undef BODY_NAME
#undef BODY_TABLE
#undef ALWAYS
#undef UNROLL

#define v_fma      v_fma_fused
#define BODY(x)    x##_fused
#define BODY_NAME  "portable, fused"
#define BODY_TABLE static const tileops table_fused
#include "flex/tileops_body.h"

static const tileops *wide(dev_isa isa) {
#if defined(__x86_64__)
    if (isa == DEV_ISA_AVX512) return &tileops__avx512;
    if (isa == DEV_ISA_AVX2) return &tileops__avx2;
#endif
    (void)isa;
    return NULL;
}

const tileops *tileops_get(dev_isa isa) {
    const tileops *t = wide(isa);
    return t ? t : &table_apart;
}

const tileops *tileops_get_exact(dev_isa isa) {
    const tileops *t = wide(isa);
    return t ? t : &table_fused;
}
