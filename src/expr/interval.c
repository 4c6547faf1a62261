/* Deciding a mask over a box: walk the program with ranges instead of values.
 *
 * Guards are followed: behind `a && b` the ranges are cut to cells where a holds before b is looked at,
 * behind `||` and `?:` likewise. A cut narrows index variables and directions of affine forms (affine.h)
 * and is undone on the way back through a trail. Ranges are remembered per node while no cut changes them.
 * Work is bounded by FUEL visits; beyond it everything is unknown, which is always sound. Reaching a
 * load whose index is not proven inside its array sets may_leave. No heap is used, nothing is written to the
 * tables, so any number of threads may classify at once. */
#include "expr/interval.h"
#include "expr/interval_tables.h"
#include "expr/ops.h"
#include <string.h>

enum { FUEL = 20000, MAX_TRAIL = 256, MAX_NODES = IR_MAX_NODES + IR_SLACK };

typedef struct bounds {
    int64_t lo, hi;
} bounds;

typedef struct cut { /* an undone change: variable (0..3) or 4 + direction */
    int what;
    bounds old;
} cut;

typedef struct walk {
    const interval_tables *t;
    const ir_node *node;
    bounds var[4];
    bounds direction[AFFINE_MAX_DIRECTIONS];
    cut trail[MAX_TRAIL];
    int n_trail, empty; /* empty: the cuts leave no cell */
    int fuel, may_leave, depth;
    int guarded;                /* behind a guard that is undecided */
    interval_trace *trace;      /* [nodes] or NULL */
    uint32_t stamp, last_stamp; /* of the present cuts */
    uint32_t seen[MAX_NODES];
    interval_range value[MAX_NODES];
} walk;

static interval_range eval(walk *w, int id);
static void cut_form(walk *w, const affine_form *f, bounds want);

/* ---- affine forms ---- */

static int64_t floor_of(int64_t x, int64_t y) { return ops_div(x, y); }
static int64_t ceil_of(int64_t x, int64_t y) {
    int64_t q = ops_div(x, y);
    return q + (ops_mod(x, y) != 0);
}

static bounds term_range(walk *w, const affine_term *t) {
    interval_range r = eval(w, t->node);
    bounds out = {r.lo.i, r.hi.i};
    if (t->divisor) {
        out.lo = floor_of(out.lo, t->divisor);
        out.hi = floor_of(out.hi, t->divisor);
    }
    if (w->n_trail && t->sole >= 0) {
        const bounds *d = &w->direction[t->sole];
        if (d->lo > out.lo) out.lo = d->lo;
        if (d->hi < out.hi) out.hi = d->hi;
    }
    return out;
}

/* The form's range from its terms alone. 0: something may have wrapped. Reaches all its loads. */
static int form_from_terms(walk *w, const affine_form *f, bounds *out) {
    int64_t size = f->weight;
    int ok = 1;
    *out = (bounds){f->constant, f->constant};
    for (int i = 0; i < f->n; i++) {
        bounds r = term_range(w, &f->term[i]);
        ok = ok && affine__add(&f->term[i], r.lo, r.hi, &out->lo, &out->hi, &size);
    }
    return ok;
}

/* Cuts *r by what is known of the form's direction. */
static void use_direction(const walk *w, const affine_form *f, bounds *r) {
    if (!w->n_trail || f->direction < 0) return;
    bounds d = w->direction[f->direction];
    int64_t from = f->scale > 0 ? d.lo : d.hi, to = f->scale > 0 ? d.hi : d.lo, v;
    int bounded_from = from != INT64_MIN && from != INT64_MAX;
    int bounded_to = to != INT64_MIN && to != INT64_MAX;
    v = f->constant;
    if (bounded_from && !affine__add_product(&v, f->scale, from) && v > r->lo) r->lo = v;
    v = f->constant;
    if (bounded_to && !affine__add_product(&v, f->scale, to) && v < r->hi) r->hi = v;
}

static int form_range(walk *w, const affine_form *f, bounds *out) {
    if (!f || !form_from_terms(w, f, out)) return 0;
    use_direction(w, f, out);
    return 1;
}

/* Both ways of writing node id's form; 0 when neither can be trusted. */
static int node_form_range(walk *w, int id, bounds *out) {
    int ok = form_range(w, w->t->affine.of[id], out);
    bounds other;
    const affine_form *again = w->t->affine.again[id];
    if (!again || !form_range(w, again, &other)) return ok;
    if (!ok) *out = other;
    if (other.lo > out->lo) out->lo = other.lo;
    if (other.hi < out->hi) out->hi = other.hi;
    return 1;
}

