/* Building the forms, arguments before users.
 *
 * A form that would overflow its coefficients or exceed AFFINE_MAX_TERMS is not made; its node is then an
 * atom in other forms. Directions are found by search: programs have few. Nothing here knows ranges. */
#include "expr/affine.h"
#include "expr/ops.h"
#include <string.h>

typedef struct sum { /* a form under construction */
    int64_t constant, weight;
    int n, bad;
    affine_term term[AFFINE_MAX_TERMS];
} sum;

typedef struct builder {
    const ir_prog *p;
    arena *a;
    affine_table *t;
    int n;
    const affine_form *dir[AFFINE_MAX_DIRECTIONS]; /* the first form of each direction */
} builder;

int affine__is_atom(const affine_form *f, int node) {
    return f->n == 1 && f->term[0].node == node && f->term[0].divisor == 0;
}

static int before(const affine_term *x, const affine_term *y) {
    return x->node != y->node ? x->node < y->node : x->divisor < y->divisor;
}

int affine__add_product(int64_t *to, int64_t factor, int64_t v) {
    int64_t product;
    return __builtin_mul_overflow(factor, v, &product) || __builtin_add_overflow(*to, product, to);
}

int affine__add(const affine_term *t, int64_t from, int64_t to, int64_t *lo, int64_t *hi,
                int64_t *size) {
    int64_t c = t->coef, largest;
    if (from == INT64_MIN || to == INT64_MIN) return 0;
    largest = -from > to ? -from : to;
    if (largest < 0) largest = -largest;
    return !(affine__add_product(lo, c, c < 0 ? to : from) |
             affine__add_product(hi, c, c < 0 ? from : to) |
             affine__add_product(size, t->weight, largest));
}

static int64_t magnitude(int64_t v) { return v < 0 ? (v == INT64_MIN ? INT64_MAX : -v) : v; }

static void add_term(sum *s, int64_t factor, const affine_term *x) {
    int i = 0;
    while (i < s->n && before(&s->term[i], x)) i++;
    if (i == s->n || before(x, &s->term[i])) {
        if (s->n == AFFINE_MAX_TERMS) {
            s->bad = 1;
            return;
        }
        memmove(&s->term[i + 1], &s->term[i], (size_t)(s->n - i) * sizeof *s->term);
        s->term[i] = (affine_term){.divisor = x->divisor, .node = x->node, .sole = -1};
        s->n++;
    }
    s->bad |= affine__add_product(&s->term[i].coef, factor, x->coef);
    s->bad |= affine__add_product(&s->term[i].weight, magnitude(factor), x->weight);
}

static void add_form(sum *s, int64_t factor, const affine_form *f) {
    if (!f) {
        s->bad = 1;
        return;
    }
    s->bad |= affine__add_product(&s->constant, factor, f->constant);
    s->bad |= affine__add_product(&s->weight, magnitude(factor), f->weight);
    for (int i = 0; i < f->n; i++) add_term(s, factor, &f->term[i]);
}

static void add_atom(sum *s, int64_t factor, int node, int64_t divisor) {
    affine_term x = {.coef = 1, .weight = 1, .divisor = divisor, .node = node};
    add_term(s, factor, &x);
}

