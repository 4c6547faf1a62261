/* The quadratic definition of attention in double precision, on contiguous double arrays.
 *
 * flex_reference_forward and _backward (flex.h) widen strided views, call these and round once at the end; tests
 * take finite differences of them. Memory is two rows of scores. Cells hidden by the mask are skipped, never
 * multiplied. */
#ifndef FLEX_FLEXREF_H
#define FLEX_FLEXREF_H
#include "flex/flex.h"

typedef struct flexref_data {
    const double *q, *k, *v;   /* [B, Hq, L, D], [B, Hkv, S, D], [B, Hkv, S, Dv] */
    double *o, *lse;           /* [B, Hq, L, Dv], [B, Hq, L] */
    const double *d_o, *d_lse; /* backward; d_lse may be NULL */
    double *dq, *dk, *dv;
    double *d_capture
        [EXPR_MAX_CAPTURES]; /* wanted captures of the score; added to zeros that this writes */
    double *d_sinks;         /* [Hq], with sinks */
    int left;                /* a load left its array in an evaluated cell, the first one here */
    int64_t left_cell[4];
} flexref_data;

MUST_CHECK err flexref_forward(const flex_problem *p, flexref_data *x);
MUST_CHECK err flexref_backward(const flex_problem *p, flexref_data *x); /* reads o and lse */

#endif
