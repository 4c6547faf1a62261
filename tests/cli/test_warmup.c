/* warmup and cache, run as a user runs them: threads, processes, kills and damage on one folder, and what is refused.
 *
 * A stub stands for NVRTC and counts compiles over all processes (tests/interpose/nvrtc_stub.c); where the real NVRTC is
 * on the machine it compiles behind the stub in one test. No GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/pool.h"
#include "dev/cuda_libs.h"
#include "support/run.h"
#include "support/says.h"
#include "support/stubs.h"
#include "support/tiny_gguf.h"
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static files_dir dir;
static run_result r;
static char library_path[700], folder[700], counts[700];
static const char *environment[12];

static int set_up(void **state) {
    static char a[800], b[800], c[800];
    (void)state;
    dir = files_begin();
    stubs_link(&dir, "lib", "libnvrtc.so.13", "nvrtc_13");
    stubs_link(&dir, "old", "libnvrtc.so.13", "nvrtc_old");
    stubs_link(&dir, "less", "libnvrtc.so.13", "nvrtc_less");
    snprintf(library_path, sizeof library_path, "%s", files_at(&dir, "lib"));
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    snprintf(counts, sizeof counts, "%s", files_at(&dir, "counts"));
    snprintf(a, sizeof a, "LD_LIBRARY_PATH=%s", library_path);
    snprintf(b, sizeof b, "PACELINE_CACHE=%s", folder);
    snprintf(c, sizeof c, "STUB_NVRTC_LOG=%s", counts);
    const char *all[] = {a, b, c};
    memset(environment, 0, sizeof environment);
    memcpy(environment, all, sizeof all);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void with(const char *variable) {
    int n = 0;
    while (environment[n]) n++;
    environment[n] = variable;
}

static void run(const char *const *args) { run_program(&r, environment, args); }
#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

/* The answer of the last run, which must have ended with code. */
static json_t *answer(int code) {
    json_error_t error;
    if (r.code != code) fail_msg("code %d: %s", r.code, r.text);
    json_t *j = json_loads(r.text, JSON_DISABLE_EOF_CHECK, &error);
    if (!j) fail_msg("%s: %s", error.text, r.text);
    return j;
}

static int number(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("no number '%s' in: %s", key, r.text);
    return (int)json_number_value(v);
}

static int count(const char *line) {
    char *text, *p;
    size_t n;
    int found = 0;
    if (!file_exists(counts)) return 0;
    assert_ok(file_read(counts, &text, &n));
    for (p = text; (p = strstr(p, line)) != NULL; p++) found++;
    free(text);
    return found;
}

static void says(int code, const char *const *parts) {
    if (r.code != code) fail_msg("code %d instead of %d: %s", r.code, code, r.text);
    for (; *parts; parts++)
        if (!strstr(r.text, *parts)) fail_msg("'%s' is not in: %s", *parts, r.text);
}
#define SAYS(code, ...) says(code, (const char *const[]){__VA_ARGS__, NULL})

/* Number of entries, and their digest, of a cold fill by 16 threads. */
static int fill(char digest[33]) {
    RUN("warmup", "--arch", "sm_90a", "--threads", "16", "--json");
    json_t *j = answer(0);
    int n = number(j, "entries");
    assert_true(n > 0);
    assert_int_equal(number(j, "compiled") + number(j, "adopted") + number(j, "rebuilt"), n);
    assert_true(json_is_number(json_object_get(j, "ms")));
    assert_true(json_is_number(json_object_get(j, "load_ms")));
    snprintf(digest, 33, "%s", json_string_value(json_object_get(j, "digest")));
    assert_int_equal(strlen(digest), 32);
    json_decref(j);
    return n;
}

static void sixteen_threads_compile_each_kernel_once(void **state) {
    (void)state;
    char first[33], second[33];
    int n = fill(first);
    assert_int_equal(count("ended"), n);
    with("PACELINE_NO_COMPILE=1");
    assert_int_equal(fill(second), n);
    assert_string_equal(first, second);
    assert_int_equal(count("began"), n);
    RUN("warmup", "--arch", "sm_80");
    SAYS(1, "PACELINE_NO_COMPILE", "sm_80", folder);
    assert_int_equal(count("began"), n);
}

