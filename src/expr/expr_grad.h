/* The derivative of a score: d score / d s and d score / d each load and scalar of wanted float captures.
 *
 * One program holds the score and its derivatives, which share what they have in common. A site is one load of a
 * wanted array in the text (equal loads are one site) or a wanted scalar. Sub-gradients: abs has 0 at 0; min and max
 * give half to each side of a tie; clamp(x, low, high) with ends that take no gradient gives all to x where
 * low <= x <= high; a branch of ?: that is
 * not taken gets exactly nothing; floor, conditions and integers have none. Immutable, so any thread may use it. */
#ifndef EXPR_EXPR_GRAD_H
#define EXPR_EXPR_GRAD_H
#include "expr/expr.h"

typedef struct expr_grad expr_grad;
/* wanted: bit i for capture i of the score, float ones only. The score is borrowed; memory from a. */
MUST_CHECK err expr_grad_create(expr_grad **out, const expr *score, unsigned wanted, arena *a);
const expr *expr_grad_score(const expr_grad *g);
int expr_grad_sites(const expr_grad *g);
int expr_grad_capture(const expr_grad *g, int site); /* the capture that a site reads */
/* Index variables (bits as in expr_uses) of which two different values never meet in one element of the capture. */
unsigned expr_grad_owners(const expr_grad *g, int capture);
/* Program size, for messages: operations of the score, and with its derivatives. */
void expr_grad_count(const expr_grad *g, int *score, int *all);

/* The definition in double at one cell. Conditions, integers and floor are decided by the fp32 definition; the other
 * float arithmetic is in double on the fp32 values of captures. place: row-major element a site reads, -1 where it
 * leaves its array. d_s, d_site and place may be NULL. *flag is set when the score reaches a load that left. */
double expr_grad_eval(const expr_grad *g, const expr_env *env, int64_t b, int64_t h, int64_t q,
                      int64_t kv, double s, double *d_s, double *d_site, int64_t *place, int *flag);
/* Where a load leaves its array for certain. */
typedef struct expr_grad_fault {
    int capture;
    int64_t index[EXPR_MAX_NDIM];
} expr_grad_fault;
/* 1 when the score reaches, whatever s is, a load that leaves its array at this cell. */
int expr_grad_leaves(const expr_grad *g, const expr_env *env, int64_t b, int64_t h, int64_t q,
                     int64_t kv, expr_grad_fault *fault);
int expr_grad_has_loads(const expr_grad *g);

#endif
