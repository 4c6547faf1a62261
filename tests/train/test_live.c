/* The live record: what is written is read back, and the process it names is that one and no other.
 *
 * Foreign processes are children of the test, one of them with the name that a run's process has. Identities of recycled ids are forged, since
 * a process id cannot be made to come back on demand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/files.h"
#include "support/says.h"
#include "core/log.h"
#include "train/live_run.h"

static files_dir dir;
static live_record *r, *back;

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    return live_create(&r) || live_create(&back);
}

static int end(void **state) {
    (void)state;
    live_free(r);
    live_free(back);
    files_end(&dir);
    return 0;
}

static void fill(void) {
    snprintf(r->state, sizeof r->state, "training");
    snprintf(r->doing, sizeof r->doing, "epoch 2 of 6, \"quoted\"");
    r->n_drafters = 2;
    r->drafters[0] = (live_drafter){.name = "wide",
                                    .state = "training",
                                    .update = 512,
                                    .updates = 10000,
                                    .epoch = 2,
                                    .saved = 500,
                                    .loss = 2.125,
                                    .tau = NAN,
                                    .tokens_per_second = 20123,
                                    .seconds_left = INFINITY};
    r->drafters[1] = (live_drafter){
        .name = "deep", .state = "failed", .update = 17, .updates = 10000, .saved = -1};
    r->n_rings = 1;
    r->rings[0] = (live_ring){"wide 0", 6, 8, 1234567890123, 1.5, 0.25};
    r->n_arenas = 2;
    r->arenas[0] = (live_arena){"drafter state", 123456789012};
    r->arenas[1] = (live_arena){"micro-batch", 7};
    r->n_devices = 1;
    r->devices[0] = (live_device){"cpu:0", "target 0, drafter wide 0", 2, 5000};
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    heart *h;
    heart_role *a, *b;
    int found;
    assert_ok(live_read(files_at(&dir, "nowhere"), back, &found));
    assert_int_equal(found, 0);
    assert_ok(live_begin(r, "0.1.0", getppid()));
    fill();
    assert_ok(heart_create(&h, 2));
    assert_ok(heart_join(h, "target 0 on cpu:0", &a));
    assert_ok(heart_join(h, "drafter wide 0 on cpu:1", &b));
    heart_beat(a, "forward", 513);
    heart_wait(b, "features", 512);
    live_set_roles(r, h);
    heart_leave(a);
    heart_leave(b);
    heart_destroy(h);
    assert_ok(live_write(dir.path, r));
    assert_ok(live_read(dir.path, back, &found));
    assert_int_equal(found, 1);
    assert_true(isnan(back->drafters[0].tau) && isnan(back->drafters[0].seconds_left));
    back->begun = r->begun;
    r->drafters[0].tau = r->drafters[0].seconds_left = 0;
    back->drafters[0].tau = back->drafters[0].seconds_left = 0;
    assert_int_equal(back->n_roles, 2);
    assert_string_equal(back->roles[1].phase, "features");
    assert_true(back->roles[1].waiting && !back->roles[0].waiting);
    assert_memory_equal(back, r, sizeof *r);
    assert_int_equal(back->supervisor.pid, getppid());
    char **names;
    int n;
    assert_ok(file_list(dir.path, &names, &n)); /* nothing beside it */
    assert_int_equal(n, 1);
    file_names_free(names, n);
}

static void damaged_records_are_told(void **state) {
    (void)state;
    int found;
    files_text(&dir, "live.json", "{\"format\": 1, \"proc");
    assert_says(live_read(dir.path, back, &found), ERR_FORMAT, "live.json");
    files_text(&dir, "live.json", "{\"format\": 2}");
    assert_says(live_read(dir.path, back, &found), ERR_FORMAT, "live.json", "format 2");
    files_text(&dir, "live.json", "{\"format\": 1, \"process\": {\"pid\": \"x\"}}");
    assert_says(live_read(dir.path, back, &found), ERR_FORMAT, "live.json", "'pid'");
    files_text(&dir, "live.json", "{\"format\": 1, \"process\": {}, \"roles\": [3]}");
    assert_says(live_read(dir.path, back, &found), ERR_FORMAT, "live.json");
    /* Of another version, with more and with less. */
    files_text(
        &dir, "live.json",
        "{\"format\": 1, \"process\": {\"pid\": 5}, \"more\": [1], \"roles\": [{\"name\": \"x\"}]}");
    assert_ok(live_read(dir.path, back, &found));
    assert_int_equal(back->process.pid, 5);
    assert_int_equal(back->n_roles, 1);
    assert_int_equal(live_is_running(back), 0);
    assert_ok(file_remove_tree(files_at(&dir, "live.json")));
}

