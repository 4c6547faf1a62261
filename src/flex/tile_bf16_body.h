/* Products and softmax of tile_bf16, written once over tile registers and a vector type.
 *
 * The including file defines the registers (TILES declares what they need; T_ZERO, T_LOAD, T_STORE and T_DOT name them by constant
 * numbers) and VW, vf with its v_ functions, and VECTOR_FENCE, after which tiles may read what vectors wrote. Blocks are two by
 * two tiles: four sums in registers 0-3, A in 4 and 5, B in 6 and 7. Holds no table and chooses nothing. */

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

/* The largest visible scaled score of a column vector; masked is a constant. */
BLOCK_ALWAYS vf column_top(const tile_bf16_softmax *t, int64_t j, vf old, const int masked) {
    const vf scale = v_set(t->scale), none = v_set(-INFINITY);
    vf top[2] = {old, old}; /* two chains: a maximum takes longer than a cell's other work */
    for (int64_t i = t->lo; i < t->hi; i++) {
        vf x = v_mul(v_load(t->s + i * t->ld + j), scale);
        if (masked) x = v_select(t->mask + i * t->ldm + j, x, none);
        top[i & 1] = v_max(x, top[i & 1]);
    }
    return v_max(top[0], top[1]);
}

/* Weights of key i, 0 where it takes no part. Same bits with a mask that hides nothing as without. */
BLOCK_ALWAYS vf weights_at(const tile_bf16_softmax *t, int64_t i, int64_t j, vf scale, vf base,
                           const int masked) {
    if (i < t->lo || i >= t->hi) return v_set(0.0f);
    const vf p = v_exp(v_sub(v_mul(v_load(t->s + i * t->ld + j), scale), base));
    return masked ? v_select(t->mask + i * t->ldm + j, p, v_set(0.0f)) : p;
}

BLOCK_ALWAYS void soften_words(const tile_bf16_softmax *t, int64_t j, const int masked) {
    const vf old = v_load(t->m + j), top = column_top(t, j, old, masked), base = v_or_zero(top);
    const vf scale = v_set(t->scale), corr = v_exp(v_sub(old, base));
    vf sum = v_mul(v_load(t->l + j), corr);
    for (int64_t i = t->from; i < t->to; i += 2) {
        const vf p0 = weights_at(t, i, j, scale, base, masked),
                 p1 = weights_at(t, i + 1, j, scale, base, masked);
        sum = v_add(sum, v_add(p0, p1));
        v_split(p0, p1, t->p_high + i / 2 * t->ld + j, t->p_low + i / 2 * t->ld + j);
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
