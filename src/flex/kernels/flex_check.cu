/* Loads that leave their array: the least cell of the visited tiles that reaches one, for runs whose loads are not all
 * proven inside.
 *
 * A warp is a query row, its lanes keys. The mask is asked in every cell of a partial tile, the score in every cell that
 * is seen. Runs beside forward, so the kernels that everybody uses carry no checks. */
extern "C" __global__ void __launch_bounds__(128)
    flex_check(const __grid_constant__ flex_gpu_args a) {
    __shared__ float query[4][MOST_DIM];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const px_i64 at = (px_i64)blockIdx.x * 4 + warp;
    if (at >= a.batch * a.q_heads * a.q_len) return;
    const px_i64 b = at / a.q_len / a.q_heads, h = at / a.q_len % a.q_heads, q = at % a.q_len;
    unsigned long long least = ~0ULL;
    keep_row(query[warp], view_row(&a.q, b, h, q), D, lane);
    walk w = walk_row(&a, b, h, q / a.tile_q);
    while (walk_next(&w, a.tile_kv, 32, a.kv_len)) {
        const px_i64 kv = w.at + lane;
        int left = 0;
        if (kv >= a.kv_len) continue;
#if HAS_MASK
        if (!w.full) left = mask_left(&a.mask_env, b, h, q, kv);
#endif
#if HAS_SCORE
        if (!left && cell_is_visible(&a, b, h, q, kv, w.full))
            left =
                score_left(&a.score_env, b, h, q, kv,
                           dot_row(view_row(&a.k, b, h / a.group, kv), query[warp], D) * a.scale);
#endif
        const unsigned long long cell = (unsigned long long)(at * a.kv_len + kv);
        if (left && cell < least) least = cell;
    }
    if (least != ~0ULL) atomicMin(a.left, least);
}