/* Four processes on one empty folder, one of them killed in its first compile, which has no end of its own; then one flipped byte. */
static void b16_four_processes_one_killed_one_damaged(void **state) {
    (void)state;
    const char *const args[] = {"warmup", "--arch", "sm_90a", "--threads", "4", "--json", NULL};
    char out[4][700], digest[33], other[33];
    pid_t pids[4];
    with("STUB_NVRTC_MS=86400000");
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "out%d", i);
        snprintf(out[i], sizeof out[i], "%s", files_at(&dir, name));
    }
    pids[0] = run_start(environment, args, out[0]);
    for (int i = 0; i < 300000 && !count("began"); i++) usleep(1000);
    if (!count("began")) fail_msg("no compile was begun within five minutes");
    environment[3] = "STUB_NVRTC_MS=500";
    for (int i = 1; i < 4; i++) pids[i] = run_start(environment, args, out[i]);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(run_wait(pids[0], 300000), 128 + SIGKILL);
    int n = 0, compiled = 0;
    for (int i = 1; i < 4; i++) {
        r.code = run_wait(pids[i], 300000);
        int code = r.code;
        run_read(&r, out[i]);
        r.code = code;
        json_t *j = answer(0);
        n = number(j, "entries");
        compiled += number(j, "compiled");
        snprintf(i == 1 ? digest : other, 33, "%s",
                 json_string_value(json_object_get(j, "digest")));
        if (i > 1) assert_string_equal(other, digest);
        json_decref(j);
    }
    assert_int_equal(count("ended"), n);
    assert_int_equal(compiled, n);
    RUN("cache", "verify", "--json");
    json_t *j = answer(0);
    assert_int_equal(number(j, "entries"), n);
    const char *key;
    RUN("cache", "list", "--json");
    json_decref(j);
    j = answer(0);
    key =
        json_string_value(json_object_get(json_array_get(json_object_get(j, "kernels"), 0), "key"));
    char name[80], path[800];
    snprintf(name, sizeof name, "cache/%s.kernel", key);
    snprintf(path, sizeof path, "%s", files_at(&dir, name));
    json_decref(j);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 500, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, 500, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
    RUN("cache", "verify");
    SAYS(1, path, "digest", "1 of");
    RUN("warmup", "--arch", "sm_90a", "--json");
    SAYS(0, path, "is damaged", "compiled anew", "\"rebuilt\": 1");
    RUN("cache", "verify");
    SAYS(0, "0 damaged");
}

/* Names of the kernels of the last answer that hold text. */
static int named(const json_t *j, const char *text) {
    const json_t *all = json_object_get(j, "kernels");
    int n = 0;
    for (size_t i = 0; i < json_array_size(all); i++)
        n += strstr(json_string_value(json_object_get(json_array_get(all, i), "name")), text) !=
             NULL;
    return n;
}

/* What a recipe needs: its target's head size, the drafters' windows; lengths and rates change nothing. */
static void a_recipe_names_its_kernels(void **state) {
    (void)state;
    tiny_gguf tiny = tiny_gguf_default(300, 3);
    tiny.tokenizer = 1;
    char recipe[700];
    assert_ok(tiny_gguf_write(files_at(&dir, "tiny.gguf"), &tiny));
    files_text(&dir, "rows.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    snprintf(recipe, sizeof recipe, "%s",
             files_text(&dir, "r.yaml",
                        "target: {path: tiny.gguf}\ndata: {path: rows.jsonl}\n"
                        "drafter: {layers: 2, block_size: 8}\nrun: {out: run}\n"));
    RUN("warmup", recipe, "--arch", "sm_80", "--json");
    json_t *j = answer(0);
    const int n = number(j, "entries");
    assert_int_equal(
        named(j, "head sizes 8 and 8") + named(j, "head size 8") + named(j, "block masks"), n - 1);
    assert_int_equal(named(j, "attention forward"), 2); /* the target's mask and the drafter's */
    assert_int_equal(named(j, "gradients by keys"), 1);
    assert_int_equal(named(j, "cells of a mask"), 2);
    assert_int_equal(named(j, "leaves of arrays"), 1);
    assert_int_equal(named(j, "paged attention"), 1);
    json_decref(j);
    with("PACELINE_NO_COMPILE=1");
    RUN("warmup", recipe, "drafter.block_size=16", "drafter.layers=1", "data.max_length=77",
        "--arch", "sm_80", "--json");
    j = answer(0);
    assert_int_equal(number(j, "adopted"), n);
    json_decref(j);
    RUN("warmup", recipe, "drafter.sliding_window=32", "--arch", "sm_80");
    SAYS(1, "PACELINE_NO_COMPILE", "attention forward");
    environment[3] = NULL;
    RUN("warmup", recipe, "drafter.sliding_window=32", "--arch", "sm_80", "--json");
    j = answer(0);
    assert_int_equal(number(j, "compiled"),
                     4); /* forward, both gradients and the cells of the window's mask */
    json_decref(j);
    RUN("warmup", recipe, "drafter.head_dim=20", "--arch", "sm_80");
    SAYS(1, "20", "multiple");
    RUN("warmup", "absent.yaml", "--arch", "sm_80");
    SAYS(1, "absent.yaml");
}

