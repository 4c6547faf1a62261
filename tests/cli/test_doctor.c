/* paceline doctor --python on environments made here: broken packages of every kind, two generations on
 * one path, and another copy of a library found first.
 *
 * Libraries that open are the stubs of tests/interpose/nccl_stub.c, found beside this program; everything
 * else is a few bytes. Needs no Python, no GPU and no installed package. */
#include "cli/elf_probe.h"
#include "io/json.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#define SITE "lib/python3.11/site-packages/"
#define NCCL "nvidia/nccl/lib/libnccl.so.2"

static files_dir dir;
static run_result r;
static char stubs[600];

static int begin(void **state) {
    (void)state;
    dir = files_begin();
    files_must(!file_make_dirs(files_at(&dir, SITE)), "folder");
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

static void make_folder_of(const char *name) {
    char path[700];
    snprintf(path, sizeof path, "%s", files_at(&dir, name));
    *strrchr(path, '/') = 0;
    files_must(!file_make_dirs(path), path);
}

static void put(const char *name, const void *bytes, size_t n) {
    make_folder_of(name);
    files_write(&dir, name, bytes, n);
}

/* Copies stub version v to name; returns its size. */
static size_t put_stub(const char *name, int v) {
    char path[700], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/nccl_%d.so", stubs, v);
    files_must(!file_read(path, &data, &n), path);
    put(name, data, n);
    free(data);
    return n;
}

/* Records package name ("nvidia_nccl_cu13") as installed with the lines of RECORD. */
static void record(const char *name, const char *version, const char *lines) {
    char path[300], text[1024], dashed[128];
    snprintf(dashed, sizeof dashed, "%s", name);
    for (char *c = dashed; *c; c++)
        if (*c == '_') *c = '-';
    snprintf(path, sizeof path, SITE "%s-%s.dist-info/METADATA", name, version);
    snprintf(text, sizeof text, "Metadata-Version: 2.1\nName: %s\nVersion: %s\n\nName: text\n",
             dashed, version);
    put(path, text, strlen(text));
    snprintf(path, sizeof path, SITE "%s-%s.dist-info/RECORD", name, version);
    snprintf(text, sizeof text, "%s%s-%s.dist-info/RECORD,,\n", lines, name, version);
    put(path, text, strlen(text));
}

static void record_nccl(const char *version, size_t size) {
    char line[200];
    snprintf(line, sizeof line, NCCL ",sha256=abc,%zu\n", size);
    record("nvidia_nccl_cu13", version, line);
}

static void doctor(const char *const *env) {
    run_program(&r, env, (const char *const[]){"doctor", "--json", "--python", dir.path, NULL});
}

/* Some finding of item holds text; its fix holds fix, or there is no fix when that is NULL. */
static int found(const char *item, const char *text, const char *fix) {
    json_error_t e;
    json_t *root = json_loads(r.text, 0, &e), *f;
    size_t i;
    int n = 0;
    if (r.code || !root) fail_msg("exit %d, %s:\n%s", r.code, root ? "" : e.text, r.text);
    json_array_foreach(json_object_get(root, "findings"), i, f) {
        const char *advice = json_string_value(json_object_get(f, "fix"));
        n += !strcmp(json_string_value(json_object_get(f, "item")), item) &&
             strstr(json_string_value(json_object_get(f, "finding")), text) &&
             (fix ? advice && strstr(advice, fix) : !advice);
    }
    json_decref(root);
    return n;
}

static void expect(const char *item, const char *text, const char *fix) {
    if (found(item, text, fix) != 1) fail_msg("'%s' is not there once:\n%s", text, r.text);
}

/* The package is named as broken, with the reinstall that mends it. */
static void expect_broken(const char *text) {
    expect("nvidia-nccl-cu13", text, "pip install --force-reinstall nvidia-nccl-cu13==2.28.0");
    assert_int_equal(found("nvidia-nccl-cu13", "as recorded", NULL), 0);
}

static void whole_package_is_opened(void **state) {
    (void)state;
    record_nccl("2.28.0", put_stub(SITE NCCL, 22800));
    doctor(NULL);
    expect("libnccl.so.2", "2.28.0 /", NULL);
    expect("libnccl.so.2", SITE NCCL, NULL);
    expect("nvidia-nccl-cu13", "1 libraries, 0 other files as recorded", NULL);
    /* The folder of packages itself may be given, too. */
    run_program(&r, NULL,
                (const char *const[]){"doctor", "--json", "--python", files_at(&dir, SITE), NULL});
    expect("libnccl.so.2", "2.28.0 /", NULL);
}

static void b58_recorded_library_is_gone(void **state) {
    (void)state;
    record_nccl("2.28.0", 1000);
    doctor(NULL);
    expect_broken("recorded as installed, but 1 of its 1 libraries is missing");
    expect_broken(SITE NCCL);
}

static void b58_library_is_empty(void **state) {
    (void)state;
    put(SITE NCCL, "", 0);
    record_nccl("2.28.0", 0);
    doctor(NULL);
    expect_broken("is empty (zero bytes)");
}

static void b58_library_is_a_dangling_link(void **state) {
    (void)state;
    make_folder_of(SITE NCCL);
    assert_int_equal(symlink("libnccl.so.2.28.0", files_at(&dir, SITE NCCL)), 0);
    record_nccl("2.28.0", 1000);
    doctor(NULL);
    expect_broken("is a link to a file that does not exist");
}

static void b58_right_name_wrong_version(void **state) {
    (void)state;
    record_nccl("2.28.0", put_stub(SITE NCCL, 21600));
    doctor(NULL);
    expect_broken("answers as version 2.16.0");
    /* The wrong name inside is seen without opening. */
    char line[200];
    snprintf(line, sizeof line, "nvidia/nccl/lib/libnccl.so.3,,%zu\n",
             put_stub(SITE "nvidia/nccl/lib/libnccl.so.3", 22800));
    record("nvidia_nccl_cu13", "2.28.0", line);
    doctor(NULL);
    expect_broken("is libnccl.so.2 inside");
}

static void b58_record_without_libraries(void **state) {
    (void)state;
    record("nvidia_nccl_cu13", "2.28.0", "nvidia/nccl/include/nccl.h,sha256=abc,3\n");
    put(SITE "nvidia/nccl/include/nccl.h", "//\n", 3);
    record("nvidia_ml_py", "13.0", ""); /* has none by nature */
    doctor(NULL);
    expect_broken("has no library at all");
    expect("nvidia-ml-py", "as recorded", NULL);
}

static void b58_wrong_size_and_no_elf(void **state) {
    (void)state;
    size_t n = put_stub(SITE NCCL, 22800);
    record_nccl("2.28.0", n + 1);
    doctor(NULL);
    expect_broken("its record says");
    put(SITE NCCL, "version https://git-lfs\n", 24);
    record_nccl("2.28.0", 24);
    doctor(NULL);
    expect_broken("is no ELF file");
    /* Cut in the middle, with a record that agrees: loading it would end the process. */
    put_stub(SITE NCCL, 22800);
    assert_int_equal(truncate(files_at(&dir, SITE NCCL), (off_t)n / 4), 0);
    record_nccl("2.28.0", n / 4);
    doctor(NULL);
    expect_broken("is cut short");
    put(SITE NCCL, "\177ELF\2\1\1", 7);
    record_nccl("2.28.0", 7);
    doctor(NULL);
    expect_broken("is no ELF file");
}

static void library_that_ends_its_process(void **state) {
    (void)state;
    record_nccl("2.28.0", put_stub(SITE NCCL, 0));
    doctor(NULL);
    expect_broken("opening it ends the process (signal 6)");
}

static void b58_two_generations_own_one_path(void **state) {
    (void)state;
    char lines[300];
    size_t n = put_stub(SITE NCCL, 22800);
    snprintf(lines, sizeof lines, NCCL ",sha256=abc,%zu\n\"nvidia/__init__.py\",,0\n", n);
    put(SITE "nvidia/__init__.py", "", 0);
    record("nvidia_nccl_cu12", "2.28.0", lines);
    record("nvidia_nccl_cu13", "2.28.0", lines);
    doctor(NULL);
    expect("nvidia-nccl-cu13", "nvidia-nccl-cu12 2.28.0 and nvidia-nccl-cu13 2.28.0 both own",
           "--force-reinstall nvidia-nccl-cu13==2.28.0");
    /* One of them is removed: the other's file goes with it, and its record stays. */
    assert_int_equal(unlink(files_at(&dir, SITE NCCL)), 0);
    assert_int_equal(file_remove_tree(files_at(&dir, SITE "nvidia_nccl_cu12-2.28.0.dist-info")), 0);
    doctor(NULL);
    assert_int_equal(found("nvidia-nccl-cu13", "both own", "pip"), 0);
    expect_broken("1 libraries is missing");
}

/* A fault of an optional library is told as one of its package; nothing is asked of packages not there. */
static void b58_optional_libraries_are_optional(void **state) {
    (void)state;
    record_nccl("2.28.0", put_stub(SITE NCCL, 22800));
    char line[200];
    snprintf(line, sizeof line, "nvidia/cufile/lib/libcufile.so.0,,%zu\n",
             put_stub(SITE "nvidia/cufile/lib/libcufile.so.0", 0));
    record("nvidia_cufile", "1.15.1", line);
    doctor(NULL);
    expect("nvidia-nccl-cu13", "as recorded", NULL);
    assert_null(strstr(r.text, "cusparselt"));
    expect("nvidia-cufile", "libcufile.so.0 of nvidia-cufile 1.15.1 is libnccl.so.2 inside",
           "--force-reinstall nvidia-cufile==1.15.1");
}

static void other_files_are_counted(void **state) {
    (void)state;
    record("triton", "3.6.0",
           "\"triton/a,b.py\",sha256=x,2\ntriton/c.py,sha256=x,5\ntriton/__pycache__/c.pyc,,\n");
    put(SITE "triton/a,b.py", "1\n", 2);
    doctor(NULL);
    expect("triton", "1 of the 2 other files of triton 3.6.0", "--force-reinstall triton==3.6.0");
    expect("triton", "first triton/c.py", "triton");
}

/* What each order of search path and each preload must say; 2.28 is the package's own. */
static void b59_first_copy_wins(void **state) {
    (void)state;
    char path[1500], preload[800], own[600], old[600];
    const char *asan = "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=1";
    record_nccl("2.28.0", put_stub(SITE NCCL, 22800));
    put_stub("old/libnccl.so.2", 21600);
    snprintf(own, sizeof own, "%s", files_at(&dir, SITE "nvidia/nccl/lib"));
    snprintf(old, sizeof old, "%s", files_at(&dir, "old"));
    for (int order = 0; order < 3; order++)
        for (int pre = 0; pre < 3; pre++) { /* none, the old one, the package's own */
            snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s:%s", order == 1 ? old : own,
                     order == 1 ? own : old);
            snprintf(preload, sizeof preload, "LD_PRELOAD=%s/libnccl.so.2", pre == 1 ? old : own);
            const char *env[4] = {asan};
            int n = 1;
            if (order) env[n++] = path;
            if (pre) env[n++] = preload;
            doctor(env);
            assert_int_equal(found("LD_LIBRARY_PATH", dir.path, NULL), order > 0);
            expect("libnccl.so.2", "2.28.0 /", NULL); /* its own file answers in any case */
            assert_int_equal(
                found("nvidia-nccl-cu13", "is preloaded: it would be", "out of LD_PRELOAD"),
                pre == 1);
            assert_int_equal(found("nvidia-nccl-cu13", "is found by the search path",
                                   "old out of LD_LIBRARY_PATH"),
                             order == 1 && !pre);
            assert_int_equal(found("nvidia-nccl-cu13", "old/libnccl.so.2, version 2.16.0, not", ""),
                             pre == 1 || (order == 1 && !pre));
        }
}

