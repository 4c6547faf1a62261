/* What attention kernels get: one struct by value, read by the host, which fills it, and by device text.
 *
 * All pointers are device memory. Strides count elements. Lengths, proofs and values of captures are here and never in
 * the text, so a new length compiles nothing. Plain C types only: NVRTC has no headers. */
#ifndef FLEX_KERNELS_FLEX_ARGS_H
#define FLEX_KERNELS_FLEX_ARGS_H

typedef struct flex_gpu_view {
    void *data; /* [B, H, L, D], last stride 1 */
    long long sb, sh, sl;
    int whole; /* every row starts at a multiple of 16 bytes */
} flex_gpu_view;

typedef struct flex_gpu_run { /* of tiles: block_run */
    int start, length, full;
} flex_gpu_run;

/* Gradient of one captured array: slots with sums of their own, or, where owners keep rows apart, the result itself. */
typedef struct flex_gpu_capture {
    int capture;
    unsigned owners;    /* direct: bits b, h, q that divide its elements; 0: slots */
    long long slots;    /* warps that sum */
    long long elements; /* of the array */
    double *sums;       /* [slots, elements], zeros; NULL: direct */
    float *out;         /* [elements], zeros before */
} flex_gpu_capture;

typedef struct flex_gpu_args {
    flex_gpu_view q, k, v, o, d_o, dq, dk, dv;
    float *lse;         /* [B, Hq, L]; NULL in forward: not wanted */
    const float *d_lse; /* [B, Hq, L] or NULL */
    float *delta;       /* [B, Hq, L]: sum(dO * O) - dLSE */
    const float *sinks; /* [Hq] or NULL */
    float *d_sinks;     /* [Hq] */
    long long batch, q_heads, kv_heads, group, q_len, kv_len;
    float scale;
    int mask_narrow, score_narrow; /* 32 bits are proven enough */
    int tile_q, tile_kv;
    long long q_tiles, kv_tiles, mask_batch, mask_heads;
    const long long *row_start, *col_start;
    const flex_gpu_run *row_run, *col_run;
    const int *row_order, *col_order; /* tiles, the longest first */
    unsigned long long *left;         /* least cell that reaches a load that left; all ones: none */
    unsigned long long *bad; /* least row with a score that is NaN or +inf; all ones: none */
    flex_gpu_capture wanted;
    px_env mask_env, score_env;
} flex_gpu_args;

#endif
