/* What goes wrong around a store: full disks, kills at any moment, damaged files, two processes at once, a stop.
 *
 * After every fault the old generation must open and the next preparation must give what an undisturbed one gives. Kills are
 * SIGKILL inside a chosen write, sync or rename, and from outside at random moments; children are forks of this program, or this program again
 * (--child ROWS STORE) where operations are counted from the start of a process. */
#include "data/data_prepare.h"
#include "data/store_fixture.h"
#include "support/files.h"
#include "support/numbers.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OLD = 12, ALL = 30, SHARD = 2000 };
static char self[4096];

typedef struct scene {
    const fixture *f;
    data_config cfg;
    char path[512], dir[512], all[512]; /* rows of the file, the store; all rows */
    data_set *old, *whole;              /* prepared without a store */
} scene;

static void fresh_store(scene *s, int grown) {
    store_at(s->f, "store", s->dir);
    store_write_rows(s->f, "rows.jsonl", 3, 0, OLD, s->path);
    store_wants(s->path, &s->cfg, OLD);
    if (grown) store_write_rows(s->f, "rows.jsonl", 3, 0, ALL, s->path);
}
/* A store that holds the first rows; the file holds all of them when grown. */
static void begin(scene *s, const fixture *f) {
    data_config none = fixture_config(f);
    *s = (scene){.f = f, .cfg = none};
    store_write_rows(f, "all.jsonl", 3, 0, ALL, s->all);
    s->whole = store_open1(s->all, &none);
    store_write_rows(f, "rows.jsonl", 3, 0, OLD, s->path);
    s->old = store_open1(s->path, &none);
    s->cfg.store = store_at(f, "store", s->dir);
    s->cfg.shard_bytes = SHARD;
    /* The growth here copies a shard as well: faults meet that too. */
    char last[512];
    fresh_store(s, 0);
    const int shards = store_files(s->dir, "tokens-");
    assert_true(shards > 1);
    store_file(s->dir, "tokens-", shards - 1, last);
    store_write_rows(f, "rows.jsonl", 3, 0, ALL, s->path);
    store_wants(s->path, &s->cfg, ALL - OLD);
    assert_false(file_exists(last));
    fresh_store(s, 0);
}
static void end(scene *s) {
    data_close(s->old);
    data_close(s->whole);
}
/* Both before and after the growth everything must be in place, and nothing else. */
static void check_recovery(scene *s, int grown) {
    data_set *now = store_open1(s->path, &s->cfg);
    store_same(now, grown ? s->whole : s->old);
    data_close(now);
    assert_int_equal(store_files(s->dir, ".tmp"), 0);
    assert_int_equal(store_files(s->dir, "documents-"), 1);
    assert_int_equal(store_files(s->dir, "lines-"), 1);
    store_wants(s->path, &s->cfg, 0);
}

static void log_nothing(void *ctx, log_level level, const char *line) {
    (void)ctx;
    (void)level;
    (void)line;
}

/* 0 done, 1 refused with a sentence about the disk, 2 otherwise. */
static int child(const char *rows, const char *store) {
    void *state;
    data_set *set;
    log_set_sink(log_nothing, NULL);
    fixture_set_up(&state);
    data_config cfg = fixture_config(state);
    cfg.store = store;
    cfg.shard_bytes = SHARD;
    err e = data_open(&set, &rows, 1, &cfg);
    const int told = strstr(err_text(), "No space left") && strstr(err_text(), store);
    if (!e) data_close(set);
    fixture_tear_down(&state);
    return !e ? 0 : told ? 1 : 2;
}

