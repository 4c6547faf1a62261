/* Stopped, killed, resumed: a run in pieces ends with the bits of a run in one piece.
 *
 * Pieces are new processes: this program runs itself as a child (--child FOLDER OUT STOP_AFTER). Kills are SIGKILL at random
 * moments from outside, and inside a chosen write, sync or rename by PACELINE_KILL_AT. What a resume must refuse is
 * here too. The folder lies in memory where that is possible: kills do not need a disk, and syncs are many. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/safetensors.h"
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"
#include <signal.h>
#include <sys/wait.h>

enum { UPDATES = 100 };
static char self[4096];
static int kills = 20; /* at random moments; `test_resume 200` does as many */

/* ---- the child ---- */

typedef struct stopper {
    int64_t after;
    _Atomic int stop;
} stopper;
static void count(void *ctx, const train_progress *p) {
    stopper *s = ctx;
    if (s->after && p->update >= s->after) s->stop = 1;
}

/* Exit code: 0 finished, 3 stopped by request, 1 failed. */
static int child(const char *folder, const char *out, const char *after, const char *extra) {
    files_dir d = {{0}, {0}};
    char set[700];
    stopper s = {.after = atoll(after)};
    log_set_sink(tiny_run_quiet, NULL);
    snprintf(d.path, sizeof d.path, "%s", folder);
    if (chdir(folder) != 0) return 1;
    snprintf(set, sizeof set, "run.out=%s", out);
    /* Each part of a run has its roles elsewhere, by its process number. */
    static const char *const targets[] = {"devices.target=auto", "devices.target=[cpu:0, cpu:1]",
                                          "devices.target=cpu:0"};
    static const char *const drafters[] = {"devices.drafter=auto", "devices.drafter=cpu:2",
                                           "devices.drafter=cpu:0"};
    const char *const sets[] = {set,   "run.max_updates=100", "run.evaluate_every=40",
                                extra, targets[getpid() % 3], drafters[getpid() % 3],
                                NULL};
    err e = tiny_run(&d, sets, count, &s, &s.stop);
    if (e && e != ERR_STOPPED) fprintf(stderr, "child: %s\n", err_text());
    return e == ERR_STOPPED ? 3 : e ? 1 : 0;
}

static pid_t start(const char *folder, const char *out, const char *after, const char *kill_at,
                   const char *extra) {
    const pid_t pid = fork();
    if (pid) return pid;
    if (kill_at) setenv("PACELINE_KILL_AT", kill_at, 1);
    execl(self, self, "--child", folder, out, after, extra, (char *)NULL);
    _exit(127);
}

/* Exit code, or 1000 + signal. */
static int finish(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}
static int run_child(const char *folder, const char *out, const char *after, const char *kill_at,
                     const char *extra) {
    return finish(start(folder, out, after, kill_at, extra));
}

/* ---- tests ---- */

typedef struct shared {
    files_dir d;
    char whole[128]; /* digests of the run in one piece */
} shared;

static int set_up(void **state) {
    static shared s;
    files_in_memory();
    tiny_run_make(&s.d, 11);
    if (run_child(s.d.path, "whole", "0", NULL, "run.checkpoint_every=25") != 0) return 1;
    tiny_run_digest(&s.d, "whole", UPDATES, s.whole);
    *state = &s;
    return 0;
}
static int tear_down(void **state) {
    shared *s = *state;
    if (chdir("/") != 0) return 1;
    files_end(&s->d);
    return 0;
}

/* Nothing half-written is left in a folder of a run. */
static void no_leavings(shared *s, const char *out, const char *sub) {
    char **names = NULL, dir[96];
    int n = 0;
    snprintf(dir, sizeof dir, "%s/%s", out, sub);
    assert_ok(file_list(files_at(&s->d, dir), &names, &n));
    for (int i = 0; i < n; i++)
        if (!strncmp(names[i], ".tmp-", 5)) fail_msg("%s holds %s", dir, names[i]);
    file_names_free(names, n);
}

/* The same weights, moments and export; the export of the last checkpoint is the one beside it, and
 * `best` names the same one. */
