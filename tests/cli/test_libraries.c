/* Another copy of a library is found first: training with a polluted search path, linked and opened libraries, GPUs by stub.
 *
 * Whatever lies on LD_LIBRARY_PATH or in LD_PRELOAD, a run has the bits that it has without, or it is refused with the
 * file's path before it begins. `doctor` says which file serves and what to do. Needs no GPU: the stubs of tests/interpose
 * stand for NVML, NCCL, a matrix library, jansson and PCRE2. */
#include "cli/linked.h"
#include "io/json.h"
#include "support/run.h"
#include "support/stubs.h"
#include "train/tiny_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "support/says.h"
#include <stdlib.h>
#include <sys/stat.h>

static files_dir dir;
static run_result r;
static char clean[128]; /* digest of the run without pollution */
#define ASAN "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=1:allocator_may_return_null=1"

static int begin(void **state) {
    (void)state;
    char path[PATH_MAX];
    const char *program = getenv("PACELINE_PROGRAM");
    files_must(realpath(program && *program ? program : "build/paceline", path) != NULL, "program");
    setenv("PACELINE_PROGRAM", path, 1);
    tiny_run_make(&dir, 5);
    return 0;
}

static int end(void **state) {
    (void)state;
    files_must(chdir("/") == 0, "/");
    files_end(&dir);
    return 0;
}

/* Folder NAME of the test as "VARIABLE=PATH". */
static const char *variable(char buf[900], const char *name, const char *folder, const char *file) {
    snprintf(buf, 900, "%s=%s/%s%s%s", name, dir.path, folder, file ? "/" : "", file ? file : "");
    return buf;
}

static void run_train(const char *const *env, const char *out) {
    char run[64];
    snprintf(run, sizeof run, "run.out=%s", out);
    run_program(&r, env,
                (const char *const[]){"train", "recipe.yaml", run, "run.max_updates=3",
                                      "run.checkpoint_every=3", "run.evaluate_every=100", NULL});
}

static void expect_same_bits(const char *out) {
    char got[128];
    if (r.code) fail_msg("exit %d:\n%s", r.code, r.text);
    tiny_run_digest(&dir, out, 3, got);
    assert_string_equal(got, clean);
}

static void expect_refusal(const char *const *parts) {
    if (r.code != 1) fail_msg("exit %d:\n%s", r.code, r.text);
    for (; *parts; parts++)
        if (!strstr(r.text, *parts)) fail_msg("'%s' is not in:\n%s", *parts, r.text);
    assert_null(strstr(r.text, "update 1"));
}
#define REFUSED(...) expect_refusal((const char *const[]){__VA_ARGS__, NULL})

static void b59_start_prints_path_and_version_of_each(void **state) {
    (void)state;
    run_train(NULL, "clean");
    assert_int_equal(r.code, 0);
    tiny_run_digest(&dir, "clean", 3, clean);
    const char *at = strstr(r.text, "libraries\n");
    assert_non_null(at);
    for (const char *const *name = (const char *const[]){"\n  jansson   ", "\n  libyaml   ",
                                                         "\n  PCRE2     ", "\n  blas      ", NULL};
         *name; name++)
        if (!strstr(at, *name)) fail_msg("no '%s' in:\n%s", *name, at);
    assert_non_null(strstr(at, "libjansson.so"));
    run_train((const char *const[]){"PACELINE_BLAS=none", NULL}, "plain");
    assert_non_null(strstr(r.text, "\n  blas      plain C\n"));
}

