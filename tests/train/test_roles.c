/* Roles on devices: the same bits wherever they run, several drafters from one target pass, and failures that end what they should.
 *
 * Devices are shares of this machine's threads. Results are compared by digest of masters, moments and export: equal means bit for bit.
 * Roles are slowed, broken and stopped through train_options.on_phase, which every role calls on its own thread. Runs are
 * tiny (tiny_run.h). Stalls and abandoned runs are test_stall.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/safetensors.h"
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"
#include <stdatomic.h>

/* Runs to the end under OUT with up to eight more settings; the digest of update 12 into text. */
typedef struct end {
    err e;
    int64_t target_rows;
} end;
static end run(files_dir *d, const char *recipe_name, const char *const *sets,
               const train_options *opt, const _Atomic int *stop) {
    recipe *r = NULL;
    train *t = NULL;
    int n = 0;
    end out = {0};
    while (sets[n]) n++;
    out.e = recipe_load(&r, files_at(d, recipe_name), sets, n);
    if (!out.e) out.e = train_open(&t, r, opt);
    if (!out.e) out.e = train_run(t, NULL, NULL, stop);
    if (t) out.target_rows = train_target_rows(t);
    train_close(t);
    recipe_free(r);
    return out;
}

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void same_bits(files_dir *d, const char *a, const char *b) {
    char x[128], y[128];
    tiny_run_digest(d, a, 12, x);
    tiny_run_digest(d, b, 12, y);
    assert_string_equal(x, y);
}

/* Masters of a checkpoint: largest difference relative to the largest value. */
static double masters_differ(files_dir *d, const char *a, const char *b) {
    st_file *f = NULL, *g = NULL;
    char path[200];
    double far = 0;
    snprintf(path, sizeof path, "%s/checkpoints/step-00000012/masters.safetensors", a);
    assert_ok(safetensors_open(&f, files_at(d, path)));
    snprintf(path, sizeof path, "%s/checkpoints/step-00000012/masters.safetensors", b);
    assert_ok(safetensors_open(&g, files_at(d, path)));
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *x = safetensors_at(f, i), *y = safetensors_find(g, x->name);
        assert_non_null(y);
        const int64_t n = tensor_count(x);
        double *want = malloc((size_t)n * sizeof *want);
        assert_non_null(want);
        for (int64_t k = 0; k < n; k++) want[k] = (double)((const float *)(const void *)x->data)[k];
        const double e = numbers_distance((const float *)(const void *)y->data, want, n);
        if (e > far) far = e;
        free(want);
    }
    safetensors_close(f);
    safetensors_close(g);
    return far;
}

static void b44_placement_changes_no_bit(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 21);
    const struct {
        const char *target, *drafter, *out;
    } place[] = {
        {"devices.target=cpu:0", "devices.drafter=cpu:0", "one"},
        {"devices.target=auto", "devices.drafter=auto", "auto"},
        {"devices.target=[cpu:0]", "devices.drafter=[cpu:1]", "oneone"},
        {"devices.target=[cpu:0, cpu:1]", "devices.drafter=[cpu:2]", "twoone"},
        {"devices.target=[cpu:0, cpu:1, cpu:2]", "devices.drafter=[cpu:0, cpu:1, cpu:2]", "turns3"},
        {"devices.target=[cpu:0]", "devices.drafter=[cpu:1, cpu:2, cpu:3]", "one3"},
        {"devices.target=[cpu:0, cpu:1, cpu:2, cpu:3, cpu:4]",
         "devices.drafter=[cpu:5, cpu:6, cpu:7]", "five3"},
    };
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        char out[40];
        snprintf(out, sizeof out, "run.out=%s", place[i].out);
        assert_ok(run(&d, "recipe.yaml",
                      SETS(place[i].target, place[i].drafter, out, "run.tokens_per_step=400"), NULL,
                      NULL)
                      .e);
    }
    same_bits(&d, "one", "auto");
    same_bits(&d, "one", "oneone");
    same_bits(&d, "one", "twoone");
    same_bits(&d, "turns3", "one3");
    same_bits(&d, "turns3", "five3");
    /* Another number of ranks adds in another order, and nothing more. */
    char a[128], b[128];
    tiny_run_digest(&d, "one", 12, a);
    tiny_run_digest(&d, "five3", 12, b);
    assert_string_not_equal(a, b);
    assert_true(masters_differ(&d, "one", "five3") < 2e-3);
    files_end(&d);
}

