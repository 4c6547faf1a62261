/* A score and its derivatives over tiles of cells: what attention runs.
 *
 * One expr_score lives in scratch memory of one thread and goes through tiles, row by row: the score in place of scaled
 * logits, then (with gradients) the gradient by the logits in place of the gradient by the scores, while contributions
 * to captured floats are summed per tile and added to the caller's sums in a fixed order. Lanes run along kv or q.
 * The same values as expr_eval_score. A weight of exactly 0 passes on no gradient, whatever the slope is there. */
#ifndef EXPR_EXPR_SCORE_H
#define EXPR_EXPR_SCORE_H
#include "expr/expr_grad.h"

typedef struct expr_score expr_score;
typedef enum expr_score_mode {
    EXPR_SCORE_VALUE,   /* the score alone */
    EXPR_SCORE_SLOPE,   /* and d score / d s */
    EXPR_SCORE_CAPTURES /* and the sites */
} expr_score_mode;

/* Where gradients of captures are added, by capture: one of the two is set for wanted ones. */
typedef struct expr_score_sums {
    double *wide[EXPR_MAX_CAPTURES];
    float *narrow[EXPR_MAX_CAPTURES];
} expr_score_sums;

typedef struct expr_score_tile {
    int64_t b, h, q, kv; /* first cell, before env's offsets */
    int64_t rows, lanes;
} expr_score_tile;

/* What a row has met, bits. */
enum { EXPR_SCORE_LEFT = 1, EXPR_SCORE_BAD = 2 };

size_t expr_score_scratch(const expr_grad *g, int64_t rows, int64_t lanes);
/* rows and lanes: the most a tile has. scratch: expr_score_scratch bytes, 64-aligned. */
expr_score *expr_score_open(const expr_grad *g, const expr_env *env, int q_lanes,
                            expr_score_mode mode, int64_t rows, int64_t lanes, void *scratch);
void expr_score_begin(expr_score *x, const expr_score_tile *t, const expr_score_sums *sums);
/* Row i: s[lanes], times scale, becomes the score. visible: a byte per lane, NULL: all. LEFT: a load that a visible
 * cell reaches left its array; BAD: the score of a visible cell is NaN or +inf. */
int expr_score_row(expr_score *x, int64_t i, float *s, float scale, const uint8_t *visible);
/* The scaled logit of a lane of the present row. */
float expr_score_logit(const expr_score *x, int64_t lane);
/* The same row's g[lanes], gradient by the score (0 where hidden), becomes scale times the gradient by s. BAD: a
 * gradient is not finite. */
int expr_score_row_grad(expr_score *x, int64_t i, float *g, float scale);
/* Adds what the tile has summed. */
void expr_score_end(expr_score *x);

#endif