static void b59_wrong_matrix_library_on_the_path(void **state) {
    (void)state;
    char path[900], preload[900];
    stubs_link(&dir, "wrong", "libopenblas.so.0", "blas_wrong");
    stubs_link(&dir, "wrong", "libblis.so.4", "blas_crash");
    stubs_link(&dir, "wrong", "libblis.so.3", "blas_unsteady");
    run_train((const char *const[]){variable(path, "LD_LIBRARY_PATH", "wrong", NULL), NULL},
              "wrong-path");
    expect_same_bits("wrong-path");
    run_train((const char *const[]){ASAN,
                                    variable(preload, "LD_PRELOAD", "wrong", "libopenblas.so.0"),
                                    NULL},
              "wrong-preload");
    expect_same_bits("wrong-preload");
    /* Asked for by name, or as the loader finds it: refused with the file. */
    char stub[PATH_MAX];
    run_train((const char *const[]){path, "PACELINE_BLAS=libopenblas.so.0", NULL}, "named");
    REFUSED("libopenblas.so.0", "blas_wrong.so) cannot be used", "computes a wrong matrix product");
    run_train((const char *const[]){variable(path, "PACELINE_BLAS", "wrong", "libblis.so.4"), NULL},
              "named");
    REFUSED("wrong/libblis.so.4", "ends a process that multiplies with it");
    assert_int_equal(file_exists(files_at(&dir, "named")), 0);
    run_program(&r, (const char *const[]){path, NULL}, (const char *const[]){"doctor", NULL});
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.text, "ends a process that multiplies with it"));
    (void)stubs_path("blas_right", stub);
    snprintf(path, sizeof path, "PACELINE_BLAS=%.800s", stub);
    run_program(&r, (const char *const[]){path, NULL}, (const char *const[]){"doctor", NULL});
    assert_non_null(strstr(r.text, "OpenBLAS 9.9.1 "));
    assert_non_null(strstr(r.text, stub));
}

static void b59_linked_libraries_on_the_path(void **state) {
    (void)state;
    char path[900];
    stubs_link(&dir, "old", "libjansson.so.4", "jansson_old");
    stubs_link(&dir, "bare", "libjansson.so.4", "jansson_bare");
    stubs_link(&dir, "pcre", "libpcre2-8.so.0", "pcre2_bare");
    run_train((const char *const[]){variable(path, "LD_LIBRARY_PATH", "old", NULL), NULL}, "none");
    REFUSED("jansson 2.3.1 at", "old/libjansson.so.4 is older than", "built with",
            "out of LD_LIBRARY_PATH");
    run_train(
        (const char *const[]){ASAN, variable(path, "LD_PRELOAD", "old", "libjansson.so.4"), NULL},
        "none");
    REFUSED("jansson 2.3.1 at", "old/libjansson.so.4", "LD_PRELOAD");
    run_train((const char *const[]){variable(path, "LD_LIBRARY_PATH", "bare", NULL), NULL}, "none");
    REFUSED("bare/libjansson.so.4 has no function json_", "out of LD_LIBRARY_PATH");
    run_train((const char *const[]){variable(path, "LD_LIBRARY_PATH", "pcre", NULL), NULL}, "none");
    REFUSED("PCRE2 at", "pcre/libpcre2-8.so.0 has no function pcre2_");
    assert_int_equal(file_exists(files_at(&dir, "none")), 0);
    /* Rubbish of the right name: the loader names the file itself. */
    files_must(!file_make_dirs(files_at(&dir, "rubbish")), "rubbish");
    files_text(&dir, "rubbish/libjansson.so.4", "no library");
    run_train((const char *const[]){variable(path, "LD_LIBRARY_PATH", "rubbish", NULL), NULL},
              "none");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.text, "rubbish/libjansson.so.4"));
}

static void b59_headers_against_the_library(void **state) {
    (void)state;
    char note[256];
    linked_lib l = {.name = "jansson",
                    .path = "/x/libjansson.so.4",
                    .version = "2.14",
                    .built = "2.14",
                    .minimum = "2.11"};
    assert_ok(linked_judge(&l));
    linked_note(&l, note, sizeof note);
    assert_string_equal(note, "");
    snprintf(l.version, sizeof l.version, "2.12"); /* headers newer: told, both numbers */
    assert_ok(linked_judge(&l));
    linked_note(&l, note, sizeof note);
    assert_non_null(strstr(note, "2.14"));
    assert_non_null(strstr(note, "2.12"));
    snprintf(l.version, sizeof l.version, "2.20"); /* the library newer: fine within a generation */
    assert_ok(linked_judge(&l));
    linked_note(&l, note, sizeof note);
    assert_string_equal(note, "");
    snprintf(l.version, sizeof l.version, "3.0");
    assert_says(linked_judge(&l), ERR_REFUSED, "3.0", "/x/libjansson.so.4", "2.14",
                "build the program anew");
    snprintf(l.version, sizeof l.version, "2.7");
    assert_says(linked_judge(&l), ERR_REFUSED, "2.7", "/x/libjansson.so.4", "2.11", "2.14");
    linked_lib found[LINKED_MAX]; /* and what this test itself is linked with would serve */
    int n = linked_list(found);
    assert_true(n >= 1);
    for (int i = 0; i < n; i++) {
        assert_ok(linked_judge(&found[i]));
        assert_true(found[i].path[0] && found[i].version[0]);
    }
}

