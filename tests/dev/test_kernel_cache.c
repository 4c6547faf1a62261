/* The kernel cache with a stand-in for NVRTC: keys, hits and misses, folders that cannot be used, damage, bounds.
 *
 * Races of threads and processes are in test_kernel_race.c. No GPU and no CUDA is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/kernel_list.h"
#include "dev/kernel_standin.h"
#include "support/says.h"
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static files_dir dir;
static standin compiler;
static standin_lines lines;
static char folder[600];

static int set_up(void **state) {
    (void)state;
    dir = files_begin();
    standin_begin(&compiler, &dir);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    lines.text[0] = 0;
    log_set_sink(standin_keep, &lines);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    log_set_sink(NULL, NULL);
    files_end(&dir);
    return 0;
}

static kernel_cache *open_cache(void) {
    kernel_cache *c = NULL;
    assert_ok(
        kernel_cache_open(&c, &(kernel_cache_config){.folder = folder, .compiler = &compiler.c}));
    return c;
}

static kernel_origin origin_of(kernel_cache *c, const kernel_spec *spec, const char *arch) {
    const kernel_image *image = NULL;
    assert_ok(kernel_cache_get(c, spec, arch, &image));
    return image->origin;
}

/* ---- keys ---- */

static const kernel_text header_a = {"a.cuh", "int a;"}, header_b = {"b.cuh", "int b;"},
                         changed_a = {"a.cuh", "int A;"}, renamed_a = {"c.cuh", "int a;"};
static const kernel_text *const headers[] = {&header_a, &header_b};
static const kernel_text *const swapped[] = {&header_b, &header_a};
static const kernel_text *const changed[] = {&changed_a, &header_b};
static const kernel_text *const renamed[] = {&renamed_a, &header_b};
static const kernel_text hook = {"mask.cuh", "q >= kv"}, other_hook = {"mask.cuh", "q > kv"},
                         renamed_hook = {"score.cuh", "q >= kv"};
static const kernel_text source = {"k.cu", "text"}, other_source = {"k.cu", "texT"},
                         renamed_source = {"l.cu", "text"};
static const char *const options[] = {"-DD=64", "--fmad=false"};
static const char *const other_options[] = {"-DD=128", "--fmad=false"};
static const char *const joined[] = {"-DD=64\noption 12 --fmad=false"};

static kernel_spec whole(void) {
    return (kernel_spec){"a kernel", &source, headers, 2, &hook, 1, options, 2};
}

/* Every part of the recipe changed, one at a time. */
static int variations(kernel_spec *out) {
    int n = 0;
    for (int i = 0; i < 12; i++) out[i] = whole();
    out[n++].source = &other_source;
    out[n++].source = &renamed_source;
    out[n++].headers = swapped;
    out[n++].headers = changed;
    out[n++].headers = renamed;
    out[n++].n_headers = 1;
    out[n++].hooks = &other_hook;
    out[n++].hooks = &renamed_hook;
    out[n++].n_hooks = 0;
    out[n++].options = other_options;
    out[n++].n_options = 1;
    out[n].options = joined, out[n++].n_options = 1;
    return n;
}

static void each_part_of_the_key(void **state) {
    (void)state;
    kernel_spec spec = whole(), changes[12];
    kernel_cache *c = open_cache();
    assert_int_equal(origin_of(c, &spec, "sm_90a"), KERNEL_COMPILED);
    kernel_cache_close(c);
    int n = variations(changes);
    for (int i = 0; i < n; i++) { /* a new handle each time: the folder answers, not memory */
        c = open_cache();
        if (origin_of(c, &changes[i], "sm_90a") != KERNEL_COMPILED) fail_msg("change %d hits", i);
        kernel_cache_close(c);
    }
    c = open_cache();
    assert_int_equal(origin_of(c, &spec, "sm_90"), KERNEL_COMPILED);
    kernel_cache_close(c);
    snprintf(compiler.c.identity, sizeof compiler.c.identity, "stand-in 2");
    c = open_cache();
    assert_int_equal(origin_of(c, &spec, "sm_90a"), KERNEL_COMPILED);
    kernel_cache_close(c);
    snprintf(compiler.c.identity, sizeof compiler.c.identity, "stand-in 1");
    int before = atomic_load(&compiler.compiles);
    spec.name = "the same by another name";
    c = open_cache();
    assert_int_equal(origin_of(c, &spec, "sm_90a"), KERNEL_ADOPTED);
    for (int i = 0; i < n; i++)
        assert_int_equal(origin_of(c, &changes[i], "sm_90a"), KERNEL_ADOPTED);
    kernel_cache_close(c);
    assert_int_equal(atomic_load(&compiler.compiles), before);
    assert_int_equal(before, n + 3);
}

