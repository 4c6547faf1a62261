/* Masks of q - kv alone: every tile of a diagonal is of one kind, so one row and one column of tiles tell all.
 *
 * The first row of tiles and the first column are decided by halving, as runs along the diagonals; each line of the mask is
 * a cut of those runs, moved. The ragged last row and column are no whole tiles and are decided for themselves.
 * Needs square tiles, and arrays that can be read here. Causal masks and windows of any length become a matter of their own runs. */
#include "flex/blockmask_private.h"

typedef struct list {
    block_run *run;
    size_t n, cap;
} list;

/* One batch entry and head: p = key tile - query tile of whole tiles, then the ragged last row and column. */
typedef struct entry {
    list diagonal, row, col;
} entry;

typedef struct job {
    blockmask__builder *w;
    entry *entries;
    int64_t whole_q, whole_k; /* tiles that are not ragged */
} job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Appends a run behind the last one, joined with it where they touch and are alike. */
static err append(list *l, int64_t start, int64_t length, int full) {
    block_run *last = l->n ? &l->run[l->n - 1] : NULL;
    if (last && last->full == full && last->start + last->length == start) {
        last->length += (int32_t)length;
        return ERR_OK;
    }
    TRY(mem_grow(&l->run, &l->cap, l->n + 1, sizeof *l->run));
    l->run[l->n++] = (block_run){(int32_t)start, (int32_t)length, full};
    return ERR_OK;
}

/* Tiles from (q, k) on, n of them along a row or down a column, as runs of their index. */
static err decide(blockmask__builder *w, list *out, int64_t q, int64_t k, int64_t n, int down) {
    const block_mask_args *a = &w->args;
    if (n <= 0) return ERR_OK;
    const interval_box c = blockmask__cells(w, q, k, down ? n : 1, down ? 1 : n);
    int may_leave = 0;
    interval_verdict v = interval_classify(a->mask, a->env, w->tables, &c, &may_leave);
    if (v == INTERVAL_NONE) return ERR_OK;
    if (v == INTERVAL_ALL && !may_leave) return append(out, down ? q : k, n, 1);
    if (n > 1) {
        TRY(decide(w, out, q, k, n / 2, down));
        return decide(w, out, down ? q + n / 2 : q, down ? k : k + n / 2, n - n / 2, down);
    }
    size_t before = w->n; /* a box of one tile, taken back */
    TRY(blockmask__decide_tile(w, q, k));
    if (w->n == before) return ERR_OK;
    w->n = before;
    return append(out, down ? q : k, 1, w->box[before].full);
}

static err decide_entry(const job *j, entry *x) {
    blockmask__builder *w = j->w;
    const block_mask *m = w->out;
    list down = {0};
    err e = ERR_OK;
    if (j->whole_k) e = decide(w, &down, 1, 0, j->whole_q - 1, 1);
    for (size_t i = down.n; !e && i > 0; i--) { /* falling q is rising p */
        const block_run *r = &down.run[i - 1];
        e = append(&x->diagonal, -((int64_t)r->start + r->length - 1), r->length, r->full);
    }
    mem_free(down.run);
    if (!e && j->whole_q) e = decide(w, &x->diagonal, 0, 0, j->whole_k, 0);
    if (!e && m->kv_tiles > j->whole_k) e = decide(w, &x->col, 0, j->whole_k, j->whole_q, 1);
    if (!e && m->q_tiles > j->whole_q) e = decide(w, &x->row, j->whole_q, 0, m->kv_tiles, 0);
    return e;
}

/* ---- lines ---- */

/* Where runs of a line go; run NULL: only counted. */
typedef struct line {
    block_run *run, last;
    int64_t n;
} line;

static void put(line *l, int64_t start, int64_t length, int full) {
    if (l->n && l->last.full == full && l->last.start + l->last.length == start) {
        l->last.length += (int32_t)length;
    } else {
        l->last = (block_run){(int32_t)start, (int32_t)length, full};
        l->n++;
    }
    if (l->run) l->run[l->n - 1] = l->last;
}

static void put_list(line *l, const list *from) {
    for (size_t i = 0; i < from->n; i++)
        put(l, from->run[i].start, from->run[i].length, from->run[i].full);
}

