/* paceline train: a recipe with overrides → a run.
 *
 * SIGINT, SIGTERM or SIGHUP once: save at the next whole update and stop (exit code 3); a second time: stop at once. Signals that come within
 * half a second are one request: process groups, `timeout` and batch systems send the same one twice. A finished update is never lost
 * twice: the run folder's last checkpoint is always whole. With --supervise this process only starts and watches the one that trains. */
#include "cli/command.h"
#include "cli/linked.h"
#include "cli/progress.h"
#include "cli/supervise.h"
#include "core/clock.h"
#include "train/train.h"
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const arg_spec train_spec[] = {
    {"--fresh", ARG_FLAG, NULL, "start anew: checkpoints in the run folder are removed first"},
    {"--allow-change", ARG_FLAG, NULL,
     "go on although recipe or rows differ from what the run began with"},
    {"--quiet", ARG_FLAG, NULL, "no progress line"},
    {"--supervise", ARG_INT, "N", "start it again after a crash, up to N times"},
    {"--supervisor", ARG_INT, "PID", "set by --supervise for the process that trains"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static _Atomic int stop_flag;              /* set by the handler alone */
static _Atomic int64_t first_interrupt_ms; /* of the monotonic clock; 0: none came yet */
enum { SAME_REQUEST_MS = 500 };

static void on_signal(int sig) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 1;
    int64_t first = 0;
    stop_flag = 1;
    if (atomic_compare_exchange_strong(&first_interrupt_ms, &first, now)) return;
    if (now - first < SAME_REQUEST_MS) return;
    signal(sig, SIG_DFL);
    raise(sig);
}

/* nohup's SIGHUP stays ignored. */
static void catch_signals(void) {
    static const int listened[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&sa.sa_mask);
    for (int i = 0; i < 3; i++) {
        const int ignored = sigaction(listened[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN;
        if (!ignored || listened[i] != SIGHUP) sigaction(listened[i], &sa, NULL);
    }
}

/* Two digits, or a dash for what was not measured yet. */
static const char *figure(double v, char buf[24]) {
    if (isnan(v)) return "-";
    snprintf(buf, 24, "%.2f", v);
    return buf;
}

static void draw(void *ctx, const train_progress *p) {
    progress *bar = ctx;
    char left[16], one[24], slots[128] = "";
    size_t at = 0;
    for (int k = 0; k < p->slots && at + 8 < sizeof slots; k++)
        at += (size_t)snprintf(slots + at, sizeof slots - at, "%s%s", k ? " " : "",
                               figure(p->slot_accuracy[k], one));
    progress_line(bar, p->update == p->updates,
                  "%s%supdate %lld/%lld  loss %.4f  slots %s  tau %s  %.0f tokens/s  %s left%s",
                  p->drafter, p->drafter[0] ? ": " : "", (long long)p->update,
                  (long long)p->updates, p->loss, slots, figure(p->tau, one), p->tokens_per_second,
                  clock_span(p->seconds_left, left), p->bad_steps ? "  (bad steps!)" : "");
}

static void draw_rows(void *ctx, const char *line) { progress_line(ctx, 0, "%s", line); }

static err load(const args *a, recipe **r) {
    return recipe_load(r, a->positional[0], a->positional + 1, a->n_positional - 1);
}

/* Roles of an abandoned run still use everything: the process ends with this command. */
static err train_here(const args *a, const recipe *r, int64_t supervisor, int *abandoned) {
    train *t = NULL;
    progress bar;
    str text = {0};
    const train_options opt = {.fresh = args_has(a, "--fresh"),
                               .quiet = args_has(a, "--quiet"),
                               .allow_change = args_has(a, "--allow-change"),
                               .stop = &stop_flag,
                               .on_rows = args_has(a, "--quiet") ? NULL : draw_rows,
                               .on_rows_ctx = &bar,
                               .supervisor = supervisor};
    catch_signals();
    err e = opt.quiet ? ERR_OK : linked_print(stderr, NULL);
    progress_start(&bar);
    if (!e) e = train_open(&t, r, &opt);
    progress_end(&bar);
    if (!e && !opt.quiet) e = train_plan_text(t, &text);
    if (text.n) fprintf(stderr, "%s", text.s);
    str_free(&text);
    if (!e) {
        progress_start(&bar);
        e = train_run(t, opt.quiet ? NULL : draw, &bar, &stop_flag);
        progress_end(&bar);
    }
    *abandoned = train_is_abandoned(t);
    train_close(t);
    return e;
}

static err run_train(const args *a) {
    recipe *r = NULL;
    int64_t restarts, supervisor;
    int abandoned = 0;
    TRY(args_int(a, "--supervise", 0, 0, SUPERVISE_MAX, &restarts));
    TRY(args_int(a, "--supervisor", 0, 1, INT32_MAX, &supervisor));
    if (supervisor && supervisor != getppid())
        return err_set(ERR_USAGE, "--supervisor is set by --supervise for the process it starts");
    TRY(load(a, &r));
    err e = args_has(a, "--supervise") ? supervise(a, recipe_text(r, RECIPE_run_out), restarts)
                                       : train_here(a, r, supervisor, &abandoned);
    if (!abandoned) recipe_free(r);
    return e;
}

const command command_train = {
    .name = "train",
    .usage = "train RECIPE [section.key=value ...] [options]",
    .summary = "train a drafter; resumes by itself from the run folder",
    .details =
        "docs/RECIPES.md lists every key. Interrupt once to save and stop, twice to stop at once.",
    .spec = train_spec,
    .min_pos = 1,
    .max_pos = ARGS_MAX_POSITIONAL,
    .run = run_train,
};
