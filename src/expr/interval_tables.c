/* Ranges of slices of captured arrays, built in one pass and asked in logarithmic time.
 *
 * An integer array that never falls (document ids, anchors) needs nothing: its slice's ends are the
 * extremes. Otherwise a binary tree of minima and maxima over at most LEAVES blocks is kept; the ragged
 * ends of a slice are read element by element, so the answer is exact. A float block that holds NaN counts as
 * everything from -inf to +inf, which the rules read as unknown. Arrays of more than SCANNED
 * elements are not read through: their short slices are read when asked for, long ones are unknown within their
 * element type, so neither time nor memory follows an array that is larger than its use. Of far arrays the leaves come from
 * outside, and a slice counts as the leaves that cover it. */
#include "expr/interval_tables.h"
#include "expr/expr_load.h"
#include "expr/ops.h"
#include <math.h>
#include <string.h>

enum {
    BLOCK = 64,
    LEAVES = INTERVAL_LEAVES_MOST,
    SCANNED = 1 << 26,
    READ = 1 << 14,
    MAX_ROWS = 128
};
enum { SHORT = 256, VALUES = 16 }; /* slices that are compared value by value */

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

/* The same for the common types, by vector loops. */
static interval_range read_range(const interval_lanes *f, const expr_value *v, expr_type type,
                                 int64_t from, int64_t to) {
    interval_range r = {0};
    if (to - from < 8) return whole_range(v, type, from, to);
    if (type == EXPR_INT && v->type == DT_I64) {
        f->ends_i64((const int64_t *)v->data + from, to - from + 1, &r.lo.i, &r.hi.i);
    } else if (type == EXPR_INT && v->type == DT_I32) {
        f->ends_i32((const int32_t *)v->data + from, to - from + 1, &r.lo.i, &r.hi.i);
    } else if (v->type == DT_U8 || v->type == DT_BOOL) {
        f->ends_u8((const uint8_t *)v->data + from, to - from + 1, &r.lo.i, &r.hi.i);
        if (type == EXPR_BOOL || v->type == DT_BOOL) r.lo.i = r.lo.i != 0, r.hi.i = r.hi.i != 0;
    } else if (v->type == DT_F32) {
        if (f->ends_f32((const float *)v->data + from, to - from + 1, &r.lo.f, &r.hi.f))
            return interval__unknown(EXPR_FLOAT);
    } else {
        return whole_range(v, type, from, to);
    }
    return r;
}

static int never_falls(const interval_lanes *f, const expr_value *v, expr_type type, int64_t n) {
    if (type == EXPR_FLOAT) return 0;
    if (type == EXPR_INT && v->type == DT_I64) return f->rises_i64(v->data, n);
    if (type == EXPR_INT && v->type == DT_I32) return f->rises_i32(v->data, n);
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

static err take_tree(interval_array *x, arena *a) {
    TRY(arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->lo, &x->lo));
    return arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->hi, &x->hi);
}

static void fill_tree(interval_array *x, expr_type type) {
    for (int64_t i = x->blocks - 1; i > 0; i--)
        keep_node(x, i,
                  interval__join(type, node_range(x, 2 * i, type), node_range(x, 2 * i + 1, type)));
}

static err build_array(interval_array *x, const interval_lanes *f, const expr_value *v,
                       expr_type type, int ndim, arena *a) {
    x->n = expr_value_count(v, ndim);
    if (x->n > SCANNED) return ERR_OK;
    x->sorted = never_falls(f, v, type, x->n);
    if (x->sorted) return ERR_OK;
    x->block = BLOCK;
    while (x->n > x->block * LEAVES) x->block *= 2;
    x->blocks = (x->n + x->block - 1) / x->block;
    TRY(take_tree(x, a));
    for (int64_t i = 0; i < x->blocks; i++) {
        int64_t from = i * x->block, to = from + x->block < x->n ? from + x->block - 1 : x->n - 1;
        keep_node(x, x->blocks + i, read_range(f, v, type, from, to));
    }
    fill_tree(x, type);
    return ERR_OK;
}

/* ---- sets of values: ids in no order, of which two slices may share none though their extremes overlap ---- */

static uint64_t class_of(int64_t v) { return UINT64_C(1) << ((uint64_t)v * INTERVAL_CLASS >> 58); }

/* Classes of elements from..to; equal neighbours, which documents are made of, count once. */
static uint64_t read_set(const expr_value *v, int64_t from, int64_t to) {
    int64_t last = expr_load__element(v, EXPR_INT, from).i;
    uint64_t set = class_of(last);
    for (int64_t i = from + 1; i <= to; i++) {
        int64_t x = expr_load__element(v, EXPR_INT, i).i;
        if (x != last) set |= class_of(x);
        last = x;
    }
    return set;
}