#define DRAFTERS                                                                                   \
    "target: {path: t.gguf}\n"                                                                     \
    "data: {path: train.jsonl, validation: held.jsonl, max_length: 96, template: chatml}\n"        \
    "drafter: {layers: 2, block_size: 4, taps: [0, 2]}\n"                                          \
    "anchors: {per_document: 6}\n"                                                                 \
    "optimizer: {lr: 3.0e-3}\n"                                                                    \
    "run: {max_updates: 12, tokens_per_step: 200, tokens_per_row: 96, checkpoint_every: 4,\n"      \
    "      evaluate_every: 6, evaluate_prompts: 2, evaluate_tokens: 8, keep: 2, out: out}\n"       \
    "devices: {threads: 2}\n"                                                                      \
    "drafters:\n"                                                                                  \
    "  plain: {}\n"                                                                                \
    "  deep: {drafter: {layers: 3, taps: [0, 1, 3], block_size: 6}, optimizer: {lr: 1.0e-3}}\n"
static const char two[] = DRAFTERS;
static const char three[] =
    DRAFTERS "  few: {anchors: {per_document: 2}, drafter: {taps: [1, 3]}, loss: {gamma: 2}}\n";

static void three_drafters_equal_three_runs_at_one_targets_cost(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 22);
    files_text(&d, "three.yaml", three);
    const end all = run(&d, "three.yaml", SETS("run.out=all"), NULL, NULL);
    assert_ok(all.e);
    const end placed = run(&d, "three.yaml",
                           SETS("run.out=placed", "devices.target=[cpu:0, cpu:1]",
                                "devices.drafter=[cpu:2, cpu:3, cpu:4]"),
                           NULL, NULL);
    assert_ok(placed.e);
    const end one = run(&d, "recipe.yaml", SETS("run.out=plain"), NULL, NULL);
    assert_ok(one.e);
    assert_ok(run(&d, "recipe.yaml",
                  SETS("run.out=deep", "drafter.layers=3", "drafter.taps=[0, 1, 3]",
                       "drafter.block_size=6", "optimizer.lr=1e-3"),
                  NULL, NULL)
                  .e);
    assert_ok(
        run(&d, "recipe.yaml",
            SETS("run.out=few", "anchors.per_document=2", "drafter.taps=[1, 3]", "loss.gamma=2"),
            NULL, NULL)
            .e);
    static const char *const names[] = {"plain", "deep", "few"};
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "all/drafters/%s", names[i]);
        same_bits(&d, path, names[i]);
        snprintf(path, sizeof path, "placed/drafters/%s", names[i]);
        same_bits(&d, path, names[i]);
    }
    assert_true(one.target_rows > 12);
    assert_int_equal(all.target_rows, one.target_rows);
    assert_int_equal(placed.target_rows, one.target_rows);
    files_end(&d);
}

/* ---- roles that misbehave ---- */

typedef struct fault {
    const char *role, *phase; /* beginnings of names */
    int64_t step;             /* from this one on */
    _Atomic int hits;
    _Atomic int *stop; /* set instead of failing */
} fault;
static err strike(void *ctx, const char *role, const char *phase, int64_t step) {
    fault *f = ctx;
    tiny_run_give_way(f->role, f->step, &f->hits, role, phase, step);
    if (strncmp(role, f->role, strlen(f->role)) != 0 || strcmp(phase, f->phase) != 0 ||
        step < f->step)
        return ERR_OK;
    atomic_fetch_add(&f->hits, 1);
    if (f->stop) {
        *f->stop = 1;
        return ERR_OK;
    }
    return err_set(ERR_NUMERIC, "a fault was put here");
}

