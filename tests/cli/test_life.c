/* The life of a run from outside, with real processes: status, stop, the supervisor, signals, kills.
 *
 * The runs are tiny and would go on for minutes; they are watched by their live record and ended by the test. Foreign
 * processes are children of the test. Waiting is bounded generously, and nothing asserts how fast anything is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <inttypes.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "support/chat_gguf.h"
#include "support/files.h"
#include "support/run.h"
#include "support/says.h"
#include "train/live.h"

enum { PATIENCE = 300000 }; /* milliseconds, under sanitizers on a busy machine too */

static files_dir dir;
static run_result r;
static live_record *record;
static char recipe[600], folder[600], output[600];

#define RUN(...) run_program(&r, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT(want_code, want_text)                                                               \
    do {                                                                                           \
        if (r.code != (want_code) || !strstr(r.text, want_text))                                   \
            fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, want_code, want_text, r.text);    \
    } while (0)
#define START(...) run_start(NULL, (const char *const[]){__VA_ARGS__, NULL}, output)

static void pause_ms(int ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static int begin(void **state) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD};
    char text[8192] = "";
    sigset_t none;
    (void)state;
    /* Whoever starts the tests may ignore some, as nohup and shells without job control do, and children inherit that. */
    for (int i = 0; i < 5; i++) signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dir = files_begin();
    chat_gguf_write(files_at(&dir, "tiny.gguf"), &(chat_gguf){.seed = 11});
    for (int i = 0; i < 40; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"prompt\": \"say %d\", \"response\": \"word %d and then %d.\"}\n", i, i, i * 7);
    files_text(&dir, "train.jsonl", text);
    snprintf(recipe, sizeof recipe, "%s",
             files_text(&dir, "recipe.yaml",
                        "target: {path: tiny.gguf}\ndata: {path: train.jsonl, max_length: 128}\n"
                        "drafter: {layers: 2, block_size: 4}\nanchors: {per_document: 16}\n"
                        "run: {max_updates: 100000, tokens_per_step: 256, tokens_per_row: 128,\n"
                        "      checkpoint_every: 20, evaluate_every: 100000, keep: 2, out: run}\n"
                        "devices: {threads: 1}\n"));
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "run"));
    snprintf(output, sizeof output, "%s", files_at(&dir, "output.txt"));
    return live_create(&record);
}

static int end(void **state) {
    (void)state;
    live_free(record);
    files_end(&dir);
    return 0;
}

/* Each test begins without a run folder; a run that a failed test left is ended. */
static int fresh(void **state) {
    int found = 0;
    (void)state;
    if (file_exists(folder) && live_read(folder, record, &found)) return -1;
    if (found && live_is_running(record)) {
        if (record->supervisor.pid) kill((pid_t)record->supervisor.pid, SIGKILL);
        kill((pid_t)record->process.pid, SIGKILL);
        while (live_is_running(record)) pause_ms(5);
    }
    return file_remove_tree(folder);
}

/* Until the folder's record is of a living process other than `not`, `update` or further; its process id. */
static pid_t await(int64_t update, pid_t not ) {
    for (int ms = 0; ms < PATIENCE; ms += 5) {
        int found;
        if (!file_exists(folder) || live_read(folder, record, &found)) found = 0;
        if (found && record->process.pid != not &&record->n_drafters && live_is_running(record) &&
            record->drafters[0].update >= update)
            return (pid_t)record->process.pid;
        pause_ms(5);
    }
    run_read(&r, output);
    fail_msg("no process came to update %lld:\n%s", (long long)update, r.text);
    return 0;
}

static void expect_end(const char *how, const char *text) {
    live_end e;
    int found;
    assert_ok(live_read_end(folder, &e, &found));
    assert_true(found);
    assert_string_equal(e.how, how);
    if (!strstr(e.text, text)) fail_msg("'%s' is not in: %s", text, e.text);
    assert_ok(live_read(folder, record, &found));
    assert_int_equal(found, 0);
}

