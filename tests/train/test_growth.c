/* Rows that are appended between two parts of a run, and features that are kept on disk.
 *
 * A set that grew gives its new rows to the next epoch: what was trained before stays, nothing is prepared twice, and the end does not
 * depend on placement or on when the run was stopped. With a feature store each document goes through the target once. Runs
 * are tiny (tiny_run.h); equal means bit for bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/json.h"
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

typedef struct part {
    int64_t stop_after; /* 0: to the end */
    _Atomic int stop;
} part;
static void count(void *ctx, const train_progress *p) {
    part *s = ctx;
    if (s->stop_after && p->update >= s->stop_after) s->stop = 1;
}

typedef struct report {
    err e;
    int64_t updates, target_rows;
    size_t prepared; /* documents in the store when it ended */
} report;
/* One process's part of a run: opens, runs until stop_after updates are done or to the end, closes. */
static report run_with(files_dir *d, const char *file, const char *const *sets, int64_t stop_after,
                       int allow) {
    recipe *r = NULL;
    train *t = NULL;
    part p = {.stop_after = stop_after};
    report out = {0};
    int n = 0;
    while (sets[n]) n++;
    out.e = recipe_load(&r, files_at(d, file), sets, n);
    if (!out.e) out.e = train_open(&t, r, &(train_options){.allow_change = allow});
    if (out.e) {
        recipe_free(r);
        return out;
    }
    out.updates = train_get_plan(t)->updates;
    out.prepared = (size_t)train_get_plan(t)->documents;
    out.e = train_run(t, count, &p, &p.stop);
    out.target_rows = train_target_rows(t);
    train_close(t);
    recipe_free(r);
    return out;
}

static report run(files_dir *d, const char *const *sets, int64_t stop_after) {
    return run_with(d, "recipe.yaml", sets, stop_after, 0);
}

static void append_rows(files_dir *d, int first, int n) {
    char *old = NULL, *more = NULL, *all;
    size_t a = 0, b = 0;
    assert_ok(file_read(files_at(d, "train.jsonl"), &old, &a));
    tiny_run_rows(d, "more.jsonl", first, n);
    assert_ok(file_read(files_at(d, "more.jsonl"), &more, &b));
    all = malloc(a + b + 1);
    assert_non_null(all);
    memcpy(all, old, a);
    memcpy(all + a, more, b);
    all[a + b] = 0;
    files_text(d, "train.jsonl", all);
    free(all);
    mem_free(old);
    mem_free(more);
}

static int64_t last_update(files_dir *d, const char *out) {
    char **names = NULL, path[96];
    int n = 0;
    snprintf(path, sizeof path, "%s/checkpoints", out);
    assert_ok(file_list(files_at(d, path), &names, &n));
    const int64_t u = n ? atoll(names[n - 1] + 5) : -1;
    file_names_free(names, n);
    return u;
}

#define EPOCHS "run.max_updates=0", "run.epochs=3"

static void appended_rows_join_at_the_next_epoch(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 31);
    const report small = run(&d, SETS("run.out=small", EPOCHS), 0);
    assert_ok(small.e);
    /* Three runs stopped in the first epoch, at the same update, then grown. */
    static const char *const outs[] = {"run.out=a", "run.out=b", "run.out=c"};
    for (int i = 0; i < 3; i++) assert_int_equal(run(&d, SETS(outs[i], EPOCHS), 3).e, ERR_STOPPED);
    append_rows(&d, 24, 9);
    const report grown = run(&d, SETS(outs[0], EPOCHS), 0);
    assert_ok(grown.e);
    assert_int_equal(grown.prepared, 33);
    assert_true(grown.updates > small.updates);
    assert_int_equal(last_update(&d, "a"), grown.updates);
    /* Elsewhere, and in more pieces: inside the old epoch, inside a grown one. */
    assert_ok(
        run(&d, SETS(outs[1], EPOCHS, "devices.target=[cpu:0, cpu:1]", "devices.drafter=cpu:2"), 0)
            .e);
    assert_int_equal(run(&d, SETS(outs[2], EPOCHS), 5).e, ERR_STOPPED);
    assert_int_equal(run(&d, SETS(outs[2], EPOCHS), grown.updates - 2).e, ERR_STOPPED);
    assert_ok(run(&d, SETS(outs[2], EPOCHS), 0).e);
    char a[128], b[128], c[128], whole[128];
    tiny_run_digest(&d, "a", (int)grown.updates, a);
    tiny_run_digest(&d, "b", (int)grown.updates, b);
    tiny_run_digest(&d, "c", (int)grown.updates, c);
    assert_string_equal(a, b);
    assert_string_equal(a, c);
    /* A run that had all rows from the start walks another order. */
    const report full = run(&d, SETS("run.out=full", EPOCHS), 0);
    assert_ok(full.e);
    assert_true(full.updates > grown.updates);
    tiny_run_digest(&d, "full", (int)full.updates, whole);
    assert_string_not_equal(a, whole);
    files_end(&d);
}

