/* The loops over many boxes compiled for AVX512: the Makefile gives this file its flags by its name.
 *
 * Same text as the portable table and the same bits. What it does not do: check that the processor
 * can run it; interval_lanes__choose does. */
#define INTERVAL_LANES_TABLE interval_lanes__avx512
#include "expr/interval_lanes_body.h"
