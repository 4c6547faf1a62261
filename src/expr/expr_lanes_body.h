/* The loops of one table of expr_lanes.h. Included by expr_lanes*.c, which name the table.
 *
 * Every operation gets four loops: one value, vector with vector, and a repeated value on either side.
 * The inner loops have a constant count, so that compilers make vector code of them at -O2. */
#include "expr/expr_lanes.h"
#include "expr/ops.h"

#define LANE_INT   int64_t
#define LANE_FLOAT float
#define LANE_BOOL  uint8_t

#define LOOP(T, XS, YS, value)                                                                     \
    for (int64_t i = 0; i < n; i += EXPR_LANES_STEP)                                               \
        for (int j = 0; j < EXPR_LANES_STEP; j++) {                                                \
            const T x = XS, y = YS;                                                                \
            (void)x, (void)y;                                                                      \
            out[i + j] = value;                                                                    \
        }

#define LANES(id, T, R, value)                                                                     \
    static void lanes_##id(void *restrict out_, const void *x_, const void *y_, int step_x,        \
                           int step_y, int64_t n) {                                                \
        R *restrict out = out_;                                                                    \
        const T *xs = x_, *ys = y_;                                                                \
        if (n == 1) {                                                                              \
            const T x = xs[0], y = ys[0];                                                          \
            (void)x, (void)y;                                                                      \
            out[0] = value;                                                                        \
        } else if (step_x && step_y) {                                                             \
            LOOP(T, xs[i + j], ys[i + j], value)                                                   \
        } else if (step_x) {                                                                       \
            const T one = ys[0];                                                                   \
            LOOP(T, xs[i + j], one, value)                                                         \
        } else {                                                                                   \
            const T one = xs[0];                                                                   \
            LOOP(T, one, ys[i + j], value)                                                         \
        }                                                                                          \
    }

LANES(AND, uint8_t, uint8_t, (uint8_t)(x &y))
LANES(OR, uint8_t, uint8_t, (uint8_t)(x | y))
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    LANES(id, LANE_##arguments, LANE_##result, value)
#include "expr/ops.def"
#undef S
#undef X

#define CHOOSE(T, XS, YS)                                                                          \
    for (int64_t i = 0; i < n; i += EXPR_LANES_STEP)                                               \
        for (int j = 0; j < EXPR_LANES_STEP; j++) {                                                \
            const T a = XS, b = YS; /* both are read, so that no branch is needed */               \
            out[i + j] = c[i + j] ? a : b;                                                         \
        }

#define SELECT(id, T)                                                                              \
    static void select_##id(void *restrict out_, const uint8_t *c, const void *x_, const void *y_, \
                            int step_c, int step_x, int step_y, int64_t n) {                       \
        T *restrict out = out_;                                                                    \
        const T *x = x_, *y = y_;                                                                  \
        if (!step_c) {                                                                             \
            const T *one = *c ? x : y;                                                             \
            const int step = *c ? step_x : step_y;                                                 \
            for (int64_t i = 0; i < n; i++) out[i] = one[i * step];                                \
        } else if (step_x && step_y) {                                                             \
            CHOOSE(T, x[i + j], y[i + j])                                                          \
        } else if (step_x) {                                                                       \
            const T one = y[0];                                                                    \
            CHOOSE(T, x[i + j], one)                                                               \
        } else if (step_y) {                                                                       \
            const T one = x[0];                                                                    \
            CHOOSE(T, one, y[i + j])                                                               \
        } else {                                                                                   \
            const T one = x[0], other = y[0];                                                      \
            CHOOSE(T, one, other)                                                                  \
        }                                                                                          \
    }

SELECT(BOOL, uint8_t)
SELECT(INT, int64_t)
SELECT(FLOAT, float)

/* g times a derivative, exactly 0 where g is; a block of lanes and what is not finite in it. */
#define PRODUCTS(D, keep)                                                                          \
    for (int64_t i = 0; i < n; i += EXPR_LANES_STEP)                                               \
        for (int j = 0; j < EXPR_LANES_STEP; j++) {                                                \
            const float x = g[i + j], p = ops_pick_f(x == 0.0f, 0.0f, x * (D));                    \
            keep;                                                                                  \
            bad |= p - p != 0.0f;                                                                  \
        }

static int lanes_chain(float *restrict g, const float *restrict d, int step_d, float scale,
                       int64_t n) {
    int32_t bad = 0;
    const float one = *d;
    if (step_d) {
        PRODUCTS(d[i + j], g[i + j] = p * scale)
    } else {
        PRODUCTS(one, g[i + j] = p * scale)
    }
    return bad != 0;
}

static int lanes_gather(float *restrict sum, const float *restrict g, const float *restrict d,
                        int step_d, int64_t n) {
    int32_t bad = 0;
    const float one = *d;
    if (step_d) {
        PRODUCTS(d[i + j], sum[i + j] += p)
    } else {
        PRODUCTS(one, sum[i + j] += p)
    }
    return bad != 0;
}

static int lanes_is_bad(const float *restrict x, const uint8_t *restrict visible, int64_t n) {
    int32_t bad = 0;
    if (visible) {
        for (int64_t i = 0; i < n; i += EXPR_LANES_STEP)
            for (int j = 0; j < EXPR_LANES_STEP; j++)
                bad |= !(x[i + j] < INFINITY) & (visible[i + j] != 0);
    } else {
        for (int64_t i = 0; i < n; i += EXPR_LANES_STEP)
            for (int j = 0; j < EXPR_LANES_STEP; j++) bad |= !(x[i + j] < INFINITY);
    }
    return bad;
}

const expr_lanes EXPR_LANES_TABLE = {
    .chain = lanes_chain,
    .gather = lanes_gather,
    .is_bad = lanes_is_bad,
    .op =
        {
            [IR_AND] = lanes_AND,
            [IR_OR] = lanes_OR,
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    [IR_##id] = lanes_##id,
#include "expr/ops.def"
#undef S
#undef X
        },
    .select = {[EXPR_BOOL] = select_BOOL, [EXPR_INT] = select_INT, [EXPR_FLOAT] = select_FLOAT},
};
