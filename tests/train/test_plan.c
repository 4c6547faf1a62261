/* What a plan says is what a run then does, takes and writes; what does not fit is refused, and what is offered instead fits.
 *
 * Runs are tiny (tiny_run.h). Memory and disk of a smaller machine are stated by train_options; limits are drawn at random between
 * what nothing can go below and what the run needs. Measured rates are only asked to be there, never how high. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"
#include "train/train_forecast.h"
#include <math.h>
#include <sys/stat.h>

static int silence(void **s) {
    (void)s;
    log_set_sink(tiny_run_quiet, NULL);
    return 0;
}

static const char three[] =
    "target: {path: t.gguf}\n"
    "data: {path: train.jsonl, validation: held.jsonl, max_length: 96, template: chatml}\n"
    "drafter: {layers: 2, block_size: 4, taps: [0, 2]}\n"
    "anchors: {per_document: 6}\n"
    "run: {max_updates: 12, tokens_per_step: 800, tokens_per_row: 400, checkpoint_every: 4,\n"
    "      evaluate_every: 6, evaluate_prompts: 2, evaluate_tokens: 8, keep: 3, out: out}\n"
    "devices: {threads: 3, target: [cpu:0, cpu:1], drafter: [cpu:2, cpu:3, cpu:4], ring: 4}\n"
    "drafters:\n"
    "  plain: {}\n"
    "  deep: {drafter: {layers: 3, taps: [0, 1, 3], block_size: 6}}\n"
    "  many: {anchors: {per_document: 40}}\n";
static const char ranks[] =
    "target: {path: t.gguf}\n"
    "data: {path: train.jsonl, max_length: 96, template: chatml}\n"
    "drafter: {layers: 2, block_size: 4, taps: [0, 2]}\n"
    "anchors: {per_document: 20}\n"
    "run: {epochs: 2, tokens_per_step: 1200, tokens_per_row: 400, out: out}\n"
    "devices: {threads: 2, target: [cpu:0, cpu:1, cpu:2], drafter: [cpu:3, cpu:4, cpu:5]}\n";

/* ---- the run does what the plan said ---- */

static uint64_t bytes_below(const char *path) {
    struct stat st;
    char **names = NULL, below[1200];
    int n = 0;
    uint64_t sum = 0;
    if (stat(path, &st) != 0) return 0;
    if (!S_ISDIR(st.st_mode)) return (uint64_t)st.st_size;
    assert_ok(file_list(path, &names, &n));
    for (int i = 0; i < n; i++) {
        snprintf(below, sizeof below, "%s/%s", path, names[i]);
        sum += bytes_below(below);
    }
    file_names_free(names, n);
    return sum;
}

static const train_plan_file *file_named(const train_plan *p, const char *name) {
    for (int i = 0; i < p->n_files; i++)
        if (strstr(p->files[i].name, name)) return &p->files[i];
    fail_msg("no line of the disk is called %s", name);
    return NULL;
}

