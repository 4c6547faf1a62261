/* Figures of bench: see bench_table.h. Ratios come from one run on one machine; absolute rates are
 * that machine's. A ratio without a divisor is nan in the table and null in the JSON, never zero.
 * Rows keep the order in which their sources first appeared; the row of all is summed, not averaged. */
#include "cli/bench_table.h"
#include "io/json.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

bench_line *bench_table_find(bench_table *t, const char *source) {
    const char *name = source[0] ? source : "prompts";
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->line[i].source, name)) return &t->line[i];
    if (t->n == BENCH_MAX_SOURCES) return NULL;
    t->line[t->n] = (bench_line){.source = name, .shortest = INT64_MAX};
    return &t->line[t->n++];
}

static double ratio(double a, double b) { return b > 0 ? a / b : (double)NAN; }

static double tau(const bench_line *l) { return decode_tau(&l->stats); }

static double plain_rate(const bench_line *l) { return ratio((double)l->plain_steps, l->plain_s); }

static double spec_rate(const bench_line *l) { return ratio((double)l->spec_steps, l->spec_s); }

/* Share of rounds in which at least one draft was rejected. */
static double rejected(const bench_line *l, int64_t block_size) {
    return 1.0 - ratio((double)l->stats.histogram[block_size - 1], (double)l->stats.rounds);
}

static void print_line(const bench_line *l, const bench_table *t, int bigram) {
    printf("%-18.18s %7lld %8lld %6.3f %8.3f %8.1f %10.1f %8.2fx %8.0f %% %5lld/%lld", l->source,
           (long long)l->prompts, (long long)l->tokens, tau(l), tau(l) - 1, plain_rate(l),
           spec_rate(l), ratio(spec_rate(l), plain_rate(l)), 100 * rejected(l, t->block_size),
           (long long)l->identical, (long long)l->prompts);
    if (bigram) printf(" %10.3f", ratio((double)l->bigram_committed, (double)l->bigram_rounds));
    printf("\n");
}

static bench_line total(const bench_table *t) {
    bench_line all = {.source = "all", .shortest = INT64_MAX};
    for (int i = 0; i < t->n; i++) {
        const bench_line *l = &t->line[i];
        all.prompts += l->prompts;
        all.identical += l->identical;
        all.tokens += l->tokens;
        all.plain_steps += l->plain_steps;
        all.spec_steps += l->spec_steps;
        all.plain_s += l->plain_s;
        all.spec_s += l->spec_s;
        all.bigram_rounds += l->bigram_rounds;
        all.bigram_committed += l->bigram_committed;
        if (l->shortest < all.shortest) all.shortest = l->shortest;
        decode_stats_add(&all.stats, &l->stats);
    }
    return all;
}

void bench_table_print(const bench_table *t) {
    bench_line all = total(t);
    int bigram = all.bigram_rounds > 0;
    printf("%-18s %7s %8s %6s %8s %8s %10s %9s %10s %9s%s\n", "source", "prompts", "tokens", "tau",
           "accepted", "plain/s", "specul./s", "speed-up", "rejecting", "identical",
           bigram ? "  bigram tau" : "");
    for (int i = 0; i < t->n; i++) print_line(&t->line[i], t, bigram);
    if (t->n > 1) print_line(&all, t, bigram);
    printf("rounds by accepted drafts:");
    for (int64_t k = 0; k < t->block_size; k++)
        printf(" %lld:%lld", (long long)k, (long long)all.stats.histogram[k]);
    printf("\nshortest answer %lld tokens; prompts digest %s\n", (long long)all.shortest,
           t->digest);
}

static void set_real(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, isfinite(v) ? json_real(v) : json_null());
}

static json_t *line_json(const bench_line *l, const bench_table *t) {
    json_t *o = json_object(), *h = json_array();
    json_object_set_new(o, "prompts", json_integer(l->prompts));
    json_object_set_new(o, "tokens", json_integer(l->tokens));
    json_object_set_new(o, "shortest", json_integer(l->shortest));
    json_object_set_new(o, "rounds", json_integer(l->stats.rounds));
    set_real(o, "tau", tau(l));
    set_real(o, "accepted_per_round", tau(l) - 1);
    set_real(o, "rejecting_rounds", rejected(l, t->block_size));
    set_real(o, "plain_tokens_per_s", plain_rate(l));
    set_real(o, "speculative_tokens_per_s", spec_rate(l));
    set_real(o, "speedup", ratio(spec_rate(l), plain_rate(l)));
    json_object_set_new(o, "identical", json_integer(l->identical));
    if (l->bigram_rounds)
        set_real(o, "bigram_tau", ratio((double)l->bigram_committed, (double)l->bigram_rounds));
    for (int64_t k = 0; k < t->block_size; k++)
        json_array_append_new(h, json_integer(l->stats.histogram[k]));
    json_object_set_new(o, "histogram", h);
    return o;
}

err bench_table_json(const bench_table *t, const char *path) {
    bench_line all = total(t);
    json_t *root = json_object(), *sources = json_object();
    json_object_set_new(root, "prompts_digest", json_string(t->digest));
    json_object_set_new(root, "block_size", json_integer(t->block_size));
    for (int i = 0; i < t->n; i++)
        json_object_set_new(sources, t->line[i].source, line_json(&t->line[i], t));
    json_object_set_new(root, "sources", sources);
    json_object_set_new(root, "all", line_json(&all, t));
    err e = json_write_file(root, path);
    json_decref(root);
    return e;
}
