/* Rows from documents: a keyed shuffle per epoch, greedy packing in that order, a cursor of five integers.
 *
 * All memory is taken when the stream is opened, sized for the largest row that any order can give. The order
 * of an epoch depends on (seed, epoch) alone, so a restored cursor goes on exactly where it was, whatever the
 * number of ranks: ranks share one stream by taking row i mod n. It does not split documents over rows. */
#include "core/rng.h"
#include "data/data.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct data_stream {
    const data_set *set;
    arena *mem;
    int64_t seed, n, budget;
    int64_t max_tokens, max_docs;
    int64_t *order; /* [order_docs] documents in the order of epoch order_epoch */
    int64_t order_epoch, order_docs;
    int64_t *scratch; /* [n] another epoch's order, for counting its rows */
    data_epochs epochs;
    data_cursor at;
    data_row row;
};

/* ---- documents of epochs ---- */

void data_epochs_cut(data_epochs *e, int64_t end) {
    while (e->n && e->first[e->n - 1] >= end) e->n--;
}

void data_epochs_add(data_epochs *e, int64_t first, int64_t docs) {
    data_epochs_cut(e, first);
    if (e->n && e->docs[e->n - 1] == docs) return;
    if (e->n == DATA_EPOCHS) {
        memmove(e->first, e->first + 1, (DATA_EPOCHS - 1) * sizeof *e->first);
        memmove(e->docs, e->docs + 1, (DATA_EPOCHS - 1) * sizeof *e->docs);
        e->n--;
    }
    e->first[e->n] = first;
    e->docs[e->n++] = docs;
}

int64_t data_epochs_at(const data_epochs *e, int64_t epoch) {
    int64_t docs = 0;
    for (int64_t i = 0; i < e->n && e->first[i] <= epoch; i++) docs = e->docs[i];
    return docs;
}

/* ---- the stream ---- */

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* No row holds more documents than the shortest ones that fit together, nor more tokens than the budget or
 * one longer document. */
static void find_limits(data_stream *st) {
    int64_t longest = 0, total = 0, taken = 0;
    for (int64_t i = 0; i < st->n; i++) {
        int64_t n = data_at(st->set, i).n;
        st->scratch[i] = n;
        total += n;
        if (n > longest) longest = n;
    }
    qsort(st->scratch, (size_t)st->n, sizeof *st->scratch, by_size);
    st->max_docs = 0;
    while (st->max_docs < st->n && taken + st->scratch[st->max_docs] <= st->budget)
        taken += st->scratch[st->max_docs++];
    if (st->max_docs == 0) st->max_docs = 1;
    int64_t most = total < st->budget ? total : st->budget;
    st->max_tokens = longest > most ? longest : most;
}

static err take_memory(data_stream *st) {
    TRY(arena_create(&st->mem, "rows", 0));
    TRY(arena_alloc(st->mem, (size_t)st->n, sizeof *st->order, &st->order));
    TRY(arena_alloc(st->mem, (size_t)st->n, sizeof *st->scratch, &st->scratch));
    find_limits(st);
    size_t tokens = (size_t)st->max_tokens, docs = (size_t)st->max_docs;
    data_row *r = &st->row;
    TRY(arena_alloc(st->mem, tokens, sizeof *r->tokens, &r->tokens));
    TRY(arena_alloc(st->mem, tokens, sizeof *r->loss, &r->loss));
    TRY(arena_alloc(st->mem, tokens, sizeof *r->document, &r->document));
    TRY(arena_alloc(st->mem, tokens, sizeof *r->position, &r->position));
    TRY(arena_alloc(st->mem, docs + 1, sizeof *r->doc_start, &r->doc_start));
    return arena_alloc(st->mem, docs, sizeof *r->doc_id, &r->doc_id);
}

err data_stream_open(data_stream **out, const data_set *s, int64_t seed, int64_t tokens_per_row) {
    *out = NULL;
    if (tokens_per_row < 1)
        return err_set(ERR_RANGE, "rows of %" PRId64 " tokens cannot be packed; ask for 1 or more",
                       tokens_per_row);
    if (data_count(s) < 1) return err_set(ERR_RANGE, "the data set holds no document to pack");
    data_stream *st;
    TRY(mem_new(1, sizeof *st, &st));
    st->set = s;
    st->seed = seed;
    st->n = data_count(s);
    st->budget = tokens_per_row;
    st->order_epoch = -1;
    err e = take_memory(st);
    if (e) {
        data_stream_close(st);
        return e;
    }
    *out = st;
    return ERR_OK;
}

void data_stream_close(data_stream *st) {
    if (!st) return;
    arena_destroy(st->mem);
    mem_free(st);
}

data_cursor data_stream_tell(const data_stream *st) { return st->at; }