static void rows_updates_and_files_are_those_of_the_run(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    tiny_run_make(&d, 31);
    const char *const sets[] = {"run.max_updates=0", "run.epochs=2", "run.checkpoint_every=2",
                                "features.store=features", NULL};
    assert_ok(tiny_run_open(&d, sets, &(train_options){.plan_only = 1}, &r, &t));
    const train_plan p = *train_get_plan(t);
    char folder[700];
    snprintf(folder, sizeof folder, "%s", file_named(&p, "taps")->folder);
    const uint64_t taps = file_named(&p, "taps")->bytes;
    train_close(t);
    recipe_free(r);
    assert_false(file_exists(files_at(&d, "out")));
    assert_false(file_exists(folder));
    assert_int_equal(taps, p.tokens * 2 * 32 * 2);
    assert_ok(tiny_run_open(&d, sets, NULL, &r, &t));
    assert_int_equal(train_get_plan(t)->updates, p.updates);
    assert_int_equal(train_get_plan(t)->total_bytes, p.total_bytes);
    assert_ok(train_run(t, NULL, NULL, NULL));
    /* The second epoch's taps come from the store. */
    assert_int_equal(train_target_rows(t), p.rows_per_epoch);
    train_close(t);
    recipe_free(r);
    /* Two kept and the best one stand there; room for one more was planned. */
    const uint64_t stand = bytes_below(files_at(&d, "out/checkpoints"));
    char **names = NULL;
    int n = 0;
    assert_ok(file_list(files_at(&d, "out/checkpoints"), &names, &n));
    file_names_free(names, n);
    const uint64_t planned = file_named(&p, "checkpoints")->bytes;
    assert_true(stand * 4 / (uint64_t)n <= planned && planned <= stand * 8 / (uint64_t)n);
    assert_true(2 * bytes_below(files_at(&d, "out/drafter")) <= file_named(&p, "exported")->bytes);
    assert_true(bytes_below(files_at(&d, "out/metrics.jsonl")) <= file_named(&p, "metric")->bytes);
    assert_true(bytes_below(files_at(&d, "out/tokens")) <= file_named(&p, "tokens")->bytes);
    /* A plan of it now finds all that, and nothing left to do. */
    assert_ok(tiny_run_open(&d, sets, &(train_options){.plan_only = 1}, &r, &t));
    const train_plan *q = train_get_plan(t);
    assert_int_equal(q->rows_left, 0);
    assert_int_equal(q->from_update, p.updates);
    assert_int_equal(file_named(q, "checkpoints")->there, stand);
    assert_true(file_named(q, "taps")->there == taps);
    train_close(t);
    recipe_free(r);
    files_end(&d);
}

/* Memory of the plan's rows is their index, and where the run's store lacks rows it stays as it is. */
static void a_plan_counts_rows_without_keeping_or_preparing_them(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    char manifest[2][33];
    train_plan before[2];
    tiny_run_make(&d, 31);
    const char *const sets[] = {"run.max_updates=0", "run.epochs=3", NULL};
    const train_options look = {.plan_only = 1};
    const _Atomic int stop = 1;
    assert_int_equal(tiny_run(&d, NULL, NULL, NULL, &stop), ERR_STOPPED);
    assert_true(file_exists(files_at(&d, "out/tokens/manifest.json")));
    assert_ok(file_remove_tree(files_at(&d, "out/checkpoints")));
    tiny_run_rows(&d, "train.jsonl", 0, 40); /* 24 of them are prepared */
    assert_ok(file_hash(files_at(&d, "out/tokens/manifest.json"), manifest[0]));
    for (int i = 0; i < 2; i++) { /* with a part of the rows in a store, and with none */
        assert_ok(tiny_run_open(&d, sets, &look, &r, &t));
        before[i] = *train_get_plan(t);
        train_close(t);
        recipe_free(r);
        if (i) continue;
        assert_ok(file_hash(files_at(&d, "out/tokens/manifest.json"), manifest[1]));
        assert_string_equal(manifest[0], manifest[1]);
        assert_ok(file_remove_tree(files_at(&d, "out")));
    }
    assert_false(file_exists(files_at(&d, "out")));
    assert_ok(tiny_run_open(&d, sets, NULL, &r, &t));
    for (int i = 0; i < 2; i++) {
        const train_plan *p = train_get_plan(t);
        assert_int_equal(before[i].documents, 40);
        assert_int_equal(before[i].tokens, p->tokens);
        assert_int_equal(before[i].updates, p->updates);
        assert_int_equal(before[i].rows_per_epoch, p->rows_per_epoch);
        assert_int_equal(before[i].total_bytes, p->total_bytes);
        assert_string_equal(before[i].preview, p->preview);
    }
    train_close(t);
    recipe_free(r);
    files_end(&d);
}

/* ---- what does not fit ---- */

typedef struct asked {
    char refused[1600];
    uint64_t need, disk; /* bytes of memory with the allowance; still to be written */
    int n;
    train_plan_fit fits[TRAIN_PLAN_FITS];
} asked;

/* Splits "a=1 b=2" in place. */
static int split(char *text, const char **sets) {
    int n = 0;
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " ")) sets[n++] = w;
    return n;
}

