/* The run as others see it: the live record filled in at every tick of the watchdog, and what happens when it finds a stall.
 *
 * Figures that role threads own are read from what they publish under the run's guard, from the heart and from the rings. A stall is logged
 * with every role's place and stack, and with what the threads of each device's pool work at, and fails the run; roles that can still be reached end, and what they have is
 * saved. How the record is written is live_run.c's business. */
#include "core/clock.h"
#include "core/log.h"
#include "core/symbol.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void train__tell(train *t, const char *state, const char *doing) {
    if (!t->live) return;
    live_record *r = live_run_begin(t->live);
    snprintf(r->state, sizeof r->state, "%s", state);
    snprintf(r->doing, sizeof r->doing, "%s", doing);
    live_run_end(t->live, 1);
}

/* Bytes a second since this set's first beat, 0 while nothing can be said. */
static double reading_rate(train *t, int64_t bytes_done) {
    const double now = clock_seconds();
    if (t->reading.since <= 0 || bytes_done < t->reading.from) {
        t->reading.since = now;
        t->reading.from = bytes_done;
    }
    const double seconds = now - t->reading.since;
    return seconds > 0.5 ? (double)(bytes_done - t->reading.from) / seconds : 0;
}

/* While rows are prepared, from the thread that opens the run. */
void train__data_beat(void *ctx, int64_t lines, int64_t bytes_done, int64_t bytes_all) {
    train *t = ctx;
    char a[24], b[24], c[24], n[32], left[16], text[160];
    const double rate = reading_rate(t, bytes_done);
    int at = snprintf(text, sizeof text, "rows: %s read, %s of %s", str_thousands(lines, n),
                      str_bytes((double)bytes_done, a), str_bytes((double)bytes_all, b));
    if (rate > 0 && at > 0 && at < (int)sizeof text)
        snprintf(text + at, sizeof text - (size_t)at, ", %s/s, %s left", str_bytes(rate, c),
                 clock_span((double)(bytes_all - bytes_done) / rate, left));
    if (t->opt.on_rows) t->opt.on_rows(t->opt.on_rows_ctx, text);
    if (!t->live) return;
    live_record *r = live_run_begin(t->live);
    snprintf(r->doing, sizeof r->doing, "%s", text);
    live_run_end(t->live, 0);
}

/* What rank 0 of a drafter is doing, in the words of status. */
static const char *state_of(const live_record *r, const train_drafter *d) {
    if (d->failed) return "failed";
    if (d->stopped) return "stopped";
    if (d->ended == d->n_ranks) return "finished";
    for (int i = 0; i < r->n_roles; i++) {
        if (strcmp(r->roles[i].name, d->rank[0].role.name) != 0) continue;
        if (!strcmp(r->roles[i].phase, "checkpoint")) return "saving";
        if (!strcmp(r->roles[i].phase, "evaluation")) return "evaluating";
    }
    return "training";
}

static void fill_drafters(const train *t, live_record *r) {
    r->n_drafters = t->n_drafters;
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        const train_progress *p = &d->shown;
        live_drafter *o = &r->drafters[i];
        *o = (live_drafter){.update = p->update,
                            .updates = p->updates,
                            .epoch = p->epoch,
                            .saved = d->saved_update,
                            .loss = p->loss,
                            .tau = p->tau,
                            .tokens_per_second = p->tokens_per_second,
                            .seconds_left = p->seconds_left};
        snprintf(o->name, sizeof o->name, "%s", d->name);
        snprintf(o->state, sizeof o->state, "%s", state_of(r, d));
    }
}

static void fill_arena(live_record *r, const train_role *role) {
    live_arena *o = &r->arenas[r->n_arenas++];
    snprintf(o->name, sizeof o->name, "%s", role->name);
    o->bytes = (int64_t)role->memory.reserved;
}

static void fill_device(const train *t, const train_device *on, live_device *o) {
    int targets = 0, ranks = 0;
    *o = (live_device){.threads = on->threads};
    snprintf(o->name, sizeof o->name, "%s", on->name);
    for (int i = 0; i < t->n_targets; i++) {
        if (t->target[i].on != on) continue;
        targets++;
        o->bytes += (int64_t)t->target[i].role.memory.reserved;
    }
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; k < t->drafter[i].n_ranks; k++) {
            if (t->drafter[i].rank[k].on != on) continue;
            ranks++;
            o->bytes += (int64_t)t->drafter[i].rank[k].role.memory.reserved;
        }
    snprintf(o->roles, sizeof o->roles, "%s%s%s", targets ? "target" : "",
             targets && ranks ? " and " : "",
             ranks > 1 ? "drafters"
             : ranks   ? "drafter"
                       : "");
}

