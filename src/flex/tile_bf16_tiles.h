/* Products of tile_bf16 by tile registers, written once for the matrix unit and for its definition in plain C.
 *
 * The including file defines the registers (TILES declares what they need; T_ZERO, T_LOAD, T_STORE and T_DOT name them by constant
 * numbers) and VECTOR_FENCE, after which tiles may read what vectors wrote. Blocks are two by two tiles: four sums in registers
 * 0-3, A in 4 and 5, B in 6 and 7. Holds no table and chooses nothing. */
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
