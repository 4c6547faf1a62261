/* The inner kernel of the plain C product for any machine: 4 x 16 sums in plain loops.
 *
 * One body, built twice on x86-64: with the CPU's fused multiply-add where it has one, and with the
 * library's fmaf for CPUs without (same bits, slow). Other machines have the instruction anyway. */
#include "dev/gemm_private.h"
#include <math.h>

enum { ROWS = 4, COLS = 16 };

static inline __attribute__((always_inline)) void body(const gemm__block *b) {
    float sum[ROWS][COLS] = {{0}};
    for (int kk = 0; kk < b->kc; kk++) {
        const float *x = b->a + kk * ROWS, *w = b->b + kk * COLS;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) sum[i][j] = fmaf(x[i], w[j], sum[i][j]);
    }
    for (int i = 0; i < b->m; i++) {
        float *c = b->c + i * b->ldc;
        for (int j = 0; j < b->n; j++) {
            float add = b->alpha * sum[i][j];
            c[j] = b->beta == 0 ? add : b->beta * c[j] + add;
        }
    }
}

void gemm__run_portable(const gemm__block *b) { body(b); }

#if defined(__x86_64__)
__attribute__((target("avx,fma"))) void gemm__run_portable_fma(const gemm__block *b) { body(b); }
#endif
