/* Flex attention on one device: problem → plan → run.
 *
 * s = scale * q·k → score expression → mask (-inf) → softmax (fp32) → · v. LSE is the natural log, fp32. A row that sees nothing
 * gives output 0, LSE -inf and zero gradients; keys hidden by the mask are never multiplied. GQA: query head h reads kv head
 * h / (Hq/Hkv). A sink joins the denominator of its head's rows alone: LSE = log(sum_j exp(score_j) + exp(sink)).
 * Memory follows tiles: no per-cell buffer exists. Results do not depend on the number of threads. Tensors are host memory;
 * on a CUDA device they are copied there and back at every run, which checks its kernels: flex_cuda.h is the fast way. */
#ifndef FLEX_FLEX_H
#define FLEX_FLEX_H
#include "flex/blockmask.h"

/* A strided view [B, H, L, D]: element strides, last stride 1 implied. fp32 or bf16. */
typedef struct flex_view {
    dtype type;
    const void *data;
    int64_t sb, sh, sl;
} flex_view;
typedef struct flex_out {
    float *data;
    int64_t sb, sh, sl;
} flex_out; /* fp32 outputs and gradients */

typedef struct flex_problem {
    int64_t batch, q_heads, kv_heads, q_len, kv_len, dim,
        v_dim;           /* dim, v_dim multiples of 8, 8..256 */
    dtype type;          /* of q, k, v: F32 or BF16; outputs are fp32 */
    float scale;         /* 0 without zero_scale: 1/sqrt(dim) */
    int zero_scale;      /* a scale of 0 is meant as it stands */
    const expr *mask;    /* NULL: everything visible. Borrowed for the plan's life */
    const expr_env *env; /* values of captures; borrowed for the plan's life */
    const expr *score;   /* NULL: the scaled logit as it is. Borrowed, as is its env */
    const expr_env *score_env;
    unsigned
        score_grads; /* bit i: backward makes the gradient of the score's capture i, a float one */
    const float *sinks;      /* [q_heads] logits, read when run; NULL: none */
    int32_t tile_q, tile_kv; /* 0: chosen by the plan */
    size_t mask_budget;      /* 0: 256 MiB */
    /* Tiles given (blockmask_lists.h), or built before (blockmask_cuda.h), instead of built by the plan: full ones are visible whole, partial ones are decided by mask, the
     * others never looked at. Their tile sizes are used. Borrowed for the plan's life. NULL: built from mask. */
    const block_mask *blocks;
} flex_problem;

typedef struct flex_plan flex_plan;
/* Checks the problem with sentences (ERR_SHAPE, ERR_RANGE), builds the block mask. Memory from a. */
MUST_CHECK err flex_plan_create(flex_plan **out, dev *d, const flex_problem *p, arena *a);
const block_mask *flex_plan_mask(const flex_plan *p);
const flex_problem *flex_plan_problem(const flex_plan *p);
size_t flex_forward_workspace(const flex_plan *p, int threads);
size_t flex_backward_workspace(const flex_plan *p, int threads);
double flex_plan_visited(const flex_plan *p); /* share of cells in visited tiles */
double flex_dense_bytes(const flex_plan *p);  /* what one dense fp32 score matrix would take */
/* Human-readable explanation (kernel and why, tiles by kind, share visited, bytes taken, dense bytes, compiles). */
MUST_CHECK err flex_plan_explain(const flex_plan *p, str *out);

typedef struct flex_io {
    flex_view q, k, v;
    flex_out o; /* [B, Hq, L, Dv] */
    float *lse; /* [B, Hq, L] contiguous; NULL in forward: not wanted. Needed by backward */
    /* backward only: */
    flex_view d_o;       /* fp32 gradient of o */
    const float *d_lse;  /* [B, Hq, L] or NULL */
    flex_out dq, dk, dv; /* written whole (not accumulated), as are the next two */
    float *d_capture
        [EXPR_MAX_CAPTURES]; /* of the shape of the score's captures; wanted ones (score_grads) */
    float *d_sinks;          /* [q_heads]; needed with sinks */
    void *workspace;         /* of the size the plan states, 64-aligned */
    int *left; /* set to 1 when a load left its array in an evaluated cell; may be NULL */
    int64_t left_cell[4]; /* b, h, q, kv of one such cell */
} flex_io;
/* ERR_NUMERIC names the first visible cell for which the score expression gives NaN or +inf; -inf hides a cell. Without one a
 * NaN in q, k or v reaches the rows that see it. */
MUST_CHECK err flex_forward(const flex_plan *p, dev *d, flex_io *io);
MUST_CHECK err flex_backward(const flex_plan *p, dev *d,
                             flex_io *io); /* reads o, lse of forward, d_o, d_lse */

/* The quadratic definition in double, one loop per index; used by tests and PACELINE_REFERENCE=1. */
MUST_CHECK err flex_reference_forward(const flex_problem *p, flex_io *io);
MUST_CHECK err flex_reference_backward(const flex_problem *p, flex_io *io);
/* Merges n partial results by their LSE: o[n] rows of dv; empty parts carry -inf. Definition of B02. */
void flex_merge(int n, const float *const *o, const float *lse, int64_t dv, float *out,
                float *out_lse);

#endif
