/* A plan's forecast: the model's terms from the plan and a table of rates, and the run as it is placed.
 *
 * Tokens and rows of an update are averages over what is left of the run. A placed run is one sum per device: roles that share one take
 * turns, the busiest device decides, and CPU devices together have no more than the machine's cores. With a feature store the
 * target works in the first epoch alone. */
#include "train/train_forecast.h"
#include "train/train_parts.h"
#include <math.h>
#include <string.h>

static double updates_left(const train_plan *p) {
    const int64_t n = p->updates - p->from_update;
    return n > 0 ? (double)n : 1;
}

/* Seconds of evaluation and of saving, spread over the updates between two of them. */
static double pause_of(const train *t, const train_rates *r, const train_drafter *d,
                       const train_rates_drafter *k, double params) {
    const double updates = updates_left(&t->plan);
    const double every = (double)recipe_int(d->r, RECIPE_run_checkpoint_every);
    const double judge = (double)recipe_int(d->r, RECIPE_run_evaluate_every);
    /* Masters, moments, export, and the export once more. Digests are read from memory. */
    const double save = r->disk_bytes_per_second > 0 ? 16 * params / r->disk_bytes_per_second : 0;
    double sum = save / (every < updates ? every : updates);
    if (t->held) sum += k->evaluation_seconds / (judge < updates ? judge : updates);
    return sum;
}

static void average_update(const train *t, train_forecast_model *m) {
    const train_plan *p = &t->plan;
    const double updates = updates_left(p);
    m->tokens_per_update = (double)p->tokens_left / updates;
    m->rows_per_update = (double)p->rows_left / updates;
    if (p->rows_left > 0) return;
    /* Nothing is left to do: what an update of this recipe would be. */
    const double row = (double)p->tokens_per_epoch / (double)p->rows_per_epoch;
    m->rows_per_update = floor((double)t->tokens_per_step / row);
    if (m->rows_per_update < 1) m->rows_per_update = 1;
    m->tokens_per_update = m->rows_per_update * row;
}

static double target_seconds(const train *t, const train_rates_row *w) {
    return t->plan.target_flops_per_epoch / (double)t->plan.tokens_per_epoch /
           w->target_flops_per_second;
}

static void set_drafter(const train *t, const train_rates *r, const train_rates_row *w, int i,
                        train_forecast_drafter *o) {
    const train_drafter *d = &t->drafter[i];
    const train_rates_drafter *k = &w->drafter[i];
    const train_plan_drafter *p = &t->plan.drafters[i];
    o->name = d->name;
    o->params = (double)p->params;
    o->seconds_per_token =
        p->flops_per_epoch / (double)t->plan.tokens_per_epoch / k->flops_per_second;
    o->update_seconds = k->update_seconds;
    o->pause_seconds = pause_of(t, r, d, k, o->params);
    o->bytes_per_token = (double)(d->l.cfg.n_taps * d->l.cfg.hidden) * sizeof(float);
}

static err find(const train_rates *r, const char *kind, int threads, const train_rates_row **out) {
    *out = train_rates_find(r, kind, threads);
    if (*out) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "the table of rates has none of a %s device with %d threads; measure anew into "
                   "another file, with the devices of this recipe",
                   kind, threads);
}

err train_forecast_make(const train *t, const train_rates *r, const char *kind, int threads,
                        double link, train_forecast_model *out) {
    const train_rates_row *w = NULL;
    if (!threads) threads = t->target[0].on->threads;
    TRY(find(r, kind, threads, &w));
    memset(out, 0, sizeof *out);
    average_update(t, out);
    out->target_seconds_per_token = target_seconds(t, w);
    out->link_bytes_per_second = link > 0 ? link : w->copy_bytes_per_second;
    out->threads = threads;
    out->n_drafters = t->n_drafters;
    for (int i = 0; i < t->n_drafters; i++) set_drafter(t, r, w, i, &out->drafter[i]);
    return ERR_OK;
}

/* ---- the run as placed ---- */

