/* The board of a run's roles and its first failure: see heart.h.
 *
 * The board is a seqlock per role: the role's own thread writes, readers try a few times and then take what they have, so that
 * a role that is stopped in the middle of a beat never stops its reader. Times are monotonic nanoseconds.
 * Roles are never reused: a snapshot shows also those that left. Nothing here starts or ends a thread. */
#include "dist/heart_private.h"
#include "core/arena.h"
#include "core/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { READ_SPINS = 64, READ_TRIES = 200 };

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

err heart_create(heart **out, int max_roles) {
    *out = NULL;
    if (max_roles < 1 || max_roles > HEART_MAX_ROLES)
        return err_set(ERR_RANGE, "a run of %d roles was asked for; 1 to %d are possible",
                       max_roles, HEART_MAX_ROLES);
    heart *h;
    TRY(mem_new(1, sizeof *h, &h));
    err e = mem_new((size_t)max_roles, sizeof *h->roles, &h->roles);
    if (!e) e = heart__take_signal(&h->signal);
    if (e) {
        mem_free(h->roles);
        mem_free(h);
        return e;
    }
    h->max_roles = max_roles;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->someone_left, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->asking, NULL);
    *out = h;
    return ERR_OK;
}

void heart_destroy(heart *h) {
    if (!h) return;
    heart__give_signal(h->signal);
    pthread_cond_destroy(&h->someone_left);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->asking);
    mem_free(h->roles);
    mem_free(h);
}

err heart_join(heart *h, const char *name, heart_role **out) {
    *out = NULL;
    if (strlen(name) >= HEART_NAME)
        return err_set(ERR_RANGE, "the role's name '%.80s' is longer than %d bytes", name,
                       HEART_NAME - 1);
    pthread_mutex_lock(&h->lock);
    const int n = atomic_load(&h->n_roles);
    if (n == h->max_roles) {
        pthread_mutex_unlock(&h->lock);
        return err_set(ERR_RANGE, "role '%s' is one more than the %d that this run was made for",
                       name, h->max_roles);
    }
    heart_role *r = &h->roles[n];
    r->h = h;
    snprintf(r->name, sizeof r->name, "%s", name);
    r->thread = pthread_self();
    const int64_t now = now_ns();
    atomic_store(&r->phase, "joined");
    atomic_store(&r->joined_at, now);
    atomic_store(&r->beat_at, now);
    heart__open_to_signal(r);
    atomic_store(&h->n_roles, n + 1); /* readers see a whole role */
    pthread_mutex_unlock(&h->lock);
    *out = r;
    return ERR_OK;
}

/* Ends a wait if there is one, and says what is the case from now on. By the role's own thread. */
static void turn(heart_role *r, const char *phase, int64_t step, int waiting) {
    atomic_fetch_add(&r->version, 1);
    const int64_t now = now_ns(); /* later than that of any reader who saw what was before */
    if (atomic_load(&r->waiting))
        atomic_store(&r->waited, atomic_load(&r->waited) + now - atomic_load(&r->beat_at));
    atomic_store(&r->phase, phase);
    atomic_store(&r->step, step);
    atomic_store(&r->waiting, waiting);
    atomic_store(&r->beat_at, now);
    atomic_fetch_add(&r->version, 1);
}

void heart_beat(heart_role *r, const char *phase, int64_t step) { turn(r, phase, step, 0); }

void heart_wait(heart_role *r, const char *what, int64_t step) {
    if (atomic_load(&r->waiting) && atomic_load(&r->phase) == what && atomic_load(&r->step) == step)
        return;
    turn(r, what, step, 1);
}

void heart_leave(heart_role *r) {
    heart *h = r->h;
    turn(r, atomic_load(&r->phase), atomic_load(&r->step), 0);
    pthread_mutex_lock(&h->lock);
    atomic_store(&r->left_at, atomic_load(&r->beat_at));
    atomic_store(&r->left, 1); /* nobody signals this thread from here on */
    pthread_cond_broadcast(&h->someone_left);
    pthread_mutex_unlock(&h->lock);
    heart__close_to_signal(r);
}

/* ---- the first failure ---- */

