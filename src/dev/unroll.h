/* UNROLL in front of a loop with few and constant steps: written out whole, so that sums stay in registers.
 *
 * gcc and clang spell it differently, and at -O2 neither does it unasked for nests of this size.
 * For the kernels of this folder only. */
#ifndef DEV_UNROLL_H
#define DEV_UNROLL_H

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
