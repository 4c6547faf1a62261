/* The tile interpreter: a program over a rectangle of cells, vectorised along kv.
 *
 * Every operation is total, so values are computed without looking at guards: once per tile where they
 * depend on neither q nor kv, once per column chunk where on kv alone, once per row where on q alone,
 * and per row over the chunk's lanes otherwise. A load outside its array gives 0 and marks its lane. Only
 * when some lane is marked does a second pass find out whether the program really reaches that load there,
 * following the guards from the root down; then *flag is set. Columns go in chunks, so the scratch
 * memory does not grow with the tile. */
#include "expr/expr_lanes.h"
#include "expr/expr_load.h"
#include "expr/ops.h"
#include <string.h>

enum { CHUNK = 256, ALIGN = 64, MAX_NODES = IR_MAX_NODES + IR_SLACK };

typedef struct lane_list {
    int n;
    int16_t id[MAX_NODES];
} lane_list;

typedef struct tile {
    const expr *e;
    const expr_env *env;
    const expr_lanes *lanes;
    int64_t var[4];        /* kv: the chunk's first */
    int64_t width, padded; /* of the chunk: real lanes, and rounded up to the lanes' step */
    int64_t *place;        /* [padded] of the load at work */
    int n_marked;          /* loads with a marked lane */
    void *value[MAX_NODES];
    uint8_t *left[MAX_NODES]; /* loads: lanes that left the array */
    uint8_t any_left[MAX_NODES];
    uint8_t above[MAX_NODES];       /* a load that left lies at or below this node */
    uint8_t *reach[MAX_NODES];      /* nodes with loads below: lanes in which they are evaluated */
    lane_list fixed, columns, rows; /* rows: what depends on q, with or without kv */
} tile;

static size_t round_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }
static int64_t padded_width(int64_t nkv) {
    int64_t width = nkv < CHUNK ? nkv : CHUNK;
    return (width + EXPR_LANES_STEP - 1) / EXPR_LANES_STEP * EXPR_LANES_STEP;
}
static int is_wide(const ir_node *n) { return n->uses >> IR_KV & 1; }
static size_t lane_bytes(const ir_node *n) {
    return n->type == EXPR_INT ? 8 : n->type == EXPR_FLOAT ? 4 : 1;
}

/* Gives each node its part of scratch (NULL: only adds up). */
static size_t lay_out(tile *t, const expr *e, size_t padded, char *scratch) {
    size_t at = round_up(padded * sizeof(int64_t));
    if (scratch) t->place = (int64_t *)(void *)scratch;
    for (int i = 0; i < e->prog.n; i++) {
        const ir_node *n = &e->prog.node[i];
        if (scratch) t->value[i] = scratch + at;
        at += round_up((is_wide(n) ? padded : 1) * lane_bytes(n));
        if (!n->has_load) continue;
        if (scratch) t->reach[i] = (uint8_t *)scratch + at;
        at += round_up(padded);
        if (n->op != IR_LOAD) continue;
        if (scratch) t->left[i] = (uint8_t *)scratch + at;
        at += round_up(padded);
    }
    return at;
}

size_t expr_tile_scratch(const expr *e, int64_t nq, int64_t nkv) {
    (void)nq; /* rows are done one after the other in the same memory */
    return lay_out(NULL, e, (size_t)padded_width(nkv < 1 ? 1 : nkv), NULL);
}