static pid_t sleeper(const char *name) {
    const pid_t pid = fork();
    if (pid == 0) {
        if (name) prctl(PR_SET_NAME, name);
        for (;;) pause();
    }
    return pid;
}

static void only_that_very_process_is_running(void **state) {
    (void)state;
    char path[600];
    int lock;
    assert_ok(live_begin(r, "0.1.0", 0));
    assert_int_equal(live_is_running(r), 1);
    assert_int_equal(live_locate(dir.path, r), LIVE_RUNS);
    /* The number is a foreign process's now, whose name is the program's: started later. */
    const pid_t other = sleeper("paceline");
    r->process.pid = other;
    assert_true(process_start(other) >= r->process.start);
    if (process_start(other) == r->process.start) r->process.start--;
    assert_int_equal(live_is_running(r), 0);
    assert_int_equal(live_locate(dir.path, r), LIVE_GONE);
    assert_ok(process_identify(other, &r->process));
    assert_int_equal(live_is_running(r), 1);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    assert_int_equal(live_locate(dir.path, r), LIVE_GONE);
    /* Another container of this machine: its lock tells. Another machine: nothing does. */
    assert_ok(process_self(&r->process));
    snprintf(r->process.host, sizeof r->process.host, "other-container");
    assert_int_equal(live_locate(dir.path, r), LIVE_GONE);
    snprintf(path, sizeof path, "%s", files_at(&dir, "lock"));
    assert_ok(file_lock(path, &lock));
    assert_int_equal(live_locate(dir.path, r), LIVE_UNSEEN);
    file_unlock(lock);
    assert_int_equal(live_locate(dir.path, r), LIVE_GONE);
    assert_ok(file_lock(path, &lock)); /* looking took nothing */
    file_unlock(lock);
    r->process.boot[0] ^= 1;
    assert_int_equal(live_locate(dir.path, r), LIVE_UNSEEN);
    assert_int_equal(live_is_running(r), 0);
    assert_ok(file_remove_tree(path));
}

static void an_end_is_kept(void **state) {
    (void)state;
    live_end e;
    int found;
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_int_equal(found, 0);
    assert_ok(live_begin(r, "0.1.0", 0));
    fill();
    assert_ok(live_write(dir.path, r));
    const err failed = err_set(ERR_IO, "disk \"full\" at row 7");
    assert_says(live_finish(dir.path, r, failed), ERR_IO, "disk \"full\" at row 7");
    assert_ok(live_read(dir.path, back, &found));
    assert_int_equal(found, 0);
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_int_equal(found, 1);
    assert_string_equal(e.how, "failed");
    assert_string_equal(e.text, "disk \"full\" at row 7");
    assert_int_equal(e.update, 17);
    assert_int_equal(e.updates, 10000);
    assert_int_equal(e.pid, getpid());
    r->n_drafters = 0;
    assert_says(live_finish(dir.path, r, err_set(ERR_STOPPED, "asked")), ERR_STOPPED, "asked");
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_string_equal(e.how, "stopped");
    assert_int_equal(e.update, -1);
    assert_ok(live_finish(dir.path, r, ERR_OK));
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_string_equal(e.how, "finished");
    assert_string_equal(e.text, "");
    /* One that was killed, and one whose place another has taken. */
    assert_ok(live_begin(r, "0.1.0", 0));
    fill();
    process_id dead = r->process;
    assert_ok(live_write(dir.path, r));
    dead.start++;
    assert_ok(live_bury(dir.path, &dead, "not this one"));
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_string_equal(e.how, "finished");
    dead.start--;
    assert_ok(live_bury(dir.path, &dead, "ended by signal 9"));
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_string_equal(e.how, "killed");
    assert_string_equal(e.text, "ended by signal 9");
    assert_ok(live_read(dir.path, back, &found));
    assert_int_equal(found, 0);
    assert_ok(live_bury(dir.path, &dead, "again"));
    /* A folder that is gone: the run's own end is not changed by it. */
    assert_ok(live_finish(files_at(&dir, "nowhere"), r, ERR_OK));
    assert_ok(file_remove_tree(files_at(&dir, "last_end.json")));
}

