/* The plan: what a run will read, take and do, found out before it starts.
 *
 * Rows from where the run stands to its end are packed once on paper, which gives the number of updates, the cursor after each of them and
 * the largest row, exactly; no token is read for that. Bytes of the arenas follow from the largest row and the shapes
 * (train_bytes.c); the run takes them capped at these figures. What does not fit is found in train_fit.c. It measures nothing. */
#include "train/train_parts.h"
#include <stdio.h>
#include <string.h>

/* ---- counting rows ---- */

/* FLOP of the target's part of a row: the same for all drafters. */
double train__target_flops(const train *t, double n) {
    const target_config *k = target_get_config(t->t);
    const double layer =
        (double)k->hidden *
        (double)((2 * k->heads + 2 * k->kv_heads) * k->head_dim + 3 * k->intermediate);
    return 2 * n * layer * (double)(t->taps[t->n_taps - 1] + 1);
}

double train__drafter_flops(const train_drafter *d, double n, double anchors) {
    const drafter_config *c = &d->l.cfg;
    const double h = (double)c->hidden, qw = (double)(c->heads * c->head_dim);
    const double kw = (double)(c->kv_heads * c->head_dim), i = (double)c->intermediate;
    const double noise = anchors * (double)c->block_size;
    const double layer = noise * h * (2 * qw + 2 * kw + 3 * i) + n * h * 2 * kw;
    const double forward = (double)c->layers * layer + n * h * h * (double)c->n_taps;
    const double head = anchors * (double)(c->block_size - 1) * h * (double)c->vocab;
    return 6 * forward + 4 * head;
}

static void see_row(train__rows *r, int who, const data_row_size *row) {
    if (row->n > r->max_tokens) r->max_tokens = row->n;
    if (row->docs > r->max_docs) r->max_docs = row->docs;
    if (row->anchors > r->max_anchors[who]) r->max_anchors[who] = row->anchors;
}

/* A row of the first epoch: its figures are shown, wherever the run stands. */
static void add_to_epoch(train *t, int who, const data_row_size *row) {
    train_plan *p = &t->plan;
    train_plan_drafter *o = &p->drafters[who];
    const double n = (double)row->n;
    const double work = train__drafter_flops(&t->drafter[who], n, (double)row->anchors);
    o->anchors_per_epoch += row->anchors;
    o->flops_per_epoch += work;
    p->flops_per_epoch += work;
    if (who) return;
    p->rows_per_epoch++;
    p->tokens_per_epoch += row->n;
    p->target_flops_per_epoch += train__target_flops(t, n);
    p->flops_per_epoch += train__target_flops(t, n);
}

static err add_mark(train *t, int64_t update, data_cursor c) {
    const size_t at = (size_t)(update - t->from_update);
    TRY(mem_grow(&t->mark, &t->mark_cap, at + 1, sizeof *t->mark));
    t->mark[at] = c;
    return ERR_OK;
}

/* The run itself, not settings tried on paper: the plan's figures are kept, and the first drafter's walk marks the updates, which
 * are the same for all. */
typedef struct walk {
    train *t;
    data_stream *s;
    int who, itself;
    int64_t budget, limit; /* tokens of a row, anchors of a document */
    train__rows *out;
} walk;

static void walk_epoch(const walk *w) {
    data_row_size row;
    while (data_stream_tell(w->s).epoch == 0) {
        data_stream_skip(w->s, w->limit, &row);
        see_row(w->out, w->who, &row);
        if (w->itself) add_to_epoch(w->t, w->who, &row);
    }
}

/* From where the run stands to its end. */
static err walk_rest(const walk *w) {
    train *t = w->t;
    const int64_t most = recipe_int(t->r, RECIPE_run_max_updates);
    const int marks = w->itself && w->who == 0;
    int64_t update = t->from_update, rows = 0, tokens = 0;
    data_row_size row;
    TRY(data_stream_walk(w->s, &t->epoch_docs));
    TRY(data_stream_seek(w->s, t->from));
    if (marks) TRY(add_mark(t, update, t->from));
    while (most ? update < most : data_stream_tell(w->s).epoch < t->epochs) {
        data_stream_skip(w->s, w->limit, &row);
        see_row(w->out, w->who, &row);
        rows++;
        tokens += row.n;
        const data_cursor c = data_stream_tell(w->s);
        /* What is left at the end of the last epoch is an update of its own. */
        const int last = !most && c.epoch >= t->epochs;
        const int whole = tokens + w->budget > t->tokens_per_step;
        if (!last && !whole) continue;
        rows = tokens = 0;
        update++;
        if (marks) TRY(add_mark(t, update, c));
    }
    w->out->updates = update - t->from_update;
    return ERR_OK;
}

