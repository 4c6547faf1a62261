/* Measured speed of a small run on several CPU devices beside what `plan` predicts, and beside what the slower side allows when one
 * side is held up.
 *
 * First the roles compute as fast as they can: in turns on one device, 1 + 1, 2 + 1 and 1 + 2 devices of one thread; rates are
 * measured once on one device, and devices share the machine's cores. Then every row of one side sleeps, so that balance shows
 * on two cores also for 5 + 3 devices: measured tokens a second against the forecast without any limit of cores.
 * Documents have one length, so every update holds the same rows. Usage: bench_roles */
#include "core/clock.h"
#include "core/file.h"
#include "support/tiny_gguf.h"
#include "train/train_forecast.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DOCUMENTS = 60, LETTERS = 150, WARM = 3 };

static char dir[256];

static void must(err e) {
    if (!e) return;
    fprintf(stderr, "bench_roles: %s\n", err_text());
    exit(1);
}

static const char *at(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_text(const char *name, const char *text) {
    file_writer *w = NULL;
    must(file_writer_open(&w, at(name)));
    must(file_write(w, text, strlen(text)));
    must(file_commit(&w));
}

/* Rows of so wide a target take some ms for speed, and about one where sleeping is the subject. */
static void make_target(int64_t hidden) {
    tiny_gguf g = tiny_gguf_default(TINY_COUNT + 3, 1);
    g.tokenizer = 1;
    g.layers = 6;
    g.hidden = hidden;
    g.intermediate = 3 * hidden;
    g.heads = hidden / 32;
    g.kv_heads = g.heads / 2;
    g.head_dim = 32;
    must(tiny_gguf_write(at("t.gguf"), &g));
}

/* A byte is a token, so all documents are equally long. */
static void prepare(void) {
    static char text[DOCUMENTS * (LETTERS + 80)];
    size_t n = 0;
    snprintf(dir, sizeof dir, "%s/bench-roles-XXXXXX", P_tmpdir);
    if (!mkdtemp(dir)) must(err_errno("%s cannot be made", dir));
    for (int i = 0; i < DOCUMENTS; i++) {
        char words[LETTERS + 1] = "";
        for (int k = 0; k < LETTERS; k++) words[k] = (char)('a' + (i * 7 + k * k) % 26);
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"prompt\": \"row %03d\", \"response\": \"%s\"}\n", i, words);
    }
    write_text("rows.jsonl", text);
    write_text("recipe.yaml",
               "target: {path: t.gguf}\n"
               "data: {path: rows.jsonl, max_length: 256, template: chatml}\n"
               "drafter: {layers: 2, block_size: 4, taps: [0, 2, 4]}\n"
               "anchors: {per_document: 24}\n"
               "run: {max_updates: 24, tokens_per_step: 1320, tokens_per_row: 256, out: out,\n"
               "      checkpoint_every: 100000}\n"
               "devices: {threads: 1}\n");
}

typedef struct place {
    const char *name, *target, *drafter;
    int targets, ranks, turns;
} place;

static const place places[] = {
    {"1, in turns", "devices.target=[cpu:0]", "devices.drafter=[cpu:0]", 1, 1, 1},
    {"1 + 1", "devices.target=[cpu:0]", "devices.drafter=[cpu:1]", 1, 1, 0},
    {"2 + 1", "devices.target=[cpu:0, cpu:1]", "devices.drafter=[cpu:2]", 2, 1, 0},
    {"1 + 2", "devices.target=[cpu:0]", "devices.drafter=[cpu:1, cpu:2]", 1, 2, 0},
    {"5 + 3", "devices.target=[cpu:0, cpu:1, cpu:2, cpu:3, cpu:4]",
     "devices.drafter=[cpu:5, cpu:6, cpu:7]", 5, 3, 0},
};

/* ---- one run ---- */

typedef struct held_up {
    const char *phase;
    double seconds;
} held_up;

static err hold_up(void *ctx, const char *role, const char *phase, int64_t step) {
    const held_up *h = ctx;
    (void)role;
    (void)step;
    if (!h->phase || strcmp(phase, h->phase) != 0) return ERR_OK;
    const struct timespec t = {.tv_sec = (time_t)h->seconds,
                               .tv_nsec = (long)(1e9 * (h->seconds - (double)(time_t)h->seconds))};
    nanosleep(&t, NULL);
    return ERR_OK;
}