/* ---- cuts ---- */

static void narrow(walk *w, int what, int64_t lo, int64_t hi) {
    bounds *b = what < 4 ? &w->var[what] : &w->direction[what - 4];
    if (lo <= b->lo && hi >= b->hi) return;
    if (w->n_trail == MAX_TRAIL) return;
    w->trail[w->n_trail++] = (cut){what, *b};
    if (lo > b->lo) b->lo = lo;
    if (hi < b->hi) b->hi = hi;
    if (b->lo > b->hi) w->empty = 1;
    w->stamp = ++w->last_stamp;
}

static void cut_node(walk *w, int id, bounds r);

/* min or max in r: when the least is large both are; when it is small and one side cannot be, the other is. */
static void cut_extreme(walk *w, const ir_node *n, bounds r) {
    const bounds all = {INT64_MIN, INT64_MAX};
    bounds both = n->op == IR_MIN_I ? (bounds){r.lo, all.hi} : (bounds){all.lo, r.hi};
    w->depth++;
    for (int i = 0; i < 2 && !w->empty; i++) {
        bounds one = both;
        int other = n->arg[1 - i];
        if (!w->node[other].has_load) {
            interval_range x = eval(w, other);
            if (n->op == IR_MIN_I && x.lo.i > r.hi) one.hi = r.hi;
            if (n->op == IR_MAX_I && x.hi.i < r.lo) one.lo = r.lo;
        }
        cut_node(w, n->arg[i], one);
    }
    w->depth--;
}

/* Integer node id lies in r: narrows what it is made of. */
static void cut_node(walk *w, int id, bounds r) {
    const ir_node *n = &w->node[id];
    const affine_form *f = w->t->affine.of[id];
    if (n->op == IR_VAR) {
        narrow(w, n->slot, r.lo, r.hi);
    } else if (f && !affine__is_atom(f, id)) {
        cut_form(w, f, r);
    } else if (w->depth > 4 || --w->fuel < 0) {
        return;
    } else if (n->op == IR_MIN_I || n->op == IR_MAX_I) {
        cut_extreme(w, n, r);
    } else if (n->op == IR_ABS_I && r.hi >= 0 && r.hi < INT64_MAX && !n->has_load) {
        interval_range x = eval(w, n->arg[0]);
        if (x.lo.i == INT64_MIN) return; /* abs wraps there */
        bounds both = {-r.hi, r.hi};
        if (r.lo > 0 && x.lo.i > -r.lo) both.lo = r.lo; /* only one side is left */
        if (r.lo > 0 && x.hi.i < r.lo) both.hi = -r.lo;
        w->depth++;
        cut_node(w, n->arg[0], both);
        w->depth--;
    }
}

/* The term at coefficient c has c * term in [lo, hi]: narrows the variable, or what lies below a division. */
static void cut_term(walk *w, const affine_term *t, int64_t lo, int64_t hi) {
    if (t->coef == INT64_MIN || t->coef == 0) return;
    bounds r = t->coef > 0 ? (bounds){ceil_of(lo, t->coef), floor_of(hi, t->coef)}
                           : (bounds){ceil_of(hi, t->coef), floor_of(lo, t->coef)};
    if (t->sole >= 0) narrow(w, 4 + t->sole, r.lo, r.hi);
    if (t->divisor) {
        bounds below = {INT64_MIN, INT64_MAX};
        if (__builtin_mul_overflow(r.lo, t->divisor, &below.lo)) return;
        if (__builtin_mul_overflow(r.hi, t->divisor, &below.hi)) return;
        if (__builtin_add_overflow(below.hi, t->divisor - 1, &below.hi)) return;
        if (w->t->affine.of[t->node]) cut_form(w, w->t->affine.of[t->node], below);
    } else {
        cut_node(w, t->node, r);
    }
}

