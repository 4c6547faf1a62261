/* Gradients of captured floats: who sums what, in which order.
 *
 * Row tasks are dealt to a number of slots that follows from shapes alone. A slot runs its tasks in order and adds to
 * double sums of its own; at the end the sums are added slot by slot. A large array whose index names b, h or q plainly
 * (bias[h, q, kv]) has no such copies: tasks that could meet in an element are dealt to one slot, which adds to the
 * result itself. So any number of threads gives the same bits, and memory stays within a stated bound. */
#include "flex/flex_private.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SLOTS = 64, CHUNK = 4096 };
static const int64_t budget = INT64_C(64) << 20; /* bytes of all slots; one slot may take more */
static const int64_t large = INT64_C(4) << 20;   /* bytes of one slot's copy of an array */

/* Chooses arrays that are added to directly; returns what their slots have to agree on, all bits when there are none. */
static unsigned choose_direct(flex_plan *p) {
    flex__sums *s = &p->sums;
    const unsigned all = 7; /* b, h, q: what row tasks divide */
    unsigned owners = all;
    for (int i = 0; i < s->n_wanted; i++) {
        int c = s->wanted[i];
        unsigned own = owners & expr_grad_owners(p->grad, c);
        s->direct[c] = s->elements[c] * 8 > large && own;
        if (s->direct[c]) owners = own;
    }
    for (int i = 0; i < s->n_wanted; i++) {
        int c = s->wanted[i];
        if (s->direct[c]) continue;
        s->at[c] = s->slot_elements;
        s->slot_elements += s->elements[c];
    }
    return owners;
}

/* Tasks that may meet in a directly added element have equal keys. */
static int64_t key_of(const flex_plan *p, int64_t task, unsigned owners) {
    flex__task t = flex__row_task(p, task);
    int64_t key = 0;
    if (owners & 1) key = t.b;
    if (owners & 2) key = key * p->p.q_heads + t.h0;
    if (owners & 4) key = key * p->mask.q_tiles + t.tile;
    return key;
}

typedef struct dealt {
    int64_t key, task, cost;
} dealt;

static int by_key(const void *a, const void *b) {
    const dealt *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->task < y->task ? -1 : x->task > y->task;
}

/* Groups of equal keys go to the slot that has the least so far. */
static void deal(const dealt *d, int64_t n, int64_t slots, int64_t *slot_of) {
    int64_t cost[MOST_SLOTS] = {0};
    for (int64_t i = 0; i < n;) {
        int64_t end = i, sum = 0, to = 0;
        while (end < n && d[end].key == d[i].key) sum += 1 + d[end++].cost;
        for (int64_t s = 1; s < slots; s++) {
            if (cost[s] < cost[to]) to = s;
        }
        cost[to] += sum;
        for (; i < end; i++) slot_of[i] = to;
    }
}

static err fill_slots(flex_plan *p, const dealt *d, arena *a) {
    flex__sums *s = &p->sums;
    int64_t *start, *task, *slot_of;
    TRY(arena_alloc(a, (size_t)s->slots + 1, sizeof *start, &start));
    TRY(arena_alloc(a, (size_t)p->row_tasks, sizeof *task, &task));
    TRY(mem_new((size_t)p->row_tasks + 1, sizeof *slot_of, &slot_of));
    deal(d, p->row_tasks, s->slots, slot_of);
    for (int64_t i = 0; i < p->row_tasks; i++) start[slot_of[i] + 1]++;
    for (int64_t i = 0; i < s->slots; i++) start[i + 1] += start[i];
    int64_t next[MOST_SLOTS];
    memcpy(next, start, (size_t)s->slots * sizeof *next);
    for (int64_t i = 0; i < p->row_tasks; i++) task[next[slot_of[i]]++] = d[i].task;
    mem_free(slot_of);
    s->start = start;
    s->task = task;
    return ERR_OK;
}

