/* A run's threads: one per role, started together, watched, joined; and what the caller is told at the end.
 *
 * The main thread only waits. When a failure or a request ends the run it gives the roles run.end_seconds; roles that have not ended then
 * are named, nothing of the run is freed, and the caller must end the process. A role's own work is in train_targets.c and
 * train_ranks.c. */
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"
#include "train/train_parts.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct part {
    train *t;
    train_target *target; /* one of the two */
    train_rank *rank;
    pthread_t thread;
} part;

static err play(part *p) {
    return p->target ? train__target_role(p->t, p->target) : train__rank_role(p->t, p->rank);
}

/* The drafter's ranks have all ended, or this was the last drafter: nobody waits for them. */
static void leave(train *t, train_rank *k) {
    train_drafter *d = k->of;
    int open = 0;
    ring_close(k->in);
    pthread_mutex_lock(&t->guard);
    d->ended++;
    for (int i = 0; i < t->n_drafters; i++) open |= t->drafter[i].ended < t->drafter[i].n_ranks;
    pthread_mutex_unlock(&t->guard);
    if (!open) feed_close(t->feed);
}

static void *part_main(void *arg) {
    part *p = arg;
    train *t = p->t;
    train_role *role = p->target ? &p->target->role : &p->rank->role;
    err e = heart_join(t->heart, role->name, &role->heart);
    if (!e) {
        e = play(p);
        if (e) train__fail(t, p->rank ? p->rank->of : NULL, role, e);
        heart_leave(role->heart);
    } else {
        train__fail(t, NULL, role, e);
    }
    if (p->rank) leave(t, p->rank);
    pthread_mutex_lock(&t->guard);
    t->running--;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->guard);
    return NULL;
}

static int count_parts(const train *t) {
    int n = t->n_targets;
    for (int i = 0; i < t->n_drafters; i++) n += t->drafter[i].n_ranks;
    return n;
}

/* Starts what it can; a thread that cannot be had is a failure of the run like any other. */
static int start(train *t, part *parts, int n) {
    for (int i = 0; i < n; i++) {
        t->running++;
        const int code = thread_start(&parts[i].thread, 2 * POOL_STACK, THREAD_SIGNALS, part_main,
                                      &parts[i]); /* it works beside its device's pool */
        if (!code) continue;
        t->running--;
        train_role none = {.name = "the run"};
        err e =
            err_set(ERR_MEMORY, "thread %d of %d cannot be started: %s", i + 1, n, strerror(code));
        pthread_mutex_unlock(&t->guard);
        train__fail(t, NULL, &none, e);
        pthread_mutex_lock(&t->guard);
        return i;
    }
    return n;
}

/* Until no role runs any more, or those that do have overstayed the deadline of an ending run. A request to stop gives each
 * drafter the time of one update first, so the deadline begins with the first role that ends after it. */
static void wait_for_all(train *t) {
    const double allowed = (double)recipe_int(t->r, RECIPE_run_end_seconds);
    double since = 0;
    int asked = 0; /* roles that ran when the request was seen */
    while (t->running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        (void)pthread_cond_timedwait(&t->changed, &t->guard, &until);
        if (!asked && t->stop && *t->stop) asked = t->running;
        const int ending = heart_ending(t->heart) || t->running < asked;
        if (!ending) since = 0;
        if (ending && since <= 0) since = clock_seconds();
        if (ending && clock_seconds() - since > allowed) {
            t->abandoned = 1;
            return;
        }
    }
}

static err describe_end(train *t) {
    int stopped = 0;
    int64_t update = -1;
    TRY(heart_failure(t->heart));
    for (int i = 0; i < t->n_drafters; i++) {
        train_drafter *d = &t->drafter[i];
        if (d->failed) return err_set(d->failed, "%s", d->failure);
        stopped |= d->stopped;
        if (update < 0 || d->at.update < update) update = d->at.update;
    }
    if (!stopped) return ERR_OK;
    return err_set(ERR_STOPPED,
                   "stopped after update %" PRId64 " of %" PRId64
                   "; run the same command to continue",
                   update, t->plan.updates);
}

/* Those that have not ended, by name and what they did last. */
static err describe_abandoned(train *t) {
    err e = heart_failure(t->heart);
    char why[1024];
    snprintf(why, sizeof why, "%s", e ? err_text() : "the run was asked to stop");
    err late = heart_join_all(t->heart, 0);
    if (!late) return e;
    log_error("%s", err_text());
    return err_set(e ? e : ERR_INTERNAL,
                   "%s; not every role ended within run.end_seconds, so the process ends now", why);
}

static err run_parts(train *t, part *parts, int n) {
    int at = 0;
    for (int i = 0; i < t->n_targets; i++) parts[at++] = (part){.t = t, .target = &t->target[i]};
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; k < t->drafter[i].n_ranks; k++)
            parts[at++] = (part){.t = t, .rank = &t->drafter[i].rank[k]};
    pthread_mutex_lock(&t->guard);
    const int started = start(t, parts, n);
    wait_for_all(t);
    pthread_mutex_unlock(&t->guard);
    if (t->abandoned) return describe_abandoned(t);
    for (int i = 0; i < started; i++) pthread_join(parts[i].thread, NULL);
    return describe_end(t);
}

static int is_done(const train *t) {
    int done = 1;
    for (int i = 0; i < t->n_drafters; i++) done &= t->drafter[i].at.update >= t->plan.updates;
    return done;
}

/* A finished run that is started again is as done as before; so is one whose end now lies behind where it stands, but that may be a
 * slip of whoever lowered it. */
static void say_nothing_is_left(const train *t) {
    const int64_t most = recipe_int(t->r, RECIPE_run_max_updates);
    if (most && t->from_update > most)
        log_warn("%s is at update %" PRId64 " already, beyond run.max_updates %" PRId64
                 ": nothing is left to do, and the run stays as it is",
                 t->run, t->from_update, most);
    else if (!most && t->from.epoch > t->epochs - (t->from.next == 0))
        log_warn("%s is at update %" PRId64 " in epoch %" PRId64
                 " already, beyond run.epochs %" PRId64
                 ": nothing is left to do, and the run stays as it is",
                 t->run, t->from_update, t->from.epoch, t->epochs);
    else if (!t->opt.quiet)
        log_info("%s is at its last update, %" PRId64 ": nothing is left to do", t->run,
                 t->from_update);
}

static err run(train *t, const _Atomic int *stop) {
    part *parts = NULL;
    watchdog *w = NULL;
    const int n = count_parts(t);
    if (is_done(t)) {
        say_nothing_is_left(t);
        return ERR_OK;
    }
    if (stop && *stop)
        return err_set(ERR_STOPPED,
                       "stopped before update %" PRId64 " of %" PRId64
                       "; run the same command to continue",
                       t->from_update + 1, t->plan.updates);
    TRY(mem_new((size_t)n, sizeof *parts, &parts));
    err e = train__start_watchdog(t, &w);
    if (!e) e = run_parts(t, parts, n);
    watchdog_stop(w);
    if (!t->abandoned) mem_free(parts);
    return e;
}

err train_run(train *t, train_watch watch, void *ctx, const _Atomic int *stop) {
    t->watch = watch;
    t->watch_ctx = ctx;
    t->stop = stop;
    err e = live_run_close(t->live, run(t, stop));
    t->live = NULL;
    return e;
}

int train_is_abandoned(const train *t) { return t && t->abandoned; }
