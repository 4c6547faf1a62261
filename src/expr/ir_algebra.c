/* Rewriting while nodes are made: constant folding and identities that keep every bit.
 *
 * On integers everything that holds modulo 2^64; on floats only what changes no bit for any operand (x * 1, x / 2^k,
 * --x), never a new order of sums. A load that the text reaches stays reached: only operands that are never evaluated
 * are dropped (false && x), never ones that are (x && false), unless nothing below them loads. What it does not do:
 * distribute, approximate, or look further than the operands of the node being made and theirs. */
#include "expr/ir.h"
#include "expr/ops.h"
#include <math.h>
#include <string.h>

static const ir_node *at(const ir_build *b, int id) { return &b->node[id]; }
static int is_const(const ir_build *b, int id) { return at(b, id)->op == IR_CONST; }
static int is_int(const ir_build *b, int id, int64_t v) {
    return is_const(b, id) && at(b, id)->type == EXPR_INT && at(b, id)->k.i == v;
}
/* Bits, so that 0 and -0 differ. */
static int is_float(const ir_build *b, int id, float v) {
    return is_const(b, id) && at(b, id)->type == EXPR_FLOAT &&
           memcmp(&at(b, id)->k.f, &v, sizeof v) == 0;
}
static int is_op(const ir_build *b, int id, ir_op op) { return at(b, id)->op == op; }
static int may_drop(const ir_build *b, int id) { return !at(b, id)->has_load; }

/* id as base + *more, where it is a sum with a constant; itself and 0 otherwise. */
static int split_sum(const ir_build *b, int id, int64_t *more) {
    const ir_node *n = at(b, id);
    *more = 0;
    if (n->op == IR_ADD_I && is_const(b, n->arg[1])) {
        *more = at(b, n->arg[1])->k.i;
        return n->arg[0];
    }
    if (n->op == IR_ADD_I && is_const(b, n->arg[0])) {
        *more = at(b, n->arg[0])->k.i;
        return n->arg[1];
    }
    if (n->op == IR_SUB_I && is_const(b, n->arg[1])) {
        *more = ops_sub(0, at(b, n->arg[1])->k.i);
        return n->arg[0];
    }
    return id;
}

static int plain(ir_build *b, ir_op op, int x, int y) {
    ir_node n = {.op = (uint8_t)op, .type = ir__ops[op].result, .slot = -1};
    n.n_args = ir__ops[op].arity;
    n.arg[0] = (int16_t)x;
    n.arg[1] = (int16_t)y;
    return ir__node(b, n);
}

/* (base + c) + k as base + (c + k); -1 when x is no such sum. */
static int gather_constants(ir_build *b, int x, int64_t k) {
    int64_t more;
    int base = split_sum(b, x, &more);
    if (base == x) return -1;
    more = ops_add(more, k);
    if (more == 0) return base;
    if (more < 0 && more != INT64_MIN) return plain(b, IR_SUB_I, base, ir__int(b, -more));
    return plain(b, IR_ADD_I, base, ir__int(b, more));
}

static int rewrite_int(ir_build *b, ir_op op, int x, int y) {
    switch (op) {
    case IR_ADD_I:
        if (is_int(b, y, 0)) return x;
        if (is_int(b, x, 0)) return y;
        if (is_const(b, y)) return gather_constants(b, x, at(b, y)->k.i);
        return is_const(b, x) ? gather_constants(b, y, at(b, x)->k.i) : -1;
    case IR_SUB_I:
        if (is_int(b, y, 0)) return x;
        if (x == y && may_drop(b, x)) return ir__int(b, 0);
        return is_const(b, y) ? gather_constants(b, x, ops_sub(0, at(b, y)->k.i)) : -1;
    case IR_MUL_I:
        if (is_int(b, y, 1)) return x;
        if (is_int(b, x, 1)) return y;
        if (is_int(b, y, 0) && may_drop(b, x)) return y;
        return is_int(b, x, 0) && may_drop(b, y) ? x : -1;
    case IR_DIV_I: return is_int(b, y, 1) ? x : -1;
    case IR_MOD_I: return is_int(b, y, 1) && may_drop(b, x) ? ir__int(b, 0) : -1;
    case IR_MIN_I:
    case IR_MAX_I: return x == y ? x : -1;
    case IR_NEG_I: return is_op(b, x, IR_NEG_I) ? at(b, x)->arg[0] : -1;
    case IR_ABS_I:
        if (is_op(b, x, IR_ABS_I)) return x;
        return is_op(b, x, IR_NEG_I) ? ir__op(b, IR_ABS_I, at(b, x)->arg[0], at(b, x)->arg[0]) : -1;
    default: return -1;
    }
}

/* 1 / c where c is a power of two whose reciprocal is a normal float, else 0. */
static float exact_reciprocal(const ir_build *b, int id) {
    int exponent;
    if (!is_const(b, id)) return 0.0f;
    float c = at(b, id)->k.f;
    if (!isfinite(c) || fabsf(frexpf(c, &exponent)) != 0.5f) return 0.0f;
    float r = 1.0f / c;
    return isnormal(r) ? r : 0.0f;
}

