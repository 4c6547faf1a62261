/* Layout, classes and the passes of the engine.
 *
 * A node that names q and kv through q - kv alone has one value per diagonal. Affine ones (q - kv + 3) are filled from
 * their value at one cell and their slope, which is exact modulo 2^64; others (bias[q - kv]) are evaluated over the
 * vector of diagonals, of which every row reads a slice. A load outside its array gives 0 and marks its lane; whether
 * the program really reaches it there is asked separately (expr_reach.c). */
#include "expr/expr_engine.h"
#include "expr/expr_load.h"
#include "expr/ops.h"
#include <string.h>

enum { ALIGN = 64 };

typedef struct carver {
    char *base; /* NULL: only adds up */
    size_t used;
} carver;

static void *carve(carver *c, size_t bytes) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static size_t value_bytes(const ir_node *n) {
    return n->type == EXPR_INT ? 8 : n->type == EXPR_FLOAT ? 4 : 1;
}

static expr_engine__kind kind_of(const ir_node *n, int q_lanes) {
    switch (ir__class(n)) {
    case IR_FIXED: return KIND_FIXED;
    case IR_BY_Q: return q_lanes ? KIND_LANE : KIND_ROW;
    case IR_BY_KV: return q_lanes ? KIND_ROW : KIND_LANE;
    case IR_DIAGONAL: return KIND_DIAGONAL;
    default: return KIND_CELL;
    }
}

/* Diagonals of a tile, rounded up so that every row's slice of padded lanes lies inside. */
static int64_t diagonals(int64_t rows, int64_t padded) {
    return expr_engine__padded(rows + padded);
}

static void carve_list(carver *c, expr_engine__list *l, int n) {
    l->n = 0;
    l->id = carve(c, (size_t)n * sizeof *l->id);
}

/* Nodes of a rectangle are laid out by their class alone, so scratch does not depend on the roots. */
static size_t lay_out(expr_engine *x, const ir_prog *p, int q_lanes, int64_t rows, int64_t width,
                      char *scratch) {
    carver c = {scratch, 0};
    size_t n = (size_t)p->n, padded = (size_t)expr_engine__padded(width < 1 ? 1 : width);
    size_t wide = (size_t)diagonals(rows < 1 ? 1 : rows, (int64_t)padded);
    x->base = carve(&c, n * sizeof *x->base);
    x->value = carve(&c, n * sizeof *x->value);
    x->kind = carve(&c, n);
    x->reach_on = carve(&c, n);
    x->reach = carve(&c, n * sizeof *x->reach);
    x->load = carve(&c, n * sizeof *x->load);
    x->first = carve(&c, n * sizeof *x->first);
    expr_engine__list *lists[] = {&x->fixed, &x->lane, &x->diagonal, &x->row, &x->slopes};
    for (int i = 0; i < 5; i++) carve_list(&c, lists[i], p->n);
    for (int i = 0; i < p->n; i++) {
        const ir_node *node = &p->node[i];
        expr_engine__kind kind = kind_of(node, q_lanes);
        size_t count = kind <= KIND_ROW ? 1 : kind == KIND_DIAGONAL ? wide : padded;
        void *values = carve(&c, count * value_bytes(node)), *reach = NULL;
        expr_engine__load load = {0};
        if (node->has_load) reach = carve(&c, padded);
        if (node->op == IR_LOAD) {
            load.place = carve(&c, count * sizeof *load.place);
            load.left = carve(&c, count);
        }
        if (!scratch) continue;
        x->base[i] = x->value[i] = values;
        x->kind[i] = (uint8_t)kind;
        x->reach[i] = reach;
        x->load[i] = load;
    }
    return c.used;
}

size_t expr_engine__scratch(const ir_prog *p, int64_t rows, int64_t lanes) {
    expr_engine x;
    size_t along_q = lay_out(&x, p, 1, rows, lanes, NULL);
    size_t along_kv = lay_out(&x, p, 0, rows, lanes, NULL);
    return along_q > along_kv ? along_q : along_kv;
}

static int is_slope(const ir_node *n) { /* filled from one value and a slope */
    return n->diagonal && n->affine;
}

