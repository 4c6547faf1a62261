/* tile_bf16 on the dot products of AVX512-BF16 (vdpbf16ps), with AVX-512 for the softmax and the packing.
 *
 * For CPUs without a matrix unit that have the instruction. Eight rows by two vectors of sums stay in registers over the whole
 * depth; a word of A is broadcast, a vector of B loaded. Compiled with its own flags and reached through tile_bf16_get. Chooses
 * nothing. */
#if defined(__x86_64__)
#include "flex/tile_bf16.h"
#include <immintrin.h>
#include <string.h>

#define VECTOR_FENCE (void)0
#include "flex/tile_bf16_vec512.h"

enum { ROWS = 8 };

/* The word of A's row at pair k, in all lanes. A's rows may lie at any value. */
BLOCK_ALWAYS __m512bh word_of(const bf16 *row, int64_t k) {
    int32_t word;
    memcpy(&word, row + 2 * k, sizeof word);
    return (__m512bh)_mm512_set1_epi32(word);
}

/* ROWS rows by nt vectors at (i, j), of parts operands B; nt and parts are constants. */
BLOCK_ALWAYS void dot_block(const int nt, const int parts, const tile_bf16_mm *g, int64_t i,
                            int64_t j) {
    __m512 sum[ROWS][2];
    float *c = g->c + i * g->ldc + j;
    const bf16 *a = g->a + i * g->lda;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int t = 0; t < nt; t++)
            sum[r][t] = g->add ? _mm512_loadu_ps(c + r * g->ldc + 16 * t) : _mm512_setzero_ps();
    for (int64_t k = 0; k < g->k / 2; k++) {
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++) {
            const uint32_t *b = (part ? g->b2 : g->b) + k * g->ldb + j;
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b),
                           b1 = nt > 1 ? (__m512bh)_mm512_loadu_si512(b + 16) : b0;
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const __m512bh w = word_of(a + r * g->lda, k);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], w, b0);
                if (nt > 1) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], w, b1);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int t = 0; t < nt; t++) _mm512_storeu_ps(c + r * g->ldc + 16 * t, sum[r][t]);
}

BLOCK_ALWAYS void dot_columns(const int nt, const tile_bf16_mm *g, int64_t j) {
    for (int64_t i = 0; i < g->m; i += ROWS) {
        if (g->b2)
            dot_block(nt, 2, g, i, j);
        else
            dot_block(nt, 1, g, i, j);
    }
}

static void pairs_mm(const tile_bf16_mm *g) {
    int64_t j = 0;
    for (; j + 32 <= g->n; j += 32) dot_columns(2, g, j);
    if (j < g->n) dot_columns(1, g, j);
}

static void nothing(void) {}

const tile_bf16 tile_bf16__avx512bf16 = {"AVX512-BF16", nothing,          nothing, pairs_mm,
                                         tiles_softmax, tiles_scale_cols, turn,    pack_values};
#else
typedef int tile_bf16_avx512bf16_not_built;
#endif
