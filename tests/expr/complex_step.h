/* Derivatives of a score by a complex step: the score itself evaluated beside the real line, no rule of any derivative used.
 *
 * The imaginary part of f(x + i t) over t is f'(x) for a t so small that its square is nothing: nothing cancels, so no step is too
 * wide or too narrow. Conditions, integers and floors are those of fp32, as the definition has them. Beside each number goes a
 * bound of what rounding does to it, in either order of the chain rule, and whether a min, a max or an
 * abs stands on its edge or a function at its pole, where -0 and 0 are far apart: no slope there. Header only. */
#ifndef TESTS_EXPR_COMPLEX_STEP_H
#define TESTS_EXPR_COMPLEX_STEP_H
#include "eval_nodes.h"
#include "expr/expr_grad_private.h"
#include <complex.h>
#include <math.h>

#define COMPLEX_STEP_T 0x1p-200
/* Roundings of one operation, those of the math library included. */
#define COMPLEX_STEP_ULPS 8.0

/* What is stepped: s (capture -1), or an element of a capture. */
typedef struct complex_step_by {
    int capture;
    int64_t place;
} complex_step_by;

/* One node. rough: bound of the error of z's real part, rough_d: of the derivative's, both in units of 2^-53; size: the
 * absolute values of the terms that make the derivative, added. */
typedef struct complex_step_node {
    double complex z;
    double size, rough, rough_d;
    int edge, constant;
} complex_step_node;

/* A function of one or two arguments: value, slopes, and the errors of the slopes, for the bounds alone. */
typedef struct complex_step_rule {
    double complex z;
    double p, q, rough_p, rough_q;
} complex_step_rule;

static inline complex_step_node complex_step_chain(complex_step_rule r, complex_step_node x,
                                                   complex_step_node y) {
    const double p = fabs(r.p), q = fabs(r.q), size = p * x.size + q * y.size;
    const double own = COMPLEX_STEP_ULPS * fabs(creal(r.z));
    return (complex_step_node){.z = r.z,
                               .size = size,
                               .rough = p * x.rough + q * y.rough + own,
                               .rough_d = p * x.rough_d + q * y.rough_d + x.size * r.rough_p +
                                          y.size * r.rough_q + COMPLEX_STEP_ULPS * size,
                               .edge = x.edge || y.edge};
}

/* Factors that are constants of the text are multiplied by each other in fp32. */
static inline double complex_step_folded(complex_step_node x, double slope) {
    return x.constant ? 0x1p29 * fabs(slope) : 0;
}
static inline complex_step_node complex_step_product(complex_step_node x, complex_step_node y) {
    const double p = creal(y.z), q = creal(x.z);
    return complex_step_chain((complex_step_rule){x.z * y.z, p, q,
                                                  y.rough + complex_step_folded(y, p),
                                                  x.rough + complex_step_folded(x, q)},
                              x, y);
}
static inline complex_step_node complex_step_quotient(complex_step_node x, complex_step_node y) {
    const double a = creal(x.z), b = creal(y.z);
    y.edge |= b == 0;
    return complex_step_chain((complex_step_rule){x.z / y.z, 1 / b, -a / (b * b),
                                                  y.rough / (b * b) + complex_step_folded(y, 1 / b),
                                                  (x.rough + 2 * fabs(a / b) * y.rough) / (b * b) +
                                                      complex_step_folded(x, a / (b * b))},
                              x, y);
}

