/* One rule per line of ops.def.
 *
 * Integers: a rule whose ends overflow gives the whole range. Floats: rounding is monotone, so the ends of a
 * rounded operation are the operation at the ends; an infinite end makes NaN possible and is treated as
 * unknown, except where a function is monotone everywhere. Functions of the C library are widened by one
 * step, because their own rounding need not be monotone. */
#include "expr/interval_rules.h"
#include "expr/ops.h"

interval_range interval__unknown(expr_type type) {
    if (type == EXPR_INT) return interval__ints(INT64_MIN, INT64_MAX);
    if (type == EXPR_BOOL) return interval__ints(0, 1);
    return (interval_range){.lo = {.f = -INFINITY}, .hi = {.f = INFINITY}, .nan = 1};
}

interval_range interval__join(expr_type type, interval_range x, interval_range y) {
    interval_range out = x;
    if (type == EXPR_FLOAT) {
        if (y.lo.f < x.lo.f) out.lo.f = y.lo.f;
        if (y.hi.f > x.hi.f) out.hi.f = y.hi.f;
    } else {
        if (y.lo.i < x.lo.i) out.lo.i = y.lo.i;
        if (y.hi.i > x.hi.i) out.hi.i = y.hi.i;
    }
    out.nan |= y.nan;
    return out;
}

#define RULE(name) static interval_range name(ir_op op, interval_range x, interval_range y)
#define UNUSED     (void)op, (void)x, (void)y

static interval_range floats(float lo, float hi, int nan) {
    return (interval_range){.lo = {.f = lo}, .hi = {.f = hi}, .nan = nan != 0};
}
static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }

/* ---- integers ---- */

RULE(neg_i) {
    UNUSED;
    return x.lo.i == INT64_MIN ? interval__unknown(EXPR_INT) : interval__ints(-x.hi.i, -x.lo.i);
}

RULE(add_i) {
    UNUSED;
    int64_t lo, hi;
    if (__builtin_add_overflow(x.lo.i, y.lo.i, &lo) || __builtin_add_overflow(x.hi.i, y.hi.i, &hi))
        return interval__unknown(EXPR_INT);
    return interval__ints(lo, hi);
}

RULE(sub_i) {
    UNUSED;
    int64_t lo, hi;
    if (__builtin_sub_overflow(x.lo.i, y.hi.i, &lo) || __builtin_sub_overflow(x.hi.i, y.lo.i, &hi))
        return interval__unknown(EXPR_INT);
    return interval__ints(lo, hi);
}

RULE(mul_i) {
    UNUSED;
    int64_t a, b, c, d;
    if (__builtin_mul_overflow(x.lo.i, y.lo.i, &a) || __builtin_mul_overflow(x.lo.i, y.hi.i, &b) ||
        __builtin_mul_overflow(x.hi.i, y.lo.i, &c) || __builtin_mul_overflow(x.hi.i, y.hi.i, &d))
        return interval__unknown(EXPR_INT);
    return interval__ints(least(least(a, b), least(c, d)), most(most(a, b), most(c, d)));
}

RULE(div_i) {
    UNUSED;
    if (x.lo.i == INT64_MIN) /* INT64_MIN // -1 wraps */
        return y.lo.i > 0 ? interval__ints(ops_div(x.lo.i, y.lo.i), most(0, x.hi.i))
                          : interval__unknown(EXPR_INT);
    if (y.lo.i > 0 || y.hi.i < 0) {
        int64_t a = ops_div(x.lo.i, y.lo.i), b = ops_div(x.lo.i, y.hi.i);
        int64_t c = ops_div(x.hi.i, y.lo.i), d = ops_div(x.hi.i, y.hi.i);
        return interval__ints(least(least(a, b), least(c, d)), most(most(a, b), most(c, d)));
    }
    int64_t size = most(x.hi.i < 0 ? -x.hi.i : x.hi.i, x.lo.i < 0 ? -x.lo.i : x.lo.i);
    return interval__ints(-size, size); /* |x // y| <= |x| for every y, and 0 for y = 0 */
}

RULE(mod_i) {
    UNUSED;
    if (x.lo.i >= 0 && x.hi.i < y.lo.i) return x; /* already a rest */
    int64_t c = y.lo.i;
    if (c == y.hi.i && c > 0 && ops_div(x.lo.i, c) == ops_div(x.hi.i, c))
        return interval__ints(ops_mod(x.lo.i, c), ops_mod(x.hi.i, c));
    int64_t lo = y.lo.i < 0 ? y.lo.i + 1 : 0, hi = y.hi.i > 0 ? y.hi.i - 1 : 0;
    return interval__ints(lo, x.lo.i >= 0 && y.lo.i >= 0 ? least(hi, x.hi.i) : hi);
}

RULE(abs_i) {
    if (x.lo.i >= 0) return x;
    if (x.hi.i <= 0) return neg_i(op, x, y);
    if (x.lo.i == INT64_MIN) return interval__unknown(EXPR_INT);
    return interval__ints(0, most(-x.lo.i, x.hi.i));
}