static void a_changed_prefix_is_refused_by_line(void **s) {
    (void)s;
    files_dir d;
    char *text = NULL;
    size_t n = 0;
    tiny_run_make(&d, 32);
    assert_int_equal(run(&d, SETS("run.out=a", EPOCHS), 3).e, ERR_STOPPED);
    assert_ok(file_read(files_at(&d, "train.jsonl"), &text, &n));
    char *fifth = text;
    for (int i = 0; i < 4; i++) fifth = strchr(fifth, '\n') + 1;
    *strstr(fifth, "say") = 'S';
    files_text(&d, "train.jsonl", text);
    assert_says(run(&d, SETS("run.out=a", EPOCHS), 0).e, ERR_REFUSED, "train.jsonl", "line 5",
                "--allow-change");
    /* A run that has begun needs its own permission, and one that is refused keeps its prepared rows: with the
     * file put back it goes on. */
    assert_says(run(&d, SETS("run.out=a", EPOCHS, "data.allow_changed=true"), 0).e, ERR_REFUSED,
                "train.jsonl", "line 5", "--allow-change");
    *strchr(fifth, 'S') = 's';
    files_text(&d, "train.jsonl", text);
    assert_int_equal(run(&d, SETS("run.out=a", EPOCHS), 4).e, ERR_STOPPED);
    *strstr(fifth, "say") = 'S';
    files_text(&d, "train.jsonl", text);
    assert_int_equal(run_with(&d, "recipe.yaml", SETS("run.out=a", EPOCHS), 5, 1).e, ERR_STOPPED);
    fifth[0] = 0; /* cut after the fourth line */
    files_text(&d, "train.jsonl", text);
    assert_says(run(&d, SETS("run.out=a", EPOCHS), 0).e, ERR_REFUSED, "train.jsonl", "line");
    mem_free(text);
    files_end(&d);
}

static const char two[] =
    "target: {path: t.gguf}\n"
    "data: {path: train.jsonl, max_length: 96, template: chatml}\n"
    "drafter: {layers: 1, block_size: 4, taps: [0, 2]}\n"
    "anchors: {per_document: 6}\n"
    "optimizer: {schedule: constant, warmup: 0}\n" /* a rate that does not see the run's length */
    "run: {epochs: 4, tokens_per_step: 200, tokens_per_row: 96, checkpoint_every: 1, keep: 99}\n"
    "devices: {threads: 2}\n"
    "drafters:\n"
    "  near: {}\n"
    "  far: {optimizer: {lr: 1.0e-3}}\n";

/* Folder a/drafters/NAME takes the place of b's. */
static void take_over(files_dir *d, const char *a, const char *b, const char *name) {
    char from[700], to[700], name_of[100];
    snprintf(name_of, sizeof name_of, "%s/drafters/%s", a, name);
    snprintf(from, sizeof from, "%s", files_at(d, name_of));
    snprintf(name_of, sizeof name_of, "%s/drafters/%s", b, name);
    snprintf(to, sizeof to, "%s", files_at(d, name_of));
    assert_ok(file_remove_tree(to));
    assert_int_equal(rename(from, to), 0);
}

