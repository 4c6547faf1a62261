/* Many boxes at a time: the program becomes steps over registers of ranges, run for all boxes together.
 *
 * Steps are made once for a domain that holds every box to come, and each is run over the domain while it is made:
 * an affine form becomes a sum only when its ends cannot wrap over the whole domain, so the loops need no checks.
 * Guards follow three-valued logic without narrowing anything. Loads that leave their array are marked by box,
 * and a second pass, needed only then, follows the guards from the root to see in which boxes they are reached. */
#include "expr/interval.h"
#include "expr/expr_load.h"
#include "expr/interval_tables.h"
#include "expr/ops.h"
#include <string.h>

enum { MAX_PROGRAM = 256 };
_Static_assert((int)INTERVAL_MANY == (int)INTERVAL_LANES && INTERVAL_LANES == 64,
               "boxes are bits of a uint64_t");

struct interval_many {
    const interval_tables *t;
    interval_step *step;
    interval_term *term;
    interval_register *reg;
    int n_steps, n_registers, n_terms;
    int *at;         /* [nodes] register of a node, -1: none */
    uint64_t *left;  /* [nodes] loads: boxes in which it may leave */
    uint64_t *reach; /* [nodes] */
    int any_left;
    int64_t b, h; /* of the last call; -1 before it */
    int var[4];   /* registers of b, h, q, kv; -1: not used */
};

/* ---- running ---- */

static interval_range range_at(const interval_register *r, int lane) {
    return (interval_range){r->lo[lane], r->hi[lane], r->nan[lane]};
}

static void put_range(interval_register *r, int lane, interval_range x) {
    r->lo[lane] = x.lo;
    r->hi[lane] = x.hi;
    r->nan[lane] = x.nan;
}

static int rounded(int n) { return (n + INTERVAL_STEP - 1) / INTERVAL_STEP * INTERVAL_STEP; }

/* One index into an array that never falls: the ends of the slice. 0: something leaves, or another kind. */
static int load_sorted(const interval_many *m, const interval_step *s, int n) {
    const ir_node *node = s->node;
    const expr_value *v = &m->t->values[node->slot];
    const interval_register *x = &m->reg[m->at[node->arg[0]]];
    interval_register *o = &m->reg[s->out];
    const int wide = rounded(n);
    if (node->n_args != 1 || node->type != EXPR_INT || !m->t->array[node->slot].sorted) return 0;
    if (v->type == DT_I32) return m->t->lanes->read_i32(v->data, v->dim[0], x, o, wide);
    return v->type == DT_I64 && m->t->lanes->read_i64(v->data, v->dim[0], x, o, wide);
}

static void load_lanes(interval_many *m, const interval_step *s, int n) {
    const ir_node *node = s->node;
    uint64_t left = 0;
    int64_t lo[EXPR_MAX_NDIM], hi[EXPR_MAX_NDIM];
    if (!load_sorted(m, s, n)) {
        for (int i = 0; i < n; i++) {
            int inside;
            for (int j = 0; j < node->n_args; j++) {
                const interval_register *x = &m->reg[m->at[node->arg[j]]];
                lo[j] = x->lo[i].i, hi[j] = x->hi[i].i;
            }
            put_range(&m->reg[s->out], i, interval_tables__load(m->t, node, lo, hi, &inside));
            left |= (uint64_t)!inside << i;
        }
    }
    m->left[node - m->t->prog.node] = left;
    m->any_left |= left != 0;
}

static void join_lanes(const interval_many *m, const interval_step *s, int n) {
    for (int i = 0; i < n; i++) {
        interval_range c = range_at(&m->reg[s->x], i), x = range_at(&m->reg[s->y], i),
                       y = range_at(&m->reg[s->z], i);
        put_range(&m->reg[s->out], i, c.lo.i ? x : c.hi.i ? interval__join(EXPR_FLOAT, x, y) : y);
    }
}

/* Elements that share no value are never equal. */
static void apart_lanes(const interval_many *m, const interval_step *s, int n) {
    interval_register *o = &m->reg[s->out];
    const interval_register *x = &m->reg[s->x], *y = &m->reg[s->y];
    for (int i = 0; i < n; i++) {
        const int64_t lo[2] = {x->lo[i].i, y->lo[i].i}, hi[2] = {x->hi[i].i, y->hi[i].i};
        if (o->lo[i].i == o->hi[i].i || !interval_tables__apart(m->t, s->pair, lo, hi, 0)) continue;
        o->lo[i].i = o->hi[i].i = s->op == IR_NE_I;
    }
}

