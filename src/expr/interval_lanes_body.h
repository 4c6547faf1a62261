/* The loops of one table of interval_lanes.h. Included by interval_lanes*.c, which name the table.
 *
 * Loops over lanes have a constant count, so that compilers make vector code of them at -O2; scans of arrays
 * go in blocks for the same reason. Nothing here wraps, divides by zero or reads outside what it is given. */
#include "expr/interval_lanes.h"
#include <math.h>

/* All lanes below n, a multiple of the step; i is the lane. */
#define EACH_LANE                                                                                  \
    for (int g = 0; g < n; g += INTERVAL_STEP)                                                     \
        for (int i = g; i < g + INTERVAL_STEP; i++)

static inline int64_t lesser(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

static void add_term(interval_register *restrict o, const interval_register *restrict t, int64_t c,
                     int n) {
    if (c == 1) {
        EACH_LANE o->lo[i].i += t->lo[i].i;
        EACH_LANE o->hi[i].i += t->hi[i].i;
    } else if (c == -1) {
        EACH_LANE o->lo[i].i -= t->hi[i].i;
        EACH_LANE o->hi[i].i -= t->lo[i].i;
    } else if (c > 0) {
        EACH_LANE o->lo[i].i += c * t->lo[i].i;
        EACH_LANE o->hi[i].i += c * t->hi[i].i;
    } else {
        EACH_LANE o->lo[i].i += c * t->hi[i].i;
        EACH_LANE o->hi[i].i += c * t->lo[i].i;
    }
}

static void sum(const interval_step *s, interval_register *r, int n) {
    interval_register *o = &r[s->out];
    EACH_LANE o->lo[i].i = s->constant;
    EACH_LANE o->hi[i].i = s->constant;
    for (int j = 0; j < s->n; j++) add_term(o, &r[s->term[j].at], s->term[j].coef, n);
}

static void sign(const interval_step *s, interval_register *restrict o,
                 const interval_register *restrict x, int n) {
    const int64_t can = !s->never;
    switch (s->op) {
    case IR_LT_I:
        EACH_LANE o->lo[i].i = x->lo[i].i > 0;
        EACH_LANE o->hi[i].i = x->hi[i].i > 0;
        break;
    case IR_LE_I:
        EACH_LANE o->lo[i].i = x->lo[i].i >= 0;
        EACH_LANE o->hi[i].i = x->hi[i].i >= 0;
        break;
    case IR_EQ_I:
        EACH_LANE o->lo[i].i = (x->lo[i].i == 0) & (x->hi[i].i == 0) & can;
        EACH_LANE o->hi[i].i = (x->lo[i].i <= 0) & (x->hi[i].i >= 0) & can;
        break;
    default:
        EACH_LANE o->hi[i].i = ((x->lo[i].i == 0) & (x->hi[i].i == 0) & can) ^ 1;
        EACH_LANE o->lo[i].i = ((x->lo[i].i <= 0) & (x->hi[i].i >= 0) & can) ^ 1;
    }
}

static void logic(int op, interval_register *restrict o, const interval_register *x,
                  const interval_register *y, int n) {
    if (op == IR_AND) {
        EACH_LANE o->lo[i].i = x->lo[i].i & y->lo[i].i;
        EACH_LANE o->hi[i].i = x->hi[i].i & y->hi[i].i;
    } else if (op == IR_OR) {
        EACH_LANE o->lo[i].i = x->lo[i].i | y->lo[i].i;
        EACH_LANE o->hi[i].i = x->hi[i].i | y->hi[i].i;
    } else {
        EACH_LANE o->lo[i].i = x->hi[i].i ^ 1;
        EACH_LANE o->hi[i].i = x->lo[i].i ^ 1;
    }
}

/* x where c holds in the whole box, y where it holds nowhere, either in between. */
static void choose(interval_register *restrict o, const interval_register *c,
                   const interval_register *x, const interval_register *y, int n) {
    EACH_LANE {
        int64_t lo = lesser(x->lo[i].i, y->lo[i].i), hi = larger(x->hi[i].i, y->hi[i].i);
        lo = c->lo[i].i ? x->lo[i].i : lo;
        hi = c->lo[i].i ? x->hi[i].i : hi;
        o->lo[i].i = c->hi[i].i ? lo : y->lo[i].i;
        o->hi[i].i = c->hi[i].i ? hi : y->hi[i].i;
    }
}

static void size_of(int op, interval_register *restrict o, const interval_register *x,
                    const interval_register *y, int n) {
    if (op == IR_MIN_I) {
        EACH_LANE o->lo[i].i = lesser(x->lo[i].i, y->lo[i].i);
        EACH_LANE o->hi[i].i = lesser(x->hi[i].i, y->hi[i].i);
    } else if (op == IR_MAX_I) {
        EACH_LANE o->lo[i].i = larger(x->lo[i].i, y->lo[i].i);
        EACH_LANE o->hi[i].i = larger(x->hi[i].i, y->hi[i].i);
    } else {
        EACH_LANE {
            int64_t a = x->lo[i].i, b = -x->hi[i].i; /* |x| from max(lo, -hi, 0) to max(-lo, hi) */
            o->lo[i].i = larger(larger(a, b), 0);
            o->hi[i].i = larger(-a, -b);
        }
    }
}

static void floor_by(const interval_step *s, interval_register *restrict o,
                     const interval_register *restrict x, int n) {
    const int64_t d = s->divisor;
    if (s->small) { /* the quotient's distance to the next integer is larger than its rounding */
        const double by = (double)d;
        EACH_LANE o->lo[i].i = (int64_t)floor((double)x->lo[i].i / by);
        EACH_LANE o->hi[i].i = (int64_t)floor((double)x->hi[i].i / by);
        return;
    }
    EACH_LANE {
        int64_t a = x->lo[i].i, b = x->hi[i].i;
        o->lo[i].i = a / d - (a % d < 0);
        o->hi[i].i = b / d - (b % d < 0);
    }
}

static void step(const interval_step *s, interval_register *r, int n) {
    interval_register *o = &r[s->out];
    switch (s->what) {
    case INTERVAL_SUM: sum(s, r, n); break;
    case INTERVAL_MEET:
        EACH_LANE o->lo[i].i = larger(r[s->x].lo[i].i, r[s->y].lo[i].i);
        EACH_LANE o->hi[i].i = lesser(r[s->x].hi[i].i, r[s->y].hi[i].i);
        break;
    case INTERVAL_SIGN: sign(s, o, &r[s->x], n); break;
    case INTERVAL_FLOOR: floor_by(s, o, &r[s->x], n); break;
    case INTERVAL_LOGIC: logic(s->op, o, &r[s->x], &r[s->y], n); break;
    case INTERVAL_SELECT: choose(o, &r[s->x], &r[s->y], &r[s->z], n); break;
    default: size_of(s->op, o, &r[s->x], &r[s->y], n);
    }
}

/* NONE, ALL and MIXED of a condition's ends. */
static void judge(const interval_register *r, uint8_t *restrict verdict, int n) {
    EACH_LANE verdict[i] = (uint8_t)(2 * r->hi[i].i - r->lo[i].i);
}

static void place(interval_register *restrict r, const int64_t *restrict lo,
                  const int64_t *restrict hi, int64_t offset, int n) {
    EACH_LANE r->lo[i].i = lo[i] + offset;
    EACH_LANE r->hi[i].i = hi[i] + offset;
}

/* ---- arrays ---- */

#define READS(name, T)                                                                             \
    static int name(const T *restrict data, int64_t extent, const interval_register *restrict x,   \
                    interval_register *restrict o, int n) {                                        \
        int64_t least = 0, most = 0;                                                               \
        EACH_LANE least = lesser(least, x->lo[i].i);                                               \
        EACH_LANE most = larger(most, x->hi[i].i);                                                 \
        if (least < 0 || most >= extent) return 0;                                                 \
        EACH_LANE o->lo[i].i = data[x->lo[i].i];                                                   \
        EACH_LANE o->hi[i].i = data[x->hi[i].i];                                                   \
        return 1;                                                                                  \
    }
READS(read_i32, int32_t)
READS(read_i64, int64_t)

enum { SCAN = 64 };

#define RISES(name, T)                                                                             \
    static int name(const T *x, int64_t n) {                                                       \
        int64_t i = 1;                                                                             \
        for (; i + SCAN <= n; i += SCAN) {                                                         \
            T falls = 0;                                                                           \
            for (int j = 0; j < SCAN; j++) falls |= (T)(x[i + j - 1] > x[i + j]);                  \
            if (falls) return 0;                                                                   \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            if (x[i - 1] > x[i]) return 0;                                                         \
        return 1;                                                                                  \
    }
RISES(rises_i32, int32_t)
RISES(rises_i64, int64_t)

#define ENDS(name, T)                                                                              \
    static void name(const T *x, int64_t n, int64_t *lo, int64_t *hi) {                            \
        T least[16], most[16];                                                                     \
        for (int j = 0; j < 16; j++) least[j] = most[j] = x[0];                                    \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= n; i += 16)                                                               \
            for (int j = 0; j < 16; j++) {                                                         \
                least[j] = x[i + j] < least[j] ? x[i + j] : least[j];                              \
                most[j] = x[i + j] > most[j] ? x[i + j] : most[j];                                 \
            }                                                                                      \
        for (; i < n; i++) {                                                                       \
            least[0] = x[i] < least[0] ? x[i] : least[0];                                          \
            most[0] = x[i] > most[0] ? x[i] : most[0];                                             \
        }                                                                                          \
        for (int j = 1; j < 16; j++) {                                                             \
            least[0] = least[j] < least[0] ? least[j] : least[0];                                  \
            most[0] = most[j] > most[0] ? most[j] : most[0];                                       \
        }                                                                                          \
        *lo = least[0], *hi = most[0];                                                             \
    }
ENDS(ends_i32, int32_t)
ENDS(ends_i64, int64_t)
ENDS(ends_u8, uint8_t)

static int ends_f32(const float *x, int64_t n, float *lo, float *hi) {
    float least = INFINITY, most = -INFINITY;
    int nan = 0;
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        nan |= x[i] != x[i];
    }
    *lo = least, *hi = most;
    return nan;
}

const interval_lanes INTERVAL_LANES_TABLE = {step,     judge,     place,     read_i32,
                                             read_i64, rises_i32, rises_i64, ends_i32,
                                             ends_i64, ends_u8,   ends_f32};
