/* A split of paged decode attention in fp32, PAIRS rows at a time: see paged_common.cuh.
 *
 * A score is a chain of fused products over rising dimensions; each warp adds the weights and values of its keys in an
 * order that the head size fixes. Keys that no row of a step sees are not read. Lanes are keys while scores are made;
 * while values are added they are chunks of eight dimensions of LANES keys side by side. */
#define PAIRS PAGED_GPU_PLAIN_ROWS
/* Keys side by side: what is left of a warp by the chunks of one. */
#define LANES                                                                                      \
    (CHUNKS > 16 ? 1 : CHUNKS > 8 ? 2 : CHUNKS > 4 ? 4 : CHUNKS > 2 ? 8 : CHUNKS > 1 ? 16 : 32)

PX_FN void read_chunk(float x[8], const element *from) {
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

extern "C" __global__ void __launch_bounds__(128)
    paged_split(const __grid_constant__ paged_gpu_args a) {
    __shared__ __align__(16) float query[PAIRS][D];
    __shared__ float most[4][PAIRS], total[4][PAIRS], sums[4][PAIRS][D];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, split = blockIdx.x;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const int kv_head = (int)blockIdx.z % a.kv_heads, part = (int)blockIdx.z / a.kv_heads,
              parts = (int)gridDim.z / a.kv_heads;
    const int group = a.q_heads / a.kv_heads, pairs = (int)seq->rows * group;
    const int extra = split >= a.splits;
    const px_i64 k0 = (px_i64)(extra ? split - a.splits : split) * SPLIT + warp * PAGE,
                 n = extra ? seq->n_extra : seq->n_keys;
    const px_i64 apart = a.kv_heads * D;
    /* This warp's page, where it has keys. */
    const px_i64 token = k0 >= n ? 0 : extra ? k0 : (px_i64)seq->pages[k0 / PAGE] * PAGE;
    const element *const keys =
        (const element *)(extra ? seq->extra_k : a.k_pool) + (token * a.kv_heads + kv_head) * D;
    const element *const values =
        (const element *)(extra ? seq->extra_v : a.v_pool) + (token * a.kv_heads + kv_head) * D;
    for (int first = part * PAIRS; first < pairs; first += parts * PAIRS) {
        int lo[PAIRS], hi[PAIRS], from = PAGE, to = 0; /* within the page */
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            px_i64 low, high;
            visible_keys(seq, extra, (first + p) / group, n, &low, &high);
            low -= k0, high -= k0;
            lo[p] = low < 0 ? 0 : low > PAGE ? PAGE : (int)low;
            hi[p] = first + p >= pairs || high < 0 ? 0 : high > PAGE ? PAGE : (int)high;
            if (lo[p] < hi[p] && lo[p] < from) from = lo[p];
            if (lo[p] < hi[p] && hi[p] > to) to = hi[p];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < PAIRS * D; i += 128) {
            const int pair = first + i / D;
            query[i / D][i % D] =
                pair < pairs ? ((const element *)seq->q)[query_at(&a, kv_head, pair) + i % D]
                             : 0.0f;
        }
        __syncthreads();
        float s[PAIRS][PAGE / 32];
#pragma unroll
        for (int i = 0; i < PAGE / 32; i++) {
            const int j = 32 * i + lane;
#pragma unroll
            for (int p = 0; p < PAIRS; p++) s[p][i] = 0.0f;
            if (j >= from && j < to) {
#pragma unroll 4
                for (int c = 0; c < CHUNKS; c++) {
                    float x[8];
                    read_chunk(x, keys + j * apart + 8 * c);
#pragma unroll
                    for (int p = 0; p < PAIRS; p++) {
                        const float4 u = *(const float4 *)&query[p][8 * c],
                                     v = *(const float4 *)&query[p][8 * c + 4];
                        s[p][i] = __fmaf_rn(u.x, x[0], s[p][i]);
                        s[p][i] = __fmaf_rn(u.y, x[1], s[p][i]);
                        s[p][i] = __fmaf_rn(u.z, x[2], s[p][i]);
                        s[p][i] = __fmaf_rn(u.w, x[3], s[p][i]);
                        s[p][i] = __fmaf_rn(v.x, x[4], s[p][i]);
                        s[p][i] = __fmaf_rn(v.y, x[5], s[p][i]);
                        s[p][i] = __fmaf_rn(v.z, x[6], s[p][i]);
                        s[p][i] = __fmaf_rn(v.w, x[7], s[p][i]);
                    }
                }
            }
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
                s[p][i] = j >= lo[p] && j < hi[p] ? s[p][i] * a.scale : -INFINITE;
        }
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            float x = fmaxf(s[p][0], s[p][1]);
            for (int by = 16; by; by /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, by));
            if (lane == 0) most[warp][p] = x;
        }
        __syncthreads();
        float o[PAIRS][8];
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const float top = fmaxf(fmaxf(most[0][p], most[1][p]), fmaxf(most[2][p], most[3][p]));
#pragma unroll
            for (int i = 0; i < PAGE / 32; i++)
                s[p][i] = s[p][i] == -INFINITE ? 0.0f : expf(s[p][i] - top);
            float all = s[p][0] + s[p][1];
            for (int by = 16; by; by /= 2) all += __shfl_xor_sync(ALL, all, by);
            if (lane == 0) total[warp][p] = all;
#pragma unroll
            for (int e = 0; e < 8; e++) o[p][e] = 0.0f;
        }
        const int beside = lane / (32 / LANES), chunk = lane % (32 / LANES);
        /* In steps of LANES keys from a multiple of it, so that a key's lane does not depend on what others see. */
#pragma unroll 4
        for (int k = from / LANES * LANES; k < to; k += LANES) {
            const int j = k + beside, reads = j >= from && j < to && chunk < CHUNKS;
            float x[8];
            if (reads) read_chunk(x, values + j * apart + 8 * chunk);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                const float low = __shfl_sync(ALL, s[p][0], j & 31),
                            high = __shfl_sync(ALL, s[p][1], j & 31);
                const float by = j < 32 ? low : high;
                if (!reads || j < lo[p] || j >= hi[p]) continue;
#pragma unroll
                for (int e = 0; e < 8; e++) o[p][e] = __fmaf_rn(by, x[e], o[p][e]);
            }
        }
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                for (int by = 16; by >= 32 / LANES; by /= 2)
                    o[p][e] += __shfl_xor_sync(ALL, o[p][e], by);
                if (beside == 0 && chunk < CHUNKS) sums[warp][p][8 * chunk + e] = o[p][e];
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < PAIRS * D; i += 128) {
            const int p = i / D, d = i % D;
            const int pair = first + p;
            if (pair >= pairs) break;
            const px_i64 at = part_at(&a, seq, kv_head, pair, split);
            a.part[at * D + d] = ((sums[0][p][d] + sums[1][p][d]) + sums[2][p][d]) + sums[3][p][d];
            if (d) continue;
            a.stats[2 * at] = fmaxf(fmaxf(most[0][p], most[1][p]), fmaxf(most[2][p], most[3][p]));
            a.stats[2 * at + 1] = ((total[0][p] + total[1][p]) + total[2][p]) + total[3][p];
        }
    }
}