static void run_step(interval_many *m, const interval_step *s, int n) {
    if (s->what == INTERVAL_LOAD) {
        load_lanes(m, s, n);
    } else if (s->what == INTERVAL_APART) {
        apart_lanes(m, s, n);
    } else if (s->what == INTERVAL_JOIN) {
        join_lanes(m, s, n);
    } else if (s->what == INTERVAL_RULE) {
        for (int i = 0; i < n; i++)
            put_range(&m->reg[s->out], i,
                      interval__rules[s->op]((ir_op)s->op, range_at(&m->reg[s->x], i),
                                             range_at(&m->reg[s->y], i)));
    } else {
        m->t->lanes->step(s, m->reg, rounded(n));
    }
}

/* ---- making ---- */

static void fill(interval_register *r, interval_range x) {
    for (int i = 0; i < INTERVAL_LANES; i++) put_range(r, i, x);
}

/* Appends a step with a register of its own, run over the domain. */
static int emit(interval_many *m, interval_step s) {
    s.out = m->n_registers++;
    m->step[m->n_steps++] = s;
    memset(m->reg[s.out].nan, 0, sizeof m->reg[s.out].nan); /* few steps write it */
    run_step(m, &s, 1);
    fill(&m->reg[s.out], range_at(&m->reg[s.out], 0));
    return s.out;
}

static int make(interval_many *m, int id);

static int make_term(interval_many *m, const affine_term *t) {
    int x = make(m, t->node);
    if (!t->divisor) return x;
    for (int i = 0; i < m->n_steps; i++) {
        const interval_step *s = &m->step[i];
        if (s->what == INTERVAL_FLOOR && s->x == x && s->divisor == t->divisor) return s->out;
    }
    interval_range r = range_at(&m->reg[x], 0);
    const int64_t limit = INT64_C(1) << 52;
    return emit(m,
                (interval_step){.what = INTERVAL_FLOOR,
                                .x = x,
                                .y = x,
                                .divisor = t->divisor,
                                .small = r.lo.i > -limit && r.hi.i < limit && t->divisor < limit});
}

/* Whether the form wraps nowhere in the domain. Makes the registers of all its terms. */
static int fits(interval_many *m, const affine_form *f) {
    int64_t lo = f->constant, hi = f->constant, size = f->weight;
    int ok = 1;
    for (int i = 0; i < f->n; i++) {
        interval_range r = range_at(&m->reg[make_term(m, &f->term[i])], 0);
        ok = ok && affine__add(&f->term[i], r.lo.i, r.hi.i, &lo, &hi, &size);
    }
    return ok;
}

/* The same for it and all forms below its rests. */
static int holds(interval_many *m, const affine_form *f) {
    int ok = fits(m, f);
    for (int i = 0; ok && i < f->n; i++) ok = !f->term[i].rest_of || holds(m, f->term[i].rest_of);
    return ok;
}

/* The form's register, or -1 when it may wrap somewhere in the domain. */
static int make_sum(interval_many *m, const affine_form *f) {
    int n = 0;
    if (!f || !fits(m, f)) return -1;
    interval_term *term = m->term + m->n_terms;
    m->n_terms += f->n;
    for (int i = 0; i < f->n; i++)
        if (f->term[i].coef)
            term[n++] = (interval_term){f->term[i].coef, make_term(m, &f->term[i])};
    if (n == 1 && term[0].coef == 1 && f->constant == 0) return term[0].at;
    return emit(
        m, (interval_step){.what = INTERVAL_SUM, .constant = f->constant, .n = n, .term = term});
}

/* Both ways of writing node id's form; -1 when neither can be trusted. */
static int make_form(interval_many *m, int id) {
    int x = make_sum(m, m->t->affine.of[id]), y = make_sum(m, m->t->affine.again[id]);
    if (x < 0 || y < 0) return x < 0 ? y : x;
    return emit(m, (interval_step){.what = INTERVAL_MEET, .x = x, .y = y});
}

