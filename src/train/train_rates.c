/* Measuring: see train_rates.h. Each role is timed over real rows until its share of time is used up.
 *
 * A long row is cut to a window around its first anchor, so that a measurement stays short whatever the recipe's rows are. The first
 * call warms caches, threads and memory and does not count unless it alone uses up the time. All memory is the measurement's own
 * and is given back. Files are made without a name, so nothing is left of the disk's measurement. */
#include "train/train_rates.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/version.h"
#include "train/anchors.h"
#include "train/labels.h"
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 16, TOKENS = 256, BRIEF_TOKENS = 192, COPY = 16 << 20, DISK = 8 << 20 };

/* ---- rows ---- */

typedef struct sample {
    arena *a;
    data_row row[ROWS];
    int n;
    double seconds; /* that each role may use */
} sample;

static int64_t first_candidate(const data_row *r) {
    int64_t i = 0;
    while (i + 1 < r->n && !(r->loss[i] && r->loss[i + 1] && r->document[i] == r->document[i + 1]))
        i++;
    return i;
}

/* A window of at most so many tokens around the first anchor, as a row of its own. */
static void cut(const data_row *r, int64_t limit, data_row *to) {
    const int64_t at = first_candidate(r);
    int64_t from = r->n <= limit || at < limit / 2 ? 0 : at - limit / 2;
    if (r->n > limit && from > r->n - limit) from = r->n - limit;
    const int64_t n = r->n - from < limit ? r->n - from : limit;
    const int64_t cut_off = r->position[from]; /* of the first document */
    to->n = n;
    to->docs = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = from + i;
        if (!i || r->document[k] != r->document[k - 1]) {
            to->doc_start[to->docs] = i;
            to->doc_id[to->docs++] = r->doc_id[r->document[k]];
        }
        to->tokens[i] = r->tokens[k];
        to->loss[i] = r->loss[k];
        to->document[i] = (int32_t)(to->docs - 1);
        to->position[i] = r->position[k] - (int32_t)(to->docs == 1 ? cut_off : 0);
    }
    to->doc_start[to->docs] = n;
}

static err take_rows(train *t, sample *s, int64_t limit, int rows) {
    data_stream *stream = NULL;
    TRY(data_stream_open(&stream, t->data, t->seed, t->tokens_per_row));
    err e = ERR_OK;
    while (!e && s->n < rows && data_stream_tell(stream).epoch == 0) {
        const data_row *r = NULL;
        e = data_stream_next(stream, &r);
        if (!e) e = row_buffer_make(&s->row[s->n], limit, limit, s->a);
        if (!e) cut(r, limit, &s->row[s->n++]);
    }
    data_stream_close(stream);
    return e;
}

/* ---- timing ---- */

typedef struct timing {
    double flops_per_second,
        tokens_per_second; /* of the row in the middle: what disturbs one does not count */
} timing;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* once(ctx, row) does a row and tells its FLOP. */
static err time_rows(const sample *s, err (*once)(void *ctx, const data_row *r, double *flops),
                     void *ctx, timing *out) {
    double rate[8 * ROWS], all_flops = 0, all_tokens = 0, used = 0;
    int n = 0;
    for (int i = 0; used < s->seconds && i < 8 * ROWS; i++) {
        const data_row *r = &s->row[i % s->n];
        double flops = 0;
        const double start = clock_seconds();
        TRY(once(ctx, r, &flops));
        const double took = clock_seconds() - start + 1e-9;
        if (i == 0 && took < s->seconds) continue; /* it warmed what the next ones use */
        used += took;
        rate[n++] = flops / took;
        all_flops += flops;
        all_tokens += (double)r->n;
    }
    qsort(rate, (size_t)n, sizeof *rate, by_value);
    out->flops_per_second = rate[n / 2];
    out->tokens_per_second = rate[n / 2] * all_tokens / all_flops;
    return ERR_OK;
}

typedef struct role {
    train *t;
    dev *d;
    arena *work;
    float *taps; /* [rows' tokens, union of taps * H] */
    const train_drafter *drafter;
    float *params, *grads;
    int32_t *anchor;
    step step;
} role;

static err target_row_once(void *ctx, const data_row *row, double *flops) {
    const role *k = ctx;
    const target_row r = {.n = row->n,
                          .tokens = row->tokens,
                          .document = row->document,
                          .position = row->position,
                          .taps = k->t->taps,
                          .n_taps = k->t->n_taps,
                          .taps_out = k->taps};
    *flops = train__target_flops(k->t, (double)row->n);
    return target_forward(k->t->t, k->d, &r, k->work);
}