/* ---- doctor ---- */

static json_t *doctor(const char *const *env) {
    json_error_t e;
    run_program(&r, env, (const char *const[]){"doctor", "--json", NULL});
    json_t *root = json_loads(r.text, 0, &e);
    if (r.code || !root) fail_msg("exit %d, %s:\n%s", r.code, root ? "" : e.text, r.text);
    return root;
}

static const json_t *named(const json_t *root, const char *array, const char *name) {
    size_t i;
    json_t *o;
    json_array_foreach(
        json_object_get(root, array), i,
        o) if (!strcmp(json_string_value(json_object_get(o, "name")), name)) return o;
    return NULL;
}

static int says(const json_t *root, const char *item, const char *text, const char *fix) {
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(root, "findings"), i, f) {
        const char *advice = json_string_value(json_object_get(f, "fix"));
        if (!strcmp(json_string_value(json_object_get(f, "item")), item) &&
            strstr(json_string_value(json_object_get(f, "finding")), text) &&
            (fix ? advice && strstr(advice, fix) : !advice))
            return 1;
    }
    return 0;
}

#define SAYS(root_, item_, text_, fix_)                                                            \
    do {                                                                                           \
        if (!says(root_, item_, text_, fix_))                                                      \
            fail_msg("no '%s: %s' in:\n%s", item_, text_, r.text);                                 \
    } while (0)