static void load_lanes(tile *t, int id, const ir_node *n, int64_t count, int64_t real) {
    const expr_value *v = &t->env->values[n->slot];
    uint8_t any = 0;
    memset(t->place, 0, (size_t)real * sizeof *t->place);
    memset(t->left[id], 0, (size_t)count);
    for (int d = 0; d < n->n_args; d++) {
        const int64_t *index = t->value[n->arg[d]];
        const int step = is_wide(&t->e->prog.node[n->arg[d]]);
        const int64_t extent = v->dim[d];
        for (int64_t i = 0; i < real; i++) {
            int64_t at = index[i * step];
            uint8_t out = (uint64_t)at >= (uint64_t)extent;
            any |= out;
            t->left[id][i] |= out;
            t->place[i] = ops_add(ops_mul(t->place[i], extent), at);
        }
    }
    if (any)
        for (int64_t i = 0; i < real; i++)
            if (t->left[id][i]) t->place[i] = -1;
    for (int64_t i = real; i < count; i++) t->place[i] = -1; /* padding reads nothing */
    t->any_left[id] = any;
    t->n_marked += any;
    expr_load__gather(v, (expr_type)n->type, t->place, count, t->value[id]);
}

static void leaf_lanes(tile *t, int id, const ir_node *n, int64_t count) {
    if (n->op == IR_VAR) {
        int64_t *out = t->value[id];
        int64_t step = n->slot == IR_KV;
        for (int64_t i = 0; i < count; i++) out[i] = ops_add(t->var[n->slot], i * step);
        return;
    }
    ir_val v = n->k;
    if (n->op == IR_SCALAR) {
        v.i = t->env->values[n->slot].scalar.i;
        if (n->type == EXPR_FLOAT) v.f = t->env->values[n->slot].scalar.f;
        if (n->type == EXPR_BOOL) v.i = v.i != 0;
    }
    if (n->type == EXPR_INT) *(int64_t *)t->value[id] = v.i;
    if (n->type == EXPR_FLOAT) *(float *)t->value[id] = v.f;
    if (n->type == EXPR_BOOL) *(uint8_t *)t->value[id] = (uint8_t)v.i;
}

static void compute(tile *t, const lane_list *list) {
    const ir_node *nodes = t->e->prog.node;
    for (int i = 0; i < list->n; i++) {
        int id = list->id[i];
        const ir_node *n = &nodes[id];
        int wide = is_wide(n);
        int64_t count = wide ? t->padded : 1;
        const void *x = t->value[n->arg[0]], *y = t->value[n->arg[1]];
        int step_x = is_wide(&nodes[n->arg[0]]), step_y = is_wide(&nodes[n->arg[1]]);
        if (n->op == IR_LOAD)
            load_lanes(t, id, n, count, wide ? t->width : 1);
        else if (n->n_args == 0)
            leaf_lanes(t, id, n, count);
        else if (n->op == IR_SELECT)
            t->lanes->select[n->type](t->value[id], x, y, t->value[n->arg[2]], step_x, step_y,
                                      is_wide(&nodes[n->arg[2]]), count);
        else
            t->lanes->op[n->op](t->value[id], x, y, step_x, step_y, count);
    }
}

/* reach[to] |= reach[id], in the lanes where value[by] == when (by < 0: in all). */
static void pass_on(tile *t, int id, int to, int by, uint8_t when) {
    if (!t->above[to]) return;
    const uint8_t *restrict from = t->reach[id];
    uint8_t *restrict out = t->reach[to];
    const uint8_t *restrict guard = by < 0 ? NULL : t->value[by];
    if (guard && !is_wide(&t->e->prog.node[by])) {
        if (*guard != when) return;
        guard = NULL;
    }
    const uint8_t flip = when ^ 1;
    /* Inner loops of a constant count become vector code. */
    for (int64_t i = 0; !guard && i < t->padded; i += EXPR_LANES_STEP)
        for (int j = 0; j < EXPR_LANES_STEP; j++) out[i + j] |= from[i + j];
    for (int64_t i = 0; guard && i < t->padded; i += EXPR_LANES_STEP)
        for (int j = 0; j < EXPR_LANES_STEP; j++)
            out[i + j] |= (uint8_t)(from[i + j] & (guard[i + j] ^ flip));
}

