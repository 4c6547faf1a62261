/* paceline plan: what a run of a recipe would take and do, how fast it would be, and how fast on other devices; nothing is started.
 *
 * Rates are measured in a few seconds, or read from a table that an earlier `plan --rates FILE` wrote. A run that does not fit is
 * printed whole, then refused with what would fit; it is not measured, since measuring needs memory too. Tables fit a
 * terminal of 100 columns. */
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/plan_json.h"
#include "core/clock.h"
#include "core/file.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AROUND = 3, MOST_SPLITS = 2 * AROUND + 2, MOST_SCALE = 12 };

static const arg_spec spec[] = {
    {"--json", ARG_FLAG, NULL, "print one JSON object"},
    {"--rates", ARG_TEXT, "FILE",
     "read measured rates from FILE, or measure and write it when it is not there"},
    {"--devices", ARG_INT, "N",
     "predict speed and balance for the splits of N devices (1 to 1024)"},
    {"--link", ARG_REAL, "GB/s",
     "speed of a device's link for --devices; else memory's, as measured"},
    {"--memory", ARG_REAL, "GiB", "plan for so much memory instead of what is available here"},
    {"--disk", ARG_REAL, "GiB", "plan for so much free disk instead of what is free here"},
    {NULL, ARG_FLAG, NULL, NULL},
};

typedef struct outlook {
    const train_plan *p;
    train_rates rates;
    int from_file;
    train_forecast_run run;
    int n_splits; /* 0: --devices was not given */
    plan_json_splits splits;
    train_forecast_split split[MOST_SPLITS], scale[MOST_SCALE];
    int scale_devices[MOST_SCALE];
} outlook;

/* ---- rates and forecasts ---- */

static err get_rates(const args *a, train *t, outlook *o) {
    const char *path = args_text(a, "--rates", NULL);
    if (path && file_exists(path)) {
        o->from_file = 1;
        return train_rates_read(t, &o->rates, path);
    }
    if (path) TRY(file_check_output(path));
    TRY(train_rates_measure_run(t, &o->rates));
    return path ? train_rates_write(t, &o->rates, path) : ERR_OK;
}

/* The best splits of 1, 2, 4 … devices, up to n itself. */
static void scale(const train_forecast_model *m, int n, outlook *o) {
    for (int k = 1; k <= n; k = k < n && 2 * k > n ? n : 2 * k) {
        train_forecast_split some[2];
        int best = 0;
        const int at = o->splits.n_scale;
        if (!train_forecast_best(m, k, 0, some, &best)) continue;
        o->scale[at] = some[best];
        o->scale_devices[at] = k;
        o->splits.n_scale++;
        if (k == n) break;
    }
    o->splits.scale = o->scale;
    o->splits.scale_devices = o->scale_devices;
}

static err predict_splits(const args *a, const train *t, int64_t n, outlook *o) {
    double link = 0;
    train_forecast_model m;
    plan_json_splits *s = &o->splits;
    TRY(args_real(a, "--link", 0, &link));
    if (args_has(a, "--link") && !(link > 0 && link < 1e6))
        return err_set(ERR_USAGE, "--link needs GB/s above 0, not %g", link);
    TRY(train_forecast_make(t, &o->rates, o->rates.row[0].kind,
                            o->from_file ? o->rates.row[0].threads : 0, link * 1e9, &m));
    s->devices = (int)n;
    s->link = m.link_bytes_per_second;
    s->stated = link > 0;
    s->rows = m.rows_per_update;
    s->n = train_forecast_best(&m, (int)n, AROUND, o->split, &s->best);
    s->split = o->split;
    scale(&m, (int)n, o);
    o->n_splits = s->n;
    return ERR_OK;
}

