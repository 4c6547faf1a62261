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
/* The same over arrays that this process cannot read, whose data is not looked at: someone else sums up their leaves of
 * `block` elements, of which the last may be shorter. Slices are known to whole leaves: looser, never wrong. Leaves of one
 * element, which arrays of up to 32,768 have, lose nothing. */
typedef union interval_end {
    int64_t i;
    float f;
} interval_end;
typedef struct interval_leaf {
    interval_end lo,
        hi; /* extremes; a leaf of floats with a NaN has -inf and +inf; conditions are 0 and 1 */
    uint64_t set; /* of integers: bit (v * INTERVAL_CLASS mod 2^64) >> 58 for every value v */
} interval_leaf;
#define INTERVAL_CLASS UINT64_C(0x9e3779b97f4a7c15)
typedef struct interval_source {
    void *ctx;
    err (*leaves)(void *ctx, int capture, int64_t elements, int64_t block, interval_leaf *out);
} interval_source;
enum { INTERVAL_LEAVES_MOST = 1 << 15 }; /* of one array */
MUST_CHECK err interval_tables_create_far(interval_tables **out, const expr *e, const expr_env *env,
                                          const interval_source *source, arena *a);
/* may_leave (or NULL): 1 when some reachable load is not proven inside its array on this box. */
interval_verdict interval_classify(const expr *e, const expr_env *env, const interval_tables *t,
                                   const interval_box *box, int *may_leave);

/* Tables of the same mask along a diagonal: kv is q + shift there, and a box's kv0 and kv1 do not count. Shares t's arrays. */
MUST_CHECK err interval_tables_tie(interval_tables **out, const interval_tables *t, int64_t shift,
                                   arena *a);

/* The same for many boxes of one batch entry and head at a time, at a tenth of the cost: guards count where they hold
 * in a whole box and facts of guards are not used inside. So it decides less than interval_classify, and never otherwise.
 * INTERVAL_LEAVES stands for any verdict on a box in which a reached load may leave its array. */
enum { INTERVAL_MANY = 64, INTERVAL_LEAVES = INTERVAL_MIXED + 1 };
typedef struct interval_many interval_many; /* used by one thread at a time */
typedef struct interval_spans {             /* inclusive, before env's offsets, inside the domain */
    int64_t q0[INTERVAL_MANY], q1[INTERVAL_MANY], kv0[INTERVAL_MANY], kv1[INTERVAL_MANY];
} interval_spans;
/* For boxes inside domain. *out is NULL when the program is too large for it or the domain's positions wrap. */
MUST_CHECK err interval_many_create(interval_many **out, const interval_tables *t,
                                    const interval_box *domain, arena *a);
/* Verdicts of the first n boxes of s, 1 <= n <= INTERVAL_MANY; b and h not negative. s is filled up behind them, and
 * verdict has room for INTERVAL_MANY. */
void interval_many_classify(interval_many *m, int64_t b, int64_t h, int n, interval_spans *s,
                            uint8_t *verdict);

#endif