static void join_sets(interval_array *x) {
    for (int64_t i = x->blocks - 1; i > 0; i--) x->sets[i] = x->sets[2 * i] | x->sets[2 * i + 1];
}

static err build_sets(interval_array *x, const expr_value *v, arena *a) {
    if (!x->blocks || x->sets) return ERR_OK; /* sorted arrays answer by their ends */
    TRY(arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->sets, &x->sets));
    for (int64_t i = 0; i < x->blocks; i++) {
        int64_t from = i * x->block, to = from + x->block < x->n ? from + x->block : x->n;
        x->sets[x->blocks + i] = read_set(v, from, to - 1);
    }
    join_sets(x);
    return ERR_OK;
}

/* Classes that occur in a slice; all of them where that is not known. */
static uint64_t set_of(const interval_array *x, const expr_value *v, int64_t from, int64_t to) {
    if (from < 0 || to >= x->n || (x->far && !x->sets)) return UINT64_MAX;
    if (!x->far && to - from < (x->sets ? BLOCK / 4 : 2 * BLOCK)) return read_set(v, from, to);
    if (!x->sets) return UINT64_MAX;
    int64_t i = from / x->block + x->blocks, j = to / x->block + x->blocks + 1;
    uint64_t set = 0; /* of the covering blocks: a little more is sound */
    for (; i < j; i /= 2, j /= 2) {
        if (i & 1) set |= x->sets[i++];
        if (j & 1) set |= x->sets[--j];
    }
    return set;
}

int interval_tables__has_sets(const interval_tables *t, const affine_form *f) {
    return f->pair && (t->array[t->prog.node[f->term[0].node].slot].sets ||
                       t->array[t->prog.node[f->term[1].node].slot].sets);
}

/* Values of a short slice, equal neighbours once; -1 when there are too many, or they cannot be read: of far arrays, leaves
 * of one element are the array. */
static int read_values(const interval_array *x, const expr_value *v, int64_t from, int64_t to,
                       int64_t *out) {
    int n = 0;
    if (to - from >= SHORT || (x->far && x->block > 1)) return -1;
    for (int64_t i = from; i <= to; i++) {
        int64_t value = x->far ? x->lo[x->blocks + i].i : expr_load__element(v, EXPR_INT, i).i;
        if (n && out[n - 1] == value) continue;
        if (n == VALUES) return -1;
        out[n++] = value;
    }
    return n;
}

/* Two slices of few values, compared one by one. */
static int share_none(const interval_array *const *a, const expr_value *const *v, const int64_t *lo,
                      const int64_t *hi) {
    int64_t x[VALUES], y[VALUES];
    int n = read_values(a[0], v[0], lo[0], hi[0], x);
    int m = n < 0 ? -1 : read_values(a[1], v[1], lo[1], hi[1], y);
    for (int i = 0; m >= 0 && i < n; i++)
        for (int j = 0; j < m; j++)
            if (x[i] == y[j]) return 0;
    return m >= 0;
}

int interval_tables__apart(const interval_tables *t, const affine_form *pair, const int64_t *lo,
                           const int64_t *hi, int look) {
    const interval_array *x[2];
    const expr_value *v[2];
    uint64_t set[2];
    int inside = 1;
    for (int i = 0; i < 2; i++) {
        int slot = t->prog.node[pair->term[i].node].slot;
        x[i] = &t->array[slot];
        v[i] = &t->values[slot];
        inside &= lo[i] >= 0 && hi[i] < x[i]->n;
        set[i] = set_of(x[i], v[i], lo[i], hi[i]);
    }
    return (set[0] & set[1]) == 0 || (look && inside && share_none(x, v, lo, hi));
}

/* What an element can be by its type alone. */
static interval_range any_element(const expr_value *v, expr_type type) {
    if (type != EXPR_INT) return interval__unknown(type);
    switch (v->type) {
    case DT_BOOL: return interval__ints(0, 1);
    case DT_U8: return interval__ints(0, UINT8_MAX);
    case DT_I8: return interval__ints(INT8_MIN, INT8_MAX);
    case DT_I16: return interval__ints(INT16_MIN, INT16_MAX);
    case DT_I32: return interval__ints(INT32_MIN, INT32_MAX);
    default: return interval__unknown(EXPR_INT);
    }
}

static void widen(interval_range *r, int *any, expr_type type, interval_range x) {
    *r = *any ? interval__join(type, *r, x) : x;
    *any = 1;
}

