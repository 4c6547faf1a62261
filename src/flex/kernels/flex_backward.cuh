/* From products to weights and gradients by the products, for both kernels of backward.
 *
 * s comes as q·k and leaves as the weight P; dp comes as dO·v and leaves as the gradient by q·k, without the scale.
 * Cells that are not seen give 0 whatever their rows hold. LSE is in powers of 2, +inf for rows that see nothing. */
PX_FN float row_lse2(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q) {
    if (q >= a->q_len) return INFINITE;
    const float lse = a->lse[(b * a->q_heads + h) * a->q_len + q];
    return lse == -INFINITE ? INFINITE : lse * LOG2E;
}
PX_FN float row_delta(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q) {
    return q < a->q_len ? a->delta[(b * a->q_heads + h) * a->q_len + q] : 0.0f;
}

/* Of which cell the row's values are, among those of a thread. */
#if TURNED
#define ROW_AT(m, j, i, lane) (8 * (j) + (lane) % 4 * 2 + (i) % 2)
#else
#define ROW_AT(m, j, i, lane) (2 * (m) + (i) / 2)
#endif
PX_FN int lse_is_far(float lse) { return IS_FAR(lse) && lse != INFINITE; }

#if HAS_SCORE
/* Scores of rows whose LSE is far become their differences to it; it counts as 0 from there on. */
PX_FN void take_far(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, const float *lse,
                    int lane, float s[MT][BN / 8][4]) {
    int any = 0;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) any |= lse_is_far(lse[ROW_AT(m, j, i, lane)]);
    if (!any) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if TURNED
                const px_i64 q = column + 8 * j + i % 2;
#else
                const px_i64 q = row + 16 * m + 8 * (i / 2);
#endif
                if (lse_is_far(lse[ROW_AT(m, j, i, lane)]))
                    s[m][j][i] -= a->lse[(b * a->q_heads + h) * a->q_len + q];
            }
}
#endif

PX_FN void cell_grad(float *s, float *dp, float lse, float delta, float factor) {
    *s = fast_exp2(__fmaf_rn(*s, factor, -lse));
    *dp = *s * (*dp - delta);
}

/* lse, delta: [MT][2] by rows, or (TURNED) [BN] by columns in shared memory. */
PX_FN void tile_grads(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 row, px_i64 column, int masked,
                      const unsigned bits[MT], const float *lse, const float *delta, int lane,
                      float s[MT][BN / 8][4], float dp[MT][BN / 8][4]) {
    const float factor = score_factor(a);
#if HAS_SLOPE
    float slope[MT][BN / 8][4];
    tile_scores(a, b, h, row, column, s, slope);
#else
    tile_scores(a, b, h, row, column, s);
#endif
#if HAS_SCORE
    take_far(a, b, h, row, column, lse, lane, s);
#endif
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = ROW_AT(m, j, i, lane);
                cell_grad(&s[m][j][i], &dp[m][j][i], lse_is_far(lse[at]) ? 0.0f : lse[at], delta[at], factor);
#if HAS_SLOPE
                dp[m][j][i] = dp[m][j][i] == 0.0f ? 0.0f : dp[m][j][i] * slope[m][j][i];
#endif
            }
    if (!masked) return;
    hide_cells(s, bits, 0.0f);
    hide_cells(dp, bits, 0.0f);
}
