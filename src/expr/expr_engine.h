/* Evaluating a program over a rectangle of cells, row by row, vectorised along the lanes. Private to this folder.
 *
 * Lanes run along kv and rows along q, or the other way round. Every operation is total, so values are computed without
 * looking at guards: once per tile where they name neither q nor kv, once per tile over the lanes or over the diagonals
 * where they depend on those alone, once per row where on the row alone, and per row over the lanes otherwise.
 * All memory lies in scratch that the caller gives. */
#ifndef EXPR_EXPR_ENGINE_H
#define EXPR_EXPR_ENGINE_H
#include "expr/expr_lanes.h"

typedef struct expr_engine__list {
    int n;
    int16_t *id;
} expr_engine__list;

typedef enum expr_engine__kind {
    KIND_FIXED,
    KIND_ROW,
    KIND_LANE,
    KIND_DIAGONAL,
    KIND_CELL
} expr_engine__kind;

typedef struct
    expr_engine__load { /* what the engine keeps of a load, with as many entries as it has values */
    int64_t *place;     /* row-major element, -1 outside */
    uint8_t *left;      /* 1 where it left its array */
    uint8_t any_left;
} expr_engine__load;

typedef struct expr_engine {
    const ir_node *node;
    const expr_env *env;
    const expr_lanes *lanes;
    int root;                    /* whose loads count as reached */
    int q_lanes;                 /* lanes along q, rows along kv */
    int max_rows, max_lanes;     /* that scratch has room for */
    int64_t rows, width, padded; /* of the tile: real lanes, and rounded up to the lanes' step */
    int64_t var[4];              /* of the first cell, env's offsets added */
    int n_marked;                /* loads that left somewhere at or before the present row */
    const float *s;              /* the row's values of s, [padded] */
    void **base;                 /* per node: its values of the tile */
    void **value;                /* the same where the present row reads: differs on diagonals */
    uint8_t *kind;               /* expr_engine__kind */
    uint8_t *reach_on;           /* work of the reach pass */
    uint8_t **reach;             /* nodes with loads below: lanes in which they are evaluated */
    expr_engine__load *load;     /* per node */
    int64_t *first;              /* affine nodes: value at the first diagonal's cell */
    expr_engine__list fixed, lane, diagonal, row,
        slopes; /* slopes: affine nodes whose value at one cell is needed */
} expr_engine;

/* Bytes for a program on tiles of so many rows and lanes at most. */
size_t expr_engine__scratch(const ir_prog *p, int64_t rows, int64_t lanes);
/* Lays out scratch, 64-aligned; only what the n_roots roots need is evaluated, loads reached from root[0] count. */
void expr_engine__open(expr_engine *x, const ir_prog *p, const int *root, int n_roots,
                       const expr_env *env, const expr_lanes *lanes, int q_lanes, int64_t rows,
                       int64_t width, void *scratch);
/* The tile whose first cell is (b, h, q, kv), before env's offsets: all that rows share. */
void expr_engine__begin(expr_engine *x, int64_t b, int64_t h, int64_t q, int64_t kv, int64_t rows,
                        int64_t width);
/* Row i; s [padded] or NULL where the program has none. */
void expr_engine__row(expr_engine *x, int64_t i, const float *s);
/* Whether row i reaches, in a lane where visible is 1 (NULL: in any), a load that left its array. */
int expr_engine__left(expr_engine *x, int64_t i, const uint8_t *visible);

static inline int expr_engine__step(const expr_engine *x, int id) { return x->kind[id] > KIND_ROW; }
static inline int64_t expr_engine__padded(int64_t width) {
    return (width + EXPR_LANES_STEP - 1) / EXPR_LANES_STEP * EXPR_LANES_STEP;
}

#endif
