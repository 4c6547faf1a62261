/* Backward in the plain form: a warp is one query row, or one key with the query heads of its group.
 *
 * Cells that are not seen are never multiplied; sums run in the order of keys, or of heads and queries, so equal inputs
 * give equal bits. Slow on purpose. */
extern "C" __global__ void __launch_bounds__(128)
    flex_plain_dq(const __grid_constant__ flex_gpu_args a) {
    __shared__ float query[4][MOST_DIM], d_out[4][MOST_DIM];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const px_i64 at = (px_i64)blockIdx.x * 4 + warp;
    if (at >= a.batch * a.q_heads * a.q_len) return;
    const px_i64 b = at / a.q_len / a.q_heads, h = at / a.q_len % a.q_heads, q = at % a.q_len,
                 kv_head = h / a.group;
    float dq[OWN];
    clear_row(dq);
    keep_row(query[warp], view_row(&a.q, b, h, q), D, lane);
    keep_row(d_out[warp], view_row(&a.d_o, b, h, q), DV, lane);
    walk w = walk_row(&a, b, h, q / a.tile_q);
    while (walk_next(&w, a.tile_kv, 32, a.kv_len)) {
        const px_i64 kv = w.at + lane;
        const int visible = cell_is_visible(&a, b, h, q, kv, w.full);
        float ds = 0.0f, p, by_score;
        if (visible)
            ds = plain_grad(
                &a, b, h, q, kv, dot_row(view_row(&a.k, b, kv_head, kv), query[warp], D) * a.scale,
                dot_row(view_row(&a.v, b, kv_head, kv), d_out[warp], DV), &p, &by_score);
        add_rows(dq, ds, __ballot_sync(ALL, visible), &a.k, b, kv_head, w.at, D, lane);
    }
    put_row(&a.dq, b, h, q, dq, a.scale, D, lane);
}

extern "C" __global__ void __launch_bounds__(128)
    flex_plain_dkv(const __grid_constant__ flex_gpu_args a) {
    __shared__ float key[4][MOST_DIM], value[4][MOST_DIM];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const px_i64 at = (px_i64)blockIdx.x * 4 + warp;
    if (at >= a.batch * a.kv_heads * a.kv_len) return;
    const px_i64 b = at / a.kv_len / a.kv_heads, kv_head = at / a.kv_len % a.kv_heads,
                 kv = at % a.kv_len;
    float dk[OWN], dv[OWN];
    clear_row(dk), clear_row(dv);
    keep_row(key[warp], view_row(&a.k, b, kv_head, kv), D, lane);
    keep_row(value[warp], view_row(&a.v, b, kv_head, kv), DV, lane);
    for (px_i64 h = kv_head * a.group; h < (kv_head + 1) * a.group; h++) {
        walk w = walk_column(&a, b, h, kv / a.tile_kv);
        while (walk_next(&w, a.tile_q, 32, a.q_len)) {
            const px_i64 q = w.at + lane;
            const int visible = cell_is_visible(&a, b, h, q, kv, w.full);
            float ds = 0.0f, p = 0.0f, by_score;
            if (visible)
                ds = plain_grad(&a, b, h, q, kv,
                                dot_row(view_row(&a.q, b, h, q), key[warp], D) * a.scale,
                                dot_row(view_row(&a.d_o, b, h, q), value[warp], DV), &p, &by_score);
            const unsigned seen = __ballot_sync(ALL, visible);
            add_rows(dk, ds, seen, &a.q, b, h, w.at, D, lane);
            add_rows(dv, p, seen, &a.d_o, b, h, w.at, DV, lane);
        }
    }
    put_row(&a.dk, b, kv_head, kv, dk, a.scale, D, lane);
    put_row(&a.dv, b, kv_head, kv, dv, 1.0f, DV, lane);
}