static int is_gone(pid_t pid, int ms) {
    for (; ms > 0 && kill(pid, 0) == 0; ms -= 5) pause_ms(5);
    return kill(pid, 0) != 0;
}

/* ---- status and stop ---- */

static void what_is_no_run_is_told(void **state) {
    (void)state;
    RUN("status", folder);
    EXPECT(1, "there is no run folder");
    RUN("stop", folder);
    EXPECT(1, "there is no run folder");
    RUN("status", recipe);
    EXPECT(1, "is a file");
    RUN("status", dir.path);
    EXPECT(1, "is no run folder");
    RUN("stop", folder, "--timeout", "soon");
    EXPECT(1, "there is no run folder");
}

static void a_run_is_shown_and_stopped(void **state) {
    (void)state;
    char text[64];
    const pid_t pid = START("train", recipe, "--quiet");
    assert_int_equal(await(5, 0), pid);
    RUN("status", folder);
    snprintf(text, sizeof text, "process    %d on ", (int)pid);
    EXPECT(0, text);
    EXPECT(0, "/100,000");
    RUN("status", folder, "--json");
    EXPECT(0, "\"running\": true");
    snprintf(text, sizeof text, "\"pid\": %d", (int)pid);
    EXPECT(0, text);
    RUN("stop", folder, "--timeout", "-1");
    EXPECT(2, "--timeout");
    /* A second run in the folder: refused by process and host. */
    RUN("train", recipe, "--quiet");
    snprintf(text, sizeof text, "process %d on %.30s", (int)pid, record->process.host);
    EXPECT(1, text);
    assert_true(live_is_running(record));
    RUN("stop", folder);
    EXPECT(0, "of memory freed");
    EXPECT(0, "checkpoint saved at update");
    assert_int_equal(run_wait(pid, PATIENCE), 3);
    expect_end("stopped", "stopped after update");
    RUN("status", folder);
    EXPECT(0, "not running; the same train command continues it");
    RUN("status", folder, "--json", "--watch"); /* ends by itself: nothing lives */
    EXPECT(0, "\"running\":false");
    RUN("stop", folder);
    EXPECT(0, "is not running: stopped at");
    RUN("stop", folder, "--json");
    EXPECT(0, "\"was_running\": false");
}

static void roles_rings_and_drafters_are_shown(void **state) {
    (void)state;
    const char *two = files_text(
        &dir, "two.yaml",
        "target: {path: tiny.gguf}\ndata: {path: train.jsonl, max_length: 128}\n"
        "anchors: {per_document: 16}\n"
        "run: {max_updates: 100000, tokens_per_step: 256, tokens_per_row: 128,\n"
        "      checkpoint_every: 5, evaluate_every: 100000, out: run}\n"
        "drafters:\n"
        "  small: {drafter: {layers: 1, block_size: 4}, devices: [cpu:1]}\n"
        "  one-with-a-longer-name: {drafter: {layers: 2, block_size: 4}, devices: [cpu:2, cpu:1]}\n"
        "devices: {target: [cpu:0], threads: 1}\n");
    const pid_t pid = START("train", two, "--quiet");
    await(6, 0);
    RUN("status", folder);
    EXPECT(0, "small ");
    EXPECT(0, "one-with-a-longer-name "); /* training or saving */
    EXPECT(0, "] ");                      /* a ring's fill */
    EXPECT(0, "cpu:2");
    assert_int_equal(record->n_roles, 4);
    assert_int_equal(record->n_rings, 3);
    assert_int_equal(record->n_devices, 3);
    for (int i = 0; i < record->n_rings; i++)
        assert_true(record->rings[i].capacity > 0 && record->rings[i].fill >= 0 &&
                    record->rings[i].fill <= record->rings[i].capacity);
    RUN("stop", folder);
    EXPECT(0, "of the drafter that is least far");
    assert_int_equal(run_wait(pid, PATIENCE), 3);
    RUN("status", folder);
    EXPECT(0, "one-with-a-longer-name ");
    RUN("status", folder, "--json");
    EXPECT(0, "\"drafter\": \"small\"");
}

