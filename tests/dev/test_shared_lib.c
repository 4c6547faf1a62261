/* Libraries opened by name: paths, versions, symbols, refusals, GPUs by a stub of NVML, and ranks that must agree.
 *
 * Stubs are built from tests/interpose; no GPU and no CUDA is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/cuda_libs.h"
#include "dev/dev.h"
#include "dev/nvml.h"
#include "support/says.h"
#include "support/stubs.h"
#include <dlfcn.h>
#include <stdlib.h>

static files_dir dir;

static shared_lib_spec nccl(const char *const *files) {
    shared_lib_spec s = *cuda_libs_spec(CUDA_LIBS_NCCL);
    s.files = files;
    return s;
}

static void path_version_and_symbols(void **state) {
    (void)state;
    char path[PATH_MAX];
    int (*version)(int *), (*other)(void), v = 0;
    const char *files[] = {"libabsent-one.so.7", "/no/such/libabsent.so",
                           stubs_path("nccl_22800", path), NULL};
    shared_lib_spec s = nccl(files);
    shared_lib l;
    assert_ok(shared_lib_open(&l, &s));
    assert_string_equal(l.path, path);
    assert_string_equal(l.version, "2.28.0");
    assert_true(strlen(l.build) == 40 || !l.build[0]);
    const shared_lib_symbol table[] = {{"ncclGetVersion", &version, 0}, {"ncclNothing", &other, 1}};
    assert_ok(shared_lib_symbols(&l, table, 2));
    assert_null(other);
    assert_int_equal(version(&v), 0);
    assert_int_equal(v, 22800);
    const shared_lib_symbol more[] = {{"ncclAllReduce", &other, 0}};
    assert_says(shared_lib_symbols(&l, more, 1), ERR_REFUSED, "NCCL 2.28.0", path, "ncclAllReduce");
    shared_lib_close(&l);
    shared_lib_close(&l);
}

static void b59_too_old_is_refused_with_both_numbers(void **state) {
    (void)state;
    char path[PATH_MAX];
    const char *files[] = {stubs_path("nccl_21600", path), NULL};
    shared_lib_spec s = nccl(files);
    shared_lib l;
    assert_says(shared_lib_open(&l, &s), ERR_REFUSED, "NCCL 2.16.0", path, "2.18", "install");
    assert_null(l.handle);
    s.minimum = "2.16";
    assert_ok(shared_lib_open(&l, &s));
    shared_lib_close(&l);
}

static void absent_and_broken_libraries(void **state) {
    (void)state;
    shared_lib l;
    const char *none[] = {"libabsent-one.so.7", "libabsent-one.so.6", NULL};
    shared_lib_spec s = nccl(none);
    assert_says(shared_lib_open(&l, &s), ERR_IO, "NCCL", "libabsent-one.so.7", "install");
    dir = files_begin();
    const char *broken[] = {files_text(&dir, "libbroken.so", "not a library"), NULL};
    s.files = broken;
    assert_says(shared_lib_open(&l, &s), ERR_REFUSED, broken[0], "install");
    files_end(&dir);
    const char *libm[] = {"libm.so.6", NULL};
    s.files = libm;
    assert_says(shared_lib_open(&l, &s), ERR_REFUSED, "libm.so.6", "no symbol ncclGetVersion");
}

static void versions_compare_by_number(void **state) {
    (void)state;
    assert_true(shared_lib_compare("2.9", "2.10") < 0);
    assert_true(shared_lib_compare("2.18.1", "2.18") == 0);
    assert_true(shared_lib_compare("13.0", "12.9.1") > 0);
    assert_true(shared_lib_compare("10.42 2022-12-11", "10.42") == 0);
    assert_true(shared_lib_compare("12.535.104.05", "12.525") > 0);
    assert_ok(cuda_libs_check_driver("13.0", "12.4"));
    assert_ok(cuda_libs_check_driver("12.2", "12.9"));
    assert_ok(cuda_libs_check_driver("", "13.0"));
    assert_says(cuda_libs_check_driver("12.4", "13.0"), ERR_REFUSED, "CUDA 12.4", "13.0", "driver");
}

/* NVML is looked for by name, so the stub is loaded by its path first: the first copy serves all. */
static void *preload(const char *name) {
    char path[PATH_MAX];
    void *h = dlopen(stubs_path(name, path), RTLD_NOW);
    if (!h) fail_msg("%s", dlerror());
    return h;
}