static int rewrite_float(ir_build *b, ir_op op, int x, int y) {
    switch (op) {
    case IR_ADD_F: /* x + 0 is not x where x is -0 */
        if (is_float(b, y, -0.0f)) return x;
        return is_float(b, x, -0.0f) ? y : -1;
    case IR_SUB_F: return is_float(b, y, 0.0f) ? x : -1;
    case IR_MUL_F:
        if (is_float(b, y, 1.0f)) return x;
        if (is_float(b, x, 1.0f)) return y;
        if (is_float(b, y, -1.0f)) return ir__op(b, IR_NEG_F, x, x);
        return is_float(b, x, -1.0f) ? ir__op(b, IR_NEG_F, y, y) : -1;
    case IR_DIV_F: {
        float r = exact_reciprocal(b, y);
        return r != 0.0f ? ir__op(b, IR_MUL_F, x, ir__float(b, r)) : -1;
    }
    case IR_MIN_F:
    case IR_MAX_F: return x == y ? x : -1;
    case IR_NEG_F: return is_op(b, x, IR_NEG_F) ? at(b, x)->arg[0] : -1;
    case IR_ABS_F:
        if (is_op(b, x, IR_ABS_F)) return x;
        return is_op(b, x, IR_NEG_F) ? ir__op(b, IR_ABS_F, at(b, x)->arg[0], at(b, x)->arg[0]) : -1;
    case IR_FLOOR: return is_op(b, x, IR_FLOOR) ? x : -1;
    default: return -1;
    }
}

static int rewrite_condition(ir_build *b, ir_op op, int x, int y) {
    const ir_node n = *at(b, x);
    switch (op) {
    case IR_LT_I:
    case IR_NE_I:
    case IR_NE_B: return x == y && may_drop(b, x) ? ir__bool(b, 0) : -1;
    case IR_LE_I:
    case IR_EQ_I:
    case IR_EQ_B: return x == y && may_drop(b, x) ? ir__bool(b, 1) : -1;
    case IR_NOT: break;
    default: return -1;
    }
    switch (n.op) { /* of what is negated; ordered floats have no such rule because of NaN */
    case IR_NOT: return n.arg[0];
    case IR_LT_I: return ir__op(b, IR_LE_I, n.arg[1], n.arg[0]);
    case IR_LE_I: return ir__op(b, IR_LT_I, n.arg[1], n.arg[0]);
    case IR_EQ_I: return ir__op(b, IR_NE_I, n.arg[0], n.arg[1]);
    case IR_NE_I: return ir__op(b, IR_EQ_I, n.arg[0], n.arg[1]);
    case IR_EQ_F: return ir__op(b, IR_NE_F, n.arg[0], n.arg[1]);
    case IR_NE_F: return ir__op(b, IR_EQ_F, n.arg[0], n.arg[1]);
    case IR_EQ_B: return ir__op(b, IR_NE_B, n.arg[0], n.arg[1]);
    case IR_NE_B: return ir__op(b, IR_EQ_B, n.arg[0], n.arg[1]);
    default: return -1;
    }
}

int ir__op(ir_build *b, ir_op op, int x, int y) {
    const ir_op_info *o = &ir__ops[op];
    if (o->arity == 1) y = x;
    if (is_const(b, x) && is_const(b, y))
        return ir__const(b, (expr_type)o->result, ir__apply(op, at(b, x)->k, at(b, y)->k));
    int same = o->result == EXPR_INT     ? rewrite_int(b, op, x, y)
               : o->result == EXPR_FLOAT ? rewrite_float(b, op, x, y)
                                         : rewrite_condition(b, op, x, y);
    return same >= 0 ? same : plain(b, op, x, y);
}

/* x && y and x || y: decided is the value of x that leaves y unevaluated. */
static int junction(ir_build *b, ir_op op, int decided, int x, int y) {
    if (is_const(b, x)) return at(b, x)->k.i == decided ? x : y;
    if (is_const(b, y) && at(b, y)->k.i != decided) return x;
    if (is_const(b, y) && may_drop(b, x)) return y;
    if (x == y) return x;
    ir_node n = {.op = (uint8_t)op, .type = EXPR_BOOL, .n_args = 2, .slot = -1};
    n.arg[0] = (int16_t)x;
    n.arg[1] = (int16_t)y;
    return ir__node(b, n);
}

int ir__and(ir_build *b, int x, int y) { return junction(b, IR_AND, 0, x, y); }
int ir__or(ir_build *b, int x, int y) { return junction(b, IR_OR, 1, x, y); }

int ir__select(ir_build *b, int c, int x, int y) {
    if (is_const(b, c)) return at(b, c)->k.i ? x : y;
    if (x == y && may_drop(b, c)) return x;
    if (is_op(b, c, IR_NOT)) return ir__select(b, at(b, c)->arg[0], y, x);
    if (at(b, x)->type == EXPR_BOOL && is_const(b, x) && is_const(b, y) && x != y)
        return at(b, x)->k.i ? c : ir__op(b, IR_NOT, c, c);
    ir_node n = {.op = IR_SELECT, .type = at(b, x)->type, .n_args = 3, .slot = -1};
    n.arg[0] = (int16_t)c;
    n.arg[1] = (int16_t)x;
    n.arg[2] = (int16_t)y;
    return ir__node(b, n);
}
