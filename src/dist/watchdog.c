/* The watchdog's thread: tick, look, report once: see watchdog.h.
 *
 * Ages come from the heart's board. When the thread's own sleep took more than a second too long, or one tick's work half of the time
 * that makes a stall, the process was not running: ages then count from there, or every stopped job would be a stall when it goes on.
 * It asks for stacks only after a stall was found, and reading the board never waits for a role. */
#include "dist/watchdog.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/pool.h"
#include "core/thread.h"
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#define TICK    0.5
#define STOPPED 1.0 /* seconds of lateness from which on the process was stopped */

struct watchdog {
    heart *h;
    watchdog_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int ending; /* under lock */
    int reported;
    double counts_from; /* clock_seconds: what lies before is not counted */
    double woken;       /* clock_seconds of the last tick */
    heart_view *views;
};

/* What stands still: the index of a working role, -1 for all waiting, or -2 for nothing. */
enum { ALL_WAIT = -1, NOTHING = -2 };
static int find_stall(const watchdog *w, const heart_view *v, int n, double *age) {
    const double most = clock_seconds() - w->counts_from;
    int living = 0, waiting = 0;
    double shortest = most;
    for (int i = 0; i < n; i++) {
        if (v[i].left) continue;
        *age = v[i].age < most ? v[i].age : most;
        living++;
        waiting += v[i].waiting;
        if (!v[i].waiting && *age > w->o.stall_seconds) return i;
        if (*age < shortest) shortest = *age;
    }
    *age = shortest;
    return living && waiting == living && shortest > w->o.stall_seconds ? ALL_WAIT : NOTHING;
}

static err make_report(const watchdog *w, const heart_view *v, int who, double age, str *out) {
    if (who == ALL_WAIT)
        TRY(str_printf(out, "all roles wait for each other since %.1f s\n", age));
    else
        TRY(str_printf(out, "%s gives no sign of life since %.1f s, in '%s' of step %" PRId64 "\n",
                       v[who].name, age, v[who].phase, v[who].step));
    TRY(heart_text(w->h, out));
    return heart_stacks(w->h, out);
}

static void look(watchdog *w) {
    double age;
    const int n = heart_snapshot(w->h, w->views, HEART_MAX_ROLES);
    /* Stopped since this tick began, so these ages mean nothing: the next sleep starts counting anew. */
    if (clock_seconds() - w->woken > w->o.stall_seconds / 2) return;
    const int who = find_stall(w, w->views, n, &age);
    if (who == NOTHING) return;
    str report = {0};
    w->reported = 1;
    /* A report that could not be finished still says what it has. */
    if (make_report(w, w->views, who, age, &report)) err_clear();
    w->o.on_stall(w->o.ctx, report.s ? report.s : "a role gives no sign of life");
    str_free(&report);
}

/* One tick's sleep; 1: the watchdog is to end. */
static int sleep_a_tick(watchdog *w) {
    const double before = clock_seconds(), busy = before - w->woken,
                 until = before + w->o.tick_seconds;
    const struct timespec t = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&w->lock);
    while (!w->ending && pthread_cond_timedwait(&w->wake, &w->lock, &t) != ETIMEDOUT) {
    }
    const int ending = w->ending;
    pthread_mutex_unlock(&w->lock);
    w->woken = clock_seconds();
    if (w->woken - until > STOPPED || busy > w->o.stall_seconds / 2) w->counts_from = w->woken;
    return ending;
}

static void *watch(void *ctx) {
    watchdog *w = ctx;
    int ending;
    do {
        ending = sleep_a_tick(w);
        if (w->o.on_tick) w->o.on_tick(w->o.ctx);
        if (!ending && !w->reported && w->o.on_stall && w->o.stall_seconds > 0) look(w);
    } while (!ending);
    return NULL;
}

static err start_thread(watchdog *w) {
    errno = thread_start(&w->thread, POOL_STACK, THREAD_NO_SIGNALS, watch, w);
    return errno ? err_errno("the watchdog's thread could not be started") : ERR_OK;
}

static void dispose(watchdog *w) {
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mem_free(w->views);
    mem_free(w);
}

err watchdog_start(watchdog **out, heart *h, const watchdog_options *o) {
    *out = NULL;
    watchdog *w;
    TRY(mem_new(1, sizeof *w, &w));
    w->h = h;
    w->o = *o;
    if (w->o.tick_seconds <= 0) w->o.tick_seconds = TICK;
    w->counts_from = w->woken = clock_seconds();
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    err e = mem_new(HEART_MAX_ROLES, sizeof *w->views, &w->views);
    if (!e) e = start_thread(w);
    if (e) {
        dispose(w);
        return e;
    }
    *out = w;
    return ERR_OK;
}

void watchdog_stop(watchdog *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ending = 1;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    dispose(w);
}