static void damaged_records_hide_nothing_else(void **state) {
    (void)state;
    char live[700], last[700];
    const pid_t pid = START("train", recipe, "--quiet");
    await(25, 0);
    kill(pid, SIGKILL);
    run_wait(pid, PATIENCE);
    snprintf(live, sizeof live, "run/%s", "live.json");
    snprintf(last, sizeof last, "run/%s", "last_end.json");
    files_text(&dir, live, "{\"format\": 1, \"proc");
    files_text(&dir, last, "");
    RUN("status", folder);
    EXPECT(0, "damaged    ");
    EXPECT(0, "live.json: ");
    EXPECT(0, "last_end.json: ");
    EXPECT(0, "/100,000"); /* its checkpoint */
    RUN("status", folder, "--json");
    EXPECT(0, "\"problem\": \"");
    RUN("stop", folder);
    EXPECT(0, "is not running");
    assert_ok(file_remove_tree(folder));
}

static void a_mapped_file_that_is_cut_is_named(void **state) {
    (void)state;
    const pid_t pid = START("train", recipe, "--quiet");
    await(5, 0);
    assert_int_equal(truncate(files_at(&dir, "run/tokens/tokens-00000000.bin"), 0), 0);
    assert_int_equal(run_wait(pid, PATIENCE), 128 + SIGBUS);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "run/tokens/tokens-00000000.bin was cut"));
}

/* Waiting for a store counts as preparing: it is the beat that is looked for, not how long rows take. */
static void preparing_rows_shows_its_heart(void **state) {
    (void)state;
    char store[600], set[700], lock[700];
    int fd, found = 0;
    snprintf(store, sizeof store, "%s", files_at(&dir, "store"));
    snprintf(set, sizeof set, "data.store=%s", store);
    snprintf(lock, sizeof lock, "%s/lock", store);
    assert_ok(file_make_dirs(store));
    assert_ok(file_lock(lock, &fd));
    const pid_t pid = START("train", recipe, "--quiet", set);
    for (int ms = 0; ms < PATIENCE && !(found && strstr(record->doing, " read, ")); ms += 5) {
        if (!file_exists(folder) || live_read(folder, record, &found)) found = 0;
        pause_ms(5);
    }
    RUN("status", folder);
    EXPECT(0, "preparing: rows: 0 read, 0 B of ");
    file_unlock(fd);
    assert_int_equal(await(2, 0), pid);
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid, PATIENCE), 3);
    assert_ok(file_remove_tree(store));
}

/* Its lock goes with the folder, so a second run may begin there: the first must not write into that one's. */
static void a_run_whose_folder_is_taken_away_ends(void **state) {
    (void)state;
    char aside[600];
    snprintf(aside, sizeof aside, "%s", files_at(&dir, "aside"));
    const pid_t pid = START("train", recipe, "--quiet", "run.checkpoint_every=100000");
    await(25, 0);
    assert_int_equal(rename(folder, aside), 0);
    assert_int_equal(run_wait(pid, PATIENCE), 1);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "was removed or moved while the run used it"));
    assert_false(file_exists(folder));
    assert_ok(file_remove_tree(aside));
}

static void a_run_that_does_not_answer_is_killed_only_on_request(void **state) {
    (void)state;
    const pid_t pid = START("train", recipe, "--quiet");
    assert_int_equal(await(25, 0), pid);
    kill(pid, SIGSTOP);
    RUN("stop", folder, "--timeout", "0.2");
    EXPECT(1, "still runs after 0 s");
    assert_int_equal(kill(pid, 0), 0);
    RUN("stop", folder, "--now", "--timeout", "0.2", "--json");
    EXPECT(0, "\"killed\": true");
    assert_int_equal(run_wait(pid, PATIENCE), 128 + SIGKILL);
    expect_end("killed", "stop --now");
    RUN("status", folder);
    EXPECT(0, "killed at");
}

