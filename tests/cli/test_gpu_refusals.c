/* attend, mask and probe where a GPU cannot be used, or not so: one sentence each, before the first launch.
 *
 * Stubs stand for driver, NVRTC and NVML (tests/interpose); the driver's stub says how often it was asked to launch. What
 * stops one command stops all three, by the same sentence. No GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/safetensors.h"
#include "support/run.h"
#include "support/says.h"
#include "support/stubs.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static files_dir dir;
static run_result r;
static char cache[700], launches[700], library_path[800], arrays[700], output[700];

static void libraries(const char *folder) {
    snprintf(library_path, sizeof library_path, "LD_LIBRARY_PATH=%s", files_at(&dir, folder));
}

static int set_up(void **state) {
    static int32_t doc[100];
    (void)state;
    dir = files_begin();
    stubs_link(&dir, "lib", "libnvrtc.so.13", "nvrtc_13");
    stubs_link(&dir, "lib", "libcuda.so.1", "cuda_13");
    stubs_link(&dir, "lib", "libnvidia-ml.so.1", "nvml_two");
    snprintf(cache, sizeof cache, "PACELINE_CACHE=%s", files_at(&dir, "cache"));
    snprintf(launches, sizeof launches, "STUB_CUDA_LOG=%s", files_at(&dir, "launches"));
    snprintf(arrays, sizeof arrays, "%s", files_at(&dir, "arrays.safetensors"));
    snprintf(output, sizeof output, "%s", files_at(&dir, "out.safetensors"));
    const tensor t = {"doc", DT_I32, 1, {100}, doc};
    assert_ok(safetensors_write(arrays, &t, 1, NULL, 0));
    libraries("lib");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void run(const char *variable, const char *const *args) {
    const char *environment[] = {library_path, cache, launches, "STUB_CUDA_ANY=1", variable, NULL};
    run_program(&r, environment, args);
}

/* One sentence on one line with all of these parts, this code, and nothing launched or written. */
static void says(int code, const char *const *parts) {
    const char *end = strchr(r.text, '\n');
    if (r.code != code || !end || end[1])
        fail_msg("code %d instead of %d: %s", r.code, code, r.text);
    for (; *parts; parts++)
        if (!strstr(r.text, *parts)) fail_msg("'%s' is not in: %s", *parts, r.text);
    assert_false(file_exists(files_at(&dir, "launches")));
    assert_false(file_exists(output));
}

/* The three commands with a device and a variable of the environment (NULL: none). */
static void all_say(const char *device, const char *variable, int code, const char *const *parts) {
    run(variable, (const char *const[]){"attend", "--random", "1,1,1,8,8,8", "--out", output,
                                        "--device", device, NULL});
    says(code, parts);
    run(variable, (const char *const[]){"mask", "doc[q] == doc[kv]", "--q", "99", "--kv", "99",
                                        "--in", arrays, "--device", device, NULL});
    says(code, parts);
    run(variable, (const char *const[]){"probe", "--target", "t", "--in", "i", "--out", output,
                                        "--device", device, NULL});
    says(code, parts);
}
#define ALL_SAY(device, variable, code, ...)                                                       \
    all_say(device, variable, code, (const char *const[]){__VA_ARGS__, NULL})

static void b58_drivers_that_do_not_serve(void **state) {
    (void)state;
    ALL_SAY("cuda:0", "STUB_CUDA_INIT=100", 1, "sees no GPU", "CUDA_VISIBLE_DEVICES");
    ALL_SAY("cuda:0", "STUB_CUDA_VERSION=11040", 1, "CUDA driver 11.4", "12.0", "install");
    ALL_SAY("cuda:0", "STUB_CUDA_VERSION=12040", 1, "driver serves CUDA 12.4", "NVRTC is 13.0");
    assert_ok(file_make_dirs(files_at(&dir, "none")));
    files_text(&dir, "none/libcuda.so.1", "not a library");
    libraries("none");
    ALL_SAY("cuda:0", NULL, 1, "CUDA driver", "libcuda.so.1", "install an NVIDIA driver");
}

