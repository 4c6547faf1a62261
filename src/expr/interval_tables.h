/* What interval analysis keeps per binding: the bound program, its affine forms, ranges of arrays.
 * Private to this folder; the public face is interval.h. Tables refer to the captured arrays and copy
 * none of them. */
#ifndef EXPR_INTERVAL_TABLES_H
#define EXPR_INTERVAL_TABLES_H
#include "expr/affine.h"
#include "expr/interval.h"
#include "expr/interval_lanes.h"

typedef struct interval_array {
    int64_t n;      /* elements, flattened */
    int far;        /* its elements cannot be read: the tree is all there is */
    int sorted;     /* never falls: the ends of a slice are its extremes, no tree is kept */
    int64_t block;  /* elements of a leaf; 0: no tree, the array is read when asked for */
    int64_t blocks; /* leaves of the tree */
    uint64_t *
        sets; /* [2 * blocks] which of 64 classes of values occur; NULL where nobody compares elements */
    ir_val *lo, *hi; /* [2 * blocks]: node i covers 2i and 2i + 1, leaves from `blocks` on */
} interval_array;

struct interval_tables {
    ir_prog prog;
    affine_table affine;
    const interval_lanes *lanes;
    int64_t q0, kv0;
    const expr_decl *names;                  /* of the captures; the expression's own */
    expr_value *values;                      /* copied; the arrays' data are borrowed */
    interval_array array[EXPR_MAX_CAPTURES]; /* of the captures that the program loads from */
};

/* The range of elements from..to (inclusive, inside the array) of capture slot. */
interval_range interval_tables__slice(const interval_tables *t, int slot, expr_type type,
                                      int64_t from, int64_t to);

/* What one walk over a box met at a load. */
typedef struct interval_trace {
    uint8_t reached;   /* by some path */
    uint8_t may_leave; /* on one of them */
    uint8_t outside;   /* reached in every cell of the box, and outside its array in every one */
    int64_t lo[EXPR_MAX_NDIM], hi[EXPR_MAX_NDIM]; /* of its indices where reached */
} interval_trace;
/* Fills trace [nodes] for a box; 0 when it was too much work to finish or positions wrap, and nothing is known. */
int interval_tables__trace(const interval_tables *t, const interval_box *box,
                           interval_trace *trace);

/* The form is a pair, and what its arrays hold is known better than by their extremes. */
int interval_tables__has_sets(const interval_tables *t, const affine_form *f);
/* Whether form a[i] - b[j] (affine_form's pair) cannot be 0 for indices in these ranges, because no value of one slice
 * is in the other. lo and hi: of the index of each term; look: short slices may be read. */
int interval_tables__apart(const interval_tables *t, const affine_form *pair, const int64_t *lo,
                           const int64_t *hi, int look);

/* What a load gives for indices lo[i]..hi[i] (ends as ranges have them, inside its array or not); 0 where it leaves.
 * *inside: no index leaves. */
interval_range interval_tables__load(const interval_tables *t, const ir_node *load,
                                     const int64_t *lo, const int64_t *hi, int *inside);

#endif
