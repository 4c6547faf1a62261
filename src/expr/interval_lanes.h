/* The loops of interval analysis over many boxes, one table per instruction set. Private to this folder.
 *
 * A register holds the range of one value in each of INTERVAL_LANES boxes. Everything here is integer
 * arithmetic that the maker of the steps has proven not to wrap, so all tables give equal bits. Scans of
 * captured arrays live here too, because they are the other long loops of the analysis. */
#ifndef EXPR_INTERVAL_LANES_H
#define EXPR_INTERVAL_LANES_H
#include "expr/interval_rules.h"

enum { INTERVAL_LANES = 64, INTERVAL_STEP = 16 }; /* n below: a multiple of the step */

typedef struct interval_register {
    ir_val lo[INTERVAL_LANES], hi[INTERVAL_LANES];
    uint8_t nan[INTERVAL_LANES];
} interval_register;

typedef enum interval_what {
    INTERVAL_SUM,  /* constant + sum of coef * term */
    INTERVAL_MEET, /* what x and y both allow */
    INTERVAL_SIGN, /* x compared with 0 by op: 0 < x, 0 <= x, x == 0, x != 0; never: x is never 0 */
    INTERVAL_FLOOR,  /* x // divisor */
    INTERVAL_LOGIC,  /* &&, ||, ! by op */
    INTERVAL_SELECT, /* of integers or conditions */
    INTERVAL_SIZE,   /* min, max, abs of integers by op */
    INTERVAL_LOAD,   /* the rest is done lane by lane, by interval_many.c */
    INTERVAL_RULE,
    INTERVAL_APART, /* what SIGN left open between elements of two arrays (pair) */
    INTERVAL_JOIN   /* ?: of floats */
} interval_what;

typedef struct interval_term {
    int64_t coef;
    int at;
} interval_term;

typedef struct interval_step {
    uint8_t what, op, never;
    uint8_t small; /* FLOOR: |x| < 2^52, where division of doubles is exact enough */
    int out, x, y, z;
    int n; /* terms */
    int64_t constant, divisor;
    const interval_term *term;
    const ir_node *node;            /* LOAD */
    const struct affine_form *pair; /* APART; x and y are its indices */
} interval_step;

typedef struct interval_lanes {
    void (*step)(const interval_step *s, interval_register *r, int n); /* the kinds above LOAD */
    void (*judge)(const interval_register *condition, uint8_t *verdict, int n);
    void (*place)(interval_register *r, const int64_t *lo, const int64_t *hi, int64_t offset,
                  int n);
    /* Elements at both ends of x's ranges of indices, which lie inside 0..extent-1; 0 when one does not. */
    int (*read_i32)(const int32_t *data, int64_t extent, const interval_register *x,
                    interval_register *out, int n);
    int (*read_i64)(const int64_t *data, int64_t extent, const interval_register *x,
                    interval_register *out, int n);
    int (*rises_i32)(const int32_t *x, int64_t n); /* never falls */
    int (*rises_i64)(const int64_t *x, int64_t n);
    void (*ends_i32)(const int32_t *x, int64_t n, int64_t *lo, int64_t *hi); /* n >= 1 */
    void (*ends_i64)(const int64_t *x, int64_t n, int64_t *lo, int64_t *hi);
    void (*ends_u8)(const uint8_t *x, int64_t n, int64_t *lo, int64_t *hi);
    int (*ends_f32)(const float *x, int64_t n, float *lo, float *hi); /* 1: there is a NaN */
} interval_lanes;

extern const interval_lanes interval_lanes__portable, interval_lanes__avx2, interval_lanes__avx512;
/* The widest this processor has, bounded by PACELINE_ISA: the table beside e's own. */
const interval_lanes *interval_lanes__choose(void);

#endif
