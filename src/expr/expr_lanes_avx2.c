/* The lane loops compiled for AVX2: the Makefile gives this file its flags by its name.
 *
 * Same text as the portable table and the same bits. What it does not do: check that the processor
 * can run it; expr_lanes__choose does. */
#define EXPR_LANES_TABLE expr_lanes__avx2
#include "expr/expr_lanes_body.h"