static void no_compile_after_warm(void **state) {
    (void)state;
    standin_kernel a, b;
    kernel_cache *c = open_cache();
    const kernel_image *image;
    standin_spec(&a, 0);
    standin_spec(&b, 1);
    assert_ok(kernel_cache_get(c, &a.spec, "sm_80", &image));
    kernel_cache_close(c);
    setenv("PACELINE_NO_COMPILE", "1", 1);
    c = open_cache();
    assert_ok(kernel_cache_get(c, &a.spec, "sm_80", &image));
    assert_int_equal(image->size, strlen("source of kernel 0 for sm_80"));
    assert_memory_equal(image->data, "source of kernel 0 for sm_80", image->size);
    assert_string_equal(image->usage, "f registers 8 stack 0 spilled 0 shared 0\n");
    assert_says(kernel_cache_get(c, &b.spec, "sm_80", &image), ERR_REFUSED, "'kernel 1'", "sm_80",
                folder, "PACELINE_NO_COMPILE", "paceline warmup");
    assert_null(image);
    kernel_cache_close(c);
    setenv("PACELINE_NO_COMPILE", "yes", 1);
    kernel_cache_config cfg = {.folder = folder, .compiler = &compiler.c};
    assert_says(kernel_cache_open(&c, &cfg), ERR_USAGE, "PACELINE_NO_COMPILE", "'yes'");
    unsetenv("PACELINE_NO_COMPILE");
    assert_int_equal(atomic_load(&compiler.compiles), 1);
}

static void failures_are_told_and_tried_again(void **state) {
    (void)state;
    standin_kernel k;
    kernel_cache *c = open_cache();
    const kernel_image *image;
    standin_spec(&k, 0);
    atomic_store(&compiler.failures, 1);
    assert_says(kernel_cache_get(c, &k.spec, "sm_80", &image), ERR_REFUSED, "'kernel 0'",
                "stand-in");
    assert_ok(kernel_cache_get(c, &k.spec, "sm_80", &image));
    assert_says(kernel_cache_get(c, &k.spec, "sm_75", &image), ERR_REFUSED, "sm_75", "sm_80");
    assert_says(kernel_cache_get(c, &k.spec, "hopper", &image), ERR_USAGE, "'hopper'", "sm_90a");
    assert_says(kernel_cache_get(c, &k.spec, "sm_90x", &image), ERR_USAGE, "sm_90x");
    assert_says(kernel_cache_get(c, &k.spec, "sm_80a", &image), ERR_USAGE, "sm_80a", "sm_90a");
    assert_says(kernel_cache_get(c, &k.spec, "sm_90f", &image), ERR_USAGE, "sm_90f", "sm_100f");
    assert_ok(kernel_cache_get(c, &k.spec, "sm_120f", &image));
    kernel_cache_close(c);
}

/* ---- damage ---- */

static long entry_size(const char *key, char path[PATH_MAX]) {
    struct stat st;
    snprintf(path, PATH_MAX, "%s/%s.kernel", folder, key);
    return stat(path, &st) ? -1 : (long)st.st_size;
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 0x40, f);
    assert_int_equal(fclose(f), 0);
}

static void b16_any_flipped_byte_is_found(void **state) {
    (void)state;
    standin_kernel k;
    char path[PATH_MAX], key[KERNEL_KEY];
    kernel_cache *c = open_cache();
    const kernel_image *image;
    kernel_entry entry;
    standin_spec(&k, 0);
    assert_ok(kernel_cache_get(c, &k.spec, "sm_80", &image));
    memcpy(key, image->key, sizeof key);
    kernel_cache_close(c);
    long size = entry_size(key, path);
    assert_true(size > 72);
    for (long at = 0; at < size; at++) {
        flip(path, at);
        assert_says(kernel_entry_read(&entry, path, NULL, 0), ERR_FORMAT, path, "damaged");
        flip(path, at);
    }
    for (long cut = 0; cut < size; cut += 7) {
        char *bytes;
        size_t n;
        assert_ok(file_read(path, &bytes, &n));
        files_write(&dir, "cut", bytes, (size_t)cut);
        assert_says(kernel_entry_read(&entry, files_at(&dir, "cut"), NULL, 0), ERR_FORMAT,
                    "damaged");
        mem_free(bytes);
    }
    flip(path, size - 3);
    c = open_cache();
    assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_REBUILT);
    assert_non_null(strstr(lines.text, "is damaged"));
    assert_non_null(strstr(lines.text, "'kernel 0' is compiled anew"));
    kernel_cache_close(c);
    c = open_cache();
    assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_ADOPTED);
    kernel_cache_close(c);
}

