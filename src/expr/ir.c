/* The program graph: leaves, hash-consing, facts about nodes, compaction, binding, verification.
 *
 * Equal nodes are found in an open-addressing table; commutative operations are looked up in both orders but
 * stored as written. With each node go facts that follow from its arguments: the indices it names, whether it
 * loads, its slopes where it is affine in q and kv. Rewriting is elsewhere (ir_algebra.c). */
#include "expr/ir.h"
#include "expr/ops.h"
#include <assert.h>
#include <math.h>
#include <string.h>

const char *const ir__var_names[IR_VAR_COUNT] = {"b", "h", "q", "kv", "s"};

const ir_op_info ir__ops[IR_OP_COUNT] = {
#define S(id, spelling) {spelling, IR_STRUCTURAL, 0, EXPR_BOOL, EXPR_BOOL},
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    {spelling, IR_##form, arity, EXPR_##arguments, EXPR_##result},
#include "expr/ops.def"
#undef S
#undef X
};

/* How a value of each type is read from and kept in an ir_val. */
#define READ_INT(v)   (v).i
#define READ_FLOAT(v) (v).f
#define READ_BOOL(v)  (uint8_t)(v).i
#define TYPE_INT      int64_t
#define TYPE_FLOAT    float
#define TYPE_BOOL     uint8_t
#define KEEP_INT      i
#define KEEP_FLOAT    f
#define KEEP_BOOL     i

ir_val ir__apply(ir_op op, ir_val vx, ir_val vy) {
    ir_val out = {0};
    switch (op) {
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    case IR_##id: {                                                                                \
        TYPE_##arguments x = READ_##arguments(vx), y = READ_##arguments(vy);                       \
        (void)y;                                                                                   \
        out.KEEP_##result = value;                                                                 \
        break;                                                                                     \
    }
#include "expr/ops.def"
#undef S
#undef X
    default: assert(0 && "not element-wise");
    }
    return out;
}

ir_op ir__find(ir_form form, const char *spelling, size_t n, expr_type argument) {
    for (int i = 0; i < IR_OP_COUNT; i++) {
        const ir_op_info *o = &ir__ops[i];
        if (o->form == form && o->argument == argument && strlen(o->spelling) == n &&
            memcmp(o->spelling, spelling, n) == 0)
            return (ir_op)i;
    }
    return IR_OP_COUNT;
}

static int is_commutative(int op) {
    return op == IR_ADD_I || op == IR_MUL_I || op == IR_EQ_I || op == IR_NE_I || op == IR_EQ_B ||
           op == IR_NE_B || op == IR_MIN_I || op == IR_MAX_I || op == IR_EQ_F || op == IR_NE_F;
}

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static uint64_t hash_node(const ir_node *n) {
    uint64_t h = mix(mix(n->op, n->type), (uint64_t)(uint16_t)n->slot);
    uint64_t sum = 0;
    for (int i = 0; i < n->n_args; i++) /* symmetric: both orders of a pair share a bucket */
        sum += mix(1, (uint64_t)n->arg[i]);
    return mix(mix(h, sum), (uint64_t)n->k.i);
}

static int same_node(const ir_node *a, const ir_node *b) {
    if (a->op != b->op || a->type != b->type || a->n_args != b->n_args || a->slot != b->slot ||
        a->k.i != b->k.i)
        return 0;
    if (is_commutative(a->op) && a->arg[0] == b->arg[1] && a->arg[1] == b->arg[0]) return 1;
    for (int i = 0; i < a->n_args; i++)
        if (a->arg[i] != b->arg[i]) return 0;
    return 1;
}

err ir__build_new(ir_build **out, int capacity) {
    ir_build *b;
    size_t slots = 64, nodes = (size_t)capacity;
    while (slots < 2 * nodes) slots *= 2;
    TRY(mem_new(1, sizeof *b + nodes * sizeof *b->node + slots * sizeof *b->table, &b));
    b->node = (ir_node *)(void *)(b + 1);
    b->table = (int16_t *)(void *)(b->node + nodes);
    b->capacity = capacity;
    b->slots = (int)slots;
    *out = b;
    return ERR_OK;
}