static void same_end(shared *s, const char *out) {
    char now[128], path[200], digest[33], *a = NULL, *b = NULL;
    size_t n = 0;
    tiny_run_digest(&s->d, out, UPDATES, now);
    assert_string_equal(now, s->whole);
    snprintf(path, sizeof path, "%s/drafter/model.safetensors", out);
    assert_ok(file_hash(files_at(&s->d, path), digest));
    assert_string_equal(digest, now + strlen(now) - 32);
    snprintf(path, sizeof path, "%s/best", out);
    assert_ok(file_read(files_at(&s->d, "whole/best"), &a, &n));
    assert_ok(file_read(files_at(&s->d, path), &b, &n));
    assert_string_equal(a, b);
    mem_free(a);
    mem_free(b);
    no_leavings(s, out, "");
    no_leavings(s, out, "checkpoints");
    no_leavings(s, out, "drafter");
}

/* Removes the fields that a clock filled. */
static void without_times(char *text) {
    char *from = text, *to = text, *cut;
    while ((cut = strstr(from, ", \"tokens_per_second\": ")) ||
           (cut = strstr(from, ",\"tokens_per_second\":"))) {
        memmove(to, from, (size_t)(cut - from));
        to += cut - from;
        from = cut + strcspn(cut, "}");
    }
    memmove(to, from, strlen(from) + 1);
}

static void b40_fifty_and_fifty_equal_a_hundred(void **state) {
    shared *s = *state;
    assert_int_equal(run_child(s->d.path, "half", "50", NULL, "run.checkpoint_every=1000"), 3);
    assert_int_equal(run_child(s->d.path, "half", "0", NULL, "run.checkpoint_every=1000"), 0);
    same_end(s, "half");
    /* The moments that were carried over are not zero: two empty states would be equal as well. */
    st_file *f = NULL;
    assert_ok(safetensors_open(
        &f, files_at(&s->d, "half/checkpoints/step-00000050/moments.safetensors")));
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        assert_int_equal(t->type, DT_F32);
        double sum = 0;
        for (int64_t k = 0; k < tensor_count(t); k++) {
            float x;
            memcpy(&x, (const char *)t->data + k * 4, 4);
            sum += fabs((double)x);
        }
        assert_true(sum > 0);
    }
    safetensors_close(f);
    /* State (update, cursor, best score, counts) and rows too, but for the recipe's own lines and times. */
    char *a = NULL, *b = NULL;
    size_t n = 0;
    assert_ok(file_read(files_at(&s->d, "whole/metrics.jsonl"), &a, &n));
    assert_ok(file_read(files_at(&s->d, "half/metrics.jsonl"), &b, &n));
    without_times(a);
    without_times(b);
    assert_string_equal(a, b);
    mem_free(a);
    mem_free(b);
    static const char *const keys[] = {"\"best_tau\"", "\"best_update\"", "\"adam_steps\"",
                                       "\"cursor_next\"", "\"cursor_epoch\""};
    assert_ok(file_read(files_at(&s->d, "whole/checkpoints/step-00000100/state.json"), &a, &n));
    assert_ok(file_read(files_at(&s->d, "half/checkpoints/step-00000100/state.json"), &b, &n));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *x = strstr(a, keys[i]), *y = strstr(b, keys[i]);
        assert_true(x && y && strcspn(x, "\n") == strcspn(y, "\n") &&
                    strncmp(x, y, strcspn(x, "\n")) == 0);
    }
    mem_free(a);
    mem_free(b);
}

static void kills_at_random_moments(void **state) {
    shared *s = *state;
    const uint64_t seed = numbers_seed();
    int killed = 0, code = 0;
    for (int i = 0; i < 20 * kills && killed < kills; i++) {
        const pid_t pid = start(s->d.path, "random", "0", NULL, "run.checkpoint_every=2");
        usleep((useconds_t)numbers_below(seed, 1, (uint64_t)i, 120000));
        kill(pid, SIGKILL);
        code = finish(pid);
        if (code == 1000 + SIGKILL) {
            killed++;
            continue;
        }
        /* It came to its end first: start over and go on killing. */
        assert_int_equal(code, 0);
        same_end(s, "random");
        assert_ok(file_remove_tree(files_at(&s->d, "random")));
    }
    assert_int_equal(killed, kills);
    assert_int_equal(run_child(s->d.path, "random", "0", NULL, "run.checkpoint_every=2"), 0);
    same_end(s, "random");
}

