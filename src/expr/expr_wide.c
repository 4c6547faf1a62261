/* A score and its derivatives at one cell in double: the definition that faster forms are held to.
 *
 * Each float has two values. The narrow one is the fp32 definition, from which every condition, integer and floor is
 * taken, so that both take the same branches and read the same elements; the wide one is the same operation in double.
 * The operations are the text of ops.def with double in place of float. Slow and simple on purpose. */
#include "expr/expr_grad_private.h"
#include "expr/expr_load.h"
#include "expr/ops.h"

enum { WORDS = (IR_MAX_GRAD + 63) / 64 };

typedef struct wide_cell {
    const ir_node *node;
    const expr_env *env;
    int64_t var[4];
    double s;
    int left;
    expr_grad_fault fault; /* the first load that left */
    uint64_t has_narrow[WORDS], has_wide[WORDS];
    ir_val narrow_value[IR_MAX_GRAD];
    double wide_value[IR_MAX_GRAD];
} wide_cell;

static ir_val narrow(wide_cell *c, int id);
static double wide(wide_cell *c, int id);

static int64_t place_of(wide_cell *c, const ir_node *n, int64_t *index) {
    if (n->op != IR_LOAD) return 0;
    for (int i = 0; i < n->n_args; i++) index[i] = narrow(c, n->arg[i]).i;
    return expr_load__place(&c->env->values[n->slot], n->n_args, index);
}

static ir_val read_load(wide_cell *c, const ir_node *n) {
    expr_grad_fault f = {.capture = n->slot};
    int64_t at = place_of(c, n, f.index);
    if (at >= 0) return expr_load__element(&c->env->values[n->slot], (expr_type)n->type, at);
    if (!c->left) c->fault = f;
    c->left = 1;
    return (ir_val){0};
}

static ir_val read_scalar(const wide_cell *c, const ir_node *n) {
    const expr_value *v = &c->env->values[n->slot];
    if (n->type == EXPR_FLOAT) return (ir_val){.f = v->scalar.f};
    return (ir_val){.i = n->type == EXPR_BOOL ? v->scalar.i != 0 : v->scalar.i};
}

static ir_val narrow_node(wide_cell *c, const ir_node *n) {
    switch (n->op) {
    case IR_CONST: return n->k;
    case IR_VAR:
        return n->slot == IR_S ? (ir_val){.f = (float)c->s} : (ir_val){.i = c->var[n->slot]};
    case IR_SCALAR: return read_scalar(c, n);
    case IR_LOAD: return read_load(c, n);
    case IR_AND: return narrow(c, n->arg[0]).i ? narrow(c, n->arg[1]) : (ir_val){.i = 0};
    case IR_OR: return narrow(c, n->arg[0]).i ? (ir_val){.i = 1} : narrow(c, n->arg[1]);
    case IR_SELECT: return narrow(c, narrow(c, n->arg[0]).i ? n->arg[1] : n->arg[2]);
    default: {
        ir_val x = narrow(c, n->arg[0]);
        return ir__apply((ir_op)n->op, x, n->n_args > 1 ? narrow(c, n->arg[1]) : x);
    }
    }
}

static ir_val narrow(wide_cell *c, int id) {
    uint64_t bit = (uint64_t)1 << (id % 64);
    if (!(c->has_narrow[id / 64] & bit)) {
        c->narrow_value[id] = narrow_node(c, &c->node[id]);
        c->has_narrow[id / 64] |= bit;
    }
    return c->narrow_value[id];
}

#if defined(__clang__)
__attribute__((no_sanitize("float-divide-by-zero")))
#endif
static double
wide_quotient(double x, double y) {
    return x / y;
}

/* The float operations of ops.def on doubles, functions by the math library. */
static double pick(int c, double x, double y) { return c ? x : y; }
static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
#define ops_real            double
#define fabsf               fabs
#define sqrtf               sqrt
#define floorf              floor
#define ops_exp             exp
#define ops_exp2            exp2
#define ops_log             log
#define ops_tanh            tanh
#define ops_sigmoid         sigmoid
#define ops_pick_f          pick
#define ops_quotient(x, y)  wide_quotient(x, y)
#define ops_truncate(x)     0.0 /* integers are narrow */
#define APPLY_INT(value_)   0.0 /* never asked for */
#define APPLY_BOOL(value_)  0.0
#define APPLY_FLOAT(value_) (value_)
#define VALUE_INT(value_)   0.0
#define VALUE_BOOL(value_)  0.0
#define VALUE_FLOAT(value_) value_
static double apply(int op, double x, double y) {
    switch (op) {
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    case IR_##id:                                                                                  \
        return APPLY_##arguments(VALUE_##result(value));
#include "expr/ops.def"
#undef S
#undef X
    default: return 0.0;
    }
    (void)y;
}
#undef ops_real