static atomic_int writing;

static void *writes(void *ctx) {
    err *failed = ctx;
    for (int i = 0; i < 400 && !*failed; i++) {
        r->n_roles = 1 + i % LIVE_ROLES; /* other lengths each time */
        *failed = live_write(dir.path, r);
    }
    atomic_store(&writing, 0);
    return NULL;
}

static void a_reader_never_sees_half_a_record(void **state) {
    (void)state;
    pthread_t writer;
    err failed = ERR_OK;
    int found;
    assert_ok(live_begin(r, "0.1.0", 0));
    assert_ok(live_write(dir.path, r));
    atomic_store(&writing, 1);
    assert_int_equal(pthread_create(&writer, NULL, writes, &failed), 0);
    do {
        assert_ok(live_read(dir.path, back, &found));
        assert_int_equal(found, 1);
    } while (atomic_load(&writing));
    pthread_join(writer, NULL);
    assert_int_equal(failed, ERR_OK);
}

/* ---- the run's own side ---- */

enum { FILLERS = 4 };
typedef struct filler {
    live_run *x;
    int id;
    pthread_t thread;
} filler;

static void *fills(void *ctx) {
    filler *f = ctx;
    for (int64_t i = 1; i <= 200; i++) {
        live_record *rec = live_run_begin(f->x);
        rec->n_drafters = FILLERS;
        rec->drafters[f->id].update = i;
        rec->drafters[f->id].updates = 200;
        live_run_end(f->x, i == 200);
        log_file_line(LOG_INFO, "filler %d at %d", f->id, (int)i);
    }
    return NULL;
}

static void expect_last(const char *how, const char *text) {
    live_end e;
    int found;
    assert_ok(live_read(dir.path, back, &found));
    assert_int_equal(found, 0);
    assert_ok(live_read_end(dir.path, &e, &found));
    assert_int_equal(found, 1);
    assert_string_equal(e.how, how);
    assert_string_equal(e.text, text);
}

static void a_run_keeps_its_record_and_its_log(void **state) {
    (void)state;
    live_run *x;
    filler f[FILLERS];
    int found;
    char *text;
    size_t n;
    assert_ok(live_run_open(&x, dir.path, getppid()));
    assert_ok(live_read(dir.path, back, &found));
    assert_true(found && live_is_running(back));
    assert_string_equal(back->state, "preparing");
    assert_int_equal(back->supervisor.pid, getppid());
    for (int i = 0; i < FILLERS; i++) {
        f[i] = (filler){.x = x, .id = i};
        assert_int_equal(pthread_create(&f[i].thread, NULL, fills, &f[i]), 0);
    }
    for (int i = 0; i < FILLERS; i++) pthread_join(f[i].thread, NULL);
    assert_ok(live_read(dir.path, back, &found));
    for (int i = 0; i < FILLERS; i++) assert_int_equal(back->drafters[i].update, 200);
    assert_says(live_run_close(x, err_set(ERR_IO, "the disk")), ERR_IO, "the disk");
    expect_last("failed", "the disk");
    assert_ok(file_read(files_at(&dir, "log.txt"), &text, &n));
    assert_non_null(strstr(text, " begins in "));
    assert_non_null(strstr(text, "filler 3 at 200\n"));
    assert_non_null(strstr(text, "error: the run ends: the disk\n"));
    free(text);
    assert_ok(live_run_open(&x, dir.path, 0));
    assert_ok(live_run_close(x, ERR_OK));
    expect_last("finished", "");
    assert_ok(live_run_open(&x, dir.path, 0));
    const err why = err_set(ERR_RANGE, "what the caller was told");
    live_run_drop(x);
    assert_string_equal(err_text(), "what the caller was told");
    assert_int_equal(why, ERR_RANGE);
    expect_last("stopped", "closed before its first update");
    assert_int_equal(live_run_close(NULL, ERR_OK), ERR_OK);
    live_run_drop(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(damaged_records_are_told),
        cmocka_unit_test(only_that_very_process_is_running),
        cmocka_unit_test(an_end_is_kept),
        cmocka_unit_test(a_reader_never_sees_half_a_record),
        cmocka_unit_test(a_run_keeps_its_record_and_its_log),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
