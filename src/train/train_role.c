/* What every role's thread needs: phases shown on the board, turns on a device, and the way a failure ends the others.
 *
 * A role that fails says why once; then everything it could be waited for in is closed: rings, groups, the feed. Those that wait there
 * come back with ERR_STOPPED and end as well, so nobody is left waiting for a role that is gone. It starts and joins no
 * threads: that is train_run.c. */
#include "core/log.h"
#include "train/train_parts.h"
#include <stdio.h>

err train__phase(train *t, const train_role *role, const char *phase, int64_t at) {
    heart_beat(role->heart, phase, at);
    if (t->opt.on_phase) TRY(t->opt.on_phase(t->opt.on_phase_ctx, role->name, phase, at));
    if (heart_ending(t->heart)) return err_set(ERR_STOPPED, "the run is ending");
    return ERR_OK;
}

void train__wait(const train_role *role, const char *what, int64_t at) {
    heart_wait(role->heart, what, at);
}

void train__begin_turn(train_device *on, const train_role *role, int64_t at) {
    if (pthread_mutex_trylock(&on->turn) == 0) return;
    heart_wait(role->heart, "its turn on the device", at);
    pthread_mutex_lock(&on->turn);
    heart_beat(role->heart, "its turn", at);
}

void train__end_turn(train_device *on) { pthread_mutex_unlock(&on->turn); }

void train__count_memory(train *t, train_role *role, arena *const *a, int n) {
    train_memory_counts sum = {0};
    for (int i = 0; i < n; i++) {
        arena_stats s;
        if (!a[i]) continue;
        arena_get_stats(a[i], &s);
        sum.reserved += s.reserved;
        sum.peak += s.peak;
        sum.system_calls += s.system_calls;
    }
    pthread_mutex_lock(&t->guard);
    role->memory = sum;
    pthread_mutex_unlock(&t->guard);
}

static void add_memory(const train_role *role, train_memory_counts *out) {
    out->reserved += role->memory.reserved;
    out->peak += role->memory.peak;
    out->system_calls += role->memory.system_calls;
}

void train_memory(const train *t, train_memory_counts *out) {
    pthread_mutex_t *guard = (pthread_mutex_t *)&t->guard;
    *out = (train_memory_counts){0};
    pthread_mutex_lock(guard);
    for (int i = 0; i < t->n_targets; i++) add_memory(&t->target[i].role, out);
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; k < t->drafter[i].n_ranks; k++)
            add_memory(&t->drafter[i].rank[k].role, out);
    pthread_mutex_unlock(guard);
}

int64_t train_target_rows(const train *t) {
    pthread_mutex_t *guard = (pthread_mutex_t *)&t->guard;
    pthread_mutex_lock(guard);
    const int64_t n = t->forwards;
    pthread_mutex_unlock(guard);
    return n;
}

static void close_drafter(train_drafter *d) {
    group_abort(d->group);
    for (int i = 0; i < d->n_ranks; i++) ring_close(d->rank[i].in);
}

/* Nobody waits any more, for anything. */
static void close_all(train *t) {
    feed_close(t->feed);
    for (int i = 0; i < t->n_drafters; i++) close_drafter(&t->drafter[i]);
}

static int goes_on_without(const train *t, const train_drafter *failed) {
    if (recipe_text(t->r, RECIPE_run_on_drafter_error)[0] != 'c') return 0;
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        if (d != failed && !d->failed && !d->stopped) return 1;
    }
    return 0;
}

void train__fail(train *t, train_drafter *d, const train_role *role, err e) {
    pthread_mutex_lock(&t->guard);
    const int first = d && !d->failed;
    if (first) {
        d->failed = e;
        snprintf(d->failure, sizeof d->failure, "%s: %s", role->name, err_text());
    }
    /* A drafter that only follows the end of the run has not failed for itself. */
    const int follows = e == ERR_STOPPED && heart_ending(t->heart);
    const int alone = first && !follows && goes_on_without(t, d);
    pthread_mutex_unlock(&t->guard);
    if (d && !first) return; /* its drafter's failure is known already */
    if (alone) {
        log_error("%s; the other drafters go on", d->failure);
        close_drafter(d);
        return;
    }
    heart_fail(t->heart, role->heart, e);
    close_all(t);
}

int train__is_over(train *t, train_drafter *d) {
    pthread_mutex_lock(&t->guard);
    const int over = d->failed || d->ended == d->n_ranks;
    pthread_mutex_unlock(&t->guard);
    return over;
}