static void ask(files_dir *d, const char *name, const char *set, size_t memory, uint64_t disk,
                asked *out) {
    recipe *r = NULL;
    train *t = NULL;
    char text[600];
    const char *sets[32];
    const train_options opt = {.plan_only = 1, .memory_limit = memory, .disk_limit = disk};
    snprintf(text, sizeof text, "%s", set);
    const int n = split(text, sets);
    assert_ok(recipe_load(&r, files_at(d, name), sets, n));
    assert_ok(train_open(&t, r, &opt));
    const train_plan *p = train_get_plan(t);
    *out = (asked){.need = p->total_bytes + p->allowance, .n = p->n_fits};
    memcpy(out->fits, p->fits, sizeof out->fits);
    snprintf(out->refused, sizeof out->refused, "%s", p->refused);
    for (int i = 0; i < p->n_files; i++)
        out->disk +=
            p->files[i].bytes > p->files[i].there ? p->files[i].bytes - p->files[i].there : 0;
    if (p->refused[0])
        assert_says(train_check_plan(t), ERR_REFUSED, p->refused);
    else
        assert_ok(train_check_plan(t));
    train_close(t);
    recipe_free(r);
}

static void has_no_drafter(char *text, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "  %s:", name);
    char *from = strstr(text, key), *to = from ? strchr(from, '\n') : NULL;
    assert_non_null(to);
    memmove(from, to + 1, strlen(to + 1) + 1);
}

/* Every offer, planned: it fits, and takes the bytes that were said. */
static void offers_hold(files_dir *d, const char *name, const char *yaml, size_t memory,
                        uint64_t disk, const asked *a) {
    for (int i = 0; i < a->n; i++) {
        asked b;
        const char *set = a->fits[i].set, *without = strstr(set, "no drafter ");
        char rest[2000];
        if (without) {
            assert_ptr_equal(without, set);
            snprintf(rest, sizeof rest, "%s", yaml);
            has_no_drafter(rest, set + strlen("no drafter "));
            /* Fewer drafters, fewer devices in the list that they share. */
            char *list = strstr(rest, "drafter: [cpu:2, cpu:3, cpu:4]");
            if (list) memcpy(list, "drafter: [cpu:2, cpu:3       ]", 30);
            files_text(d, "less.yaml", rest);
        }
        ask(d, without ? "less.yaml" : name, without ? "" : set, memory, disk, &b);
        if (b.refused[0]) printf("'%s' was offered, and then: %s\n", set, b.refused);
        assert_true(!b.refused[0]);
        if (memory && !(without && strstr(yaml, "cpu:4")) && b.need != a->fits[i].bytes)
            printf("%s: %llu, said %llu\n", set, (unsigned long long)b.need,
                   (unsigned long long)a->fits[i].bytes);
        if (memory) assert_true(b.need == a->fits[i].bytes);
        if (disk) assert_true(b.disk == a->fits[i].bytes);
    }
}

static void what_is_offered_fits(void **s) {
    (void)s;
    files_dir d;
    const uint64_t seed = numbers_seed();
    const struct {
        const char *name, *yaml;
    } all[] = {{"three.yaml", three}, {"ranks.yaml", ranks}};
    tiny_run_make(&d, 32);
    for (int i = 0; i < 2; i++) {
        asked whole, a;
        int offered = 0;
        files_text(&d, all[i].name, all[i].yaml);
        ask(&d, all[i].name, "", 0, 0, &whole);
        assert_true(!whole.refused[0] && !whole.n);
        ask(&d, all[i].name, "", (size_t)whole.need, 0, &a);
        assert_true(!a.refused[0]);
        for (uint64_t k = 0; k < 10; k++) {
            const size_t most = (size_t)whole.need / (k < 5 ? 16 : 2);
            const size_t less = 1 + (size_t)numbers_below(seed, (uint64_t)i, k, (int64_t)most);
            const size_t memory = (size_t)whole.need - less;
            ask(&d, all[i].name, "", memory, 0, &a);
            assert_non_null(strstr(a.refused, "of memory and "));
            assert_non_null(strstr(a.refused, "one micro-batch"));
            assert_non_null(strstr(a.refused, a.n ? "what would fit: " : "takes more memory"));
            offers_hold(&d, all[i].name, all[i].yaml, memory, 0, &a);
            offered += a.n;
        }
        assert_true(offered > 4);
    }
    files_end(&d);
}

