/* Where `auto` puts the roles of a CPU run: in turns on all threads, or side by side on a share each, by a short measurement.
 *
 * A short row goes through target and drafter with all threads and with half of them. From the two times of a role follows its share that
 * does not get faster with threads, and so its time on any share. Side by side must promise 5 % more, else turns win: they need less
 * memory. Results do not depend on the choice. Drafters are measured together: all of them share their device. */
#include "core/clock.h"
#include "train/anchors.h"
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include "train/labels.h"
#include <stdio.h>

enum { SAMPLE_TOKENS = 192, SAMPLE_ANCHORS = 64 };

/* The first document's beginning that holds an anchor, as a row. */
static err sample_row(train *t, data_row *row, arena *a) {
    int64_t n = 0, from = 0;
    const data_doc doc = data_at(t->data, 0);
    TRY(row_buffer_make(row, SAMPLE_TOKENS, 1, a));
    while (from + 1 < doc.n && !(doc.loss[from] && doc.loss[from + 1])) from++;
    from = from + 1 < SAMPLE_TOKENS / 2 ? 0 : from + 1 - SAMPLE_TOKENS / 2;
    for (int64_t i = from; i < doc.n && n < SAMPLE_TOKENS; i++, n++) {
        row->tokens[n] = doc.tokens[i];
        row->loss[n] = doc.loss[i];
        row->position[n] = (int32_t)n;
    }
    row->n = row->doc_start[1] = n;
    row->docs = 1;
    return ERR_OK;
}

static err time_target(train *t, dev *d, const data_row *row, float *taps, double *seconds) {
    arena *work = NULL;
    const target_row r = {.n = row->n,
                          .tokens = row->tokens,
                          .document = row->document,
                          .position = row->position,
                          .taps = t->taps,
                          .n_taps = t->n_taps,
                          .taps_out = taps};
    TRY(arena_create(&work, "measurement", 0));
    err e = target_forward(t->t, d, &r, work); /* warms caches and threads */
    const double start = clock_seconds();
    if (!e) e = target_forward(t->t, d, &r, work);
    *seconds = clock_seconds() - start;
    arena_destroy(work);
    return e;
}

/* taps are the union's, wide enough for any drafter: their values do not matter here. */
static err time_drafter(train *t, const train_drafter *k, dev *d, const data_row *row,
                        const float *taps, double *seconds) {
    arena *a = NULL;
    int32_t anchor[SAMPLE_ANCHORS];
    float *params = NULL, *grads = NULL;
    step_sums sums = {0};
    const int64_t limit = k->anchor_limit < SAMPLE_ANCHORS ? k->anchor_limit : SAMPLE_ANCHORS;
    TRY(arena_create(&a, "measurement", 0));
    step s = {.d = d, .t = t->t, .layout = &k->l, .work = a};
    err e = arena_alloc(a, (size_t)k->l.total, sizeof *params, &params);
    if (!e) e = arena_alloc(a, (size_t)k->l.total, sizeof *grads, &grads);
    if (!e) {
        drafter_init(&k->l, t->seed, params);
        labels_decay(recipe_real(k->r, RECIPE_loss_gamma), k->l.cfg.block_size, s.decay);
        const int64_t n = anchors_row(row, limit, t->seed, 0, anchor);
        e = step_row(&s, row, taps, anchor, n, params, grads, &sums, NULL);
        const double start = clock_seconds();
        if (!e) e = step_row(&s, row, taps, anchor, n, params, grads, &sums, NULL);
        *seconds += clock_seconds() - start;
    }
    arena_destroy(a);
    return e;
}

/* Seconds of target and drafters with so many threads. */
static err time_with(train *t, int threads, double *by_target, double *drafters) {
    dev *d = NULL;
    arena *a = NULL;
    data_row row;
    float *taps = NULL;
    const dev_config c = {.threads = threads};
    const size_t width = (size_t)t->n_taps * (size_t)target_get_config(t->t)->hidden;
    TRY(dev_open_cpu(&d, &c));
    err e = arena_create(&a, "measurement", 0);
    if (!e) e = sample_row(t, &row, a);
    if (!e) e = arena_alloc(a, (size_t)row.n, width * sizeof *taps, &taps);
    if (!e) e = time_target(t, d, &row, taps, by_target);
    *drafters = 0;
    for (int i = 0; !e && i < t->n_drafters; i++)
        e = time_drafter(t, &t->drafter[i], d, &row, taps, drafters);
    arena_destroy(a);
    dev_close(d);
    return e;
}

/* Seconds on `share` threads, from those on `all` and on `half`: a part that scales and a part that does not. */
static double on_share(double with_all, double with_half, int all, int half, int share) {
    const double scales =
        (with_half - with_all) / (1.0 / half - 1.0 / all); /* seconds of it on one thread */
    const double fixed = with_all - scales / all;
    if (scales <= 0) return with_all;
    return fixed > 0 ? fixed + scales / share : with_all * all / share;
}

err train__measure_split(train *t, int threads, int *target_threads) {
    double by_target[2], drafters[2], best = 0;
    const int half = (threads + 1) / 2;
    TRY(time_with(t, threads, &by_target[0], &drafters[0]));
    TRY(time_with(t, half, &by_target[1], &drafters[1]));
    const double turns = by_target[0] + drafters[0];
    *target_threads = 0;
    for (int k = 1; k < threads; k++) {
        const double a = on_share(by_target[0], by_target[1], threads, half, k);
        const double b = on_share(drafters[0], drafters[1], threads, half, threads - k);
        const double slower = a > b ? a : b;
        if (*target_threads && slower >= best) continue;
        best = slower;
        *target_threads = k;
    }
    const double gain = turns / best;
    const int split = *target_threads;
    if (gain < 1.05) *target_threads = 0;
    snprintf(
        t->plan.placement, sizeof t->plan.placement,
        *target_threads
            ? "target on cpu:0 with %d threads, drafters on cpu:1 with %d: measured %.2f times "
              "the rate of turns on one device"
            : "turns on cpu:0: target on %d and drafters on %d threads side by side were "
              "measured at %.2f times their rate, and less than 1.05 is not worth the memory",
        split, threads - split, gain);
    return ERR_OK;
}