static void a_killed_run_is_told_and_continued(void **state) {
    (void)state;
    pid_t pid = START("train", recipe, "--quiet");
    await(25, 0);
    kill(pid, SIGKILL);
    assert_int_equal(run_wait(pid, PATIENCE), 128 + SIGKILL);
    RUN("status", folder);
    EXPECT(0, "ended without a word");
    RUN("stop", folder);
    EXPECT(0, "ended without a word");
    pid = START("train", recipe);
    await(25, 0);
    RUN("stop", folder, "--now", "--quiet");
    EXPECT(0, "memory freed");
    run_wait(pid, PATIENCE);
    run_read(&r, output);
    const char *at = strstr(r.text, "continuing ");
    int update = 0;
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, " at update "), " at update %d of 100000", &update), 1);
    assert_true(update >= 20 && update % 20 == 0);
}

/* ---- others are never touched ---- */

static pid_t sleeper(const char *name) {
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (name) prctl(PR_SET_NAME, name);
        for (;;) pause();
    }
    return pid;
}

static void expect_untouched(pid_t pid) {
    int status;
    pause_ms(50);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
}

static void foreign_processes_are_never_touched(void **state) {
    (void)state;
    const pid_t pid = sleeper("paceline");
    assert_ok(file_make_dirs(folder));
    files_text(&dir, "run/lock", ""); /* a run was here */
    memset(record, 0, sizeof *record);
    assert_ok(live_begin(record, "0.1.0", 0));
    assert_ok(process_identify(pid, &record->process));
    record->process.start--; /* the run's process had this number before */
    assert_ok(live_write(folder, record));
    RUN("status", folder);
    EXPECT(0, "ended without a word");
    RUN("stop", folder, "--now");
    EXPECT(0, "is not running");
    expect_untouched(pid);
    /* Also not as the supervisor of a living run. */
    process_id other = record->process;
    const pid_t run = START("train", recipe, "--quiet");
    await(3, 0);
    record->supervisor = other;
    kill(run, SIGSTOP);
    assert_ok(live_write(folder, record));
    kill(run, SIGCONT);
    RUN("stop", folder, "--now");
    EXPECT(0, "memory freed");
    run_wait(run, PATIENCE);
    expect_untouched(pid);
    /* Of another host: named and refused. */
    assert_ok(process_identify(pid, &record->process));
    record->supervisor.pid = 0;
    snprintf(record->process.host, sizeof record->process.host, "node-17");
    record->process.boot[0] ^= 1;
    assert_ok(live_write(folder, record));
    RUN("stop", folder, "--now");
    EXPECT(1, "node-17");
    RUN("status", folder);
    EXPECT(0, "ask on node-17");
    RUN("status", folder, "--json");
    EXPECT(0, "\"running\": null");
    expect_untouched(pid);
    /* A lock without a record names a process, but not so that one may signal it. */
    char path[700];
    int lock;
    assert_ok(file_remove_tree(files_at(&dir, "run/live.json")));
    snprintf(path, sizeof path, "%s/lock", folder);
    assert_ok(file_lock(path, &lock));
    RUN("stop", folder, "--now");
    EXPECT(1, "keeps no live record");
    file_unlock(lock);
    expect_untouched(pid);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- signals ---- */

static void one_signal_saves_and_stops(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        const pid_t pid = START("train", recipe, "--quiet");
        await(5, 0);
        kill(pid, SIGSTOP); /* both arrive at once, however long it takes to send them */
        kill(pid, signals[i]);
        kill(pid, signals[(i + 1) % 3]); /* the same request, sent twice by whoever sent it */
        kill(pid, SIGCONT);
        assert_int_equal(run_wait(pid, PATIENCE), 3);
        expect_end("stopped", "stopped after update");
    }
}

