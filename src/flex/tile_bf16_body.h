/* Products and softmax of tile_bf16, written once over tile registers and a vector type.
 *
 * The including file defines the registers (TILES declares what they need; T_ZERO, T_LOAD, T_STORE and T_DOT name them by constant
 * numbers) and VW, vf with its v_ functions, and VECTOR_FENCE, after which tiles may read what vectors wrote. Blocks are two by
 * two tiles: four sums in registers 0-3, A in 4 and 5, B in 6 and 7. Holds no table and chooses nothing. */

/* 2^f = 1 + C1 f + .. + C5 f^5 for |f| <= 1/2: least largest relative error with p(0) = 1. */
#define EXP2_C1 6.9314700365e-01f
#define EXP2_C2 2.4022240937e-01f
#define EXP2_C3 5.5507350713e-02f
#define EXP2_C4 9.6716191620e-03f
#define EXP2_C5 1.3264589943e-03f

#define BLOCK_ALWAYS static inline __attribute__((always_inline))

/* One block of mt x nt tiles at (i, j); mt and nt are constants. */
BLOCK_ALWAYS void mm_block(const int mt, const int nt, const tile_bf16_mm *g, int64_t i,
                           int64_t j) {
    TILES;
    const int64_t ldc = g->ldc * 4, lda = g->lda * 2, ldb = g->ldb * 4;
    float *c = g->c + i * g->ldc + j;
    const bf16 *a = g->a + i * g->lda;
    if (g->add) {
        T_LOAD(0, c, ldc);
        if (nt > 1) T_LOAD(1, c + 16, ldc);
        if (mt > 1) T_LOAD(2, c + 16 * g->ldc, ldc);
        if (mt > 1 && nt > 1) T_LOAD(3, c + 16 * g->ldc + 16, ldc);
    } else {
        T_ZERO(0);
        T_ZERO(1);
        T_ZERO(2);
        T_ZERO(3);
    }
    for (int64_t k = 0; k < g->k; k += TILE_BF16_DEPTH) {
        T_LOAD(4, a + k, lda);
        if (mt > 1) T_LOAD(5, a + 16 * g->lda + k, lda);
        for (int part = 0; part < (g->b2 ? 2 : 1); part++) {
            const uint32_t *b = (part ? g->b2 : g->b) + k / 2 * g->ldb + j;
            T_LOAD(6, b, ldb);
            if (nt > 1) T_LOAD(7, b + 16, ldb);
            T_DOT(0, 4, 6);
            if (nt > 1) T_DOT(1, 4, 7);
            if (mt > 1) T_DOT(2, 5, 6);
            if (mt > 1 && nt > 1) T_DOT(3, 5, 7);
        }
    }
    T_STORE(0, c, ldc);
    if (nt > 1) T_STORE(1, c + 16, ldc);
    if (mt > 1) T_STORE(2, c + 16 * g->ldc, ldc);
    if (mt > 1 && nt > 1) T_STORE(3, c + 16 * g->ldc + 16, ldc);
}

BLOCK_ALWAYS void mm_columns(const int nt, const tile_bf16_mm *g, int64_t j) {
    int64_t i = 0;
    for (; i + 32 <= g->m; i += 32) mm_block(2, nt, g, i, j);
    if (i < g->m) mm_block(1, nt, g, i, j);
}

static void tiles_mm(const tile_bf16_mm *g) {
    int64_t j = 0;
    VECTOR_FENCE;
    for (; j + 32 <= g->n; j += 32) mm_columns(2, g, j);
    if (j < g->n) mm_columns(1, g, j);
    VECTOR_FENCE;
}

/* 2^x for x of at most 0: 2^round(x) by the bits of the rounding, times a polynomial that is exact at 0 (within 2e-7 of the rest). 0
 * below the normal range. */
BLOCK_ALWAYS vf power_of_two(vf x) {
    const vf magic = v_set(12582912.0f), t = v_add(x, magic), f = v_sub(x, v_sub(t, magic));
    vf p = v_set(EXP2_C5);
    p = v_fma(p, f, v_set(EXP2_C4));
    p = v_fma(p, f, v_set(EXP2_C3));
    p = v_fma(p, f, v_set(EXP2_C2));
    p = v_fma(p, f, v_set(EXP2_C1));
    p = v_fma(p, f, v_set(1.0f));
    return v_times_power(p, t, x);
}

