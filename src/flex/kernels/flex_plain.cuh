/* Pieces of the plain form: a warp is one row, its lanes 32 others at a time, all in fp32, elements of any type.
 *
 * Cells that are not seen are left out one by one. A lane owns the columns lane, lane + 32 and so on of a sum. */
#define MOST_DIM 256
#define OWN (MOST_DIM / 32)

PX_FN float dot_row(const element *x, const float *y, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum = __fmaf_rn(element_float(x[i]), y[i], sum);
    return sum;
}
PX_FN void keep_row(float *to, const element *from, int n, int lane) {
    for (int i = lane; i < n; i += 32) to[i] = element_float(from[i]);
    __syncwarp();
}
PX_FN float warp_most(float x) {
    for (int by = 16; by; by /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, by));
    return x;
}
PX_FN float warp_sum(float x) {
    for (int by = 16; by; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}
/* sum[t] += weight of each lane times that lane's row of v. */
PX_FN void add_rows(float *sum, float weight, unsigned seen, const flex_gpu_view *v, px_i64 b, px_i64 h, px_i64 first, int n, int lane) {
    for (int i = 0; i < 32; i++) {
        const float by = __shfl_sync(ALL, weight, i);
        if (!(seen >> i & 1)) continue;
        const element *row = view_row(v, b, h, first + i);
        for (int t = 0; t * 32 + lane < n; t++) sum[t] = __fmaf_rn(by, element_float(row[t * 32 + lane]), sum[t]);
    }
}
PX_FN void put_row(const flex_gpu_view *v, px_i64 b, px_i64 h, px_i64 l, const float *sum, float by, int n, int lane) {
    element *row = view_row(v, b, h, l);
    for (int t = 0; t * 32 + lane < n; t++) row[t * 32 + lane] = element_of(by == 0.0f ? 0.0f : sum[t] * by);
}
PX_FN void clear_row(float *sum) {
    for (int t = 0; t < OWN; t++) sum[t] = 0.0f;
}

/* Weight and gradient by q·k, without the scale, of one cell that is seen; *by_score: the gradient by the score. */
PX_FN float plain_grad(const flex_gpu_args *a, px_i64 b, px_i64 h, px_i64 q, px_i64 kv, float s, float dp, float *weight, float *by_score) {
    const px_i64 row = (b * a->q_heads + h) * a->q_len + q;
    float slope;
    const float lse = a->lse[row], score = cell_score(a, b, h, q, kv, s, &slope);
    *weight = lse == -INFINITE ? 0.0f : expf(score - lse);
    *by_score = *weight * (dp - a->delta[row]);
    return *by_score == 0.0f ? 0.0f : *by_score * slope;
}
