/* Random mask and score expressions, for tests that compare two ways of evaluating them.
 *
 * Makes text only, so it links into every test program. The text uses the captures that
 * random_expr_captures lists; a test declares and binds them (names, element kinds and ranks below).
 * Programs are drawn so that comparisons of affine forms, floor division, guards and loads near the ends
 * of their arrays are frequent. Everything follows from *state. */
#ifndef SUPPORT_RANDOM_EXPR_H
#define SUPPORT_RANDOM_EXPR_H
#include <stddef.h>
#include <stdint.h>

typedef struct random_expr_capture {
    const char *name;
    char kind; /* 'i', 'f' or 'b' */
    int ndim;
} random_expr_capture;
enum { RANDOM_EXPR_CAPTURES = 9 };
extern const random_expr_capture random_expr_captures[RANDOM_EXPR_CAPTURES];

uint64_t random_expr_next(uint64_t *state);    /* 64 bits */
int random_expr_below(uint64_t *state, int n); /* 0..n-1 */
/* A condition of about this depth, at most size - 1 characters. */
void random_expr_mask(uint64_t *state, int depth, char *out, size_t size);
/* The same for a number that may depend on s. */
void random_expr_score(uint64_t *state, int depth, char *out, size_t size);

#endif