/* A comparison of integers: the sign of right - left decides. -1: by the plain rule. */
static int make_comparison(interval_many *m, int id, const ir_node *n) {
    const affine_form *f = m->t->affine.of[id];
    int x = make_form(m, id);
    if (x < 0) return -1;
    interval_step s = {.what = INTERVAL_SIGN, .op = n->op, .x = x};
    s.never = f && affine__never_zero(f) && holds(m, f);
    int at = emit(m, s);
    if (!f || n->op == IR_LT_I || n->op == IR_LE_I || !interval_tables__has_sets(m->t, f))
        return at;
    const ir_node *node = m->t->prog.node;
    m->step[m->n_steps++] = (interval_step){.what = INTERVAL_APART,
                                            .op = n->op,
                                            .out = at,
                                            .x = make(m, node[f->term[0].node].arg[0]),
                                            .y = make(m, node[f->term[1].node].arg[0]),
                                            .pair = f};
    return at;
}

/* Operations with a loop of their own; -1: none. */
static int make_known(interval_many *m, int id, const ir_node *n) {
    const affine_form *f = m->t->affine.of[id];
    interval_step s = {.op = n->op};
    int r = -1;
    switch (n->op) {
    case IR_LT_I:
    case IR_LE_I:
    case IR_EQ_I:
    case IR_NE_I: return make_comparison(m, id, n);
    case IR_AND:
    case IR_OR:
    case IR_NOT: s.what = INTERVAL_LOGIC; break;
    case IR_SELECT: s.what = n->type == EXPR_FLOAT ? INTERVAL_JOIN : INTERVAL_SELECT; break;
    case IR_MIN_I:
    case IR_MAX_I:
    case IR_ABS_I: s.what = INTERVAL_SIZE; break;
    case IR_LOAD: s.what = INTERVAL_LOAD, s.node = n; break;
    default:
        if (n->type == EXPR_INT && f && !affine__is_atom(f, id)) r = make_form(m, id);
        return r;
    }
    int arg[EXPR_MAX_NDIM] = {0};
    for (int i = 0; i < n->n_args; i++) arg[i] = make(m, n->arg[i]);
    s.x = arg[0], s.y = n->n_args > 1 ? arg[1] : arg[0], s.z = arg[2];
    if (n->op == IR_ABS_I && m->reg[s.x].lo[0].i == INT64_MIN) return -1;
    return emit(m, s);
}

/* The register of node id, made with everything below it when needed. */
static int make(interval_many *m, int id) {
    const ir_node *n = &m->t->prog.node[id];
    if (m->at[id] >= 0) return m->at[id];
    int at;
    if (n->op == IR_CONST) {
        interval_range k = {.lo = n->k, .hi = n->k};
        at = m->n_registers++;
        fill(&m->reg[at],
             n->type == EXPR_FLOAT && n->k.f != n->k.f ? interval__unknown(EXPR_FLOAT) : k);
    } else {
        at = make_known(m, id, n);
        if (at < 0) {
            int x = make(m, n->arg[0]), y = n->n_args > 1 ? make(m, n->arg[1]) : x;
            at = emit(m, (interval_step){.what = INTERVAL_RULE, .op = n->op, .x = x, .y = y});
        }
    }
    return m->at[id] = at;
}

/* Room for the most that the program may need; registers on the heap, as the steps will use fewer. */
static err allocate(interval_many *m, interval_register **heap, arena *a) {
    const ir_prog *p = &m->t->prog;
    const affine_table *f = &m->t->affine;
    size_t nodes = (size_t)p->n, terms = 0, most = 4; /* the index variables */
    for (int i = 0; i < p->n; i++) {
        most += 1 + (f->of[i] && !affine__is_atom(f->of[i], i)) + 2 * (f->again[i] != NULL);
        most += f->of[i] && f->of[i]->pair; /* APART, which has no register of its own */
        for (int second = 0; second < 2; second++) {
            const affine_form *x = second ? f->again[i] : f->of[i];
            for (int j = 0; x && j < x->n; j++) terms++, most += x->term[j].divisor != 0;
        }
    }
    TRY(arena_alloc_raw(a, most, sizeof *m->step, &m->step));
    TRY(arena_alloc_raw(a, terms, sizeof *m->term, &m->term));
    TRY(arena_alloc_raw(a, nodes, sizeof *m->at, &m->at));
    TRY(arena_alloc(a, nodes, sizeof *m->left, &m->left));
    TRY(arena_alloc_raw(a, nodes, sizeof *m->reach, &m->reach));
    return mem_new(most, sizeof **heap, heap);
}