/* Index `at` of a list as one tile at `to`, if it is there. */
static void put_one(line *l, const list *from, int64_t at, int64_t to) {
    for (size_t i = 0; i < from->n; i++) {
        const block_run *r = &from->run[i];
        if (at >= r->start && at < r->start + (int64_t)r->length) put(l, to, 1, r->full);
    }
}

static void row_line(const job *j, const entry *x, int64_t q, line *l) {
    if (q == j->whole_q) {
        put_list(l, &x->row);
        return;
    }
    for (size_t i = 0; i < x->diagonal.n; i++) {
        const block_run *r = &x->diagonal.run[i];
        int64_t from = most(r->start + q, 0), to = least(r->start + r->length + q, j->whole_k);
        if (from < to) put(l, from, to - from, r->full);
    }
    put_one(l, &x->col, q, j->whole_k);
}

static void col_line(const job *j, const entry *x, int64_t k, line *l) {
    if (k == j->whole_k) {
        put_list(l, &x->col);
    } else {
        for (size_t i = x->diagonal.n; i > 0; i--) {
            const block_run *r = &x->diagonal.run[i - 1];
            int64_t from = most(k - r->start - r->length + 1, 0),
                    to = least(k - r->start + 1, j->whole_q);
            if (from < to) put(l, from, to - from, r->full);
        }
    }
    put_one(l, &x->row, k, j->whole_q);
}

static err one_side(const job *j, int columns, arena *a, const int64_t **out_start,
                    const block_run **out_run) {
    block_mask *m = j->w->out;
    int64_t lines = columns ? m->kv_tiles : m->q_tiles, *start;
    size_t n = (size_t)(m->batch * m->heads * lines);
    void (*const write)(const job *, const entry *, int64_t, line *) =
        columns ? col_line : row_line;
    block_run *run;
    TRY(blockmask__afford(j->w, m->bytes + (n + 1) * sizeof *start));
    TRY(arena_alloc(a, n + 1, sizeof *start, &start));
    for (size_t i = 0; i < n; i++) {
        line l = {.n = 0};
        write(j, &j->entries[(int64_t)i / lines], (int64_t)i % lines, &l);
        start[i + 1] = start[i] + l.n;
    }
    m->bytes += (n + 1) * sizeof *start + (size_t)start[n] * sizeof *run;
    TRY(blockmask__afford(j->w, m->bytes));
    TRY(arena_alloc_raw(a, (size_t)start[n], sizeof *run, &run));
    for (size_t i = 0; i < n; i++) {
        line l = {.run = run + start[i]};
        write(j, &j->entries[(int64_t)i / lines], (int64_t)i % lines, &l);
    }
    *out_start = start;
    *out_run = run;
    return ERR_OK;
}

static void count_tiles(block_mask *m) {
    int64_t lines = m->batch * m->heads * m->q_tiles;
    for (int64_t r = 0; r < m->row_start[lines]; r++)
        *(m->row_run[r].full ? &m->full : &m->partial) += m->row_run[r].length;
    m->empty = lines * m->kv_tiles - m->full - m->partial;
}

int blockmask__is_diagonal(const blockmask__builder *w) {
    const block_mask *m = w->out;
    return w->args.mask && !w->far && m->tile_q == m->tile_kv && m->proofs.diagonal;
}

err blockmask__diagonal(blockmask__builder *w, arena *a) {
    block_mask *m = w->out;
    int64_t n = m->batch * m->heads;
    job j = {w, NULL, m->q_len / m->tile_q, m->kv_len / m->tile_kv};
    TRY(mem_new((size_t)n + 1, sizeof *j.entries, &j.entries));
    err e = ERR_OK;
    for (int64_t i = 0; !e && i < n; i++) {
        w->b = i / m->heads, w->h = i % m->heads;
        e = decide_entry(&j, &j.entries[i]);
    }
    if (!e) e = one_side(&j, 0, a, &m->row_start, &m->row_run);
    if (!e) e = one_side(&j, 1, a, &m->col_start, &m->col_run);
    if (!e) count_tiles(m);
    size_t lists = 0;
    for (int64_t i = 0; i < n; i++) {
        entry *x = &j.entries[i];
        lists += x->diagonal.cap + x->row.cap + x->col.cap;
        mem_free(x->diagonal.run), mem_free(x->row.run), mem_free(x->col.run);
    }
    mem_free(j.entries);
    m->peak_bytes = w->held + lists * sizeof(block_run) + m->bytes;
    return e;
}
