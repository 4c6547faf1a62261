/* Affine forms of a bound program's integers: constant + sum of coefficient × term. Private.
 *
 * A term is an index variable, any other integer node ("atom"), or the floor of a node by a positive
 * constant. Forms are exact as integers; whether the 64-bit value equals the form's is decided where ranges
 * are known: every form carries the sum of absolute contributions (weights), and while that stays below 2^63
 * nothing wrapped. Forms with the same terms up to a factor share a direction, through which a fact about
 * one comparison (q - kv < w) bounds another form (bias[q - kv]). */
#ifndef EXPR_AFFINE_H
#define EXPR_AFFINE_H
#include "expr/ir.h"

enum { AFFINE_MAX_TERMS = 12, AFFINE_MAX_DIRECTIONS = 128 };

struct affine_form;
typedef struct affine_term {
    int64_t coef, weight;
    const struct affine_form
        *rest_of;    /* the node is this form modulo a positive constant; or NULL */
    int64_t divisor; /* 0: the node itself; else floor(node / divisor) */
    int node;
    int sole; /* the direction that is this term alone, or -1 */
} affine_term;

typedef struct affine_form {
    int64_t constant, weight; /* weight: of the constants met */
    int64_t step,
        remainder; /* the value is remainder + a multiple of step, if nothing wraps; step 0: remainder alone */
    int rests;     /* some term has rest_of */
    int pair;      /* one element of an array minus another: a[i] - b[j], loads with one index */
    int64_t scale; /* form = scale × direction + constant; 0 when it has no terms */
    int direction; /* or -1 */
    int n;
    affine_term *term; /* by node, then divisor; a zero coefficient keeps its weight */
} affine_form;

typedef struct affine_table {
    const affine_form **of; /* per node: its form, or of right - left for a comparison; or NULL */
    const affine_form *
        *again; /* the same with x % c written as x - c * (x // c), where that differs */
    int n_directions;
} affine_table;

MUST_CHECK err affine__build(affine_table *out, const ir_prog *p, arena *a);
int affine__is_atom(const affine_form *f, int node); /* f is the node itself */
/* By its congruence it is never 0, if nothing wraps in it and in the forms below its rests. */
static inline int affine__never_zero(const affine_form *f) {
    return f->step > 1 && f->remainder % f->step != 0;
}
/* *to += factor * v; nonzero when that wraps. */
int affine__add_product(int64_t *to, int64_t factor, int64_t v);
/* Adds the term's part for values from..to of its node to the sum *lo..*hi; *size grows by weight * the largest
 * magnitude. 0: something wraps. */
int affine__add(const affine_term *t, int64_t from, int64_t to, int64_t *lo, int64_t *hi,
                int64_t *size);

#endif
