/* What the kernels of paged decode attention get: read by the host, which fills it, and by device text.
 *
 * All pointers are device memory, sequences too, so a round changes lengths and page tables without the host. */
#ifndef FLEX_KERNELS_PAGED_ARGS_H
#define FLEX_KERNELS_PAGED_ARGS_H

/* How the work is cut, for the host's grids and the text alike: keys of a split, rows of a step, warps of a block. */
enum {
    PAGED_GPU_MMA_SPLIT = 128,
    PAGED_GPU_MMA_ROWS = 16,
    PAGED_GPU_PLAIN_SPLIT = 256,
    PAGED_GPU_PLAIN_ROWS = 4,
    PAGED_GPU_WARPS = 4
};

typedef struct paged_gpu_seq { /* as paged_seq of paged.h */
    const int *pages;
    long long n_keys, rows, first, window, window_pos;
    const void *q;                 /* [rows, q_heads, dim] */
    const void *extra_k, *extra_v; /* [n_extra, kv_heads, dim] */
    long long n_extra;
    void *o;        /* [rows, q_heads, dim] */
    long long row0; /* its first row among the rows of all sequences */
} paged_gpu_seq;

typedef struct paged_gpu_args {
    const paged_gpu_seq *seqs;
    const void *k_pool, *v_pool;
    int q_heads, kv_heads;
    float scale;
    int splits, extra_splits; /* room for so many of paged and of extra keys */
    int resident; /* 16-bit: shared memory holds the keys and the values of a split at once */
    float *part;  /* [rows, q_heads, splits + extra_splits, dim] */
    float *stats; /* [rows, q_heads, splits + extra_splits, 2]: maximum and sum */
} paged_gpu_args;

#endif