static err look_ahead(const args *a, train *t, outlook *o) {
    int64_t n = 0;
    TRY(args_int(a, "--devices", 0, 1, TRAIN_FORECAST_MOST, &n));
    if (!n && args_has(a, "--link"))
        return err_set(ERR_USAGE, "--link is for --devices N, which is not given");
    TRY(get_rates(a, t, o));
    TRY(train_forecast_placed(t, &o->rates, &o->run));
    return n ? predict_splits(a, t, n, o) : ERR_OK;
}

/* ---- text ---- */

static const char *count_of(double v, char buf[32]) { return str_thousands(llround(v), buf); }

static void print_rates(const outlook *o) {
    const train_rates *r = &o->rates;
    char a[32], b[32], c[24];
    printf("rates     %s, %s, by %s\n          %s\n", o->from_file ? "of a table" : "measured",
           r->measured, r->program, r->machine);
    for (int i = 0; i < r->n; i++) {
        const train_rates_row *w = &r->row[i];
        printf("  %s, %d thread%s: target %s tokens/s, memory %s/s\n", w->kind, w->threads,
               w->threads == 1 ? "" : "s", count_of(w->target_tokens_per_second, a),
               str_bytes(w->copy_bytes_per_second, c));
        for (int k = 0; k < r->n_drafters; k++)
            printf("    drafter%s%s %s tokens/s, %.3g s an update%s%s\n",
                   o->p->drafters[k].name[0] ? " " : "", o->p->drafters[k].name,
                   count_of(w->drafter[k].tokens_per_second, b), w->drafter[k].update_seconds,
                   w->drafter[k].evaluation_seconds > 0 ? ", an evaluation " : "",
                   w->drafter[k].evaluation_seconds > 0
                       ? clock_span(w->drafter[k].evaluation_seconds, (char[16]){0})
                       : "");
    }
    if (r->disk_bytes_per_second > 0)
        printf("  disk %s/s, written and synced\n", str_bytes(r->disk_bytes_per_second, c));
}

static void print_run(const outlook *o) {
    char a[32], span[16];
    printf(
        "speed     about %s tokens/s, %s to the end; time that each role works:\n          target %.0f %%",
        count_of(o->run.tokens_per_second, a), clock_span(o->run.seconds, span),
        100 * o->run.target_share);
    for (int i = 0; i < o->p->n_drafters; i++)
        printf(", drafter%s%s %.0f %%", o->p->drafters[i].name[0] ? " " : "",
               o->p->drafters[i].name, 100 * o->run.drafter_share[i]);
    printf("\n");
}

static double larger(double a, double b) { return a > b ? a : b; }

static double busiest(const outlook *o, const train_forecast_split *s) {
    double most = 0;
    for (int i = 0; i < o->p->n_drafters; i++) most = larger(most, s->drafter_share[i]);
    return most;
}

static void print_split(const outlook *o, const train_forecast_split *s, const char *first) {
    static const char *const bounds[] = {"target", "drafter", "links", "cores", "turns"};
    char ranks[48], a[32];
    size_t at = 0;
    ranks[0] = 0;
    for (int i = 0; i < o->p->n_drafters && at < sizeof ranks; i++)
        at += (size_t)snprintf(ranks + at, sizeof ranks - at, "%s%d", i ? "+" : "", s->ranks[i]);
    printf("  %6s %7d %16s %13s %8.0f %% %8.0f %% %6.0f %% %6d  %s\n", first, s->targets,
           s->turns ? "the same" : ranks, count_of(s->tokens_per_second, a), 100 * s->target_share,
           100 * busiest(o, s), 100 * s->link_share, s->spare, bounds[s->bound]);
}