/* Taps are whatever the target left there: their values do not change the time. */
static err drafter_row_once(void *ctx, const data_row *row, double *flops) {
    role *k = ctx;
    step_sums sums = {0};
    const int64_t limit = k->drafter->anchor_limit;
    const int64_t n = anchors_row(row, limit, k->t->seed, 0, k->anchor);
    *flops = train__drafter_flops(k->drafter, (double)row->n, (double)n);
    return step_row(&k->step, row, k->taps, k->anchor, n, k->params, k->grads, &sums, NULL);
}

/* ---- roles ---- */

static err time_target(train *t, dev *d, const sample *s, float *taps, train_rates_row *out) {
    role k = {.t = t, .d = d, .taps = taps};
    timing time = {0};
    TRY(arena_create(&k.work, "measurement", 0));
    err e = time_rows(s, target_row_once, &k, &time);
    arena_destroy(k.work);
    out->target_flops_per_second = time.flops_per_second;
    out->target_tokens_per_second = time.tokens_per_second;
    return e;
}

/* The best of a few steps of the whole optimizer, at rate 0. */
static err time_update(role *k, train_rates_drafter *out) {
    const drafter_layout *l = &k->drafter->l;
    const adamw_config cfg = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1};
    adamw w;
    adamw_report report;
    double best = INFINITY;
    TRY(adamw_create(&w, l, &cfg, k->work));
    for (int i = 0; i < 4; i++) {
        const double start = clock_seconds();
        memset(k->grads, 0, (size_t)l->total * sizeof *k->grads);
        TRY(adamw_norm(&w, k->d, k->grads));
        TRY(adamw_apply(&w, k->d, 0, 1, k->params, k->grads, &report));
        const double took = clock_seconds() - start;
        if (i && took < best) best = took;
    }
    out->update_seconds = best;
    return ERR_OK;
}

/* Seconds of one batch of held-out prompts with so many new tokens. */
static err time_prompts(const role *k, int64_t max_new, double *seconds) {
    evaluate_set s = k->t->prompts;
    decode_stats stats;
    if (s.n > EVALUATE_BATCH) s.n = EVALUATE_BATCH;
    s.max_new = max_new;
    const double start = clock_seconds();
    TRY(evaluate_run(&s, k->d, k->t->t, &k->drafter->l, k->params, NULL, NULL, &stats));
    *seconds = clock_seconds() - start;
    return ERR_OK;
}

/* A drafter that has learnt nothing is accepted nowhere: an evaluation later in the run takes no longer. */
static err time_evaluation(const role *k, train_rates_drafter *out) {
    enum { MORE = 6 };
    const evaluate_set *s = &k->t->prompts;
    double first, more;
    if (!k->t->held) return ERR_OK;
    TRY(time_prompts(k, 1, &first));
    TRY(time_prompts(k, 1 + MORE, &more));
    const double token = more > first ? (more - first) / MORE : 0;
    const double batches = (double)((s->n + EVALUATE_BATCH - 1) / EVALUATE_BATCH);
    out->evaluation_seconds = batches * (first + token * (double)(s->max_new - 1));
    return ERR_OK;
}

static err measure_drafter(role *k, const sample *s, int brief, train_rates_drafter *out) {
    const drafter_layout *l = &k->drafter->l;
    timing time = {0};
    arena *rows = NULL;
    TRY(arena_alloc(k->work, (size_t)l->total, sizeof *k->params, &k->params));
    TRY(arena_alloc(k->work, (size_t)l->total, sizeof *k->grads, &k->grads));
    TRY(arena_alloc(k->work, TOKENS, sizeof *k->anchor, &k->anchor));
    drafter_init(l, k->t->seed, k->params);
    TRY(arena_create(&rows, "measurement", 0));
    k->step = (step){.d = k->d, .t = k->t->t, .layout = l, .work = rows};
    labels_decay(recipe_real(k->drafter->r, RECIPE_loss_gamma), l->cfg.block_size, k->step.decay);
    err e = time_rows(s, drafter_row_once, k, &time);
    arena_destroy(rows);
    out->flops_per_second = time.flops_per_second;
    out->tokens_per_second = time.tokens_per_second;
    if (e || brief) return e;
    TRY(time_update(k, out));
    return time_evaluation(k, out);
}

static err time_drafter(train *t, const train_drafter *d, dev *on, const sample *s, float *taps,
                        int brief, train_rates_drafter *out) {
    role k = {.t = t, .d = on, .taps = taps, .drafter = d};
    *out = (train_rates_drafter){0};
    TRY(arena_create(&k.work, "measurement", 0));
    err e = measure_drafter(&k, s, brief, out);
    arena_destroy(k.work);
    return e;
}

