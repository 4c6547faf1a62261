/* Files: reading, publishing, folders, locks, and what is left after failures and kills at every stage.
 *
 * Failures are injected into a fresh process (this program again, with arguments), so that the
 * numbers of PACELINE_FAIL_WRITE and PACELINE_KILL_AT count from one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/arena.h"
#include "core/file.h"

static char dir[64];

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "%s/fileXXXXXX", P_tmpdir);
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    if (file_remove_tree(dir) != ERR_OK) return -1;
    return file_exists(dir) ? -1 : 0;
}

static const char *at(const char *name) {
    static char buf[4][160]; /* several paths in one call */
    static int turn;
    char *b = buf[turn++ % 4];
    snprintf(b, sizeof buf[0], "%s/%s", dir, name);
    return b;
}

static err put(const char *path, const char *text) {
    file_writer *w;
    TRY(file_writer_open(&w, path));
    err e = file_printf(w, "%s", text);
    if (e) {
        file_abort(&w);
        return e;
    }
    return file_commit(&w);
}

static void holds(const char *path, const char *want) {
    char *have;
    size_t n;
    if (file_read(path, &have, &n) != ERR_OK) fail_msg("%s", err_text());
    assert_int_equal(n, strlen(want));
    assert_string_equal(have, want);
    mem_free(have);
}

static int count_entries(const char *path) {
    char **names;
    int n;
    assert_int_equal(file_list(path, &names, &n), ERR_OK);
    file_names_free(names, n);
    return n;
}

static void read_and_map(void **state) {
    (void)state;
    assert_int_equal(put(at("a"), "hello"), ERR_OK);
    assert_int_equal(put(at("empty"), ""), ERR_OK);
    holds(at("a"), "hello");
    holds(at("empty"), "");
    file_map m;
    assert_int_equal(file_map_open(&m, at("a")), ERR_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    file_map_close(&m);
    file_map_close(&m);
    assert_int_equal(file_map_open(&m, at("empty")), ERR_OK);
    assert_int_equal(m.size, 0);
    assert_non_null(m.data);
    file_map_close(&m);
    assert_int_equal(file_map_open(&m, at("none")), ERR_IO);
    assert_non_null(strstr(err_text(), at("none")));
    assert_int_equal(file_map_open(&m, dir), ERR_IO);
    char *data;
    size_t n;
    assert_int_equal(file_read(dir, &data, &n), ERR_IO);
    assert_int_equal(file_read("/proc/self/status", &data, &n), ERR_OK); /* says it has no size */
    assert_true(n > 100 && strlen(data) == n);
    mem_free(data);
}

static void publishing_is_all_or_nothing(void **state) {
    (void)state;
    assert_int_equal(put(at("f"), "old"), ERR_OK);
    file_writer *w;
    assert_int_equal(file_writer_open(&w, at("f")), ERR_OK);
    assert_int_equal(file_write(w, "new", 3), ERR_OK);
    holds(at("f"), "old");
    file_abort(&w);
    assert_null(w);
    file_abort(&w);
    holds(at("f"), "old");
    assert_int_equal(count_entries(dir), 1);
    assert_int_equal(file_writer_open(&w, at("f")), ERR_OK);
    char *big = malloc(900000);
    for (int i = 0; i < 900000; i++) big[i] = (char)('a' + i % 23);
    size_t sizes[] = {1, 262143, 1, 262144, 300000, 0, 74711}, sum = 0;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(file_write(w, big + sum, sizes[i]), ERR_OK);
        sum += sizes[i];
    }
    assert_int_equal(sum, 899000);
    assert_int_equal(file_commit(&w), ERR_OK);
    char *have;
    size_t n;
    assert_int_equal(file_read(at("f"), &have, &n), ERR_OK);
    assert_int_equal(n, sum);
    assert_memory_equal(have, big, sum);
    mem_free(have);
    free(big);
    struct stat st;
    assert_int_equal(stat(at("f"), &st), 0);
    assert_int_equal(st.st_mode & 0400, 0400);
    assert_int_equal(file_writer_open(&w, at("none/f")), ERR_IO);
    assert_non_null(strstr(err_text(), "none/f"));
    assert_int_equal(file_writer_open(&w, dir), ERR_IO);
}