/* Leaves first..last - 1. */
static interval_range tree_range(const interval_array *x, expr_type type, int64_t first,
                                 int64_t last) {
    interval_range r = {0};
    int any = 0;
    int64_t i = first + x->blocks, j = last + x->blocks;
    for (; i < j; i /= 2, j /= 2) {
        if (i & 1) widen(&r, &any, type, node_range(x, i++, type));
        if (j & 1) widen(&r, &any, type, node_range(x, --j, type));
    }
    return r;
}

interval_range interval_tables__slice(const interval_tables *t, int slot, expr_type type,
                                      int64_t from, int64_t to) {
    const interval_array *x = &t->array[slot];
    const expr_value *v = &t->values[slot];
    const interval_lanes *f = t->lanes;
    if (x->far) return tree_range(x, type, from / x->block, to / x->block + 1);
    if (x->sorted)
        return interval__ints(expr_load__element(v, type, from).i,
                              expr_load__element(v, type, to).i);
    const int64_t block = x->block;
    if (to - from < (block ? block / 2 : READ)) return read_range(f, v, type, from, to);
    if (!block) return any_element(v, type);
    interval_range r = {0};
    int any = 0;
    int64_t first = (from + block - 1) / block; /* whole blocks first..last - 1 */
    int64_t last = to == x->n - 1 ? x->blocks : (to + 1) / block;
    if (first >= last) return read_range(f, v, type, from, to);
    if (from < first * block)
        widen(&r, &any, type, read_range(f, v, type, from, first * block - 1));
    if (last < x->blocks && last * block <= to)
        widen(&r, &any, type, read_range(f, v, type, last * block, to));
    widen(&r, &any, type, tree_range(x, type, first, last));
    return r;
}

/* A slice per leading index while these are few; one covering slice otherwise. */
static interval_range load_slices(const interval_tables *t, const ir_node *n, const int64_t *lo,
                                  const int64_t *hi) {
    const expr_value *v = &t->values[n->slot];
    int last = n->n_args - 1;
    int64_t at[EXPR_MAX_NDIM], end[EXPR_MAX_NDIM], rows = 1;
    interval_range r = {0};
    for (int i = 0; i <= last; i++) at[i] = lo[i];
    for (int i = 0; i <= last; i++) end[i] = hi[i];
    for (int i = 0; i < last && rows <= MAX_ROWS; i++)
        rows *= hi[i] - lo[i] < MAX_ROWS ? hi[i] - lo[i] + 1 : MAX_ROWS + 1;
    if (rows > MAX_ROWS)
        return interval_tables__slice(t, n->slot, (expr_type)n->type,
                                      expr_load__place(v, n->n_args, at),
                                      expr_load__place(v, n->n_args, end));
    for (int64_t row = 0; row < rows; row++) {
        int64_t rest = row;
        for (int i = last - 1; i >= 0; i--) {
            int64_t extent = hi[i] - lo[i] + 1;
            at[i] = end[i] = lo[i] + rest % extent;
            rest /= extent;
        }
        interval_range s = interval_tables__slice(t, n->slot, (expr_type)n->type,
                                                  expr_load__place(v, n->n_args, at),
                                                  expr_load__place(v, n->n_args, end));
        r = row ? interval__join((expr_type)n->type, r, s) : s;
        if (n->type == EXPR_BOOL && r.lo.i != r.hi.i) break; /* nothing more to learn */
    }
    return r;
}

interval_range interval_tables__load(const interval_tables *t, const ir_node *load,
                                     const int64_t *lo, const int64_t *hi, int *inside) {
    const expr_value *v = &t->values[load->slot];
    int64_t from[EXPR_MAX_NDIM], to[EXPR_MAX_NDIM];
    int nowhere = 0;
    interval_range zero = {0};
    *inside = 1;
    for (int i = 0; i < load->n_args; i++) {
        from[i] = lo[i] < 0 ? 0 : lo[i];
        to[i] = hi[i] >= v->dim[i] ? v->dim[i] - 1 : hi[i];
        *inside &= from[i] == lo[i] && to[i] == hi[i];
        nowhere |= from[i] > to[i];
    }
    if (nowhere) return zero;
    interval_range r = load_slices(t, load, from, to);
    return *inside ? r : interval__join((expr_type)load->type, r, zero);
}

/* Whether a comparison of elements with those of another array (or this one) asks for sets of capture slot's values. */
static int is_compared(const interval_tables *t, int slot) {
    for (int i = 0; i < t->prog.n; i++) {
        const affine_form *f = t->affine.of[i];
        const int op = t->prog.node[i].op;
        if (!f || !f->pair || (op != IR_EQ_I && op != IR_NE_I)) continue;
        for (int j = 0; j < 2; j++)
            if (t->prog.node[f->term[j].node].slot == slot) return 1;
    }
    return 0;
}

