/* paceline train: a recipe with overrides → a run.
 *
 * SIGINT, SIGTERM or SIGHUP once: save at the next whole update and stop (exit code 3); a second time: stop at once. A finished update is
 * never lost twice: the run folder's last checkpoint is always whole. */
#include "cli/command.h"
#include "cli/progress.h"
#include "core/clock.h"
#include "train/train.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const arg_spec train_spec[] = {
    {"--fresh", ARG_FLAG, NULL, "start anew: checkpoints in the run folder are removed first"},
    {"--quiet", ARG_FLAG, NULL, "no progress line"},
    {NULL, ARG_FLAG, NULL, NULL},
};

static volatile sig_atomic_t interrupts; /* set by the handler alone; read between updates */
static _Atomic int stop_flag;

static void on_signal(int sig) {
    stop_flag = 1;
    if (interrupts++) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

static void catch_signals(void) {
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
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

static err load(const args *a, recipe **r) {
    return recipe_load(r, a->positional[0], a->positional + 1, a->n_positional - 1);
}

static err run_train(const args *a) {
    recipe *r = NULL;
    train *t = NULL;
    progress bar;
    train_options opt = {
        .fresh = args_has(a, "--fresh"), .quiet = args_has(a, "--quiet"), .stop = &stop_flag};
    str text = {0};
    err e = load(a, &r);
    catch_signals();
    if (!e) e = train_open(&t, r, &opt);
    if (!e && !opt.quiet) e = train_plan_text(t, &text);
    if (!e) {
        if (text.n) fprintf(stderr, "%s", text.s);
        progress_start(&bar);
        e = train_run(t, opt.quiet ? NULL : draw, &bar, &stop_flag);
        progress_end(&bar);
    }
    str_free(&text);
    /* Roles of an abandoned run still use both; the process ends with this command. */
    if (train_is_abandoned(t)) return e;
    train_close(t);
    recipe_free(r);
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