/* Marks what the roots need: 1 as values, 2 as an affine part of which one value is enough. */
static void find_needs(const expr_engine *x, int n, const int *root, int n_roots, uint8_t *need) {
    memset(need, 0, (size_t)n);
    for (int i = 0; i < n_roots; i++) need[root[i]] |= 1;
    for (int i = n - 1; i >= 0; i--) {
        const ir_node *node = &x->node[i];
        int one = (need[i] & 1) && is_slope(node);
        int affine = (need[i] & 2) && x->kind[i] != KIND_FIXED;
        for (int j = 0; j < node->n_args; j++) {
            if ((need[i] & 1) && !one) need[node->arg[j]] |= 1;
            if (one || affine) need[node->arg[j]] |= x->kind[node->arg[j]] == KIND_FIXED ? 1 : 2;
        }
    }
}

void expr_engine__open(expr_engine *x, const ir_prog *p, const int *root, int n_roots,
                       const expr_env *env, const expr_lanes *lanes, int q_lanes, int64_t rows,
                       int64_t width, void *scratch) {
    x->node = p->node;
    x->env = env;
    x->lanes = lanes;
    x->root = root[0];
    x->q_lanes = q_lanes;
    (void)lay_out(x, p, q_lanes, rows, width, scratch);
    find_needs(x, p->n, root, n_roots, x->reach_on);
    for (int i = 0; i < p->n; i++) {
        expr_engine__list *l = &x->row;
        if (x->reach_on[i] & 2 || (x->reach_on[i] & 1 && is_slope(&x->node[i])))
            x->slopes.id[x->slopes.n++] = (int16_t)i;
        if (!(x->reach_on[i] & 1)) continue;
        if (x->kind[i] == KIND_FIXED) l = &x->fixed;
        if (x->kind[i] == KIND_LANE) l = &x->lane;
        if (x->kind[i] == KIND_DIAGONAL) l = &x->diagonal;
        l->id[l->n++] = (int16_t)i;
    }
}

/* ---- values ---- */

static void read_load(expr_engine *x, int id, const ir_node *n, int64_t count, int64_t real) {
    const expr_value *v = &x->env->values[n->slot];
    expr_engine__load *l = &x->load[id];
    int64_t *place = l->place;
    uint8_t any = 0;
    memset(place, 0, (size_t)real * sizeof *place);
    memset(l->left, 0, (size_t)count);
    for (int d = 0; d < n->n_args; d++) {
        const int64_t *index = x->value[n->arg[d]];
        const int step = expr_engine__step(x, n->arg[d]);
        const int64_t extent = v->dim[d];
        for (int64_t i = 0; i < real; i++) {
            int64_t at = index[i * step];
            uint8_t out = (uint64_t)at >= (uint64_t)extent;
            any |= out;
            l->left[i] |= out;
            place[i] = ops_add(ops_mul(place[i], extent), at);
        }
    }
    if (any)
        for (int64_t i = 0; i < real; i++)
            if (l->left[i]) place[i] = -1;
    for (int64_t i = real; i < count; i++) place[i] = -1; /* padding reads nothing */
    l->any_left = any;
    x->n_marked += any;
    expr_load__gather(v, (expr_type)n->type, place, count, x->base[id]);
}

static void put(const ir_node *n, void *out, ir_val v) {
    if (n->type == EXPR_INT) *(int64_t *)out = v.i;
    if (n->type == EXPR_FLOAT) *(float *)out = v.f;
    if (n->type == EXPR_BOOL) *(uint8_t *)out = (uint8_t)v.i;
}

static void read_leaf(expr_engine *x, int id, const ir_node *n, int64_t row, int64_t count) {
    if (n->op == IR_VAR && n->slot == IR_S) {
        memcpy(x->base[id], x->s, (size_t)count * sizeof(float));
    } else if (n->op == IR_VAR) {
        int64_t *out = x->base[id], step = x->kind[id] == KIND_LANE;
        int64_t from = ops_add(x->var[n->slot], x->kind[id] == KIND_ROW ? row : 0);
        for (int64_t i = 0; i < count; i++) out[i] = ops_add(from, i * step);
    } else if (n->op == IR_SCALAR) {
        const expr_value *v = &x->env->values[n->slot];
        ir_val k = {.i = n->type == EXPR_BOOL ? v->scalar.i != 0 : v->scalar.i};
        if (n->type == EXPR_FLOAT) k.f = v->scalar.f;
        put(n, x->base[id], k);
    } else {
        put(n, x->base[id], n->k);
    }
}

