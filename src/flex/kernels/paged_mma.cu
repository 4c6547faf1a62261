/* A split of paged decode attention on tensor cores, ROWS query rows at a time: see paged_common.cuh.
 *
 * A warp makes the scores of its KEYS keys, and then, of all keys of the split, the sums of its columns of values. Keys and
 * values come into shared memory beside the work, once for all rows where both fit (a.resident), else for each ROWS rows,
 * the values in the place of the keys. A weight goes into its product with the values as the sum of two 16-bit floats,
 * which keeps 16 bits of it and more; its row's sum takes it in fp32. What a row does not see has the weight 0. Where that
 * meets a NaN or an infinity that another row sees, the row's sums are made again with those values left out: the same
 * products in the same order. */
#define ROWS   PAGED_GPU_MMA_ROWS
#define WARPS  PAGED_GPU_WARPS
#define KEYS   (SPLIT / WARPS)
#define WIDE   PAD16(D)
#define STRIPE STRIDE(D)
#define BLOCKS ((WIDE / 16 + WARPS - 1) / WARPS) /* of 16 columns, of a warp */

/* n keys or values, of which the first is `first`, into a tile: zeros for those outside from .. to - 1. */
PX_FN void fetch(unsigned tile, const element *rows, px_i64 apart, int from, int to, int lane) {
#pragma unroll 8
    for (int i = lane; i < KEYS * (WIDE / 8); i += 32) {
        const int row = i / (WIDE / 8), chunk = i % (WIDE / 8),
                  there = row >= from && row < to && chunk < CHUNKS;
        copy_chunk(tile_at(tile, STRIPE, row, chunk), rows + (there ? row * apart + 8 * chunk : 0),
                   there);
    }
    ptx_copies_commit();
}

/* Products of ROWS queries with the warp's keys. */
PX_FN void scores(float s[KEYS / 8][4], unsigned queries, unsigned tile, int lane) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) s[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < WIDE / 16; k++) {
        unsigned x[4], y[4];
        load_left(x, queries, STRIPE, 0, k, lane);
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            load_right(y, tile, STRIPE, 16 * j, k, lane);
            multiply(s[2 * j], x, y[0], y[1]);
            multiply(s[2 * j + 1], x, y[2], y[3]);
        }
    }
}

/* Two neighbouring weights of a row, keys key and key + 1, into the tiles of their high and of their low parts. */
PX_FN void put_weights(unsigned char *high, unsigned char *low, int row, int key, float x,
                       float y) {
    const unsigned top = element_pair(x, y),
                   rest = element_pair(x - element_float((element)top),
                                       y - element_float((element)(top >> 16))),
                   at = tile_at(0, SPLIT, row, key / 8) + (unsigned)(key % 8 * 2);
    *(unsigned *)(high + at) = top;
    *(unsigned *)(low + at) = rest;
}

/* Values of keys lo .. hi - 1 stay; the word has those of keys j and j + 1. */
PX_FN unsigned visible_pair(unsigned y, int j, int lo, int hi) {
    return (j >= lo && j < hi ? y & 0xffffu : 0) |
           (j + 1 >= lo && j + 1 < hi ? y & 0xffff0000u : 0);
}
/* o = weights times values, columns from `column` on. some: only values of keys lo .. hi - 1. */
PX_FN void sums(float o[2 * BLOCKS][4], unsigned high, unsigned low, unsigned tile, int column,
                int some, int lo, int hi, int lane) {
#pragma unroll
    for (int i = 0; i < 8 * BLOCKS; i++) o[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < SPLIT / 16; k++) {
        unsigned x[4], rest[4], y[4];
        load_left(x, high, SPLIT, 0, k, lane);
        load_left(rest, low, SPLIT, 0, k, lane);
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            if (column + 16 * j >= WIDE) break;
            load_right_t(y, tile, STRIPE, 16 * k, column / 8 + 2 * j, lane);
            if (some) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    y[i] = visible_pair(y[i], 16 * k + lane % 4 * 2 + 8 * (i & 1), lo, hi);
            }
            multiply(o[2 * j], x, y[0], y[1]);
            multiply(o[2 * j + 1], x, y[2], y[3]);
            multiply(o[2 * j], rest, y[0], y[1]);
            multiply(o[2 * j + 1], rest, y[2], y[3]);
        }
    }
}

