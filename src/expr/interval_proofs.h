/* What can be said of a mask over its whole domain before anything runs: loads, widths, dependence.
 *
 * Proofs are flags for kernels that exist anyway: a load proven inside needs no check, arithmetic proven to fit 32 bits
 * may run in 32 bits, a mask that does not change with b or h is stored once. What is not proven is not wrong; it is
 * checked at run time. A load proven outside is a fault of the mask, and the box that proves it is told. */
#ifndef EXPR_INTERVAL_PROOFS_H
#define EXPR_INTERVAL_PROOFS_H
#include "expr/interval.h"

typedef enum interval_place {
    INTERVAL_INSIDE,  /* never leaves its array where it is reached */
    INTERVAL_OUTSIDE, /* leaves it in every cell of the box told beside */
    INTERVAL_GUARDED  /* neither: checked at run time */
} interval_place;

typedef struct interval_load {
    const char *name;  /* of the captured array; lives as long as the expression */
    int ndim, outside; /* outside: the index that leaves */
    interval_place place;
    int64_t dim[EXPR_MAX_NDIM];
    int64_t lo[EXPR_MAX_NDIM],
        hi[EXPR_MAX_NDIM]; /* of its indices: where reached, or in the box when outside */
    interval_box box;      /* OUTSIDE: where */
} interval_load;

typedef struct interval_proofs {
    const interval_load *load; /* every load of the program, in the order of its operations */
    int n_loads, inside, left; /* loads; proven inside; proven outside */
    int fits_32;               /* every integer and every place in an array stays within 32 bits */
    int by_batch, by_head;     /* the mask, or where its loads leave, may change with b, with h */
    int diagonal;              /* both depend on q and kv through q - kv alone, or on neither */
} interval_proofs;

/* Over all cells of domain, which must not be empty. Memory from a. */
MUST_CHECK err interval_prove(interval_proofs *out, const interval_tables *t,
                              const interval_box *domain, arena *a);
/* Says where the first load proven outside leaves ("index 1 of 'doc' is 90..99 and its extent there is 80, wherever ...");
 * out is empty when there is none. */
enum { INTERVAL_SAYS = 400 };
void interval_proofs_say(const interval_proofs *p, char out[INTERVAL_SAYS]);

#endif
