/* A drafter rank's role: update after update until the run's last, a request to stop, or a failure.
 *
 * All ranks of a drafter leave after the same update: a request is seen by rank 0 and told with the update's sums. When the run
 * ends early for another's reason, rank 0 still saves what it has, if weights and moments are those of a whole
 * update. What an update is stands in train_update.c, what follows it in train_report.c. */
#include "core/log.h"
#include "train/train_parts.h"
#include <stdio.h>

void train__count_rank_memory(train *t, train_rank *k) {
    arena *const mine[] = {k->state, k->work, k->rank ? NULL : k->of->state};
    train__count_memory(t, &k->role, mine, 3);
}

static err updates(train *t, train_rank *k) {
    train_drafter *d = k->of;
    int stop = 0;
    while (!stop && k->update < t->plan.updates) {
        train__update u;
        TRY(train__one_update(t, k, &u));
        if (k->rank == 0) TRY(train__follow(t, k, &u));
        train__count_rank_memory(t, k);
        stop = u.stop && k->update < t->plan.updates;
    }
    if (!stop) return ERR_OK;
    pthread_mutex_lock(&t->guard);
    d->stopped = 1;
    pthread_mutex_unlock(&t->guard);
    return ERR_OK;
}

/* e is what ended this rank; the text of it is kept. */
static err end_early(train *t, train_rank *k, err e) {
    train_drafter *d = k->of;
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    pthread_mutex_lock(&t->guard);
    const int lost = t->lost;
    pthread_mutex_unlock(&t->guard);
    const int own = lost || e == ERR_NUMERIC || e == ERR_IO || e == ERR_REFUSED;
    if (k->rank == 0 && k->whole && !own && d->at.update > d->saved_update && d->at.update > 0) {
        if (train__save(t, d))
            log_warn("%s: what was reached by update %lld could not be saved: %s", k->role.name,
                     (long long)d->at.update, err_text());
        else
            log_info("%s: saved at update %lld", k->role.name, (long long)d->at.update);
    }
    return err_set(e, "%s", why);
}

err train__rank_role(train *t, train_rank *k) {
    k->whole = 1;
    err e = updates(t, k);
    return e ? end_early(t, k, e) : ERR_OK;
}
