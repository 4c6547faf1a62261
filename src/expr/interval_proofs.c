/* Proofs over a whole domain: one walk for the loads, one pass without guards for widths and dependence.
 *
 * Widths are judged without guards, because kernels compute values before they know whether a guard lets them count.
 * A load that may leave is looked for in halves of the domain, a bounded number of them, until a box is found in
 * which it is reached everywhere and outside everywhere. */
#include "expr/interval_proofs.h"
#include "expr/interval_tables.h"
#include "expr/ops.h"
#include <stdio.h>
#include <string.h>

enum { MAX_BOXES = 400 };

typedef struct prover {
    const interval_tables *t;
    interval_trace *trace; /* [nodes] */
    interval_range *range; /* [nodes] without guards */
    uint8_t *stays;        /* [nodes] the value is the same when q and kv grow by the same */
    uint8_t *uses;         /* [nodes] bits of b and h that can change the value */
    interval_load *load;
    int *node;         /* of each load */
    interval_box *box; /* [MAX_BOXES] to look at */
    int n;
} prover;

/* ---- widths and dependence ---- */

static interval_range range_of(const prover *p, const ir_node *n, const interval_box *d) {
    const interval_range *r = p->range;
    const int64_t lo[4] = {d->b0, d->h0, ops_add(d->q0, p->t->q0), ops_add(d->kv0, p->t->kv0)};
    const int64_t hi[4] = {d->b1, d->h1, ops_add(d->q1, p->t->q0), ops_add(d->kv1, p->t->kv0)};
    int64_t from[EXPR_MAX_NDIM], to[EXPR_MAX_NDIM];
    int inside;
    switch (n->op) {
    case IR_CONST:
        if (n->type == EXPR_FLOAT && n->k.f != n->k.f) return interval__unknown(EXPR_FLOAT);
        return (interval_range){.lo = n->k, .hi = n->k};
    case IR_VAR:
        if (lo[n->slot] > hi[n->slot]) return interval__unknown(EXPR_INT); /* positions wrap */
        return interval__ints(lo[n->slot], hi[n->slot]);
    case IR_LOAD:
        for (int i = 0; i < n->n_args; i++) from[i] = r[n->arg[i]].lo.i, to[i] = r[n->arg[i]].hi.i;
        return interval_tables__load(p->t, n, from, to, &inside);
    case IR_AND:
        return interval__ints(r[n->arg[0]].lo.i & r[n->arg[1]].lo.i,
                              r[n->arg[0]].hi.i & r[n->arg[1]].hi.i);
    case IR_OR:
        return interval__ints(r[n->arg[0]].lo.i | r[n->arg[1]].lo.i,
                              r[n->arg[0]].hi.i | r[n->arg[1]].hi.i);
    case IR_SELECT:
        if (r[n->arg[0]].lo.i) return r[n->arg[1]];
        if (!r[n->arg[0]].hi.i) return r[n->arg[2]];
        return interval__join((expr_type)n->type, r[n->arg[1]], r[n->arg[2]]);
    default:
        return interval__rules[n->op]((ir_op)n->op, r[n->arg[0]],
                                      r[n->n_args > 1 ? n->arg[1] : n->arg[0]]);
    }
}

static int is_one_value(const ir_node *n, const interval_range *r) {
    return n->type != EXPR_FLOAT && r->lo.i == r->hi.i;
}

/* Which of b and h can change node n's value; values that do not change at all depend on nothing. */
static uint8_t uses_of(const prover *p, const ir_node *n, const interval_range *r) {
    uint8_t uses = 0;
    if (is_one_value(n, r)) return 0;
    if (n->op == IR_VAR) return (uint8_t)(1u << n->slot & 3u);
    if (n->op == IR_SELECT && p->range[n->arg[0]].lo.i == p->range[n->arg[0]].hi.i)
        return p->uses[n->arg[p->range[n->arg[0]].lo.i ? 1 : 2]];
    for (int i = 0; i < n->n_args; i++) uses |= p->uses[n->arg[i]];
    return uses;
}