/* A scaled score at a place, and one that is hidden made -inf; masked is a constant. */
BLOCK_ALWAYS vf scaled_at(const float *s, vf scale, const uint8_t *mask, const int masked) {
    const vf x = v_mul(v_load(s), scale);
    return masked ? v_select(mask, x, v_set(-INFINITY)) : x;
}

/* The largest visible scaled score of a column vector. Two chains: a maximum takes longer than a cell's other work. */
BLOCK_ALWAYS vf column_top(const tile_bf16_softmax *t, int64_t j, vf old, const int masked) {
    const int64_t ld = t->ld, ldm = masked ? t->ldm : 0;
    const vf scale = v_set(t->scale);
    const float *s = t->s + t->lo * ld + j;
    const uint8_t *mask = masked ? t->mask + t->lo * ldm + j : NULL;
    vf even = old, odd = old;
    int64_t n = t->hi - t->lo;
    for (; n > 1; n -= 2, s += 2 * ld) {
        even = v_max(scaled_at(s, scale, mask, masked), even);
        odd = v_max(scaled_at(s + ld, scale, masked ? mask + ldm : NULL, masked), odd);
        if (masked) mask += 2 * ldm;
    }
    if (n) even = v_max(scaled_at(s, scale, mask, masked), even);
    return v_max(odd, even);
}

/* The weight at a place, 0 where it is hidden: the same bits with a mask that hides nothing as without. */
BLOCK_ALWAYS vf weight_of(const float *s, vf scale, vf base, const uint8_t *mask,
                          const int masked) {
    const vf p = power_of_two(v_sub(v_mul(v_load(s), scale), base));
    return masked ? v_select(mask, p, v_set(0.0f)) : p;
}

BLOCK_ALWAYS void soften_words(const tile_bf16_softmax *t, int64_t j, const int masked) {
    const int64_t ld = t->ld, ldm = masked ? t->ldm : 0, lo = t->lo, hi = t->hi, to = t->to;
    const vf old = v_load(t->m + j), top = column_top(t, j, old, masked), base = v_or_zero(top);
    const vf scale = v_set(t->scale), corr = power_of_two(v_sub(old, base));
    const float *s = t->s + t->from * ld + j;
    const uint8_t *mask = masked ? t->mask + t->from * ldm + j : NULL;
    uint32_t *high = t->p_high + t->from / 2 * ld + j, *low = t->p_low + t->from / 2 * ld + j;
    vf sum = v_mul(v_load(t->l + j), corr);
    for (int64_t i = t->from; i < to; i += 2, s += 2 * ld, high += ld, low += ld) {
        vf p0 = v_set(0.0f), p1 = p0;
        if (i >= lo && i < hi) p0 = weight_of(s, scale, base, mask, masked);
        if (i + 1 >= lo && i + 1 < hi)
            p1 = weight_of(s + ld, scale, base, masked ? mask + ldm : NULL, masked);
        sum = v_add(sum, v_add(p0, p1));
        v_split(p0, p1, high, low);
        if (masked) mask += 2 * ldm;
    }
    v_store(t->m + j, top);
    v_store(t->l + j, sum);
    v_store(t->corr + j, corr);
}

static void tiles_softmax(const tile_bf16_softmax *t) {
    VECTOR_FENCE;
    if (t->mask) {
        for (int64_t j = 0; j < t->cols; j += VW) soften_words(t, j, 1);
    } else {
        for (int64_t j = 0; j < t->cols; j += VW) soften_words(t, j, 0);
    }
}

static void tiles_scale_cols(float *x, int64_t ld, int64_t rows, int64_t cols, const float *f) {
    for (int64_t j = 0; j < cols; j += VW) {
        const vf by = v_load(f + j);
        if (v_all_one(by)) continue;
        for (int64_t i = 0; i < rows; i++)
            v_store(x + i * ld + j, v_mul(v_load(x + i * ld + j), by));
    }
}
