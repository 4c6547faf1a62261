/* The questions that a block mask has for who holds its arrays: what single tiles are, and whether rows see a key.
 *
 * The walk over boxes leaves tiles open (blockmask.c); here they are asked in calls of bounded size, and the answers are
 * put in their places, so the list that comes out is the one that counting on the spot would have made. Rows are asked
 * run by run, in strips, and only where no witness proved their tiles. Evaluates nothing itself. */
#include "flex/blockmask_private.h"
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* One call's questions: of tiles where in the list each stands, of rows the slot (a strip of a line) of each box. */
typedef struct asking {
    int n, slots;
    interval_box box[BLOCKMASK__MANY];
    uint8_t loads[BLOCKMASK__MANY];
    size_t at[BLOCKMASK__MANY];
    blockmask__count answer[BLOCKMASK__MANY];
    int slot[BLOCKMASK__MANY], rows[BLOCKMASK__MANY];
    uint32_t before[BLOCKMASK__WORDS]; /* what slot 0 has seen in the calls before */
    uint32_t seen[BLOCKMASK__MANY * BLOCKMASK__WORDS];
} asking;

size_t blockmask__ask_bytes(void) { return sizeof(asking); }

/* ---- tiles ---- */

enum { NOTHING = 4 }; /* the kind of a box that covers no visible cell, until it is taken out */

static err settle(blockmask__builder *w, asking *x) {
    const int n = x->n;
    x->n = 0;
    if (n == 0) return ERR_OK;
    TRY(w->far->count(w->far->ctx, x->box, x->loads, n, x->answer));
    w->out->undecided += n;
    for (int i = 0; i < n; i++) {
        const blockmask__count *c = &x->answer[i];
        const interval_box *box = &x->box[i];
        const int64_t keys = box->kv1 - box->kv0 + 1;
        w->out->may_leave |= c->reaches;
        if (c->left >= 0)
            return blockmask__leaves(w, box->b0, box->h0, box->q0 + c->left / keys,
                                     box->kv0 + c->left % keys);
        w->box[x->at[i]].full = c->all ? 1 : c->some ? 0 : NOTHING;
    }
    return ERR_OK;
}

static err ask_tiles(blockmask__builder *w, asking *x) {
    const int64_t entries = w->args.batch * w->args.heads;
    for (int64_t e = 0; e < entries; e++) {
        w->b = e / w->args.heads, w->h = e % w->args.heads;
        for (int64_t i = w->first[e]; i < w->first[e + 1]; i++) {
            const blockmask__box *box = &w->box[i];
            if (box->full < BLOCKMASK__ASKED) continue;
            x->box[x->n] = blockmask__cells(w, box->q, box->k, 1, 1);
            x->loads[x->n] = box->full == BLOCKMASK__ASKED_LOADS;
            x->at[x->n++] = (size_t)i;
            if (x->n == BLOCKMASK__MANY) TRY(settle(w, x));
        }
    }
    return settle(w, x);
}

/* Takes out what turned out to be nothing. */
static void close_up(blockmask__builder *w) {
    const int64_t entries = w->args.batch * w->args.heads;
    size_t n = 0;
    for (int64_t e = 0; e < entries; e++) {
        const int64_t from = w->first[e], to = w->first[e + 1];
        w->first[e] = (int64_t)n;
        for (int64_t i = from; i < to; i++)
            if (w->box[i].full != NOTHING) w->box[n++] = w->box[i];
    }
    w->first[entries] = (int64_t)n;
    w->n = n;
}

err blockmask__ask(blockmask__builder *w) {
    asking *x;
    TRY(mem_new(1, sizeof *x, &x));
    err e = ask_tiles(w, x);
    mem_free(x);
    if (!e) close_up(w);
    return e;
}

/* ---- rows ---- */

/* Asks for the slots that are there. Where the last one has more runs to come (goes_on), what its rows have seen so far is kept
 * and it is slot 0 of the next call; the others are judged. */
static err settle_rows(const blockmask__builder *w, asking *x, int goes_on, int *all) {
    TRY(w->far->rows(w->far->ctx, x->box, x->slot, x->n, x->slots, x->seen));
    for (int k = 0; k < BLOCKMASK__WORDS; k++) x->seen[k] |= x->before[k];
    for (int i = 0; i < x->slots - goes_on; i++)
        for (int r = 0; r < x->rows[i]; r++)
            *all &= (int)(x->seen[i * BLOCKMASK__WORDS + r / 32] >> r % 32 & 1u);
    memset(x->before, 0, sizeof x->before);
    if (goes_on) memcpy(x->before, x->seen + (x->slots - 1) * BLOCKMASK__WORDS, sizeof x->before);
    x->rows[0] = x->rows[x->slots - 1];
    x->n = 0;
    x->slots = goes_on;
    return ERR_OK;
}

/* Rows q0..q1 of a line: a slot, and a box for each of its runs. */
static err ask_strip(const blockmask__builder *w, asking *x, int64_t line, int64_t q0, int64_t q1,
                     int *all) {
    const block_mask *m = w->out;
    const int64_t entry = line / m->q_tiles, b = entry / m->heads, h = entry % m->heads;
    x->rows[x->slots++] = (int)(q1 - q0 + 1);
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++) {
        const block_run *run = &m->row_run[r];
        const int64_t k0 = (int64_t)run->start * m->tile_kv,
                      k1 = least(k0 + (int64_t)run->length * m->tile_kv, m->kv_len) - 1;
        if (x->n == BLOCKMASK__MANY) TRY(settle_rows(w, x, 1, all));
        x->slot[x->n] = x->slots - 1;
        x->box[x->n++] = (interval_box){b, b, h, h, q0, q1, k0, k1};
    }
    return x->n == BLOCKMASK__MANY || x->slots == BLOCKMASK__MANY ? settle_rows(w, x, 0, all)
                                                                  : ERR_OK;
}

err blockmask__ask_rows(blockmask__builder *w, const int64_t *line, size_t n, int *all) {
    const block_mask *m = w->out;
    asking *x;
    err e = ERR_OK;
    TRY(mem_new(1, sizeof *x, &x));
    for (size_t i = 0; i < n && !e && *all; i++) {
        const int64_t from = line[i] % m->q_tiles * m->tile_q,
                      to = least(from + m->tile_q, m->q_len);
        for (int64_t q = from; q < to && !e && *all; q += BLOCKMASK__ROWS)
            e = ask_strip(w, x, line[i], q, least(q + BLOCKMASK__ROWS, to) - 1, all);
    }
    if (!e && *all && x->slots) e = settle_rows(w, x, 0, all);
    mem_free(x);
    return e;
}