static void print_splits(const outlook *o) {
    const plan_json_splits *k = &o->splits;
    const char *head = "  %6s %7s %16s %13s %10s %10s %8s %6s  %s\n";
    char number[16];
    double most = 0;
    printf("devices   predicted for %d, each as measured above, links of %.3g GB/s (%s)\n",
           k->devices, k->link / 1e9, k->stated ? "stated" : "as memory");
    printf(head, "", "target", "drafters", "tokens/s", "target", "drafter", "links", "spare",
           "slowest");
    printf(head, "", "devices", "devices", "", "works", "works", "work", "", "side");
    for (int i = 0; i < k->n; i++) print_split(o, &k->split[i], i == k->best ? "best" : "");
    for (int i = 0; i < o->p->n_drafters; i++) most = larger(most, k->split[k->best].ranks[i]);
    if (k->rows < most)
        printf("  an update holds %.1f rows: more devices of a drafter have none "
               "(run.tokens_per_step)\n",
               k->rows);
    if (k->n_scale < 2) return;
    printf("the best split by number of devices\n");
    for (int i = 0; i < k->n_scale; i++) {
        snprintf(number, sizeof number, "%d", k->scale_devices[i]);
        print_split(o, &k->scale[i], number);
    }
}

static err print_text(const train *t, const outlook *o) {
    str text = {0};
    err e = train_plan_text(t, &text);
    if (!e) printf("%s", text.s);
    str_free(&text);
    if (e || !o->rates.n) return e;
    print_rates(o);
    print_run(o);
    if (o->n_splits) print_splits(o);
    return ERR_OK;
}

static err print_json(const outlook *o) {
    const int known = o->rates.n > 0;
    json_t *j = plan_json(o->p, known ? &o->rates : NULL, known ? &o->run : NULL,
                          o->n_splits ? &o->splits : NULL);
    char *text = json_dumps(j, JSON_INDENT(1));
    json_decref(j);
    if (!text) return err_set(ERR_MEMORY, "no memory for the plan's text");
    printf("%s\n", text);
    free(text);
    return ERR_OK;
}

/* ---- the command ---- */

static err get_limit(const args *a, const char *name, double *bytes) {
    TRY(args_real(a, name, 0, bytes));
    if (args_has(a, name) && !(*bytes > 0 && *bytes < 1e9))
        return err_set(ERR_USAGE, "%s needs GiB above 0, not %g", name, *bytes);
    *bytes *= (double)(1 << 30);
    return ERR_OK;
}

static void draw_rows(void *ctx, const char *line) { progress_line(ctx, 0, "%s", line); }

static err plan(const args *a, const recipe *r, train **t, outlook *o) {
    double memory = 0, disk = 0;
    TRY(get_limit(a, "--memory", &memory));
    TRY(get_limit(a, "--disk", &disk));
    progress bar;
    const train_options opt = {.plan_only = 1,
                               .memory_limit = (size_t)memory,
                               .disk_limit = (uint64_t)disk,
                               .on_rows = draw_rows,
                               .on_rows_ctx = &bar};
    progress_start(&bar);
    err e = train_open(t, r, &opt);
    progress_end(&bar);
    TRY(e);
    o->p = train_get_plan(*t);
    if (!o->p->refused[0]) TRY(look_ahead(a, *t, o));
    TRY(args_has(a, "--json") ? print_json(o) : print_text(*t, o));
    fflush(stdout);
    return train_check_plan(*t);
}

static err run(const args *a) {
    recipe *r = NULL;
    train *t = NULL;
    outlook *o = NULL;
    TRY(mem_new(1, sizeof *o, &o));
    err e = recipe_load(&r, a->positional[0], a->positional + 1, a->n_positional - 1);
    if (!e) e = plan(a, r, &t, o);
    train_close(t);
    recipe_free(r);
    mem_free(o);
    return e;
}

const command command_plan = {
    .name = "plan",
    .usage = "plan RECIPE [section.key=value ...] [options]",
    .summary = "bytes, rows, tokens, time and disk of a training run; nothing is started",
    .details =
        "A run that would not fit is refused with settings that would. docs/FORMATS.md has the "
        "keys of --json and of the rates.",
    .spec = spec,
    .min_pos = 1,
    .max_pos = ARGS_MAX_POSITIONAL,
    .run = run,
};