/* exp, exp2, log, sqrt, rsqrt, tanh, sigmoid. */
static inline complex_step_node complex_step_call(int op, complex_step_node x) {
    const double a = creal(x.z);
    const double complex root = a < 0 ? (double complex)NAN : csqrt(x.z);
    complex_step_rule r = {.z = NAN};
    double f;
    x.edge |= a == 0 && (op == IR_LOG || op == IR_SQRT || op == IR_RSQRT);
    switch (op) {
    case IR_EXP:
    case IR_EXP2:
        r.z = op == IR_EXP ? cexp(x.z) : cexp(x.z * log(2.0));
        f = fabs(creal(r.z));
        r.p = f, r.rough_p = f * (x.rough + COMPLEX_STEP_ULPS * (1 + fabs(a)));
        if (op == IR_EXP2) r.rough_p += f * 0x1p25; /* programs hold log(2) in fp32 */
        x.rough += COMPLEX_STEP_ULPS * fabs(a);     /* the exponent's own rounding */
        break;
    case IR_LOG:
        r.z = a < 0 ? (double complex)NAN : clog(x.z);
        r.p = 1 / a, r.rough_p = x.rough / (a * a);
        x.rough += COMPLEX_STEP_ULPS * fabs(a); /* near 1 */
        break;
    case IR_SQRT:
        r.z = root, f = creal(root);
        r.p = 0.5 / f, r.rough_p = 0.25 * x.rough / (a * f);
        break;
    case IR_RSQRT:
        r.z = 1 / root, f = 1 / creal(root);
        r.p = 0.5 * f / a, r.rough_p = 0.75 * f * x.rough / (a * a);
        break;
    case IR_TANH:
        r.z = ctanh(x.z), f = fabs(creal(r.z));
        r.p = 1 - f * f, r.rough_p = x.rough * r.p + COMPLEX_STEP_ULPS;
        break;
    default:
        r.z = 1 / (1 + cexp(-x.z)), f = creal(r.z);
        r.p = f * (1 - f), r.rough_p = x.rough * r.p + COMPLEX_STEP_ULPS * f;
    }
    return complex_step_chain(r, x, (complex_step_node){.z = 0});
}

/* The smaller of two in fp32 (sign 1) or the larger (-1), NaN before all; on its edge where they are equal, or in double the other way
 * round. */
static inline complex_step_node complex_step_pick(float sign, float a, float b, complex_step_node x,
                                                  complex_step_node y) {
    const double wide_a = (double)sign * creal(x.z), wide_b = (double)sign * creal(y.z);
    const int first = sign * a < sign * b || a != a;
    complex_step_node r = first ? x : y;
    r.edge = x.edge || y.edge || a == b || first != (wide_a < wide_b || wide_a != wide_a);
    return r;
}

static inline complex_step_node complex_step_op(const ir_node *n, const ir_val *v,
                                                const complex_step_node *w) {
    const complex_step_node x = w[n->arg[0]], y = w[n->arg[1]];
    const float a = v[n->arg[0]].f, b = v[n->arg[1]].f;
    complex_step_node r;
    switch (n->op) {
    case IR_NEG_F: return complex_step_chain((complex_step_rule){-x.z, 1, 0, 0, 0}, x, x);
    case IR_ADD_F: return complex_step_chain((complex_step_rule){x.z + y.z, 1, 1, 0, 0}, x, y);
    case IR_SUB_F: return complex_step_chain((complex_step_rule){x.z - y.z, 1, 1, 0, 0}, x, y);
    case IR_MUL_F: return complex_step_product(x, y);
    case IR_DIV_F: return complex_step_quotient(x, y);
    case IR_MIN_F: return complex_step_pick(1, a, b, x, y);
    case IR_MAX_F: return complex_step_pick(-1, a, b, x, y);
    case IR_ABS_F:
        r = x;
        if (a < 0) r.z = -x.z;
        r.edge = x.edge || a == 0 || (a < 0) != (creal(x.z) < 0);
        return r;
    case IR_SELECT: return w[n->arg[v[n->arg[0]].i ? 1 : 2]];
    default: return complex_step_call(n->op, x);
    }
}

/* The score of g at a cell, stepped. v, place, w: room for all nodes of its program. */
static inline complex_step_node complex_step(const expr_grad *g, const expr_env *env,
                                             const int64_t at[4], double s, complex_step_by by,
                                             ir_val *v, int64_t *place, complex_step_node *w) {
    eval_nodes(&g->prog, env, at, (float)s, v, place);
    for (int i = 0; i <= g->value; i++) {
        const ir_node *n = &g->prog.node[i];
        const int array = n->op == IR_LOAD, scalar = n->op == IR_SCALAR;
        const int is_s = n->op == IR_VAR && n->slot == IR_S;
        if (n->type != EXPR_FLOAT) continue;
        w[i] = (complex_step_node){.z = is_s ? s : (double)v[i].f, .constant = n->op == IR_CONST};
        if (is_s ? by.capture < 0
                 : n->slot == by.capture && (scalar || (array && place[i] == by.place)))
            w[i].z += COMPLEX_STEP_T * I, w[i].size = 1;
        if (!is_s && !array && !scalar && n->op != IR_CONST && n->op != IR_FLOOR &&
            n->op != IR_TO_F)
            w[i] = complex_step_op(n, v, w);
    }
    return w[g->value];
}

#endif
