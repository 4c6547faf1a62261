/* The insides of the public handles (include/paceline/flex.h), shared by src/api only.
 *
 * A problem is a description and owns its texts and names. A mask and a plan own what was compiled of it, so both outlive
 * the problem; arrays stay the caller's throughout. Nothing here computes. */
#ifndef API_API_PRIVATE_H
#define API_API_PRIVATE_H
#include "paceline/flex.h"
#include "flex/flex.h"

struct pl_problem {
    pl_shape shape;
    dtype type;
    float scale;
    int scale_given;
    int32_t tile_q, tile_kv;
    size_t mask_budget;
    int64_t q0, kv0;
    char *mask, *score; /* NULL: none */
    const pl_mask *given;
    const float *sinks;
    unsigned gradients; /* bit i: of capture i */
    int n;              /* captures, in the order in which their names came */
    char *name[EXPR_MAX_CAPTURES];
    expr_decl decl[EXPR_MAX_CAPTURES];
    expr_value value[EXPR_MAX_CAPTURES];
};

/* Expressions with the values of their captures. The program's address is kept by what uses env: it does not move. */
typedef struct pl__program {
    expr *mask, *score;
    expr_value value[EXPR_MAX_CAPTURES];
    expr_env env;
} pl__program;

struct pl_mask {
    int64_t batch, heads; /* of the problem that it was built for */
    const block_mask *mask;
    block_mask built; /* what mask points to, for one that stands alone */
    const pl__program *program;
    pl__program own;
    arena *memory; /* NULL for a plan's */
};

struct pl_plan {
    flex_plan *plan;
    pl__program program;
    pl_mask mask;
    arena *memory;
};

struct pl_device {
    dev *dev;
    char text[96];
};

/* Codes of both sides are the same numbers (pl_error.c holds that). */
static inline pl_error pl__result(err e) { return (pl_error)e; }
/* PL_ERROR_USAGE naming the function and what it was not given. */
MUST_CHECK err pl__need(const void *p, const char *function, const char *what);
/* Checks the size member of a struct: what this library's first version knew, up to what it knows now. */
MUST_CHECK err pl__check_size(const char *name, size_t given, size_t least, size_t known);
/* Fills *out, which pl__program_free releases in any case. */
MUST_CHECK err pl__program_make(pl__program *out, const pl_problem *p);
void pl__program_free(pl__program *x);
/* A mask's expression, memory and extents; what it says of tiles is still to be filled. */
MUST_CHECK err pl__mask_start(pl_mask *m, const pl_problem *p);

#endif