/* Slopes of an integer node over q and kv, where it has constant ones. */
static void find_slopes(const ir_build *b, ir_node *n) {
    const ir_node *x = &b->node[n->arg[0]], *y = &b->node[n->arg[1]];
    const unsigned moving = 1u << IR_Q | 1u << IR_KV | 1u << IR_S;
    if (n->type != EXPR_INT) return;
    n->affine = 1;
    if (!(n->uses & moving)) return;
    switch (n->op) {
    case IR_VAR:
        n->slope_q = n->slot == IR_Q;
        n->slope_kv = n->slot == IR_KV;
        return;
    case IR_NEG_I:
        n->affine = x->affine;
        n->slope_q = ops_sub(0, x->slope_q);
        n->slope_kv = ops_sub(0, x->slope_kv);
        return;
    case IR_ADD_I:
        n->affine = x->affine && y->affine;
        n->slope_q = ops_add(x->slope_q, y->slope_q);
        n->slope_kv = ops_add(x->slope_kv, y->slope_kv);
        return;
    case IR_SUB_I:
        n->affine = x->affine && y->affine;
        n->slope_q = ops_sub(x->slope_q, y->slope_q);
        n->slope_kv = ops_sub(x->slope_kv, y->slope_kv);
        return;
    case IR_MUL_I: {
        const ir_node *k = x->op == IR_CONST ? x : y, *of = x->op == IR_CONST ? y : x;
        n->affine = of->affine && k->op == IR_CONST;
        n->slope_q = ops_mul(k->k.i, of->slope_q);
        n->slope_kv = ops_mul(k->k.i, of->slope_kv);
        return;
    }
    default: n->affine = 0;
    }
}

/* What follows from the arguments. */
static void find_facts(const ir_build *b, ir_node *n) {
    int diagonal = n->n_args > 0, moving = 0;
    n->has_load = n->op == IR_LOAD;
    n->uses = n->op == IR_VAR ? (uint8_t)(1u << n->slot) : 0;
    for (int i = 0; i < n->n_args; i++) {
        const ir_node *x = &b->node[n->arg[i]];
        n->uses |= x->uses;
        n->has_load |= x->has_load;
        moving |= x->diagonal;
        diagonal = diagonal && (x->diagonal || ir__class(x) == IR_FIXED);
    }
    n->affine = n->diagonal = 0;
    n->slope_q = n->slope_kv = 0;
    find_slopes(b, n);
    if (!n->affine) n->slope_q = n->slope_kv = 0;
    n->diagonal = (uint8_t)((diagonal && moving) ||
                            (n->slope_q != 0 && n->slope_q == ops_sub(0, n->slope_kv)));
}

ir_class ir__class(const ir_node *n) {
    int q = n->uses >> IR_Q & 1, kv = n->uses >> IR_KV & 1;
    if (n->uses >> IR_S & 1) return IR_CELL;
    if (n->diagonal) return IR_DIAGONAL;
    return q && kv ? IR_CELL : q ? IR_BY_Q : kv ? IR_BY_KV : IR_FIXED;
}

int ir__node(ir_build *b, ir_node n) {
    for (int i = n.n_args; i < EXPR_MAX_NDIM; i++) n.arg[i] = n.n_args ? n.arg[0] : 0;
    find_facts(b, &n);
    uint64_t mask = (uint64_t)b->slots - 1, at = hash_node(&n) & mask;
    for (; b->table[at]; at = (at + 1) & mask)
        if (same_node(&b->node[b->table[at] - 1], &n)) return b->table[at] - 1;
    assert(b->n < b->capacity);
    b->node[b->n] = n;
    b->table[at] = (int16_t)(b->n + 1);
    return b->n++;
}