int heart_fail(heart *h, heart_role *r, err e) {
    if (e == ERR_OK) return 0;
    int first = 0;
    pthread_mutex_lock(&h->lock);
    if (!atomic_load(&h->failed)) {
        first = 1;
        snprintf(h->failure, sizeof h->failure, "%s%s%s", r ? r->name : "", r ? ": " : "",
                 err_text());
        atomic_store(&h->failed, (int)e);
    }
    pthread_mutex_unlock(&h->lock);
    return first;
}

err heart_failure(const heart *h) {
    const int code = atomic_load(&h->failed);
    /* The text was written once, before the code, and never again. */
    return code ? err_set((err)code, "%s", h->failure) : ERR_OK;
}

int heart_ending(const heart *h) { return atomic_load(&h->failed) != 0; }

/* ---- reading ---- */

static void view(const heart_role *r, heart_view *v) {
    uint64_t before;
    int64_t beat, waited, now;
    int tries = 0;
    memcpy(v->name, r->name, sizeof v->name);
    do {
        /* A writer that lost its CPU in the middle gets a moment to come back. */
        if (tries > READ_SPINS) nanosleep(&(struct timespec){0, 100000}, NULL);
        v->left = atomic_load(&r->left); /* first: of one that left, all below is its last word */
        before = atomic_load(&r->version);
        v->phase = atomic_load(&r->phase);
        v->step = atomic_load(&r->step);
        v->waiting = atomic_load(&r->waiting);
        beat = atomic_load(&r->beat_at);
        waited = atomic_load(&r->waited);
        now = now_ns();
        v->torn = before % 2 || before != atomic_load(&r->version);
    } while (v->torn && ++tries < READ_TRIES);
    if (v->waiting && now > beat) waited += now - beat;
    v->age = now > beat ? (double)(now - beat) * 1e-9 : 0;
    v->waited = (double)waited * 1e-9;
    v->lived =
        (double)((v->left ? atomic_load(&r->left_at) : now) - atomic_load(&r->joined_at)) * 1e-9;
}

int heart_snapshot(const heart *h, heart_view *out, int cap) {
    int n = atomic_load(&h->n_roles);
    if (n > cap) n = cap;
    for (int i = 0; i < n; i++) view(&h->roles[i], &out[i]);
    return n;
}

static err role_line(const heart_role *r, str *out) {
    heart_view v;
    char span[16];
    view(r, &v);
    if (v.left)
        return str_printf(out, "%s: left after '%s', step %" PRId64 "\n", v.name, v.phase, v.step);
    return str_printf(out, "%s: %s '%s', step %" PRId64 ", for %s\n", v.name,
                      v.waiting ? "waits for" : "works at", v.phase, v.step,
                      clock_span(v.age, span));
}

err heart_text(const heart *h, str *out) {
    const int n = atomic_load(&h->n_roles);
    for (int i = 0; i < n; i++) TRY(role_line(&h->roles[i], out));
    return ERR_OK;
}

static int living(const heart *h) {
    int n = 0;
    for (int i = 0; i < atomic_load(&h->n_roles); i++) n += !atomic_load(&h->roles[i].left);
    return n;
}

/* The sentence about roles that are still there when the time is over. */
static err still_there(const heart *h, double seconds) {
    str text = {0};
    err e = ERR_OK;
    const int n = atomic_load(&h->n_roles);
    for (int i = 0; i < n && !e; i++) {
        const heart_role *r = &h->roles[i];
        if (atomic_load(&r->left)) continue;
        heart_view v;
        view(r, &v);
        e = str_printf(&text, "%s%s (%s '%s', step %" PRId64 ", for %.1f s)", text.n ? ", " : "",
                       v.name, v.waiting ? "waits for" : "works at", v.phase, v.step, v.age);
    }
    if (!e)
        e = err_set(ERR_INTERNAL, "not ended within %.1f s: %s", seconds, text.s ? text.s : "none");
    str_free(&text);
    return e;
}

err heart_join_all(heart *h, double seconds) {
    const int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    const struct timespec until = {end / 1000000000, end % 1000000000};
    int waited = 0, left;
    pthread_mutex_lock(&h->lock);
    while ((left = living(h)) != 0 && !waited)
        waited = pthread_cond_timedwait(&h->someone_left, &h->lock, &until);
    pthread_mutex_unlock(&h->lock);
    return left ? still_there(h, seconds) : ERR_OK;
}
