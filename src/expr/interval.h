/* Interval analysis: what a mask is over a whole box of cells, without visiting them.
 *
 * Sound always: ALL means every cell of the box is visible, NONE means none is. MIXED means undecided.
 * Exact on comparisons of affine forms, floor division by constants, min/max, and/or/not, select with path
 * sensitivity; captured arrays enter through per-tile minima and maxima tables (interval_tables), built once per
 * binding in time linear in the array. Also tells whether some load may leave its array in the box. */
#ifndef EXPR_INTERVAL_H
#define EXPR_INTERVAL_H
#include "expr/expr.h"

typedef enum interval_verdict { INTERVAL_NONE, INTERVAL_ALL, INTERVAL_MIXED } interval_verdict;
typedef struct interval_box {
    int64_t b0, b1, h0, h1, q0, q1, kv0, kv1; /* inclusive; q and kv before env's offsets */
} interval_box;

typedef struct interval_tables interval_tables;
/* Tables over the captured arrays as bound by env. Scalars, offsets and extents are copied, arrays kept by reference:
 * their data must outlive the tables. Runs expr_check_env first. Memory from a. */
MUST_CHECK err interval_tables_create(interval_tables **out, const expr *e, const expr_env *env,
                                      arena *a);
/* may_leave (or NULL): 1 when some reachable load is not proven inside its array on this box. */
interval_verdict interval_classify(const expr *e, const expr_env *env, const interval_tables *t,
                                   const interval_box *box, int *may_leave);

#endif