/* Whatever a header says, it is judged: read inside the file, and never a name without an end. */
static void changed_headers_are_judged(void **state) {
    (void)state;
    char path[700], *data;
    size_t n, faults = 0;
    elf_probe elf;
    unsigned seed = (unsigned)numbers_seed();
    snprintf(path, sizeof path, "%s/nccl_22800.so", stubs);
    assert_int_equal(file_read(path, &data, &n), ERR_OK);
    assert_int_equal(elf_probe_read(path, &elf), ERR_OK);
    assert_string_equal(elf.soname, "libnccl.so.2");
    assert_string_equal(elf.fault, "");
    for (int i = 0; i < 400; i++) {
        char kept[1024];
        memcpy(kept, data, sizeof kept);
        for (int k = 0; k < 1 + i % 9; k++)
            data[(size_t)rand_r(&seed) % (i % 2 ? 64 : sizeof kept)] = (char)rand_r(&seed);
        put("changed.so", data, i % 3 ? n : (size_t)rand_r(&seed) % n);
        memcpy(data, kept, sizeof kept);
        memset(&elf, 'x', sizeof elf);
        assert_int_equal(elf_probe_read(files_at(&dir, "changed.so"), &elf), ERR_OK);
        assert_non_null(memchr(elf.soname, 0, sizeof elf.soname));
        assert_non_null(memchr(elf.fault, 0, sizeof elf.fault));
        faults += elf.fault[0] != 0;
    }
    assert_true(faults > 50 && faults < 400);
    free(data);
}

