/* Packed kernels with AVX2: up to 6 rows x 1 panel, or one or two rows x several panels.
 *
 * Two registers hold a panel's 16 outputs. The body is written once over constants (rows, panels, type) and
 * instantiated for each. One or two rows take two panels at a time, so that enough sums are in
 * flight to hide the latency of the multiply-add. Called only where the CPU has the instructions. */
#include "dev/packed_private.h"
#include "dev/unroll.h"
#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
enum { ROWS = 6, PANELS = 1, PANELS_FEW = 2 };

INLINE __m256 load_bf16(const bf16 *p) {
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

INLINE __m256i lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE void add_to(float *y, int first, int lanes, __m256 acc) {
    __m256i mask = lanes_below(lanes);
    __m256 old = first ? _mm256_setzero_ps() : _mm256_maskload_ps(y, mask);
    _mm256_maskstore_ps(y, mask, _mm256_add_ps(old, acc));
}

INLINE void body(const packed__block *b, const int rows, const int panels, const int is_bf16) {
    __m256 acc[ROWS][2 * PANELS_FEW];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int h = 0; h < 2 * panels; h++) acc[r][h] = _mm256_setzero_ps();
    const bf16 *narrow = b->w;
    const float *wide = b->w;
    const float *x = b->x;
    const int64_t stride = b->stride, ldx = b->ldx;
    for (int kk = 0; kk < b->kc; kk++) {
        __m256 w[2 * PANELS_FEW];
        UNROLL
        for (int h = 0; h < 2 * panels; h++) {
            int64_t at = h / 2 * stride + h % 2 * 8;
            w[h] = is_bf16 ? load_bf16(narrow + at) : _mm256_loadu_ps(wide + at);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 xr = _mm256_broadcast_ss(x + r * ldx);
            UNROLL
            for (int h = 0; h < 2 * panels; h++) acc[r][h] = _mm256_fmadd_ps(xr, w[h], acc[r][h]);
        }
        narrow += PACKED_PANEL, wide += PACKED_PANEL, x++;
    }
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int h = 0; h < 2 * panels; h++) {
        int lanes = (h / 2 == panels - 1 ? b->lanes : PACKED_PANEL) - h % 2 * 8;
        if (lanes > 0) add_to(b->y + r * b->ldy + h * 8, b->first, lanes, acc[r][h]);
    }
}

INLINE void any(const packed__block *b, const int is_bf16) {
    switch (b->rows * 8 + b->panels) {
    case 9: body(b, 1, 1, is_bf16); break;
    case 10: body(b, 1, 2, is_bf16); break;
    case 17: body(b, 2, 1, is_bf16); break;
    case 18: body(b, 2, 2, is_bf16); break;
    case 25: body(b, 3, 1, is_bf16); break;
    case 33: body(b, 4, 1, is_bf16); break;
    case 41: body(b, 5, 1, is_bf16); break;
    case 49: body(b, 6, 1, is_bf16); break;
    default: break;
    }
}

static void run_f32(const packed__block *b) { any(b, 0); }
static void run_bf16(const packed__block *b) { any(b, 1); }

static void widen(const bf16 *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(dst + i, load_bf16(src + i));
}

const packed__kernel packed__avx2 = {ROWS, PANELS, PANELS_FEW, ROWS, run_f32, run_bf16, widen};
#endif