typedef struct load {
    double device[TRAIN_MAX_DEVICES]; /* seconds of an update */
    double target[TRAIN_MAX_DEVICES], drafter[TRAIN_RATES_DRAFTERS];
    double cores; /* core seconds of all */
} load;

static err load_targets(const train *t, const train_rates *r, double tokens, load *l) {
    for (int i = 0; i < t->n_targets; i++) {
        const train_device *on = t->target[i].on;
        const train_rates_row *w = NULL;
        TRY(find(r, "cpu", on->threads, &w));
        double copies = 0;
        for (int k = 0; k < t->n_drafters; k++)
            copies += (double)(t->drafter[k].l.cfg.n_taps * t->drafter[k].l.cfg.hidden) *
                      sizeof(float) / w->copy_bytes_per_second;
        const double seconds = tokens / t->n_targets * (target_seconds(t, w) + copies);
        l->device[on - t->device] += seconds;
        l->target[i] = seconds;
        l->cores += seconds * on->threads;
    }
    return ERR_OK;
}

static err load_drafter(const train *t, const train_rates *r, int i, double tokens, double rows,
                        load *l) {
    const train_drafter *d = &t->drafter[i];
    const int n = d->n_ranks;
    const double most = train_forecast_busiest(rows, n);
    for (int k = 0; k < n; k++) {
        const train_device *on = d->rank[k].on;
        const train_rates_row *w = NULL;
        train_forecast_drafter f;
        TRY(find(r, "cpu", on->threads, &w));
        set_drafter(t, r, w, i, &f);
        const double exchange = 2.0 * (n - 1) / n * 4 * f.params / w->copy_bytes_per_second;
        const double rest = f.update_seconds / n + exchange + f.pause_seconds;
        const double seconds = tokens * most * f.seconds_per_token + rest;
        l->device[on - t->device] += seconds;
        if (seconds > l->drafter[i]) l->drafter[i] = seconds;
        l->cores +=
            (tokens / n * f.seconds_per_token + rest - f.pause_seconds * (k > 0)) * on->threads;
    }
    return ERR_OK;
}

/* Seconds of an update; with_target 0: taps are read from the feature store. */
static err load_all(const train *t, const train_rates *r, int with_target,
                    const train_forecast_model *m, load *l, double *seconds) {
    const int cpus = pool_cpus();
    memset(l, 0, sizeof *l);
    if (with_target) TRY(load_targets(t, r, m->tokens_per_update, l));
    for (int i = 0; i < t->n_drafters; i++)
        TRY(load_drafter(t, r, i, m->tokens_per_update, m->rows_per_update, l));
    *seconds = l->cores / cpus;
    for (int i = 0; i < t->n_devices; i++)
        if (l->device[i] > *seconds) *seconds = l->device[i];
    return ERR_OK;
}

err train_forecast_placed(const train *t, const train_rates *r, train_forecast_run *out) {
    train_forecast_model m = {0};
    load l, later;
    double seconds = 0, without = 0;
    const train_plan *p = &t->plan;
    const double updates = (double)(p->updates - p->from_update);
    *out = (train_forecast_run){0};
    average_update(t, &m);
    TRY(load_all(t, r, 1, &m, &l, &seconds));
    out->tokens_per_second = m.tokens_per_update / seconds;
    for (int i = 0; i < t->n_targets; i++)
        if (l.target[i] / seconds > out->target_share) out->target_share = l.target[i] / seconds;
    for (int i = 0; i < t->n_drafters; i++) out->drafter_share[i] = l.drafter[i] / seconds;
    out->seconds = updates * seconds;
    if (!recipe_text(t->r, RECIPE_features_store)[0]) return ERR_OK;
    TRY(load_all(t, r, 0, &m, &later, &without));
    const double all = (double)p->tokens_left, first = (double)p->tokens_per_epoch;
    const double share = first < all ? first / all : 1;
    out->seconds = updates * (share * seconds + (1 - share) * without);
    return ERR_OK;
}
