/* From products to weights and gradients by the products, for both kernels of backward.
 *
 * s comes as q·k and leaves as the weight P; dp comes as dO·v and leaves as the gradient by q·k, without the scale.
 * Cells that are not seen give 0 whatever their rows hold. LSE is in the units of powers (flex_tile.cuh), +inf for rows that
 * see nothing. */
PX_FN float row_lse(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q) {
    if (q >= a->q_len) return INFINITE;
    const float lse = a->lse[(b * a->q_heads + h) * a->q_len + q];
    return lse == -INFINITE ? INFINITE : HAS_SCORE ? lse : lse * LOG2E;
}
PX_FN float row_delta(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q) {
    return q < a->q_len ? a->delta[(b * a->q_heads + h) * a->q_len + q] : 0.0f;
}

PX_FN void cell_grad(float *s, float *dp, float lse, float delta, float factor) {
    *s = power(*s, lse, factor);
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
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if TURNED
                const int at = 8 * j + lane % 4 * 2 + i % 2;
#else
                const int at = 2 * m + i / 2;
#endif
                cell_grad(&s[m][j][i], &dp[m][j][i], lse[at], delta[at], factor);
#if HAS_SLOPE
                dp[m][j][i] = dp[m][j][i] == 0.0f ? 0.0f : dp[m][j][i] * slope[m][j][i];
#endif
            }
    if (!masked) return;
    hide_cells(s, bits, 0.0f);
    hide_cells(dp, bits, 0.0f);
}