/* Cells outside `want` for this form are excluded from here on. */
static void cut_form(walk *w, const affine_form *f, bounds want) {
    bounds all;
    if (w->depth > 4 || --w->fuel < 0 || !form_from_terms(w, f, &all)) return;
    if (want.lo < all.lo) want.lo = all.lo;
    if (want.hi > all.hi) want.hi = all.hi;
    if (want.lo > want.hi) {
        w->empty = 1;
        return;
    }
    if (want.lo == all.lo && want.hi == all.hi) return;
    w->depth++;
    bounds d;
    if (f->direction >= 0 && !__builtin_sub_overflow(want.lo, f->constant, &d.lo) &&
        !__builtin_sub_overflow(want.hi, f->constant, &d.hi)) {
        if (f->scale > 0)
            narrow(w, 4 + f->direction, ceil_of(d.lo, f->scale), floor_of(d.hi, f->scale));
        else
            narrow(w, 4 + f->direction, ceil_of(d.hi, f->scale), floor_of(d.lo, f->scale));
    }
    for (int i = 0; i < f->n && !w->empty; i++) {
        const affine_term *t = &f->term[i];
        bounds r = term_range(w, t), part = {0, 0};
        int64_t size = 0, lo, hi;
        if (t->coef == 0 || !affine__add(t, r.lo, r.hi, &part.lo, &part.hi, &size)) continue;
        /* c * term >= want.lo - (the most that the others give), and so on */
        if (__builtin_sub_overflow(all.hi, part.hi, &hi) ||
            __builtin_sub_overflow(want.lo, hi, &lo))
            lo = part.lo;
        int64_t others;
        if (__builtin_sub_overflow(all.lo, part.lo, &others) ||
            __builtin_sub_overflow(want.hi, others, &hi))
            hi = part.hi;
        cut_term(w, t, lo > part.lo ? lo : part.lo, hi < part.hi ? hi : part.hi);
    }
    w->depth--;
}

/* right - left of comparison id is not 0: cuts an end that is 0. */
static void cut_difference(walk *w, int id) {
    const affine_form *f = w->t->affine.of[id];
    bounds d, want = {INT64_MIN, INT64_MAX};
    if (!form_range(w, f, &d)) return;
    if (d.lo == 0) want.lo = 1;
    if (d.hi == 0) want.hi = -1;
    if (d.lo == 0 || d.hi == 0) cut_form(w, f, want);
}

/* Only without loads, which must not be looked at where they may not be reached. */
static int is_surely(walk *w, int id, int truth) {
    if (w->node[id].has_load) return 0;
    interval_range x = eval(w, id);
    return x.lo.i == x.hi.i && x.lo.i == truth;
}

/* Assumes node id (a condition) is `truth` from here on. */
static void assume(walk *w, int id, int truth) {
    const ir_node *n = &w->node[id];
    bounds want = {INT64_MIN, INT64_MAX}; /* of right - left */
    if (--w->fuel < 0) return; /* conditions may share parts: without an end this could double */
    switch (n->op) {
    case IR_NOT: assume(w, n->arg[0], !truth); return;
    case IR_AND:
    case IR_OR:
        if ((n->op == IR_AND) == truth) {
            assume(w, n->arg[0], truth);
            if (!w->empty) assume(w, n->arg[1], truth);
        } else { /* one side is truth: the one that can be */
            if (is_surely(w, n->arg[0], !truth))
                assume(w, n->arg[1], truth);
            else if (is_surely(w, n->arg[1], !truth))
                assume(w, n->arg[0], truth);
        }
        return;
    case IR_LT_I: *(truth ? &want.lo : &want.hi) = truth ? 1 : 0; break;
    case IR_LE_I: *(truth ? &want.lo : &want.hi) = truth ? 0 : -1; break;
    case IR_EQ_I:
    case IR_NE_I:
        if ((n->op == IR_EQ_I) != truth) {
            cut_difference(w, id);
            return;
        }
        want = (bounds){0, 0};
        break;
    default: return;
    }
    if (w->t->affine.of[id]) cut_form(w, w->t->affine.of[id], want);
}

typedef struct place {
    int n_trail;
    uint32_t stamp;
} place;

static place enter(const walk *w) { return (place){w->n_trail, w->stamp}; }

static void leave(walk *w, place p) {
    while (w->n_trail > p.n_trail) {
        const cut *c = &w->trail[--w->n_trail];
        *(c->what < 4 ? &w->var[c->what] : &w->direction[c->what - 4]) = c->old;
    }
    w->stamp = p.stamp;
    w->empty = 0;
}

/* ---- nodes ---- */

/* Node id where `guard` is `truth`; 0 when no cell is left for it. */
static int eval_behind(walk *w, int guard, int truth, int id, interval_range *out) {
    interval_range g = eval(w, guard);
    int open = g.lo.i != g.hi.i;
    place p = enter(w);
    w->guarded++; /* what a cut looks at need not be reached */
    assume(w, guard, truth);
    w->guarded--;
    int some = !w->empty;
    w->empty = 0;
    w->guarded += open;
    if (some) *out = eval(w, id);
    w->guarded -= open;
    leave(w, p);
    return some;
}