/* What row `row` sees of the split's keys, of which the first is s0. */
PX_FN void keys_of(const paged_gpu_seq *seq, int extra, px_i64 row, px_i64 n, px_i64 s0, int *lo,
                   int *hi) {
    px_i64 low, high;
    visible_keys(seq, extra, row, n, &low, &high);
    low -= s0, high -= s0;
    *lo = low < 0 ? 0 : low > SPLIT ? SPLIT : (int)low;
    *hi = high < 0 ? 0 : high > SPLIT ? SPLIT : (int)high;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
    paged_split(const __grid_constant__ paged_gpu_args a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ float most[WARPS][ROWS], total[WARPS][ROWS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, split = blockIdx.x;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const int kv_head = (int)blockIdx.z % a.kv_heads, part = (int)blockIdx.z / a.kv_heads,
              parts = (int)gridDim.z / a.kv_heads;
    const int group = a.q_heads / a.kv_heads, pairs = (int)seq->rows * group;
    const int extra = split >= a.splits;
    const px_i64 s0 = (px_i64)(extra ? split - a.splits : split) * SPLIT, k0 = s0 + warp * KEYS,
                 n = extra ? seq->n_extra : seq->n_keys;
    if (part * ROWS >= pairs) return;
    if (s0 >= n) { /* no keys here */
        for (int first = part * ROWS; first < pairs; first += parts * ROWS) {
            const int pair = first + (int)threadIdx.x;
            if (threadIdx.x >= ROWS || pair >= pairs) break;
            float *const to = a.stats + 2 * part_at(&a, seq, kv_head, pair, split);
            to[0] = -INFINITE, to[1] = 0.0f;
        }
        return;
    }
    /* Queries, and in their place the weights; keys; values. */
    const unsigned queries = shared_address(shared), high = queries, low = high + ROWS * SPLIT * 2,
                   keys = queries + ROWS * 2 * (STRIPE > 2 * SPLIT ? STRIPE : 2 * SPLIT),
                   values = a.resident ? keys + SPLIT * STRIPE * 2 : keys,
                   mine = (unsigned)(warp * KEYS * STRIPE * 2); /* the warp's keys within a tile */
    const px_i64 token = k0 >= n ? 0
                         : extra ? k0
                                 : (px_i64)seq->pages[k0 / PAGE] * PAGE + k0 % PAGE,
                 token_at = (token * a.kv_heads + kv_head) * D, apart = (px_i64)a.kv_heads * D;
    const element *const key_rows = (const element *)(extra ? seq->extra_k : a.k_pool) + token_at,
                         *const value_rows =
                             (const element *)(extra ? seq->extra_v : a.v_pool) + token_at;
    unsigned least = SPLIT, end = 0; /* keys that some row sees */
    for (px_i64 row = lane; row < seq->rows; row += 32) {
        int lo, hi;
        keys_of(seq, extra, row, n, s0, &lo, &hi);
        if (lo < hi && (unsigned)lo < least) least = lo;
        if (lo < hi && (unsigned)hi > end) end = hi;
    }
    const int from = (int)__reduce_min_sync(ALL, least) - warp * KEYS,
              to = (int)__reduce_max_sync(ALL, end) - warp * KEYS;
    if (a.resident) {
        fetch(keys + mine, key_rows, apart, from, to, lane);
        fetch(values + mine, value_rows, apart, from, to, lane);
    }
    for (int first = part * ROWS; first < pairs; first += parts * ROWS) {
        int lo[2], hi[2];
        __syncthreads(); /* nobody needs the weights and values of the step before */
        if (!a.resident) {
            fetch(keys + mine, key_rows, apart, from, to, lane);
            ptx_copies_commit(); /* of nothing: waiting for all but one is right in both forms */
        }
        for (int i = threadIdx.x; i < ROWS * (WIDE / 8); i += 32 * WARPS) {
            const int row = i / (WIDE / 8), chunk = i % (WIDE / 8);
            uint4 x = {0, 0, 0, 0};
            if (first + row < pairs && chunk < CHUNKS)
                x = *(const uint4 *)((const element *)seq->q + query_at(&a, kv_head, first + row) +
                                     8 * chunk);
            ptx_store(tile_at(queries, STRIPE, row, chunk), x.x, x.y, x.z, x.w);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int pair = first + 8 * r + lane / 4;
            keys_of(seq, extra, pair / group, n, s0, &lo[r], &hi[r]);
            if (pair >= pairs) hi[r] = 0;
        }
        float s[KEYS / 8][4], top[2];
        ptx_copies_wait_but_one();
        __syncthreads();
        scores(s, queries, keys + mine, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = -INFINITE;
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
                float *const x = &s[i / 2][2 * r + i % 2];
                const int key = warp * KEYS + i / 2 * 8 + lane % 4 * 2 + i % 2;
                *x = key >= lo[r] && key < hi[r] ? *x * a.scale : -INFINITE;
                top[r] = fmaxf(top[r], *x);
            }
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 2));
            if (lane % 4 == 0) most[warp][8 * r + lane / 4] = top[r];
        }
        __syncthreads(); /* nobody needs the queries, nor the keys */
        if (!a.resident) fetch(values + mine, value_rows, apart, from, to, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 8 * r + lane / 4;
            float all = 0.0f;
            top[r] = fmaxf(fmaxf(most[0][row], most[1][row]), fmaxf(most[2][row], most[3][row]));
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                float *const x = &s[j][2 * r];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    x[i] = x[i] == -INFINITE ? 0.0f : expf(x[i] - top[r]);
                    all += x[i];
                }
                put_weights(shared, shared + ROWS * SPLIT * 2, row,
                            warp * KEYS + 8 * j + lane % 4 * 2, x[0], x[1]);
            }
            all += __shfl_xor_sync(ALL, all, 1);
            all += __shfl_xor_sync(ALL, all, 2);
            if (lane % 4 == 0) total[warp][row] = all;
        }
        ptx_copies_wait();
        __syncthreads(); /* weights and values are here */
        const int column = warp * BLOCKS * 16;
        float o[2 * BLOCKS][4];
        int nan = 0;
        sums(o, high, low, values, column, 0, 0, 0, lane);