/* The child's code with a switch set that fails or kills at an operation, or 1000 + signal. */
static int open_in_child(const scene *s, const char *name, const char *value) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv(name, value, 1);
        setenv("TMPDIR", s->f->dir,
               1); /* what a killed child leaves goes with this program's folder */
        execl(self, self, "--child", s->path, s->dir, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void every_write_may_find_the_disk_full(void **state) {
    scene s;
    begin(&s, *state);
    for (int grown = 0; grown < 2; grown++) {
        int n = 1, code = 1;
        for (; code; n++) {
            char value[16];
            if (grown)
                fresh_store(&s, 1);
            else
                store_at(s.f, "store", s.dir);
            snprintf(value, sizeof value, "%d", n);
            code = open_in_child(&s, "PACELINE_FAIL_WRITE", value);
            assert_true(code == 0 || code == 1);
            check_recovery(&s, grown);
        }
        assert_true(n > 12);
    }
    end(&s);
}

static void a_kill_in_any_stage_leaves_a_whole_generation(void **state) {
    static const char *const stages[] = {"write", "sync", "rename"};
    scene s;
    begin(&s, *state);
    for (int stage = 0; stage < 3; stage++) {
        int n = 1, code = 1;
        for (; code; n++) {
            char value[32];
            fresh_store(&s, 1);
            snprintf(value, sizeof value, "%s:%d", stages[stage], n);
            code = open_in_child(&s, "PACELINE_KILL_AT", value);
            assert_true(code == 0 || code == 1000 + SIGKILL);
            check_recovery(&s, 1);
        }
        assert_true(n > 4);
    }
    end(&s);
}

static void kills_at_random_moments(void **state) {
    const uint64_t seed = numbers_seed();
    scene s;
    begin(&s, *state);
    int killed = 0;
    for (int i = 0; i < 40; i++) {
        fresh_store(&s, 1);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            log_set_sink(log_nothing, NULL);
            for (data_set *set;;) { /* grown, then anew at each turn, until the kill */
                if (data_open(&set, (const char *const[]){s.path}, 1, &s.cfg)) _exit(3);
                data_close(set);
                s.cfg.max_length ^= 1;
            }
        }
        const long us = (long)numbers_below(seed, 1, (uint64_t)i, 30000);
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
        int status;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        killed += WTERMSIG(status) == SIGKILL;
        check_recovery(&s, 1);
    }
    assert_int_equal(killed, 40);
    end(&s);
}

/* ---- damage ---- */

static void flip(const char *path, int64_t at, int bit) {
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= (uint8_t)(1 << bit);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static int64_t size_of(const char *path) {
    file_map m;
    assert_ok(file_map_open(&m, path));
    const int64_t n = (int64_t)m.size;
    file_map_close(&m);
    return n;
}

/* Reads a whole epoch. */
static err read_epoch(const data_set *set) {
    data_stream *st;
    const data_row *row;
    err e = data_stream_open(&st, set, 1, 100);
    while (!e && data_stream_tell(st).epoch == 0) e = data_stream_next(st, &row);
    if (st) data_stream_close(st);
    return e;
}

static void a_flipped_bit_never_trains(void **state) {
    static const char *const kinds[] = {"tokens-", "documents-", "lines-", "manifest.json"};
    const uint64_t seed = numbers_seed();
    scene s;
    begin(&s, *state);
    s.cfg.shard_bytes = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < 12; i++) {
            char path[512];
            data_set *set;
            fresh_store(&s, kind == 2); /* lines are read when a file grew */
            store_file(s.dir, kinds[kind], 0, path);
            const int64_t n = size_of(path), at = numbers_below(seed, 1, (uint64_t)i, n);
            flip(path, at, i % 8);
            err e = data_open(&set, (const char *const[]){s.path}, 1, &s.cfg);
            const char *name = strrchr(path, '/') + 1;
            if (kind == 0) { /* found when the document is read, by whichever way */
                assert_ok(e);
                e = read_epoch(set);
                data_close(set);
            }
            if (kind == 3 && !e) { /* white space between values means nothing */
                store_same(set, s.old);
                data_close(set);
                continue;
            }
            if (e != ERR_FORMAT && e != ERR_REFUSED)
                fail_msg("%s byte %lld: %s", name, (long long)at, err_name(e));
            if (!strstr(err_text(), name)) fail_msg("%s is not in: %s", name, err_text());
        }
    end(&s);
}

static void missing_and_cut_files_are_named(void **state) {
    static const char *const kinds[] = {"tokens-", "documents-", "lines-"};
    scene s;
    begin(&s, *state);
    for (int kind = 0; kind < 3; kind++)
        for (int cut = 0; cut < 2; cut++) {
            char path[512];
            data_set *set;
            fresh_store(&s, 1);
            store_file(s.dir, kinds[kind], 0, path);
            if (cut)
                assert_int_equal(truncate(path, size_of(path) - 1), 0);
            else
                assert_ok(file_remove_tree(path));
            err e = data_open(&set, (const char *const[]){s.path}, 1, &s.cfg);
            assert_int_equal(e, ERR_FORMAT);
            assert_non_null(strstr(err_text(), path));
        }
    end(&s);
}

/* ---- others ---- */

typedef struct beats {
    int n;
    int64_t lines, done, all;
    int stop_after; /* 0: never */
    _Atomic int stop;
    pid_t release; /* sent SIGCONT from the second beat on */
} beats;