/* ---- memory and disk ---- */

static err time_copies(arena *a, double *bytes_per_second) {
    char *from = NULL, *to = NULL;
    double best = INFINITY;
    TRY(arena_alloc(a, COPY, 1, &from));
    TRY(arena_alloc(a, COPY, 1, &to));
    for (int i = 0; i < 4; i++) {
        const double start = clock_seconds();
        from[i] = (char)i;
        memcpy(to, from, COPY);
        const double took = clock_seconds() - start + 1e-12 * (double)to[i];
        if (i && took < best) best = took;
    }
    *bytes_per_second = COPY / best;
    return ERR_OK;
}

/* 0 where the file system makes no files without a name, or has no room: then saves are not counted. */
static err time_disk(const train *t, arena *a, double *bytes_per_second) {
    char *bytes = NULL, place[TRAIN_PATH];
    *bytes_per_second = 0;
    TRY(arena_alloc(a, DISK, 1, &bytes));
    memset(bytes, 7, DISK);
    TRY(train__nearest_folder(t->run, place, sizeof place));
    const int fd = open(place, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return ERR_OK;
    const double start = clock_seconds();
    err e = file_write_fd(fd, bytes, DISK, place);
    if (!e) e = file_sync_fd(fd, place);
    const double took = clock_seconds() - start;
    close(fd);
    if (e)
        err_clear();
    else
        *bytes_per_second = DISK / (took + 1e-9);
    return ERR_OK;
}

/* ---- the table ---- */

static void machine_text(const dev *d, char *out, size_t n) {
    char line[256], model[128] = "unknown CPU";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(model, sizeof model, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
    snprintf(out, n, "%s, %d CPUs, %s, %s", model, pool_cpus(), dev_isa_name(dev_get_isa(d)),
             dev_blas_path(d));
}

static train_rates_row *row_of(train_rates *r, int threads) {
    int i = 0;
    while (i < r->n && r->row[i].threads != threads) i++;
    if (i == TRAIN_RATES_ROWS) return NULL;
    if (i == r->n) r->n++;
    r->row[i] = (train_rates_row){.kind = "cpu", .threads = threads};
    return &r->row[i];
}

static err measure(train *t, dev *d, sample *s, int brief, train_rates *out, train_rates_row *row) {
    float *taps = NULL;
    const size_t width = (size_t)t->n_taps * (size_t)target_get_config(t->t)->hidden;
    TRY(take_rows(t, s, brief ? BRIEF_TOKENS : TOKENS, brief ? 1 : ROWS));
    TRY(arena_alloc(s->a, TOKENS, width * sizeof *taps, &taps));
    TRY(time_target(t, d, s, taps, row));
    for (int i = 0; i < t->n_drafters; i++)
        TRY(time_drafter(t, &t->drafter[i], d, s, taps, brief, &row->drafter[i]));
    if (brief) return ERR_OK;
    TRY(time_copies(s->a, &row->copy_bytes_per_second));
    return out->n > 1 ? ERR_OK : time_disk(t, s->a, &out->disk_bytes_per_second);
}

err train_rates_measure(train *t, int threads, int brief, train_rates *out) {
    sample s = {.seconds = brief ? 0.05 : 0.5};
    dev *d = NULL;
    const dev_config c = {.threads = threads};
    train_rates_row *row = row_of(out, threads);
    if (!row)
        return err_set(ERR_RANGE, "a table of rates holds %d numbers of threads, not more",
                       TRAIN_RATES_ROWS);
    TRY(dev_open_cpu(&d, &c));
    out->n_drafters = t->n_drafters;
    machine_text(d, out->machine, sizeof out->machine);
    snprintf(out->program, sizeof out->program, "paceline %s", VERSION_TEXT);
    clock_utc(out->measured);
    err e = arena_create(&s.a, "measurement", 0);
    if (!e) e = measure(t, d, &s, brief, out, row);
    arena_destroy(s.a);
    dev_close(d);
    return e;
}

err train_rates_measure_run(train *t, train_rates *out) {
    for (int i = 0; i < t->n_devices; i++) {
        const int threads = t->device[i].threads;
        if (!train_rates_find(out, "cpu", threads)) TRY(train_rates_measure(t, threads, 0, out));
    }
    return ERR_OK;
}

const train_rates_row *train_rates_find(const train_rates *r, const char *kind, int threads) {
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->row[i].kind, kind) && r->row[i].threads == threads) return &r->row[i];
    return NULL;
}
