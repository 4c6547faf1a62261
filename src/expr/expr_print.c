/* Prints a program as text that compiles to the same program.
 *
 * Nodes used more than once, and nodes deep inside others, get a `let` line; the rest is written with
 * the fewest parentheses. Names of lets avoid captured names. The text shows the program after folding,
 * so it is a way to see what the compiler made; it does not keep the source's layout. */
#include "expr/ir.h"
#include <ctype.h>
#include <math.h>
#include <string.h>

enum { DEEP = 40 };
enum { P_SELECT, P_OR, P_AND, P_NOT, P_COMPARE, P_SUM, P_PRODUCT, P_PREFIX, P_ATOM };

typedef struct printer {
    const expr *e;
    str *out;
    char prefix[EXPR_MAX_CAPTURES + 4];
    int n_lets;
    int16_t let[IR_MAX_NODES + IR_SLACK]; /* number of the let that names a node, 0: none */
    int16_t users[IR_MAX_NODES + IR_SLACK];
    int16_t height[IR_MAX_NODES + IR_SLACK]; /* levels printed inline below, 0: not visited */
} printer;

static err print_at(printer *p, int id, int least);

static int is_leaf(const ir_node *n) {
    return n->op == IR_CONST || n->op == IR_VAR || n->op == IR_SCALAR;
}

static int level_of(const ir_node *n) {
    switch (n->op) {
    case IR_SELECT: return P_SELECT;
    case IR_OR: return P_OR;
    case IR_AND: return P_AND;
    case IR_CONST: /* negative numbers print as a prefix or a quotient */
        if (n->type == EXPR_FLOAT) return isfinite(n->k.f) && !signbit(n->k.f) ? P_ATOM : P_PREFIX;
        return n->type == EXPR_INT && n->k.i < 0 ? P_PREFIX : P_ATOM;
    default: break;
    }
    const ir_op_info *o = &ir__ops[n->op];
    if (o->form == IR_PREFIX) return P_PREFIX;
    if (o->form != IR_INFIX) return P_ATOM;
    if (n->type == EXPR_BOOL) return P_COMPARE;
    return strchr("+-", o->spelling[0]) ? P_SUM : P_PRODUCT;
}

static err print_const(printer *p, const ir_node *n) {
    if (n->type == EXPR_BOOL) return str_printf(p->out, n->k.i ? "true" : "false");
    if (n->type == EXPR_INT) {
        if (n->k.i == INT64_MIN) return str_printf(p->out, "(-9223372036854775807 - 1)");
        return str_printf(p->out, "%lld", (long long)n->k.i);
    }
    if (isnan(n->k.f)) return str_printf(p->out, "(0.0 / 0.0)");
    if (isinf(n->k.f)) return str_printf(p->out, "(%s1.0 / 0.0)", n->k.f < 0 ? "-" : "");
    size_t from = p->out->n;
    TRY(str_printf(p->out, "%.9g", (double)n->k.f));
    if (strpbrk(p->out->s + from, ".e")) return ERR_OK;
    return str_printf(p->out, ".0");
}

static err print_list(printer *p, const char *name, const ir_node *n, char open, char close) {
    TRY(str_printf(p->out, "%s%c", name, open));
    for (int i = 0; i < n->n_args; i++) {
        if (i) TRY(str_printf(p->out, ", "));
        TRY(print_at(p, n->arg[i], P_SELECT));
    }
    return str_printf(p->out, "%c", close);
}

static err print_infix(printer *p, const ir_node *n, const char *sign, int level) {
    int left = level == P_COMPARE ? P_COMPARE + 1 : level; /* comparisons do not chain */
    TRY(print_at(p, n->arg[0], left));
    TRY(str_printf(p->out, " %s ", sign));
    return print_at(p, n->arg[1], level + 1);
}

static err print_node(printer *p, const ir_node *n, int level) {
    const ir_op_info *o = &ir__ops[n->op];
    switch (n->op) {
    case IR_CONST: return print_const(p, n);
    case IR_VAR: return str_printf(p->out, "%s", ir__var_names[n->slot]);
    case IR_SCALAR: return str_printf(p->out, "%s", p->e->decls[n->slot].name);
    case IR_LOAD: return print_list(p, p->e->decls[n->slot].name, n, '[', ']');
    case IR_SELECT:
        TRY(print_at(p, n->arg[0], P_OR));
        TRY(str_printf(p->out, " ? "));
        TRY(print_at(p, n->arg[1], P_SELECT));
        TRY(str_printf(p->out, " : "));
        return print_at(p, n->arg[2], P_SELECT);
    default: break;
    }
    if (o->form == IR_PREFIX) {
        TRY(str_printf(p->out, "%s", o->spelling));
        return print_at(p, n->arg[0], P_PREFIX);
    }
    if (o->form == IR_CALL || o->form == IR_CAST) return print_list(p, o->spelling, n, '(', ')');
    return print_infix(p, n, o->spelling, level);
}

/* `least`: parentheses are needed when the node binds looser than this. */
static err print_at(printer *p, int id, int least) {
    const ir_node *n = &p->e->prog.node[id];
    if (p->let[id]) return str_printf(p->out, "%s%d", p->prefix, p->let[id]);
    int level = level_of(n);
    if (level < least) TRY(str_printf(p->out, "("));
    TRY(print_node(p, n, level));
    return level < least ? str_printf(p->out, ")") : ERR_OK;
}

/* Writes the lets below a node, arguments first, and then its own when it needs one. */
static err print_lets(printer *p, int id) {
    const ir_node *n = &p->e->prog.node[id];
    int height = 1;
    if (p->height[id]) return ERR_OK;
    for (int i = 0; i < n->n_args; i++) {
        TRY(print_lets(p, n->arg[i]));
        int below = p->let[n->arg[i]] ? 0 : p->height[n->arg[i]];
        if (below + 1 > height) height = below + 1;
    }
    p->height[id] = (int16_t)height;
    if (is_leaf(n) || id == p->e->prog.n - 1) return ERR_OK;
    if (p->users[id] < 2 && height < DEEP) return ERR_OK;
    TRY(str_printf(p->out, "let %s%d = ", p->prefix, p->n_lets + 1));
    TRY(print_at(p, id, P_SELECT));
    TRY(str_printf(p->out, ";\n"));
    p->let[id] = (int16_t)++p->n_lets;
    return ERR_OK;
}

/* "t", "t_", ... : the first that no captured name continues with a digit. */
static void choose_prefix(printer *p) {
    strcpy(p->prefix, "t");
    for (int i = 0; i < p->e->n_decls; i++) {
        size_t n = strlen(p->prefix);
        const char *name = p->e->decls[i].name;
        if (strncmp(name, p->prefix, n) != 0 || !isdigit((unsigned char)name[n])) continue;
        strcat(p->prefix, "_");
        i = -1;
    }
}

err expr_print(const expr *e, str *out) {
    printer *p;
    TRY(mem_new(1, sizeof *p, &p));
    p->e = e;
    p->out = out;
    choose_prefix(p);
    for (int i = 0; i < e->prog.n; i++)
        for (int j = 0; j < e->prog.node[i].n_args; j++) p->users[e->prog.node[i].arg[j]]++;
    err code = print_lets(p, e->prog.n - 1);
    if (!code) code = print_at(p, e->prog.n - 1, P_SELECT);
    mem_free(p);
    return code;
}
