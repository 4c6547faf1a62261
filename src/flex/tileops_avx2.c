/* Tile arithmetic for AVX2 with FMA: vectors of eight, register blocks of 6 x 16.
 *
 * Compiled with its own flags and reached through tileops_get only on CPUs that have them. The functions themselves
 * are in tileops_body.h; here are the vector operations alone. */
#if defined(__x86_64__)
#include "flex/tileops.h"
#include "flex/tileops_exp.h"
#include <immintrin.h>
#include <math.h>

#define VW 8
#define MR 6
#define NV 2
typedef __m256 vf;

static inline vf v_zero(void) { return _mm256_setzero_ps(); }
static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
/* Lengths are multiples of 8 here, so a vector is always whole. */
static inline vf v_load_n(const float *p, int64_t n) { return (void)n, _mm256_loadu_ps(p); }
static inline void v_store_n(float *p, vf x, int64_t n) { (void)n, _mm256_storeu_ps(p, x); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_max(vf x, vf m) { return _mm256_max_ps(x, m); } /* m where x is NaN */
static inline vf v_or_zero(vf x) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ), x);
}
static inline vf v_select(const uint8_t *m, vf yes, vf no) {
    __m256i w = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)m));
    return _mm256_blendv_ps(no, yes,
                            _mm256_castsi256_ps(_mm256_cmpgt_epi32(w, _mm256_setzero_si256())));
}
static inline vf v_widen(const bf16 *p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
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
    p = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    p = _mm256_blendv_ps(p, v_set(INFINITY), _mm256_cmp_ps(x, v_set(EXP_HIGH), _CMP_GT_OQ));
    p = _mm256_andnot_ps(_mm256_cmp_ps(x, v_set(EXP_LOW), _CMP_LT_OQ), p);
    return _mm256_blendv_ps(p, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#define V_TRANSPOSE 8
static inline void v_transpose(const float *s, int64_t ld, float *d, int64_t ldd) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(s + i * ld);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(d + i * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(d + (i + 4) * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#define BODY(x)    x##_avx2
#define BODY_NAME  "AVX2"
#define BODY_TABLE const tileops tileops__avx2
#include "flex/tileops_body.h"
#else
typedef int tileops_avx2_not_built;
#endif
