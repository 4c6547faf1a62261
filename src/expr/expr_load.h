/* Reading one element of a captured array: bounds, place, conversion. Private to this folder.
 * Shared by the definition and the tile interpreter, so that both see the same elements; an index
 * that leaves the array gives 0, and the caller raises the flag. */
#ifndef EXPR_EXPR_LOAD_H
#define EXPR_EXPR_LOAD_H
#include "expr/ir.h"

/* The row-major place of an element, or -1 when an index leaves the array. */
static inline int64_t expr_load__place(const expr_value *v, int ndim, const int64_t *index) {
    int64_t at = 0;
    for (int i = 0; i < ndim; i++) {
        if (index[i] < 0 || index[i] >= v->dim[i]) return -1;
        at = at * v->dim[i] + index[i];
    }
    return at;
}

/* Element `at` as type: integers by value, floats rounded to fp32, conditions as "not zero". */
ir_val expr_load__element(const expr_value *v, expr_type type, int64_t at);
/* Whether an array of this element type may be bound to a capture declared with type. */
int expr_load__fits(expr_type type, dtype t);
/* Elements at place[0..n) as int64 / fp32 / bytes; a negative place gives 0. */
void expr_load__gather(const expr_value *v, expr_type type, const int64_t *place, int64_t n,
                       void *out);

#endif