/* One node over count lanes, real of which are cells. */
static void compute(expr_engine *x, int id, int64_t row, int64_t count, int64_t real) {
    const ir_node *n = &x->node[id];
    const void *a = x->value[n->arg[0]], *b = x->value[n->arg[1]];
    int step_a = expr_engine__step(x, n->arg[0]), step_b = expr_engine__step(x, n->arg[1]);
    if (n->op == IR_LOAD)
        read_load(x, id, n, count, real);
    else if (n->n_args == 0)
        read_leaf(x, id, n, row, count);
    else if (n->op == IR_SELECT)
        x->lanes->select[n->type](x->base[id], a, b, x->value[n->arg[2]], step_a, step_b,
                                  expr_engine__step(x, n->arg[2]), count);
    else
        x->lanes->op[n->op](x->base[id], a, b, step_a, step_b, count);
}

/* Affine nodes at the cell of the first diagonal: the last row's first lane. */
static void find_first(expr_engine *x) {
    int64_t cell[4];
    memcpy(cell, x->var, sizeof cell);
    int row_var = x->q_lanes ? IR_KV : IR_Q;
    cell[row_var] = ops_add(cell[row_var], x->rows - 1);
    for (int i = 0; i < x->slopes.n; i++) {
        int id = x->slopes.id[i];
        const ir_node *n = &x->node[id];
        ir_val v[2];
        for (int j = 0; j < 2; j++) {
            int a = n->arg[j];
            v[j].i =
                n->n_args > j && x->kind[a] == KIND_FIXED ? *(int64_t *)x->base[a] : x->first[a];
        }
        x->first[id] = n->op == IR_VAR ? cell[n->slot] : ir__apply((ir_op)n->op, v[0], v[1]).i;
    }
}

/* Lane t of the diagonals lies t - (rows - 1) lanes beyond its row's number. */
static void compute_diagonals(expr_engine *x) {
    int64_t real = x->rows - 1 + x->width, count = diagonals(x->rows, x->padded);
    if (x->diagonal.n == 0) return;
    find_first(x);
    for (int i = 0; i < x->diagonal.n; i++) {
        int id = x->diagonal.id[i];
        const ir_node *n = &x->node[id];
        x->value[id] = x->base[id];
        if (!is_slope(n)) {
            compute(x, id, 0, count, real);
            continue;
        }
        int64_t *out = x->base[id], slope = x->q_lanes ? n->slope_q : n->slope_kv;
        for (int64_t t = 0; t < count; t++) out[t] = ops_add(x->first[id], ops_mul(slope, t));
    }
}

void expr_engine__begin(expr_engine *x, int64_t b, int64_t h, int64_t q, int64_t kv, int64_t rows,
                        int64_t width) {
    x->var[IR_B] = b;
    x->var[IR_H] = h;
    x->var[IR_Q] = ops_add(q, x->env ? x->env->q0 : 0);
    x->var[IR_KV] = ops_add(kv, x->env ? x->env->kv0 : 0);
    x->rows = rows;
    x->width = width;
    x->padded = expr_engine__padded(width);
    x->n_marked = 0;
    for (int i = 0; i < x->row.n; i++) x->load[x->row.id[i]].any_left = 0;
    for (int i = 0; i < x->fixed.n; i++) compute(x, x->fixed.id[i], 0, 1, 1);
    for (int i = 0; i < x->lane.n; i++) compute(x, x->lane.id[i], 0, x->padded, width);
    compute_diagonals(x);
}

void expr_engine__row(expr_engine *x, int64_t i, const float *s) {
    x->s = s;
    for (int k = 0; k < x->diagonal.n; k++) {
        int id = x->diagonal.id[k];
        size_t skip = (size_t)(x->rows - 1 - i) * value_bytes(&x->node[id]);
        x->value[id] = (char *)x->base[id] + skip;
    }
    for (int k = 0; k < x->row.n; k++) {
        int id = x->row.id[k];
        if (x->load[id].any_left) { /* of the row before */
            x->load[id].any_left = 0;
            x->n_marked--;
        }
        if (x->kind[id] == KIND_ROW)
            compute(x, id, i, 1, 1);
        else
            compute(x, id, i, x->padded, x->width);
    }
}