static interval_range eval_junction(walk *w, const ir_node *n) {
    interval_range x = eval(w, n->arg[0]), y = x;
    int truth = n->op == IR_AND; /* the left value that lets the right be evaluated */
    if (x.lo.i == x.hi.i && x.lo.i != truth) return x;
    if (!eval_behind(w, n->arg[0], truth, n->arg[1], &y)) return interval__ints(!truth, !truth);
    if (truth) return interval__ints(x.lo.i & y.lo.i, y.hi.i);
    return interval__ints(y.lo.i, x.hi.i | y.hi.i);
}

static interval_range eval_select(walk *w, const ir_node *n) {
    interval_range c = eval(w, n->arg[0]), x = c, y = c;
    int some_x = c.hi.i && eval_behind(w, n->arg[0], 1, n->arg[1], &x);
    int some_y = !c.lo.i && eval_behind(w, n->arg[0], 0, n->arg[2], &y);
    if (some_x && some_y) return interval__join((expr_type)n->type, x, y);
    if (some_x) return x;
    return some_y ? y : interval__unknown((expr_type)n->type);
}

/* Whether nothing wraps in the form, nor in the forms below its rests. */
static int holds(walk *w, const affine_form *f) {
    bounds plain;
    if (--w->fuel < 0 || !form_from_terms(w, f, &plain)) return 0;
    for (int i = 0; i < f->n; i++)
        if (f->term[i].rest_of && !holds(w, f->term[i].rest_of)) return 0;
    return 1;
}

static int are_apart(walk *w, const affine_form *pair) {
    int64_t lo[2], hi[2];
    for (int i = 0; i < 2; i++) {
        interval_range r = eval(w, w->node[pair->term[i].node].arg[0]);
        lo[i] = r.lo.i, hi[i] = r.hi.i;
    }
    return interval_tables__apart(w->t, pair, lo, hi, 1);
}

/* The ends move to values that the form's congruence allows: a rest by 2 of odd numbers is 1, not 0..1. */
static void tighten(walk *w, const affine_form *f, bounds *d) {
    bounds r;
    if (!holds(w, f) || __builtin_sub_overflow(f->remainder, d->lo, &r.lo) ||
        __builtin_sub_overflow(d->hi, f->remainder, &r.hi))
        return;
    r = (bounds){ops_mod(r.lo, f->step), ops_mod(r.hi, f->step)};
    if (d->lo > INT64_MAX - r.lo || d->hi < INT64_MIN + r.hi) return;
    r = (bounds){d->lo + r.lo, d->hi - r.hi};
    if (r.lo <= r.hi) *d = r;
}

/* right - left decides; the plain ranges of the sides where forms cannot be trusted. */
static interval_range eval_comparison(walk *w, int id, const ir_node *n) {
    bounds d;
    if (!node_form_range(w, id, &d)) {
        interval_range x = eval(w, n->arg[0]), y = eval(w, n->arg[1]);
        return interval__rules[n->op]((ir_op)n->op, x, y);
    }
    const affine_form *f = w->t->affine.of[id];
    if (f && f->rests && f->step > 1) tighten(w, f, &d);
    if (n->op == IR_LT_I) return interval__ints(d.lo > 0, d.hi > 0);
    if (n->op == IR_LE_I) return interval__ints(d.lo >= 0, d.hi >= 0);
    int can = d.lo <= 0 && d.hi >= 0;
    if (can && f && affine__never_zero(f)) can = !holds(w, f);
    if (can && f && d.lo < d.hi && interval_tables__has_sets(w->t, f)) can = !are_apart(w, f);
    int equal = can && d.lo == 0 && d.hi == 0;
    return n->op == IR_EQ_I ? interval__ints(equal, can) : interval__ints(!can, !equal);
}

/* Adds a visit of a load to what is known of it. */
static void note_load(walk *w, const ir_node *n, const int64_t *lo, const int64_t *hi, int inside) {
    interval_trace *x = &w->trace[n - w->node];
    const int64_t *dim = w->t->values[n->slot].dim;
    for (int i = 0; i < n->n_args; i++) {
        if (!x->reached || lo[i] < x->lo[i]) x->lo[i] = lo[i];
        if (!x->reached || hi[i] > x->hi[i]) x->hi[i] = hi[i];
        x->outside |= !w->guarded && (hi[i] < 0 || lo[i] >= dim[i]);
    }
    x->reached = 1;
    x->may_leave |= !inside;
}

