/* Packed kernels with AVX-512: up to 8 rows x 3 panels, one register per row and panel.
 *
 * The body is written once over constants (rows, panels, type) and instantiated for each; the compiler unrolls
 * it into registers. bf16 becomes fp32 by a widening load and a shift. Few rows take the weights straight
 * from memory; many rows get them widened by packed.c. Called only where the CPU has the instructions. */
#include "dev/packed_private.h"
#include "dev/unroll.h"
#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
enum { ROWS = 8, PANELS = 3, PANELS_FEW = 4 };

INLINE __m512 load_bf16(const bf16 *p) {
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

INLINE void body(const packed__block *b, const int rows, const int panels, const int is_bf16) {
    __m512 acc[ROWS][PANELS_FEW];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int p = 0; p < panels; p++) acc[r][p] = _mm512_setzero_ps();
    const bf16 *narrow = b->w;
    const float *wide = b->w;
    const float *x = b->x;
    const int64_t stride = b->stride, ldx = b->ldx;
    for (int kk = 0; kk < b->kc; kk++) {
        __m512 w[PANELS_FEW];
        UNROLL
        for (int p = 0; p < panels; p++)
            w[p] = is_bf16 ? load_bf16(narrow + p * stride) : _mm512_loadu_ps(wide + p * stride);
        UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 xr = _mm512_set1_ps(x[r * ldx]);
            UNROLL
            for (int p = 0; p < panels; p++) acc[r][p] = _mm512_fmadd_ps(xr, w[p], acc[r][p]);
        }
        narrow += PACKED_PANEL, wide += PACKED_PANEL, x++;
    }
    __mmask16 last = (__mmask16)((1u << b->lanes) - 1);
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int p = 0; p < panels; p++) {
        float *y = b->y + r * b->ldy + p * PACKED_PANEL;
        __mmask16 mask = p == panels - 1 ? last : (__mmask16)0xffff;
        __m512 old = b->first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, y);
        _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(old, acc[r][p]));
    }
}

#define CASE(r, p, t)                                                                              \
    case (r)*8 + (p):                                                                              \
        body(b, r, p, t);                                                                          \
        break;
#define CASES(r, t) CASE(r, 1, t) CASE(r, 2, t) CASE(r, 3, t)

INLINE void any(const packed__block *b, const int is_bf16) {
    switch (b->rows * 8 + b->panels) {
        CASES(1, is_bf16)
        CASE(1, 4, is_bf16)
        CASES(2, is_bf16)
        CASE(2, 4, is_bf16)
        CASES(3, is_bf16)
        CASES(4, is_bf16)
        CASES(5, is_bf16)
        CASES(6, is_bf16)
        CASES(7, is_bf16)
        CASES(8, is_bf16)
    default: break;
    }
}

static void run_f32(const packed__block *b) { any(b, 0); }
static void run_bf16(const packed__block *b) { any(b, 1); }

static void widen(const bf16 *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) _mm512_storeu_ps(dst + i, load_bf16(src + i));
}

const packed__kernel packed__avx512 = {ROWS,    PANELS,   PANELS_FEW, 4 * ROWS,
                                       run_f32, run_bf16, widen};
#endif