int ir__const(ir_build *b, expr_type type, ir_val v) {
    ir_val k = {0}; /* all bytes defined: they are compared and hashed */
    if (type == EXPR_FLOAT)
        k.f = v.f == v.f ? v.f : NAN; /* one NaN: its bits differ between processors */
    else
        k.i = v.i;
    return ir__node(b, (ir_node){.op = IR_CONST, .type = (uint8_t)type, .slot = -1, .k = k});
}

int ir__int(ir_build *b, int64_t v) { return ir__const(b, EXPR_INT, (ir_val){.i = v}); }
int ir__float(ir_build *b, float v) { return ir__const(b, EXPR_FLOAT, (ir_val){.f = v}); }
int ir__bool(ir_build *b, int v) { return ir__const(b, EXPR_BOOL, (ir_val){.i = v != 0}); }

int ir__var(ir_build *b, int slot) {
    expr_type type = slot == IR_S ? EXPR_FLOAT : EXPR_INT;
    return ir__node(b, (ir_node){.op = IR_VAR, .type = (uint8_t)type, .slot = (int16_t)slot});
}

int ir__scalar(ir_build *b, int slot, expr_type type) {
    return ir__node(b, (ir_node){.op = IR_SCALAR, .type = (uint8_t)type, .slot = (int16_t)slot});
}

int ir__load(ir_build *b, int slot, expr_type type, const int *index, int n) {
    ir_node node = {.op = IR_LOAD, .type = (uint8_t)type, .n_args = (uint8_t)n};
    node.slot = (int16_t)slot;
    for (int i = 0; i < n; i++) node.arg[i] = (int16_t)index[i];
    return ir__node(b, node);
}

err ir__finish_all(const ir_build *b, int *root, int n_roots, arena *a, ir_prog *out) {
    int16_t place[IR_MAX_GRAD];
    uint8_t needed[IR_MAX_GRAD] = {0};
    int count = 0, last = 0;
    for (int i = 0; i < n_roots; i++) {
        if (root[i] < 0) continue;
        needed[root[i]] = 1;
        if (root[i] > last) last = root[i];
    }
    for (int i = last; i >= 0; i--)
        for (int j = 0; needed[i] && j < b->node[i].n_args; j++) needed[b->node[i].arg[j]] = 1;
    for (int i = 0; i <= last; i++) place[i] = (int16_t)(needed[i] ? count++ : -1);
    ir_node *node;
    TRY(arena_alloc(a, (size_t)count, sizeof *node, &node));
    for (int i = 0; i <= last; i++) {
        if (!needed[i]) continue;
        ir_node *n = &node[place[i]];
        *n = b->node[i];
        for (int j = 0; n->n_args && j < EXPR_MAX_NDIM; j++) n->arg[j] = place[n->arg[j]];
    }
    for (int i = 0; i < n_roots; i++)
        if (root[i] >= 0) root[i] = place[root[i]];
    *out = (ir_prog){node, count};
    return ir__verify(out, NULL, 0);
}

err ir__finish(const ir_build *b, int root, arena *a, ir_prog *out) {
    return ir__finish_all(b, &root, 1, a, out);
}

int ir__copy_node(ir_build *b, const ir_node *n, const int16_t *at) {
    int arg[EXPR_MAX_NDIM];
    for (int i = 0; i < n->n_args; i++) arg[i] = at[n->arg[i]];
    switch (n->op) {
    case IR_CONST: return ir__const(b, (expr_type)n->type, n->k);
    case IR_VAR: return ir__var(b, n->slot);
    case IR_SCALAR: return ir__scalar(b, n->slot, (expr_type)n->type);
    case IR_LOAD: return ir__load(b, n->slot, (expr_type)n->type, arg, n->n_args);
    case IR_AND: return ir__and(b, arg[0], arg[1]);
    case IR_OR: return ir__or(b, arg[0], arg[1]);
    case IR_SELECT: return ir__select(b, arg[0], arg[1], arg[2]);
    default: return ir__op(b, (ir_op)n->op, arg[0], n->n_args > 1 ? arg[1] : arg[0]);
    }
}

