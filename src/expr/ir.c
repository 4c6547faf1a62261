/* The program graph: makers with folding and hash-consing, compaction, binding, verification.
 *
 * Folding is local and keeps the guards' meaning: a load that the text reaches stays reached, so only
 * operands that are never evaluated are dropped (false && x), never ones that are (x && false). Equal
 * nodes are found in an open-addressing table; commutative operations are looked up in both orders but
 * stored as written. What it does not do: reorder, distribute or approximate anything. */
#include "expr/ir.h"
#include "expr/ops.h"
#include <assert.h>
#include <string.h>

const char *const ir__var_names[IR_VAR_COUNT] = {"b", "h", "q", "kv", "s"};

const ir_op_info ir__ops[IR_OP_COUNT] = {
#define S(id, spelling) {spelling, IR_STRUCTURAL, 0, EXPR_BOOL, EXPR_BOOL},
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative)               \
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
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative)               \
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

static int add_node(ir_build *b, ir_node n) {
    for (int i = n.n_args; i < EXPR_MAX_NDIM; i++) n.arg[i] = n.n_args ? n.arg[0] : 0;
    n.has_load = n.op == IR_LOAD;
    n.uses = n.op == IR_VAR ? (uint8_t)(1u << n.slot) : 0;
    for (int i = 0; i < n.n_args; i++) {
        n.uses |= b->node[n.arg[i]].uses;
        n.has_load |= b->node[n.arg[i]].has_load;
    }
    uint64_t at = hash_node(&n) % IR_TABLE;
    for (; b->table[at]; at = (at + 1) % IR_TABLE)
        if (same_node(&b->node[b->table[at] - 1], &n)) return b->table[at] - 1;
    assert(b->n < IR_MAX_NODES + IR_SLACK);
    b->node[b->n] = n;
    b->table[at] = (int16_t)(b->n + 1);
    return b->n++;
}

int ir__const(ir_build *b, expr_type type, ir_val v) {
    ir_val k = {0}; /* all bytes defined: they are compared and hashed */
    if (type == EXPR_FLOAT)
        k.f = v.f;
    else
        k.i = v.i;
    return add_node(b, (ir_node){.op = IR_CONST, .type = (uint8_t)type, .slot = -1, .k = k});
}

int ir__int(ir_build *b, int64_t v) { return ir__const(b, EXPR_INT, (ir_val){.i = v}); }
int ir__float(ir_build *b, float v) { return ir__const(b, EXPR_FLOAT, (ir_val){.f = v}); }
int ir__bool(ir_build *b, int v) { return ir__const(b, EXPR_BOOL, (ir_val){.i = v != 0}); }

int ir__var(ir_build *b, int slot) {
    expr_type type = slot == IR_S ? EXPR_FLOAT : EXPR_INT;
    return add_node(b, (ir_node){.op = IR_VAR, .type = (uint8_t)type, .slot = (int16_t)slot});
}

int ir__scalar(ir_build *b, int slot, expr_type type) {
    return add_node(b, (ir_node){.op = IR_SCALAR, .type = (uint8_t)type, .slot = (int16_t)slot});
}

int ir__load(ir_build *b, int slot, expr_type type, const int *index, int n) {
    ir_node node = {.op = IR_LOAD, .type = (uint8_t)type, .n_args = (uint8_t)n};
    node.slot = (int16_t)slot;
    for (int i = 0; i < n; i++) node.arg[i] = (int16_t)index[i];
    return add_node(b, node);
}

static int is_const(const ir_build *b, int id) { return b->node[id].op == IR_CONST; }

static int is_int(const ir_build *b, int id, int64_t v) {
    return is_const(b, id) && b->node[id].type == EXPR_INT && b->node[id].k.i == v;
}

/* Integer identities that hold under wrapping and drop no evaluation. -1: none applies. */
static int neutral(const ir_build *b, ir_op op, int x, int y) {
    switch (op) {
    case IR_ADD_I: return is_int(b, y, 0) ? x : is_int(b, x, 0) ? y : -1;
    case IR_SUB_I: return is_int(b, y, 0) ? x : -1;
    case IR_MUL_I: return is_int(b, y, 1) ? x : is_int(b, x, 1) ? y : -1;
    case IR_DIV_I: return is_int(b, y, 1) ? x : -1;
    default: return -1;
    }
}

int ir__op(ir_build *b, ir_op op, int x, int y) {
    const ir_op_info *o = &ir__ops[op];
    if (o->arity == 1) y = x;
    if (is_const(b, x) && is_const(b, y))
        return ir__const(b, (expr_type)o->result, ir__apply(op, b->node[x].k, b->node[y].k));
    int same = o->arity == 2 ? neutral(b, op, x, y) : -1;
    if (same >= 0) return same;
    if (op == IR_NOT && b->node[x].op == IR_NOT) return b->node[x].arg[0];
    ir_node n = {.op = (uint8_t)op, .type = o->result, .n_args = o->arity, .slot = -1};
    n.arg[0] = (int16_t)x;
    n.arg[1] = (int16_t)y;
    return add_node(b, n);
}

