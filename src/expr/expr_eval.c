/* The plain definition of a mask or score at one cell: walk the program, evaluate what is reached, once.
 *
 * `&&`, `||` and `?:` evaluate only the side they need, so a load behind a guard is not reached when the
 * guard says no. Values are kept per call because nodes are shared. Slow and simple on purpose: the
 * tile interpreter and the interval analysis are tested against this. */
#include "expr/expr_load.h"
#include "expr/ir.h"
#include "expr/ops.h"

typedef struct cell {
    const expr *e;
    const expr_env *env;
    int64_t var[4];
    float s;
    int left; /* a reached load left its array */
    uint64_t done[(IR_MAX_NODES + IR_SLACK + 63) / 64];
    ir_val value[IR_MAX_NODES + IR_SLACK];
} cell;

static ir_val eval(cell *c, int id);

static ir_val eval_scalar(const cell *c, const ir_node *n) {
    ir_val v = {.i = c->env->values[n->slot].scalar.i};
    if (n->type == EXPR_FLOAT) v = (ir_val){.f = c->env->values[n->slot].scalar.f};
    if (n->type == EXPR_BOOL) v.i = v.i != 0;
    return v;
}

static ir_val eval_load(cell *c, const ir_node *n) {
    int64_t index[EXPR_MAX_NDIM];
    const expr_value *v = &c->env->values[n->slot];
    for (int i = 0; i < n->n_args; i++) index[i] = eval(c, n->arg[i]).i;
    int64_t at = expr_load__place(v, n->n_args, index);
    if (at >= 0) return expr_load__element(v, (expr_type)n->type, at);
    c->left = 1;
    return (ir_val){0};
}

static ir_val eval_node(cell *c, const ir_node *n) {
    switch (n->op) {
    case IR_CONST: return n->k;
    case IR_VAR: return n->slot == IR_S ? (ir_val){.f = c->s} : (ir_val){.i = c->var[n->slot]};
    case IR_SCALAR: return eval_scalar(c, n);
    case IR_LOAD: return eval_load(c, n);
    case IR_AND: return eval(c, n->arg[0]).i ? eval(c, n->arg[1]) : (ir_val){.i = 0};
    case IR_OR: return eval(c, n->arg[0]).i ? (ir_val){.i = 1} : eval(c, n->arg[1]);
    case IR_SELECT: return eval(c, eval(c, n->arg[0]).i ? n->arg[1] : n->arg[2]);
    default: {
        ir_val x = eval(c, n->arg[0]);
        return ir__apply((ir_op)n->op, x, n->n_args > 1 ? eval(c, n->arg[1]) : x);
    }
    }
}

static ir_val eval(cell *c, int id) {
    uint64_t bit = (uint64_t)1 << (id % 64);
    if (!(c->done[id / 64] & bit)) {
        c->value[id] = eval_node(c, &c->e->prog.node[id]);
        c->done[id / 64] |= bit;
    }
    return c->value[id];
}

static ir_val eval_root(const expr *e, const expr_env *env, const int64_t at[4], float s,
                        int *flag) {
    cell c;
    c.e = e;
    c.env = env;
    c.left = 0;
    c.s = s;
    c.var[IR_B] = at[0];
    c.var[IR_H] = at[1];
    c.var[IR_Q] = ops_add(at[2], env ? env->q0 : 0);
    c.var[IR_KV] = ops_add(at[3], env ? env->kv0 : 0);
    for (int i = 0; i <= e->prog.n / 64; i++) c.done[i] = 0;
    ir_val v = eval(&c, e->prog.n - 1);
    if (c.left && flag) *flag = 1;
    return v;
}

int expr_eval_mask(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q, int64_t kv,
                   int *flag) {
    return eval_root(e, env, (int64_t[4]){b, h, q, kv}, 0.0f, flag).i != 0;
}

float expr_eval_score(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q,
                      int64_t kv, float s, int *flag) {
    return eval_root(e, env, (int64_t[4]){b, h, q, kv}, s, flag).f;
}
