/* The operations of ops.def over vectors of cells, one table per instruction set. Private to this folder.
 *
 * All tables give the same bits: the loops are the same text (expr_lanes_body.h) compiled for different
 * processors, with fused multiply-add off. Vectors have a multiple of EXPR_LANES_STEP elements. */
#ifndef EXPR_EXPR_LANES_H
#define EXPR_EXPR_LANES_H
#include "expr/ir.h"

enum { EXPR_LANES_STEP = 32 };

/* n is 1 or a multiple of EXPR_LANES_STEP; a step of 0 repeats the operand's one value. */
typedef void expr_lanes_op(void *out, const void *x, const void *y, int step_x, int step_y,
                           int64_t n);
typedef void expr_lanes_choice(void *out, const uint8_t *c, const void *x, const void *y,
                               int step_c, int step_x, int step_y, int64_t n);
struct expr_lanes {
    expr_lanes_op *op[IR_OP_COUNT];            /* element-wise ones, AND and OR */
    expr_lanes_choice *select[EXPR_FLOAT + 1]; /* by type */
    /* Gradients; n is a multiple of EXPR_LANES_STEP. A gradient of 0 passes on exactly 0, whatever the derivative d is. */
    /* g := g * d * scale; 1 when something is not finite. */
    int (*chain)(float *g, const float *d, int step_d, float scale, int64_t n);
    /* sum[i] += g * d; 1 when a product is not finite. */
    int (*gather)(float *sum, const float *g, const float *d, int step_d, int64_t n);
    /* 1 when x is NaN or +inf where visible (NULL: anywhere). */
    int (*is_bad)(const float *x, const uint8_t *visible, int64_t n);
};
typedef struct expr_lanes expr_lanes;

extern const expr_lanes expr_lanes__portable, expr_lanes__avx2, expr_lanes__avx512;
/* The widest this processor has, bounded by PACELINE_ISA. */
const expr_lanes *expr_lanes__choose(void);

#endif