static int bind_node(ir_build *b, const ir_node *n, const int16_t *at, const expr_decl *decls,
                     const expr_env *env) {
    if (n->op != IR_SCALAR) return ir__copy_node(b, n, at);
    const expr_value *v = &env->values[n->slot];
    ir_val k = {.i = v->scalar.i};
    if (decls[n->slot].type == EXPR_FLOAT) k.f = v->scalar.f;
    if (decls[n->slot].type == EXPR_BOOL) k.i = v->scalar.i != 0;
    return ir__const(b, (expr_type)n->type, k);
}

err ir__bind(const ir_prog *p, const expr_decl *decls, const expr_env *env, arena *a,
             ir_prog *out) {
    ir_build *b;
    int16_t at[IR_MAX_NODES + IR_SLACK];
    TRY(ir__build_new(&b, 4 * p->n + 64)); /* a node makes at most itself and three new ones */
    for (int i = 0; i < p->n; i++) at[i] = (int16_t)bind_node(b, &p->node[i], at, decls, env);
    err e = ir__finish(b, at[p->n - 1], a, out);
    mem_free(b);
    return e;
}

static int arguments_fit(const ir_prog *p, const ir_node *n) {
    for (int j = 0; j < n->n_args; j++) {
        int want = n->op == IR_LOAD     ? EXPR_INT
                   : n->op == IR_SELECT ? (j ? n->type : EXPR_BOOL)
                   : n->op < IR_NEG_I   ? EXPR_BOOL
                                        : ir__ops[n->op].argument;
        if (p->node[n->arg[j]].type != want) return 0;
    }
    return 1;
}

/* Facts written with a node are what its arguments say. */
static int facts_hold(const ir_prog *p, const ir_node *n) {
    ir_build b = {.node = (ir_node *)p->node};
    ir_node again = *n;
    find_facts(&b, &again);
    return again.uses == n->uses && again.has_load == n->has_load && again.affine == n->affine &&
           again.diagonal == n->diagonal && again.slope_q == n->slope_q &&
           again.slope_kv == n->slope_kv;
}

static int is_well_made(const ir_prog *p, int i, const expr_decl *decls, int n_decls) {
    const ir_node *n = &p->node[i];
    int captured = n->op == IR_SCALAR || n->op == IR_LOAD;
    if (n->op >= IR_OP_COUNT || n->n_args > EXPR_MAX_NDIM) return 0;
    for (int j = 0; n->n_args && j < EXPR_MAX_NDIM; j++)
        if (n->arg[j] < 0 || n->arg[j] >= i) return 0;
    if (!arguments_fit(p, n)) return 0;
    if (captured && decls &&
        !(n->slot >= 0 && n->slot < n_decls && decls[n->slot].ndim == n->n_args &&
          decls[n->slot].type == (expr_type)n->type))
        return 0;
    if (n->op == IR_VAR && (n->slot < 0 || n->slot >= IR_VAR_COUNT)) return 0;
    if (n->op >= IR_NEG_I &&
        (n->n_args != ir__ops[n->op].arity || n->type != ir__ops[n->op].result))
        return 0;
    if (n->op < IR_NEG_I && n->op >= IR_AND && n->n_args != (n->op == IR_SELECT ? 3 : 2)) return 0;
    return facts_hold(p, n);
}

err ir__verify(const ir_prog *p, const expr_decl *decls, int n_decls) {
    for (int i = 0; i < p->n; i++)
        if (!is_well_made(p, i, decls, n_decls))
            return err_set(ERR_INTERNAL, "operation %d (%s) of a compiled expression is malformed",
                           i, p->node[i].op < IR_OP_COUNT ? ir__ops[p->node[i].op].spelling : "?");
    return p->n > 0 ? ERR_OK : err_set(ERR_INTERNAL, "a compiled expression is empty");
}
