/* Reverse mode on the program graph: adjoints flow from the score down to s and the captured floats.
 *
 * An adjoint is a value and a guard, a condition outside which it is exactly nothing. Branches of ?: and the losing
 * sides of min and max narrow the guard instead of multiplying by 0, so an infinite slope in a branch that is not
 * taken never makes 0 * inf. The rules are named in ops.def and defined here over node numbers. Only nodes that lead
 * to something wanted are visited. Evaluates nothing. */
#include "expr/expr_grad_private.h"
#include <string.h>

enum { ROOM = 128 }; /* nodes that one step may add */

typedef struct adjoint {
    int value; /* -1: nothing so far */
    int guard; /* -1: everywhere */
} adjoint;

typedef struct grad_build {
    ir_build *b;
    const ir_prog *p;  /* the score */
    int16_t *at;       /* its nodes in b */
    adjoint *adj;      /* per node of b */
    uint8_t *leads_to; /* per node of b: s or something wanted lies below */
} grad_build;

static int op1(const grad_build *g, ir_op op, int x) { return ir__op(g->b, op, x, x); }
static int op2(const grad_build *g, ir_op op, int x, int y) { return ir__op(g->b, op, x, y); }
static int mul(const grad_build *g, int x, int y) { return op2(g, IR_MUL_F, x, y); }
static int number(const grad_build *g, double v) { return ir__float(g->b, (float)v); }
static int negated(const grad_build *g, int c) { return op1(g, IR_NOT, c); }

static int both(const grad_build *g, int guard, int c) {
    return guard < 0 ? c : ir__and(g->b, guard, c);
}

/* The value where the guard holds, 0 elsewhere. */
static int guarded(const grad_build *g, adjoint a) {
    return a.guard < 0 ? a.value : ir__select(g->b, a.guard, a.value, number(g, 0));
}

/* c when the guards are p && c and p && !c (p may be missing, then *rest is -1); -1 otherwise. */
static int complement(const grad_build *g, int x, int y, int *rest) {
    const ir_node *nx = &g->b->node[x], *ny = &g->b->node[y];
    *rest = -1;
    if (negated(g, x) == y) return x;
    nx = &g->b->node[x], ny = &g->b->node[y];
    if (nx->op != IR_AND || ny->op != IR_AND || nx->arg[0] != ny->arg[0]) return -1;
    int c = nx->arg[1], d = ny->arg[1];
    *rest = nx->arg[0];
    return negated(g, c) == d ? c : -1;
}

static void add_to(grad_build *g, int node, int value, int guard) {
    adjoint *a = &g->adj[node], more = {value, guard};
    int rest;
    if (!g->leads_to[node]) return;
    if (a->value < 0) {
        *a = more;
    } else if (a->guard == guard) {
        a->value = op2(g, IR_ADD_F, a->value, value);
    } else if (a->guard >= 0 && guard >= 0 && complement(g, a->guard, guard, &rest) >= 0) {
        int c = complement(g, a->guard, guard, &rest);
        *a = (adjoint){ir__select(g->b, c, a->value, value), rest};
    } else {
        int sum = op2(g, IR_ADD_F, guarded(g, *a), guarded(g, more));
        *a = (adjoint){sum, a->guard < 0 || guard < 0 ? -1 : ir__or(g->b, a->guard, guard)};
    }
}

/* ---- rules: r = op(x, y) has adjoint a ---- */

#define RULE(name) static void rule_##name(grad_build *g, int r, int x, int y, adjoint a)
#define UNUSED     (void)r, (void)x, (void)y

RULE(none) {
    UNUSED;
    (void)g, (void)a;
}
RULE(neg) {
    UNUSED;
    add_to(g, x, op1(g, IR_NEG_F, a.value), a.guard);
}
RULE(add) {
    UNUSED;
    add_to(g, x, a.value, a.guard);
    add_to(g, y, a.value, a.guard);
}
RULE(sub) {
    UNUSED;
    add_to(g, x, a.value, a.guard);
    add_to(g, y, op1(g, IR_NEG_F, a.value), a.guard);
}
RULE(mul) {
    UNUSED;
    add_to(g, x, mul(g, a.value, y), a.guard);
    add_to(g, y, mul(g, a.value, x), a.guard);
}
RULE(div) {
    int share = op2(g, IR_DIV_F, a.value, y);
    add_to(g, x, share, a.guard);
    if (g->leads_to[y]) add_to(g, y, op1(g, IR_NEG_F, mul(g, share, r)), a.guard);
}

/* The side that is below (min) or above (max) gets all, both sides of a tie half. */
static void to_winner(grad_build *g, int winner, int low, int high, adjoint a) {
    if (!g->leads_to[winner]) return;
    int all = op2(g, IR_LT_F, low, high), some = op2(g, IR_LE_F, low, high);
    int value = ir__select(g->b, all, a.value, mul(g, a.value, number(g, 0.5)));
    add_to(g, winner, value, both(g, a.guard, some));
}