err data_stream_seek(data_stream *st, data_cursor c) {
    if (c.epoch < 0 || c.next < 0 || c.rows < 0 || c.tokens < 0 || c.docs < 0)
        return err_set(ERR_RANGE,
                       "a data cursor of epoch %" PRId64 ", document %" PRId64
                       " is not one that a run can have saved",
                       c.epoch, c.next);
    const int64_t docs = c.docs || c.next ? c.docs : st->n;
    if (docs > st->n || c.next >= docs)
        return err_set(ERR_RANGE,
                       "the data cursor stands at document %" PRId64 " of %" PRId64
                       " in its epoch, but the data set holds %" PRId64
                       ": it is not the set of that run",
                       c.next, docs, st->n);
    st->at = c;
    return ERR_OK;
}

err data_stream_walk(data_stream *st, const data_epochs *e) {
    for (int64_t i = 0; i < e->n; i++)
        if (e->docs[i] < 1 || e->docs[i] > st->n)
            return err_set(ERR_RANGE,
                           "epoch %" PRId64 " is told to walk %" PRId64
                           " documents, but the data set holds %" PRId64,
                           e->first[i], e->docs[i], st->n);
    st->epochs = *e;
    return ERR_OK;
}

static int64_t docs_of(const data_stream *st, int64_t epoch) {
    const int64_t told = data_epochs_at(&st->epochs, epoch);
    return told ? told : st->n;
}

static int64_t length_at(const data_stream *st, const int64_t *order, int64_t i) {
    return data_at(st->set, order[i]).n;
}

/* End of the row that begins at place `next` of an order of `docs` documents. */
static int64_t row_end(const data_stream *st, const int64_t *order, int64_t docs, int64_t next) {
    int64_t n = length_at(st, order, next), end = next + 1;
    while (end < docs && n + length_at(st, order, end) <= st->budget)
        n += length_at(st, order, end++);
    return end;
}

static void make_order(const data_stream *st, int64_t epoch, int64_t docs, int64_t *order) {
    rng_permutation((uint64_t)st->seed, RNG_SHUFFLE, (uint64_t)epoch, docs, order);
}

/* An epoch that begins takes the documents it is told to; its order is made when it is not the one at hand. */
static int64_t find_row(data_stream *st) {
    data_cursor *c = &st->at;
    if (!c->docs) c->docs = docs_of(st, c->epoch);
    if (st->order_epoch != c->epoch || st->order_docs != c->docs) {
        make_order(st, c->epoch, c->docs, st->order);
        st->order_epoch = c->epoch;
        st->order_docs = c->docs;
    }
    return row_end(st, st->order, c->docs, c->next);
}

static void move_to(data_cursor *c, int64_t end, int64_t tokens) {
    c->rows++;
    c->tokens += tokens;
    c->next = end;
    if (end < c->docs) return;
    c->epoch++;
    c->next = c->docs = 0;
}

static void add_document(data_row *r, const data_doc *d) {
    memcpy(r->tokens + r->n, d->tokens, (size_t)d->n * sizeof *d->tokens);
    memcpy(r->loss + r->n, d->loss, (size_t)d->n);
    for (int64_t i = 0; i < d->n; i++) {
        r->document[r->n + i] = (int32_t)r->docs;
        r->position[r->n + i] = (int32_t)i;
    }
    r->n += d->n;
    r->doc_id[r->docs++] = d->id;
    r->doc_start[r->docs] = r->n;
}

err data_stream_next(data_stream *st, const data_row **out) {
    data_row *r = &st->row;
    r->n = r->docs = r->doc_start[0] = 0;
    const int64_t end = find_row(st);
    for (int64_t i = st->at.next; i < end; i++) {
        data_doc d;
        TRY(data_fetch(st->set, st->order[i], &d));
        add_document(r, &d);
    }
    move_to(&st->at, end, r->n);
    *out = r;
    return ERR_OK;
}

void data_stream_skip(data_stream *st, int64_t limit, data_row_size *out) {
    const int64_t end = find_row(st);
    *out = (data_row_size){.epoch = st->at.epoch, .docs = end - st->at.next};
    for (int64_t i = st->at.next; i < end; i++) {
        const data_doc d = data_at(st->set, st->order[i]);
        out->n += d.n;
        out->anchors += d.candidates < limit ? d.candidates : limit;
    }
    move_to(&st->at, end, out->n);
}

int64_t data_stream_rows_per_epoch(const data_stream *st, int64_t epoch) {
    const int64_t docs = epoch == st->at.epoch && st->at.docs ? st->at.docs : docs_of(st, epoch);
    int64_t rows = 0;
    make_order(st, epoch, docs, st->scratch);
    for (int64_t at = 0; at < docs; rows++) at = row_end(st, st->scratch, docs, at);
    return rows;
}

void data_stream_limits(const data_stream *st, int64_t *max_tokens, int64_t *max_docs) {
    *max_tokens = st->max_tokens;
    *max_docs = st->max_docs;
}
