/* Many threads and processes on one cold kernel cache: each kernel is compiled once, and all get the same bytes.
 *
 * The stand-in for NVRTC makes every compile's image another one, so equal images mean one compile; it counts them across
 * processes. Processes are killed while they compile, entries are damaged, folders vanish. Names of cases: B16, B17. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/kernel_list.h"
#include "dev/kernel_standin.h"
#include "support/says.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

static files_dir dir;
static standin compiler;
static standin_lines lines;
static standin_kernel kernels[STANDIN_KERNELS];
static char folder[600];

/* Warnings alone: that somebody waits for another is told after a while, also where nothing but the machine is slow. */
static void keep_warnings(void *ctx, log_level level, const char *line) {
    if (level != LOG_INFO) standin_keep(ctx, level, line);
}

static int set_up(void **state) {
    (void)state;
    dir = files_begin();
    standin_begin(&compiler, &dir);
    compiler.differ = 1;
    compiler.sleep_ms = 3;
    for (int i = 0; i < STANDIN_KERNELS; i++) standin_spec(&kernels[i], i);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    lines.text[0] = 0;
    log_set_sink(keep_warnings, &lines);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    log_set_sink(NULL, NULL);
    files_end(&dir);
    return 0;
}

static err open_cache(kernel_cache **c) {
    return kernel_cache_open(c, &(kernel_cache_config){.folder = folder, .compiler = &compiler.c});
}

/* All kernels through one handle, begun at kernel `first`; digest of what came, by number. */
static err all_images(kernel_cache *c, int first, char digest[KERNEL_KEY]) {
    char all[STANDIN_KERNELS][KERNEL_KEY];
    const kernel_image *image;
    for (int i = 0; i < STANDIN_KERNELS; i++) {
        int k = (first + i) % STANDIN_KERNELS;
        TRY(kernel_cache_get(c, &kernels[k].spec, "sm_90a", &image));
        file_hash_bytes(image->data, image->size, all[k]);
    }
    file_hash_bytes(all, sizeof all, digest);
    return ERR_OK;
}

/* ---- threads ---- */

typedef struct racer {
    pthread_t id;
    kernel_cache *c; /* NULL: a handle of its own */
    int first;
    pthread_barrier_t *start;
    err result;
    char digest[KERNEL_KEY];
} racer;

static void *race(void *ctx) {
    racer *r = ctx;
    kernel_cache *own = NULL;
    pthread_barrier_wait(r->start);
    if (!r->c) r->result = open_cache(&own);
    if (!r->result) r->result = all_images(r->c ? r->c : own, r->first, r->digest);
    kernel_cache_close(own);
    return NULL;
}

static void race_of_threads(int n, int own_handles) {
    racer r[16];
    pthread_barrier_t start;
    kernel_cache *c = NULL;
    set_up(NULL);
    if (!own_handles) assert_ok(open_cache(&c));
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        r[i] = (racer){.c = c, .first = i % 3, .start = &start};
        assert_int_equal(pthread_create(&r[i].id, NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].id, NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++) {
        assert_int_equal(r[i].result, ERR_OK);
        assert_string_equal(r[i].digest, r[0].digest);
    }
    assert_int_equal(atomic_load(&compiler.compiles), STANDIN_KERNELS);
    kernel_cache_close(c);
    assert_string_equal(lines.text, "");
    tear_down(NULL);
}

static void threads_compile_each_kernel_once(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++) {
        race_of_threads(3, own);
        race_of_threads(8, own);
        race_of_threads(16, own);
    }
}

/* While one kernel takes for ever, another is served. */
static void *stuck(void *ctx) {
    const kernel_image *image;
    if (kernel_cache_get(ctx, &kernels[2].spec, "sm_90a", &image)) return ctx;
    return NULL;
}

static void a_thread_waits_for_its_own_kernel_alone(void **state) {
    (void)state;
    kernel_cache *c;
    char digest[KERNEL_KEY];
    pthread_t id;
    void *failed;
    const kernel_image *image;
    atomic_store(&compiler.hang_at, "kernel 2");
    assert_ok(open_cache(&c));
    assert_int_equal(pthread_create(&id, NULL, stuck, c), 0);
    standin_await(compiler.began, "kernel 2");
    assert_ok(kernel_cache_get(c, &kernels[0].spec, "sm_90a", &image));
    assert_int_equal(standin_count(compiler.ended, "kernel 2"), 0); /* still on its way */
    atomic_store(&compiler.hang_at, NULL);
    assert_ok(all_images(c, 2, digest));
    assert_int_equal(standin_count(compiler.ended, "kernel 2"), 1);
    pthread_join(id, &failed);
    assert_null(failed);
    assert_int_equal(atomic_load(&compiler.compiles), STANDIN_KERNELS);
    kernel_cache_close(c);
}