/* x && y and x || y: decided is the value of x that leaves y unevaluated. */
static int junction(ir_build *b, ir_op op, int decided, int x, int y) {
    if (is_const(b, x)) return b->node[x].k.i == decided ? x : y;
    if (is_const(b, y) && b->node[y].k.i != decided) return x;
    if (x == y) return x;
    ir_node n = {.op = (uint8_t)op, .type = EXPR_BOOL, .n_args = 2, .slot = -1};
    n.arg[0] = (int16_t)x;
    n.arg[1] = (int16_t)y;
    return add_node(b, n);
}

int ir__and(ir_build *b, int x, int y) { return junction(b, IR_AND, 0, x, y); }
int ir__or(ir_build *b, int x, int y) { return junction(b, IR_OR, 1, x, y); }

int ir__select(ir_build *b, int c, int x, int y) {
    if (is_const(b, c)) return b->node[c].k.i ? x : y;
    ir_node n = {.op = IR_SELECT, .type = b->node[x].type, .n_args = 3, .slot = -1};
    n.arg[0] = (int16_t)c;
    n.arg[1] = (int16_t)x;
    n.arg[2] = (int16_t)y;
    return add_node(b, n);
}

err ir__finish(const ir_build *b, int root, arena *a, ir_prog *out) {
    int16_t place[IR_MAX_NODES + IR_SLACK];
    uint8_t needed[IR_MAX_NODES + IR_SLACK] = {0};
    int count = 0;
    needed[root] = 1;
    for (int i = root; i >= 0; i--)
        for (int j = 0; needed[i] && j < b->node[i].n_args; j++) needed[b->node[i].arg[j]] = 1;
    for (int i = 0; i <= root; i++) place[i] = (int16_t)(needed[i] ? count++ : -1);
    ir_node *node;
    TRY(arena_alloc(a, (size_t)count, sizeof *node, &node));
    for (int i = 0; i <= root; i++) {
        if (!needed[i]) continue;
        ir_node *n = &node[place[i]];
        *n = b->node[i];
        for (int j = 0; n->n_args && j < EXPR_MAX_NDIM; j++) n->arg[j] = place[n->arg[j]];
    }
    *out = (ir_prog){node, count};
    return ERR_OK;
}

static int bind_node(ir_build *b, const ir_node *n, const int16_t *at, const expr_decl *decls,
                     const expr_env *env) {
    int arg[EXPR_MAX_NDIM];
    for (int i = 0; i < n->n_args; i++) arg[i] = at[n->arg[i]];
    switch (n->op) {
    case IR_CONST: return ir__const(b, (expr_type)n->type, n->k);
    case IR_VAR: return ir__var(b, n->slot);
    case IR_SCALAR: {
        const expr_value *v = &env->values[n->slot];
        ir_val k = {.i = v->scalar.i};
        if (decls[n->slot].type == EXPR_FLOAT) k.f = v->scalar.f;
        if (decls[n->slot].type == EXPR_BOOL) k.i = v->scalar.i != 0;
        return ir__const(b, (expr_type)n->type, k);
    }
    case IR_LOAD: return ir__load(b, n->slot, (expr_type)n->type, arg, n->n_args);
    case IR_AND: return ir__and(b, arg[0], arg[1]);
    case IR_OR: return ir__or(b, arg[0], arg[1]);
    case IR_SELECT: return ir__select(b, arg[0], arg[1], arg[2]);
    default: return ir__op(b, (ir_op)n->op, arg[0], n->n_args > 1 ? arg[1] : arg[0]);
    }
}

err ir__bind(const ir_prog *p, const expr_decl *decls, const expr_env *env, arena *a,
             ir_prog *out) {
    ir_build *b;
    int16_t at[IR_MAX_NODES + IR_SLACK];
    TRY(mem_new(1, sizeof *b, &b));
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

err ir__verify(const ir_prog *p, const expr_decl *decls, int n_decls) {
    for (int i = 0; i < p->n; i++) {
        const ir_node *n = &p->node[i];
        int captured = n->op == IR_SCALAR || n->op == IR_LOAD;
        int ok = n->op < IR_OP_COUNT && n->n_args <= EXPR_MAX_NDIM;
        for (int j = 0; ok && j < n->n_args; j++) ok = n->arg[j] >= 0 && n->arg[j] < i;
        ok = ok && arguments_fit(p, n);
        if (ok && captured)
            ok = n->slot >= 0 && n->slot < n_decls && decls[n->slot].ndim == n->n_args &&
                 decls[n->slot].type == (expr_type)n->type;
        if (ok && n->op == IR_VAR) ok = n->slot >= 0 && n->slot < IR_VAR_COUNT;
        if (ok && n->op >= IR_NEG_I)
            ok = n->n_args == ir__ops[n->op].arity && n->type == ir__ops[n->op].result;
        if (!ok)
            return err_set(ERR_INTERNAL, "operation %d (%s) of a compiled expression is malformed",
                           i, n->op < IR_OP_COUNT ? ir__ops[n->op].spelling : "?");
    }
    return p->n > 0 ? ERR_OK : err_set(ERR_INTERNAL, "a compiled expression is empty");
}
