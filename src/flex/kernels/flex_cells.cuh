/* Masks and scores over the cells of one thread, in one width of integers: included once with W 64 and once with 32.
 *
 * A thread's cells of a warp's MT x 16 rows and BN columns: rows row + 16 m + 8 r, columns column + 8 j + c, which is
 * bit 4 j + 2 r + c of word m and element [m][j][2 r + c]. TURNED: rows are keys and columns queries. What stands still
 * along rows is computed once per row here, down columns once per column. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(name, W)

#if HAS_MASK
PX_FN void FN(mask_bits_)(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, unsigned bits[MT]) {
    const px_env *e = &a->mask_env;
    FN(mask_tile_) t;
    FN(mask_by_tile_)(e, b, h, &t);
#if TURNED
    FN(mask_kv_) rows[MT][2];
    FN(mask_q_) col;
#else
    FN(mask_q_) rows[MT][2];
    FN(mask_kv_) col;
#endif
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        if (i % 2 == 0) bits[i / 2] = 0;
#if TURNED
        FN(mask_by_kv_)(e, &t, b, h, row + i / 2 * 16 + i % 2 * 8, &rows[i / 2][i % 2]);
#else
        FN(mask_by_q_)(e, &t, b, h, row + i / 2 * 16 + i % 2 * 8, &rows[i / 2][i % 2]);
#endif
    }
#pragma unroll 2
    for (int j = 0; j < BN / 4; j++) { /* column 8 (j / 2) + j % 2 */
        px_i64 at = column + j / 2 * 8 + j % 2;
        int shift = j / 2 * 4 + j % 2;
#if TURNED
        FN(mask_by_q_)(e, &t, b, h, at, &col);
#else
        FN(mask_by_kv_)(e, &t, b, h, at, &col);
#endif
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            px_i64 other = row + i / 2 * 16 + i % 2 * 8;
#if TURNED
            int seen = FN(mask_cell_)(e, &t, &col, &rows[i / 2][i % 2], b, h, at, other) & (other < a->kv_len) & (at < a->q_len);
#else
            int seen = FN(mask_cell_)(e, &t, &rows[i / 2][i % 2], &col, b, h, other, at) & (at < a->kv_len) & (other < a->q_len);
#endif
            bits[i / 2] |= (unsigned)seen << (shift + i % 2 * 2);
        }
    }
}
#endif

#if HAS_SCORE
#if HAS_SLOPE
#define SCORE_PART(x) JOIN(slope_##x, W)
#else
#define SCORE_PART(x) JOIN(score_##x, W)
#endif
/* s becomes the score of scale * s; with slopes, slope[m][j][i] its derivative. */
PX_FN void FN(score_cells_)(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, float s[MT][BN / 8][4]
#if HAS_SLOPE
                            ,
                            float slope[MT][BN / 8][4]
#endif
) {
    const px_env *e = &a->score_env;
    SCORE_PART(tile_) t;
    SCORE_PART(by_tile_)(e, b, h, &t);
#if TURNED
    SCORE_PART(kv_) rows[MT][2];
    SCORE_PART(q_) col;
#else
    SCORE_PART(q_) rows[MT][2];
    SCORE_PART(kv_) col;
#endif
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
#if TURNED
        SCORE_PART(by_kv_)(e, &t, b, h, row + i / 2 * 16 + i % 2 * 8, &rows[i / 2][i % 2]);
#else
        SCORE_PART(by_q_)(e, &t, b, h, row + i / 2 * 16 + i % 2 * 8, &rows[i / 2][i % 2]);
#endif
    }
#pragma unroll
    for (int j = 0; j < BN / 4; j++) {
        px_i64 at = column + j / 2 * 8 + j % 2;
#if TURNED
        SCORE_PART(by_q_)(e, &t, b, h, at, &col);
#else
        SCORE_PART(by_kv_)(e, &t, b, h, at, &col);
#endif
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            px_i64 other = row + i / 2 * 16 + i % 2 * 8;
            float *x = &s[i / 2][j / 2][i % 2 * 2 + j % 2];
#if TURNED && HAS_SLOPE
            *x = SCORE_PART(cell_)(e, &t, &col, &rows[i / 2][i % 2], b, h, at, other, *x * a->scale, &slope[i / 2][j / 2][i % 2 * 2 + j % 2]);
#elif HAS_SLOPE
            *x = SCORE_PART(cell_)(e, &t, &rows[i / 2][i % 2], &col, b, h, other, at, *x * a->scale, &slope[i / 2][j / 2][i % 2 * 2 + j % 2]);
#else
            *x = SCORE_PART(cell_)(e, &t, &rows[i / 2][i % 2], &col, b, h, other, at, *x * a->scale);
#endif
        }
    }
}
#undef SCORE_PART
#endif
#undef FN
#undef JOIN
#undef JOIN_