static void two_interrupts_stop_at_once(void **state) {
    (void)state;
    int code = -1, interrupts = 0;
    /* An update of minutes: the first interrupt cannot be honoured soon. */
    const pid_t pid =
        START("train", recipe, "--quiet", "run.tokens_per_step=10000000", "run.max_updates=2");
    assert_int_equal(await(0, 0), pid);
    /* Before the update has begun one interrupt is enough. */
    for (int ms = 0, found; ms < PATIENCE && !(record->n_rings && record->rings[0].passed);
         ms += 5) {
        pause_ms(5);
        assert_ok(live_read(folder, record, &found));
    }
    /* Told anew until it ends: two that reach a busy process close to each other are one request. */
    for (; code == -1 && interrupts < 60; interrupts++) {
        kill(pid, SIGINT);
        code = run_wait(pid, 700);
    }
    assert_true(interrupts > 1);
    assert_int_equal(code, 128 + SIGINT);
}

static void nohup_is_honoured(void **state) {
    (void)state;
    signal(SIGHUP, SIG_IGN);
    const pid_t pid = START("train", recipe, "--quiet");
    signal(SIGHUP, SIG_DFL);
    await(5, 0);
    kill(pid, SIGHUP);
    await(record->drafters[0].update + 20, 0);
    kill(pid, SIGTERM);
    assert_int_equal(run_wait(pid, PATIENCE), 3);
}

/* ---- the supervisor ---- */

/* A process that nobody waits for is handed to init, which need not wait for it either; or to the test. */
static void adopt(int on) { assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, on), 0); }

static void digest_of(const char *run, char text[128]) {
    static const char *const parts[] = {"masters.safetensors", "moments.safetensors"};
    char path[900];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-00000500/%s", run, parts[i]);
        assert_ok(file_hash(path, text + 32 * i));
    }
}

/* Until a process other than `not` has saved at `update` or further; its process id. The record is written at times, and a quick
 * machine does hundreds of updates in between: the checkpoints are looked at. */
static pid_t await_saved(int64_t update, pid_t not ) {
    for (int ms = 0; ms < PATIENCE; ms += 2) {
        char **names = NULL;
        int found = 0, n = 0;
        int64_t saved = 0;
        const char *checkpoints = files_at(&dir, "run/checkpoints");
        if (file_exists(checkpoints) && !file_list(checkpoints, &names, &n)) {
            if (n) (void)sscanf(names[n - 1], "step-%" SCNd64, &saved);
            file_names_free(names, n);
        }
        if (saved >= update && !live_read(folder, record, &found) && found &&
            record->process.pid != not &&live_is_running(record))
            return (pid_t)record->process.pid;
        pause_ms(2);
    }
    run_read(&r, output);
    fail_msg("no process saved at update %lld:\n%s", (long long)update, r.text);
    return 0;
}

static void a_crash_is_followed_by_a_restart_and_the_same_bits(void **state) {
    (void)state;
    char whole[128] = "", broken[128] = "", set[700];
    pid_t child = 0;
    snprintf(set, sizeof set, "run.out=%s", files_at(&dir, "whole"));
    RUN("train", recipe, "--quiet", "run.max_updates=500", set);
    EXPECT(0, "");
    digest_of(files_at(&dir, "whole"), whole);
    const pid_t supervisor =
        START("train", recipe, "--quiet", "run.max_updates=500", "--supervise", "5", "--fresh");
    for (int i = 0; i < 2; i++) {
        child = await_saved(20 + 60 * i, child);
        assert_int_equal(record->supervisor.pid, supervisor);
        assert_true(child != supervisor);
        kill(child, i == 1 ? SIGABRT : SIGKILL);
    }
    assert_int_equal(run_wait(supervisor, PATIENCE), 0);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "was ended by signal 9 (Killed)"));
    /* Not SIGSEGV: the address sanitizer makes an exit code of that. */
    assert_non_null(strstr(r.text, "was ended by signal 6 (Aborted)"));
    assert_non_null(strstr(r.text, "restart 2 of 5 follows"));
    digest_of(folder, broken);
    assert_string_equal(whole, broken);
    expect_end("finished", "");
}

