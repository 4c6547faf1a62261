/* What follows an update on rank 0: counts, metric row, evaluation and checkpoint when they are due, and the watcher.
 *
 * What is due depends on the update number alone. The last update always evaluates and saves. A number of updates in a row that are not
 * finite ends the drafter. Clocks feed progress and rows, nothing else. */
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>

static int64_t due(const train_drafter *d, recipe_field f) {
    return d->at.update % recipe_int(d->r, f) == 0 || d->at.update == d->at.updates;
}

static void accuracies(const train_drafter *d, const step_sums *s, double *out) {
    for (int64_t k = 1; k < d->l.cfg.block_size; k++)
        out[k - 1] = s->slots[k] ? (double)s->correct[k] / (double)s->slots[k] : NAN;
}

static err count_bad(train_drafter *d, const train__update *u) {
    const int64_t most = recipe_int(d->r, RECIPE_optimizer_max_bad_steps);
    if (!u->bad) {
        d->at.bad_in_row = 0;
        return ERR_OK;
    }
    d->at.bad_total++;
    if (++d->at.bad_in_row < most) return ERR_OK;
    return err_set(
        ERR_NUMERIC,
        "%" PRId64 " updates in a row, up to update %" PRId64
        ", had a loss or gradient that is not finite, so the run stops; lower optimizer.lr "
        "or set optimizer.clip, and continue from an earlier checkpoint",
        d->at.bad_in_row, d->at.update + 1);
}

static err update_row(train_drafter *d, const train__update *u) {
    double accuracy[STEP_MAX_BLOCK];
    accuracies(d, &u->sums, accuracy);
    row_begin(d->rows);
    row_int(d->rows, "update", d->at.update);
    row_int(d->rows, "epoch", d->at.cursor.epoch);
    row_real(d->rows, "loss", u->loss);
    row_real(d->rows, "lr", u->lr);
    row_real(d->rows, "grad_norm", u->grad_norm);
    row_int(d->rows, "tokens", u->sums.tokens);
    row_int(d->rows, "anchors", u->sums.anchors);
    row_real(d->rows, "weight", u->sums.weight);
    row_reals(d->rows, "slot_accuracy", accuracy, (int)d->l.cfg.block_size - 1);
    row_int(d->rows, "bad", u->bad);
    row_real(d->rows, "tokens_per_second", (double)u->sums.tokens / (u->seconds + 1e-9));
    return row_end(d->rows);
}

typedef struct pulse {
    train *t;
    const train_role *role;
    int64_t update;
} pulse;
static err beat(void *ctx) {
    const pulse *p = ctx;
    return train__phase(p->t, p->role, "evaluation", p->update);
}

/* *improved: this evaluation is the best so far. */
static err evaluate(train *t, train_rank *k, int *improved) {
    train_drafter *d = k->of;
    decode_stats s;
    double histogram[DECODE_MAX_BLOCK];
    pulse p = {t, &k->role, d->at.update};
    train__begin_turn(k->on, &k->role, d->at.update);
    err e = evaluate_run(&t->prompts, k->on->d, t->t, &d->l, k->params, beat, &p, &s);
    train__end_turn(k->on);
    TRY(e);
    d->at.tau = decode_tau(&s);
    *improved = isfinite(d->at.tau) && !(d->at.tau <= d->at.best_tau);
    if (*improved) {
        d->at.best_tau = d->at.tau;
        d->at.best_update = d->at.update;
    }
    for (int64_t i = 0; i < d->l.cfg.block_size; i++) histogram[i] = (double)s.histogram[i];
    row_begin(d->rows);
    row_int(d->rows, "update", d->at.update);
    row_text(d->rows, "kind", "evaluation");
    row_real(d->rows, "tau", d->at.tau);
    row_int(d->rows, "prompts", t->prompts.n);
    row_int(d->rows, "rounds", s.rounds);
    row_int(d->rows, "committed", s.committed);
    row_reals(d->rows, "accepted_histogram", histogram, (int)d->l.cfg.block_size);
    row_int(d->rows, "unmoved", d->unmoved);
    return row_end(d->rows);
}

static void report(train *t, train_drafter *d, const train__update *u) {
    const int64_t done = d->at.update - d->first_update;
    train_progress p = {.drafter = d->name,
                        .update = d->at.update,
                        .updates = d->at.updates,
                        .epoch = d->at.cursor.epoch,
                        .loss = u->loss,
                        .lr = u->lr,
                        .grad_norm = u->grad_norm,
                        .tau = d->at.tau,
                        .bad_steps = d->at.bad_total,
                        .unmoved = d->unmoved};
    p.tokens_per_second = (double)u->sums.tokens / (u->seconds + 1e-9);
    p.seconds_left = d->seconds / (double)done * (double)(d->at.updates - d->at.update);
    p.slots = (int)d->l.cfg.block_size - 1;
    accuracies(d, &u->sums, p.slot_accuracy);
    pthread_mutex_lock(&t->guard);
    d->shown = p;
    pthread_mutex_unlock(&t->guard);
    if (!t->watch) return;
    pthread_mutex_lock(&t->watching);
    t->watch(t->watch_ctx, &p);
    pthread_mutex_unlock(&t->watching);
}

err train__follow(train *t, train_rank *k, train__update *u) {
    train_drafter *d = k->of;
    int improved = 0;
    TRY(count_bad(d, u));
    d->at.update++;
    d->at.cursor = *train__mark(t, d->at.update);
    d->seconds += u->seconds;
    TRY(update_row(d, u));
    const int last = d->at.update == d->at.updates;
    const int save = due(d, RECIPE_run_checkpoint_every) != 0,
              judge = t->held && due(d, RECIPE_run_evaluate_every);
    if (save || judge) d->unmoved = train__count_unmoved(d);
    if (judge) TRY(evaluate(t, k, &improved));
    d->at.finished = last;
    report(t, d, u);
    /* A rank alone need not wait for the next update's sums to tell the others. */
    if (d->n_ranks == 1 && t->stop && *t->stop) u->stop = 1;
    if (save || improved || u->stop) {
        TRY(train__phase(t, &k->role, "checkpoint", d->at.update));
        TRY(train__save(t, d));
    }
    return ERR_OK;
}