/* The form's q and kv cancel, its other terms stay, and nothing in it wraps. */
static int form_stays(const prover *p, const affine_form *f) {
    int64_t balance = 0, lo = f->constant, hi = f->constant, size = f->weight;
    for (int i = 0; i < f->n; i++) {
        const affine_term *t = &f->term[i];
        const ir_node *n = &p->t->prog.node[t->node];
        interval_range r = p->range[t->node];
        int position = n->op == IR_VAR && (n->slot == IR_Q || n->slot == IR_KV) && !t->divisor;
        if (position ? __builtin_add_overflow(balance, t->coef, &balance) : !p->stays[t->node])
            return 0;
        if (t->divisor)
            r = interval__ints(ops_div(r.lo.i, t->divisor), ops_div(r.hi.i, t->divisor));
        if (!affine__add(t, r.lo.i, r.hi.i, &lo, &hi, &size)) return 0;
    }
    return balance == 0;
}

static int stays(const prover *p, int id, const ir_node *n) {
    const affine_form *f = p->t->affine.of[id];
    int all = n->n_args > 0;
    if (!(n->uses >> IR_Q & 1) && !(n->uses >> IR_KV & 1)) return 1;
    if (is_one_value(n, &p->range[id])) return 1;
    for (int i = 0; i < n->n_args; i++) all &= p->stays[n->arg[i]];
    return all || (f && !affine__is_atom(f, id) && form_stays(p, f));
}

static int within_32(int64_t x) { return x >= INT32_MIN && x <= INT32_MAX; }

static void prove_values(prover *p, const interval_box *d, interval_proofs *out) {
    const ir_prog *prog = &p->t->prog;
    out->fits_32 = 1;
    for (int i = 0; i < prog->n; i++) {
        const ir_node *n = &prog->node[i];
        interval_range r = p->range[i] = range_of(p, n, d);
        p->uses[i] = uses_of(p, n, &r);
        p->stays[i] = (uint8_t)stays(p, i, n);
        if (n->type == EXPR_INT) out->fits_32 &= within_32(r.lo.i) && within_32(r.hi.i);
        if (n->op == IR_LOAD) out->fits_32 &= within_32(p->t->array[n->slot].n);
    }
    out->by_batch = p->uses[prog->n - 1] & 1;
    out->diagonal = p->stays[prog->n - 1];
    out->by_head = p->uses[prog->n - 1] >> 1 & 1;
}

/* ---- loads ---- */

/* The longest side of a box in halves; 0 when it is one cell. */
static int halve(const interval_box *x, interval_box *first, interval_box *second) {
    const int64_t size[4] = {x->b1 - x->b0, x->h1 - x->h0, x->q1 - x->q0, x->kv1 - x->kv0};
    int side = 3;
    for (int i = 0; i < 4; i++)
        if (size[i] > size[side]) side = i;
    if (size[side] == 0) return 0;
    *first = *second = *x;
    int64_t *end[4] = {&first->b1, &first->h1, &first->q1, &first->kv1};
    int64_t *begin[4] = {&second->b0, &second->h0, &second->q0, &second->kv0};
    int64_t middle = *begin[side] + size[side] / 2;
    *end[side] = middle;
    *begin[side] = middle + 1;
    return 1;
}

/* Takes the trace of a box for load l when it is proven outside there. */
static int take_outside(prover *p, int l, const interval_box *x) {
    interval_load *o = &p->load[l];
    const interval_trace *trace = &p->trace[p->node[l]];
    if (!trace->outside) return 0;
    o->place = INTERVAL_OUTSIDE;
    o->box = *x;
    for (int i = 0; i < o->ndim; i++) {
        o->lo[i] = trace->lo[i], o->hi[i] = trace->hi[i];
        if (o->hi[i] < 0 || o->lo[i] >= o->dim[i]) o->outside = i;
    }
    return 1;
}

/* Looks for a box in which load l is outside everywhere, larger ones first; 1 when found. */
static int find_outside(prover *p, int l, const interval_box *domain) {
    int n = 1;
    p->box[0] = *domain;
    for (int i = 0; i < n; i++) {
        const interval_box x = p->box[i];
        if (!interval_tables__trace(p->t, &x, p->trace)) continue;
        if (take_outside(p, l, &x)) return 1;
        if (p->trace[p->node[l]].may_leave && n + 2 <= MAX_BOXES)
            n += 2 * halve(&x, &p->box[n], &p->box[n + 1]);
    }
    return 0;
}