/* Whether a load that left its array in some lanes is reached in one of them. */
static int is_hit(const tile *t, int id) {
    const uint8_t *restrict reach = t->reach[id];
    const uint8_t *restrict left = t->left[id];
    const int64_t step = is_wide(&t->e->prog.node[id]);
    uint8_t hit = 0;
    for (int64_t i = 0; step && i < t->padded; i += EXPR_LANES_STEP)
        for (int j = 0; j < EXPR_LANES_STEP; j++) hit |= reach[i + j] & left[i + j];
    for (int64_t i = 0; !step && i < t->width; i++) hit |= reach[i] & *left;
    return hit;
}

/* Whether a load that left its array in this row is reached in one of the lanes it left in. */
static int reaches_left(tile *t) {
    const ir_node *nodes = t->e->prog.node;
    int root = t->e->prog.n - 1;
    if (!nodes[root].has_load) return 0;
    for (int id = 0; id <= root; id++) {
        const ir_node *n = &nodes[id];
        t->above[id] = n->op == IR_LOAD && t->any_left[id];
        for (int i = 0; n->has_load && i < n->n_args; i++) t->above[id] |= t->above[n->arg[i]];
        if (t->above[id]) memset(t->reach[id], id == root, (size_t)t->padded);
    }
    for (int id = root; id >= 0; id--) {
        const ir_node *n = &nodes[id];
        if (!t->above[id]) continue;
        if (n->op == IR_LOAD && t->any_left[id] && is_hit(t, id)) return 1;
        int guards = n->op == IR_AND || n->op == IR_OR || n->op == IR_SELECT;
        for (int i = 0; i < n->n_args; i++) {
            uint8_t when = n->op == IR_AND || (n->op == IR_SELECT && i == 1);
            pass_on(t, id, n->arg[i], guards && i ? n->arg[0] : -1, when);
        }
    }
    return 0;
}

static void sort_nodes(tile *t) {
    t->fixed.n = t->columns.n = t->rows.n = 0;
    for (int i = 0; i < t->e->prog.n; i++) {
        unsigned uses = t->e->prog.node[i].uses;
        lane_list *l = uses >> IR_Q & 1 ? &t->rows : uses >> IR_KV & 1 ? &t->columns : &t->fixed;
        l->id[l->n++] = (int16_t)i;
    }
}

static void write_row(const tile *t, uint8_t *out) {
    int root = t->e->prog.n - 1;
    const uint8_t *value = t->value[root];
    if (is_wide(&t->e->prog.node[root]))
        memcpy(out, value, (size_t)t->width);
    else
        memset(out, *value, (size_t)t->width);
}

void expr_tile_mask(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q_start,
                    int64_t nq, int64_t kv_start, int64_t nkv, uint8_t *out, int64_t ld,
                    void *scratch, int *flag) {
    tile t;
    t.e = e;
    t.env = env;
    t.lanes = e->lanes;
    t.n_marked = 0;
    t.width = t.padded = 1;
    if (nq <= 0 || nkv <= 0) return;
    lay_out(&t, e, (size_t)padded_width(nkv), scratch);
    sort_nodes(&t);
    t.var[IR_B] = b;
    t.var[IR_H] = h;
    int64_t q0 = ops_add(q_start, env ? env->q0 : 0), kv0 = ops_add(kv_start, env ? env->kv0 : 0);
    compute(&t, &t.fixed);
    const int marked_fixed = t.n_marked;
    for (int64_t j = 0; j < nkv; j += CHUNK) {
        t.width = nkv - j < CHUNK ? nkv - j : CHUNK;
        t.padded = padded_width(t.width);
        t.var[IR_KV] = ops_add(kv0, j);
        t.n_marked = marked_fixed;
        compute(&t, &t.columns);
        const int marked_column = t.n_marked;
        for (int64_t i = 0; i < nq; i++) {
            t.var[IR_Q] = ops_add(q0, i);
            t.n_marked = marked_column;
            compute(&t, &t.rows);
            write_row(&t, out + i * ld + j);
            if (t.n_marked && flag && !*flag) *flag = reaches_left(&t);
        }
    }
}
