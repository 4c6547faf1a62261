/* Paged decode attention: a warp is one query row of one head against one split of SPLIT keys; a second kernel joins the
 * splits from left to right.
 *
 * A row's bits depend on its query and its keys alone: a score is a chain of fused products over rising dimensions, a
 * split's sum and its output run over rising keys, and splits start at fixed positions. Other rows, sequences, the number
 * of blocks and of splits change nothing. Keys that a row does not see are not read. Lanes are keys while scores are made
 * and chunks of eight dimensions while values are added. */
#define SPLIT  256
#define PAGE   64
#define CHUNKS (D / 8)

PX_FN void read_chunk(float x[8], const element *from) {
#if ELEMENT == 0
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
#else
    const uint4 a = *(const uint4 *)from;
    const unsigned word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = element_float((element)word[i]);
        x[2 * i + 1] = element_float((element)(word[i] >> 16));
    }
#endif
}

/* Key (or value) j of the pages, or of the extra keys where pages is NULL. */
PX_FN const element *key_row(const paged_gpu_args *a, const void *base, const int *pages, px_i64 j,
                             px_i64 kv_head) {
    const px_i64 token = pages ? (px_i64)pages[j / PAGE] * PAGE + j % PAGE : j;
    return (const element *)base + (token * a->kv_heads + kv_head) * D;
}

extern "C" __global__ void __launch_bounds__(128)
    paged_split(const __grid_constant__ paged_gpu_args a) {
    __shared__ float query[4][D];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, split = blockIdx.x,
              splits = a.splits + a.extra_splits;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const px_i64 kv_head = blockIdx.z, group = a.q_heads / a.kv_heads;
    const int extra = split >= a.splits;
    const px_i64 k0 = (px_i64)(extra ? split - a.splits : split) * SPLIT,
                 n = extra ? seq->n_extra : seq->n_keys;
    const void *const keys = extra ? seq->extra_k : a.k_pool, *const values =
                                                                  extra ? seq->extra_v : a.v_pool;
    const int *const pages = extra ? 0 : seq->pages;
    for (px_i64 pair = warp; pair < seq->rows * group; pair += 4) {
        const px_i64 row = pair / group, h = kv_head * group + pair % group;
        px_i64 lo = k0, hi = k0 + SPLIT < n ? k0 + SPLIT : n;
        if (!extra && seq->first >= 0 && seq->first + row + 1 < hi) hi = seq->first + row + 1;
        if (!extra && seq->window > 0 && seq->window_pos + row - seq->window + 1 > lo)
            lo = seq->window_pos + row - seq->window + 1;
        const px_i64 at = ((seq->row0 + row) * a.q_heads + h) * splits + split;
        __syncwarp();
        for (int i = lane; i < D; i += 32)
            query[warp][i] =
                element_float(((const element *)seq->q)[(row * a.q_heads + h) * D + i]);
        __syncwarp();
        float s[SPLIT / 32], top = -INFINITE, sum = 0.0f,
                             o[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < SPLIT / 32; i++) {
            const px_i64 j = k0 + 32 * i + lane;
            s[i] = -INFINITE;
            if (j >= lo && j < hi) {
                const element *const key = key_row(&a, keys, pages, j, kv_head);
                float dot = 0.0f, x[8];
                for (int c = 0; c < CHUNKS; c++) {
                    read_chunk(x, key + 8 * c);
#pragma unroll
                    for (int e = 0; e < 8; e++) dot = __fmaf_rn(query[warp][8 * c + e], x[e], dot);
                }
                s[i] = dot * a.scale;
            }
            float most = s[i];
            for (int by = 16; by; by /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, by));
            top = fmaxf(top, most);
        }
#pragma unroll
        for (int i = 0; i < SPLIT / 32; i++) {
            const px_i64 first = k0 + 32 * i;
            const float p = s[i] == -INFINITE ? 0.0f : expf(s[i] - top);
            float all = p;
            for (int by = 16; by; by /= 2) all += __shfl_xor_sync(ALL, all, by);
            sum += all;
            const int from = lo > first ? (int)(lo - first) : 0,
                      to = hi - first < 32 ? (int)(hi - first) : 32;
            for (int k = from; k < to; k++) { /* empty where nothing of these 32 is seen */
                const float by = __shfl_sync(ALL, p, k);
                float x[8];
                if (lane >= CHUNKS) continue;
                read_chunk(x, key_row(&a, values, pages, first + k, kv_head) + 8 * lane);
#pragma unroll
                for (int e = 0; e < 8; e++) o[e] = __fmaf_rn(by, x[e], o[e]);
            }
        }
        if (lane < CHUNKS && lo < hi)
            for (int e = 0; e < 8; e++) a.part[at * D + 8 * lane + e] = o[e];
        if (lane == 0) a.stats[2 * at] = top, a.stats[2 * at + 1] = lo < hi ? sum : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    paged_join(const __grid_constant__ paged_gpu_args a) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, splits = a.splits + a.extra_splits;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const px_i64 pair = (px_i64)blockIdx.x * 4 + warp;
    if (pair >= seq->rows * a.q_heads) return;
    const px_i64 first = (seq->row0 * a.q_heads + pair) * splits;
    float top = -INFINITE, sum = 0.0f, o[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < splits; i++) {
        const float more = a.stats[2 * (first + i) + 1], here = a.stats[2 * (first + i)];
        if (more == 0.0f) continue;
        const float most = fmaxf(top, here), keep = sum == 0.0f ? 0.0f : expf(top - most),
                    add = expf(here - most);
        sum = __fmaf_rn(sum, keep, more * add);
        top = most;
        for (int e = 0; e < 8 && lane < CHUNKS; e++)
            o[e] = __fmaf_rn(o[e], keep, a.part[(first + i) * D + 8 * lane + e] * add);
    }
    element *const out = (element *)seq->o + pair * D + 8 * lane;
    for (int e = 0; e < 8 && lane < CHUNKS; e++)
        out[e] = element_of(sum == 0.0f ? 0.0f : o[e] / sum);
}
