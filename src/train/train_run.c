/* The run's loop: update, metric row, evaluation and checkpoint when they are due, and the way out.
 *
 * What is due depends on the update number alone. A stop request is honoured after a whole update, with everything
 * saved. The last update always evaluates and saves. Clocks feed progress and rows, nothing else. */
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>

static int64_t due(const train *t, recipe_field f) {
    return t->at.update % recipe_int(t->r, f) == 0 || t->at.update == t->at.updates;
}

static void accuracies(const train *t, const step_sums *s, double *out) {
    for (int64_t k = 1; k < t->l.cfg.block_size; k++)
        out[k - 1] = s->slots[k] ? (double)s->correct[k] / (double)s->slots[k] : NAN;
}

static err update_row(train *t, const train__update *u) {
    double accuracy[STEP_MAX_BLOCK];
    accuracies(t, &u->sums, accuracy);
    row_begin(t->rows);
    row_int(t->rows, "update", t->at.update);
    row_int(t->rows, "epoch", t->at.cursor.epoch);
    row_real(t->rows, "loss", u->loss);
    row_real(t->rows, "lr", u->lr);
    row_real(t->rows, "grad_norm", u->grad_norm);
    row_int(t->rows, "tokens", u->sums.tokens);
    row_int(t->rows, "anchors", u->sums.anchors);
    row_real(t->rows, "weight", u->sums.weight);
    row_reals(t->rows, "slot_accuracy", accuracy, (int)t->l.cfg.block_size - 1);
    row_int(t->rows, "bad", u->bad);
    row_real(t->rows, "tokens_per_second", (double)u->sums.tokens / (u->seconds + 1e-9));
    return row_end(t->rows);
}

/* *improved: this evaluation is the best so far. */
static err evaluate(train *t, int *improved) {
    decode_stats s;
    double histogram[DECODE_MAX_BLOCK];
    TRY(evaluate_run(&t->prompts, t->d, t->t, &t->l, t->params, &s));
    t->at.tau = decode_tau(&s);
    *improved = isfinite(t->at.tau) && !(t->at.tau <= t->at.best_tau);
    if (*improved) {
        t->at.best_tau = t->at.tau;
        t->at.best_update = t->at.update;
    }
    for (int64_t i = 0; i < t->l.cfg.block_size; i++) histogram[i] = (double)s.histogram[i];
    row_begin(t->rows);
    row_int(t->rows, "update", t->at.update);
    row_text(t->rows, "kind", "evaluation");
    row_real(t->rows, "tau", t->at.tau);
    row_int(t->rows, "prompts", t->prompts.n);
    row_int(t->rows, "rounds", s.rounds);
    row_int(t->rows, "committed", s.committed);
    row_reals(t->rows, "accepted_histogram", histogram, (int)t->l.cfg.block_size);
    row_int(t->rows, "unmoved", t->unmoved);
    return row_end(t->rows);
}

static void report(const train *t, const train__update *u, train_watch watch, void *ctx) {
    if (!watch) return;
    const int64_t done = t->at.update - t->first_update;
    train_progress p = {.update = t->at.update,
                        .updates = t->at.updates,
                        .epoch = t->at.cursor.epoch,
                        .loss = u->loss,
                        .lr = u->lr,
                        .grad_norm = u->grad_norm,
                        .tau = t->at.tau,
                        .bad_steps = t->at.bad_total,
                        .unmoved = t->unmoved};
    p.tokens_per_second = (double)u->sums.tokens / (u->seconds + 1e-9);
    p.seconds_left = t->seconds / (double)done * (double)(t->at.updates - t->at.update);
    p.slots = (int)t->l.cfg.block_size - 1;
    accuracies(t, &u->sums, p.slot_accuracy);
    watch(ctx, &p);
}

/* One update and what follows it; *stopped: a request was honoured. */
static err turn(train *t, train_watch watch, void *ctx, const volatile int *stop, int *stopped) {
    train__update u;
    int improved = 0;
    TRY(train__one_update(t, &u));
    TRY(update_row(t, &u));
    const int last = t->at.update == t->at.updates;
    const int save = due(t, RECIPE_run_checkpoint_every) != 0,
              judge = t->held && due(t, RECIPE_run_evaluate_every);
    if (save || judge) t->unmoved = train__count_unmoved(t);
    if (judge) TRY(evaluate(t, &improved));
    report(t, &u, watch, ctx);
    *stopped = !last && stop && *stop;
    t->at.finished = last;
    if (save || improved || *stopped) TRY(train__save(t));
    return ERR_OK;
}

err train_run(train *t, train_watch watch, void *ctx, const volatile int *stop) {
    int stopped = stop && *stop && t->at.update < t->at.updates;
    while (!stopped && t->at.update < t->at.updates) TRY(turn(t, watch, ctx, stop, &stopped));
    if (!stopped) return ERR_OK;
    return err_set(ERR_STOPPED,
                   "stopped after update %" PRId64 " of %" PRId64
                   "; run the same command to continue",
                   t->at.update, t->at.updates);
}

void train_memory(const train *t, train_memory_counts *out) {
    arena_stats s, w;
    arena_get_stats(t->state, &s);
    arena_get_stats(t->work, &w);
    *out = (train_memory_counts){.reserved = s.reserved + w.reserved,
                                 .peak = s.peak + w.peak,
                                 .system_calls = s.system_calls + w.system_calls};
}