/* What else can stand under an entry's name, by number; 0 when there is no more. */
static int put_no_entry(const char *path, int which) {
    int fd;
    switch (which) {
    case 0: return symlink("/dev/zero", path) == 0;
    case 1: return symlink("nowhere", path) == 0;
    case 2: return mkdir(path, 0700) == 0;
    case 3: return mkfifo(path, 0600) == 0; /* opening it must not wait for a writer */
    case 4:                                 /* more than there is memory */
    case 5:
        fd = open(path, O_WRONLY | O_CREAT, 0600);
        files_must(fd >= 0 && !ftruncate(fd, which == 4 ? (off_t)1 << 42 : 0), path);
        return close(fd) == 0;
    default: return 0;
    }
}

static void what_is_no_entry_is_replaced(void **state) {
    (void)state;
    standin_kernel k;
    kernel_folder f;
    kernel_folder_item *items;
    char path[PATH_MAX], key[KERNEL_KEY];
    const kernel_image *image;
    uint64_t bytes;
    int n;
    kernel_cache *c = open_cache();
    assert_ok(kernel_cache_get(c, standin_spec(&k, 0), "sm_80", &image));
    memcpy(key, image->key, sizeof key);
    kernel_cache_close(c);
    entry_size(key, path);
    assert_ok(kernel_folder_open(&f, folder, 0));
    for (int which = 0;; which++) {
        assert_int_equal(unlink(path), 0);
        if (!put_no_entry(path, which)) break;
        lines.text[0] = 0;
        c = open_cache();
        assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_REBUILT);
        if (!strstr(lines.text, "is damaged")) fail_msg("case %d: %s", which, lines.text);
        assert_int_equal(kernel_cache_keeps(c), 1);
        kernel_cache_close(c);
        c = open_cache();
        assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_ADOPTED);
        kernel_cache_close(c);
        assert_int_equal(unlink(path), 0);
        assert_true(put_no_entry(path, which));
        assert_ok(kernel_folder_clear(&f, &n, &bytes));
        assert_ok(kernel_folder_list(&f, &items, &n));
        mem_free(items);
        assert_int_equal(n, 0);
        c = open_cache();
        assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_COMPILED);
        kernel_cache_close(c);
    }
}

/* For a child: root may read and write anything; the same user without that may not, and still finds his way to the folder. */
static int give_up_root(void) {
    struct __user_cap_header_struct who = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return (int)syscall(SYS_capset, &who, none);
}

static int unreadable_child(void) {
    standin_kernel k;
    const kernel_image *image;
    kernel_cache *c;
    if (give_up_root()) return 1;
    kernel_cache_config cfg = {.folder = folder, .compiler = &compiler.c};
    if (kernel_cache_open(&c, &cfg)) return 2;
    if (kernel_cache_get(c, standin_spec(&k, 0), "sm_80", &image)) return 3;
    if (image->origin != KERNEL_REBUILT || !kernel_cache_keeps(c)) return 4;
    kernel_cache_close(c);
    if (kernel_cache_open(&c, &cfg)) return 5;
    if (kernel_cache_get(c, &k.spec, "sm_80", &image)) return 6;
    if (image->origin != KERNEL_ADOPTED) return 7;
    kernel_cache_close(c);
    return strstr(lines.text, "may not be read") ? 0 : 8;
}