static void cache_is_listed_and_cleared(void **state) {
    (void)state;
    char digest[33];
    RUN("cache", "list");
    SAYS(0, "0 entries", folder);
    int n = fill(digest);
    RUN("cache", "list");
    SAYS(0, "sm_90a", "fill and convert", "0 damaged");
    RUN("cache", "clear", "--json");
    json_t *j = answer(0);
    assert_int_equal(number(j, "removed"), n);
    json_decref(j);
    RUN("cache", "list", "--json");
    j = answer(0);
    assert_int_equal(number(j, "entries"), 0);
    json_decref(j);
    RUN("cache", "empty");
    SAYS(2, "'empty'", "list, verify or clear");
}

/* Making room is what a full disk asks for. */
static void a_full_disk_can_be_cleared(void **state) {
    (void)state;
    char digest[33], stub[PATH_MAX];
    static char preload[PATH_MAX + 16];
    int n = fill(digest);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", stubs_path("disk_full", stub));
    with(preload);
    with("ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=1:allocator_may_return_null=1");
    RUN("warmup", "--arch", "sm_80");
    SAYS(1, folder, "is full", "could not be kept");
    RUN("cache", "verify");
    SAYS(0, "0 damaged");
    RUN("cache", "clear", "--json");
    json_t *j = answer(0);
    assert_int_equal(number(j, "removed"), n);
    json_decref(j);
    assert_int_equal(count("began"), n);
}

typedef struct remover {
    atomic_int stop, pause_ms;
    pthread_t id;
} remover;

static void *remove_again_and_again(void *ctx) {
    remover *m = ctx;
    while (!atomic_load(&m->stop)) {
        if (file_remove_tree(folder)) err_clear(); /* something was made in it meanwhile */
        usleep(1000 * (unsigned)atomic_load(&m->pause_ms));
    }
    return NULL;
}

/* Whoever fills a folder that another empties hears of the other, and not of switches that he did not set. At some pause between
 * two removals, whatever the machine's speed, entries can be written and are gone before they are read again. */
static void what_was_kept_and_removed_again_is_told(void **state) {
    (void)state;
    remover m = {.stop = 0};
    int told = 0, others = 0;
    assert_int_equal(pthread_create(&m.id, NULL, remove_again_and_again, &m), 0);
    for (int i = 0; i < 500 && !told && !others; i++) {
        atomic_store(&m.pause_ms, 1 + i);
        RUN("warmup", "--arch", "sm_90a", "--threads", "2");
        told = strstr(r.text, "is not there any more") != NULL;
        others = strstr(r.text, "PACELINE_NO_COMPILE") != NULL;
    }
    atomic_store(&m.stop, 1);
    pthread_join(m.id, NULL);
    if (others || !told || r.code != 1) fail_msg("code %d: %s", r.code, r.text);
}

static void folders_that_keep_nothing_are_refused(void **state) {
    (void)state;
    files_text(&dir, "cache", "a file");
    RUN("warmup", "--arch", "sm_90a");
    SAYS(1, folder, "is not a folder", "could not be kept");
    assert_int_equal(strchr(r.text, '\n')[1], 0); /* one sentence */
    RUN("cache", "list");
    SAYS(1, folder, "is not a folder");
    char below[800];
    const char *usual = environment[1];
    snprintf(below, sizeof below, "%s/below", usual);
    environment[1] = below;
    RUN("cache", "list"); /* not an empty one */
    SAYS(1, folder, "cannot be examined");
    environment[1] = usual;
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    RUN("warmup", "--arch", "sm_90a");
    SAYS(1, folder, "others may write", "chmod 700");
    RUN("cache", "clear");
    SAYS(1, folder, "others may write");
    assert_int_equal(count("began"), 0);
}

static void architectures_are_checked_first(void **state) {
    (void)state;
    RUN("warmup", "--arch", "volta");
    SAYS(2, "'volta'", "sm_90a");
    RUN("warmup", "--arch", "sm_80a");
    SAYS(2, "sm_80a", "sm_90a", "leave it out");
    RUN("warmup", "--arch", "sm_75");
    SAYS(1, "sm_75", "sm_80", "or the CPU");
    RUN("warmup", "--arch", "sm_120");
    SAYS(1, "NVRTC 13.0", "sm_120", "sm_90"); /* the stub knows no later one */
    RUN("warmup", "--threads", "0", "--arch", "sm_80");
    SAYS(2, "--threads");
    assert_int_equal(count("began"), 0);
}