RULE(min_i) {
    UNUSED;
    return interval__ints(least(x.lo.i, y.lo.i), least(x.hi.i, y.hi.i));
}
RULE(max_i) {
    UNUSED;
    return interval__ints(most(x.lo.i, y.lo.i), most(x.hi.i, y.hi.i));
}
RULE(lt_i) {
    UNUSED;
    return interval__ints(x.hi.i < y.lo.i, x.lo.i < y.hi.i);
}
RULE(le_i) {
    UNUSED;
    return interval__ints(x.hi.i <= y.lo.i, x.lo.i <= y.hi.i);
}
RULE(eq_i) {
    UNUSED;
    int both_one = x.lo.i == x.hi.i && y.lo.i == y.hi.i && x.lo.i == y.lo.i;
    return interval__ints(both_one, x.lo.i <= y.hi.i && y.lo.i <= x.hi.i);
}
RULE(not_b) {
    UNUSED;
    return interval__ints(1 - x.hi.i, 1 - x.lo.i);
}
RULE(ne_i) { return not_b(op, eq_i(op, x, y), y); }

/* ---- floats ---- */

static int is_bounded(interval_range x) { return isfinite(x.lo.f) && isfinite(x.hi.f); }

/* The hull of op at the four corners; unknown when an end is infinite or a corner is NaN. */
static interval_range corners(ir_op op, interval_range x, interval_range y) {
    float lo = INFINITY, hi = -INFINITY;
    if (!is_bounded(x) || !is_bounded(y)) return interval__unknown(EXPR_FLOAT);
    for (int i = 0; i < 4; i++) {
        float v = ir__apply(op, i & 1 ? x.hi : x.lo, i & 2 ? y.hi : y.lo).f;
        if (isnan(v)) return interval__unknown(EXPR_FLOAT);
        lo = fminf(lo, v);
        hi = fmaxf(hi, v);
    }
    return floats(lo, hi, x.nan || y.nan);
}

RULE(neg_f) {
    UNUSED;
    return floats(-x.hi.f, -x.lo.f, x.nan);
}
RULE(add_f) { return corners(op, x, y); }
RULE(sub_f) { return corners(op, x, y); }
RULE(mul_f) { return corners(op, x, y); }
RULE(div_f) {
    if (y.lo.f <= 0 && y.hi.f >= 0) return interval__unknown(EXPR_FLOAT);
    return corners(op, x, y);
}

/* Comparisons with NaN are false, `!=` true. */
static interval_range with_nan(interval_range r, interval_range x, interval_range y) {
    if (x.nan || y.nan) r.lo.i = 0;
    return r;
}
RULE(lt_f) {
    UNUSED;
    return with_nan(interval__ints(x.hi.f < y.lo.f, x.lo.f < y.hi.f), x, y);
}
RULE(le_f) {
    UNUSED;
    return with_nan(interval__ints(x.hi.f <= y.lo.f, x.lo.f <= y.hi.f), x, y);
}
RULE(eq_f) {
    UNUSED;
    int both_one = x.lo.f == x.hi.f && y.lo.f == y.hi.f && x.lo.f == y.lo.f;
    return with_nan(interval__ints(both_one, x.lo.f <= y.hi.f && y.lo.f <= x.hi.f), x, y);
}
RULE(ne_f) { return not_b(op, eq_f(op, x, y), y); }

RULE(min_f) {
    UNUSED;
    return floats(fminf(x.lo.f, y.lo.f), fminf(x.hi.f, y.hi.f), x.nan || y.nan);
}
RULE(max_f) {
    UNUSED;
    return floats(fmaxf(x.lo.f, y.lo.f), fmaxf(x.hi.f, y.hi.f), x.nan || y.nan);
}
RULE(abs_f) {
    UNUSED;
    if (x.lo.f >= 0) return x;
    if (x.hi.f <= 0) return floats(-x.hi.f, -x.lo.f, x.nan);
    return floats(0, fmaxf(-x.lo.f, x.hi.f), x.nan);
}

/* Functions that rise everywhere: no NaN but from NaN. */
RULE(rising_f) {
    UNUSED;
    float lo = ir__apply(op, x.lo, x.lo).f, hi = ir__apply(op, x.hi, x.hi).f;
    return floats(nextafterf(lo, -INFINITY), nextafterf(hi, INFINITY), x.nan);
}
RULE(floor_f) {
    UNUSED;
    return floats(floorf(x.lo.f), floorf(x.hi.f), x.nan);
}
/* Rises for positive arguments, -inf at zero, NaN below. */
RULE(log_f) { return x.lo.f > 0 ? rising_f(op, x, y) : interval__unknown(EXPR_FLOAT); }
RULE(sqrt_f) {
    UNUSED;
    if (!(x.lo.f >= 0)) return interval__unknown(EXPR_FLOAT);
    return floats(sqrtf(x.lo.f), sqrtf(x.hi.f), x.nan); /* rounded exactly, so monotone */
}
RULE(rsqrt_f) {
    UNUSED;
    if (!(x.lo.f > 0)) return interval__unknown(EXPR_FLOAT);
    float lo = ir__apply(op, x.hi, x.hi).f, hi = ir__apply(op, x.lo, x.lo).f;
    return floats(nextafterf(lo, -INFINITY), nextafterf(hi, INFINITY), x.nan);
}

RULE(to_f) {
    UNUSED;
    return floats((float)x.lo.i, (float)x.hi.i, 0);
}
RULE(to_i) {
    UNUSED;
    interval_range r = interval__ints(ops_truncate(x.lo.f), ops_truncate(x.hi.f));
    return x.nan ? interval__join(EXPR_INT, r, interval__ints(0, 0)) : r;
}

interval_rule *const interval__rules[IR_OP_COUNT] = {
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    [IR_##id] = interval,
#include "expr/ops.def"
#undef S
#undef X
};
