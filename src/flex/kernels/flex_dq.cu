/* The gradient by queries: one block of threads is BM query rows of one head and walks its runs of key tiles.
 *
 * Per step of BN keys: S and dP, then dQ += dS K. Keys and values of the next step arrive meanwhile. Nothing is added
 * by atomics, so equal inputs give equal bits. */
#define THREADS (32 * WARPS)
#define WIDE    PAD16(D)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    flex_dq(const __grid_constant__ flex_gpu_args a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned seen[2][2];
    const unsigned queries = shared_address(shared), d_out = queries + BM * STRIDE(D) * 2,
                   ring = d_out + BM * STRIDE(DV) * 2;
    const unsigned stage = BN * (STRIDE(D) + STRIDE(DV)) * 2;
    const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * MT,
              heads = (int)(a.batch * a.q_heads);
    const int parts = a.tile_q / BM, unit = blockIdx.x / heads, of = blockIdx.x % heads;
    const px_i64 tile = a.row_order[unit / parts], q0 = tile * a.tile_q + unit % parts * BM;
    const px_i64 b = of / a.q_heads, h = of % a.q_heads, kv_head = h / a.group;
    if (q0 >= a.q_len) return;

    float dq[MT][WIDE / 8][4], lse[2 * MT], delta[2 * MT];
    CLEAR_SUMS(dq, WIDE)
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const px_i64 q = q0 + warp_row + i / 2 * 16 + i % 2 * 8 + lane / 4;
        lse[i] = row_lse(&a, b, h, q);
        delta[i] = row_delta(&a, b, h, q);
    }
    walk w = walk_row(&a, b, h, tile);
    int more = walk_next(&w, a.tile_kv, BN, a.kv_len), at = 0;
    if (threadIdx.x < 4) seen[threadIdx.x / 2][threadIdx.x % 2] = 0;
    load_tile(queries, &a.q, b, h, q0, a.q_len, BM, D, THREADS);
    load_tile(d_out, &a.d_o, b, h, q0, a.q_len, BM, DV, THREADS);
    if (more) {
        load_tile(ring, &a.k, b, kv_head, w.at, a.kv_len, BN, D, THREADS);
        load_tile(ring + BN * STRIDE(D) * 2, &a.v, b, kv_head, w.at, a.kv_len, BN, DV, THREADS);
    }
    ptx_copies_commit();
    for (; more; at ^= 1) {
        const px_i64 kv = w.at;
        const int full = w.full;
        const unsigned keys = ring + at * stage, values = keys + BN * STRIDE(D) * 2;
        float s[MT][BN / 8][4], dp[MT][BN / 8][4];
        unsigned bits[MT];
        more = walk_next(&w, a.tile_kv, BN, a.kv_len);
        if (more) {
            const unsigned next = ring + (at ^ 1) * stage;
            load_tile(next, &a.k, b, kv_head, w.at, a.kv_len, BN, D, THREADS);
            load_tile(next + BN * STRIDE(D) * 2, &a.v, b, kv_head, w.at, a.kv_len, BN, DV, THREADS);
        }
        ptx_copies_commit();
        ptx_copies_wait_but_one();
        __syncthreads();
        products(s, queries, keys, D, warp_row, lane);
        products(dp, d_out, values, DV, warp_row, lane);
        const px_i64 row = q0 + warp_row + lane / 4, column = kv + lane % 4 * 2;
        const int masked = tile_bits(&a, b, h, row, column, q0 + BM, kv + BN, full, bits);
        tile_grads(&a, b, h, row, column, masked, bits, lse, delta, lane, s, dp);
        if (masked) {
            note_columns(seen[at], bits, lane);
            __syncthreads();
            if (threadIdx.x == 0) forget_columns(seen[at ^ 1]);
            if (!all_seen(seen[at])) {
                clear_rows(keys, D, BN, seen[at], THREADS);
                __syncthreads();
            }
        }
        ADD_PRODUCTS(dq, WIDE, dp, keys, D, 0)
        __syncthreads();
        if (masked && threadIdx.x == 0) forget_columns(seen[at]);
    }
    ptx_copies_wait();

#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int m = i / 2, r = i % 2;
        const px_i64 q = q0 + warp_row + 16 * m + 8 * r + lane / 4;
        if (q >= a.q_len) continue;
        element *out = view_row(&a.dq, b, h, q);
#pragma unroll
        for (int j = 0; j < WIDE / 8; j++) {
            if (8 * j >= D) break;
            store_pair(&a.dq, out, 8 * j + lane % 4 * 2, dq[m][j][2 * r] * a.scale,
                       dq[m][j][2 * r + 1] * a.scale);
        }
    }
}