/* ---- processes ---- */

/* In a child: n threads through one handle; the digest goes to a file. */
static int child_main(const char *output, int n) {
    racer r[16];
    pthread_barrier_t start;
    kernel_cache *c;
    if (open_cache(&c)) return 1;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        r[i] = (racer){.c = c, .first = i, .start = &start};
        if (pthread_create(&r[i].id, NULL, race, &r[i])) return 2;
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].id, NULL);
    for (int i = 0; i < n; i++)
        if (r[i].result || strcmp(r[i].digest, r[0].digest) != 0) return 3;
    kernel_cache_close(c);
    standin_line(output, r[0].digest);
    return 0;
}

static pid_t start_child(const char *name, int threads, const char *hang_at) {
    char output[600];
    snprintf(output, sizeof output, "%s", files_at(&dir, name));
    pid_t pid = fork();
    if (pid) return pid;
    atomic_store(&compiler.hang_at, hang_at);
    _exit(child_main(output, threads));
}

static int code_of(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* How many kernels lie in the folder. */
static int published(void) {
    kernel_folder f;
    kernel_folder_item *items;
    int n;
    assert_ok(kernel_folder_open(&f, folder, 0));
    assert_ok(kernel_folder_list(&f, &items, &n));
    mem_free(items);
    return n;
}

/* Four processes of four threads on an empty folder, one of them killed while it compiles. */
static void b16_processes_compile_each_kernel_once(void **state) {
    (void)state;
    pid_t pids[4];
    char name[16];
    pids[0] = start_child("out0", 4, "kernel 3");
    standin_await(compiler.began, "kernel 3");
    for (int i = 1; i < 4; i++) {
        snprintf(name, sizeof name, "out%d", i);
        pids[i] = start_child(name, 4, NULL);
    }
    /* Every thread comes to wait for kernel 3; those before it were compiled once and are there. */
    for (int i = 0; i < 60000 && published() < 3; i++) standin_sleep(1);
    assert_int_equal(published(), 3);
    standin_sleep(100);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(code_of(pids[0]), 128 + SIGKILL);
    for (int i = 1; i < 4; i++) assert_int_equal(code_of(pids[i]), 0);
    for (int k = 0; k < STANDIN_KERNELS; k++)
        assert_int_equal(standin_count(compiler.ended, kernels[k].name), 1);
    assert_int_equal(standin_count(compiler.began, "kernel 3"), 2); /* the killed one's too */
    char *digests[3];
    size_t n;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "out%d", i + 1);
        assert_ok(file_read(files_at(&dir, name), &digests[i], &n));
        assert_string_equal(digests[i], digests[0]);
    }
    for (int i = 0; i < 3; i++) mem_free(digests[i]);
    assert_string_equal(lines.text, "");
    kernel_folder f;
    char **names;
    int left;
    assert_ok(kernel_folder_open(&f, folder, 0));
    assert_ok(file_list(folder, &names, &left));
    assert_int_equal(left, STANDIN_KERNELS); /* no lock and no half-written file is left */
    file_names_free(names, left);
}

/* In a child: all kernels are there or made, none was damaged. */
static int whole_again(void) {
    char digest[KERNEL_KEY];
    kernel_cache *c;
    kernel_cache_stats s;
    if (open_cache(&c) || all_images(c, 0, digest)) return 1;
    kernel_cache_get_stats(c, &s);
    kernel_cache_close(c);
    if (s.rebuilt || s.compiled + s.adopted != STANDIN_KERNELS) return 2;
    return lines.text[0] ? 3 : 0;
}

/* Killed in the middle of writing, syncing and renaming an entry. Comes first and leaves publishing to children: the
 * stages are counted from the start of the process. */
static void b16_killed_while_it_publishes(void **state) {
    (void)state;
    static const char *const at[] = {"write:2", "write:4", "sync:1",   "sync:2",
                                     "sync:5",  "sync:6",  "rename:1", "rename:3"};
    for (int i = 0; i < 8; i++) {
        pid_t pid = fork();
        if (!pid) {
            setenv("PACELINE_KILL_AT", at[i], 1);
            _exit(child_main("/dev/null", 1));
        }
        assert_int_equal(code_of(pid), 128 + SIGKILL);
        pid = fork();
        if (!pid) _exit(whole_again());
        assert_int_equal(code_of(pid), 0);
        assert_ok(file_remove_tree(folder));
    }
}