static int64_t common_divisor(int64_t x, int64_t y) {
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

static int is_constant(const builder *b, int id, int64_t *v) {
    const ir_node *n = &b->p->node[id];
    *v = n->k.i;
    return n->op == IR_CONST && n->type == EXPR_INT;
}

/* Term i or the next one with a coefficient that is not 0. */
static int next_term(const affine_form *f, int i) {
    while (i < f->n && f->term[i].coef == 0) i++;
    return i;
}

/* Whether both forms have the same terms up to their scales. */
static int same_direction(const affine_form *x, const affine_form *y) {
    int i = next_term(x, 0), j = next_term(y, 0);
    for (; i < x->n && j < y->n; i = next_term(x, i + 1), j = next_term(y, j + 1)) {
        const affine_term *s = &x->term[i], *t = &y->term[j];
        if (s->node != t->node || s->divisor != t->divisor ||
            s->coef / x->scale != t->coef / y->scale)
            return 0;
    }
    return i == x->n && j == y->n;
}

/* Sets scale and direction: the terms' common divisor, with the sign of the first one. */
static void find_direction(builder *b, affine_form *f) {
    int64_t g = 0;
    int first = next_term(f, 0);
    f->direction = -1;
    f->scale = 0;
    if (first == f->n) return;
    for (int i = 0; i < f->n; i++) g = common_divisor(magnitude(f->term[i].coef), g);
    f->scale = f->term[first].coef < 0 ? -g : g;
    for (int i = 0; i < b->n; i++) {
        if (!same_direction(b->dir[i], f)) continue;
        f->direction = i;
        return;
    }
    if (b->n == AFFINE_MAX_DIRECTIONS) return;
    f->direction = b->n;
    b->dir[b->n++] = f;
}

/* What the value is modulo the common divisor of its terms' steps; a rest by k of a form keeps that form's congruence
 * modulo their common divisor. */
static void find_congruence(const builder *b, affine_form *f) {
    int64_t step = 0, rest = f->constant;
    int bad = 0;
    for (int i = 0; i < f->n; i++) {
        affine_term *t = &f->term[i];
        const ir_node *n = &b->p->node[t->node];
        int64_t own = 1, k = 0, part;
        if (!t->divisor && n->op == IR_MOD_I && is_constant(b, n->arg[1], &k) && k > 0)
            t->rest_of = b->t->of[n->arg[0]];
        if (t->rest_of) {
            f->rests = 1;
            own = common_divisor(k, t->rest_of->step);
            bad |= affine__add_product(&rest, t->coef, ops_mod(t->rest_of->remainder, own));
        }
        if (__builtin_mul_overflow(magnitude(t->coef), own, &part)) part = magnitude(t->coef);
        step = common_divisor(part, step);
    }
    f->step = bad ? 1 : step;
    f->remainder = rest;
}

static int is_pair(const builder *b, const affine_form *f) {
    if (f->n != 2 || f->constant || f->term[0].coef != -f->term[1].coef ||
        (f->scale != 1 && f->scale != -1))
        return 0;
    for (int i = 0; i < 2; i++) {
        const ir_node *n = &b->p->node[f->term[i].node];
        if (f->term[i].divisor || n->op != IR_LOAD || n->n_args != 1) return 0;
    }
    return 1;
}

static err keep(builder *b, const sum *s, const affine_form **out) {
    affine_form *f;
    int bad = s->bad || s->constant == INT64_MIN; /* its negative does not exist */
    for (int i = 0; i < s->n; i++) bad |= s->term[i].coef == INT64_MIN;
    *out = NULL;
    if (bad) return ERR_OK;
    TRY(arena_alloc(b->a, 1, sizeof *f, &f));
    TRY(arena_alloc(b->a, (size_t)s->n, sizeof *f->term, &f->term));
    f->constant = s->constant;
    f->weight = s->weight;
    f->n = s->n;
    memcpy(f->term, s->term, (size_t)s->n * sizeof *f->term);
    find_direction(b, f);
    find_congruence(b, f);
    f->pair = is_pair(b, f);
    *out = f;
    return ERR_OK;
}

/* x // k or x % k where every coefficient of x is a multiple of k: exact without a new term. The weights
 * stay x's own, because the quotient holds only while x itself has not wrapped. 0: does not apply. */
static int add_quotient(sum *s, const affine_form *x, int64_t k, int rest) {
    if (!x || x->scale % k != 0) return 0;
    for (int i = 0; i < x->n; i++) {
        affine_term t = x->term[i];
        t.coef = rest ? 0 : t.coef / k;
        add_term(s, 1, &t);
    }
    s->constant = rest ? ops_mod(x->constant, k) : ops_div(x->constant, k);
    s->weight = x->weight;
    return 1;
}

/* Adds node id's sum; form[arg] are the arguments' forms. 0 when the node is no sum. */
static int add_sum(const builder *b, sum *s, const ir_node *n, const affine_form *x,
                   const affine_form *y) {
    int64_t k;
    switch (n->op) {
    case IR_ADD_I: add_form(s, 1, x); break;
    case IR_SUB_I: add_form(s, 1, x); break;
    case IR_NEG_I: add_form(s, -1, x); return 1;
    case IR_MUL_I:
        if (is_constant(b, n->arg[1], &k))
            add_form(s, k, x);
        else if (is_constant(b, n->arg[0], &k))
            add_form(s, k, y);
        else
            return 0;
        return 1;
    default: return 0;
    }
    add_form(s, n->op == IR_SUB_I ? -1 : 1, y);
    return 1;
}

static int is_comparison(int op) {
    return op == IR_LT_I || op == IR_LE_I || op == IR_EQ_I || op == IR_NE_I;
}

static err build_node(builder *b, int id) {
    const ir_node *n = &b->p->node[id];
    const affine_form *x = b->t->of[n->arg[0]], *y = b->t->of[n->arg[1]];
    const affine_form *x2 = b->t->again[n->arg[0]], *y2 = b->t->again[n->arg[1]];
    sum s = {0}, s2 = {0};
    int64_t k = 0;
    int leaf = n->n_args == 0;
    int twice = !leaf && (x2 || (n->n_args > 1 && y2));
    int divides =
        (n->op == IR_DIV_I || n->op == IR_MOD_I) && is_constant(b, n->arg[1], &k) && k > 0;
    if (!x2) x2 = x;
    if (!y2) y2 = y;
    if (is_comparison(n->op)) {
        add_form(&s, 1, y), add_form(&s, -1, x);
        add_form(&s2, 1, y2), add_form(&s2, -1, x2);
    } else if (n->type != EXPR_INT) {
        return ERR_OK;
    } else if (n->op == IR_CONST) {
        s.constant = n->k.i;
        s.weight = magnitude(n->k.i);
    } else if (divides && add_quotient(&s, x, k, n->op == IR_MOD_I)) {
        twice = 0;
    } else if (divides && n->op == IR_DIV_I) {
        add_atom(&s, 1, n->arg[0], k);
        twice = 0;
    } else if (leaf || !add_sum(b, &s, n, x, y) || s.bad) {
        s = (sum){0};
        add_atom(&s, 1, id, 0);
        twice = divides; /* then it is a rest */
        if (twice) {
            add_form(&s2, 1, x2);
            add_atom(&s2, -k, n->arg[0], k);
        }
    } else if (twice) {
        add_sum(b, &s2, n, x2, y2);
    }
    TRY(keep(b, &s, &b->t->of[id]));
    return twice ? keep(b, &s2, &b->t->again[id]) : ERR_OK;
}

static void find_sole(const builder *b, const affine_form *f) {
    for (int i = 0; f && i < f->n; i++)
        for (int j = 0; j < b->n; j++) {
            const affine_form *d = b->dir[j];
            int only = next_term(d, 0);
            if (next_term(d, only + 1) == d->n && d->term[only].node == f->term[i].node &&
                d->term[only].divisor == f->term[i].divisor)
                f->term[i].sole = j;
        }
}

err affine__build(affine_table *out, const ir_prog *p, arena *a) {
    builder *b;
    err e = ERR_OK;
    TRY(arena_alloc(a, (size_t)p->n, sizeof *out->of, &out->of));
    TRY(arena_alloc(a, (size_t)p->n, sizeof *out->again, &out->again));
    TRY(mem_new(1, sizeof *b, &b));
    b->p = p;
    b->a = a;
    b->t = out;
    for (int i = 0; !e && i < p->n; i++) e = build_node(b, i);
    for (int i = 0; !e && i < p->n; i++) {
        find_sole(b, out->of[i]);
        find_sole(b, out->again[i]);
    }
    out->n_directions = b->n;
    mem_free(b);
    return e;
}
