/* A split of paged decode attention on tensor cores, ROWS query rows at a time: see paged_common.cuh.
 *
 * Keys and values come into shared memory beside the work, once for all rows where both fit (a.resident), else by halves of
 * a page for each ROWS rows (and each COLS columns of values). A weight goes into its product with the values as the sum of two 16-bit floats, which
 * keeps 16 bits of it and more; its row's sum takes it in fp32. What a row does not see has the weight 0. Where that meets
 * a NaN or an infinity that another row sees, the row's sums are made again with those values left out: the same
 * products in the same order. */
#define ROWS   16
#define HALF   32
#define WIDE   PAD16(D)
#define STRIPE STRIDE(D)
/* Columns of values at a time: their sums are in registers. */
#define GROUPS (WIDE > 128 ? 2 : 1)
#define COLS   (PAD16(WIDE / GROUPS))

typedef struct page {
    const element *keys, *values;  /* its first token's, of this head */
    px_i64 apart;                  /* from token to token */
    unsigned key_tile, value_tile; /* one and the same unless resident */
    int resident, from, to;        /* keys that some row sees */
} page;

/* Keys or values first .. first + n - 1 of a page, zeros for those that no row sees. */
PX_FN void fetch(unsigned tile, const element *rows, const page *p, int first, int n, int lane) {
#pragma unroll 4
    for (int i = lane; i < n * (WIDE / 8); i += 32) {
        const int row = i / (WIDE / 8), chunk = i % (WIDE / 8), j = first + row,
                  there = j >= p->from && j < p->to && chunk < CHUNKS;
        copy_chunk(tile_at(tile, STRIPE, row, chunk), rows + (there ? j * p->apart + 8 * chunk : 0),
                   there);
    }
}
/* Half c of keys or values lies in shared memory afterwards, at the address that comes back. */
PX_FN unsigned half_here(unsigned tile, const element *rows, const page *p, int c, int lane) {
    if (p->resident) return tile + c * HALF * STRIPE * 2;
    __syncwarp(); /* nobody needs what lies there */
    fetch(tile, rows, p, c * HALF, HALF, lane);
    ptx_copies_commit();
    ptx_copies_wait();
    __syncwarp();
    return tile;
}
PX_FN int half_is_seen(const page *p, int c) {
    return p->from < (c + 1) * HALF && p->to > c * HALF;
}

/* Two floats to 16 bits, and what that leaves of them. */
PX_FN unsigned high_pair(float x, float y, unsigned *low) {
    const unsigned high = element_pair(x, y);
    *low = element_pair(x - element_float((element)high), y - element_float((element)(high >> 16)));
    return high;
}
/* The left operand out of weights of keys 16 k .. 16 k + 15. */
PX_FN void weights(unsigned high[4], unsigned low[4], const float s[PAGE / 8][4], int k) {
    high[0] = high_pair(s[2 * k][0], s[2 * k][1], &low[0]);
    high[1] = high_pair(s[2 * k][2], s[2 * k][3], &low[1]);
    high[2] = high_pair(s[2 * k + 1][0], s[2 * k + 1][1], &low[2]);
    high[3] = high_pair(s[2 * k + 1][2], s[2 * k + 1][3], &low[3]);
}

PX_FN void add_values(float o[COLS / 8][4], const float s[PAGE / 8][4], const page *p, int column,
                      int lane) {
#pragma unroll
    for (int c = 0; c < PAGE / HALF; c++) {
        if (!half_is_seen(p, c)) continue;
        const unsigned tile = half_here(p->value_tile, p->values, p, c, lane);
#pragma unroll
        for (int k = 0; k < HALF / 16; k++) {
            unsigned high[4], low[4], y[4];
            weights(high, low, s, c * (HALF / 16) + k);
#pragma unroll
            for (int j = 0; j < COLS / 16; j++) {
                if (column + 16 * j >= WIDE) break;
                load_right_t(y, tile, STRIPE, 16 * k, column / 8 + 2 * j, lane);
                multiply(o[2 * j], high, y[0], y[1]);
                multiply(o[2 * j], low, y[0], y[1]);
                multiply(o[2 * j + 1], high, y[2], y[3]);
                multiply(o[2 * j + 1], low, y[2], y[3]);
            }
        }
    }
}

