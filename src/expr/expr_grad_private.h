/* What a score with its derivative is made of. Private to this folder.
 *
 * All roots lie in one program: the score, its derivative by s, and for each site the derivative and the node that
 * reads the captured value. Evaluators start from the roots that they need. */
#ifndef EXPR_EXPR_GRAD_PRIVATE_H
#define EXPR_EXPR_GRAD_PRIVATE_H
#include "expr/expr_grad.h"
#include "expr/ir.h"

typedef struct expr_grad__site {
    int capture;
    int load; /* node that reads it: LOAD or SCALAR */
    int d;    /* node of the derivative */
} expr_grad__site;

struct expr_grad {
    const expr *score;
    ir_prog prog;
    int value, d_s;
    int n_sites;
    expr_grad__site *site;
};

#endif