static err count_rows(train *t, const train__sizes *z, int itself, train__rows *out) {
    *out = (train__rows){0};
    for (int i = 0; i < t->n_drafters; i++) {
        const int64_t own = t->drafter[i].anchor_limit;
        walk w = {.t = t, .who = i, .itself = itself, .budget = z->tokens_per_row, .out = out};
        if (i == z->without) continue;
        w.limit = own < z->anchor_limit ? own : z->anchor_limit;
        TRY(data_stream_open(&w.s, t->data, t->seed, w.budget));
        walk_epoch(&w);
        err e = walk_rest(&w);
        data_stream_close(w.s);
        TRY(e);
    }
    return ERR_OK;
}

err train__count_rows(train *t, const train__sizes *z, train__rows *out) {
    return count_rows(t, z, 0, out);
}

/* ---- the plan ---- */

static void take_rows(train *t, const train__rows *r) {
    train_plan *p = &t->plan;
    p->updates = t->from_update + r->updates;
    p->from_update = t->from_update;
    p->max_row_tokens = r->max_tokens;
    p->max_row_docs = r->max_docs;
    p->rows_left = train__mark(t, p->updates)->rows - t->from.rows;
    p->tokens_left = train__mark(t, p->updates)->tokens - t->from.tokens;
    for (int i = 0; i < t->n_drafters; i++) {
        t->drafter[i].max_row_anchors = p->drafters[i].anchors_per_row = r->max_anchors[i];
        if (r->max_anchors[i] > p->max_row_anchors) p->max_row_anchors = r->max_anchors[i];
    }
}

static err count_bytes(train *t, const train__sizes *z, const train__rows *rows) {
    train_plan *p = &t->plan;
    train__bytes b;
    TRY(arena_alloc(t->small, (size_t)train__line_count(t), sizeof *p->lines, &p->lines));
    TRY(train__count_bytes(t, z, rows, p->lines, &b));
    p->n_lines = b.n_lines;
    p->total_bytes = b.total;
    p->allowance = b.allowance;
    return ERR_OK;
}

static err preview(train *t) {
    str s = {0};
    err e = data_preview(t->data, t->tok, 0, &s);
    if (!e) snprintf(t->plan.preview, sizeof t->plan.preview, "%.*s", (int)s.n, s.s ? s.s : "");
    str_free(&s);
    return e;
}

static int64_t target_params(const train *t) {
    const target_config *c = target_get_config(t->t);
    const int64_t layer =
        c->hidden * ((2 * c->heads + 2 * c->kv_heads) * c->head_dim + 3 * c->intermediate + 2);
    return c->layers * layer + c->hidden + c->vocab * c->hidden * (c->tied ? 1 : 2);
}

static err list_drafters(train *t) {
    train_plan *p = &t->plan;
    p->n_drafters = t->n_drafters;
    TRY(arena_alloc(t->small, (size_t)p->n_drafters, sizeof *p->drafters, &p->drafters));
    for (int i = 0; i < p->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        train_plan_drafter *o = &p->drafters[i];
        *o = (train_plan_drafter){.name = d->name, .ranks = d->n_ranks};
        for (int k = 0; k < d->l.n; k++) o->params += d->l.t[k].count;
        p->drafter_params += o->params;
    }
    return ERR_OK;
}

err train__make_plan(train *t) {
    train_plan *p = &t->plan;
    train__sizes z;
    train__rows rows;
    const data_counts *k = data_get_counts(t->data);
    p->documents = data_count(t->data);
    p->tokens = k->tokens;
    p->supervised = k->supervised;
    p->target_params = target_params(t);
    train__own_sizes(t, &z);
    TRY(list_drafters(t));
    TRY(count_rows(t, &z, 1, &rows));
    take_rows(t, &rows);
    TRY(count_bytes(t, &z, &rows));
    TRY(train__count_files(t, &z, &rows, p->files, &p->n_files));
    TRY(preview(t));
    return train__judge(t);
}

const train_plan *train_get_plan(const train *t) { return &t->plan; }

err train_check_plan(const train *t) {
    return t->plan.refused[0] ? err_set(ERR_REFUSED, "%s", t->plan.refused) : ERR_OK;
}
