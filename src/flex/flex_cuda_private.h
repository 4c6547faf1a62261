/* What a plan for a CUDA device is made of. Private to src/flex.
 *
 * flex_cuda.c makes plans and steps, flex_kernels.c embeds the device text and puts texts together. */
#ifndef FLEX_FLEX_CUDA_PRIVATE_H
#define FLEX_FLEX_CUDA_PRIVATE_H
#include "expr/expr_cuda.h"
#include "flex/flex_cuda.h"
#include "flex/kernels/flex_args.h"

/* How one kernel cuts its work. */
typedef struct flex_cuda__cut {
    int warps, mt;             /* a warp has mt x 16 rows */
    int bm, bn;                /* rows of a block of threads, columns of a step */
    int stages, parts, blocks; /* blocks: of threads on a multiprocessor at once, at least */
    unsigned shared;
} flex_cuda__cut;

struct flex_cuda_plan {
    flex_problem p; /* scale, tiles resolved */
    block_mask mask;
    expr_grad *grad;         /* NULL: no score */
    int plain;               /* fp32 */
    int score_narrow, check; /* proven in 32 bits; some load is not proven inside */
    flex_cuda__cut forward, dq, dkv;
    dtype mask_types[EXPR_MAX_CAPTURES], score_types[EXPR_MAX_CAPTURES];
    flex_gpu_capture wanted[EXPR_MAX_CAPTURES]; /* sums: offset in the workspace until bound */
    int n_wanted;
    char *tables;
    size_t tables_bytes, row_start, col_start, row_run, col_run, row_order,
        col_order;                 /* offsets in tables */
    size_t workspace, delta, sums; /* bytes; offsets */
};

/* The text of paged decode attention. */
MUST_CHECK err flex_kernels__put_paged(dtype type, int64_t dim, str *out);
/* Texts of block masks: the same leaves for all; cells of one mask, type by capture. */
MUST_CHECK err flex_kernels__put_leaves(str *out);
MUST_CHECK err flex_kernels__put_cells(const expr *mask, const dtype *type, str *out);

#endif