static void fill_memory(const train *t, live_record *r) {
    r->n_arenas = 0;
    for (int i = 0; i < t->n_targets; i++) fill_arena(r, &t->target[i].role);
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; k < t->drafter[i].n_ranks; k++) fill_arena(r, &t->drafter[i].rank[k].role);
    r->n_devices = t->n_devices;
    for (int i = 0; i < t->n_devices; i++) fill_device(t, &t->device[i], &r->devices[i]);
}

static void fill_rings(const train *t, live_record *r) {
    r->n_rings = 0;
    for (int i = 0; i < t->n_drafters; i++)
        for (int k = 0; k < t->drafter[i].n_ranks; k++) {
            const train_rank *rank = &t->drafter[i].rank[k];
            ring_stats s;
            live_ring *o = &r->rings[r->n_rings++];
            ring_get_stats(rank->in, &s);
            *o = (live_ring){.fill = s.fill,
                             .capacity = s.capacity,
                             .passed = s.passed,
                             .producer_wait = s.producer_wait,
                             .consumer_wait = s.consumer_wait};
            snprintf(o->name, sizeof o->name, "%s", rank->role.name);
        }
}

/* Once, when the folder is found to be gone: the record is not written from then on, nor a checkpoint. */
static void lose_folder(train *t, err e) {
    const train_role watcher = {.name = "watchdog"};
    pthread_mutex_lock(&t->guard);
    t->lost = 1;
    pthread_mutex_unlock(&t->guard);
    live_run_leave(t->live);
    train__fail(t, NULL, &watcher, e);
}

static void on_tick(void *ctx) {
    train *t = ctx;
    if (t->lost) return; /* set by this thread alone */
    err gone = train__check_folder_is_held(t);
    if (gone) {
        lose_folder(t, gone);
        return;
    }
    const int stopping = heart_ending(t->heart) || (t->stop && *t->stop);
    live_record *r = live_run_begin(t->live);
    live_set_roles(r, t->heart);
    fill_rings(t, r);
    pthread_mutex_lock(&t->guard);
    fill_drafters(t, r);
    fill_memory(t, r);
    pthread_mutex_unlock(&t->guard);
    snprintf(r->state, sizeof r->state, "%s",
             stopping             ? "stopping"
             : t->n_drafters == 1 ? r->drafters[0].state
                                  : "training");
    r->doing[0] = 0;
    live_run_end(t->live, 0);
}

static err describe_thread(const pool_view *v, int i, const symbol_table *names, str *out) {
    char name[SYMBOL_TEXT], span[16];
    TRY(str_printf(out, "  thread %d", i));
    if (i) TRY(str_printf(out, " (%" PRId64 ")", v->system_id));
    if (!v->fn) return str_printf(out, " has no task\n");
    return str_printf(out, " works at task %" PRId64 " of %" PRId64 " of %s, for %s\n", v->task + 1,
                      v->n, symbol_text(names, v->fn, name), clock_span(v->seconds, span));
}

/* A role that waits for its device's pool stands in the pool's code: who keeps it waiting is seen here. */
static err describe_pools(const train *t, str *out) {
    pool_view v[TRAIN_MAX_CPUS];
    symbol_table *names;
    TRY(symbol_open(&names));
    err e = ERR_OK;
    for (int i = 0; i < t->n_devices && !e; i++) {
        const pool *p = dev_pool(t->device[i].d);
        const int n = pool_look(p, v, TRAIN_MAX_CPUS);
        e = str_printf(out, "pool of %s, whose thread 0 is the role that has its turn:\n",
                       t->device[i].name);
        for (int k = 0; k < n && !e; k++) e = describe_thread(&v[k], k, names, out);
        if (!e && n < pool_threads(p)) e = str_printf(out, "  and %d more\n", pool_threads(p) - n);
    }
    symbol_close(names);
    return e;
}

static void on_stall(void *ctx, const char *report) {
    train *t = ctx;
    const train_role watcher = {.name = "watchdog"};
    str pools = {0};
    log_lines(LOG_ERROR, report);
    if (describe_pools(t, &pools)) err_clear(); /* what it has is still told */
    if (pools.n) log_lines(LOG_ERROR, pools.s);
    str_free(&pools);
    train__fail(t, NULL, &watcher,
                err_set(ERR_INTERNAL, "%.*s; log.txt of the run has every role's place and stack",
                        (int)strcspn(report, "\n"), report));
}

err train__start_watchdog(train *t, watchdog **out) {
    const watchdog_options o = {.stall_seconds = (double)recipe_int(t->r, RECIPE_run_stall_seconds),
                                .on_tick = on_tick,
                                .on_stall = on_stall,
                                .ctx = t};
    return watchdog_start(out, t->heart, &o);
}