RULE(min) {
    UNUSED;
    const ir_node inner = g->b->node[x];
    int low = inner.arg[1];
    if (inner.op == IR_MAX_F && !g->leads_to[low] && !g->leads_to[y]) {
        /* clamp(v, low, high) between fixed ends: v gets all between them, both included */
        int v = inner.arg[0];
        int inside = ir__and(g->b, op2(g, IR_LE_F, low, v), op2(g, IR_LE_F, v, y));
        add_to(g, v, a.value, both(g, a.guard, inside));
        return;
    }
    to_winner(g, x, x, y, a);
    to_winner(g, y, y, x, a);
}
RULE(max) {
    UNUSED;
    to_winner(g, x, y, x, a);
    to_winner(g, y, x, y, a);
}
RULE(abs) {
    UNUSED;
    int zero = number(g, 0), below = op2(g, IR_LT_F, x, zero);
    int value = ir__select(g->b, below, op1(g, IR_NEG_F, a.value), a.value);
    add_to(g, x, value, both(g, a.guard, op2(g, IR_NE_F, x, zero)));
}
RULE(exp) {
    UNUSED;
    add_to(g, x, mul(g, a.value, r), a.guard);
}
RULE(exp2) {
    UNUSED;
    add_to(g, x, mul(g, a.value, mul(g, r, number(g, 0.69314718055994531))), a.guard);
}
RULE(log) {
    UNUSED;
    add_to(g, x, op2(g, IR_DIV_F, a.value, x), a.guard);
}
RULE(sqrt) {
    UNUSED;
    add_to(g, x, mul(g, a.value, op2(g, IR_DIV_F, number(g, 0.5), r)), a.guard);
}
RULE(rsqrt) {
    UNUSED;
    int cube = mul(g, mul(g, r, r), r);
    add_to(g, x, mul(g, a.value, mul(g, number(g, -0.5), cube)), a.guard);
}
RULE(tanh) {
    UNUSED;
    int d = op2(g, IR_SUB_F, number(g, 1), mul(g, r, r));
    add_to(g, x, mul(g, a.value, d), a.guard);
}
RULE(sigmoid) {
    UNUSED;
    int d = mul(g, r, op2(g, IR_SUB_F, number(g, 1), r));
    add_to(g, x, mul(g, a.value, d), a.guard);
}

typedef void grad_rule(grad_build *g, int r, int x, int y, adjoint a);
static grad_rule *const rules[IR_OP_COUNT] = {
#define S(id, spelling)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    [IR_##id] = rule_##derivative,
#include "expr/ops.def"
#undef S
#undef X
};

/* ---- the walk ---- */

static void visit(grad_build *g, int id) {
    const ir_node n = g->b->node[id]; /* a copy: the builder grows below */
    adjoint a = g->adj[id];
    if (a.value < 0 || n.n_args == 0) return;
    if (n.op == IR_SELECT) {
        if (g->leads_to[n.arg[1]]) add_to(g, n.arg[1], a.value, both(g, a.guard, n.arg[0]));
        if (g->leads_to[n.arg[2]])
            add_to(g, n.arg[2], a.value, both(g, a.guard, negated(g, n.arg[0])));
    } else if (rules[n.op]) {
        rules[n.op](g, id, n.arg[0], n.arg[1], a);
    }
}

/* Floats below which s or a wanted capture lies; integers and conditions pass nothing on. */
static void find_leads(grad_build *g, unsigned wanted) {
    for (int i = 0; i < g->b->n; i++) {
        const ir_node *n = &g->b->node[i];
        if (n->type != EXPR_FLOAT) continue;
        if (n->op == IR_VAR) g->leads_to[i] = 1;
        if (n->op == IR_SCALAR || n->op == IR_LOAD) g->leads_to[i] = wanted >> n->slot & 1;
        for (int j = n->op == IR_SELECT; n->op != IR_LOAD && j < n->n_args; j++)
            g->leads_to[i] |= g->leads_to[n->arg[j]];
    }
}

static int derivative_of(const grad_build *g, int id) {
    return id < 0 || g->adj[id].value < 0 ? number(g, 0) : guarded(g, g->adj[id]);
}

static err build(grad_build *g, unsigned wanted) {
    for (int i = 0; i < g->p->n; i++)
        g->at[i] = (int16_t)ir__copy_node(g->b, &g->p->node[i], g->at);
    find_leads(g, wanted);
    int root = g->at[g->p->n - 1];
    add_to(g, root, number(g, 1), -1);
    for (int i = root; i >= 0; i--) {
        visit(g, i);
        if (g->b->n + ROOM > g->b->capacity)
            return err_set(ERR_RANGE,
                           "the derivative of the score needs more than %d operations; compute "
                           "part of the score into a captured array",
                           IR_MAX_GRAD - ROOM);
    }
    return ERR_OK;
}

