/* The plan: what a run will read, take and do, found out before it starts.
 *
 * Rows of every epoch are packed once to count them, so the number of updates and the largest row are exact, not estimated. Bytes of
 * the two arenas follow from the largest row and the shapes; the run takes them capped at these figures. The
 * time estimate comes from one small product timed here, and says nothing about other machines. */
#include "core/clock.h"
#include "dev/gemm.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- counting rows ---- */

typedef struct count {
    int64_t updates;                /* whole ones so far */
    int64_t open_rows, open_tokens; /* of the one that is open */
    int64_t rows, tokens;           /* of the first epoch */
    int64_t noise_rows, loss_rows;
    double epoch_flops;
} count;

static double row_flops(const train *t, int64_t tokens, int64_t anchors) {
    const drafter_config *c = &t->l.cfg;
    const target_config *k = target_get_config(t->t);
    const double h = (double)c->hidden, qw = (double)(c->heads * c->head_dim);
    const double kw = (double)(c->kv_heads * c->head_dim), i = (double)c->intermediate;
    const double noise = (double)(anchors * c->block_size), n = (double)tokens;
    const double target_layer =
        (double)k->hidden *
        (double)((2 * k->heads + 2 * k->kv_heads) * k->head_dim + 3 * k->intermediate);
    const double layer = noise * h * (2 * qw + 2 * kw + 3 * i) + n * h * 2 * kw;
    const double forward = (double)c->layers * layer + n * h * h * (double)c->n_taps;
    const double head = (double)(anchors * (c->block_size - 1)) * h * (double)c->vocab;
    return 2 * n * target_layer * (double)(c->taps[c->n_taps - 1] + 1) + 6 * forward + 4 * head;
}

static void count_row(train *t, count *k, const data_row_size *row) {
    if (row->n > t->plan.max_row_tokens) t->plan.max_row_tokens = row->n;
    if (row->docs > t->max_row_docs) t->max_row_docs = row->docs;
    if (row->anchors > t->plan.max_row_anchors) t->plan.max_row_anchors = row->anchors;
    k->open_tokens += row->n;
    k->open_rows++;
    if (train__update_is_whole(t, k->open_rows, k->open_tokens)) {
        k->updates++;
        k->open_tokens = k->open_rows = 0;
    }
    if (row->epoch > 0) return;
    k->rows++;
    k->tokens += row->n;
    k->epoch_flops += row_flops(t, row->n, row->anchors);
}

static err count_updates(train *t, int64_t max_updates) {
    data_stream *s = NULL;
    data_row_size row;
    count k = {0};
    TRY(data_stream_open(&s, t->data, t->seed, t->tokens_per_row));
    for (;;) {
        const int64_t epoch = data_stream_tell(s).epoch;
        /* The first epoch is always walked whole: its figures are shown. */
        if (epoch > 0 && max_updates && k.updates >= max_updates) break;
        if (epoch > 0 && !max_updates && epoch >= t->epochs) break;
        data_stream_skip(s, t->anchor_limit, &row);
        count_row(t, &k, &row);
    }
    data_stream_close(s);
    /* What is left at the end of the last epoch is an update of its own. */
    t->plan.updates = max_updates ? max_updates : k.updates + (k.open_rows > 0);
    t->plan.rows_per_epoch = k.rows;
    t->plan.tokens_per_epoch = k.tokens;
    t->plan.flops_per_epoch = k.epoch_flops;
    return ERR_OK;
}

/* ---- bytes ---- */

static void line(train_plan *p, const char *name, size_t bytes) {
    train_arena_line *l = &p->arenas[p->n_arenas++];
    snprintf(l->name, sizeof l->name, "%s", name);
    l->bytes = bytes;
    p->total_bytes += bytes;
}

