/* Roles that hang, die or meet a full disk: one clear cause, every role ended by the deadline, a process that goes.
 *
 * A hanging role cannot be taken back, so each case is a process of its own: this program runs itself as a child (--child FOLDER ROLE
 * PHASE STEP KIND SECONDS). What is asserted is how the child ends and what it says, and that the run is taken up again to the bits
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
#include "train/train_parts.h"
#include <signal.h>
#include <sys/wait.h>

enum { LONG = 300 }; /* seconds, where no role is to be taken for a hanging one */
static char self[4096];

/* ---- the child ---- */

typedef struct fault {
    const char *role, *phase, *kind;
    int64_t at;
    _Atomic int *met;
    const train *t;
    _Atomic int worker; /* a thread of the pool is stuck */
} fault;

/* Of two tasks the one that a thread of the pool takes never ends. */
static err stuck_in_a_pool(void *ctx, int64_t task, int thread) {
    fault *f = ctx;
    (void)task;
    if (thread) f->worker = 1;
    while (thread) pause();
    while (!f->worker) usleep(1000);
    return ERR_OK;
}

static err strike(void *ctx, const char *role, const char *phase, int64_t at) {
    fault *f = ctx;
    tiny_run_give_way(f->role, f->at, f->met, role, phase, at);
    if (strncmp(role, f->role, strlen(f->role)) != 0 || strcmp(phase, f->phase) != 0 || at < f->at)
        return ERR_OK;
    *f->met = 1;
    if (!strcmp(f->kind, "crash")) abort();
    if (file_put("met", "", 0)) return err_set(ERR_INTERNAL, "no mark could be left");
    if (!strcmp(f->kind, "worker"))
        TRY(pool_run(dev_pool(f->t->device[1].d), 2, stuck_in_a_pool, f));
    for (;;) pause(); /* hang */
}

static int child(char **a) {
    _Atomic int met = 0;
    fault f = {.role = a[1], .phase = a[2], .kind = a[4], .at = atoll(a[3]), .met = &met};
    char stall[48], end[48];
    snprintf(stall, sizeof stall, "run.stall_seconds=%s", a[5]);
    snprintf(end, sizeof end, "run.end_seconds=%s", a[5]);
    train_options opt = {.on_phase = strike, .on_phase_ctx = &f};
    const char *const sets[] = {"devices.target=[cpu:0, cpu:1]",
                                "devices.drafter=[cpu:2, cpu:3]",
                                "run.tokens_per_step=400",
                                stall,
                                end,
                                "run.checkpoint_every=1000",
                                "run.evaluate_every=1000",
                                strcmp(f.kind, "worker") ? "devices.threads=2"
                                                         : "devices.threads=8",
                                NULL};
    recipe *r = NULL;
    train *t = NULL;
    if (chdir(a[0]) != 0) return 9;
    err e = recipe_load(&r, "recipe.yaml", sets, 8);
    if (!e) e = train_open(&t, r, strcmp(f.kind, "none") ? &opt : NULL);
    f.t = t;
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
                     const char *kind, int seconds) {
    char limit[16];
    snprintf(limit, sizeof limit, "%d", seconds);
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(files_at(d, "err.txt"), "w", stderr)) _exit(8);
        execl(self, self, "--child", d->path, role, phase, at, kind, limit, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int is_in(files_dir *d, const char *file, const char *what, int must) {
    char *text = NULL;
    size_t n = 0;
    assert_ok(file_read(files_at(d, file), &text, &n));
    const int there = strstr(text, what) != NULL;
    if (must && !there) fail_msg("'%s' is not in %s: %s", what, file, text);
    mem_free(text);
    return there;
}
static void said(files_dir *d, const char *file, const char *what) { is_in(d, file, what, 1); }

static int saved(files_dir *d) {
    char **names = NULL;
    int n = 0;
    if (!file_exists(files_at(d, "out/checkpoints"))) return 0;
    assert_ok(file_list(files_at(d, "out/checkpoints"), &names, &n));
    const int u = n ? atoi(names[n - 1] + 5) : 0;
    file_names_free(names, n);
    return u;
}

static char whole[128];
static int set_up(void **s) {
    files_dir d;
    (void)s;
    files_in_memory();
    tiny_run_make(&d, 41);
    if (run_child(&d, "", "", "0", "none", LONG) != 0) {
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
    assert_int_equal(run_child(d, "", "", "0", "none", LONG), 0);
    tiny_run_digest(d, "out", 12, now);
    assert_string_equal(now, whole);
}

/* Whether the watchdog found the role that was made to hang, its thread answered, and rank 0 could still save. */
static int is_told(files_dir *d, const char *role) {
    char named[96];
    snprintf(named, sizeof named, "child: %s gives no sign of life", role);
    return file_exists(files_at(d, "met")) && is_in(d, "err.txt", named, 0) &&
           !is_in(d, "out/log.txt", "does not answer", 0) && saved(d) > 0;
}

/* One run with a role that hangs: which, in what, from which row on, how, and what the log says of it. 0: on a machine so busy that another
 * role was silent for as long, or that what follows took too long. */
static int a_hang_is_told(const char *const at[5], int seconds) {
    files_dir d;
    tiny_run_make(&d, 41);
    assert_int_equal(run_child(&d, at[0], at[1], at[2], at[3], seconds), 1);
    const int told = is_told(&d, at[0]);
    if (told) {
        said(&d, "out/log.txt", at[0]);
        said(&d, "out/log.txt", at[1]);
        said(&d, "out/log.txt", at[4]);
        said(&d, "out/log.txt", "strike+"); /* of its stack */
        said(&d, "out/log.txt", "pool of cpu:3");
        said(&d, "out/log.txt", "  thread 0 has no task");
        recovers(&d);
    }
    files_end(&d);
    return told;
}

static void a_hanging_role_is_named_with_its_stack(void **s) {
    (void)s;
    static const char *const at[][5] = {
        {"target on cpu:1", "target forward", "9", "hang", "strike+"},
        {"drafter on cpu:3", "forward and backward", "9", "hang", "strike+"},
        {"target on cpu:1", "target forward", "9", "worker", " of 2 of stuck_in_a_pool+0x0"}};
    for (int i = 0; i < 3; i++) {
        int seconds = 5; /* the least that a recipe may say */
        while (seconds < 60 && !a_hang_is_told(at[i], seconds)) seconds *= 2;
        assert_true(seconds < 60);
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
        char row[24];
        tiny_run_make(&d, 41);
        snprintf(row, sizeof row, "%lld", (long long)numbers_below(seed, 1, i, 11));
        assert_int_equal(run_child(&d, at[i][0], at[i][1], row, "crash", LONG), 1000 + SIGABRT);
        recovers(&d);
        files_end(&d);
    }
}

int main(int argc, char **argv) {
    if (argc == 8 && strcmp(argv[1], "--child") == 0) return child(argv + 2);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 1) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hanging_role_is_named_with_its_stack),
        cmocka_unit_test(a_crash_of_a_role_ends_the_process_and_nothing_is_lost),
    };
    return cmocka_run_group_tests_name("stalls and crashes", tests, set_up, NULL);
}