static void what_may_not_be_read_is_replaced(void **state) {
    (void)state;
    standin_kernel k;
    char path[PATH_MAX];
    const kernel_image *image;
    kernel_cache *c = open_cache();
    int status;
    assert_ok(kernel_cache_get(c, standin_spec(&k, 0), "sm_80", &image));
    entry_size(image->key, path);
    kernel_cache_close(c);
    assert_int_equal(chmod(path, 0), 0);
    pid_t pid = fork();
    if (!pid) _exit(unreadable_child());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What nobody can remove is named, and the rest is removed. */
static void clearing_goes_past_what_stays(void **state) {
    (void)state;
    standin_kernel k;
    kernel_folder f;
    char path[PATH_MAX];
    uint64_t bytes;
    int n;
    kernel_cache *c = open_cache();
    for (int i = 0; i < 4; i++)
        assert_int_equal(origin_of(c, standin_spec(&k, i), "sm_80"), KERNEL_COMPILED);
    kernel_cache_close(c);
    assert_ok(kernel_folder_open(&f, folder, 0));
    assert_ok(kernel_folder_path(&f, "00000000000000000000000000000000", path));
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/x");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_says(kernel_folder_clear(&f, &n, &bytes), ERR_IO, "00000000.kernel", "(4) are removed");
    assert_int_equal(n, 4);
}

/* An entry under a key that is not its own: as if two recipes had one key. */
static void an_entry_of_another_recipe_is_not_taken(void **state) {
    (void)state;
    standin_kernel a, b;
    char from[PATH_MAX], to[PATH_MAX];
    kernel_cache *c = open_cache();
    const kernel_image *one, *two;
    standin_spec(&a, 0);
    standin_spec(&b, 1);
    assert_ok(kernel_cache_get(c, &a.spec, "sm_80", &one));
    assert_ok(kernel_cache_get(c, &b.spec, "sm_80", &two));
    entry_size(one->key, from);
    entry_size(two->key, to);
    assert_int_equal(rename(from, to), 0);
    kernel_cache_close(c);
    c = open_cache();
    assert_int_equal(origin_of(c, &b.spec, "sm_80"), KERNEL_REBUILT);
    assert_non_null(strstr(lines.text, "another recipe"));
    kernel_cache_close(c);
}

/* ---- folders ---- */

/* The cache works without its folder, after one sentence with these words. */
static void works_in_memory(const char *word, const char *other) {
    standin_kernel k;
    kernel_cache *c = open_cache();
    standin_spec(&k, 0);
    assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_COMPILED);
    standin_spec(&k, 1);
    assert_int_equal(origin_of(c, &k.spec, "sm_80"), KERNEL_COMPILED);
    kernel_cache_close(c);
    if (!strstr(lines.text, word) || !strstr(lines.text, other))
        fail_msg("'%s' or '%s' is not in: %s", word, other, lines.text);
    const char *first = strchr(lines.text, '\n');
    assert_non_null(first);
    assert_int_equal(first[1], 0); /* one sentence */
    lines.text[0] = 0;
}

static void folders_that_cannot_be_used(void **state) {
    (void)state;
    files_text(&dir, "cache", "a file");
    works_in_memory("is not a folder", "PACELINE_CACHE");
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    works_in_memory("others may write", "chmod 700");
    assert_int_equal(chmod(folder, 0720), 0); /* a group's members are others too */
    works_in_memory("others may write", "chmod 700");
    assert_int_equal(chmod(folder, 0702), 0);
    works_in_memory("others may write", "chmod 700");
    assert_int_equal(chmod(folder, 0700), 0);
    if (geteuid() == 0) { /* only root can give a folder away */
        assert_int_equal(chown(folder, 12345, (gid_t)-1), 0);
        works_in_memory("belongs to user 12345", "PACELINE_CACHE");
        assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
    }
    snprintf(folder, sizeof folder, "%s", files_text(&dir, "plain", "a file"));
    strcat(folder, "/below");
    works_in_memory("is needed as a folder and is a file", "into memory");
}

static int read_only_child(void) {
    standin_kernel k;
    const kernel_image *image;
    kernel_cache *c;
    if (give_up_root()) return 1;
    kernel_cache_config cfg = {.folder = folder, .compiler = &compiler.c};
    if (kernel_cache_open(&c, &cfg)) return 2;
    if (kernel_cache_get(c, standin_spec(&k, 0), "sm_80", &image)) return 3;
    if (image->origin != KERNEL_ADOPTED) return 4;
    if (kernel_cache_get(c, standin_spec(&k, 1), "sm_80", &image)) return 5;
    if (image->origin != KERNEL_COMPILED) return 6;
    kernel_cache_close(c);
    if (!strstr(lines.text, "is read-only")) return 7;
    return strchr(lines.text, '\n')[1] ? 8 : 0;
}

