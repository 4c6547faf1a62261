/* The inner kernel of the plain C product with AVX2: 6 x 16 sums in twelve registers.
 *
 * Edges in n are loaded and stored under a mask; rows past m are computed from the zeros of the
 * packed strip and not stored. Built with its own flags and called only where the CPU has them. */
#include "dev/gemm_private.h"
#include "dev/unroll.h"
#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 6 };

static __m256i lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline void update(const gemm__block *b, float *c, __m256i mask, __m256 sum) {
    __m256 add = _mm256_mul_ps(_mm256_set1_ps(b->alpha), sum);
    if (b->beta != 0)
        add =
            _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(b->beta), _mm256_maskload_ps(c, mask)), add);
    _mm256_maskstore_ps(c, mask, add);
}

void gemm__run_avx2(const gemm__block *b) {
    __m256 sum[ROWS][2];
    UNROLL
    for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    const float *x = b->a, *w = b->b;
    for (int kk = 0; kk < b->kc; kk++, x += ROWS, w += 16) {
        __m256 w0 = _mm256_load_ps(w), w1 = _mm256_load_ps(w + 8);
        UNROLL
        for (int i = 0; i < ROWS; i++) {
            __m256 xi = _mm256_broadcast_ss(x + i);
            sum[i][0] = _mm256_fmadd_ps(xi, w0, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(xi, w1, sum[i][1]);
        }
    }
    __m256i m0 = lanes_below(b->n), m1 = lanes_below(b->n - 8);
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        if (i >= b->m) break;
        update(b, b->c + i * b->ldc, m0, sum[i][0]);
        if (b->n > 8) update(b, b->c + i * b->ldc + 8, m1, sum[i][1]);
    }
}
#endif