static double wide_node(wide_cell *c, int id) {
    const ir_node *n = &c->node[id];
    switch (n->op) {
    case IR_VAR: return c->s;
    case IR_SELECT: return wide(c, narrow(c, n->arg[0]).i ? n->arg[1] : n->arg[2]);
    case IR_CONST:
    case IR_SCALAR:
    case IR_LOAD:
    case IR_FLOOR:
    case IR_TO_F: return (double)narrow(c, id).f;
    default: {
        double x = wide(c, n->arg[0]);
        return apply(n->op, x, n->n_args > 1 ? wide(c, n->arg[1]) : x);
    }
    }
}

static double wide(wide_cell *c, int id) {
    uint64_t bit = (uint64_t)1 << (id % 64);
    if (!(c->has_wide[id / 64] & bit)) {
        c->wide_value[id] = wide_node(c, id);
        c->has_wide[id / 64] |= bit;
    }
    return c->wide_value[id];
}

static void start(wide_cell *c, const expr_grad *g, const expr_env *env, const int64_t at[4]) {
    c->node = g->prog.node;
    c->env = env;
    c->left = 0;
    c->var[IR_B] = at[0];
    c->var[IR_H] = at[1];
    c->var[IR_Q] = ops_add(at[2], env ? env->q0 : 0);
    c->var[IR_KV] = ops_add(at[3], env ? env->kv0 : 0);
    for (int i = 0; i <= g->prog.n / 64 && i < WORDS; i++) c->has_narrow[i] = c->has_wide[i] = 0;
}

double expr_grad_eval(const expr_grad *g, const expr_env *env, int64_t b, int64_t h, int64_t q,
                      int64_t kv, double s, double *d_s, double *d_site, int64_t *place,
                      int *flag) {
    wide_cell c;
    int64_t index[EXPR_MAX_NDIM];
    start(&c, g, env, (int64_t[4]){b, h, q, kv});
    c.s = s;
    double value = wide(&c, g->value);
    if (c.left && flag) *flag = 1;
    if (d_s) *d_s = wide(&c, g->d_s);
    for (int i = 0; i < g->n_sites; i++) {
        if (d_site) d_site[i] = wide(&c, g->site[i].d);
        if (place) place[i] = place_of(&c, &c.node[g->site[i].load], index);
    }
    return value;
}

/* Walks what is reached for certain: behind a guard that names s, nothing is. */
static int leaves(wide_cell *c, int id) {
    const ir_node *n = &c->node[id];
    const int guards = n->op == IR_AND || n->op == IR_OR || n->op == IR_SELECT;
    const int unsure = guards && (c->node[n->arg[0]].uses >> IR_S & 1);
    uint64_t *seen = &c->has_wide[id / 64], bit = (uint64_t)1 << (id % 64);
    if (!n->has_load || c->left || (*seen & bit)) return c->left;
    *seen |= bit; /* nothing wide is evaluated on this walk */
    if (n->uses >> IR_S & 1) {
        if (guards && !unsure) {
            int yes = narrow(c, n->arg[0]).i != 0;
            if (c->left) return 1;
            if (n->op == IR_SELECT) return leaves(c, n->arg[yes ? 1 : 2]);
            return yes == (n->op == IR_AND) && leaves(c, n->arg[1]);
        }
        for (int i = 0; i < (guards ? 1 : n->n_args); i++)
            if (leaves(c, n->arg[i])) return 1;
        return 0;
    }
    (void)narrow(c, id); /* nothing below names s */
    return c->left;
}

int expr_grad_leaves(const expr_grad *g, const expr_env *env, int64_t b, int64_t h, int64_t q,
                     int64_t kv, expr_grad_fault *fault) {
    wide_cell c;
    start(&c, g, env, (int64_t[4]){b, h, q, kv});
    c.s = 0.0;
    if (!leaves(&c, g->value)) return 0;
    *fault = c.fault;
    return 1;
}

int expr_grad_has_loads(const expr_grad *g) { return g->prog.node[g->value].has_load; }
