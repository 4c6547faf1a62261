/* Ranges of values and what each operation does to them. Private to this folder.
 *
 * An integer range may be the whole of int64, which also stands for "may have wrapped". A float range
 * holds every non-NaN value; nan tells that NaN may occur too. A condition is the integer range of 0 and
 * 1: lo = hi = 1 always true, lo = hi = 0 never. Rules never claim less than what can happen. */
#ifndef EXPR_INTERVAL_RULES_H
#define EXPR_INTERVAL_RULES_H
#include "expr/ir.h"

typedef struct interval_range {
    ir_val lo, hi; /* inclusive */
    uint8_t nan;
} interval_range;

typedef interval_range interval_rule(ir_op op, interval_range x, interval_range y);
extern interval_rule *const interval__rules[IR_OP_COUNT]; /* element-wise operations */

interval_range interval__unknown(expr_type type);
interval_range interval__join(expr_type type, interval_range x, interval_range y);
static inline interval_range interval__ints(int64_t lo, int64_t hi) {
    return (interval_range){.lo = {.i = lo}, .hi = {.i = hi}};
}

#endif