/* In a child: one write, sync or rename fails, as when the folder is removed in between; the entry is written again. */
static int kept_all_the_same(void) {
    char digest[KERNEL_KEY];
    kernel_cache *c;
    if (open_cache(&c) || all_images(c, 0, digest)) return 1;
    if (!kernel_cache_keeps(c)) return 2;
    kernel_cache_close(c);
    return lines.text[0] ? 3 : 0;
}

/* Like the one before: counted from the start of the process. */
static void b16_removed_while_it_publishes(void **state) {
    (void)state;
    char at[16];
    for (int i = 1; i <= 6; i++) {
        pid_t pid = fork();
        if (!pid) {
            snprintf(at, sizeof at, "%d", i);
            setenv("PACELINE_FAIL_WRITE", at, 1);
            _exit(kept_all_the_same());
        }
        assert_int_equal(code_of(pid), 0);
        assert_int_equal(published(), STANDIN_KERNELS);
        assert_ok(file_remove_tree(folder));
    }
}

static void b17_a_dead_holder_holds_nothing(void **state) {
    (void)state;
    char digest[KERNEL_KEY];
    kernel_cache *c;
    pid_t pid = start_child("out", 1, "kernel 0");
    standin_await(compiler.began, "kernel 0");
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(code_of(pid), 128 + SIGKILL);
    assert_ok(open_cache(&c));
    assert_ok(all_images(c, 0, digest));
    kernel_cache_close(c);
    assert_string_equal(lines.text, ""); /* it did not go beside the lock when patience was over */
}

/* A holder that lives and does nothing: named, and passed by after the patience is over. */
static void b17_a_holder_that_sleeps_is_named(void **state) {
    (void)state;
    char who[64];
    kernel_cache *c;
    const kernel_image *image;
    pid_t pid = start_child("out", 1, "kernel 0");
    standin_await(compiler.began, "kernel 0");
    assert_ok(kernel_cache_open(
        &c, &(kernel_cache_config){.folder = folder, .compiler = &compiler.c, .patience = 0.2}));
    assert_ok(kernel_cache_get(c, &kernels[0].spec, "sm_90a", &image));
    kernel_cache_close(c);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(code_of(pid), 128 + SIGKILL);
    snprintf(who, sizeof who, "process %d on", (int)pid);
    assert_non_null(strstr(lines.text, who));
    assert_non_null(strstr(lines.text, "'kernel 0' is compiled here too"));
}

/* A lock that cannot be taken (here its name is a folder's) stands for a file system without locks. */
static void without_locks_the_first_entry_wins(void **state) {
    (void)state;
    char key[KERNEL_KEY], name[80], *one, *two;
    str recipe = {0};
    size_t n;
    assert_int_equal(mkdir(folder, 0700), 0);
    for (int i = 0; i < STANDIN_KERNELS; i++) {
        assert_ok(kernel_recipe(&kernels[i].spec, "sm_90a", compiler.c.identity, &recipe));
        kernel_key(&recipe, key);
        str_clear(&recipe);
        snprintf(name, sizeof name, "cache/%s.lock", key);
        assert_int_equal(mkdir(files_at(&dir, name), 0700), 0);
    }
    str_free(&recipe);
    compiler.together = 2; /* each in either process */
    pid_t a = start_child("out0", 2, NULL), b = start_child("out1", 2, NULL);
    assert_int_equal(code_of(a), 0);
    assert_int_equal(code_of(b), 0);
    assert_true(standin_count(compiler.ended, NULL) > STANDIN_KERNELS); /* they did race */
    assert_ok(file_read(files_at(&dir, "out0"), &one, &n));
    assert_ok(file_read(files_at(&dir, "out1"), &two, &n));
    assert_string_equal(one, two);
    mem_free(one);
    mem_free(two);
}

/* ---- folders that vanish ---- */

typedef struct remover {
    atomic_int stop, rounds;
} remover;

static void *remove_again_and_again(void *ctx) {
    remover *r = ctx;
    while (!atomic_load(&r->stop)) {
        if (!file_remove_tree(folder)) atomic_fetch_add(&r->rounds, 1);
        standin_sleep(1);
    }
    return NULL;
}