static int64_t integer(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

static void gpus_by_nvml(void **state) {
    (void)state;
    char path[900], pid[64];
    stubs_link(&dir, "nvml", "libnvidia-ml.so.1", "nvml_two");
    snprintf(pid, sizeof pid, "STUB_PID=%d", (int)getpid());
    json_t *root =
        doctor((const char *const[]){variable(path, "LD_LIBRARY_PATH", "nvml", NULL), pid, NULL});
    const json_t *d = named(root, "devices", "cuda:0"), *holders = json_object_get(d, "holders");
    assert_non_null(d);
    assert_int_equal(integer(d, "memory_total") >> 30, 80);
    assert_int_equal(integer(d, "hidden_bytes") >> 20, 2048);
    assert_int_equal(json_array_size(holders), 2);
    assert_int_equal(integer(json_array_get(holders, 0), "bytes") >> 30, 3);
    assert_int_equal(integer(json_array_get(holders, 1), "pid"), getpid());
    assert_non_null(
        strstr(json_string_value(json_object_get(json_array_get(holders, 1), "command")),
               "test_libraries"));
    assert_int_equal(integer(named(root, "devices", "cuda:1"), "hidden_bytes"), 0);
    assert_int_equal(json_array_size(json_object_get(d, "peers")), 1);
    SAYS(root, "driver", "580.65.06, serves CUDA 13.0", NULL);
    SAYS(root, "cuda:0", "80 GiB", NULL);
    SAYS(root, "cuda:0", "2048 MiB are held by processes that this container cannot see",
         "from the host");
    SAYS(root, "holder", "pid 4242", NULL);
    SAYS(root, "holder", "stub_trainer (not to be seen from here)", NULL);
    SAYS(root, "peers", "0-1", NULL);
    const json_t *l = named(root, "libraries", "NVML");
    assert_string_equal(json_string_value(json_object_get(l, "version")), "13.580.65.06");
    assert_non_null(
        strstr(json_string_value(json_object_get(l, "path")), "nvml/libnvidia-ml.so.1"));
    json_decref(root);
}

static void broken_drivers(void **state) {
    static const struct {
        const char *stub, *text, *fix;
    } cases[] = {
        {"nvml_old", "NVML 11.470.82.01 at", "install an NVIDIA driver, 525 or later"},
        {"nvml_less", "has no nvmlDeviceGetCount_v2", "install an NVIDIA driver"},
        {"nvml_failing", "says 'Driver/library version mismatch'",
         "the driver was updated under a running kernel module: reboot"},
        {"nvml_crash", "ends the process (signal 11)", "reinstall the NVIDIA driver"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[900];
        stubs_link(&dir, cases[i].stub, "libnvidia-ml.so.1", cases[i].stub);
        json_t *root = doctor(
            (const char *const[]){variable(path, "LD_LIBRARY_PATH", cases[i].stub, NULL), NULL});
        SAYS(root, "GPU", cases[i].text, cases[i].fix);
        assert_null(named(root, "devices", "cuda:0"));
        json_decref(root);
    }
    if (access("/dev/nvidiactl", F_OK) == 0) return;
    json_t *root = doctor(NULL);
    SAYS(root, "GPU", "no NVIDIA GPU and no driver here", NULL);
    json_decref(root);
}

/* libcuda without libnvidia-ml: the devices can be computed on, so they are told. */
static void a_driver_without_nvml(void **state) {
    (void)state;
    char path[900];
    if (access("/dev/nvidiactl", F_OK) == 0) skip(); /* NVML is here and cannot be taken away */
    stubs_link(&dir, "driver", "libcuda.so.1", "cuda_13");
    variable(path, "LD_LIBRARY_PATH", "driver", NULL);
    json_t *root = doctor((const char *const[]){path, NULL});
    SAYS(root, "GPU", "who holds the memory of GPUs is not known",
         "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
    SAYS(root, "cuda:0", "NVIDIA H200 of a stub, compute capability 9.0, 64 MiB", NULL);
    SAYS(root, "cuda:1", "NVIDIA V100 of a stub", NULL);
    assert_int_equal(integer(named(root, "devices", "cuda:0"), "memory_total") >> 20, 64);
    assert_non_null(named(root, "devices", "cuda:1"));
    json_decref(root);
    root = doctor((const char *const[]){path, "STUB_CUDA_INIT=100", NULL});
    SAYS(root, "GPU", "sees no GPU", "CUDA_VISIBLE_DEVICES");
    json_decref(root);
    root = doctor((const char *const[]){path, "STUB_CUDA_VERSION=11080", NULL});
    SAYS(root, "GPU", "CUDA driver 11.8", "take");
    json_decref(root);
}

/* Two versions, each order of the search path, with and without a preloaded copy. */
static void b59_nccl_by_path_and_preload(void **state) {
    (void)state;
    char old[600], fresh[600], path[1300], preload[900];
    stubs_link(&dir, "n216", "libnccl.so.2", "nccl_21600");
    stubs_link(&dir, "n228", "libnccl.so.2", "nccl_22800");
    snprintf(old, sizeof old, "%s", files_at(&dir, "n216"));
    snprintf(fresh, sizeof fresh, "%s", files_at(&dir, "n228"));
    for (int order = 0; order < 2; order++)
        for (int pre = 0; pre < 3; pre++) { /* none, old, fresh */
            const char *env[4] = {ASAN, path};
            snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s:%s", order ? fresh : old,
                     order ? old : fresh);
            if (pre)
                env[2] =
                    variable(preload, "LD_PRELOAD", pre == 1 ? "n216" : "n228", "libnccl.so.2");
            json_t *root = doctor(env);
            const json_t *l = named(root, "libraries", "NCCL");
            int is_old = pre ? pre == 1 : order == 0;
            assert_string_equal(json_string_value(json_object_get(l, "version")),
                                is_old ? "2.16.0" : "2.28.0");
            assert_non_null(
                strstr(json_string_value(json_object_get(l, "path")), is_old ? "n216/" : "n228/"));
            assert_int_equal(json_is_true(json_object_get(l, "usable")), !is_old);
            if (is_old)
                SAYS(root, "NCCL", "is older than 2.18, the oldest that serves",
                     "install NCCL 2.18");
            else
                SAYS(root, "NCCL", "2.28.0", NULL);
            json_decref(root);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b59_start_prints_path_and_version_of_each),
        cmocka_unit_test(b59_wrong_matrix_library_on_the_path),
        cmocka_unit_test(b59_linked_libraries_on_the_path),
        cmocka_unit_test(b59_headers_against_the_library),
        cmocka_unit_test(gpus_by_nvml),
        cmocka_unit_test(broken_drivers),
        cmocka_unit_test(a_driver_without_nvml),
        cmocka_unit_test(b59_nccl_by_path_and_preload),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
