/* Attention on a CUDA device: from a problem to kernel texts and launches, as data.
 *
 * A plan chooses kernels and tiles, builds the block mask and states bytes; flex_cuda_forward and _backward write down
 * the steps of a run over device addresses. Nothing here calls a driver, so plans and texts are made and tested on any
 * machine; who runs them compiles each text once and makes the steps in order on one stream. Types: q, k, v, o and all
 * gradients have the problem's type (bf16 or fp16 on tensor cores with fp32 sums; fp32 in plain kernels, never tf32);
 * LSE, sinks and gradients of captures are fp32. Equal inputs give equal bits: no gradient is added by atomics. */
#ifndef FLEX_FLEX_CUDA_H
#define FLEX_FLEX_CUDA_H
#include "flex/flex.h"

/* Texts, each compiled by itself. */
typedef enum flex_cuda_text {
    FLEX_CUDA_FORWARD,  /* flex_forward, or flex_plain_forward */
    FLEX_CUDA_ROWS,     /* flex_delta, flex_sinks */
    FLEX_CUDA_DQ,       /* flex_dq; in fp32 flex_plain_dq and flex_plain_dkv */
    FLEX_CUDA_DKV,      /* flex_dkv */
    FLEX_CUDA_CAPTURES, /* flex_captures, flex_captures_sum */
    FLEX_CUDA_CHECK,    /* flex_check */
    FLEX_CUDA_TEXTS
} flex_cuda_text;

typedef struct flex_cuda_plan flex_cuda_plan;
/* As flex_plan_create, type F16 too. Where blocks are given no element of a captured array is read, so `data` in env and
 * score_env may be addresses on the device (blockmask_cuda.h finds such blocks). shared: dynamic shared memory that a
 * block may have (ERR_REFUSED when a kernel needs more). Memory from a; the problem's expressions and values are borrowed. */
MUST_CHECK err flex_cuda_plan_create(flex_cuda_plan **out, const flex_problem *p, size_t shared,
                                     arena *a);
const block_mask *flex_cuda_plan_mask(const flex_cuda_plan *p);
int flex_cuda_needs(const flex_cuda_plan *p, flex_cuda_text which, int backward);
/* The text of a kernel: depends on types, head sizes and expressions alone, never on lengths or values. */
MUST_CHECK err flex_cuda_put_text(const flex_cuda_plan *p, flex_cuda_text which, str *out);
/* The mask's runs as they lie on the device, 256-aligned there. */
const void *flex_cuda_tables(const flex_cuda_plan *p, size_t *bytes);
size_t flex_cuda_workspace(const flex_cuda_plan *p);
/* Kernels and why, tiles by kind, proofs, bytes beside the tensors and of a dense run. */
MUST_CHECK err flex_cuda_explain(const flex_cuda_plan *p, str *out);

typedef uint64_t flex_cuda_address; /* device memory; 0: none */
typedef struct flex_cuda_view {
    flex_cuda_address data;
    int64_t sb, sh, sl; /* elements; last stride 1 */
} flex_cuda_view;
typedef struct flex_cuda_io {
    flex_cuda_view q, k, v, o, d_o, dq, dk, dv;
    flex_cuda_address lse, d_lse; /* as in flex_io */
    flex_cuda_address sinks, d_sinks;
    flex_cuda_address d_capture[EXPR_MAX_CAPTURES];
    flex_cuda_address mask_arrays[EXPR_MAX_CAPTURES],
        score_arrays[EXPR_MAX_CAPTURES]; /* copies of captured arrays, by capture */
    flex_cuda_address tables, workspace; /* 256-aligned */
} flex_cuda_io;

/* A step: bytes set to a value, or a launch whose one argument is the struct at args. */
typedef struct flex_cuda_step {
    flex_cuda_address fill;
    size_t fill_bytes;
    int fill_value;
    flex_cuda_text text;
    const char *function; /* NULL: a fill */
    unsigned grid[2], block, shared;
    const void *args;
    size_t arg_bytes;
} flex_cuda_step;
typedef struct flex_cuda_steps {
    flex_cuda_step *step;
    int n;
} flex_cuda_steps;
MUST_CHECK err flex_cuda_forward(const flex_cuda_plan *p, const flex_cuda_io *io, arena *a,
                                 flex_cuda_steps *out);
MUST_CHECK err flex_cuda_backward(const flex_cuda_plan *p, const flex_cuda_io *io, arena *a,
                                  flex_cuda_steps *out);

/* The two words at the start of the workspace, after forward: ERR_NUMERIC for a row with a score that is NaN or +inf;
 * *left and cell for the first load that left its array. */
enum { FLEX_CUDA_WORDS = 2 };
MUST_CHECK err flex_cuda_judge(const flex_cuda_plan *p, const uint64_t word[FLEX_CUDA_WORDS],
                               int *left, int64_t cell[4]);

#endif
