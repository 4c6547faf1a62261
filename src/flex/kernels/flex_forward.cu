/* Forward on tensor cores: one block of threads is BM query rows of one head; it walks the row's runs of key tiles in
 * steps of BN keys with an online softmax.
 *
 * Keys arrive while the weights of the step before meet their values, values while keys meet queries. A tile that the
 * mask calls full runs no mask code. Rows that see nothing give 0 and an LSE of -inf; values of keys that no row of
 * the block sees are cleared before they are multiplied. */
#define THREADS (32 * WARPS)
#define WIDE    PAD16(DV)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    flex_forward(const __grid_constant__ flex_gpu_args a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned seen[2][2];
    const unsigned queries = shared_address(shared), keys = queries + BM * STRIDE(D) * 2,
                   values = keys + BN * STRIDE(D) * 2;
    const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * MT,
              heads = (int)(a.batch * a.q_heads);
    const int parts = a.tile_q / BM, unit = blockIdx.x / heads, of = blockIdx.x % heads;
    const px_i64 tile = a.row_order[unit / parts], q0 = tile * a.tile_q + unit % parts * BM;
    const px_i64 b = of / a.q_heads, h = of % a.q_heads, kv_head = h / a.group;
    if (q0 >= a.q_len) return;

    float o[MT][WIDE / 8][4], top[MT][2], sum[MT][2];
    const float factor = score_factor(&a);
    CLEAR_SUMS(o, WIDE)
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) top[i / 2][i % 2] = -INFINITE, sum[i / 2][i % 2] = 0.0f;

    walk w = walk_row(&a, b, h, tile);
    int more = walk_next(&w, a.tile_kv, BN, a.kv_len), parity = 0;
    if (threadIdx.x < 4) seen[threadIdx.x / 2][threadIdx.x % 2] = 0;
    load_tile(queries, &a.q, b, h, q0, a.q_len, BM, D, THREADS);
    if (more) load_tile(keys, &a.k, b, kv_head, w.at, a.kv_len, BN, D, THREADS);
    ptx_copies_commit();
    for (; more; parity ^= 1) {
        const px_i64 kv = w.at;
        const int full = w.full;
        float s[MT][BN / 8][4];
        unsigned bits[MT];
        ptx_copies_wait();
        __syncthreads(); /* keys are here; nobody needs the old values */
        load_tile(values, &a.v, b, kv_head, kv, a.kv_len, BN, DV, THREADS);
        ptx_copies_commit();
        products(s, queries, keys, D, warp_row, lane);
        more = walk_next(&w, a.tile_kv, BN, a.kv_len);
        const px_i64 row = q0 + warp_row + lane / 4, column = kv + lane % 4 * 2;
        tile_scores(&a, b, h, row, column, s);
        const int masked = tile_bits(&a, b, h, row, column, q0 + BM, kv + BN, full, bits);
        if (masked) {
            hide_cells(s, bits, -INFINITE);
            note_columns(seen[parity], bits, lane);
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float most = top[m][r];
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
                    most = fmaxf(most, fmaxf(s[m][j][2 * r], s[m][j][2 * r + 1]));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
                most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
                const float base = most == -INFINITE ? 0.0f : power_base(most, factor);
                const float keep = power(top[m][r], base, factor);
                float add = 0.0f;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
#pragma unroll
                    for (int c = 2 * r; c < 2 * r + 2; c++) {
                        s[m][j][c] = power(s[m][j][c], base, factor);
                        add += s[m][j][c];
                    }
                }
                sum[m][r] = __fmaf_rn(sum[m][r], keep, add);
                top[m][r] = most;
                if (__any_sync(ALL, keep != 1.0f)) { /* the largest score has grown in some row */
#pragma unroll
                    for (int j = 0; j < WIDE / 8; j++)
                        o[m][j][2 * r] *= keep, o[m][j][2 * r + 1] *= keep;
                }
            }
        }
        ptx_copies_wait();
        __syncthreads(); /* values are here; nobody needs the keys */
        if (more) load_tile(keys, &a.k, b, kv_head, w.at, a.kv_len, BN, D, THREADS);
        ptx_copies_commit();
        if (threadIdx.x == 0) forget_columns(seen[parity ^ 1]);
        if (masked && !all_seen(seen[parity])) {
            clear_rows(values, DV, BN, seen[parity], THREADS);
            __syncthreads();
        }
        ADD_PRODUCTS(o, WIDE, s, values, DV, 0)
    }
    ptx_copies_wait();

#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int m = i / 2, r = i % 2;
        const px_i64 q = q0 + warp_row + 16 * m + 8 * r + lane / 4;
        float all = sum[m][r];
        all += __shfl_xor_sync(ALL, all, 1);
        all += __shfl_xor_sync(ALL, all, 2);
        if (q >= a.q_len) continue;
        const float most =
            top[m][r] == -INFINITE ? -INFINITE : power_score(power_base(top[m][r], factor));
        float by = 0.0f;
        if (lane % 4 == 0) by = row_finish(&a, b, h, q, most, all);
        by = __shfl_sync(15u << (lane & 28), by, lane & 28);
        element *out = view_row(&a.o, b, h, q);
#pragma unroll
        for (int j = 0; j < WIDE / 8; j++) {
            if (8 * j >= DV) break;
            const float x = by == 0.0f ? 0.0f : o[m][j][2 * r] * by,
                        y = by == 0.0f ? 0.0f : o[m][j][2 * r + 1] * by;
            store_pair(&a.o, out, 8 * j + lane % 4 * 2, x, y);
        }
    }
}