/* As a kill leaves them: `far` is in the second epoch, `near` still in the first. Then rows are added. */
static void drafters_in_different_epochs_go_on_after_growth(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 35);
    files_text(&d, "two.yaml", two);
    const report whole = run_with(&d, "two.yaml", SETS("run.out=whole", "run.epochs=1"), 0, 0);
    assert_ok(whole.e);
    const int64_t epoch = whole.updates;
    assert_true(epoch > 4);
    static const char *const outs[] = {"run.out=kept", "run.out=ahead", "run.out=behind"};
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_with(&d, "two.yaml", SETS(outs[i]), epoch + 3, 0).e, ERR_STOPPED);
    assert_int_equal(run_with(&d, "two.yaml", SETS(outs[2]), epoch - 3, 0).e, ERR_STOPPED);
    take_over(&d, "ahead", "behind", "far");
    append_rows(&d, 24, 9);
    const report want = run_with(&d, "two.yaml", SETS(outs[0]), 0, 0);
    assert_ok(want.e);
    const report got = run_with(&d, "two.yaml", SETS(outs[2]), 0, 0);
    assert_ok(got.e);
    assert_int_equal(got.updates, want.updates);
    assert_true(want.updates > 4 * epoch); /* the third epoch has the new rows */
    char a[128], b[128];
    for (int i = 0; i < 2; i++) {
        char x[64], y[64];
        snprintf(x, sizeof x, "kept/drafters/%s", i ? "far" : "near");
        snprintf(y, sizeof y, "behind/drafters/%s", i ? "far" : "near");
        tiny_run_digest(&d, x, (int)want.updates, a);
        tiny_run_digest(&d, y, (int)want.updates, b);
        assert_string_equal(a, b);
    }
    files_end(&d);
}

/* What changes the order of rows, or makes the run shorter, under drafters at different updates. */
static void changes_are_allowed_to_drafters_at_different_updates(void **s) {
    (void)s;
    files_dir d;
    static const char *const sets[] = {"run.seed=7", "run.tokens_per_row=64", "run.max_updates=6",
                                       "run.max_updates=2", "data.path=held.jsonl"};
    tiny_run_make(&d, 36);
    files_text(&d, "two.yaml", two);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        assert_int_equal(run_with(&d, "two.yaml", SETS("run.out=x"), 8, 0).e, ERR_STOPPED);
        assert_int_equal(run_with(&d, "two.yaml", SETS("run.out=y"), 3, 0).e, ERR_STOPPED);
        take_over(&d, "x", "y", "far");
        assert_int_equal(run_with(&d, "two.yaml", SETS("run.out=y", sets[i]), 0, 0).e, ERR_REFUSED);
        assert_ok(run_with(&d, "two.yaml", SETS("run.out=y", sets[i]), 0, 1).e);
        assert_ok(file_remove_tree(files_at(&d, "x")));
        assert_ok(file_remove_tree(files_at(&d, "y")));
    }
    files_end(&d);
}

static void features_on_disk_need_the_target_once(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 33);
    const report without = run(&d, SETS("run.out=without", EPOCHS), 0);
    assert_ok(without.e);
    const report a = run(&d, SETS("run.out=a", EPOCHS, "features.store=fa"), 0);
    assert_ok(a.e);
    /* Of three epochs only the first goes through the target. */
    assert_true(a.target_rows * 3 <= without.target_rows + 6);
    assert_true(a.target_rows > 0);
    const report b = run(&d,
                         SETS("run.out=b", EPOCHS, "features.store=fb",
                              "devices.target=[cpu:0, cpu:1, cpu:2]", "devices.drafter=[cpu:3]"),
                         0);
    assert_ok(b.e);
    assert_int_equal(b.target_rows, a.target_rows);
    /* In pieces. */
    const uint64_t seed = numbers_seed();
    int64_t at = 0;
    err e = ERR_STOPPED;
    while (e == ERR_STOPPED) {
        at += 1 + numbers_below(seed, 1, (uint64_t)at, 5);
        e = run(&d, SETS("run.out=c", EPOCHS, "features.store=fc"), at).e;
    }
    assert_ok(e);
    char x[128], y[128], z[128], w[128];
    tiny_run_digest(&d, "a", (int)a.updates, x);
    tiny_run_digest(&d, "b", (int)a.updates, y);
    tiny_run_digest(&d, "c", (int)a.updates, z);
    tiny_run_digest(&d, "without", (int)a.updates, w);
    assert_string_equal(x, y);
    assert_string_equal(x, z);
    assert_string_not_equal(x, w); /* features pass through bf16 */
    /* A store of other taps is refused. */
    assert_says(run(&d, SETS("run.out=e", EPOCHS, "features.store=fa", "drafter.taps=[1, 3]"), 0).e,
                ERR_REFUSED, "fa");
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appended_rows_join_at_the_next_epoch),
        cmocka_unit_test(a_changed_prefix_is_refused_by_line),
        cmocka_unit_test(drafters_in_different_epochs_go_on_after_growth),
        cmocka_unit_test(changes_are_allowed_to_drafters_at_different_updates),
        cmocka_unit_test(features_on_disk_need_the_target_once),
    };
    return cmocka_run_group_tests_name("growth and kept features", tests, tiny_run_silence, NULL);
}