static void a_small_disk_is_refused_with_what_would_fit(void **s) {
    (void)s;
    files_dir d;
    asked whole, bare, a;
    tiny_run_make(&d, 33);
    files_text(&d, "three.yaml", three);
    const char *with = "features.store=feat run.max_updates=400";
    ask(&d, "three.yaml", with, 0, 0, &whole);
    ask(&d, "three.yaml", "run.max_updates=400", 0, 0, &bare);
    assert_true(bare.disk < whole.disk);
    ask(&d, "three.yaml", with, 0, whole.disk, &a);
    assert_true(!a.refused[0]);
    ask(&d, "three.yaml", with, 0, bare.disk + 1000, &a);
    assert_non_null(strstr(a.refused, "features.store=\"\""));
    ask(&d, "three.yaml", "run.max_updates=400", 0, bare.disk - 1, &a);
    assert_non_null(strstr(a.refused, "will write"));
    assert_non_null(strstr(a.refused, "run.keep=2"));
    offers_hold(&d, "three.yaml", three, 0, 0, &a);
    ask(&d, "three.yaml", "run.max_updates=400", 0, 1000, &a);
    assert_non_null(strstr(a.refused, "it takes more disk"));
    files_end(&d);
}

static void train_refuses_what_plan_refuses(void **s) {
    (void)s;
    files_dir d;
    asked whole, a;
    recipe *r = NULL;
    train *t;
    tiny_run_make(&d, 34);
    ask(&d, "recipe.yaml", "", 0, 0, &whole);
    const size_t memory = (size_t)whole.need - 100;
    ask(&d, "recipe.yaml", "", memory, 0, &a);
    assert_says(tiny_run_open(&d, NULL, &(train_options){.memory_limit = memory}, &r, &t),
                ERR_REFUSED, a.refused);
    assert_false(file_exists(files_at(&d, "out/recipe.yaml")));
    assert_false(file_exists(files_at(&d, "out/checkpoints")));
    /* The weights alone are too many: no folder is made for that. */
    for (int plan = 0; plan < 2; plan++)
        assert_says(tiny_run_open(&d, (const char *const[]){"run.out=other", NULL},
                                  &(train_options){.memory_limit = 200000, .plan_only = plan}, &r,
                                  &t),
                    ERR_REFUSED, "the weights alone need");
    assert_says(tiny_run_open(&d, (const char *const[]){"run.out=other", NULL},
                              &(train_options){.memory_limit = 50000}, &r, &t),
                ERR_REFUSED, "t.gguf", "smaller target");
    assert_false(file_exists(files_at(&d, "other")));
    files_end(&d);
}

/* A run that has begun is offered nothing that changes its rows or sums. */
static void a_run_under_way_keeps_its_rows(void **s) {
    (void)s;
    files_dir d;
    asked whole, a;
    recipe *r = NULL;
    train *t = NULL;
    _Atomic int stop = 0;
    tiny_run_make(&d, 35);
    files_text(&d, "ranks.yaml", ranks);
    assert_ok(recipe_load(&r, files_at(&d, "ranks.yaml"), NULL, 0));
    assert_ok(train_open(&t, r, NULL));
    /* A run of one update, then its end. */
    train_close(t);
    recipe_free(r);
    const char *const one[] = {"run.checkpoint_every=1"};
    assert_ok(recipe_load(&r, files_at(&d, "ranks.yaml"), one, 1));
    assert_ok(train_open(&t, r, NULL));
    assert_ok(train_run(t, NULL, NULL, &stop));
    train_close(t);
    recipe_free(r);
    ask(&d, "ranks.yaml", "run.checkpoint_every=1", 0, 0, &whole);
    ask(&d, "ranks.yaml", "run.checkpoint_every=1", (size_t)whole.need - 1, 0, &a);
    assert_true(a.n > 0);
    for (int i = 0; i < a.n; i++) {
        assert_null(strstr(a.fits[i].set, "tokens_per_row"));
        assert_null(strstr(a.fits[i].set, "anchors"));
        assert_null(strstr(a.fits[i].set, "devices.drafter"));
    }
    files_end(&d);
}