static void only_regular_files_are_replaced(void **state) {
    (void)state;
    struct stat st;
    file_writer *w = NULL;
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(put(at("pipe"), "text"), ERR_IO);
    assert_non_null(strstr(err_text(), "no regular file"));
    assert_true(lstat(at("pipe"), &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(file_writer_open(&w, "/dev/full"), ERR_IO);
    assert_null(w);
    assert_int_equal(put(at("real"), "old"), ERR_OK);
    assert_int_equal(symlink("real", at("link")), 0);
    assert_int_equal(put(at("link"), "new"), ERR_OK);
    holds(at("real"), "new");
    assert_true(lstat(at("link"), &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(symlink("nowhere/at/all", at("broken")), 0);
    assert_int_equal(put(at("broken"), "x"), ERR_IO);
    assert_non_null(strstr(err_text(), "link"));
    assert_int_equal(put("", "x"), ERR_IO);
    assert_non_null(strstr(err_text(), "empty path"));
    assert_int_equal(count_entries(dir), 4);
}

/* A device may give bytes without end; its name is no reason to fill the memory. */
static void devices_are_not_read(void **state) {
    (void)state;
    char *data;
    size_t n;
    char digest[33];
    assert_int_equal(file_read("/dev/zero", &data, &n), ERR_IO);
    assert_non_null(strstr(err_text(), "/dev/zero is a device"));
    assert_int_equal(file_hash("/dev/zero", digest), ERR_IO);
    assert_int_equal(file_read("", &data, &n), ERR_IO);
    assert_non_null(strstr(err_text(), "empty path"));
    /* A pipe that nobody writes to is told from a file without waiting for a writer. */
    file_map map;
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    alarm(20);
    assert_int_equal(file_map_open(&map, at("pipe")), ERR_IO);
    assert_non_null(strstr(err_text(), "not a regular file"));
    alarm(0);
}

static void folders(void **state) {
    (void)state;
    if (file_is_dir(
            "/sys/kernel")) { /* nobody makes folders there; the cause is told, not another */
        assert_int_equal(file_make_dirs("/sys/kernel/paceline-test/a"), ERR_IO);
        assert_null(strstr(err_text(), "No such file"));
    }
    char tmp[512];
    assert_int_equal(file_make_dirs(at("x/y//z/")), ERR_OK);
    assert_int_equal(file_make_dirs(at("x/y")), ERR_OK);
    assert_true(file_is_dir(at("x/y/z")) && file_exists(at("x")) && !file_exists(at("q")));
    assert_int_equal(put(at("x/file"), "1"), ERR_OK);
    assert_int_equal(file_make_dirs(at("x/file/sub")), ERR_IO);
    assert_int_equal(file_dir_begin(at("c"), tmp, sizeof tmp), ERR_OK);
    char inner[600];
    assert_int_equal(file_join(inner, sizeof inner, tmp, "sub"), ERR_OK);
    assert_int_equal(file_make_dirs(inner), ERR_OK);
    assert_int_equal(file_join(inner, sizeof inner, tmp, "sub/f"), ERR_OK);
    assert_int_equal(put(inner, "inside"), ERR_OK);
    assert_false(file_exists(at("c")));
    assert_int_equal(file_dir_commit(tmp, at("c")), ERR_OK);
    holds(at("c/sub/f"), "inside");
    assert_false(file_exists(tmp));
    assert_int_equal(file_dir_begin(at("c"), tmp, sizeof tmp), ERR_OK);
    assert_int_equal(file_dir_commit(tmp, at("c")), ERR_REFUSED); /* never over another */
    holds(at("c/sub/f"), "inside");
    assert_int_equal(symlink(at("c"), at("link")), 0);
    assert_int_equal(file_remove_tree(at("link")), ERR_OK); /* the link, not what it names */
    assert_int_equal(symlink(at("c"), at("x/link")), 0);
    assert_int_equal(file_remove_tree(at("x")), ERR_OK);
    assert_false(file_exists(at("x")));
    holds(at("c/sub/f"), "inside");
    assert_int_equal(file_remove_tree(at("absent")), ERR_OK);
    uint64_t bytes;
    assert_int_equal(file_free_bytes(dir, &bytes), ERR_OK);
    assert_true(bytes > 0);
    assert_int_equal(file_free_bytes(at("absent"), &bytes), ERR_IO);
    assert_int_equal(file_join(tmp, 8, "abcd", "efg"), ERR_RANGE);
    assert_int_equal(file_join(tmp, 9, "abcd", "efg"), ERR_OK);
    assert_string_equal(tmp, "abcd/efg");
}

static void lists_are_sorted(void **state) {
    (void)state;
    const char *const names[] = {"b", "a10", "Z", "a9", "\xc3\xa9"};
    for (int i = 0; i < 5; i++) assert_int_equal(put(at(names[i]), "x"), ERR_OK);
    char **list;
    int n;
    assert_int_equal(file_list(dir, &list, &n), ERR_OK);
    assert_int_equal(n, 5);
    const char *const want[] = {"Z", "a10", "a9", "b", "\xc3\xa9"};
    for (int i = 0; i < 5; i++) assert_string_equal(list[i], want[i]);
    file_names_free(list, n);
    assert_int_equal(file_list(at("absent"), &list, &n), ERR_IO);
}

static void locks(void **state) {
    (void)state;
    int a, b;
    assert_int_equal(file_lock(at("lock"), &a), ERR_OK);
    assert_int_equal(file_lock(at("lock"), &b), ERR_REFUSED);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld on ", (long)getpid());
    assert_non_null(strstr(err_text(), pid));
    file_unlock(a);
    assert_int_equal(file_lock(at("lock"), &b), ERR_OK);
    file_unlock(b);
    /* A killed holder leaves nothing behind. */
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd;
        char ok = file_lock(at("lock"), &fd) == ERR_OK;
        if (write(pipes[1], &ok, 1) == 1) pause();
        _exit(1);
    }
    char ok = 0;
    assert_int_equal(read(pipes[0], &ok, 1), 1);
    assert_int_equal(ok, 1);
    assert_int_equal(file_lock(at("lock"), &a), ERR_REFUSED);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(file_lock(at("lock"), &a), ERR_OK);
    file_unlock(a);
    close(pipes[0]);
    close(pipes[1]);
}

typedef struct looker {
    const char *path;
    _Atomic int end;
} looker;
static void *look(void *arg) {
    looker *l = arg;
    while (!l->end) (void)file_lock_is_free(l->path);
    return NULL;
}

/* `status` looks while `train` begins: an instant's look is no holder. */
static void a_look_at_a_lock_refuses_nobody(void **state) {
    (void)state;
    looker l = {.path = "looked-at"};
    char path[512];
    snprintf(path, sizeof path, "%s", at("looked-at"));
    l.path = path;
    pthread_t threads[2];
    int fd, refused = 0;
    assert_int_equal(file_lock(path, &fd), ERR_OK);
    file_unlock(fd);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, look, &l), 0);
    for (int i = 0; i < 2000 && !refused; i++) {
        refused = file_lock(path, &fd) != ERR_OK;
        if (!refused) file_unlock(fd);
    }
    l.end = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_false(refused);
}

static void a_removed_lock_is_lost(void **state) {
    (void)state;
    int a, b;
    char path[512];
    snprintf(path, sizeof path, "%s", at("mine"));
    assert_int_equal(file_lock(path, &a), ERR_OK);
    assert_false(file_lock_is_lost(a, path));
    assert_int_equal(unlink(path), 0);
    assert_true(file_lock_is_lost(a, path));
    assert_int_equal(file_lock(path, &b), ERR_OK); /* which is why somebody must look */
    assert_true(file_lock_is_lost(a, path));
    assert_false(file_lock_is_lost(b, path));
    file_unlock(a);
    file_unlock(b);
}

static void hashes(void **state) {
    (void)state;
    char a[33], b[33];
    file_hash_bytes("", 0, a);
    assert_string_equal(a, "99aa06d3014798d86001c324468d497f"); /* XXH3-128 of nothing */
    size_t n = 700001;
    char *data = malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (char)(i * i % 251);
    file_writer *w;
    assert_int_equal(file_writer_open(&w, at("f")), ERR_OK);
    assert_int_equal(file_write(w, data, n), ERR_OK);
    assert_int_equal(file_commit(&w), ERR_OK);
    file_hash_bytes(data, n, a);
    assert_int_equal(file_hash(at("f"), b), ERR_OK);
    assert_string_equal(a, b);
    data[n / 2] ^= 1;
    file_hash_bytes(data, n, b);
    assert_string_not_equal(a, b);
    free(data);
    assert_int_equal(file_hash(at("absent"), a), ERR_IO);
}

/* What the fresh process does: publishes a file and a folder. */
static err publish(const char *base) {
    char path[256], tmp[512], inner[600];
    snprintf(path, sizeof path, "%s/f", base);
    TRY(put(path, "new content"));
    snprintf(path, sizeof path, "%s/d", base);
    TRY(file_dir_begin(path, tmp, sizeof tmp));
    TRY(file_join(inner, sizeof inner, tmp, "g"));
    err e = put(inner, "part of d");
    if (!e) e = file_dir_commit(tmp, path);
    if (!e) return ERR_OK;
    char kept[2048];
    snprintf(kept, sizeof kept, "%s", err_text());
    TRY(file_remove_tree(tmp));
    return err_set(e, "%s", kept);
}

/* Exit status of a fresh process that publishes with one switch set; 1000 + signal when it was killed. */
static int publish_elsewhere(const char *name, const char *value) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv(name, value, 1);
        execl("/proc/self/exe", "test_file", "publish", dir, (char *)NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int whole(const char *path, const char *a, const char *b) {
    char *have;
    size_t n;
    if (file_read(path, &have, &n) != ERR_OK) return 0;
    int ok = strcmp(have, a) == 0 || (b && strcmp(have, b) == 0);
    mem_free(have);
    return ok;
}

static void reset_folder(void) {
    assert_int_equal(file_remove_tree(at("d")), ERR_OK);
    assert_int_equal(put(at("f"), "old"), ERR_OK);
}

static void every_failed_write_leaves_whole_files(void **state) {
    (void)state;
    int n = 1, status = 1;
    for (; n < 50 && status; n++) {
        reset_folder();
        char number[16];
        snprintf(number, sizeof number, "%d", n);
        status = publish_elsewhere("PACELINE_FAIL_WRITE", number);
        assert_true(status == 0 || status == 1); /* an error that says "No space left", see main */
        assert_true(whole(at("f"), "old", "new content"));
        if (file_exists(at("d"))) assert_true(whole(at("d/g"), "part of d", NULL));
        if (status == 0) assert_true(file_exists(at("d")) && whole(at("f"), "new content", NULL));
        int entries = count_entries(dir); /* nothing temporary stays */
        assert_int_equal(entries, 1 + file_exists(at("d")));
    }
    assert_in_range(n, 10, 40); /* it walked through all the stages and then ended well */
}

static void every_kill_leaves_whole_files(void **state) {
    (void)state;
    static const char *const stages[] = {"write", "sync", "rename"};
    for (int s = 0; s < 3; s++) {
        int n = 1, status = 1000 + SIGKILL;
        for (; n < 20 && status == 1000 + SIGKILL; n++) {
            reset_folder();
            char where[32];
            snprintf(where, sizeof where, "%s:%d", stages[s], n);
            status = publish_elsewhere("PACELINE_KILL_AT", where);
            assert_true(status == 0 || status == 1000 + SIGKILL);
            assert_true(whole(at("f"), "old", "new content"));
            if (file_exists(at("d"))) assert_true(whole(at("d/g"), "part of d", NULL));
            assert_int_equal(file_sweep(dir), ERR_OK); /* the dead process's leavings go */
            assert_int_equal(count_entries(dir), 1 + file_exists(at("d")));
        }
        assert_true(n > 3);
        assert_int_equal(status, 0);
    }
}

static void sweep_spares_the_living_and_the_foreign(void **state) {
    (void)state;
    file_writer *w;
    assert_int_equal(file_writer_open(&w, at("f")), ERR_OK); /* ours, alive */
    assert_int_equal(put(at(".tmp-1-1-otherhost-1-1"), "x"), ERR_OK);
    assert_int_equal(put(at(".tmp-notes"), "x"), ERR_OK);
    assert_int_equal(file_sweep(dir), ERR_OK);
    assert_int_equal(count_entries(dir), 3);
    assert_int_equal(file_commit(&w), ERR_OK);
    assert_true(file_exists(at("f")));
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "publish") == 0) {
        if (publish(argv[2]) == ERR_OK) return 0;
        return strstr(err_text(), "No space left on device") ? 1 : 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(read_and_map, set_up, tear_down),
        cmocka_unit_test_setup_teardown(publishing_is_all_or_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_regular_files_are_replaced, set_up, tear_down),
        cmocka_unit_test_setup_teardown(devices_are_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lists_are_sorted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(locks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_look_at_a_lock_refuses_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_removed_lock_is_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hashes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_failed_write_leaves_whole_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_kill_leaves_whole_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sweep_spares_the_living_and_the_foreign, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
