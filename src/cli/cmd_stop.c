/* paceline stop: ends the run of a folder, and says what that freed.
 *
 * Only the very process that the live record names is signalled, through a descriptor where the kernel has them; its supervisor is told
 * instead when there is one, which passes the signal on once and restarts nothing. SIGTERM asks: the run saves and ends. --now does not wait for
 * that: SIGTERM, again, then SIGKILL. Nothing else is touched: not a process of a similar name, not one on another host. */
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/status_text.h"
#include "core/clock.h"
#include "core/file.h"
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAVE_SECONDS 600 /* a large run's last save */
#define NOW_SECONDS  5
#define RECORD_WAIT  3.0 /* a run that has its lock writes its record soon */
#define STRIKE_APART 1.0 /* two signals that come closer than half a second count as one request */

static const arg_spec spec[] = {
    {"--now", ARG_FLAG, NULL,
     "do not wait for it to save: updates since the last checkpoint are lost"},
    {"--timeout", ARG_REAL, "S", "seconds to wait for its end (600; with --now 5 until SIGKILL)"},
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--quiet", ARG_FLAG, NULL, "no progress line"},
    {NULL, ARG_FLAG, NULL, NULL},
};

/* The processes of a run while they are being ended. */
typedef struct stopping {
    process_handle run, supervisor; /* supervisor.id.pid 0: none */
    uint64_t bytes;
    int64_t saved_before;
    int killed;
    double seconds;
} stopping;

/* ---- who is to be ended ---- */

/* The text of a lock whose holder has no record: it names process and host, but not so that one may signal it. */
static err locked_without_record(const char *run) {
    char path[PATH_MAX], *text = NULL;
    size_t n;
    TRY(file_join(path, sizeof path, run, "lock"));
    TRY(file_read(path, &text, &n));
    text[strcspn(text, "\n")] = 0;
    err e = err_set(ERR_REFUSED,
                    "%s is locked by %s, which keeps no live record, so it cannot be told from "
                    "another process of that number; end it by hand",
                    run, n ? text : "a process");
    free(text);
    return e;
}