static void b16_the_folder_vanishes_under_readers(void **state) {
    (void)state;
    char digest[KERNEL_KEY], first[KERNEL_KEY] = "";
    remover r = {0, 0};
    pthread_t id;
    compiler.differ = 0;
    compiler.sleep_ms = 0;
    assert_int_equal(pthread_create(&id, NULL, remove_again_and_again, &r), 0);
    for (int i = 0; i < 60 || !atomic_load(&r.rounds); i++) {
        kernel_cache *c;
        assert_ok(open_cache(&c));
        assert_ok(all_images(c, i % STANDIN_KERNELS, digest));
        if (!i) memcpy(first, digest, sizeof first);
        assert_string_equal(digest, first);
        kernel_cache_close(c);
    }
    atomic_store(&r.stop, 1);
    pthread_join(id, NULL);
}

/* Loads in one thread, clearing in another; what is loaded is whole or absent. */
static void *remove_folder_again_and_again(void *stop) {
    while (!atomic_load((atomic_int *)stop)) (void)rmdir(folder);
    return NULL;
}

/* A folder that is there at a second look is not told of as one that is missing. */
static void b16_the_folder_vanishes_while_it_is_opened(void **state) {
    (void)state;
    static atomic_int stop;
    pthread_t id;
    atomic_store(&stop, 0);
    assert_int_equal(pthread_create(&id, NULL, remove_folder_again_and_again, &stop), 0);
    int wrong = 0;
    for (int i = 0; i < 4000 && !wrong; i++) {
        kernel_folder f;
        assert_ok(kernel_folder_open(&f, folder, 1));
        wrong = (f.readable && f.writable) != !f.note[0];
    }
    atomic_store(&stop, 1);
    pthread_join(id, NULL);
    assert_int_equal(wrong, 0);
}

typedef struct clearing {
    kernel_folder f;
    atomic_int stop;
    err result;
    str entries[STANDIN_KERNELS];
    char keys[STANDIN_KERNELS][KERNEL_KEY];
} clearing;

static void *clear_again_and_again(void *ctx) {
    clearing *w = ctx;
    while (!atomic_load(&w->stop) && !w->result) {
        int n;
        uint64_t bytes;
        char path[PATH_MAX];
        for (int i = 0; i < STANDIN_KERNELS && !w->result; i++) {
            w->result = kernel_folder_path(&w->f, w->keys[i], path);
            if (!w->result) w->result = file_put(path, w->entries[i].s, w->entries[i].n);
        }
        if (!w->result) w->result = kernel_folder_clear(&w->f, &n, &bytes);
    }
    return NULL;
}

static void b17_loads_beside_clearing(void **state) {
    (void)state;
    clearing w = {.result = ERR_OK};
    kernel_product p = {.image = "an image", .size = 8, .usage = NULL};
    str recipe = {0};
    pthread_t id;
    int found = 0;
    assert_ok(kernel_folder_open(&w.f, folder, 1));
    for (int i = 0; i < STANDIN_KERNELS; i++) {
        str_clear(&recipe);
        assert_ok(kernel_recipe(&kernels[i].spec, "sm_80", "c", &recipe));
        kernel_key(&recipe, w.keys[i]);
        assert_ok(kernel_entry_make(&w.entries[i], "k", "sm_80", &recipe, &p, 1));
    }
    assert_int_equal(pthread_create(&id, NULL, clear_again_and_again, &w), 0);
    for (int i = 0; i < 10000; i++) {
        kernel_entry e;
        assert_ok(kernel_folder_read(&w.f, w.keys[i % STANDIN_KERNELS], NULL, &e));
        if (e.bytes) assert_memory_equal(e.image, "an image", 8);
        found += e.bytes != NULL;
        kernel_entry_free(&e);
    }
    atomic_store(&w.stop, 1);
    pthread_join(id, NULL);
    assert_int_equal(w.result, ERR_OK);
    for (int i = 0; i < STANDIN_KERNELS; i++) str_free(&w.entries[i]);
    str_free(&recipe);
    printf("%d of 10000 loads found their entry\n", found);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(b16_killed_while_it_publishes),
        TEST(b16_removed_while_it_publishes),
        cmocka_unit_test(threads_compile_each_kernel_once),
        TEST(a_thread_waits_for_its_own_kernel_alone),
        TEST(b16_processes_compile_each_kernel_once),
        TEST(b17_a_dead_holder_holds_nothing),
        TEST(b17_a_holder_that_sleeps_is_named),
        TEST(without_locks_the_first_entry_wins),
        TEST(b16_the_folder_vanishes_under_readers),
        TEST(b16_the_folder_vanishes_while_it_is_opened),
        TEST(b17_loads_beside_clearing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
