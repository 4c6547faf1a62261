/* Paged decode attention, what both forms of its splits share, and the kernel that joins splits.
 *
 * A block of threads of paged_split (paged_mma.cu, paged_plain.cu) is one split of SPLIT keys of one key head and walks the
 * query rows of its group (pairs of a row and a head); each warp has its keys. A row's bits depend on its query and its keys
 * alone: splits start at fixed positions, warps and splits are added in order, and what a row does not see is not multiplied
 * for it. Other rows, sequences, the number of blocks and of splits change nothing. */
#define PAGE   64
#define CHUNKS (D / 8)
#if ELEMENT == 0
#define SPLIT PAGED_GPU_PLAIN_SPLIT
#else
#define SPLIT PAGED_GPU_MMA_SPLIT
#endif

/* The keys that a row sees, first and behind the last. */
PX_FN void visible_keys(const paged_gpu_seq *seq, int extra, px_i64 row, px_i64 n, px_i64 *lo,
                        px_i64 *hi) {
    *lo = 0, *hi = n;
    if (extra) return;
    if (seq->first >= 0 && seq->first + row + 1 < n) *hi = seq->first + row + 1;
    if (seq->window > 0 && seq->window_pos + row - seq->window + 1 > 0)
        *lo = seq->window_pos + row - seq->window + 1;
}

/* Where a pair keeps what a split has given. */
PX_FN px_i64 part_at(const paged_gpu_args *a, const paged_gpu_seq *seq, int kv_head, int pair, int split) {
    const int group = a->q_heads / a->kv_heads;
    return ((seq->row0 + pair / group) * a->q_heads + kv_head * group + pair % group) *
               (a->splits + a->extra_splits) +
           split;
}
PX_FN px_i64 query_at(const paged_gpu_args *a, int kv_head, int pair) {
    const int group = a->q_heads / a->kv_heads;
    return ((px_i64)(pair / group) * a->q_heads + kv_head * group + pair % group) * D;
}

#define HALVES (D > 128 ? 2 : 1)
#define MANY   (16 / HALVES) /* splits at a time */

/* A warp is one row of one head; a lane has four dimensions, or twice four. */
extern "C" __global__ void __launch_bounds__(128)
    paged_join(const __grid_constant__ paged_gpu_args a) {
    const int lane = threadIdx.x & 31, splits = a.splits + a.extra_splits;
    const paged_gpu_seq *const seq = &a.seqs[blockIdx.y];
    const px_i64 pair = (px_i64)blockIdx.x * 4 + threadIdx.x / 32;
    if (pair >= seq->rows * a.q_heads) return;
    const px_i64 first = (seq->row0 * a.q_heads + pair) * splits;
    const float2 *const stats = (const float2 *)a.stats + first;
    float top = -INFINITE, sum = 0.0f, o[HALVES][4];
#pragma unroll
    for (int i = 0; i < 4 * HALVES; i++) o[i / 4][i % 4] = 0.0f;
    for (int i = lane; i < splits; i += 32) top = fmaxf(top, stats[i].x);
    for (int by = 16; by; by /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, by));
    for (int i = 0; i < splits; i += 32) {
        float2 mine = {-INFINITE, 0.0f};
        if (i + lane < splits) mine = stats[i + lane];
        const float weight = mine.y == 0.0f ? 0.0f : expf(mine.x - top);
        for (int k = 0; k < 32 && i + k < splits; k += MANY) {
            float4 x[MANY][HALVES];
            float by[MANY];
#pragma unroll
            for (int u = 0; u < MANY; u++) { /* loads first, then sums in order */
                const float all = __shfl_sync(ALL, mine.y, k + u);
                by[u] = __shfl_sync(ALL, weight, k + u);
                sum = __fmaf_rn(all, by[u], sum);
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    const int d = 128 * half + 4 * lane;
                    /* A split without keys has not written; what is read instead counts as 0. No branch
                     * between loads: all of them are on their way at once. */
                    const int there = d < D && all != 0.0f;
                    const float4 *const from = (const float4 *)(a.part + (first + i + k + u) * D + d);
                    x[u][half] = *(there ? from : (const float4 *)seq);
                    if (!there) x[u][half] = float4{0.0f, 0.0f, 0.0f, 0.0f};
                }
            }
#pragma unroll
            for (int u = 0; u < MANY; u++) {
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    o[half][0] = __fmaf_rn(x[u][half].x, by[u], o[half][0]);
                    o[half][1] = __fmaf_rn(x[u][half].y, by[u], o[half][1]);
                    o[half][2] = __fmaf_rn(x[u][half].z, by[u], o[half][2]);
                    o[half][3] = __fmaf_rn(x[u][half].w, by[u], o[half][3]);
                }
            }
        }
    }
    element *const out = (element *)seq->o + pair * D;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int d = 128 * half + 4 * lane;
        for (int e = 0; e < 4 && d < D; e++)
            out[d + e] = element_of(sum == 0.0f ? 0.0f : o[half][e] / sum);
    }
}