static void b59_compilers_that_do_not_serve(void **state) {
    (void)state;
    stubs_link(&dir, "old", "libnvrtc.so.13", "nvrtc_old");
    stubs_link(&dir, "old", "libcuda.so.1", "cuda_13");
    libraries("old");
    ALL_SAY("cuda:0", NULL, 1, "NVRTC 11.8", "12.0");
    stubs_link(&dir, "less", "libnvrtc.so.13", "nvrtc_less");
    stubs_link(&dir, "less", "libcuda.so.1", "cuda_13");
    libraries("less");
    ALL_SAY("cuda:0", NULL, 1, "NVRTC 13.0", "nvrtcGetCUBIN", "install");
    stubs_link(&dir, "none", "libcuda.so.1", "cuda_13");
    files_text(&dir, "none/libnvrtc.so.13", "not a library");
    libraries("none");
    ALL_SAY("cuda:0", NULL, 1, "NVRTC", "libnvrtc.so.13", "install");
}

static void devices_that_are_not_there_or_too_old(void **state) {
    (void)state;
    ALL_SAY("cuda:5", NULL, 2, "there is no cuda:5", "2 CUDA devices");
    ALL_SAY("cuda:1", NULL, 1, "cuda:1", "V100", "sm_70", "sm_80");
}

static void memory_that_is_not_there(void **state) {
    (void)state;
    run(NULL, (const char *const[]){"attend", "--random", "1,8,8,2048,2048,256", "--out", output,
                                    "--device", "cuda:0", NULL});
    says(1, (const char *const[]){"cuda:0 (NVIDIA H200 of a stub) has no room for",
                                  "bytes) of tensors", "64 MiB of 64 MiB are free",
                                  "process 4242 (stub_trainer) holds", NULL});
}

static void head_sizes_that_fit_no_tile(void **state) {
    (void)state;
    static const char *const sizes[] = {"1,1,1,8,8,12", "1,1,1,8,8,264", "1,1,1,8,8,0"};
    for (int i = 0; i < 3; i++) {
        run(NULL, (const char *const[]){"attend", "--random", sizes[i], "--type", "bf16", "--out",
                                        output, "--device", "cuda:0", NULL});
        says(r.code == 2 ? 2 : 1, (const char *const[]){strrchr(sizes[i], ',') + 1, NULL});
    }
}

static void a_cold_cache_where_nothing_may_be_compiled(void **state) {
    (void)state;
    run("PACELINE_NO_COMPILE=1", (const char *const[]){"attend", "--random", "1,1,1,8,8,8", "--out",
                                                       output, "--device", "cuda:0", NULL});
    says(1, (const char *const[]){"attention forward", "sm_90a", "PACELINE_NO_COMPILE", "warmup",
                                  NULL});
    run("PACELINE_NO_COMPILE=1",
        (const char *const[]){"mask", "doc[q] == doc[kv]", "--q", "99", "--kv", "99", "--in",
                              arrays, "--device", "cuda:0", NULL});
    says(1, (const char *const[]){"block masks", "sm_90a", "PACELINE_NO_COMPILE", NULL});
}

/* ---- folders of the cache: a warning, and the kernels are compiled into memory ---- */

/* The run goes on; its first line is the one warning, before any launch's work is told. */
static void warns(const char *word, const char *advice) {
    run(NULL,
        (const char *const[]){"attend", "--random", "1,1,1,8,8,8", "--device", "cuda:0", NULL});
    const char *end = strchr(r.text, '\n');
    if (r.code || !end) fail_msg("code %d: %s", r.code, r.text);
    const char *at = strstr(r.text, word);
    if (!at || at > end || !strstr(r.text, advice))
        fail_msg("'%s', '%s': %s", word, advice, r.text);
    if (strstr(end, "PACELINE_CACHE")) fail_msg("told more than once: %s", r.text);
    assert_true(file_exists(files_at(&dir, "launches")));
}

static void b17_folders_that_keep_nothing(void **state) {
    (void)state;
    const char *folder = strchr(cache, '=') + 1;
    files_text(&dir, "cache", "a file");
    warns("is not a folder", "PACELINE_CACHE");
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    warns("others may write", "chmod 700");
    assert_int_equal(chmod(folder, 0700), 0);
    /* Only root can give a folder away, and not in a space of user numbers without that one. */
    if (geteuid() == 0) {
        if (chown(folder, 12345, (gid_t)-1) != 0) return;
        warns("belongs to user 12345", "PACELINE_CACHE");
        assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
    } else {
        assert_int_equal(chmod(folder, 0500), 0);
        warns("is read-only", "memory");
        assert_int_equal(chmod(folder, 0700), 0);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(b58_drivers_that_do_not_serve),
        TEST(b59_compilers_that_do_not_serve),
        TEST(devices_that_are_not_there_or_too_old),
        TEST(memory_that_is_not_there),
        TEST(head_sizes_that_fit_no_tile),
        TEST(a_cold_cache_where_nothing_may_be_compiled),
        TEST(b17_folders_that_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