typedef struct watched {
    double first, last;
    int64_t updates;
} watched;
static void watch(void *ctx, const train_progress *p) {
    watched *w = ctx;
    const double now = clock_seconds();
    if (p->update == WARM) w->first = now;
    w->last = now;
    w->updates = p->update;
}

static void open_run(const place *p, const char *out, const train_options *opt, recipe **r,
                     train **t) {
    const char *const sets[] = {p->target, p->drafter, out};
    must(recipe_load(r, at("recipe.yaml"), sets, 3));
    must(train_open(t, *r, opt));
}

/* Tokens a second from update 3 to the last. */
static double measure(const place *on, held_up *h) {
    static int number;
    char out[300];
    recipe *r = NULL;
    train *t = NULL;
    watched w = {0};
    const train_options opt = {.quiet = 1, .on_phase = hold_up, .on_phase_ctx = h};
    snprintf(out, sizeof out, "run.out=%s/out%d", dir, number++);
    open_run(on, out, &opt, &r, &t);
    const train_plan *p = train_get_plan(t);
    const double tokens = (double)p->tokens_left / (double)p->updates;
    must(train_run(t, watch, &w, NULL));
    train_close(t);
    recipe_free(r);
    return tokens * (double)(w.updates - WARM) / (w.last - w.first);
}

static void line(const place *p, const held_up *h, const train_forecast_model *m) {
    held_up own = *h;
    train_forecast_split s = {.targets = p->targets, .turns = p->turns};
    char delay[48] = "none";
    s.ranks[0] = p->ranks;
    train_forecast_at(m, &s);
    if (h->phase)
        snprintf(delay, sizeof delay, "%.0f ms %s", 1e3 * h->seconds,
                 h->phase[0] == 't' ? "target" : "drafter");
    const double got = measure(p, &own);
    printf("| %-11s | %-14s | %8.0f | %9.0f | %5.2f | %3.0f %% | %3.0f %% |\n", p->name, delay, got,
           s.tokens_per_second, got / s.tokens_per_second, 100 * s.target_share,
           100 * s.drafter_share[0]);
    fflush(stdout);
}

/* Every row of a side takes longer, and no core is the busier for it. */
static void line_held_up(const place *p, const char *phase, double seconds,
                         const train_forecast_model *m) {
    const held_up h = {phase, seconds};
    train_forecast_model slow = *m;
    const double token = seconds * m->rows_per_update / m->tokens_per_update;
    slow.cores = 0;
    if (phase[0] == 't')
        slow.target_seconds_per_token += token;
    else
        slow.drafter[0].seconds_per_token += token;
    line(p, &h, &slow);
}

/* A target of that width, and its model. */
static void model(int64_t hidden, train_forecast_model *m) {
    recipe *r = NULL;
    train *t = NULL;
    train_rates rates = {0};
    char out[300];
    make_target(hidden);
    snprintf(out, sizeof out, "run.out=%s/none", dir);
    open_run(&places[1], out, &(train_options){.plan_only = 1}, &r, &t);
    must(train_rates_measure_run(t, &rates));
    must(train_forecast_make(t, &rates, "cpu", 1, 0, m));
    m->cores = pool_cpus();
    printf(
        "\n%s, one thread a device\nan update: %.0f rows, %.0f tokens; target %.2f ms a row, drafter "
        "%.2f ms a row, optimizer %.2f ms\n\n",
        rates.machine, m->rows_per_update, m->tokens_per_update,
        1e3 * m->target_seconds_per_token * m->tokens_per_update / m->rows_per_update,
        1e3 * m->drafter[0].seconds_per_token * m->tokens_per_update / m->rows_per_update,
        1e3 * m->drafter[0].update_seconds);
    train_close(t);
    recipe_free(r);
}

static void head(void) {
    printf("| devices | a row sleeps | tok/s | predicted | ratio | target works | drafter works |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
}

int main(void) {
    train_forecast_model m;
    const held_up none = {0};
    prepare();
    model(256, &m);
    head();
    for (int i = 0; i < 4; i++) line(&places[i], &none, &m);
    model(64, &m);
    head();
    for (int i = 1; i < 5; i++) {
        line_held_up(&places[i], "target forward", i == 4 ? 0.10 : 0.06, &m);
        line_held_up(&places[i], "forward and backward", i == 4 ? 0.10 : 0.06, &m);
    }
    must(file_remove_tree(dir));
    return 0;
}
