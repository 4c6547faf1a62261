/* Ranges of slices of captured arrays, built in one pass and asked in logarithmic time.
 *
 * An integer array that never falls (document ids, anchors) needs nothing: its slice's ends are the
 * extremes. Otherwise a binary tree of minima and maxima over blocks of BLOCK elements is kept; the ragged
 * ends of a slice are read element by element, so the answer is exact. A float block that holds NaN counts as
 * everything from -inf to +inf, which the rules read as unknown. */
#include "expr/interval_tables.h"
#include "expr/expr_load.h"
#include <math.h>
#include <string.h>

enum { BLOCK = 64 };

static interval_range whole_range(const expr_value *v, expr_type type, int64_t from, int64_t to) {
    interval_range r;
    r.lo = r.hi = expr_load__element(v, type, from);
    r.nan = 0;
    if (type == EXPR_FLOAT) {
        for (int64_t i = from; i <= to; i++) {
            float x = expr_load__element(v, type, i).f;
            if (x != x) return interval__unknown(EXPR_FLOAT);
            if (x < r.lo.f) r.lo.f = x;
            if (x > r.hi.f) r.hi.f = x;
        }
        return r;
    }
    for (int64_t i = from; i <= to; i++) {
        int64_t x = expr_load__element(v, type, i).i;
        if (x < r.lo.i) r.lo.i = x;
        if (x > r.hi.i) r.hi.i = x;
    }
    return r;
}

/* The same for the two common integer types, without a switch per element. */
#define EXTREMES(T)                                                                                \
    {                                                                                              \
        const T *x = v->data;                                                                      \
        T lo = x[from], hi = x[from];                                                              \
        for (int64_t i = from + 1; i <= to; i++) {                                                 \
            lo = x[i] < lo ? x[i] : lo;                                                            \
            hi = x[i] > hi ? x[i] : hi;                                                            \
        }                                                                                          \
        return interval__ints(lo, hi);                                                             \
    }

static interval_range read_range(const expr_value *v, expr_type type, int64_t from, int64_t to) {
    if (type == EXPR_INT && v->type == DT_I64) EXTREMES(int64_t)
    if (type == EXPR_INT && v->type == DT_I32) EXTREMES(int32_t)
    return whole_range(v, type, from, to);
}

#define NEVER_FALLS(T)                                                                             \
    {                                                                                              \
        const T *x = v->data;                                                                      \
        int64_t i = 1;                                                                             \
        while (i < n && x[i - 1] <= x[i]) i++;                                                     \
        return i >= n;                                                                             \
    }

static int never_falls(const expr_value *v, expr_type type, int64_t n) {
    if (type == EXPR_FLOAT) return 0;
    if (type == EXPR_INT && v->type == DT_I64) NEVER_FALLS(int64_t)
    if (type == EXPR_INT && v->type == DT_I32) NEVER_FALLS(int32_t)
    for (int64_t i = 1; i < n; i++)
        if (expr_load__element(v, type, i - 1).i > expr_load__element(v, type, i).i) return 0;
    return 1;
}

static interval_range node_range(const interval_array *x, int64_t node, expr_type type) {
    interval_range r = {.lo = x->lo[node], .hi = x->hi[node], .nan = 0};
    if (type == EXPR_FLOAT) r.nan = r.lo.f == -INFINITY && r.hi.f == INFINITY;
    return r;
}

static void keep_node(interval_array *x, int64_t node, interval_range r) {
    x->lo[node] = r.lo;
    x->hi[node] = r.hi;
}

static err build_array(interval_array *x, const expr_value *v, expr_type type, int ndim, arena *a) {
    x->n = 1;
    for (int i = 0; i < ndim; i++) x->n *= v->dim[i];
    x->sorted = never_falls(v, type, x->n);
    if (x->sorted) return ERR_OK;
    x->blocks = (x->n + BLOCK - 1) / BLOCK;
    TRY(arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->lo, &x->lo));
    TRY(arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->hi, &x->hi));
    for (int64_t i = 0; i < x->blocks; i++) {
        int64_t from = i * BLOCK, to = from + BLOCK < x->n ? from + BLOCK - 1 : x->n - 1;
        keep_node(x, x->blocks + i, read_range(v, type, from, to));
    }
    for (int64_t i = x->blocks - 1; i > 0; i--)
        keep_node(x, i,
                  interval__join(type, node_range(x, 2 * i, type), node_range(x, 2 * i + 1, type)));
    return ERR_OK;
}

static void widen(interval_range *r, int *any, expr_type type, interval_range x) {
    *r = *any ? interval__join(type, *r, x) : x;
    *any = 1;
}

interval_range interval_tables__slice(const interval_tables *t, int slot, expr_type type,
                                      int64_t from, int64_t to) {
    const interval_array *x = &t->array[slot];
    const expr_value *v = &t->values[slot];
    if (x->sorted)
        return interval__ints(expr_load__element(v, type, from).i,
                              expr_load__element(v, type, to).i);
    if (to - from < BLOCK / 2) return read_range(v, type, from, to);
    interval_range r = {0};
    int any = 0;
    int64_t first = (from + BLOCK - 1) / BLOCK; /* whole blocks first..last - 1 */
    int64_t last = to == x->n - 1 ? x->blocks : (to + 1) / BLOCK;
    if (first >= last) return read_range(v, type, from, to);
    if (from < first * BLOCK) widen(&r, &any, type, read_range(v, type, from, first * BLOCK - 1));
    if (last < x->blocks && last * BLOCK <= to)
        widen(&r, &any, type, read_range(v, type, last * BLOCK, to));
    int64_t i = first + x->blocks, j = last + x->blocks;
    for (; i < j; i /= 2, j /= 2) {
        if (i & 1) widen(&r, &any, type, node_range(x, i++, type));
        if (j & 1) widen(&r, &any, type, node_range(x, --j, type));
    }
    return r;
}

static err build(interval_tables *t, const expr *e, const expr_env *env, arena *a) {
    TRY(arena_alloc(a, (size_t)e->n_decls, sizeof *t->values, &t->values));
    if (env) {
        t->q0 = env->q0;
        t->kv0 = env->kv0;
        if (e->n_decls) memcpy(t->values, env->values, (size_t)e->n_decls * sizeof *t->values);
    }
    TRY(ir__bind(&e->prog, e->decls, env, a, &t->prog));
    TRY(ir__verify(&t->prog, e->decls, e->n_decls));
    TRY(affine__build(&t->affine, &t->prog, a));
    for (int i = 0; i < t->prog.n; i++) {
        const ir_node *n = &t->prog.node[i];
        if (n->op != IR_LOAD || t->array[n->slot].n) continue;
        TRY(build_array(&t->array[n->slot], &t->values[n->slot], (expr_type)n->type, n->n_args, a));
    }
    return ERR_OK;
}

err interval_tables_create(interval_tables **out, const expr *e, const expr_env *env, arena *a) {
    *out = NULL;
    TRY(expr_check_env(e, env));
    interval_tables *t;
    TRY(arena_alloc(a, 1, sizeof *t, &t));
    TRY(build(t, e, env, a));
    *out = t;
    return ERR_OK;
}