static void one_failing_drafter_leaves_the_others(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 23);
    files_text(&d, "three.yaml", three);
    assert_ok(run(&d, "three.yaml", SETS("run.out=whole"), NULL, NULL).e);
    fault f = {.role = "drafter deep", .phase = "optimizer", .step = 5};
    train_options opt = {.on_phase = strike, .on_phase_ctx = &f};
    const char *const sets[] = {"run.out=out", "devices.target=[cpu:0]",
                                "devices.drafter=[cpu:1, cpu:2, cpu:3]", NULL};
    assert_says(run(&d, "three.yaml", sets, &opt, NULL).e, ERR_NUMERIC, "drafter deep on cpu:2",
                "a fault was put here");
    assert_true(atomic_load(&f.hits) == 1);
    same_bits(&d, "out/drafters/plain", "whole/drafters/plain");
    same_bits(&d, "out/drafters/few", "whole/drafters/few");
    /* The next start brings the third to the same end; the others need no row. */
    const end more = run(&d, "three.yaml", sets, NULL, NULL);
    assert_ok(more.e);
    same_bits(&d, "out/drafters/deep", "whole/drafters/deep");
    /* Where it is asked, one ends all; what the others had is saved. */
    const char *const stop[] = {"run.out=stop",
                                "run.on_drafter_error=stop",
                                "devices.target=[cpu:0]",
                                "devices.drafter=[cpu:1, cpu:2, cpu:3]",
                                "run.checkpoint_every=1000",
                                "run.evaluate_every=1000",
                                NULL};
    fault g = {.role = "drafter deep", .phase = "optimizer", .step = 9};
    opt.on_phase_ctx = &g;
    assert_says(run(&d, "three.yaml", stop, &opt, NULL).e, ERR_NUMERIC, "drafter deep");
    char **names = NULL;
    int n = 0;
    assert_ok(file_list(files_at(&d, "stop/drafters/plain/checkpoints"), &names, &n));
    assert_int_equal(n, 1);
    file_names_free(names, n);
    const char *const again[] = {"run.out=stop",
                                 "devices.target=[cpu:0]",
                                 "devices.drafter=[cpu:1, cpu:2, cpu:3]",
                                 "run.checkpoint_every=1000",
                                 "run.evaluate_every=1000",
                                 NULL};
    assert_ok(run(&d, "three.yaml", again, NULL, NULL).e);
    same_bits(&d, "stop/drafters/plain", "whole/drafters/plain");
    same_bits(&d, "stop/drafters/deep", "whole/drafters/deep");
    same_bits(&d, "stop/drafters/few", "whole/drafters/few");
    files_end(&d);
}

/* Any role that fails at any phase ends the run with its own sentence, and the run can be taken up again to the same bits. */
static void a_failing_role_ends_the_run_and_names_itself(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 24);
    const struct {
        const char *role, *phase;
    } at[] = {{"target on cpu:1", "target forward"},
              {"drafter on cpu:2", "forward and backward"},
              {"drafter on cpu:3", "forward and backward"},
              {"drafter on cpu:3", "sums"},
              {"drafter on cpu:3", "gradient norm"},
              {"drafter on cpu:2", "optimizer"},
              {"drafter on cpu:4", "optimizer"},
              {"drafter on cpu:2", "evaluation"},
              {"drafter on cpu:2", "checkpoint"}};
#define PLACE                                                                                      \
    "devices.target=[cpu:0, cpu:1]", "devices.drafter=[cpu:2, cpu:3, cpu:4]",                      \
        "run.tokens_per_step=400"
    assert_ok(run(&d, "recipe.yaml", SETS("run.out=whole", PLACE), NULL, NULL).e);
    const uint64_t seed = numbers_seed();
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        char out[40];
        snprintf(out, sizeof out, "run.out=out%zu", i);
        const int64_t step = at[i].phase[0] == 't' || at[i].phase[0] == 'f'
                                 ? numbers_below(seed, 1, i, 30)
                                 : numbers_below(seed, 2, i, 6);
        fault f = {.role = at[i].role, .phase = at[i].phase, .step = step};
        const train_options opt = {.on_phase = strike, .on_phase_ctx = &f};
        assert_says(run(&d, "recipe.yaml", SETS(out, PLACE), &opt, NULL).e, ERR_NUMERIC, at[i].role,
                    "a fault was put here");
        assert_true(atomic_load(&f.hits) >= 1);
        assert_ok(run(&d, "recipe.yaml", SETS(out, PLACE), NULL, NULL).e);
        same_bits(&d, out + 8, "whole");
    }
    files_end(&d);
}

static void a_stop_is_the_same_update_on_all_ranks(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 25);
    assert_ok(run(&d, "recipe.yaml", SETS("run.out=whole", PLACE), NULL, NULL).e);
    const uint64_t seed = numbers_seed();
    for (int i = 0; i < 6; i++) {
        _Atomic int stop = 0;
        char out[40];
        snprintf(out, sizeof out, "run.out=out%d", i);
        fault f = {.role = i % 2 ? "drafter on cpu:3" : "target on cpu:0",
                   .phase = i % 2 ? "forward and backward" : "target forward",
                   .step = numbers_below(seed, 1, (uint64_t)i, 20),
                   .stop = &stop};
        const train_options opt = {.on_phase = strike, .on_phase_ctx = &f};
        assert_says(run(&d, "recipe.yaml", SETS(out, PLACE), &opt, &stop).e, ERR_STOPPED,
                    "run the same command to continue");
        assert_ok(run(&d, "recipe.yaml", SETS(out, PLACE), NULL, NULL).e);
        same_bits(&d, out + 8, "whole");
    }
    files_end(&d);
}

