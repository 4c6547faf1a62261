/* Packed kernels for any machine: one panel, up to four rows, plain loops over the 16 outputs.
 *
 * One body, built twice on x86-64: with the CPU's fused multiply-add where it has one, and with the
 * library's fmaf for CPUs without (same bits, slow). bf16 panels are widened into a small buffer first. */
#include "dev/packed_private.h"
#include <math.h>

#define INLINE static inline __attribute__((always_inline))
enum { ROWS = 4 };

INLINE void rows_f32(const packed__block *b, const float *w, const int rows) {
    float acc[ROWS][PACKED_PANEL] = {{0}};
    for (int kk = 0; kk < b->kc; kk++)
        for (int r = 0; r < rows; r++) {
            float x = b->x[r * b->ldx + kk];
            for (int o = 0; o < PACKED_PANEL; o++)
                acc[r][o] = fmaf(x, w[kk * PACKED_PANEL + o], acc[r][o]);
        }
    for (int r = 0; r < rows; r++) {
        float *y = b->y + r * b->ldy;
        for (int o = 0; o < b->lanes; o++) y[o] = (b->first ? 0.0f : y[o]) + acc[r][o];
    }
}

INLINE void any_rows(const packed__block *b, const float *w) {
    switch (b->rows) {
    case 1: rows_f32(b, w, 1); break;
    case 2: rows_f32(b, w, 2); break;
    case 3: rows_f32(b, w, 3); break;
    default: rows_f32(b, w, 4); break;
    }
}

static void widen(const bf16 *src, float *dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = bf16_to_f32(src[i]);
}

INLINE void narrow(const packed__block *b, void (*run)(const packed__block *)) {
    float wide[PACKED_CHUNK * PACKED_PANEL];
    widen(b->w, wide, b->kc * PACKED_PANEL);
    packed__block f = *b;
    f.w = wide;
    run(&f);
}

static void f32_plain(const packed__block *b) { any_rows(b, b->w); }
static void bf16_plain(const packed__block *b) { narrow(b, f32_plain); }

const packed__kernel packed__portable = {ROWS, 1, 1, 4, f32_plain, bf16_plain, widen};

#if defined(__x86_64__)
__attribute__((target("avx,fma"))) static void f32_fma(const packed__block *b) {
    any_rows(b, b->w);
}
static void bf16_fma(const packed__block *b) { narrow(b, f32_fma); }

const packed__kernel packed__portable_fma = {ROWS, 1, 1, 4, f32_fma, bf16_fma, widen};
#endif
