/* The plan: what a run will read, take and do, found out before it starts.
 *
 * Rows from where the run stands to its end are packed once on paper, which gives the number of updates, the cursor after each of them and
 * the largest row, exactly; no token is read for that. Bytes of the arenas follow from the largest row and the shapes; the run takes them
 * capped at these figures. The time estimate comes from one small product timed here, and says nothing about other machines. */
#include "core/clock.h"
#include "dev/gemm.h"
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- counting rows ---- */

/* FLOP of the target's part of a row: the same for all drafters. */
static double target_flops(const train *t, double n) {
    const target_config *k = target_get_config(t->t);
    const double layer =
        (double)k->hidden *
        (double)((2 * k->heads + 2 * k->kv_heads) * k->head_dim + 3 * k->intermediate);
    return 2 * n * layer * (double)(t->taps[t->n_taps - 1] + 1);
}

static double drafter_flops(const train_drafter *d, double n, double anchors) {
    const drafter_config *c = &d->l.cfg;
    const double h = (double)c->hidden, qw = (double)(c->heads * c->head_dim);
    const double kw = (double)(c->kv_heads * c->head_dim), i = (double)c->intermediate;
    const double noise = anchors * (double)c->block_size;
    const double layer = noise * h * (2 * qw + 2 * kw + 3 * i) + n * h * 2 * kw;
    const double forward = (double)c->layers * layer + n * h * h * (double)c->n_taps;
    const double head = anchors * (double)(c->block_size - 1) * h * (double)c->vocab;
    return 6 * forward + 4 * head;
}

static void see_row(train *t, train_drafter *d, const data_row_size *row) {
    train_plan *p = &t->plan;
    if (row->n > p->max_row_tokens) p->max_row_tokens = row->n;
    if (row->docs > p->max_row_docs) p->max_row_docs = row->docs;
    if (row->anchors > d->max_row_anchors) d->max_row_anchors = row->anchors;
}

/* A whole first epoch: its figures are shown, wherever the run stands. */
static void count_epoch(train *t, data_stream *s, train_drafter *d) {
    data_row_size row;
    const int first = d == t->drafter;
    while (data_stream_tell(s).epoch == 0) {
        data_stream_skip(s, d->anchor_limit, &row);
        see_row(t, d, &row);
        d->epoch_flops += drafter_flops(d, (double)row.n, (double)row.anchors);
        if (!first) continue;
        t->plan.rows_per_epoch++;
        t->plan.tokens_per_epoch += row.n;
        t->plan.flops_per_epoch += target_flops(t, (double)row.n);
    }
    t->plan.flops_per_epoch += d->epoch_flops;
}

static err add_mark(train *t, int64_t update, data_cursor c) {
    const size_t at = (size_t)(update - t->from_update);
    TRY(mem_grow(&t->mark, &t->mark_cap, at + 1, sizeof *t->mark));
    t->mark[at] = c;
    return ERR_OK;
}

/* From where the run stands to its end; the first drafter's walk marks the updates, which are the same for all. */
static err count_rest(train *t, data_stream *s, train_drafter *d) {
    const int64_t most = recipe_int(t->r, RECIPE_run_max_updates);
    int64_t update = t->from_update, rows = 0, tokens = 0;
    data_row_size row;
    TRY(data_stream_seek(s, t->from));
    if (d == t->drafter) TRY(add_mark(t, update, t->from));
    while (most ? update < most : data_stream_tell(s).epoch < t->epochs) {
        data_stream_skip(s, d->anchor_limit, &row);
        see_row(t, d, &row);
        rows++;
        tokens += row.n;
        const data_cursor c = data_stream_tell(s);
        /* What is left at the end of the last epoch is an update of its own. */
        const int last = !most && c.epoch >= t->epochs;
        if (!last && !train__update_is_whole(t, rows, tokens)) continue;
        rows = tokens = 0;
        update++;
        if (d == t->drafter) TRY(add_mark(t, update, c));
    }
    t->plan.updates = update;
    return ERR_OK;
}

static err count_updates(train *t) {
    for (int i = 0; i < t->n_drafters; i++) {
        data_stream *s = NULL;
        train_drafter *d = &t->drafter[i];
        TRY(data_stream_open(&s, t->data, t->seed, t->tokens_per_row));
        count_epoch(t, s, d);
        err e = count_rest(t, s, d);
        data_stream_close(s);
        TRY(e);
        if (d->max_row_anchors > t->plan.max_row_anchors)
            t->plan.max_row_anchors = d->max_row_anchors;
    }
    return ERR_OK;
}

/* ---- bytes ---- */

static void line(train_plan *p, const train_device *on, const char *role, const char *name,
                 size_t bytes) {
    train_plan_line *l = &p->lines[p->n_lines++];
    snprintf(l->device, sizeof l->device, "%s", on ? on->name : "");
    snprintf(l->role, sizeof l->role, "%s", role);
    snprintf(l->name, sizeof l->name, "%s", name);
    l->bytes = bytes;
    p->total_bytes += bytes;
}

/* On one device the roles take turns, and a row that waits would only take memory. */
static int ring_capacity(const train *t) {
    const int64_t asked = recipe_int(t->r, RECIPE_devices_ring);
    return asked ? (int)asked : t->n_devices == 1 ? 1 : 2;
}

