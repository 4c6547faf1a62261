/* What the AVX-512 forms of tile_bf16 share: the softmax's vectors, turning words, packing values.
 *
 * Included by files that are compiled for AVX-512, after VECTOR_FENCE is defined; brings tile_bf16_body.h with it. Products are
 * the including file's own. Holds no table and chooses nothing. */
#include "flex/tile_bf16.h"
#include "flex/tile_vec512.h"

static inline int v_all_one(vf x) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(1.0f), _CMP_EQ_OQ) == 0xffff;
}

static inline vf v_min(vf x, vf m) { return _mm512_min_ps(x, m); } /* m where x is NaN */

/* p times 2 to the power that the low bits of t hold; 0 for x below -126. The lower sixteen bits of a NaN that comes from bf16 are 0,
 * so it stays one. */
static inline vf v_times_power(vf p, vf t, vf x) {
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(
        _mm512_cmp_ps_mask(x, v_set(-126.0f), _CMP_NLT_UQ), _mm512_castps_si512(p),
        _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* High half of the first made the low one, high half of the second: a word of two bf16. */
static inline __m512i halves(__m512i first, __m512i second) {
    const __m512i up = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(second, 0x3333333333333333u, first, up);
}
static inline void v_split(vf p0, vf p1, uint32_t *high, uint32_t *low) {
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(-65536);
    __m512i h0 = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(p0), half), upper);
    __m512i h1 = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(p1), half), upper);
    __m512i l0 = _mm512_castps_si512(_mm512_sub_ps(p0, _mm512_castsi512_ps(h0)));
    __m512i l1 = _mm512_castps_si512(_mm512_sub_ps(p1, _mm512_castsi512_ps(h1)));
    _mm512_storeu_si512(high, halves(h0, h1));
    _mm512_storeu_si512(low, halves(_mm512_add_epi32(l0, half), _mm512_add_epi32(l1, half)));
}

#include "flex/tile_bf16_body.h"

/* Sixteen vectors of words become their columns: column 4g + i goes to row step*g + i. */
static inline __attribute__((always_inline)) void turn_block(__m512i in[16], int64_t step,
                                                             uint32_t *d, int64_t ldd) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        in[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        in[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        in[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        in[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* in[i + 4g]: lane L holds column 4L + i of rows 4g..4g+3 */
        t[i] = _mm512_shuffle_i32x4(in[i], in[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(in[i], in[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(in[i + 8], in[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(in[i + 8], in[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(d + i * ldd, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_si512(d + (i + step) * ldd, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_si512(d + (i + 2 * step) * ldd, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_si512(d + (i + 3 * step) * ldd,
                            _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

static void turn(const uint32_t *src, int64_t ld, int64_t rows, int64_t cols, uint32_t *dst,
                 int64_t ldd) {
    for (int64_t r = 0; r < rows; r += 16) {
        for (int64_t c = 0; c < cols; c += 16) {
            __m512i w[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) w[i] = _mm512_loadu_si512(src + (r + i) * ld + c);
            turn_block(w, 4, dst + c * ldd + r, ldd);
        }
    }
}

static int pack_values(const bf16 *v, int64_t ld, int64_t n, int64_t dim, uint32_t *dst,
                       int64_t ldd) {
    const __m512i size = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512(); /* the largest value's bits without signs */
    for (int64_t r = 0; r < n; r += 32) {
        for (int64_t d = 0; d < dim; d += 32) {
            const __mmask32 some = dim - d < 32 ? (1u << (dim - d)) - 1u : 0xffffffffu;
            __m512i w[2][16]; /* words of columns 0-3, 8-11, 16-19, 24-27, and of the others */
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                const int64_t at = r + 2 * i;
                __m512i low = _mm512_setzero_si512(), high = low;
                if (at < n) low = _mm512_maskz_loadu_epi16(some, v + at * ld + d);
                if (at + 1 < n) high = _mm512_maskz_loadu_epi16(some, v + (at + 1) * ld + d);
                most = _mm512_max_epu16(most, _mm512_and_si512(low, size));
                most = _mm512_max_epu16(most, _mm512_and_si512(high, size));
                w[0][i] = _mm512_unpacklo_epi16(low, high);
                w[1][i] = _mm512_unpackhi_epi16(low, high);
            }
            turn_block(w[0], 8, dst + d * ldd + r / 2, ldd);
            turn_block(w[1], 8, dst + (d + 4) * ldd + r / 2, ldd);
        }
    }
    return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80)) == 0;
}
