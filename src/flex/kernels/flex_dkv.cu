/* Gradients by keys and values: one block of threads is BM keys of one key head and walks, for each query head of its
 * group, the column's runs of query tiles.
 *
 * Products are turned: rows are keys, columns queries, so that weights are left operands as they lie in registers. Per
 * step of BN queries: S and dP, then dV += P dO and dK += dS Q. PARTS blocks share the columns of wide heads: each makes
 * S and dP whole and a part of the sums. Nothing is added by atomics. */
#define THREADS (32 * WARPS)
#define WIDE_K  (PAD16((D + PARTS - 1) / PARTS))
#define WIDE_V  (PAD16((DV + PARTS - 1) / PARTS))

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    flex_dkv(const __grid_constant__ flex_gpu_args a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned seen[2];
    __shared__ float lse[STAGES][BN], delta[STAGES][BN];
    const unsigned keys = shared_address(shared), values = keys + BM * STRIDE(D) * 2,
                   ring = values + BM * STRIDE(DV) * 2;
    const unsigned stage = BN * (STRIDE(D) + STRIDE(DV)) * 2;
    const int lane = threadIdx.x & 31, warp_row = threadIdx.x / 32 * 16 * MT,
              heads = (int)(a.batch * a.kv_heads);
    const int pieces = a.tile_kv / BM, unit = blockIdx.x / heads, of = blockIdx.x % heads,
              part = blockIdx.y;
    const px_i64 tile = a.col_order[unit / pieces], kv0 = tile * a.tile_kv + unit % pieces * BM;
    const px_i64 b = of / a.kv_heads, kv_head = of % a.kv_heads;
    if (kv0 >= a.kv_len) return;

    float dk[MT][WIDE_K / 8][4], dv[MT][WIDE_V / 8][4];
    CLEAR_SUMS(dk, WIDE_K)
    CLEAR_SUMS(dv, WIDE_V)
    px_i64 h = kv_head * a.group;
    const px_i64 h_end = h + a.group;
    walk w = walk_column(&a, b, h, tile);
    int more = walk_next(&w, a.tile_q, BN, a.q_len), at = 0;
    while (!more && ++h < h_end) {
        w = walk_column(&a, b, h, tile);
        more = walk_next(&w, a.tile_q, BN, a.q_len);
    }
    if (threadIdx.x < 2) seen[threadIdx.x] = 0;
    load_tile(keys, &a.k, b, kv_head, kv0, a.kv_len, BM, D, THREADS);
    load_tile(values, &a.v, b, kv_head, kv0, a.kv_len, BM, DV, THREADS);
#define LOAD_STEP(s)                                                                               \
    {                                                                                              \
        load_tile(ring + (s)*stage, &a.q, b, h, w.at, a.q_len, BN, D, THREADS);                    \
        load_tile(ring + (s)*stage + BN * STRIDE(D) * 2, &a.d_o, b, h, w.at, a.q_len, BN, DV,      \
                  THREADS);                                                                        \
        if (threadIdx.x < BN) {                                                                    \
            lse[s][threadIdx.x] = row_lse(&a, b, h, w.at + threadIdx.x);                           \
            delta[s][threadIdx.x] = row_delta(&a, b, h, w.at + threadIdx.x);                       \
        }                                                                                          \
    }
    if (more) LOAD_STEP(0)
    ptx_copies_commit();
    while (more) {
        const px_i64 q = w.at, head = h;
        const int full = w.full;
        const unsigned queries = ring + at * stage, d_out = queries + BN * STRIDE(D) * 2;
        float s[MT][BN / 8][4], dp[MT][BN / 8][4];
        unsigned bits[MT];
        more = walk_next(&w, a.tile_q, BN, a.q_len);
        while (!more && ++h < h_end) {
            w = walk_column(&a, b, h, tile);
            more = walk_next(&w, a.tile_q, BN, a.q_len);
        }
#if STAGES == 2
        if (more) LOAD_STEP(at ^ 1)
        ptx_copies_commit();
        ptx_copies_wait_but_one();
#else
        ptx_copies_wait();
#endif
        __syncthreads();
        products(s, keys, queries, D, warp_row, lane);
        products(dp, values, d_out, DV, warp_row, lane);
        const px_i64 row = kv0 + warp_row + lane / 4, column = q + lane % 4 * 2;
        const int masked = tile_bits(&a, b, head, row, column, kv0 + BM, q + BN, full, bits);
        tile_grads(&a, b, head, row, column, masked, bits, lse[at], delta[at], lane, s, dp);
        if (masked) {
            note_columns(seen, bits, lane);
            __syncthreads();
            if (!all_seen(seen)) {
                clear_rows(queries, D, BN, seen, THREADS);
                clear_rows(d_out, DV, BN, seen, THREADS);
                __syncthreads();
            }
        }
        ADD_PRODUCTS(dv, WIDE_V, s, d_out, DV, part * (WIDE_V / 8))
        ADD_PRODUCTS(dk, WIDE_K, dp, queries, D, part * (WIDE_K / 8))
        __syncthreads();
        if (masked && threadIdx.x == 0) forget_columns(seen);
#if STAGES == 2
        at ^= 1;
#else
        if (more) LOAD_STEP(0)
        ptx_copies_commit();
#endif
    }
    ptx_copies_wait();

#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int m = i / 2, r = i % 2;
        const px_i64 kv = kv0 + warp_row + 16 * m + 8 * r + lane / 4;
        if (kv >= a.kv_len) continue;
        element *out_k = view_row(&a.dk, b, kv_head, kv), *out_v = view_row(&a.dv, b, kv_head, kv);
#pragma unroll
        for (int j = 0; j < WIDE_K / 8; j++) {
            const int to = part * WIDE_K + 8 * j;
            if (to < D)
                store_pair(&a.dk, out_k, to + lane % 4 * 2, dk[m][j][2 * r] * a.scale,
                           dk[m][j][2 * r + 1] * a.scale);
        }
#pragma unroll
        for (int j = 0; j < WIDE_V / 8; j++) {
            const int to = part * WIDE_V + 8 * j;
            if (to < DV)
                store_pair(&a.dv, out_v, to + lane % 4 * 2, dv[m][j][2 * r], dv[m][j][2 * r + 1]);
        }
    }
}
