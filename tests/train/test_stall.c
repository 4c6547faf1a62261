/* Roles that hang, die or meet a full disk: one clear cause, every role ended by the deadline, a process that goes.
 *
 * A hanging role cannot be taken back, so each case is a process of its own: this program runs itself as a child (--child FOLDER ROLE
 * PHASE STEP KIND). What is asserted is how the child ends and what it says, and that the run is taken up again to the bits
 * of an undisturbed one; that it ends at all is the deadline's doing, not this test's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/log.h"
#include "support/numbers.h"
#include "support/says.h"
#include "tiny_run.h"
#include <signal.h>
#include <sys/wait.h>

static char self[4096];

/* ---- the child ---- */

typedef struct fault {
    const char *role, *phase, *kind;
    int64_t at;
} fault;

static err strike(void *ctx, const char *role, const char *phase, int64_t at) {
    const fault *f = ctx;
    if (strncmp(role, f->role, strlen(f->role)) != 0 || strcmp(phase, f->phase) != 0 || at < f->at)
        return ERR_OK;
    if (!strcmp(f->kind, "crash")) abort();
    if (!strcmp(f->kind, "raise")) return err_set(ERR_NUMERIC, "a fault was put here");
    for (;;) pause(); /* hang */
}

static int child(char **a) {
    const fault f = {a[1], a[2], a[4], atoll(a[3])};
    train_options opt = {.on_phase = strike, .on_phase_ctx = (void *)(uintptr_t)&f};
    const char *const sets[] = {"devices.target=[cpu:0, cpu:1]",
                                "devices.drafter=[cpu:2, cpu:3]",
                                "run.tokens_per_step=400",
                                "run.stall_seconds=5",
                                "run.end_seconds=1",
                                "run.checkpoint_every=1000",
                                "run.evaluate_every=1000",
                                NULL};
    recipe *r = NULL;
    train *t = NULL;
    if (chdir(a[0]) != 0) return 9;
    err e = recipe_load(&r, "recipe.yaml", sets, 7);
    if (!e) e = train_open(&t, r, strcmp(f.kind, "none") ? &opt : NULL);
    if (!e) e = train_run(t, NULL, NULL, NULL);
    if (e) fprintf(stderr, "child: %s\n", err_text());
    /* As the program does: the roles of an abandoned run still use everything, so nothing is freed (and no leak looked for). */
    if (train_is_abandoned(t)) _exit(1);
    train_close(t);
    recipe_free(r);
    return e == ERR_STOPPED ? 3 : e ? 1 : 0;
}

/* ---- the tests ---- */

/* Exit code, or 1000 + signal; what it wrote to stderr is in ERR.txt of the folder. */
static int run_child(files_dir *d, const char *role, const char *phase, const char *at,
                     const char *kind) {
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(files_at(d, "err.txt"), "w", stderr)) _exit(8);
        execl(self, self, "--child", d->path, role, phase, at, kind, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void said(files_dir *d, const char *file, const char *what) {
    char *text = NULL;
    size_t n = 0;
    assert_ok(file_read(files_at(d, file), &text, &n));
    if (!strstr(text, what)) fail_msg("'%s' is not in %s: %s", what, file, text);
    mem_free(text);
}

static int saved(files_dir *d) {
    char **names = NULL;
    int n = 0;
    assert_ok(file_list(files_at(d, "out/checkpoints"), &names, &n));
    const int u = n ? atoi(names[n - 1] + 5) : 0;
    file_names_free(names, n);
    return u;
}

static char whole[128];
static int set_up(void **s) {
    files_dir d;
    (void)s;
    if (file_is_dir("/dev/shm")) setenv("TMPDIR", "/dev/shm", 0);
    tiny_run_make(&d, 41);
    if (run_child(&d, "", "", "0", "none") != 0) {
        char *text = NULL;
        size_t n = 0;
        if (!file_read(files_at(&d, "err.txt"), &text, &n)) printf("%s\n", text);
        return 1;
    }
    tiny_run_digest(&d, "out", 12, whole);
    files_end(&d);
    return 0;
}

/* The run went wrong in its folder; it is taken up again and ends as one that did not. */
static void recovers(files_dir *d) {
    char now[128];
    assert_int_equal(run_child(d, "", "", "0", "none"), 0);
    tiny_run_digest(d, "out", 12, now);
    assert_string_equal(now, whole);
}

static void a_hanging_role_is_named_with_its_stack(void **s) {
    (void)s;
    static const char *const at[][3] = {{"target on cpu:1", "target forward", "9"},
                                        {"drafter on cpu:3", "forward and backward", "9"}};
    for (int i = 0; i < 2; i++) {
        files_dir d;
        tiny_run_make(&d, 41);
        assert_int_equal(run_child(&d, at[i][0], at[i][1], at[i][2], "hang"), 1);
        said(&d, "err.txt", at[i][0]);
        said(&d, "out/log.txt", at[i][0]);
        said(&d, "out/log.txt", at[i][1]);
        said(&d, "out/log.txt", "strike"); /* of its stack */
        assert_true(saved(&d) > 0);        /* rank 0 could be reached */
        recovers(&d);
        files_end(&d);
    }
}

static void a_crash_of_a_role_ends_the_process_and_nothing_is_lost(void **s) {
    (void)s;
    const uint64_t seed = numbers_seed();
    static const char *const at[][2] = {{"target on cpu:0", "target forward"},
                                        {"target on cpu:1", "target forward"},
                                        {"drafter on cpu:2", "forward and backward"},
                                        {"drafter on cpu:2", "optimizer"},
                                        {"drafter on cpu:3", "optimizer"},
                                        {"drafter on cpu:2", "checkpoint"}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        files_dir d;
        char step[24];
        tiny_run_make(&d, 41);
        snprintf(step, sizeof step, "%lld", (long long)numbers_below(seed, 1, i, 11));
        assert_int_equal(run_child(&d, at[i][0], at[i][1], step, "crash"), 1000 + SIGABRT);
        recovers(&d);
        files_end(&d);
    }
}

int main(int argc, char **argv) {
    if (argc == 7 && strcmp(argv[1], "--child") == 0) return child(argv + 2);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 1) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hanging_role_is_named_with_its_stack),
        cmocka_unit_test(a_crash_of_a_role_ends_the_process_and_nothing_is_lost),
    };
    return cmocka_run_group_tests_name("stalls and crashes", tests, set_up, NULL);
}