static void make_all(interval_many *m, const int64_t *lo, const int64_t *hi) {
    const ir_prog *p = &m->t->prog;
    for (int i = 0; i < 4; i++) {
        m->var[i] = m->n_registers++;
        fill(&m->reg[m->var[i]], interval__ints(lo[i], hi[i]));
    }
    for (int i = 0; i < p->n; i++)
        m->at[i] = p->node[i].op == IR_VAR ? m->var[p->node[i].slot] : -1;
    make(m, p->n - 1);
}

err interval_many_create(interval_many **out, const interval_tables *t, const interval_box *d,
                         arena *a) {
    const int64_t lo[4] = {d->b0, d->h0, ops_add(d->q0, t->q0), ops_add(d->kv0, t->kv0)};
    const int64_t hi[4] = {d->b1, d->h1, ops_add(d->q1, t->q0), ops_add(d->kv1, t->kv0)};
    interval_register *heap;
    interval_many *m;
    *out = NULL;
    if (t->prog.n > MAX_PROGRAM || lo[IR_Q] > hi[IR_Q] || lo[IR_KV] > hi[IR_KV]) return ERR_OK;
    TRY(arena_alloc(a, 1, sizeof *m, &m));
    m->t = t;
    m->b = m->h = -1;
    TRY(allocate(m, &heap, a));
    m->reg = heap;
    make_all(m, lo, hi);
    err e = arena_alloc_raw(a, (size_t)m->n_registers, sizeof *m->reg, &m->reg);
    if (!e) memcpy(m->reg, heap, (size_t)m->n_registers * sizeof *m->reg);
    mem_free(heap);
    TRY(e);
    *out = m;
    return ERR_OK;
}

/* ---- classifying ---- */

/* Boxes in which a condition may be `truth`. */
static uint64_t may_be(const interval_many *m, int node, int truth, int n) {
    const interval_register *c = &m->reg[m->at[node]];
    uint64_t bits = 0;
    for (int i = 0; i < n; i++) bits |= (uint64_t)(truth ? c->hi[i].i != 0 : c->lo[i].i == 0) << i;
    return bits;
}

/* Boxes in which a load that may leave is reached from the root. */
static uint64_t reached(interval_many *m, int n) {
    const ir_node *node = m->t->prog.node;
    int root = m->t->prog.n - 1;
    uint64_t hit = 0;
    memset(m->reach, 0, (size_t)(root + 1) * sizeof *m->reach);
    m->reach[root] = UINT64_MAX >> (64 - n);
    for (int id = root; id >= 0; id--) {
        const ir_node *x = &node[id];
        if (!x->has_load || !m->reach[id]) continue;
        if (x->op == IR_LOAD) hit |= m->reach[id] & m->left[id];
        for (int i = 0; i < x->n_args; i++) {
            uint64_t to = m->reach[id];
            if (!node[x->arg[i]].has_load) continue;
            if (i && x->op == IR_AND) to &= may_be(m, x->arg[0], 1, n);
            if (i && x->op == IR_OR) to &= may_be(m, x->arg[0], 0, n);
            if (i && x->op == IR_SELECT) to &= may_be(m, x->arg[0], i == 1, n);
            m->reach[x->arg[i]] |= to;
        }
    }
    return hit;
}

void interval_many_classify(interval_many *m, int64_t b, int64_t h, int n, interval_spans *s,
                            uint8_t *verdict) {
    const int wide = rounded(n);
    const interval_lanes *f = m->t->lanes;
    for (int i = n; i < wide; i++) { /* inside the domain too */
        s->q0[i] = s->q0[n - 1], s->q1[i] = s->q1[n - 1];
        s->kv0[i] = s->kv0[n - 1], s->kv1[i] = s->kv1[n - 1];
    }
    if (m->b != b || m->h != h) {
        fill(&m->reg[m->var[IR_B]], interval__ints(b, b));
        fill(&m->reg[m->var[IR_H]], interval__ints(h, h));
        m->b = b, m->h = h;
    }
    f->place(&m->reg[m->var[IR_Q]], s->q0, s->q1, m->t->q0, wide);
    f->place(&m->reg[m->var[IR_KV]], s->kv0, s->kv1, m->t->kv0, wide);
    m->any_left = 0;
    for (int i = 0; i < m->n_steps; i++) run_step(m, &m->step[i], n);
    f->judge(&m->reg[m->at[m->t->prog.n - 1]], verdict, wide);
    uint64_t unsure = m->any_left ? reached(m, n) : 0;
    for (; unsure; unsure &= unsure - 1) verdict[__builtin_ctzll(unsure)] = INTERVAL_LEAVES;
}