/* A drafter breaks early; then a request to stop finds the other in an update that takes longer than an ending may. There is no third:
 * it could end first, and the deadline would rightly begin with it. */
typedef struct slow_stop {
    _Atomic int broken, stop, slept; /* broken: the number of the thread that broke */
} slow_stop;
/* Until the system has no such thread any more. */
static void await_thread_end(int thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d", thread);
    for (int ms = 0; ms < 60000 && access(path, F_OK) == 0; ms++) usleep(1000);
}
static err break_then_stop(void *ctx, const char *role, const char *phase, int64_t step) {
    slow_stop *s = ctx;
    if (!strncmp(role, "drafter deep", 12) && !strcmp(phase, "optimizer") && step >= 2) {
        s->broken = (int)gettid();
        return err_set(ERR_NUMERIC, "a fault was put here");
    }
    if (strncmp(role, "drafter plain", 13) != 0 || strcmp(phase, "sums") != 0) return ERR_OK;
    while (step == 4 && !s->broken) usleep(1000);
    if (step != 5) return ERR_OK;
    await_thread_end(s->broken);
    s->stop = 1;
    usleep(4600000);
    s->slept = 1;
    return ERR_OK;
}

static void a_stop_gives_an_update_its_time_also_when_a_role_ended_before(void **s) {
    (void)s;
    files_dir d;
    slow_stop f = {0};
    const train_options opt = {.on_phase = break_then_stop, .on_phase_ctx = &f};
    tiny_run_make(&d, 27);
    files_text(&d, "two.yaml", two);
    const end got =
        run(&d, "two.yaml",
            SETS("run.end_seconds=4", "devices.target=[cpu:0]", "devices.drafter=[cpu:1, cpu:2]",
                 "run.checkpoint_every=1000", "run.evaluate_every=1000"),
            &opt, &f.stop);
    assert_true(f.slept);
    assert_says(got.e, ERR_NUMERIC, "drafter deep");
    assert_null(strstr(err_text(), "run.end_seconds"));
    char **names = NULL;
    int n = 0;
    assert_ok(file_list(files_at(&d, "out/drafters/plain/checkpoints"), &names, &n));
    assert_int_equal(n, 1);
    file_names_free(names, n);
    files_end(&d);
}

static void bad_placements_are_refused(void **s) {
    (void)s;
    files_dir d;
    tiny_run_make(&d, 26);
    files_text(&d, "three.yaml", three);
    const struct {
        const char *recipe, *set;
        err code;
        const char *says;
    } bad[] = {
        {"recipe.yaml", "devices.target=cuda:0", ERR_RECIPE, "cuda:0"},
        {"recipe.yaml", "devices.drafter=cpu:64", ERR_RECIPE, "cpu:64 does not exist"},
        {"recipe.yaml", "devices.drafter=[cpu:1, cpu:1]", ERR_RECIPE, "twice"},
        {"three.yaml", "devices.drafter=[cpu:1, cpu:2]", ERR_RECIPE, "2 devices for 3 drafters"},
        {"three.yaml", "drafters.deep.devices=[cpu:1, cpu:1]", ERR_RECIPE, "twice"},
        {"three.yaml", "drafters.deep.drafter.taps=[0, 9]", ERR_RECIPE, "drafter deep"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const end got = run(&d, bad[i].recipe, SETS(bad[i].set), NULL, NULL);
        assert_says(got.e, bad[i].code, bad[i].says);
    }
    assert_false(file_exists(files_at(&d, "out")));
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b44_placement_changes_no_bit),
        cmocka_unit_test(three_drafters_equal_three_runs_at_one_targets_cost),
        cmocka_unit_test(one_failing_drafter_leaves_the_others),
        cmocka_unit_test(a_failing_role_ends_the_run_and_names_itself),
        cmocka_unit_test(a_stop_is_the_same_update_on_all_ranks),
        cmocka_unit_test(a_stop_gives_an_update_its_time_also_when_a_role_ended_before),
        cmocka_unit_test(bad_placements_are_refused),
    };
    return cmocka_run_group_tests_name("roles on devices", tests, tiny_run_silence, NULL);
}