static void gpus_and_who_holds_them(void **state) {
    (void)state;
    char pid[32];
    nvml_report *r = calloc(1, sizeof *r);
    assert_non_null(r);
    void *h = preload("nvml_two");
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("STUB_PID", pid, 1);
    assert_ok(nvml_read(r));
    assert_string_equal(r->version, "13.580.65.06");
    assert_string_equal(r->driver, "580.65.06");
    assert_string_equal(r->cuda, "13.0");
    assert_int_equal(r->n_devices, 2);
    const nvml_device *d = &r->devices[0];
    assert_string_equal(d->name, "NVIDIA H200 of a stub");
    assert_int_equal(d->major, 9);
    assert_int_equal(d->total >> 30, 80);
    assert_int_equal(d->n_holders, 2); /* both lists name 4242 */
    assert_int_equal(d->holders[0].pid, 4242);
    assert_int_equal(d->holders[0].bytes >> 30, 3);
    assert_string_equal(d->holders[0].name, "stub_trainer");
    assert_int_equal(d->holders[1].pid, getpid());
    assert_int_equal(d->holders[1].bytes >> 20, 512);
    assert_int_equal(d->hidden >> 20, 2048);
    assert_int_equal(r->devices[1].n_holders, 0);
    assert_int_equal(r->devices[1].hidden, 0); /* 3 MiB are the driver's own */
    assert_true(r->knows_peers && d->peers == 2 && r->devices[1].peers == 0);
    unsetenv("STUB_PID");
    free(r);
    dlclose(h);
}

static library_record_list record(const char *path, const char *version, const char *build) {
    library_record_list l = {0};
    assert_ok(library_record_add(&l, "CBLAS", "/usr/lib/libblis.so.4", "BLIS 0.9.0", "aa"));
    assert_ok(library_record_add(&l, "NCCL", path, version, build));
    return l;
}

static void b59_ranks_must_agree(void **state) {
    (void)state;
    library_record_list ranks[4];
    for (int i = 0; i < 4; i++) ranks[i] = record("/a/libnccl.so.2", "2.28.0", "11");
    ranks[2] = record("/another/place/libnccl.so.2", "2.28.0", "11");
    assert_ok(library_record_agree(ranks, 4));
    assert_ok(library_record_agree(ranks, 1));
    ranks[3] = record("/old/libnccl.so.2", "2.16.0", "22");
    assert_says(library_record_agree(ranks, 4), ERR_REFUSED,
                "rank 3 has NCCL 2.16.0 at /old/libnccl.so.2",
                "rank 0 has NCCL 2.28.0 at /a/libnccl.so.2");
    ranks[3] = record("/old/libnccl.so.2", "2.28.0", "22");
    assert_says(library_record_agree(ranks, 4), ERR_REFUSED, "rank 3", "/old/libnccl.so.2",
                "another build");
    ranks[3] = record("/old/libnccl.so.2", "2.28.0", "");
    assert_ok(library_record_agree(ranks, 4));
    ranks[1].n = 1;
    assert_says(library_record_agree(ranks, 4), ERR_REFUSED, "rank 1 has no NCCL",
                "/a/libnccl.so.2");
    ranks[0].n = 1;
    assert_says(library_record_agree(ranks, 4), ERR_REFUSED, "rank 0 has no NCCL",
                "rank 2 has NCCL 2.28.0");
    for (int i = 0; i < LIBRARY_RECORD_MAX - 1; i++)
        assert_ok(library_record_add(&ranks[0], "more", "/p", "1", ""));
    assert_says(library_record_add(&ranks[0], "last", "/p", "1", ""), ERR_RANGE, "last");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_version_and_symbols),
        cmocka_unit_test(b59_too_old_is_refused_with_both_numbers),
        cmocka_unit_test(absent_and_broken_libraries),
        cmocka_unit_test(versions_compare_by_number),
        cmocka_unit_test(gpus_and_who_holds_them),
        cmocka_unit_test(b59_ranks_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
