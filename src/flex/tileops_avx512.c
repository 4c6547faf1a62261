/* Tile arithmetic for AVX-512: vectors of sixteen, register blocks of 6 x 64.
 *
 * Compiled with its own flags and reached through tileops_get only on CPUs that have them. The functions themselves
 * are in tileops_body.h; here are the vector operations alone. */
#if defined(__x86_64__)
#include "flex/tileops.h"
#include "flex/tile_vec512.h"
#include "flex/tileops_exp.h"

#define MR 6
#define NV 4

static inline vf v_zero(void) { return _mm512_setzero_ps(); }
static inline __attribute__((always_inline)) vf v_load_n(const float *p, int64_t n) {
    if (n >= VW) return _mm512_loadu_ps(p);
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
static inline __attribute__((always_inline)) void v_store_n(float *p, vf x, int64_t n) {
    if (n >= VW)
        _mm512_storeu_ps(p, x);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), x);
}
static inline vf v_widen(const bf16 *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
static inline vf v_exp(vf x) {
    vf magic = v_set(EXP_MAGIC), t = v_fma(x, v_set(EXP_LOG2E), magic), n = v_sub(t, magic);
    vf r = v_fma(n, v_set(-EXP_LN2_LO), v_fma(n, v_set(-EXP_LN2_HI), x)), p = v_set(EXP_C0);
    p = v_fma(p, r, v_set(EXP_C1));
    p = v_fma(p, r, v_set(EXP_C2));
    p = v_fma(p, r, v_set(EXP_C3));
    p = v_fma(p, r, v_set(EXP_C4));
    p = v_fma(p, r, v_set(EXP_C5));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    p = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, v_set(EXP_HIGH), _CMP_GT_OQ), v_set(INFINITY));
    p = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, v_set(EXP_LOW), _CMP_NLT_UQ), p);
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

#define V_TRANSPOSE 16
static inline void v_transpose(const float *s, int64_t ld, float *d, int64_t ldd) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(s + i * ld);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* r[i + 4g]: lane L holds column 4L + i of rows 4g..4g+3 */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(d + i * ldd, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(d + (i + 4) * ldd, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_ps(d + (i + 8) * ldd, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_ps(d + (i + 12) * ldd, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

#define BODY(x)    x##_avx512
#define BODY_NAME  "AVX-512"
#define BODY_TABLE const tileops tileops__avx512
#include "flex/tileops_body.h"
#else
typedef int tileops_avx512_not_built;
#endif