static void prove_loads(prover *p, const interval_box *d, interval_proofs *out) {
    int known = interval_tables__trace(p->t, d, p->trace);
    for (int l = 0; l < p->n; l++) {
        interval_load *o = &p->load[l];
        const interval_trace *x = &p->trace[p->node[l]];
        o->place = known && !x->may_leave ? INTERVAL_INSIDE : INTERVAL_GUARDED;
        for (int i = 0; known && x->reached && i < o->ndim; i++)
            o->lo[i] = x->lo[i], o->hi[i] = x->hi[i];
        out->inside += o->place == INTERVAL_INSIDE;
    }
    for (int l = 0; l < p->n; l++) {
        if (p->load[l].place == INTERVAL_GUARDED) out->left += find_outside(p, l, d);
    }
}

/* What a program computes and the loads in it that leave are told from the same cells, so the second must not change where the first
 * does not: a load that is not proven inside counts with its indices, and with the conditions that may guard it. */
static void count_node(const prover *p, int id, interval_proofs *out) {
    out->by_batch |= p->uses[id] & 1;
    out->by_head |= p->uses[id] >> 1 & 1;
    out->diagonal &= p->stays[id];
}

static void prove_leaving(const prover *p, interval_proofs *out) {
    const ir_prog *prog = &p->t->prog;
    if (out->inside == p->n) return;
    for (int l = 0; l < p->n; l++) {
        const ir_node *n = &prog->node[p->node[l]];
        if (p->load[l].place == INTERVAL_INSIDE) continue;
        for (int i = 0; i < n->n_args; i++) count_node(p, n->arg[i], out);
    }
    for (int i = 0; i < prog->n; i++) {
        const ir_node *n = &prog->node[i];
        if (n->op == IR_AND || n->op == IR_OR || n->op == IR_SELECT) count_node(p, n->arg[0], out);
    }
}

err interval_prove(interval_proofs *out, const interval_tables *t, const interval_box *domain,
                   arena *a) {
    prover p = {.t = t};
    const ir_prog *prog = &t->prog;
    size_t n = (size_t)prog->n, loads = 0;
    *out = (interval_proofs){0};
    for (int i = 0; i < prog->n; i++) loads += prog->node[i].op == IR_LOAD;
    TRY(arena_alloc(a, loads, sizeof *p.load, &p.load));
    TRY(arena_alloc_raw(a, loads, sizeof *p.node, &p.node));
    TRY(arena_alloc_raw(a, loads ? MAX_BOXES : 0, sizeof *p.box, &p.box));
    TRY(arena_alloc_raw(a, n, sizeof *p.trace, &p.trace));
    TRY(arena_alloc_raw(a, n, sizeof *p.range, &p.range));
    TRY(arena_alloc_raw(a, n, sizeof *p.uses, &p.uses));
    TRY(arena_alloc_raw(a, n, sizeof *p.stays, &p.stays));
    for (int i = 0; i < prog->n; i++) {
        const ir_node *x = &prog->node[i];
        if (x->op != IR_LOAD) continue;
        interval_load *l = &p.load[p.n];
        l->name = t->names[x->slot].name;
        l->ndim = x->n_args;
        memcpy(l->dim, t->values[x->slot].dim, sizeof l->dim);
        p.node[p.n++] = i;
    }
    prove_values(&p, domain, out);
    prove_loads(&p, domain, out);
    prove_leaving(&p, out);
    out->load = p.load;
    out->n_loads = p.n;
    return ERR_OK;
}

void interval_proofs_say(const interval_proofs *p, char out[INTERVAL_SAYS]) {
    *out = 0;
    for (int i = 0; i < p->n_loads && !*out; i++) {
        const interval_load *l = &p->load[i];
        const interval_box *x = &l->box;
        if (l->place != INTERVAL_OUTSIDE) continue;
        snprintf(
            out, INTERVAL_SAYS,
            "index %d of '%s' is %lld..%lld and its extent there is %lld, wherever b is %lld..%lld, h %lld..%lld, "
            "q %lld..%lld and kv %lld..%lld",
            l->outside + 1, l->name, (long long)l->lo[l->outside], (long long)l->hi[l->outside],
            (long long)l->dim[l->outside], (long long)x->b0, (long long)x->b1, (long long)x->h0,
            (long long)x->h1, (long long)x->q0, (long long)x->q1, (long long)x->kv0,
            (long long)x->kv1);
    }
}
