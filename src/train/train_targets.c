/* A target's role: the next row of the feed through the frozen model to its last tap, and its features to every drafter.
 *
 * One pass serves all drafters: it captures the union of their taps and copies to each ring the ones that its drafter
 * reads. Room in a ring is asked for only when the features are there, so a device computes one row ahead of a full
 * ring. A drafter that has ended, or has these rows behind it, is passed over.
 * With a feature store a document's features are computed in the first epoch that meets it, rounded and written, and read from
 * then on; a row whose documents are all there takes no turn on the device. */
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include <string.h>

err train__target_memory(train *t, train_target *g) {
    const size_t width = (size_t)t->n_taps * (size_t)target_get_config(t->t)->hidden;
    TRY(arena_create(&g->work, "target rows", g->work_bytes));
    TRY(row_buffer_make(&g->row, t->plan.max_row_tokens, t->plan.max_row_docs, g->work));
    TRY(arena_alloc_raw(g->work, (size_t)t->plan.max_row_tokens, width * sizeof *g->taps,
                        &g->taps));
    TRY(arena_alloc(g->work, (size_t)t->plan.max_row_docs, 1, &g->stored));
    train__count_memory(t, &g->role, &g->work, 1);
    return ERR_OK;
}

static err forward(train *t, train_target *g, int64_t index) {
    const target_row r = {.n = g->row.n,
                          .tokens = g->row.tokens,
                          .document = g->row.document,
                          .position = g->row.position,
                          .taps = t->taps,
                          .n_taps = t->n_taps,
                          .taps_out = g->taps};
    train__begin_turn(g->on, &g->role, index);
    err e = train__phase(t, &g->role, "target forward", index);
    if (!e) e = target_forward(t->t, g->on->d, &r, g->work);
    train__end_turn(g->on);
    pthread_mutex_lock(&t->guard);
    t->forwards++;
    pthread_mutex_unlock(&t->guard);
    return e ? err_context(e, "row %lld: ", (long long)index) : ERR_OK;
}

/* Which documents of the row the store holds; 1: all. Asked once: a store changes meanwhile, through other roles and the disk. */
static int find_stored(const train *t, train_target *g) {
    const data_row *row = &g->row;
    int all = 1;
    for (int64_t i = 0; i < row->docs; i++) {
        const int64_t from = row->doc_start[i];
        g->stored[i] = features_has(t->store, row->doc_id[i], row->tokens + from,
                                    row->doc_start[i + 1] - from) != 0;
        all &= g->stored[i];
    }
    return all;
}

/* Document by document: read what is there, round and write what was computed just now. */
static err exchange_with_store(train *t, train_target *g) {
    const data_row *row = &g->row;
    const int64_t width = t->n_taps * target_get_config(t->t)->hidden;
    for (int64_t i = 0; i < row->docs; i++) {
        const int64_t from = row->doc_start[i], n = row->doc_start[i + 1] - from;
        float *taps = g->taps + from * width;
        if (g->stored[i]) {
            TRY(features_read(t->store, row->doc_id[i], row->tokens + from, n, taps));
            continue;
        }
        features_round(taps, (size_t)(n * width));
        TRY(features_write(t->store, row->doc_id[i], row->tokens + from, n, taps));
    }
    return ERR_OK;
}

static err make_features(train *t, train_target *g, int64_t index) {
    if (!t->store) return forward(t, g, index);
    if (!find_stored(t, g)) TRY(forward(t, g, index));
    TRY(train__phase(t, &g->role, "feature store", index));
    return exchange_with_store(t, g);
}

/* The drafter's taps of each token, out of the union's. */
static void copy_taps(const train *t, const train_target *g, const train_drafter *d, float *out) {
    const size_t h = (size_t)d->l.cfg.hidden, bytes = h * sizeof *out;
    const int n = d->l.cfg.n_taps;
    if (n == t->n_taps) {
        memcpy(out, g->taps, (size_t)g->row.n * (size_t)n * bytes);
        return;
    }
    for (int64_t i = 0; i < g->row.n; i++)
        for (int k = 0; k < n; k++)
            memcpy(out + ((size_t)i * (size_t)n + (size_t)k) * h,
                   g->taps + ((size_t)i * (size_t)t->n_taps + (size_t)d->column[k]) * h, bytes);
}

static void deliver(train *t, train_target *g, train_drafter *d, int64_t index, int64_t epoch) {
    if (index < d->first_row) return;
    train_rank *k = &d->rank[index % d->n_ranks];
    const int64_t entry = (index - k->first) / d->n_ranks;
    train__wait(&g->role, "room in a ring", index);
    const int at = ring_reserve(k->in, entry);
    if (at < 0) return; /* the drafter has ended */
    train_slot *s = &k->slots[at];
    row_buffer_copy(&s->row, &g->row);
    s->index = index;
    s->epoch = epoch;
    copy_taps(t, g, d, s->taps);
    ring_place(k->in, entry);
}

static int is_wanted(train *t, int64_t index) {
    for (int i = 0; i < t->n_drafters; i++)
        if (index >= t->drafter[i].first_row && !train__is_over(t, &t->drafter[i])) return 1;
    return 0;
}

err train__target_role(train *t, train_target *g) {
    for (;;) {
        int64_t index = -1, epoch = 0;
        train__wait(&g->role, "a row", 0);
        TRY(feed_next(t->feed, &g->row, &index, &epoch));
        if (index < 0) return ERR_OK;
        if (is_wanted(t, index)) {
            TRY(make_features(t, g, index));
            for (int i = 0; i < t->n_drafters; i++) deliver(t, g, &t->drafter[i], index, epoch);
            train__count_memory(t, &g->role, &g->work, 1);
        }
        feed_done(t->feed);
    }
}
