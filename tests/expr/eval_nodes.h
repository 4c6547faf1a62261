/* All nodes of a program at one cell in fp32, one after the other: what the tests of expressions compare with.
 *
 * Both sides of every guard are evaluated, as text on a GPU does; loads give 0 outside of their arrays. Header only. */
#ifndef TESTS_EXPR_EVAL_NODES_H
#define TESTS_EXPR_EVAL_NODES_H
#include "expr/expr_load.h"
#include "expr/ir.h"

/* at: b, h, q, kv before env's offsets. v and place have an entry a node; place: the element a load reads, -1 outside, and unset
 * of other nodes. */
static inline void eval_nodes(const ir_prog *p, const expr_env *env, const int64_t at[4], float s,
                              ir_val *v, int64_t *place) {
    for (int i = 0; i < p->n; i++) {
        const ir_node *n = &p->node[i];
        const ir_val *x = &v[n->arg[0]], *y = &v[n->arg[1]];
        int64_t index[EXPR_MAX_NDIM];
        switch (n->op) {
        case IR_CONST: v[i] = n->k; break;
        case IR_VAR:
            if (n->slot == IR_S)
                v[i].f = s;
            else
                v[i].i = at[n->slot] + (n->slot == IR_Q    ? env->q0
                                        : n->slot == IR_KV ? env->kv0
                                                           : 0);
            break;
        case IR_SCALAR:
            if (n->type == EXPR_FLOAT)
                v[i].f = env->values[n->slot].scalar.f;
            else
                v[i].i = env->values[n->slot].scalar.i;
            break;
        case IR_LOAD:
            for (int k = 0; k < n->n_args; k++) index[k] = v[n->arg[k]].i;
            place[i] = expr_load__place(&env->values[n->slot], n->n_args, index);
            v[i] = (ir_val){0};
            if (place[i] >= 0)
                v[i] = expr_load__element(&env->values[n->slot], (expr_type)n->type, place[i]);
            break;
        case IR_AND: v[i].i = x->i && y->i; break;
        case IR_OR: v[i].i = x->i || y->i; break;
        case IR_SELECT: v[i] = x->i ? *y : v[n->arg[2]]; break;
        default: v[i] = ir__apply((ir_op)n->op, *x, n->n_args > 1 ? *y : *x);
        }
    }
}

#endif
