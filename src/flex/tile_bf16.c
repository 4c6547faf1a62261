/* tile_bf16 in plain C, and the choice of a form.
 *
 * Tile registers are arrays here, and their dot product is the one that the processor's manual states: over the 16 words of a row two
 * chains of fused operations, one of low halves and one of high halves, whose sum is added to the element; subnormals count as 0.
 * Products of pairs are one chain through the element: of a word the high halves first, then the low ones.
 * Vectors are single floats. Slow, and meant so: tests hold the fast forms to it, also on CPUs that have none of them. */
#include "flex/tile_bf16.h"
#include <math.h>
#include <string.h>

typedef uint32_t tile_words[TILE_BF16_ROWS][16];

static void tile_load(tile_words t, const void *from, int64_t stride) {
    for (int i = 0; i < TILE_BF16_ROWS; i++) memcpy(t[i], (const char *)from + i * stride, 64);
}
static void tile_store(tile_words t, void *to, int64_t stride) {
    for (int i = 0; i < TILE_BF16_ROWS; i++) memcpy((char *)to + i * stride, t[i], 64);
}
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
static float half(uint32_t word, int high) {
    return flushed(bf16_to_f32((bf16)(high ? word >> 16 : word & 0xffffu)));
}
static void tile_dot(tile_words c, tile_words a, tile_words b) {
    for (int m = 0; m < TILE_BF16_ROWS; m++) {
        for (int n = 0; n < 16; n++) {
            float low = 0.0f, high = 0.0f, sum;
            for (int k = 0; k < 16; k++) {
                low = flushed(fmaf(half(a[m][k], 0), half(b[k][n], 0), low));
                high = flushed(fmaf(half(a[m][k], 1), half(b[k][n], 1), high));
            }
            memcpy(&sum, &c[m][n], 4);
            sum = flushed(flushed(sum) + flushed(low + high));
            memcpy(&c[m][n], &sum, 4);
        }
    }
}

#define TILES                   tile_words tile[8]
#define T_ZERO(t)               memset(tile[t], 0, sizeof tile[t])
#define T_LOAD(t, from, stride) tile_load(tile[t], from, stride)
#define T_STORE(t, to, stride)  tile_store(tile[t], to, stride)
#define T_DOT(c, a, b)          tile_dot(tile[c], tile[a], tile[b])
#define VECTOR_FENCE            (void)0
#define VW                      1
typedef float vf;
static inline vf v_set(float x) { return x; }
static inline vf v_load(const float *p) { return *p; }
static inline void v_store(float *p, vf x) { *p = x; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_max(vf x, vf m) { return x > m ? x : m; }
static inline vf v_min(vf x, vf m) { return x < m ? x : m; }
static inline vf v_or_zero(vf x) { return x == -INFINITY ? 0.0f : x; }
static inline vf v_select(const uint8_t *m, vf yes, vf no) { return *m ? yes : no; }
static inline vf v_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
/* p times 2 to the power that the low bits of t hold; 0 for x below -126. */
static inline vf v_times_power(vf p, vf t, vf x) {
    uint32_t bits, shift;
    if (x < -126.0f) return 0.0f;
    memcpy(&bits, &p, 4);
    memcpy(&shift, &t, 4);
    bits += shift << 23;
    memcpy(&p, &bits, 4);
    return p;
}
static inline int v_all_one(vf x) { return x == 1.0f; }

/* A weight as high + low, both rounded to nearest (half away from 0) to the upper 16 bits of a float. */
static void split_one(float p, uint32_t *high, uint32_t *low) {
    uint32_t u;
    float h;
    memcpy(&u, &p, 4);
    *high = (u + 0x8000u) & 0xffff0000u;
    memcpy(&h, high, 4);
    p -= h;
    memcpy(&u, &p, 4);
    *low = u + 0x8000u;
}
static inline void v_split(vf p0, vf p1, uint32_t *high, uint32_t *low) {
    uint32_t h0, h1, l0, l1;
    split_one(p0, &h0, &l0);
    split_one(p1, &h1, &l1);
    *high = h0 >> 16 | h1;
    *low = l0 >> 16 | (l1 & 0xffff0000u);
}

#include "flex/tile_bf16_body.h"
#include "flex/tile_bf16_tiles.h"

static float pair_dot(float sum, uint32_t a, uint32_t b) {
    sum = flushed(fmaf(half(a, 1), half(b, 1), flushed(sum)));
    return flushed(fmaf(half(a, 0), half(b, 0), sum));
}

static void pairs_mm(const tile_bf16_mm *g) {
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            float sum = g->add ? g->c[i * g->ldc + j] : 0.0f;
            for (int64_t k = 0; k < g->k; k += 2) {
                uint32_t word;
                memcpy(&word, g->a + i * g->lda + k, sizeof word);
                sum = pair_dot(sum, word, g->b[k / 2 * g->ldb + j]);
                if (g->b2) sum = pair_dot(sum, word, g->b2[k / 2 * g->ldb + j]);
            }
            g->c[i * g->ldc + j] = sum;
        }
    }
}

static void nothing(void) {}

static void turn(const uint32_t *src, int64_t ld, int64_t rows, int64_t cols, uint32_t *dst,
                 int64_t ldd) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) dst[c * ldd + r] = src[r * ld + c];
    }
}

static int pack_values(const bf16 *v, int64_t ld, int64_t n, int64_t dim, uint32_t *dst,
                       int64_t ldd) {
    int finite = 1;
    const int64_t keys = (n + 31) / 32 * 32, columns = (dim + 31) / 32 * 32;
    for (int64_t d = 0; d < columns; d++) {
        for (int64_t i = 0; i < keys; i += 2) {
            const uint32_t low = i < n && d < dim ? v[i * ld + d] : 0,
                           high = i + 1 < n && d < dim ? v[(i + 1) * ld + d] : 0;
            finite &= (low & 0x7f80u) != 0x7f80u && (high & 0x7f80u) != 0x7f80u;
            dst[d * ldd + i / 2] = low | high << 16;
        }
    }
    return finite;
}

static const tile_bf16 plain = {"bf16 tiles in plain C", nothing,          nothing, tiles_mm,
                                tiles_softmax,           tiles_scale_cols, turn,    pack_values};

static const tile_bf16 plain_pairs = {
    "bf16 pairs in plain C", nothing,          nothing, pairs_mm,
    tiles_softmax,           tiles_scale_cols, turn,    pack_values};

const tile_bf16 *tile_bf16_plain(void) { return &plain; }
const tile_bf16 *tile_bf16_plain_pairs(void) { return &plain_pairs; }

const tile_bf16 *tile_bf16_get(const dev *d) {
#if defined(__x86_64__)
    if (dev_has_amx(d)) return &tile_bf16__amx;
    if (dev_avx512bf16_pays(d)) return &tile_bf16__avx512bf16;
#endif
    (void)d;
    return NULL;
}