/* Five kills inside each stage of saves; every one is followed by a resume that is killed in turn, the last goes on to the end. */
static void kills_inside_write_sync_and_rename(void **state) {
    shared *s = *state;
    static const char *const stages[] = {"write", "sync", "rename"};
    const uint64_t seed = numbers_seed();
    for (int k = 0; k < 3; k++) {
        int killed = 0;
        for (int i = 0; i < 5; i++) {
            char at[32];
            /* A save has about ten of each but writes, of which every metric row is one too. */
            const int64_t most = k == 0 ? 60 : k == 1 ? 40 : 25;
            snprintf(at, sizeof at, "%s:%lld", stages[k],
                     (long long)(3 + numbers_below(seed, 2, (uint64_t)(k * 5 + i), most)));
            const int code = run_child(s->d.path, stages[k], "0", at, "run.checkpoint_every=5");
            assert_true(code == 1000 + SIGKILL || code == 0);
            killed += code != 0;
        }
        assert_true(killed >= 4);
        assert_int_equal(run_child(s->d.path, stages[k], "0", NULL, "run.checkpoint_every=5"), 0);
        same_end(s, stages[k]);
    }
}

static int killed_at_rename(shared *s, const char *out, int at) {
    char stage[32];
    snprintf(stage, sizeof stage, "rename:%d", at);
    assert_ok(file_remove_tree(files_at(&s->d, out)));
    const int code = run_child(s->d.path, out, "0", stage, "run.checkpoint_every=1000");
    assert_true(code == 0 || code == 1000 + SIGKILL);
    return code != 0;
}

/* The last save of a run has no later one to mend it: a kill at each of its renames, also after the
 * checkpoint's own, is followed by a start that has nothing left to train. */
static void kills_inside_the_last_save(void **state) {
    shared *s = *state;
    int last = 1, beyond = 256;
    while (beyond - last > 1) { /* rename number `last` happens, number `beyond` does not */
        const int mid = (last + beyond) / 2;
        if (killed_at_rename(s, "last", mid))
            last = mid;
        else
            beyond = mid;
    }
    assert_true(last > 10);
    for (int i = 0; i < 10; i++) {
        assert_true(killed_at_rename(s, "last", last - i));
        assert_int_equal(run_child(s->d.path, "last", "0", NULL, "run.checkpoint_every=1000"), 0);
        same_end(s, "last");
    }
}

static void try_open(shared *s, const char *out, const char *change, err code, const char *says) {
    recipe *r;
    train *t;
    char set[64];
    snprintf(set, sizeof set, "run.out=%s", out);
    const char *const sets[] = {
        set, "run.max_updates=100", "run.evaluate_every=40", "run.checkpoint_every=25", change,
        NULL};
    assert_says(tiny_run_open(&s->d, sets, NULL, &r, &t), code, says);
    if (code) return;
    train_close(t);
    recipe_free(r);
}

