/* Cells of a mask where interval analysis leaves a question: what a tile is, and which rows see a key.
 *
 * A block of threads is a box of cells. Its threads are keys, rows go by; what a mask hoists down a column is computed
 * once per column. All numbers that threads share are bits and minima of integers, so equal masks give equal answers. */
enum { SOME = 1, HIDDEN = 2, REACHES = 4, GROUP = 16 };

PX_FN int cell_at(const px_env *e, const mask_tile_64 *t, const mask_kv_64 *c, px_i64 b, px_i64 h,
                  px_i64 q, px_i64 kv) {
    mask_q_64 r;
    mask_by_q_64(e, t, b, h, q, &r);
    return mask_cell_64(e, t, &r, c, b, h, q, kv) != 0;
}

/* Two kinds of cells make a tile partial: the rest is looked at for loads alone. */
extern "C" __global__ void __launch_bounds__(128)
    blockmask_count(const __grid_constant__ blockmask_gpu_args a) {
    __shared__ unsigned bits;
    __shared__ unsigned long long least;
    const px_env *const e = &a.env;
    const blockmask_gpu_box x = a.box[blockIdx.x];
    unsigned all = 0;
    mask_tile_64 t;
    mask_kv_64 c;
    if (threadIdx.x == 0) bits = 0, least = ~0ULL;
    __syncthreads();
    mask_by_tile_64(e, x.b, x.h, &t);
    for (px_i64 k = 0; k < x.keys; k += 128) {
        const px_i64 at = k + threadIdx.x, kv = x.kv + at;
        const int here = at < x.keys;
        if (here) mask_by_kv_64(e, &t, x.b, x.h, kv, &c);
        for (int row = 0; row < x.rows; row += GROUP) {
            unsigned mine = 0;
            const int end = row + GROUP < x.rows ? row + GROUP : x.rows;
            for (int i = row; here && i < end; i++) {
                const int seen = cell_at(e, &t, &c, x.b, x.h, x.q + i, kv);
                mine |= seen ? SOME : HIDDEN;
                if (x.loads && mask_left(e, x.b, x.h, x.q + i, kv)) {
                    mine |= REACHES;
                    if (seen) atomicMin(&least, (unsigned long long)(i * x.keys + at));
                }
            }
            if (mine) atomicOr(&bits, mine);
            __syncthreads();
            all = bits;
            __syncthreads();
            if (!x.loads && (all & (SOME | HIDDEN)) == (SOME | HIDDEN)) break;
        }
        if (!x.loads && (all & (SOME | HIDDEN)) == (SOME | HIDDEN)) break;
    }
    if (threadIdx.x != 0) return;
    blockmask_gpu_count *const out = &a.count[blockIdx.x];
    out->left = least;
    out->some = (all & SOME) != 0;
    out->all = (all & HIDDEN) == 0;
    out->reaches = (all & REACHES) != 0;
    out->zero = 0;
}

/* A warp is a row, its lanes keys, until it sees one. */
extern "C" __global__ void __launch_bounds__(128)
    blockmask_rows(const __grid_constant__ blockmask_gpu_args a) {
    const px_env *const e = &a.env;
    const blockmask_gpu_box x = a.box[blockIdx.x];
    const int lane = threadIdx.x & 31;
    mask_tile_64 t;
    mask_kv_64 c;
    mask_by_tile_64(e, x.b, x.h, &t);
    for (int i = threadIdx.x / 32; i < x.rows; i += 4) {
        int seen = 0;
        for (px_i64 k = 0; k < x.keys && !seen; k += 32) {
            const px_i64 at = k + lane;
            if (at < x.keys) {
                mask_by_kv_64(e, &t, x.b, x.h, x.kv + at, &c);
                seen = cell_at(e, &t, &c, x.b, x.h, x.q + i, x.kv + at);
            }
            seen = __any_sync(0xffffffffu, seen);
        }
        if (seen && lane == 0)
            atomicOr(a.seen + (px_i64)x.slot * BLOCKMASK_WORDS + i / 32, 1u << i % 32);
    }
}
