/* The inner kernel of the plain C product with AVX-512: 12 x 32 sums in twenty-four registers.
 *
 * Few rows use a body of 4 or 8, so that thin products do not pay for rows that are not there. Edges in n
 * are loaded and stored under a mask. Built with its own flags and called only where the CPU has them. */
#include "dev/gemm_private.h"
#include "dev/unroll.h"
#if defined(__x86_64__)
#include <immintrin.h>

static inline void update(const gemm__block *b, float *c, __mmask16 mask, __m512 sum) {
    __m512 add = _mm512_mul_ps(_mm512_set1_ps(b->alpha), sum);
    if (b->beta != 0)
        add = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(b->beta), _mm512_maskz_loadu_ps(mask, c)),
                            add);
    _mm512_mask_storeu_ps(c, mask, add);
}

static inline __attribute__((always_inline)) void body(const gemm__block *b, const int rows) {
    __m512 sum[GEMM__ROWS][2];
    UNROLL
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    const float *x = b->a, *w = b->b;
    for (int kk = 0; kk < b->kc; kk++, x += GEMM__ROWS, w += GEMM__COLS) {
        __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 16);
        UNROLL
        for (int i = 0; i < rows; i++) {
            __m512 xi = _mm512_set1_ps(x[i]);
            sum[i][0] = _mm512_fmadd_ps(xi, w0, sum[i][0]);
            sum[i][1] = _mm512_fmadd_ps(xi, w1, sum[i][1]);
        }
    }
    __mmask16 m0 = (__mmask16)(b->n >= 16 ? 0xffff : (1u << b->n) - 1);
    __mmask16 m1 = (__mmask16)(b->n >= 32 ? 0xffff : b->n <= 16 ? 0 : (1u << (b->n - 16)) - 1);
    UNROLL
    for (int i = 0; i < rows; i++) {
        if (i >= b->m) break;
        update(b, b->c + i * b->ldc, m0, sum[i][0]);
        if (m1) update(b, b->c + i * b->ldc + 16, m1, sum[i][1]);
    }
}

void gemm__run_avx512(const gemm__block *b) {
    if (b->m <= 4)
        body(b, 4);
    else if (b->m <= 8)
        body(b, 8);
    else
        body(b, 12);
}
#endif
