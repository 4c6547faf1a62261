/* CUDA text from programs: hooks that kernels call per tile, row, column and cell.
 *
 * A family of hooks NAME is made of NAME_tile_W, NAME_q_W and NAME_kv_W, which hold what stands still in a tile, along
 * a row and down a column, the functions NAME_by_tile_W, NAME_by_q_W and NAME_by_kv_W that fill them, and NAME_cell_W,
 * which does the rest. W is 64 or 32: the width of integers; a run takes 32 where it was proven enough. Arithmetic is
 * ops.def's last column over kernels/expr_ops.cuh. Every load is checked against its array and gives 0 outside, so
 * sides that a guard shuts are computed without harm; NAME_left tells whether a cell reaches a load that left.
 * Text depends on the program and on element types alone: values, extents and lengths come with px_env. */
#ifndef EXPR_EXPR_CUDA_H
#define EXPR_EXPR_CUDA_H
#include "core/str.h"
#include "expr/expr_grad.h"
#include "expr/kernels/expr_env.h"

/* type: element types of captured arrays, by capture (expr_cuda_types). */
void expr_cuda_types(const expr *e, const expr_env *env, dtype type[EXPR_MAX_CAPTURES]);
/* What hooks stand on, once in front of them. */
MUST_CHECK err expr_cuda_prelude(str *out);
/* int mask_cell_W(e, t, r, c, b, h, q, kv), mask_left(e, b, h, q, kv). */
MUST_CHECK err expr_cuda_mask(str *out, const expr *mask, const dtype *type);
/* float score_cell_W(e, t, r, c, b, h, q, kv, s), score_left(e, b, h, q, kv, s). */
MUST_CHECK err expr_cuda_score(str *out, const expr *score, const dtype *type);
/* float slope_cell_W(..., s, float *d_s): the score, and its derivative by s. */
MUST_CHECK err expr_cuda_slope(str *out, const expr_grad *g, const dtype *type);
/* void sites_cell_W(..., s, long long *place, float *d), SITES and sites_capture(k): for each site, the element that it
 * reads (-1: none) and the derivative by it. */
MUST_CHECK err expr_cuda_sites(str *out, const expr_grad *g, const dtype *type);

/* Values for a run; arrays[i] is capture i's copy in device memory. env may be NULL where nothing is captured. */
void expr_cuda_fill(px_env *out, const expr *e, const expr_env *env, const void *const *arrays);
/* What holds of a score for b < batch, h < heads, q < q_len, kv < kv_len, whatever s is: bits. */
enum {
    EXPR_CUDA_FITS_32 = 1, /* all integers fit 32 bits */
    EXPR_CUDA_INSIDE = 2   /* no load leaves its array, reached or not */
};
unsigned expr_cuda_prove(const expr *score, const expr_env *env, const int64_t extent[4]);

#endif