/* A far array: its tree over the leaves that the source makes. */
static err take_leaves(interval_array *x, const interval_leaf *leaf, expr_type type, int compared,
                       arena *a) {
    TRY(take_tree(x, a));
    for (int64_t i = 0; i < x->blocks; i++) {
        memcpy(&x->lo[x->blocks + i], &leaf[i].lo, sizeof *x->lo);
        memcpy(&x->hi[x->blocks + i], &leaf[i].hi, sizeof *x->hi);
    }
    fill_tree(x, type);
    if (!compared) return ERR_OK;
    TRY(arena_alloc_raw(a, 2 * (size_t)x->blocks, sizeof *x->sets, &x->sets));
    for (int64_t i = 0; i < x->blocks; i++) x->sets[x->blocks + i] = leaf[i].set;
    join_sets(x);
    return ERR_OK;
}

static err build_far(interval_tables *t, int slot, const ir_node *n, const interval_source *source,
                     arena *a) {
    interval_array *x = &t->array[slot];
    interval_leaf *leaf;
    x->far = 1;
    x->n = expr_value_count(&t->values[slot], n->n_args);
    x->block = 1;
    while (x->n > x->block * LEAVES) x->block *= 2;
    x->blocks = (x->n + x->block - 1) / x->block;
    if (x->n == 0) return ERR_OK;
    TRY(mem_new((size_t)x->blocks, sizeof *leaf, &leaf));
    err e = source->leaves(source->ctx, slot, x->n, x->block, leaf);
    if (!e) e = take_leaves(x, leaf, (expr_type)n->type, is_compared(t, slot), a);
    mem_free(leaf);
    return e;
}

static err build(interval_tables *t, const expr *e, const expr_env *env,
                 const interval_source *source, arena *a) {
    TRY(arena_alloc(a, (size_t)e->n_decls, sizeof *t->values, &t->values));
    if (env) {
        t->q0 = env->q0;
        t->kv0 = env->kv0;
        if (e->n_decls) memcpy(t->values, env->values, (size_t)e->n_decls * sizeof *t->values);
    }
    t->lanes = interval_lanes__choose();
    t->names = e->decls;
    TRY(ir__bind(&e->prog, e->decls, env, a, &t->prog));
    TRY(ir__verify(&t->prog, e->decls, e->n_decls));
    TRY(affine__build(&t->affine, &t->prog, a));
    for (int i = 0; i < t->prog.n; i++) {
        const ir_node *n = &t->prog.node[i];
        if (n->op != IR_LOAD) continue;
        interval_array *x = &t->array[n->slot];
        if (x->n || x->far) continue;
        if (source) {
            TRY(build_far(t, n->slot, n, source, a));
            continue;
        }
        TRY(build_array(x, t->lanes, &t->values[n->slot], (expr_type)n->type, n->n_args, a));
        if (is_compared(t, n->slot)) TRY(build_sets(x, &t->values[n->slot], a));
    }
    return ERR_OK;
}

err interval_tables_create_far(interval_tables **out, const expr *e, const expr_env *env,
                               const interval_source *source, arena *a) {
    *out = NULL;
    TRY(expr_check_env(e, env));
    interval_tables *t;
    TRY(arena_alloc(a, 1, sizeof *t, &t));
    TRY(build(t, e, env, source, a));
    *out = t;
    return ERR_OK;
}

err interval_tables_create(interval_tables **out, const expr *e, const expr_env *env, arena *a) {
    return interval_tables_create_far(out, e, env, NULL, a);
}

err interval_tables_tie(interval_tables **out, const interval_tables *t, int64_t shift, arena *a) {
    interval_tables *tied;
    ir_build *b;
    int16_t at[IR_MAX_NODES + IR_SLACK];
    *out = NULL;
    TRY(arena_alloc(a, 1, sizeof *tied, &tied));
    TRY(ir__build_new(&b, 4 * t->prog.n + 64));
    *tied = *t; /* both positions carry their offset already */
    int kv =
        ir__op(b, IR_ADD_I, ir__var(b, IR_Q), ir__int(b, ops_add(shift, ops_sub(t->kv0, t->q0))));
    for (int i = 0; i < t->prog.n; i++) {
        const ir_node *n = &t->prog.node[i];
        int is_kv = n->op == IR_VAR && n->slot == IR_KV;
        at[i] = (int16_t)(is_kv ? kv : ir__copy_node(b, n, at));
    }
    err e = ir__finish(b, at[t->prog.n - 1], a, &tied->prog);
    mem_free(b);
    TRY(e);
    TRY(affine__build(&tied->affine, &tied->prog, a));
    *out = tied;
    return ERR_OK;
}