static void compilers_that_do_not_serve(void **state) {
    (void)state;
    char old[800], less[800], broken[800];
    snprintf(old, sizeof old, "LD_LIBRARY_PATH=%s", files_at(&dir, "old"));
    environment[0] = old;
    RUN("warmup", "--arch", "sm_90a");
    SAYS(1, "NVRTC 11.8", "12.0", "LD_LIBRARY_PATH");
    snprintf(less, sizeof less, "LD_LIBRARY_PATH=%s", files_at(&dir, "less"));
    environment[0] = less;
    RUN("warmup", "--arch", "sm_90a");
    SAYS(1, "NVRTC 13.0", "nvrtcGetCUBIN", "install");
    assert_ok(file_make_dirs(files_at(&dir, "broken")));
    snprintf(broken, sizeof broken, "LD_LIBRARY_PATH=%s", files_at(&dir, "broken"));
    files_text(&dir, "broken/libnvrtc.so.13", "not a library");
    environment[0] = broken;
    RUN("warmup", "--arch", "sm_90a");
    SAYS(1, "NVRTC", "libnvrtc.so.13", "install");
}

/* attend asks for a GPU; what is missing is told before anything is computed. */
static void gpus_that_cannot_be_used(void **state) {
    (void)state;
    static const char *const attend[] = {"attend",   "--random", "1,1,1,8,8,8",
                                         "--device", "cuda:0",   NULL};
    stubs_link(&dir, "lib", "libcuda.so.1", "cuda_13");
    with("STUB_CUDA_INIT=100");
    run(attend);
    SAYS(1, "sees no GPU", "CUDA_VISIBLE_DEVICES");
    environment[3] = "STUB_CUDA_VERSION=11080";
    run(attend);
    SAYS(1, "CUDA driver 11.8", "12.0", "LD_LIBRARY_PATH");
    environment[3] = "STUB_CUDA_VERSION=12040";
    run(attend);
    SAYS(1, "driver serves CUDA 12.4", "NVRTC is 13.0");
    environment[3] = NULL;
    RUN("attend", "--random", "1,1,1,8,8,8", "--device", "cuda:5");
    SAYS(2, "there is no cuda:5", "2 CUDA devices");
    RUN("attend", "--random", "1,1,1,8,8,8", "--device", "cuda:1");
    SAYS(1, "cuda:1", "V100", "sm_70", "sm_80");
    RUN("attend", "--random", "1,1,1,8,8,12", "--device", "cuda:0");
    SAYS(1, "12", "multiple of 8");
    RUN("warmup", "--json"); /* two kinds of GPU: the user must say which */
    SAYS(2, "cuda:1", "--arch");
}

/* A user's first call on a GPU with nothing cached: its kernels are compiled once each, and side by side. */
static void a_first_call_compiles_side_by_side(void **state) {
    (void)state;
    static const char *const attend[] = {
        "attend",  "--random",   "1,2,1,40,40,64", "--type", "bf16", "--mask",
        "kv <= q", "--backward", "--device",       "cuda:0", NULL};
    stubs_link(&dir, "lib", "libcuda.so.1", "cuda_13");
    with("STUB_CUDA_ANY=1");
    with(pool_cpus() > 1 ? "STUB_NVRTC_MEET=2" : "STUB_NVRTC_MEET=1");
    run(attend);
    SAYS(0, "forward", "backward");
    assert_int_equal(count("began"), 4); /* forward, rows, both gradients */
    assert_int_equal(count("ended"), 4);
    assert_int_equal(count("alone"), 0);
    run(attend);
    SAYS(0, "forward");
    assert_int_equal(count("began"), 4);
}

/* The real NVRTC behind the counting stub: images are real, each compiled once. */
static void the_real_compiler_behind_the_stub(void **state) {
    static char path[PATH_MAX + 32];
    (void)state;
    shared_lib l;
    if (cuda_libs_open(&l, CUDA_LIBS_NVRTC)) {
        printf("skipped: %s\n", err_text());
        return;
    }
    snprintf(path, sizeof path, "STUB_NVRTC_REAL=%s", l.path);
    with(path);
    char first[33], second[33];
    int n = fill(first);
    assert_int_equal(count("ended"), n);
    assert_non_null(strstr(r.text, "\"registers\""));
    with("PACELINE_NO_COMPILE=1");
    assert_int_equal(fill(second), n);
    assert_string_equal(first, second);
    shared_lib_close(&l);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(sixteen_threads_compile_each_kernel_once),
        TEST(b16_four_processes_one_killed_one_damaged),
        TEST(a_recipe_names_its_kernels),
        TEST(cache_is_listed_and_cleared),
        TEST(folders_that_keep_nothing_are_refused),
        TEST(a_full_disk_can_be_cleared),
        TEST(what_was_kept_and_removed_again_is_told),
        TEST(architectures_are_checked_first),
        TEST(compilers_that_do_not_serve),
        TEST(gpus_that_cannot_be_used),
        TEST(a_first_call_compiles_side_by_side),
        TEST(the_real_compiler_behind_the_stub),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