err flex__plan_sums(flex_plan *p, const int64_t *row_cost, arena *a) {
    flex__sums *s = &p->sums;
    dealt *d;
    s->slots = p->row_tasks;
    for (int c = 0; p->grad && c < EXPR_MAX_CAPTURES; c++) {
        if (!(p->p.score_grads >> c & 1)) continue;
        s->wanted[s->n_wanted++] = c;
        s->elements[c] =
            expr_value_count(&p->p.score_env->values[c], expr_capture(p->p.score, c)->ndim);
    }
    if (s->n_wanted == 0) return ERR_OK;
    unsigned owners = choose_direct(p);
    int64_t most = s->slot_elements ? budget / (8 * s->slot_elements) : MOST_SLOTS;
    s->slots = flex__min(flex__min(most < 1 ? 1 : most, MOST_SLOTS), p->row_tasks);
    if (s->slots == 0) return ERR_OK;
    TRY(mem_new((size_t)p->row_tasks + 1, sizeof *d, &d));
    for (int64_t i = 0; i < p->row_tasks; i++) d[i] = (dealt){key_of(p, i, owners), i, row_cost[i]};
    qsort(d, (size_t)p->row_tasks, sizeof *d, by_key);
    err e = fill_slots(p, d, a);
    mem_free(d);
    return e;
}

size_t flex__sums_bytes(const flex_plan *p) {
    return (size_t)flex__pad(p->sums.n_wanted ? p->sums.slots * p->sums.slot_elements * 8 : 0, 64);
}

expr_score_sums flex__sums_of(const flex_plan *p, const flex_io *io, double *slots, int64_t slot) {
    const flex__sums *s = &p->sums;
    expr_score_sums out = {{0}, {0}};
    for (int i = 0; i < s->n_wanted; i++) {
        int c = s->wanted[i];
        if (s->direct[c])
            out.narrow[c] = io->d_capture[c];
        else
            out.wide[c] = slots + slot * s->slot_elements + s->at[c];
    }
    return out;
}

/* ---- before and after ---- */

typedef struct sums_run {
    const flex_plan *p;
    const flex_io *io;
    double *slots;
    int64_t total; /* elements of all wanted captures, one after the other */
} sums_run;

/* The part [from, to) of capture *c that chunk `task` covers; moves on through the captures. */
static int next_part(const sums_run *r, int64_t begin, int64_t end, int *i, int64_t *before,
                     int64_t *from, int64_t *to) {
    const flex__sums *s = &r->p->sums;
    for (; *i < s->n_wanted; *before += s->elements[s->wanted[(*i)++]]) {
        int64_t n = s->elements[s->wanted[*i]];
        *from = begin > *before ? begin - *before : 0;
        *to = flex__min(end - *before, n);
        if (*from < *to) return 1;
    }
    return 0;
}

static err clear_task(void *ctx, int64_t task, int thread) {
    sums_run *r = ctx;
    int64_t before = 0, from, to;
    (void)thread;
    for (int i = 0; next_part(r, task * CHUNK, (task + 1) * CHUNK, &i, &before, &from, &to);
         before += r->p->sums.elements[r->p->sums.wanted[i++]])
        memset(r->io->d_capture[r->p->sums.wanted[i]] + from, 0,
               (size_t)(to - from) * sizeof(float));
    return ERR_OK;
}

static err finish_task(void *ctx, int64_t task, int thread) {
    sums_run *r = ctx;
    const flex__sums *s = &r->p->sums;
    int64_t before = 0, from, to;
    (void)thread;
    for (int i = 0; next_part(r, task * CHUNK, (task + 1) * CHUNK, &i, &before, &from, &to);
         before += s->elements[s->wanted[i++]]) {
        int c = s->wanted[i];
        if (s->direct[c]) continue;
        for (int64_t k = from; k < to; k++) {
            double sum = 0.0;
            for (int64_t slot = 0; slot < s->slots; slot++)
                sum += r->slots[slot * s->slot_elements + s->at[c] + k];
            r->io->d_capture[c][k] = (float)sum;
        }
    }
    return ERR_OK;
}

static err each_chunk(const flex_plan *p, dev *d, const flex_io *io, double *slots, pool_task fn) {
    sums_run r = {.p = p, .io = io, .slots = slots};
    for (int i = 0; i < p->sums.n_wanted; i++) r.total += p->sums.elements[p->sums.wanted[i]];
    return pool_run(dev_pool(d), (r.total + CHUNK - 1) / CHUNK, fn, &r);
}

err flex__sums_clear(const flex_plan *p, dev *d, const flex_io *io, double *slots) {
    if (p->sums.n_wanted == 0) return ERR_OK;
    memset(slots, 0, flex__sums_bytes(p));
    return each_chunk(p, d, io, slots, clear_task);
}

err flex__sums_finish(const flex_plan *p, dev *d, const flex_io *io, double *slots) {
    return p->sums.n_wanted ? each_chunk(p, d, io, slots, finish_task) : ERR_OK;
}