static void count_bytes(train *t) {
    train_plan *p = &t->plan;
    const size_t floats = (size_t)t->l.total * sizeof(float);
    t->state_bytes = 2 * (floats + 64) + (size_t)t->l.total * sizeof(bf16) + 64 +
                     adamw_bytes(&t->l) + (size_t)p->max_row_anchors * sizeof(int32_t) + 64;
    t->work_bytes =
        step_bytes(t->d, t->t, &t->l, p->max_row_tokens, t->max_row_docs, p->max_row_anchors);
    line(p, "target weights", target_bytes(t->t));
    line(p, "tokens and loss masks", data_memory(t->data));
    line(p, "drafter masters, gradient, moments", t->state_bytes);
    line(p, "one micro-batch", t->work_bytes);
    if (t->held) line(p, "evaluation, while it runs", evaluate_bytes(&t->prompts, t->t, &t->l));
    /* A save converts the weights once; the rest is the tokenizer, libraries, stacks and file buffers. */
    p->allowance = (size_t)t->l.total * sizeof(bf16) + ((size_t)64 << 20) +
                   (size_t)dev_threads(t->d) * ((size_t)12 << 20);
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
    TRY(gemm_f32(t->d, &g)); /* the first call warms caches and threads */
    const double start = clock_seconds();
    for (int i = 0; i < TIMES; i++) TRY(gemm_f32(t->d, &g));
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

err train__make_plan(train *t) {
    train_plan *p = &t->plan;
    const data_counts *k = data_get_counts(t->data);
    p->documents = data_count(t->data);
    p->tokens = k->tokens;
    p->supervised = k->supervised;
    p->target_params = target_params(t);
    for (int i = 0; i < t->l.n; i++) p->drafter_params += t->l.t[i].count;
    TRY(count_updates(t, recipe_int(t->r, RECIPE_run_max_updates)));
    count_bytes(t);
    if (t->opt.plan_only) TRY(measure(t));
    return preview(t);
}

const train_plan *train_get_plan(const train *t) { return &t->plan; }

err train_plan_text(const train *t, str *out) {
    const train_plan *p = &t->plan;
    const drafter_config *c = &t->l.cfg;
    char a[32], b[32], d[32], span[16], bytes[24];
    TRY(str_printf(out, "target    %s, %s parameters\n", target_path(t->t),
                   str_thousands(p->target_params, a)));
    TRY(str_printf(
        out, "drafter   %" PRId64 " layers, block of %" PRId64 ", mask token %" PRId32 ", taps",
        c->layers, c->block_size, c->mask_token));
    for (int i = 0; i < c->n_taps; i++) TRY(str_printf(out, " %" PRId64, c->taps[i]));
    TRY(str_printf(out, ", %s parameters\n", str_thousands(p->drafter_params, a)));
    TRY(str_printf(out, "data      %s documents, %s tokens, %s supervised\n",
                   str_thousands(p->documents, a), str_thousands(p->tokens, b),
                   str_thousands(p->supervised, d)));
    TRY(str_printf(out, "rows      %s per epoch, at most %s tokens and %s anchors\n",
                   str_thousands(p->rows_per_epoch, a), str_thousands(p->max_row_tokens, b),
                   str_thousands(p->max_row_anchors, d)));
    TRY(str_printf(out, "updates   %s of up to %s tokens\n", str_thousands(p->updates, a),
                   str_thousands(t->tokens_per_step, b)));
    TRY(str_printf(out, "work      %.3g FLOP per epoch", p->flops_per_epoch));
    if (p->seconds_estimate > 0)
        TRY(str_printf(out, ", about %s in all on this machine",
                       clock_span(p->seconds_estimate, span)));
    TRY(str_printf(out, "\nmemory\n"));
    for (int i = 0; i < p->n_arenas; i++)
        TRY(str_printf(out, "  %-38s %12s\n", p->arenas[i].name,
                       str_bytes((double)p->arenas[i].bytes, bytes)));
    TRY(str_printf(out, "  %-38s %12s\n", "in all", str_bytes((double)p->total_bytes, bytes)));
    TRY(str_printf(out, "  %-38s %12s\n", "libraries and buffers, at most",
                   str_bytes((double)p->allowance, bytes)));
    return str_printf(out, "first document, what is supervised in brackets\n%s\n", p->preview);
}