static void beat(void *ctx, int64_t lines, int64_t done, int64_t all) {
    beats *b = ctx;
    b->n++;
    if (lines < b->lines || done < b->done || done > all) b->n = -1000;
    b->lines = lines;
    b->done = done;
    b->all = all;
    if (b->stop_after && b->n >= b->stop_after) b->stop = 1;
    if (b->release && b->n >= 2) kill(b->release, SIGCONT); /* it may stop only after the first */
}

static void a_second_process_waits_and_finds_the_work_done(void **state) {
    scene s;
    beats b = {0};
    int ready[2];
    begin(&s, *state);
    fresh_store(&s, 1);
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) { /* holds the lock, stops, prepares when it is let go on */
        char lock[600];
        int fd;
        log_set_sink(log_nothing, NULL);
        snprintf(lock, sizeof lock, "%s/lock", s.dir);
        if (file_lock(lock, &fd) || write(ready[1], "x", 1) != 1) _exit(2);
        raise(SIGSTOP);
        file_unlock(fd);
        _exit(0);
    }
    char c;
    str log = {0};
    assert_int_equal(read(ready[0], &c, 1), 1);
    b.release = pid;
    s.cfg.beat = beat;
    s.cfg.beat_ctx = &b;
    log_set_sink(store_log_to, &log);
    data_set *set = store_open1(s.path, &s.cfg);
    log_set_sink(NULL, NULL);
    store_same(set, s.whole);
    data_close(set);
    assert_true(b.n >= 2);
    char who[40];
    snprintf(who, sizeof who, "held by process %ld", (long)pid);
    assert_non_null(strstr(log.s, who));
    str_free(&log);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    close(ready[0]);
    close(ready[1]);
    end(&s);
}

static void many_processes_prepare_one_store_once(void **state) {
    enum { N = 6 };
    scene s;
    begin(&s, *state);
    store_at(s.f, "store", s.dir);
    store_write_rows(s.f, "rows.jsonl", 3, 0, ALL, s.path);
    pid_t pid[N];
    int prepared = 0;
    fflush(NULL);
    for (int i = 0; i < N; i++)
        if ((pid[i] = fork()) == 0) {
            data_set *set;
            log_set_sink(log_nothing, NULL);
            if (data_open(&set, (const char *const[]){s.path}, 1, &s.cfg)) _exit(9);
            _exit(data_get_work(set)->lines == ALL ? 1 : data_get_work(set)->lines == 0 ? 0 : 8);
        }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        prepared += WEXITSTATUS(status);
    }
    assert_int_equal(prepared, 1);
    end(&s);
}

static void a_stop_keeps_the_old_generation(void **state) {
    scene s;
    beats b = {.stop_after = 1};
    data_set *set;
    begin(&s, *state);
    fresh_store(&s, 1);
    s.cfg.beat = beat;
    s.cfg.beat_ctx = &b;
    s.cfg.stop = &b.stop;
    assert_says(data_open(&set, (const char *const[]){s.path}, 1, &s.cfg), ERR_STOPPED, "stopped");
    assert_null(set);
    s.cfg.stop = NULL;
    s.cfg.beat = NULL;
    check_recovery(&s, 1);
    end(&s);
}

static void b42_too_small_a_disk_is_refused_with_both_numbers(void **state) {
    const fixture *f = *state;
    uint64_t room;
    assert_ok(file_free_bytes(f->dir, &room));
    assert_ok(data__store_room(f->dir, 1, "x.jsonl"));
    /* 5 taps of width 2560 in bf16 for a million rows of 2000 tokens: more than any disk here */
    assert_says(data__store_room(f->dir, 51.2e12 + (double)room, "x.jsonl"), ERR_REFUSED, f->dir,
                "x.jsonl", "TiB more on disk", "are free");
    assert_says(data__store_room("/nonexistent/store", 1, "x.jsonl"), ERR_IO, "/nonexistent/store");
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--child") == 0) return child(argv[2], argv[3]);
    /* kills do not need a disk, and syncs are many */
    files_in_memory();
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_write_may_find_the_disk_full),
        cmocka_unit_test(a_kill_in_any_stage_leaves_a_whole_generation),
        cmocka_unit_test(kills_at_random_moments),
        cmocka_unit_test(a_flipped_bit_never_trains),
        cmocka_unit_test(missing_and_cut_files_are_named),
        cmocka_unit_test(a_second_process_waits_and_finds_the_work_done),
        cmocka_unit_test(many_processes_prepare_one_store_once),
        cmocka_unit_test(a_stop_keeps_the_old_generation),
        cmocka_unit_test(b42_too_small_a_disk_is_refused_with_both_numbers),
    };
    return cmocka_run_group_tests_name("data faults", tests, fixture_set_up, fixture_tear_down);
}
