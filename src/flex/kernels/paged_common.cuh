/* Paged decode attention, what both forms of its splits share, and the kernel that joins splits from left to right.
 *
 * A block of threads of paged_split (paged_mma.cu, paged_plain.cu) is one split of SPLIT keys of one key head and walks the
 * query rows of its group; a warp has the PAGE keys of one page. A row's bits depend on its query and its keys alone:
 * splits start at fixed positions, warps are added in order, and what a row does not see is not multiplied for it. Other
 * rows, sequences, the number of blocks and of splits change nothing. */
#define SPLIT  256
#define PAGE   64
#define CHUNKS (D / 8)

/* The keys that a row sees, first and behind the last. */
PX_FN void visible_keys(const paged_gpu_seq *seq, int extra, px_i64 row, px_i64 n, px_i64 *lo,
                        px_i64 *hi) {
    *lo = 0, *hi = n;
    if (extra) return;
    if (seq->first >= 0 && seq->first + row + 1 < n) *hi = seq->first + row + 1;
    if (seq->window > 0 && seq->window_pos + row - seq->window + 1 > 0)
        *lo = seq->window_pos + row - seq->window + 1;
}

/* Where a row of a head of this key head keeps what split `split` has given. */
PX_FN px_i64 part_at(const paged_gpu_args *a, const paged_gpu_seq *seq, px_i64 kv_head, px_i64 pair,
                     int split) {
    const px_i64 group = a->q_heads / a->kv_heads;
    return ((seq->row0 + pair / group) * a->q_heads + kv_head * group + pair % group) *
               (a->splits + a->extra_splits) +
           split;
}
PX_FN px_i64 query_at(const paged_gpu_args *a, px_i64 kv_head, px_i64 pair) {
    const px_i64 group = a->q_heads / a->kv_heads;
    return (pair / group * a->q_heads + kv_head * group + pair % group) * D;
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
