/* What the kernels of block masks get and give back: read by the host, which fills it, and by device text.
 *
 * All pointers are device memory. Plain C types only: NVRTC has no headers. */
#ifndef FLEX_KERNELS_BLOCKMASK_ARGS_H
#define FLEX_KERNELS_BLOCKMASK_ARGS_H

/* Element types of captured arrays. */
enum {
    BLOCKMASK_I64,
    BLOCKMASK_I32,
    BLOCKMASK_I16,
    BLOCKMASK_I8,
    BLOCKMASK_U8,
    BLOCKMASK_BOOL,
    BLOCKMASK_FLOATS, /* from here on */
    BLOCKMASK_F32 = BLOCKMASK_FLOATS,
    BLOCKMASK_F64,
    BLOCKMASK_BF16,
    BLOCKMASK_F16
};

enum { BLOCKMASK_ROWS = 128, BLOCKMASK_WORDS = BLOCKMASK_ROWS / 32 }; /* of a slot */

/* interval_leaf: floats are in the low half of lo and hi. */
typedef struct blockmask_gpu_leaf {
    long long lo, hi;
    unsigned long long set;
} blockmask_gpu_leaf;

typedef struct blockmask_gpu_leaves {
    px_value array; /* data */
    long long elements, block, leaves;
    int type;      /* of its elements */
    int condition; /* they count as "not zero" */
    blockmask_gpu_leaf *out;
} blockmask_gpu_leaves;

/* Cells of one batch entry and head. */
typedef struct blockmask_gpu_box {
    long long b, h, q, kv; /* first */
    long long keys;
    int rows;
    int slot;  /* rows: where they are noted */
    int loads; /* count: loads that leave are looked for */
} blockmask_gpu_box;

typedef struct blockmask_gpu_count {
    unsigned long long
        left; /* least visible cell, row by row, that reaches a load that left; all ones: none */
    int some, all; /* cells are visible */
    int reaches;   /* some cell reaches such a load; known where looked for */
    int zero;      /* in the place of padding, so that every byte that is copied was written */
} blockmask_gpu_count;

typedef struct blockmask_gpu_args {
    px_env env;
    const blockmask_gpu_box *box;
    blockmask_gpu_count *count; /* by box */
    unsigned *seen; /* [slots, BLOCKMASK_WORDS], zeros before: bit r % 32 of word r / 32 is row r */
} blockmask_gpu_args;

#endif