/* ---- rates ---- */

static void rates_are_measured_kept_and_refused(void **s) {
    (void)s;
    files_dir d;
    recipe *r;
    train *t;
    train_rates a = {0}, b;
    train_forecast_run run, again;
    tiny_run_make(&d, 36);
    const char *const place[] = {"devices.target=[cpu:0]", "devices.drafter=[cpu:1, cpu:2]", NULL};
    assert_ok(tiny_run_open(&d, place, &(train_options){.plan_only = 1}, &r, &t));
    assert_ok(train_rates_measure_run(t, &a));
    assert_int_equal(a.n, 1);
    assert_int_equal(a.row[0].threads, 1);
    assert_true(a.row[0].target_flops_per_second > 0 && a.row[0].drafter[0].flops_per_second > 0);
    assert_true(a.row[0].drafter[0].update_seconds > 0);
    assert_true(a.row[0].drafter[0].evaluation_seconds > 0);
    assert_true(a.row[0].copy_bytes_per_second > 0);
    assert_ok(train_forecast_placed(t, &a, &run));
    assert_true(run.tokens_per_second > 0 && run.seconds > 0);
    assert_true(run.target_share > 0 && run.target_share <= 1);
    char path[700];
    snprintf(path, sizeof path, "%s", files_at(&d, "rates.json"));
    assert_ok(train_rates_write(t, &a, path));
    assert_ok(train_rates_read(t, &b, path));
    assert_string_equal(a.machine, b.machine);
    assert_memory_equal(&a.row[0], &b.row[0], sizeof a.row[0]);
    assert_ok(train_forecast_placed(t, &b, &again));
    assert_true(again.tokens_per_second == run.tokens_per_second);
    train_forecast_model m;
    assert_says(train_forecast_make(t, &b, "cpu", 7, 0, &m), ERR_REFUSED, "7 threads");
    train_close(t);
    recipe_free(r);
    /* Other shapes, by what differs. */
    const char *const other[] = {"drafter.layers=3", "anchors.per_document=7",
                                 "drafter.taps=[0, 1]", "run.tokens_per_row=128",
                                 "drafter.block_size=5"};
    const char *const says[] = {"3 layers", "7 anchors", "taps 0 1", "rows of 128", "block 5"};
    for (int i = 0; i < 5; i++) {
        assert_ok(tiny_run_open(&d, (const char *const[]){other[i], NULL},
                                &(train_options){.plan_only = 1}, &r, &t));
        assert_says(train_rates_read(t, &b, path), ERR_REFUSED, "rates.json", says[i]);
        train_close(t);
        recipe_free(r);
    }
    /* Damaged tables. */
    assert_ok(tiny_run_open(&d, place, &(train_options){.plan_only = 1}, &r, &t));
    const char *const bad[] = {"{\"format\": 2}", "{\"format\": 1}", "[]", "{"};
    for (int i = 0; i < 4; i++) {
        files_text(&d, "bad.json", bad[i]);
        err e = train_rates_read(t, &b, files_at(&d, "bad.json"));
        assert_true(e == ERR_FORMAT || e == ERR_REFUSED);
        assert_non_null(strstr(err_text(), "bad.json"));
    }
    train_close(t);
    recipe_free(r);
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_updates_and_files_are_those_of_the_run),
        cmocka_unit_test(a_plan_counts_rows_without_keeping_or_preparing_them),
        cmocka_unit_test(what_is_offered_fits),
        cmocka_unit_test(a_small_disk_is_refused_with_what_would_fit),
        cmocka_unit_test(train_refuses_what_plan_refuses),
        cmocka_unit_test(a_run_under_way_keeps_its_rows),
        cmocka_unit_test(rates_are_measured_kept_and_refused),
    };
    return cmocka_run_group_tests_name("plan", tests, silence, NULL);
}