static void limits_are_told(void **state) {
    (void)state;
    record("nvidia_ml_py", "13.0", "");
    doctor(NULL);
    for (const char *const *item =
             (const char *const[]){"\"memory\"", "\"quota\"", "\"clock\"", "\"shared memory\"",
                                   "\"processes\"", NULL};
         *item; item++)
        assert_non_null(strstr(r.text, *item));
}

static void folders_without_packages(void **state) {
    (void)state;
    run_program(&r, NULL, (const char *const[]){"doctor", "--python", dir.path, NULL});
    assert_int_equal(r.code, 1);
    assert_non_null(strstr(r.text, "holds no installed packages"));
    run_program(&r, NULL,
                (const char *const[]){"doctor", "--python", files_at(&dir, "absent"), NULL});
    assert_int_equal(r.code, 1);
    assert_non_null(strstr(r.text, "absent"));
    put(SITE "numpy-2.0.dist-info/RECORD", "", 0);
    doctor(NULL);
    expect("python", "no nvidia-*, torch or triton package", NULL);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
int main(int argc, char **argv) {
    (void)argc;
    /* BUILD/tests/cli/test_doctor → BUILD/tests/interpose */
    snprintf(stubs, sizeof stubs, "%.500s", argv[0]);
    for (int i = 0; i < 2; i++)
        if (strrchr(stubs, '/')) *strrchr(stubs, '/') = 0;
    snprintf(stubs + strlen(stubs), 20, "/interpose");
    const struct CMUnitTest tests[] = {
        CASE(whole_package_is_opened),
        CASE(b58_recorded_library_is_gone),
        CASE(b58_library_is_empty),
        CASE(b58_library_is_a_dangling_link),
        CASE(b58_right_name_wrong_version),
        CASE(b58_record_without_libraries),
        CASE(b58_wrong_size_and_no_elf),
        CASE(library_that_ends_its_process),
        CASE(b58_two_generations_own_one_path),
        CASE(b58_optional_libraries_are_optional),
        CASE(other_files_are_counted),
        CASE(b59_first_copy_wins),
        CASE(changed_headers_are_judged),
        CASE(limits_are_told),
        CASE(folders_without_packages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