static void a_failure_that_repeats_itself_is_not_restarted_for_ever(void **state) {
    (void)state;
    /* Every child fails at its twelfth write, which is in its first checkpoint. */
    const pid_t supervisor = run_start(
        (const char *const[]){"PACELINE_FAIL_WRITE=12", NULL},
        (const char *const[]){"train", recipe, "--quiet", "--supervise", "9", NULL}, output);
    assert_int_equal(run_wait(supervisor, PATIENCE), 1);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "restart 1 of 9 follows"));
    assert_null(strstr(r.text, "restart 2 of 9"));
    assert_non_null(strstr(r.text, "failed twice in the same way"));
    assert_non_null(strstr(r.text, "No space left on device"));
    RUN("train", recipe, "--supervisor", "1");
    EXPECT(2, "--supervisor");
}

/* The same command with and without a supervisor: one exit code, one sentence, no second start. */
static void expect_one_refusal(int code, const char *set, const char *says) {
    static run_result alone;
    RUN("train", recipe, "--quiet", set);
    EXPECT(code, says);
    alone = r;
    RUN("train", recipe, "--quiet", "--supervise", "9", set);
    EXPECT(code, says);
    assert_string_equal(r.text, alone.text);
}

static void a_refusal_ends_the_supervisor_at_once(void **state) {
    (void)state;
    int lock;
    /* A last word of an earlier process, which is not taken for that of the refused one. */
    RUN("train", recipe, "--quiet", "run.max_updates=20");
    EXPECT(0, "");
    expect_one_refusal(2, "run.lenght=3", "lenght");
    expect_one_refusal(1, "target.path=none.gguf", "none.gguf");
    expect_one_refusal(2, "drafter.taps=[90]", "tap 90");
    expect_one_refusal(1, "data.path=none.jsonl", "none.jsonl does not exist");
    expect_one_refusal(1, "run.max_updates=30", "was made with run.max_updates: 20");
    expect_one_refusal(2, "devices.target=[cuda:0]", "cuda:0");
    char bad[700];
    snprintf(bad, sizeof bad, "data.path=%s",
             files_text(&dir, "bad.jsonl", "{\"prompt\": \"a\", \"response\": \n"));
    assert_ok(file_remove_tree(folder));
    expect_one_refusal(1, bad, "bad.jsonl: line 1");
    expect_end("refused", "bad.jsonl: line 1");
    RUN("status", folder);
    EXPECT(0, "refused at ");
    assert_ok(file_lock(files_at(&dir, "run/lock"), &lock));
    expect_one_refusal(1, "run.keep=3", "is in use");
    file_unlock(lock);
    /* Accepted at first and no more at the restart. */
    const pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "9");
    const pid_t child = await(25, 0);
    files_text(&dir, "run/tokens/manifest.json", "{}");
    kill(child, SIGKILL);
    assert_int_equal(run_wait(supervisor, PATIENCE), 1);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "restart 1 of 9 follows"));
    assert_null(strstr(r.text, "restart 2 of 9"));
    assert_null(strstr(r.text, "the trainer failed"));
    expect_end("refused", "manifest.json");
}

static void restarts_are_counted(void **state) {
    (void)state;
    const pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "0");
    kill(await(5, 0), SIGKILL);
    assert_int_equal(run_wait(supervisor, PATIENCE), 1);
    run_read(&r, output);
    assert_non_null(strstr(r.text, "no restart is left"));
    expect_end("killed", "signal 9");
}

static void requests_reach_the_trainer_once(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        const pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "3");
        const pid_t child = await(5, 0);
        kill(supervisor, signals[i]);
        assert_int_equal(run_wait(supervisor, PATIENCE), 3);
        assert_true(is_gone(child, PATIENCE));
        expect_end("stopped", "stopped after update");
    }
    /* stop tells the supervisor, and sees both end; --now too, when neither answers. */
    pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "3");
    pid_t child = await(5, 0);
    RUN("stop", folder);
    EXPECT(0, "its supervisor");
    assert_int_equal(run_wait(supervisor, PATIENCE), 3);
    assert_true(is_gone(child, PATIENCE));
    adopt(1);
    supervisor = START("train", recipe, "--quiet", "--supervise", "3");
    child = await(5, child);
    kill(supervisor, SIGSTOP);
    kill(child, SIGSTOP);
    RUN("stop", folder, "--now", "--timeout", "0.2");
    EXPECT(0, "killed");
    assert_int_equal(run_wait(supervisor, PATIENCE), 128 + SIGKILL);
    assert_int_equal(run_wait(child, PATIENCE), 128 + SIGKILL);
    adopt(0);
}