/* Places of s and of every wanted site below the root, before compaction. */
static int find_sites(const grad_build *g, unsigned wanted, int root, int *load, int *s) {
    int n = 0;
    *s = -1;
    for (int i = 0; i <= root; i++) {
        const ir_node *x = &g->b->node[i];
        if (x->op == IR_VAR && x->slot == IR_S) *s = i;
        if ((x->op == IR_SCALAR || x->op == IR_LOAD) && x->type == EXPR_FLOAT &&
            (wanted >> x->slot & 1))
            load[n++] = i;
    }
    return n;
}

static err finish(grad_build *g, expr_grad *out, unsigned wanted, arena *a) {
    int root[2 * IR_MAX_NODES + 2], load[2 * IR_MAX_NODES], s;
    int top = g->at[g->p->n - 1], n = find_sites(g, wanted, top, load, &s);
    if (n > IR_MAX_NODES) n = IR_MAX_NODES; /* a text has no more */
    root[0] = top;
    root[1] = derivative_of(g, s);
    for (int i = 0; i < n; i++) {
        root[2 + 2 * i] = load[i];
        root[3 + 2 * i] = derivative_of(g, load[i]);
    }
    TRY(arena_alloc(a, (size_t)n, sizeof *out->site, &out->site));
    out->n_sites = n;
    for (int i = 0; i < n; i++) out->site[i].capture = g->b->node[load[i]].slot;
    TRY(ir__finish_all(g->b, root, 2 + 2 * n, a, &out->prog));
    out->value = root[0];
    out->d_s = root[1];
    for (int i = 0; i < n; i++) {
        out->site[i].load = root[2 + 2 * i];
        out->site[i].d = root[3 + 2 * i];
    }
    return ir__verify(&out->prog, out->score->decls, out->score->n_decls);
}

static err check_wanted(const expr *e, unsigned wanted) {
    if (e->role != EXPR_SCORE)
        return err_set(ERR_USAGE, "a mask has no derivative; only scores do");
    for (int i = 0; i < 32; i++) {
        if (!(wanted >> i & 1)) continue;
        if (i >= e->n_decls)
            return err_set(ERR_USAGE,
                           "a gradient is asked for capture %d of a score that has %d of them", i,
                           e->n_decls);
        if (e->decls[i].type != EXPR_FLOAT)
            return err_set(ERR_USAGE,
                           "a gradient is asked for captured value `%s`, which is not a float one",
                           e->decls[i].name);
    }
    return ERR_OK;
}

err expr_grad_create(expr_grad **out, const expr *score, unsigned wanted, arena *a) {
    grad_build g = {.p = &score->prog};
    err e = ERR_OK;
    TRY(check_wanted(score, wanted));
    TRY(arena_alloc(a, 1, sizeof **out, out));
    (*out)->score = score;
    TRY_GOTO(ir__build_new(&g.b, IR_MAX_GRAD), done);
    TRY_GOTO(mem_new((size_t)score->prog.n, sizeof *g.at, &g.at), done);
    TRY_GOTO(mem_new(IR_MAX_GRAD, sizeof *g.adj, &g.adj), done);
    TRY_GOTO(mem_new(IR_MAX_GRAD, 1, &g.leads_to), done);
    for (int i = 0; i < IR_MAX_GRAD; i++) g.adj[i] = (adjoint){-1, -1};
    TRY_GOTO(build(&g, wanted), done);
    TRY_GOTO(finish(&g, *out, wanted, a), done);
done:
    mem_free(g.b);
    mem_free(g.at);
    mem_free(g.adj);
    mem_free(g.leads_to);
    return e;
}

/* ---- what is known of it ---- */

const expr *expr_grad_score(const expr_grad *g) { return g->score; }
int expr_grad_sites(const expr_grad *g) { return g->n_sites; }
int expr_grad_capture(const expr_grad *g, int site) { return g->site[site].capture; }
void expr_grad_count(const expr_grad *g, int *score, int *all) {
    *score = g->score->prog.n;
    *all = g->prog.n;
}

/* The index variable that an index is, up to a constant and a sign: two values of it give two places. */
static unsigned owner_of(const ir_prog *p, int id) {
    const ir_node *n = &p->node[id];
    if (n->op == IR_VAR) return n->uses;
    if (n->affine && (n->uses == 1u << IR_Q || n->uses == 1u << IR_KV)) {
        int64_t slope = n->slope_q + n->slope_kv;
        if (slope == 1 || slope == -1) return n->uses;
    }
    if ((n->op == IR_ADD_I || n->op == IR_SUB_I) && p->node[n->arg[1]].op == IR_CONST)
        return owner_of(p, n->arg[0]);
    return 0;
}

unsigned expr_grad_owners(const expr_grad *g, int capture) {
    unsigned owners = 0;
    for (int d = 0; d < g->score->decls[capture].ndim; d++) {
        int index = -1, same = 1;
        for (int i = 0; i < g->n_sites; i++) {
            if (g->site[i].capture != capture) continue;
            int here = g->prog.node[g->site[i].load].arg[d];
            same &= index < 0 || index == here;
            index = here;
        }
        if (same && index >= 0) owners |= owner_of(&g->prog, index);
    }
    return owners;
}
