/* Gradients of one captured array of the score: each warp walks query rows in order and adds what their cells give.
 *
 * Elements that rows could share are summed in double in a slot of the warp's own, and slots are added in their order at
 * the end; elements that rows keep apart (bias[h, q, kv]) are added to the result itself by the one warp that walks all
 * rows which could meet there. Lanes of a warp that meet in an element are added in the order of their keys. So equal
 * inputs give equal bits, and no atomics run. Works on elements of any type, in fp32. */
extern "C" __global__ void __launch_bounds__(128)
    flex_captures(const __grid_constant__ flex_gpu_args a) {
    __shared__ float query[4][MOST_DIM], d_out[4][MOST_DIM];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const flex_gpu_capture *const wanted = &a.wanted;
    const px_i64 slot = (px_i64)blockIdx.x * 4 + warp;
    if (slot >= wanted->slots) return;
    /* Owned indices come from the slot, the others are walked. */
    const int own_b = wanted->owners & 1, own_h = wanted->owners >> 1 & 1,
              own_q = wanted->owners >> 2 & 1;
    const px_i64 nb = own_b ? 1 : a.batch, nh = own_h ? 1 : a.q_heads, nq = own_q ? 1 : a.q_len;
    px_i64 rest = slot;
    const px_i64 q_of = own_q ? rest % a.q_len : 0;
    if (own_q) rest /= a.q_len;
    const px_i64 h_of = own_h ? rest % a.q_heads : 0;
    if (own_h) rest /= a.q_heads;
    const px_i64 step = wanted->owners ? 1 : wanted->slots;
    double *const sums = wanted->sums ? wanted->sums + slot * wanted->elements : 0;
    for (px_i64 i = wanted->owners ? 0 : slot; i < nb * nh * nq; i += step) {
        const px_i64 b = own_b ? rest : i / nq / nh, h = own_h ? h_of : i / nq % nh,
                     q = own_q ? q_of : i % nq;
        const px_i64 kv_head = h / a.group;
        __syncwarp();
        keep_row(query[warp], view_row(&a.q, b, h, q), D, lane);
        keep_row(d_out[warp], view_row(&a.d_o, b, h, q), DV, lane);
        walk w = walk_row(&a, b, h, q / a.tile_q);
        while (walk_next(&w, a.tile_kv, 32, a.kv_len)) {
            const px_i64 kv = w.at + lane;
            const int visible = cell_is_visible(&a, b, h, q, kv, w.full);
            float p, by_score = 0.0f, d[SITES];
            px_i64 place[SITES];
            if (visible) {
                const float s = dot_row(view_row(&a.k, b, kv_head, kv), query[warp], D) * a.scale;
                plain_grad(&a, b, h, q, kv, s,
                           dot_row(view_row(&a.v, b, kv_head, kv), d_out[warp], DV), &p, &by_score);
                sites_tile_64 t;
                sites_q_64 r;
                sites_kv_64 c;
                sites_by_tile_64(&a.score_env, b, h, &t);
                sites_by_q_64(&a.score_env, &t, b, h, q, &r);
                sites_by_kv_64(&a.score_env, &t, b, h, kv, &c);
                sites_cell_64(&a.score_env, &t, &r, &c, b, h, q, kv, s, place, d);
            }
#pragma unroll
            for (int k = 0; k < SITES; k++) {
                if (sites_capture(k) != wanted->capture) continue;
                const int gives = visible && by_score != 0.0f && place[k] >= 0;
                const float mine = gives ? by_score * d[k] : 0.0f;
                const px_i64 at = gives ? place[k] : -1 - lane;
                const unsigned peers = __match_any_sync(ALL, at);
                double sum = 0.0;
                for (int other = 0; other < 32; other++) {
                    const float x = __shfl_sync(ALL, mine, other);
                    if (peers >> other & 1) sum += (double)x;
                }
                if (gives && lane == __ffs(peers) - 1) {
                    if (sums)
                        sums[at] += sum;
                    else
                        wanted->out[at] = (float)((double)wanted->out[at] + sum);
                }
                __syncwarp();
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    flex_captures_sum(const __grid_constant__ flex_gpu_args a) {
    const flex_gpu_capture *const wanted = &a.wanted;
    const px_i64 at = (px_i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= wanted->elements) return;
    double sum = 0.0;
    for (px_i64 slot = 0; slot < wanted->slots; slot++)
        sum += wanted->sums[slot * wanted->elements + at];
    wanted->out[at] = (float)sum;
}
