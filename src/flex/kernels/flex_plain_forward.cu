/* Forward in the plain form: a warp is one query row, its lanes 32 keys at a time.
 *
 * For fp32 tensors, which no tensor core takes without rounding them, and to check the others. Cells that are not seen
 * are never multiplied. Sums of a row run in the order of the keys. Slow on purpose. */
extern "C" __global__ void __launch_bounds__(128)
    flex_plain_forward(const __grid_constant__ flex_gpu_args a) {
    __shared__ float query[4][MOST_DIM];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const px_i64 at = (px_i64)blockIdx.x * 4 + warp;
    if (at >= a.batch * a.q_heads * a.q_len) return;
    const px_i64 b = at / a.q_len / a.q_heads, h = at / a.q_len % a.q_heads, q = at % a.q_len,
                 kv_head = h / a.group;
    float o[OWN], top = -INFINITE, sum = 0.0f;
    clear_row(o);
    keep_row(query[warp], view_row(&a.q, b, h, q), D, lane);
    walk w = walk_row(&a, b, h, q / a.tile_q);
    while (walk_next(&w, a.tile_kv, 32, a.kv_len)) {
        const px_i64 kv = w.at + lane;
        const int visible = cell_is_visible(&a, b, h, q, kv, w.full);
        float s = -INFINITE, slope;
        if (visible)
            s = cell_score(&a, b, h, q, kv,
                           dot_row(view_row(&a.k, b, kv_head, kv), query[warp], D) * a.scale,
                           &slope);
        const int broken = __any_sync(ALL, visible && !(s < INFINITE));
        const float most = broken ? __int_as_float(0x7fffffff) : fmaxf(top, warp_most(s));
        const float base = most == -INFINITE ? 0.0f : most, keep = expf(top - base);
        const float p = visible ? expf(s - base) : 0.0f;
        sum = __fmaf_rn(sum, keep, warp_sum(p));
        top = most;
        for (int t = 0; t < OWN; t++) o[t] *= keep;
        add_rows(o, p, __ballot_sync(ALL, visible), &a.v, b, kv_head, w.at, DV, lane);
    }
    float by = 0.0f;
    if (lane == 0) by = row_finish(&a, b, h, q, top, sum);
    by = __shfl_sync(ALL, by, 0);
    put_row(&a.o, b, h, q, o, by, DV, lane);
}