static interval_range eval_load(walk *w, const ir_node *n) {
    int64_t lo[EXPR_MAX_NDIM], hi[EXPR_MAX_NDIM];
    for (int i = 0; i < n->n_args; i++) {
        interval_range r = eval(w, n->arg[i]);
        lo[i] = r.lo.i, hi[i] = r.hi.i;
    }
    int inside;
    interval_range r = interval_tables__load(w->t, n, lo, hi, &inside);
    if (!inside) w->may_leave = 1;
    if (w->trace) note_load(w, n, lo, hi, inside);
    return r;
}

static interval_range eval_const(const ir_node *n) {
    interval_range r = {.lo = n->k, .hi = n->k};
    return n->type == EXPR_FLOAT && n->k.f != n->k.f ? interval__unknown(EXPR_FLOAT) : r;
}

static interval_range eval_node(walk *w, int id, const ir_node *n) {
    bounds b;
    const affine_form *f = w->t->affine.of[id];
    switch (n->op) {
    case IR_CONST: return eval_const(n);
    case IR_LOAD: return eval_load(w, n);
    case IR_AND:
    case IR_OR: return eval_junction(w, n);
    case IR_SELECT: return eval_select(w, n);
    case IR_LT_I:
    case IR_LE_I:
    case IR_EQ_I:
    case IR_NE_I: return eval_comparison(w, id, n);
    default: break;
    }
    int formed = n->type == EXPR_INT && f && !affine__is_atom(f, id);
    if (formed && node_form_range(w, id, &b)) return interval__ints(b.lo, b.hi);
    interval_range x = eval(w, n->arg[0]), y = n->n_args > 1 ? eval(w, n->arg[1]) : x;
    return interval__rules[n->op]((ir_op)n->op, x, y);
}

static interval_range eval(walk *w, int id) {
    const ir_node *n = &w->node[id];
    if (n->op == IR_VAR && n->slot < 4)
        return interval__ints(w->var[n->slot].lo, w->var[n->slot].hi);
    if (w->seen[id] == w->stamp) return w->value[id];
    if (--w->fuel < 0) {
        w->may_leave |= n->has_load;
        return interval__unknown((expr_type)n->type);
    }
    uint32_t stamp = w->stamp;
    interval_range r = eval_node(w, id, n);
    const affine_form *f = w->t->affine.of[id];
    if (n->type == EXPR_INT && f && affine__is_atom(f, id)) { /* a cut on this very node */
        bounds b = {r.lo.i, r.hi.i};
        use_direction(w, f, &b);
        r = interval__ints(b.lo, b.hi);
    }
    w->seen[id] = stamp;
    w->value[id] = r;
    return r;
}

/* Fills a walk for a box; 0 when its positions wrap. */
static int start(walk *w, const interval_tables *t, const interval_box *box,
                 interval_trace *trace) {
    w->t = t;
    w->node = t->prog.node;
    w->n_trail = w->empty = w->may_leave = w->depth = w->guarded = 0;
    w->trace = trace;
    w->fuel = FUEL;
    w->stamp = w->last_stamp = 1;
    w->var[IR_B] = (bounds){box->b0, box->b1};
    w->var[IR_H] = (bounds){box->h0, box->h1};
    w->var[IR_Q] = (bounds){ops_add(box->q0, t->q0), ops_add(box->q1, t->q0)};
    w->var[IR_KV] = (bounds){ops_add(box->kv0, t->kv0), ops_add(box->kv1, t->kv0)};
    memset(w->seen, 0, (size_t)t->prog.n * sizeof *w->seen);
    for (int i = 0; i < t->affine.n_directions; i++)
        w->direction[i] = (bounds){INT64_MIN, INT64_MAX};
    return w->var[IR_Q].lo <= w->var[IR_Q].hi && w->var[IR_KV].lo <= w->var[IR_KV].hi;
}

interval_verdict interval_classify(const expr *e, const expr_env *env, const interval_tables *t,
                                   const interval_box *box, int *may_leave) {
    walk w;
    (void)e;
    (void)env; /* the tables hold what they were made from */
    int fine = start(&w, t, box, NULL);
    interval_range r = fine ? eval(&w, t->prog.n - 1) : interval__unknown(EXPR_BOOL);
    if (may_leave) *may_leave = !fine || w.may_leave;
    return r.lo.i == 1 ? INTERVAL_ALL : r.hi.i == 0 ? INTERVAL_NONE : INTERVAL_MIXED;
}

int interval_tables__trace(const interval_tables *t, const interval_box *box,
                           interval_trace *trace) {
    walk w;
    memset(trace, 0, (size_t)t->prog.n * sizeof *trace);
    if (!start(&w, t, box, trace)) return 0;
    eval(&w, t->prog.n - 1);
    return w.fuel >= 0;
}