#pragma unroll
        for (int i = 0; i < 8 * BLOCKS; i++) nan |= o[i / 4][i % 4] != o[i / 4][i % 4];
        if (__any_sync(ALL, nan)) {
#pragma unroll 1
            for (int row = 0; row < ROWS; row++) {
                const int of = row % 8 * 4, row_lo = __shfl_sync(ALL, row < 8 ? lo[0] : lo[1], of),
                          row_hi = __shfl_sync(ALL, row < 8 ? hi[0] : hi[1], of);
                float again[2 * BLOCKS][4];
                sums(again, high, low, values, column, 1, row_lo, row_hi, lane);
#pragma unroll
                for (int i = 0; i < 8 * BLOCKS; i++)
                    if (lane / 4 + i % 4 / 2 * 8 == row) o[i / 4][i % 4] = again[i / 4][i % 4];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 8 * r + lane / 4;
            if (first + row >= pairs) continue;
            const px_i64 at = part_at(&a, seq, kv_head, first + row, split);
#pragma unroll
            for (int j = 0; j < 2 * BLOCKS; j++) {
                const int d = column + 8 * j + lane % 4 * 2;
                if (d < D) *(float2 *)(a.part + at * D + d) = float2{o[j][2 * r], o[j][2 * r + 1]};
            }
            if (warp || lane % 4) continue;
            a.stats[2 * at] =
                fmaxf(fmaxf(most[0][row], most[1][row]), fmaxf(most[2][row], most[3][row]));
            a.stats[2 * at + 1] = ((total[0][row] + total[1][row]) + total[2][row]) + total[3][row];
        }
    }
}