static void count_target(train *t, train_target *g) {
    train_plan *p = &t->plan;
    const size_t width = (size_t)t->n_taps * (size_t)target_get_config(t->t)->hidden;
    g->work_bytes =
        row_buffer_bytes(p->max_row_tokens, p->max_row_docs) +
        (size_t)p->max_row_tokens * width * sizeof(float) + 64 +
        target_forward_bytes(t->t, p->max_row_tokens, p->max_row_docs, dev_threads(g->on->d));
    line(p, g->on, g->role.name, "a row through the target", g->work_bytes);
}

static void count_rank(train *t, train_rank *k) {
    train_plan *p = &t->plan;
    train_drafter *d = k->of;
    const size_t floats = (size_t)d->l.total * sizeof(float);
    const size_t taps = (size_t)p->max_row_tokens * (size_t)d->l.cfg.n_taps *
                        (size_t)d->l.cfg.hidden * sizeof(float);
    const size_t slots = (size_t)d->ring_capacity *
                             (taps + 64 + row_buffer_bytes(p->max_row_tokens, p->max_row_docs)) +
                         (size_t)d->ring_capacity * sizeof(train_slot) + 64;
    const size_t weights = 2 * (floats + 64) + adamw_share_bytes(&d->l) +
                           (size_t)d->max_row_anchors * sizeof(int32_t) + 64;
    k->state_bytes = weights + slots;
    k->work_bytes = step_bytes(k->on->d, t->t, &d->l, p->max_row_tokens, d->max_row_anchors);
    line(p, k->on, k->role.name, "masters and gradient", weights);
    line(p, k->on, k->role.name, "rows of features that wait", slots);
    line(p, k->on, k->role.name, "one micro-batch", k->work_bytes);
}

static void count_drafter(train *t, train_drafter *d) {
    train_rank *first = &d->rank[0];
    d->ring_capacity = ring_capacity(t);
    d->state_bytes = (size_t)d->l.total * sizeof(bf16) + 64 + adamw_bytes(&d->l);
    line(&t->plan, first->on, first->role.name, "moments and first weights", d->state_bytes);
    for (int i = 0; i < d->n_ranks; i++) count_rank(t, &d->rank[i]);
    if (t->held)
        line(&t->plan, first->on, first->role.name, "evaluation, while it runs",
             evaluate_bytes(&t->prompts, t->t, &d->l));
}

static err count_bytes(train *t) {
    train_plan *p = &t->plan;
    int lines = 2 + t->n_targets;
    for (int i = 0; i < t->n_drafters; i++) lines += 2 + 3 * t->drafter[i].n_ranks;
    TRY(arena_alloc(t->small, (size_t)lines, sizeof *p->lines, &p->lines));
    line(p, NULL, "", "target weights", target_bytes(t->t));
    line(p, NULL, "", "tokens and loss masks", data_memory(t->data));
    for (int i = 0; i < t->n_targets; i++) count_target(t, &t->target[i]);
    for (int i = 0; i < t->n_drafters; i++) count_drafter(t, &t->drafter[i]);
    /* A save converts the weights once; the rest is the tokenizer, libraries, stacks and file buffers. */
    p->allowance = (size_t)64 << 20;
    for (int i = 0; i < t->n_drafters; i++) p->allowance += (size_t)t->drafter[i].l.total * 2;
    for (int i = 0; i < t->n_devices; i++)
        p->allowance += (size_t)t->device[i].threads * ((size_t)12 << 20);
    return ERR_OK;
}

static err measure(train *t) {
    enum { N = 384, TIMES = 6 };
    const arena_mark m = arena_get_mark(t->small);
    float *x = NULL;
    TRY(arena_alloc(t->small, (size_t)3 * N * N, sizeof *x, &x));
    gemm_args g = {.m = N, .n = N, .k = N, .alpha = 1, .a = x, .lda = N};
    g.b = x + N * N;
    g.c = x + 2 * N * N;
    g.ldb = g.ldc = N;
    TRY(gemm_f32(t->device[0].d, &g)); /* the first call warms caches and threads */
    const double start = clock_seconds();
    for (int i = 0; i < TIMES; i++) TRY(gemm_f32(t->device[0].d, &g));
    const double rate = 2.0 * N * N * N * TIMES / (clock_seconds() - start + 1e-9);
    const double epochs =
        (double)t->plan.updates * (double)t->tokens_per_step / (double)t->plan.tokens_per_epoch;
    /* Training reaches about half the rate of a lone square product. */
    t->plan.seconds_estimate =
        2 * t->plan.flops_per_epoch * (t->epochs ? (double)t->epochs : epochs) / rate;
    arena_reset(t->small, m);
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
        *o = (train_plan_drafter){
            .name = d->name, .ranks = d->n_ranks, .anchors_per_row = d->max_row_anchors};
        for (int k = 0; k < d->l.n; k++) o->params += d->l.t[k].count;
        p->drafter_params += o->params;
    }
    return ERR_OK;
}

err train__make_plan(train *t) {
    train_plan *p = &t->plan;
    const data_counts *k = data_get_counts(t->data);
    p->documents = data_count(t->data);
    p->tokens = k->tokens;
    p->supervised = k->supervised;
    p->target_params = target_params(t);
    TRY(count_updates(t));
    TRY(list_drafters(t));
    TRY(count_bytes(t));
    if (t->opt.plan_only) TRY(measure(t));
    return preview(t);
}

const train_plan *train_get_plan(const train *t) { return &t->plan; }
