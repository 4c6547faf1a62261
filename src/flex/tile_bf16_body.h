/* The softmax of tile_bf16, written once over a vector type.
 *
 * The including file defines VW, vf with its v_ functions, and VECTOR_FENCE, after which vectors may read what tiles wrote and the
 * other way round. Products are elsewhere: tile_bf16_tiles.h, tile_bf16_avx512bf16.c. Holds no table and chooses nothing. */

/* 2^f = 1 + C1 f + .. + C5 f^5 for |f| <= 1/2: least largest relative error with p(0) = 1. */
#define EXP2_C1 6.9314700365e-01f
#define EXP2_C2 2.4022240937e-01f
#define EXP2_C3 5.5507350713e-02f
#define EXP2_C4 9.6716191620e-03f
#define EXP2_C5 1.3264589943e-03f

/* 2^x for x of at most 0, but for rounding: 2^round(x) by the bits of the rounding, times a polynomial that is exact at 0 (within 2e-7 of the rest). 0
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

/* A score at a place; one that is hidden made low. masked is a constant. */
BLOCK_ALWAYS vf score_at(const float *s, vf low, const uint8_t *mask, const int masked) {
    const vf x = v_load(s);
    return masked ? v_select(mask, x, low) : x;
}

/* The largest visible scaled score of a column vector, old included: of scores before they are scaled, with a negative scale the
 * smallest. Two chains: a maximum takes longer than a cell's other work. */
BLOCK_ALWAYS vf column_top(const tile_bf16_softmax *t, int64_t j, vf old, const int masked,
                           const int negative) {
    const int64_t ld = t->ld, ldm = masked ? t->ldm : 0;
    const vf low = v_set(negative ? INFINITY : -INFINITY);
    const float *s = t->s + t->lo * ld + j;
    const uint8_t *mask = masked ? t->mask + t->lo * ldm + j : NULL;
    vf even = low, odd = low;
    int64_t n = t->hi - t->lo;
    for (; n > 1; n -= 2, s += 2 * ld) {
        const vf x = score_at(s, low, mask, masked),
                 y = score_at(s + ld, low, masked ? mask + ldm : NULL, masked);
        even = negative ? v_min(x, even) : v_max(x, even);
        odd = negative ? v_min(y, odd) : v_max(y, odd);
        if (masked) mask += 2 * ldm;
    }
    if (n) {
        const vf x = score_at(s, low, mask, masked);
        even = negative ? v_min(x, even) : v_max(x, even);
    }
    return v_max(v_mul(negative ? v_min(odd, even) : v_max(odd, even), v_set(t->scale)), old);
}

/* The weight at a place, 0 where it is hidden: the same bits with a mask that hides nothing as without. */
BLOCK_ALWAYS vf weight_of(const float *s, vf scale, vf less, const uint8_t *mask,
                          const int masked) {
    const vf p = power_of_two(v_fma(v_load(s), scale, less));
    return masked ? v_select(mask, p, v_set(0.0f)) : p;
}

/* Words of keys i and i + 1, those within lo..hi alone; returns the sum of their weights. inside is a constant: both are within. */
BLOCK_ALWAYS vf soften_pair(const tile_bf16_softmax *t, int64_t i, int64_t j, vf scale, vf less,
                            const int masked, const int inside) {
    const int64_t ld = t->ld, ldm = masked ? t->ldm : 0, word = i / 2 * ld + j;
    const float *s = t->s + i * ld + j;
    const uint8_t *mask = masked ? t->mask + i * ldm + j : NULL;
    vf p0 = v_set(0.0f), p1 = p0;
    if (inside || (i >= t->lo && i < t->hi)) p0 = weight_of(s, scale, less, mask, masked);
    if (inside || (i + 1 >= t->lo && i + 1 < t->hi))
        p1 = weight_of(s + ld, scale, less, masked ? mask + ldm : NULL, masked);
    v_split(p0, p1, t->p_high + word, t->p_low + word);
    return v_add(p0, p1);
}

BLOCK_ALWAYS void soften_words(const tile_bf16_softmax *t, int64_t j, const int masked) {
    const vf old = v_load(t->m + j), top = t->scale < 0.0f ? column_top(t, j, old, masked, 1)
                                                           : column_top(t, j, old, masked, 0);
    const vf base = v_or_zero(top), less = v_sub(v_set(0.0f), base), scale = v_set(t->scale),
             corr = power_of_two(v_sub(old, base));
    const int64_t first = (t->lo + 1) / 2 * 2, last = t->hi / 2 * 2;
    vf sum = v_mul(v_load(t->l + j), corr);
    int64_t i = t->from;
    for (; i < t->to && i < first; i += 2)
        sum = v_add(sum, soften_pair(t, i, j, scale, less, masked, 0));
    for (; i < last; i += 2) sum = v_add(sum, soften_pair(t, i, j, scale, less, masked, 1));
    for (; i < t->to; i += 2) sum = v_add(sum, soften_pair(t, i, j, scale, less, masked, 0));
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
