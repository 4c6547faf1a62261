/* Vectors of sixteen floats for the tile arithmetic that is compiled for AVX-512: the operations that its files share.
 *
 * Included by files with those compiler flags only. What one file alone needs (tails, widening, exponentials) stays
 * in that file. */
#ifndef FLEX_TILE_VEC512_H
#define FLEX_TILE_VEC512_H
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define VW 16
typedef __m512 vf;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_max(vf x, vf m) { return _mm512_max_ps(x, m); } /* m where x is NaN */
static inline vf v_or_zero(vf x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ), x);
}
static inline vf v_select(const uint8_t *m, vf yes, vf no) {
    __m128i w = _mm_loadu_si128((const void *)m);
    return _mm512_mask_blend_ps(_mm_test_epi8_mask(w, w), no, yes);
}

#endif