/* Values of keys lo .. hi - 1 stay; the word has those of keys j and j + 1. */
PX_FN unsigned visible_pair(unsigned y, int j, int lo, int hi) {
    return (j >= lo && j < hi ? y & 0xffffu : 0) |
           (j + 1 >= lo && j + 1 < hi ? y & 0xffff0000u : 0);
}
/* The sums of row `row` alone, which sees keys lo .. hi - 1. */
PX_FN void add_values_of_row(float o[COLS / 8][4], const float s[PAGE / 8][4], const page *p,
                             int column, int row, int lo, int hi, int lane) {
    const int mine[2] = {lane / 4 == row, lane / 4 + 8 == row};
#pragma unroll
    for (int i = 0; i < COLS / 2; i++)
        if (mine[i % 4 / 2]) o[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int c = 0; c < PAGE / HALF; c++) {
        if (!half_is_seen(p, c)) continue;
        const unsigned tile = half_here(p->value_tile, p->values, p, c, lane);
#pragma unroll
        for (int k = 0; k < HALF / 16; k++) {
            const int key = c * HALF + 16 * k + lane % 4 * 2;
            unsigned high[4], low[4], y[4];
            weights(high, low, s, c * (HALF / 16) + k);
#pragma unroll
            for (int j = 0; j < COLS / 16; j++) {
                if (column + 16 * j >= WIDE) break;
                float sum[2][4];
#pragma unroll
                for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = o[2 * j + i / 4][i % 4];
                load_right_t(y, tile, STRIPE, 16 * k, column / 8 + 2 * j, lane);
#pragma unroll
                for (int i = 0; i < 4; i++) y[i] = visible_pair(y[i], key + 8 * (i & 1), lo, hi);
                multiply(sum[0], high, y[0], y[1]);
                multiply(sum[0], low, y[0], y[1]);
                multiply(sum[1], high, y[2], y[3]);
                multiply(sum[1], low, y[2], y[3]);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (mine[i % 4 / 2]) o[2 * j + i / 4][i % 4] = sum[i / 4][i % 4];
            }
        }
    }
}

/* Products of ROWS queries with the page's keys. */
PX_FN void scores(float s[PAGE / 8][4], unsigned queries, const page *p, int lane) {
#pragma unroll
    for (int c = 0; c < PAGE / HALF; c++) {
        if (!half_is_seen(p, c)) continue;
        const unsigned tile = half_here(p->key_tile, p->keys, p, c, lane);
#pragma unroll
        for (int k = 0; k < WIDE / 16; k++) {
            unsigned x[4], y[4];
            load_left(x, queries, STRIPE, 0, k, lane);
#pragma unroll
            for (int j = 0; j < HALF / 16; j++) {
                float(*const to)[4] = s + c * (HALF / 8) + 2 * j;
                load_right(y, tile, STRIPE, 16 * j, k, lane);
                multiply(to[0], x, y[0], y[1]);
                multiply(to[1], x, y[2], y[3]);
            }
        }
    }
}

/* What row `pair` sees of the page that begins at key k0. */
PX_FN void keys_of(const paged_gpu_seq *seq, int extra, px_i64 row, px_i64 n, px_i64 k0, int *lo,
                   int *hi) {
    px_i64 low, high;
    visible_keys(seq, extra, row, n, &low, &high);
    low -= k0, high -= k0;
    *lo = low < 0 ? 0 : low > PAGE ? PAGE : (int)low;
    *hi = high < 0 ? 0 : high > PAGE ? PAGE : (int)high;
}

