/* The row primitives for CPUs with AVX2: the shared text under wider flags.
 *
 * The Makefile gives files of this name the flags; lanes__of chooses at run time. The flags allow fused multiply-add,
 * and the build forbids its contraction, so the bits are those of the portable form. */
#define LANES_TABLE lanes__avx2
#include "nn/lanes_body.h"