static void read_only_folders_are_read(void **state) {
    (void)state;
    standin_kernel k;
    kernel_cache *c = open_cache();
    int status;
    assert_int_equal(origin_of(c, standin_spec(&k, 0), "sm_80"), KERNEL_COMPILED);
    kernel_cache_close(c);
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t pid = fork();
    if (!pid) _exit(read_only_child());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_full_disk_is_told_once(void **state) {
    (void)state;
    standin_kernel k;
    struct rlimit before, small;
    kernel_cache *c = open_cache();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100; /* a lock's line and the stand-in's lines fit, an entry does not */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(origin_of(c, standin_spec(&k, i), "sm_80"), KERNEL_COMPILED);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    kernel_cache_close(c);
    const char *told = strstr(lines.text, "cannot be written");
    assert_non_null(told);
    assert_null(strstr(strchr(told, '\n'), "cannot be written"));
    kernel_folder f;
    kernel_folder_item *items;
    int n;
    assert_ok(kernel_folder_open(&f, folder, 0));
    assert_ok(kernel_folder_list(&f, &items, &n));
    mem_free(items);
    assert_int_equal(n, 0);
}

static void a_new_folder_is_the_users_own(void **state) {
    (void)state;
    struct stat st;
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "x/y/kernels/"));
    kernel_cache_close(open_cache());
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    setenv("XDG_CACHE_HOME", dir.path, 1);
    kernel_folder f;
    assert_ok(kernel_folder_open(&f, NULL, 0));
    assert_string_equal(f.path, files_at(&dir, "paceline/kernels"));
    setenv("PACELINE_CACHE", folder, 1);
    assert_ok(kernel_folder_open(&f, NULL, 0));
    assert_string_equal(f.path, folder);
    assert_true(f.readable && f.writable && !f.note[0]);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("PACELINE_CACHE");
}

static void least_recently_used_go_first(void **state) {
    (void)state;
    standin_kernel k;
    kernel_cache *c = open_cache();
    char keys[4][KERNEL_KEY], path[PATH_MAX];
    long size = 0;
    for (int i = 0; i < 4; i++) {
        const kernel_image *image;
        assert_ok(kernel_cache_get(c, standin_spec(&k, i), "sm_80", &image));
        memcpy(keys[i], image->key, KERNEL_KEY);
        size = entry_size(keys[i], path);
        /* Used an hour ago, the last made longest ago. */
        struct timespec t[2] = {{1700000000 - i, 0}, {1700000000 - i, 0}};
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
    }
    kernel_cache_close(c);
    c = open_cache();
    assert_int_equal(origin_of(c, standin_spec(&k, 3), "sm_80"), KERNEL_ADOPTED); /* used now */
    kernel_cache_close(c);
    kernel_cache_config cfg = {
        .folder = folder, .compiler = &compiler.c, .max_bytes = (uint64_t)(3 * size + size / 2)};
    assert_ok(kernel_cache_open(&c, &cfg));
    assert_int_equal(origin_of(c, standin_spec(&k, 4), "sm_80"), KERNEL_COMPILED);
    kernel_cache_close(c);
    assert_true(entry_size(keys[0], path) > 0);
    assert_true(entry_size(keys[1], path) < 0);
    assert_true(entry_size(keys[2], path) < 0);
    assert_true(entry_size(keys[3], path) > 0);
}

static void lists_count_equal_kernels_once(void **state) {
    (void)state;
    kernel_list l;
    standin_kernel k;
    char first[KERNEL_KEY], second[KERNEL_KEY];
    assert_ok(kernel_list_create(&l));
    for (int i = 0; i < 12; i++) assert_ok(kernel_list_add(&l, standin_spec(&k, i % 4)));
    kernel_cache *c = open_cache();
    assert_ok(kernel_list_compile(&l, c, "sm_80", 5));
    assert_ok(kernel_list_digest(&l, first));
    kernel_cache_stats s;
    kernel_cache_get_stats(c, &s);
    assert_int_equal(s.entries, 4);
    assert_int_equal(s.compiled, 4);
    kernel_cache_close(c);
    c = open_cache();
    assert_ok(kernel_list_compile(&l, c, "sm_80", 1));
    assert_ok(kernel_list_digest(&l, second));
    assert_string_equal(first, second);
    kernel_cache_close(c);
    kernel_list_destroy(&l);
    assert_int_equal(atomic_load(&compiler.compiles), 4);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(each_part_of_the_key),
        TEST(no_compile_after_warm),
        TEST(failures_are_told_and_tried_again),
        TEST(b16_any_flipped_byte_is_found),
        TEST(what_is_no_entry_is_replaced),
        TEST(what_may_not_be_read_is_replaced),
        TEST(clearing_goes_past_what_stays),
        TEST(an_entry_of_another_recipe_is_not_taken),
        TEST(folders_that_cannot_be_used),
        TEST(read_only_folders_are_read),
        TEST(a_full_disk_is_told_once),
        TEST(a_new_folder_is_the_users_own),
        TEST(least_recently_used_go_first),
        TEST(lists_count_equal_kernels_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