static void flip(shared *s, const char *name, long at) {
    FILE *f = fopen(files_at(&s->d, name), "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    const int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
}

static void resume_names_what_changed(void **state) {
    shared *s = *state;
    log_set_sink(tiny_run_quiet, NULL);
    assert_int_equal(run_child(s->d.path, "kept", "50", NULL, "run.checkpoint_every=25"), 3);
    try_open(s, "kept", "optimizer.lr=0.5", ERR_REFUSED, "optimizer.lr");
    try_open(s, "kept", "run.seed=9", ERR_REFUSED, "run.seed: 1 and the recipe now says 9");
    try_open(s, "kept", "optimizer.schedule=wsd", ERR_REFUSED, "optimizer.schedule: cosine");
    try_open(s, "kept", "run.keep=7", ERR_OK, "");
    try_open(s, "kept", "devices.threads=1", ERR_OK, "");
    try_open(s, "kept", "run.stall_seconds=77", ERR_OK, "");
    try_open(s, "kept", "features.store=taps", ERR_REFUSED, "features.store: \"\"");
    try_open(s, "kept", "data.path=held.jsonl", ERR_REFUSED, "line 1 of 24 prepared ones");
    const char *const elsewhere = "data.store=other";
    assert_says(
        tiny_run_open(&s->d,
                      (const char *const[]){"run.out=kept", "run.max_updates=100",
                                            "run.evaluate_every=40", "run.checkpoint_every=25",
                                            "data.path=held.jsonl", elsewhere, NULL},
                      NULL, &(recipe *){NULL}, &(train *){NULL}),
        ERR_REFUSED, "other training data");
    try_open(s, "kept", "data.validation=train.jsonl", ERR_REFUSED, "other validation data");
    try_open(s, "kept", "optimizer.lr=0.5", ERR_REFUSED, "--allow-change");
    tiny_gguf g = tiny_gguf_default(TINY_COUNT + 3, 12);
    g.tokenizer = 1;
    g.layers = 4;
    assert_ok(tiny_gguf_write(files_at(&s->d, "other.gguf"), &g));
    try_open(s, "kept", "target.path=other.gguf", ERR_REFUSED, "another target");
    /* One flipped byte, one part missing, then no mark: passed over for the one before. */
    flip(s, "kept/checkpoints/step-00000050/masters.safetensors", 3000);
    try_open(s, "kept", NULL, ERR_FORMAT, "masters.safetensors is damaged");
    flip(s, "kept/checkpoints/step-00000050/masters.safetensors", 3000);
    try_open(s, "kept", NULL, ERR_OK, "");
    assert_ok(
        file_remove_tree(files_at(&s->d, "kept/checkpoints/step-00000050/moments.safetensors")));
    try_open(s, "kept", NULL, ERR_FORMAT, "moments.safetensors is missing");
    assert_ok(file_remove_tree(files_at(&s->d, "kept/checkpoints/step-00000050/COMPLETE")));
    assert_int_equal(run_child(s->d.path, "kept", "0", NULL, "run.checkpoint_every=25"), 0);
    same_end(s, "kept");
}

/* Goes on with "changed" under other settings, with the flag. */
static err go_on(shared *s, const char *const *sets) {
    recipe *r;
    train *t;
    TRY(tiny_run_open(&s->d, sets, &(train_options){.allow_change = 1}, &r, &t));
    err e = train_run(t, NULL, NULL, NULL);
    train_close(t);
    recipe_free(r);
    return e;
}
#define GO_ON(...)                                                                                 \
    go_on(s, (const char *const[]){"run.out=changed", "run.evaluate_every=40",                     \
                                   "run.checkpoint_every=25", __VA_ARGS__, NULL})

static void digest_of_rows(shared *s, const char *state, char out[48]) {
    char *text = NULL;
    size_t n = 0;
    assert_ok(file_read(files_at(&s->d, state), &text, &n));
    const char *at = strstr(text, "\"data_digest\"");
    assert_non_null(at);
    snprintf(out, 48, "%.47s", at);
    mem_free(text);
}

static void what_changed_is_allowed_by_a_flag(void **state) {
    shared *s = *state;
    char *text = NULL, before[48], after[48];
    size_t n = 0;
    assert_int_equal(run_child(s->d.path, "changed", "50", NULL, "run.checkpoint_every=25"), 3);
    assert_says(GO_ON("drafter.layers=3", "run.max_updates=100"), ERR_REFUSED, "drafter.layers");
    assert_ok(GO_ON("optimizer.lr=1e-3", "run.max_updates=60"));
    assert_ok(
        file_read(files_at(&s->d, "changed/checkpoints/step-00000060/state.json"), &text, &n));
    assert_non_null(strstr(text, "lr: 0.001"));
    mem_free(text);
    /* Other rows: from the beginning of the epoch that it stands in. */
    assert_ok(GO_ON("optimizer.lr=1e-3", "run.max_updates=70", "data.path=held.jsonl",
                    "data.store=elsewhere"));
    digest_of_rows(s, "changed/checkpoints/step-00000060/state.json", before);
    digest_of_rows(s, "changed/checkpoints/step-00000070/state.json", after);
    assert_string_not_equal(before, after);
}

static void said(shared *s, const char *log, const char *what) {
    char *text = NULL;
    size_t n = 0;
    assert_ok(file_read(files_at(&s->d, log), &text, &n));
    if (!strstr(text, what)) fail_msg("'%s' is not in %s: %s", what, log, text);
    mem_free(text);
}

/* As a finished run that is started again: done, with a sentence that says why, and nothing changed. */
static void an_end_behind_the_run_leaves_nothing_to_do(void **state) {
    shared *s = *state;
    char before[128], after[128];
    const char *sets[] = {"run.out=ended", "run.evaluate_every=40", "run.checkpoint_every=25",
                          "run.max_updates=20", NULL};
    assert_int_equal(run_child(s->d.path, "ended", "50", NULL, "run.checkpoint_every=25"), 3);
    tiny_run_digest(&s->d, "ended", 50, before);
    assert_ok(go_on(s, sets));
    said(s, "ended/log.txt", "at update 50 already, beyond run.max_updates 20: nothing is left");
    assert_ok(go_on(s, (const char *[]){"run.out=ended", "run.evaluate_every=40", "run.epochs=1",
                                        "run.max_updates=0", NULL}));
    said(s, "ended/log.txt", "already, beyond run.epochs 1: nothing is left");
    tiny_run_digest(&s->d, "ended", 50, after);
    assert_string_equal(before, after);
    assert_int_equal(run_child(s->d.path, "ended", "0", NULL, "run.checkpoint_every=25"), 0);
    same_end(s, "ended");
    sets[3] = "run.max_updates=100";
    assert_ok(go_on(s, sets));
    said(s, "ended/log.txt", "is at its last update, 100: nothing is left to do");
    same_end(s, "ended");
}

static void a_second_run_in_the_folder_is_refused(void **state) {
    shared *s = *state;
    recipe *r;
    train *t;
    const char *const sets[] = {"run.out=busy", NULL};
    assert_ok(tiny_run_open(&s->d, sets, NULL, &r, &t));
    assert_int_equal(run_child(s->d.path, "busy", "0", NULL, "run.keep=1"), 1);
    recipe *r2;
    train *t2;
    assert_says(tiny_run_open(&s->d, sets, NULL, &r2, &t2), ERR_REFUSED, "in use", "busy",
                "process");
    train_close(t);
    recipe_free(r);
}

/* A full disk at any write, sync or rename: an error that says so, and a resume that ends right. */
static void a_full_disk_is_told_and_survived(void **state) {
    shared *s = *state;
    const uint64_t seed = numbers_seed();
    for (int i = 0; i < 4; i++) {
        char at[32];
        snprintf(at, sizeof at, "%lld", (long long)(20 + numbers_below(seed, 5, (uint64_t)i, 100)));
        setenv("PACELINE_FAIL_WRITE", at, 1);
        const int code = run_child(s->d.path, "full", "0", NULL, "run.checkpoint_every=5");
        unsetenv("PACELINE_FAIL_WRITE");
        assert_true(code == 1 || code == 0);
    }
    assert_int_equal(run_child(s->d.path, "full", "0", NULL, "run.checkpoint_every=5"), 0);
    same_end(s, "full");
}

int main(int argc, char **argv) {
    if (argc == 6 && strcmp(argv[1], "--child") == 0)
        return child(argv[2], argv[3], argv[4], argv[5]);
    if (argc == 2 && atoi(argv[1]) > 0) kills = atoi(argv[1]);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 1) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b40_fifty_and_fifty_equal_a_hundred),
        cmocka_unit_test(kills_at_random_moments),
        cmocka_unit_test(kills_inside_write_sync_and_rename),
        cmocka_unit_test(kills_inside_the_last_save),
        cmocka_unit_test(resume_names_what_changed),
        cmocka_unit_test(what_changed_is_allowed_by_a_flag),
        cmocka_unit_test(an_end_behind_the_run_leaves_nothing_to_do),
        cmocka_unit_test(a_second_run_in_the_folder_is_refused),
        cmocka_unit_test(a_full_disk_is_told_and_survived),
    };
    return cmocka_run_group_tests_name("stop, kill, resume", tests, set_up, tear_down);
}