extern "C" __global__ void __launch_bounds__(128, 1)
    paged_split(const __grid_constant__ paged_gpu_args a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ float most[4][ROWS], total[4][ROWS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, split = blockIdx.x;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const px_i64 kv_head = blockIdx.z % a.kv_heads, part = blockIdx.z / a.kv_heads,
                 parts = gridDim.z / a.kv_heads;
    const px_i64 group = a.q_heads / a.kv_heads, pairs = seq->rows * group;
    const int extra = split >= a.splits;
    const px_i64 s0 = (px_i64)(extra ? split - a.splits : split) * SPLIT, k0 = s0 + warp * PAGE,
                 n = extra ? seq->n_extra : seq->n_keys;
    if (part * ROWS >= pairs) return;
    if (s0 >= n) { /* no keys here */
        for (px_i64 pair = part * ROWS + threadIdx.x; pair < pairs; pair += parts * ROWS) {
            if (threadIdx.x >= ROWS) break;
            const px_i64 at = part_at(&a, seq, kv_head, pair, split);
            a.stats[2 * at] = -INFINITE;
            a.stats[2 * at + 1] = 0.0f;
        }
        return;
    }
    const unsigned queries = shared_address(shared),
                   tile_bytes = (a.resident ? PAGE : HALF) * STRIPE * 2;
    float *const sums = (float *)(shared + ROWS * STRIPE * 2);
    const px_i64 token = k0 >= n ? 0
                         : extra ? k0
                                 : (px_i64)seq->pages[k0 / PAGE] * PAGE,
                 token_at = (token * a.kv_heads + kv_head) * D;
    page p;
    p.keys = (const element *)(extra ? seq->extra_k : a.k_pool) + token_at;
    p.values = (const element *)(extra ? seq->extra_v : a.v_pool) + token_at;
    p.apart = a.kv_heads * D;
    p.resident = a.resident;
    p.key_tile =
        queries + ROWS * STRIPE * 2 + ROWS * WIDE * 4 + warp * tile_bytes * (a.resident ? 2 : 1);
    p.value_tile = a.resident ? p.key_tile + tile_bytes : p.key_tile;
    unsigned from = PAGE, to = 0;
    for (px_i64 row = lane; row < seq->rows; row += 32) {
        int lo, hi;
        keys_of(seq, extra, row, n, k0, &lo, &hi);
        if (lo < hi && (unsigned)lo < from) from = lo;
        if (lo < hi && (unsigned)hi > to) to = hi;
    }
    p.from = (int)__reduce_min_sync(ALL, from), p.to = (int)__reduce_max_sync(ALL, to);
    const int some = p.from < p.to;
    if (some && p.resident) {
        fetch(p.key_tile, p.keys, &p, 0, PAGE, lane);
        ptx_copies_commit();
        fetch(p.value_tile, p.values, &p, 0, PAGE, lane);
        ptx_copies_commit();
    }
    for (px_i64 first = part * ROWS; first < pairs; first += parts * ROWS) {
        int lo[2], hi[2];
        __syncthreads(); /* nobody needs the queries and sums of the step before */
        for (int i = threadIdx.x; i < ROWS * (WIDE / 8); i += 128) {
            const int row = i / (WIDE / 8), chunk = i % (WIDE / 8),
                      there = first + row < pairs && chunk < CHUNKS;
            uint4 x = {0, 0, 0, 0};
            if (there)
                x = *(const uint4 *)((const element *)seq->q + query_at(&a, kv_head, first + row) +
                                     8 * chunk);
            ptx_store(tile_at(queries, STRIPE, row, chunk), x.x, x.y, x.z, x.w);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const px_i64 pair = first + 8 * r + lane / 4;
            keys_of(seq, extra, pair / group, n, k0, &lo[r], &hi[r]);
            if (pair >= pairs) hi[r] = 0;
        }
        __syncthreads();
        float s[PAGE / 8][4], top[2], all[2];
#pragma unroll
        for (int i = 0; i < PAGE / 2; i++) s[i / 4][i % 4] = 0.0f;
        ptx_copies_wait_but_one();
        __syncwarp();
        scores(s, queries, &p, lane);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = -INFINITE;
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) {
                float *const x = &s[i / 2][2 * r + i % 2];
                const int key = i / 2 * 8 + lane % 4 * 2 + i % 2;
                *x = key >= lo[r] && key < hi[r] ? *x * a.scale : -INFINITE;
                top[r] = fmaxf(top[r], *x);
            }
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(ALL, top[r], 2));
            if (lane % 4 == 0) most[warp][8 * r + lane / 4] = top[r];
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 8 * r + lane / 4;
            top[r] = fmaxf(fmaxf(most[0][row], most[1][row]), fmaxf(most[2][row], most[3][row]));
            all[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < PAGE / 4; i++) {
                float *const x = &s[i / 2][2 * r + i % 2];
                *x = *x == -INFINITE ? 0.0f : expf(*x - top[r]);
                all[r] += *x;
            }
            all[r] += __shfl_xor_sync(ALL, all[r], 1);
            all[r] += __shfl_xor_sync(ALL, all[r], 2);
            if (lane % 4 == 0) total[warp][row] = all[r];
        }
        ptx_copies_wait();
        __syncwarp();
#pragma unroll 1
        for (int column = 0; column < WIDE; column += COLS) {
            float o[COLS / 8][4];
            int nan = 0;
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) o[i / 4][i % 4] = 0.0f;
            add_values(o, s, &p, column, lane);
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) nan |= o[i / 4][i % 4] != o[i / 4][i % 4];
            if (__any_sync(ALL, nan)) {
#pragma unroll 1
                for (int row = 0; row < ROWS; row++) {
                    const int from_lane = row % 8 * 4;
                    const int row_lo = __shfl_sync(ALL, row < 8 ? lo[0] : lo[1], from_lane),
                              row_hi = __shfl_sync(ALL, row < 8 ? hi[0] : hi[1], from_lane);
                    add_values_of_row(o, s, &p, column, row, row_lo, row_hi, lane);
                }
            }
#pragma unroll 1
            for (int w = 0; w < 4; w++) {
                if (warp == w) {
#pragma unroll
                    for (int i = 0; i < COLS / 4; i++) {
                        const int j = i / 2, r = i % 2, at = column + 8 * j + lane % 4 * 2;
                        if (at >= WIDE) break;
                        float2 *const to = (float2 *)(sums + (8 * r + lane / 4) * WIDE + at);
                        float2 sum = {0.0f, 0.0f};
                        if (w) sum = *to;
                        sum.x += o[j][2 * r], sum.y += o[j][2 * r + 1];
                        *to = sum;
                    }
                }
                __syncthreads();
            }
        }
        for (int i = threadIdx.x; i < ROWS * D; i += 128) {
            const int row = i / D, d = i % D;
            if (first + row >= pairs) break;
            const px_i64 at = part_at(&a, seq, kv_head, first + row, split);
            a.part[at * D + d] = sums[row * WIDE + d];
            if (d) continue;
            a.stats[2 * at] =
                fmaxf(fmaxf(most[0][row], most[1][row]), fmaxf(most[2][row], most[3][row]));
            a.stats[2 * at + 1] = ((total[0][row] + total[1][row]) + total[2][row]) + total[3][row];
        }
    }
}