/* Reads the folder; a run that has just begun gets a moment to write its record. */
static err look(run_folder *f, const char *path) {
    const double end = clock_seconds() + RECORD_WAIT;
    for (;;) {
        TRY(run_folder_read(f, path));
        if (f->where != LIVE_GONE || !f->locked) return ERR_OK;
        if (clock_seconds() >= end) return locked_without_record(path);
        run_folder_free(f);
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
}

static err open_processes(const run_folder *f, stopping *s) {
    const live_record *r = f->live;
    TRY(process_open(&s->run, &r->process));
    s->bytes = process_resident(r->process.pid);
    s->saved_before = run_folder_update(f);
    if (!r->supervisor.pid || process_look(&r->supervisor) != PROCESS_RUNS) return ERR_OK;
    s->bytes += process_resident(r->supervisor.pid);
    return process_open(&s->supervisor, &r->supervisor);
}

/* ---- ending them ---- */

static err send(const process_handle *h, int sig) {
    int sent;
    return h->id.pid ? process_signal(h, sig, &sent) : ERR_OK;
}

/* Waits for the run's end and draws what its record says meanwhile. */
static int wait_for_end(const run_folder *f, const process_handle *h, double seconds, int quiet) {
    const double begun = clock_seconds();
    live_record *r;
    progress bar;
    if (live_create(&r)) return process_wait(h, seconds);
    progress_start(&bar);
    int gone = process_wait(h, 0);
    for (double left; !gone && (left = begun + seconds - clock_seconds()) > 0;) {
        int found;
        gone = process_wait(h, left < 0.2 ? left : 0.2);
        if (gone || quiet || live_read(f->path, r, &found) || !found) continue;
        char span[16];
        progress_line(&bar, 0, "waiting for process %lld: %s%s%s (%s)", (long long)h->id.pid,
                      r->state, r->doing[0] ? ": " : "", r->doing,
                      clock_span(clock_seconds() - begun, span));
    }
    progress_end(&bar);
    live_free(r);
    return gone;
}

static err still_runs(const stopping *s, double seconds) {
    return err_set(ERR_REFUSED,
                   "process %lld still runs after %.0f s: it was asked to save and end, and may "
                   "still do so; wait, or end it at once with --now",
                   (long long)s->run.id.pid, seconds);
}

static err ask(const run_folder *f, stopping *s, double seconds, int quiet) {
    const process_handle *told = s->supervisor.id.pid ? &s->supervisor : &s->run;
    TRY(send(told, SIGTERM));
    if (!wait_for_end(f, &s->run, seconds, quiet)) return still_runs(s, seconds);
    if (s->supervisor.id.pid && !process_wait(&s->supervisor, seconds))
        return err_set(ERR_REFUSED, "its supervisor, process %lld, still runs after %.0f s",
                       (long long)s->supervisor.id.pid, seconds);
    return ERR_OK;
}

/* Twice: the program's own way of ending at once. A process that does not answer is killed; the supervisor first, or it would restart it. */
static err strike(const run_folder *f, stopping *s, double seconds, int quiet) {
    TRY(send(&s->supervisor, SIGTERM));
    TRY(send(&s->run, SIGTERM));
    if (!wait_for_end(f, &s->run, STRIKE_APART < seconds ? STRIKE_APART : seconds, quiet))
        TRY(send(&s->run, SIGTERM));
    const int gone = wait_for_end(f, &s->run, seconds, quiet) &&
                     (!s->supervisor.id.pid || process_wait(&s->supervisor, 1));
    if (gone) return ERR_OK;
    s->killed = 1;
    TRY(send(&s->supervisor, SIGKILL));
    TRY(send(&s->run, SIGKILL));
    if (process_wait(&s->run, 30)) return ERR_OK;
    return err_set(
        ERR_REFUSED,
        "process %lld does not end even by SIGKILL: it waits inside the kernel, for a disk or a "
        "driver",
        (long long)s->run.id.pid);
}

/* ---- what was freed ---- */

static err tell_text(const run_folder *after, const stopping *s) {
    char bytes[24], span[16], update[32];
    const int64_t saved = run_folder_update(after);
    printf("process %lld ended after %s%s; %s of memory freed\n", (long long)s->run.id.pid,
           clock_span(s->seconds, span), s->killed ? ", killed" : "",
           str_bytes((double)s->bytes, bytes));
    if (s->supervisor.id.pid)
        printf("its supervisor, process %lld, ended too\n", (long long)s->supervisor.id.pid);
    if (saved < 0)
        printf("no checkpoint was saved\n");
    else
        printf("%s at update %s%s\n",
               saved > s->saved_before ? "checkpoint saved" : "newest checkpoint",
               str_thousands(saved, update),
               after->n_saved > 1 ? ", of the drafter that is least far" : "");
    str last = {0};
    err e = after->has_record || !after->ended ? ERR_OK : status_text_end(after, &last);
    if (!e && last.n) printf("%s\n", last.s);
    str_free(&last);
    return e;
}

static err print_json(json_t *o) {
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    if (!text) return err_set(ERR_MEMORY, "no memory for the answer as JSON");
    printf("%s\n", text);
    free(text);
    return ERR_OK;
}

static err tell_json(const run_folder *f, const stopping *s) {
    json_t *o = json_object();
    const int64_t saved = run_folder_update(f);
    json_object_set_new(o, "run", json_string(f->path));
    json_object_set_new(o, "was_running", json_boolean(s != NULL));
    json_object_set_new(o, "pid", s ? json_integer(s->run.id.pid) : json_null());
    json_object_set_new(o, "freed_bytes", json_integer(s ? (json_int_t)s->bytes : 0));
    json_object_set_new(o, "seconds", json_real(s ? s->seconds : 0));
    json_object_set_new(o, "killed", json_boolean(s && s->killed));
    json_object_set_new(o, "checkpoint", saved >= 0 ? json_integer(saved) : json_null());
    return print_json(o);
}

static err tell_not_running(const run_folder *f, int json) {
    if (json) return tell_json(f, NULL);
    str last = {0};
    err e = status_text_end(f, &last);
    if (!e) printf("%s is not running: %s\n", f->path, last.s ? last.s : "");
    str_free(&last);
    return e;
}

static err end_run(const args *a, const run_folder *f) {
    const int now = args_has(a, "--now"), quiet = args_has(a, "--quiet");
    double seconds;
    TRY(args_real(a, "--timeout", now ? NOW_SECONDS : SAVE_SECONDS, &seconds));
    if (seconds < 0) return err_set(ERR_USAGE, "--timeout is %g; it must not be negative", seconds);
    stopping s = {.run.fd = -1, .supervisor.fd = -1};
    const double begun = clock_seconds();
    err e = open_processes(f, &s);
    if (!e) e = (now ? strike : ask)(f, &s, seconds, quiet);
    process_close(&s.run);
    process_close(&s.supervisor);
    if (e) return e;
    s.seconds = clock_seconds() - begun;
    run_folder after;
    /* One that was struck had no time for a last word. */
    TRY(live_bury(f->path, &f->live->process, "ended at once by request (stop --now)"));
    e = run_folder_read(&after, f->path);
    if (!e) e = args_has(a, "--json") ? tell_json(&after, &s) : tell_text(&after, &s);
    run_folder_free(&after);
    return e;
}

static err run(const args *a) {
    const char *path = a->positional[0];
    run_folder f;
    err e = look(&f, path);
    if (!e && f.where == LIVE_UNSEEN)
        e = err_set(ERR_REFUSED,
                    "%s belongs to process %lld on %s, which cannot be reached from here; run "
                    "'paceline stop' there",
                    path, (long long)f.live->process.pid, f.live->process.host);
    else if (!e && f.where == LIVE_GONE)
        e = tell_not_running(&f, args_has(a, "--json"));
    else if (!e)
        e = end_run(a, &f);
    run_folder_free(&f);
    return e;
}

const command command_stop = {
    .name = "stop",
    .usage = "stop RUN [--now] [--timeout S]",
    .summary = "end a run: it saves first, unless told --now",
    .details =
        "RUN is the run folder, run.out of the recipe. A run that is not running is no error.",
    .spec = spec,
    .min_pos = 1,
    .max_pos = 1,
    .run = run,
};