static char state_letter(pid_t pid) {
    char path[64], text[512], *at;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    at = strrchr(text, ')');
    return at ? at[2] : 0;
}

static void expect_state(pid_t pid, int stopped) {
    for (int ms = 0; ms < PATIENCE && (state_letter(pid) == 'T') != stopped; ms += 5) pause_ms(5);
    assert_int_equal(state_letter(pid) == 'T', stopped);
}

/* Ctrl-Z and fg: the trainer stands in another process group, so it hears of both from its supervisor. */
static void a_stopped_job_stops_whole(void **state) {
    (void)state;
    const pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "3");
    const pid_t child = await(5, 0);
    kill(supervisor, SIGTSTP);
    expect_state(child, 1);
    expect_state(supervisor, 1);
    kill(supervisor, SIGCONT);
    expect_state(supervisor, 0);
    expect_state(child, 0);
    await(record->drafters[0].update + 5, 0);
    kill(supervisor, SIGINT);
    assert_int_equal(run_wait(supervisor, PATIENCE), 3);
}

static void a_killed_supervisor_takes_the_trainer_along(void **state) {
    (void)state;
    adopt(1);
    const pid_t supervisor = START("train", recipe, "--quiet", "--supervise", "3");
    const pid_t child = await(5, 0);
    kill(supervisor, SIGKILL);
    assert_int_equal(run_wait(supervisor, PATIENCE), 128 + SIGKILL);
    assert_int_equal(run_wait(child, PATIENCE), 128 + SIGKILL);
    adopt(0);
    RUN("status", folder);
    EXPECT(0, "ended without a word");
    RUN("train", recipe, "--quiet", "run.max_updates=100000", "--supervise", "x");
    EXPECT(2, "--supervise");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_no_run_is_told, fresh),
        cmocka_unit_test_setup(a_run_is_shown_and_stopped, fresh),
        cmocka_unit_test_setup(roles_rings_and_drafters_are_shown, fresh),
        cmocka_unit_test_setup(damaged_records_hide_nothing_else, fresh),
        cmocka_unit_test_setup(a_mapped_file_that_is_cut_is_named, fresh),
        cmocka_unit_test_setup(preparing_rows_shows_its_heart, fresh),
        cmocka_unit_test_setup(a_run_whose_folder_is_taken_away_ends, fresh),
        cmocka_unit_test_setup(a_run_that_does_not_answer_is_killed_only_on_request, fresh),
        cmocka_unit_test_setup(a_killed_run_is_told_and_continued, fresh),
        cmocka_unit_test_setup(foreign_processes_are_never_touched, fresh),
        cmocka_unit_test_setup(one_signal_saves_and_stops, fresh),
        cmocka_unit_test_setup(two_interrupts_stop_at_once, fresh),
        cmocka_unit_test_setup(nohup_is_honoured, fresh),
        cmocka_unit_test_setup(a_crash_is_followed_by_a_restart_and_the_same_bits, fresh),
        cmocka_unit_test_setup(a_failure_that_repeats_itself_is_not_restarted_for_ever, fresh),
        cmocka_unit_test_setup(a_refusal_ends_the_supervisor_at_once, fresh),
        cmocka_unit_test_setup(restarts_are_counted, fresh),
        cmocka_unit_test_setup(requests_reach_the_trainer_once, fresh),
        cmocka_unit_test_setup(a_stopped_job_stops_whole, fresh),
        cmocka_unit_test_setup(a_killed_supervisor_takes_the_trainer_along, fresh),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
