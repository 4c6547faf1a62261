/* Arrays that a mask's builder cannot read: who answers its questions from a host copy instead, by the definition.
 *
 * Stands for the kernels of flex/blockmask_cuda.c. The builder gets addresses that no process has, so a read of them
 * ends the test. Questions are counted. Also here: two masks compared run for run. Header only. */
#ifndef TESTS_FLEX_FAR_ARRAYS_H
#define TESTS_FLEX_FAR_ARRAYS_H
#include "expr/expr_load.h"
#include "flex/blockmask_private.h"
#include "support/numbers.h"
#include <math.h>
#include <string.h>

typedef struct far_arrays {
    const expr *mask;
    const expr_env *near; /* the host copy */
    expr_value value[EXPR_MAX_CAPTURES];
    expr_env env; /* what the builder gets */
    blockmask__far far;
    int64_t tiles, rows, calls; /* boxes asked for */
    int64_t nothing;            /* tiles asked for that had no visible cell */
} far_arrays;

static inline interval_leaf far_arrays_leaf(const expr_value *v, expr_type type, int64_t from,
                                            int64_t to) {
    interval_leaf leaf = {.set = 0};
    ir_val lo = expr_load__element(v, type, from), hi = lo;
    int nan = 0;
    for (int64_t i = from; i < to; i++) {
        const ir_val x = expr_load__element(v, type, i);
        if (type == EXPR_FLOAT) {
            nan |= x.f != x.f;
            if (x.f < lo.f || lo.f != lo.f) lo = x;
            if (x.f > hi.f || hi.f != hi.f) hi = x;
        } else {
            if (x.i < lo.i) lo = x;
            if (x.i > hi.i) hi = x;
            leaf.set |= UINT64_C(1) << ((uint64_t)x.i * INTERVAL_CLASS >> 58);
        }
    }
    if (nan) lo.f = -INFINITY, hi.f = INFINITY;
    memcpy(&leaf.lo, &lo, sizeof lo);
    memcpy(&leaf.hi, &hi, sizeof hi);
    return leaf;
}

static inline err far_arrays_leaves(void *ctx, int capture, int64_t elements, int64_t block,
                                    interval_leaf *out) {
    far_arrays *f = ctx;
    f->calls++;
    for (int64_t at = 0; at < elements; at += block)
        *out++ = far_arrays_leaf(&f->near->values[capture], expr_capture(f->mask, capture)->type,
                                 at, at + block < elements ? at + block : elements);
    return ERR_OK;
}

static inline err far_arrays_count(void *ctx, const interval_box *box, const uint8_t *loads, int n,
                                   blockmask__count *out) {
    far_arrays *f = ctx;
    f->calls++, f->tiles += n;
    for (int i = 0; i < n; i++) {
        const interval_box *x = &box[i];
        out[i] = (blockmask__count){.all = 1, .left = -1};
        for (int64_t q = x->q0; q <= x->q1; q++) {
            for (int64_t k = x->kv0; k <= x->kv1; k++) {
                int flag = 0, seen = expr_eval_mask(f->mask, f->near, x->b0, x->h0, q, k, &flag);
                out[i].some |= seen, out[i].all &= seen;
                if (!loads[i] || !flag) continue;
                out[i].reaches = 1;
                if (seen && out[i].left < 0)
                    out[i].left = (q - x->q0) * (x->kv1 - x->kv0 + 1) + k - x->kv0;
            }
        }
        f->nothing += !out[i].some;
    }
    return ERR_OK;
}

static inline err far_arrays_rows(void *ctx, const interval_box *box, const int *slot, int n,
                                  int slots, uint32_t *seen) {
    far_arrays *f = ctx;
    f->calls++, f->rows += n;
    memset(seen, 0, (size_t)slots * BLOCKMASK__WORDS * sizeof *seen);
    for (int i = 0; i < n; i++) {
        const interval_box *x = &box[i];
        for (int64_t q = x->q0; q <= x->q1; q++) {
            int any = 0, flag = 0;
            for (int64_t k = x->kv0; k <= x->kv1 && !any; k++)
                any = expr_eval_mask(f->mask, f->near, x->b0, x->h0, q, k, &flag);
            const int r = (int)(q - x->q0);
            if (any) seen[slot[i] * BLOCKMASK__WORDS + r / 32] |= UINT32_C(1) << r % 32;
        }
    }
    return ERR_OK;
}

static inline void far_arrays_make(far_arrays *f, const expr *mask, const expr_env *near) {
    memset(f, 0, sizeof *f);
    f->mask = mask, f->near = near;
    for (int i = 0; i < expr_capture_count(mask); i++) {
        f->value[i] = near->values[i];
        if (expr_capture(mask, i)->ndim) f->value[i].data = (const void *)(uintptr_t)64;
    }
    f->env = (expr_env){f->value, near->q0, near->kv0};
    f->far = (blockmask__far){.arrays = {f, far_arrays_leaves},
                              .ctx = f,
                              .count = far_arrays_count,
                              .rows = far_arrays_rows};
}

/* Why two masks differ, or NULL. Bytes, times and counts of questions are their own. */
static inline const char *far_arrays_differ(const block_mask *x, const block_mask *y) {
    if (x->batch != y->batch || x->heads != y->heads) return "stored batches or heads";
    if (x->q_tiles != y->q_tiles || x->kv_tiles != y->kv_tiles) return "numbers of tiles";
    if (x->empty != y->empty || x->partial != y->partial || x->full != y->full) return "kinds";
    const size_t rows = (size_t)(x->batch * x->heads * x->q_tiles),
                 cols = (size_t)(x->batch * x->heads * x->kv_tiles);
    if (memcmp(x->row_start, y->row_start, (rows + 1) * sizeof *x->row_start)) return "row starts";
    if (memcmp(x->col_start, y->col_start, (cols + 1) * sizeof *x->col_start))
        return "column starts";
    if (memcmp(x->row_run, y->row_run, (size_t)x->row_start[rows] * sizeof *x->row_run))
        return "runs of rows";
    if (memcmp(x->col_run, y->col_run, (size_t)x->col_start[cols] * sizeof *x->col_run))
        return "runs of columns";
    if (x->bytes != y->bytes) return "bytes";
    if (x->no_empty_row != y->no_empty_row) return "rows that see nothing";
    if (x->may_leave != y->may_leave) return "loads that may leave";
    if (x->proofs.fits_32 != y->proofs.fits_32) return "the width that is proven";
    return NULL;
}

#endif
