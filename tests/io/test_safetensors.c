/* One safetensors file: what must be refused, by name (B38), what must be read, and what is written.
 *
 * Files are built here from a header text and data bytes. The last cases flip and cut bytes at random: reading
 * may refuse or succeed, and then every view must lie inside the bytes; the address sanitizer watches. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/arena.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include <sys/wait.h>
#include <unistd.h>

/* A file of the header text and n data bytes (0, 1, 2, ...); opened from an exact allocation. */
static err open_built(st_file **f, const char *header, size_t n) {
    static unsigned char *bytes; /* of the last file, for the sanitizer to find reads beyond it */
    uint64_t length = strlen(header);
    free(bytes);
    bytes = malloc(8 + (size_t)length + n);
    files_must(bytes != NULL, "memory");
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, (size_t)length);
    for (size_t i = 0; i < n; i++) bytes[8 + length + i] = (unsigned char)i;
    return safetensors_open_memory(f, "w.st", bytes, 8 + (size_t)length + n);
}

#define TWO                                                                                        \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[24,28]}}"

static void reads_views(void **state) {
    (void)state;
    st_file *f;
    assert_ok(open_built(&f, TWO "   ", 28));
    assert_int_equal(safetensors_count(f), 2);
    const tensor *b = safetensors_find(f, "b");
    assert_ptr_equal(b, safetensors_at(f, 1));
    assert_int_equal(((const unsigned char *)b->data)[0], 24);
    assert_int_equal(safetensors_at(f, 0)->dim[1], 3);
    assert_null(safetensors_find(f, "c"));
    assert_null(safetensors_at(f, 2));
    assert_null(safetensors_at(f, -1));
    assert_null(safetensors_meta(f, "x"));
    assert_string_equal(safetensors_path(f), "w.st");
    safetensors_close(f);
    assert_ok(open_built(&f, "{}", 0));
    assert_int_equal(safetensors_count(f), 0);
    assert_null(safetensors_find(f, ""));
    safetensors_close(f);
}

static void file_order_is_by_offset(void **state) {
    (void)state;
    st_file *f;
    assert_ok(open_built(&f,
                         "{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
                         "\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[3,3]},"
                         "\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
                         5));
    assert_string_equal(safetensors_at(f, 0)->name, "y");
    assert_string_equal(safetensors_at(f, 1)->name, "e");
    assert_string_equal(safetensors_at(f, 2)->name, "z");
    safetensors_close(f);
}

static void unaligned_offsets_are_read_right(void **state) {
    (void)state;
    float v[4] = {0};
    st_file *f;
    /* One byte first, then floats at odd addresses. */
    assert_ok(open_built(&f,
                         "{\"p\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                         "\"h\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[9,11]}}",
                         11));
    const tensor *x = safetensors_find(f, "x"), *h = safetensors_find(f, "h");
    uint32_t bits = 0x08070605;
    dtype_to_f32(x->type, x->data, v, 2);
    assert_memory_equal(&v[1], &bits, 4);
    assert_int_equal(h->ndim, 0);
    assert_int_equal(tensor_count(h), 1);
    bits = 0x0a090000;
    dtype_to_f32(h->type, h->data, v, 1);
    assert_memory_equal(&v[0], &bits, 4);
    safetensors_close(f);
}

static void b38_damaged_file_refused_by_name(void **state) {
    (void)state;
    st_file *f;
    assert_says(open_built(&f, TWO, 27), ERR_FORMAT, "w.st", "tensor 'b'",
                "1 bytes beyond the end");
    assert_says(open_built(&f, TWO, 10), ERR_FORMAT, "w.st", "tensor 'a'",
                "14 bytes beyond the end");
    assert_says(open_built(&f, TWO, 36), ERR_FORMAT, "w.st", "8 bytes follow the last tensor 'b'");
    assert_says(open_built(&f,
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[6,14]}}",
                           14),
                ERR_FORMAT, "w.st", "tensor 'b' overlaps tensor 'a' by 2 bytes");
    assert_says(open_built(&f,
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[9,17]}}",
                           17),
                ERR_FORMAT, "w.st", "1 bytes before tensor 'b'");
    assert_says(
        open_built(&f, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20),
        ERR_FORMAT, "w.st", "tensor 'a'", "F32 [2, 3] takes 24 bytes", "span 20");
    assert_says(open_built(&f,
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                           2),
                ERR_FORMAT, "w.st", "twice", "\"a\"");
    assert_null(f);
}

static err open_bytes(st_file **f, const void *bytes, size_t n) {
    return safetensors_open_memory(f, "w.st", bytes, n);
}

static void b38_header_longer_than_file_refused(void **state) {
    (void)state;
    st_file *f;
    static const unsigned char cut[] = {200, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const unsigned char huge[] = {0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'};
    static const unsigned char over[] = {1, 0xe1, 0xf5, 5, 0, 0, 0, 0, '{', '}'}; /* 100,000,001 */
    assert_says(open_bytes(&f, cut, sizeof cut), ERR_FORMAT, "w.st", "200 bytes", "after 2");
    assert_says(open_bytes(&f, huge, sizeof huge), ERR_FORMAT, "w.st", "limit");
    assert_says(open_bytes(&f, over, sizeof over), ERR_FORMAT, "w.st", "100000001",
                "limit of 100000000");
    assert_says(open_bytes(&f, cut, 7), ERR_FORMAT, "w.st", "7 bytes");
    assert_says(open_bytes(&f, cut, 0), ERR_FORMAT, "w.st", "0 bytes");
    assert_says(open_built(&f, " {}", 0), ERR_FORMAT, "does not begin with '{'");
    assert_says(open_built(&f, "[]", 0), ERR_FORMAT, "does not begin with '{'");
    assert_says(open_built(&f, "{", 0), ERR_FORMAT, "w.st");
}

/* A header with one tensor entry, its text given. */
static err open_entry(st_file **f, const char *entry, size_t n) {
    char header[1024];
    snprintf(header, sizeof header, "{\"a\":%s}", entry);
    return open_built(f, header, n);
}

static void bad_entries(void **state) {
    (void)state;
    st_file *f;
    static const struct {
        const char *entry, *says;
    } cases[] = {
        {"{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}", "dtype 'F8_E4M3'"},
        {"{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}", "'dtype'"},
        {"{\"shape\":[1],\"data_offsets\":[0,1]}", "'dtype'"},
        {"{\"dtype\":\"U8\",\"data_offsets\":[0,1]}", "'shape'"},
        {"{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}", "'shape'"},
        {"{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}", "'shape'"},
        {"{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}", "9 dimensions"},
        {"{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}", "63 bits"},
        {"{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}", "63 bits"},
        {"{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}",
         "63 bits"},
        {"{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}",
         "63 bits"},
        {"{\"dtype\":\"U8\",\"shape\":[1]}", "'data_offsets'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}", "'data_offsets'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}", "'data_offsets'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}", "'data_offsets'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}", "'data_offsets'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}", "'strides'"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9223372036854775806,9223372036854775807]}",
         "before tensor"},
        {"[]", "object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_says(open_entry(&f, cases[i].entry, 1), ERR_FORMAT, "w.st", "tensor 'a'",
                    cases[i].says);
    assert_says(
        open_entry(&f, "{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}",
                   1),
        ERR_FORMAT, "w.st", "big integer");
    assert_says(
        open_built(&f, "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                   1),
        ERR_FORMAT, "w.st", "NUL");
    assert_says(open_built(&f, "{\"__metadata__\":{\"k\":3}}", 0), ERR_FORMAT, "w.st",
                "'k' must be text");
    assert_says(open_built(&f, "{\"__metadata__\":[]}", 0), ERR_FORMAT, "w.st", "__metadata__");
    char *deep = calloc(1, 200002);
    files_must(deep != NULL, "memory");
    memset(deep, '{', 1);
    memcpy(deep + 1, "\"a\":", 4);
    memset(deep + 5, '[', 199990);
    assert_says(open_built(&f, deep, 0), ERR_FORMAT, "w.st", "nested too deeply");
    free(deep);
}

static void writes_what_it_reads(void **state) {
    (void)state;
    files_dir d = files_begin();
    float a[6] = {1, -2, 3, 4, 5, 6.5f};
    bf16 b[3] = {0x3f80, 0x7fc0, 0x8000};
    int64_t c = -9;
    const tensor t[] = {{"layer.a", DT_F32, 2, {2, 3}, a},
                        {"b \"quoted\" \xc3\xa9", DT_BF16, 1, {3}, b},
                        {"none", DT_F32, 2, {0, 5}, NULL},
                        {"c", DT_I64, 0, {0}, &c}};
    const char *const meta[][2] = {{"format", "pt"}, {"note", "line\nbreak"}};
    assert_ok(safetensors_write(files_at(&d, "o.safetensors"), t, 4, meta, 2));
    st_file *f;
    assert_ok(safetensors_open(&f, d.name));
    assert_string_equal(safetensors_meta(f, "format"), "pt");
    assert_string_equal(safetensors_meta(f, "note"), "line\nbreak");
    assert_int_equal(safetensors_count(f), 4);
    for (int i = 0; i < 4; i++) {
        const tensor *x = safetensors_at(f, i);
        assert_string_equal(x->name, t[i].name);
        assert_int_equal(x->type, t[i].type);
        assert_ok(tensor_expect(x, t[i].ndim, t[i].dim));
        if (tensor_bytes(x)) assert_memory_equal(x->data, t[i].data, tensor_bytes(x));
    }
    safetensors_close(f);
    char *bytes = NULL;
    size_t n = 0;
    uint64_t header = 0;
    assert_ok(file_read(d.name, &bytes, &n));
    memcpy(&header, bytes, 8);
    assert_int_equal((header + 8) % 64, 0);
    assert_memory_equal(bytes + 8 + header, a, sizeof a);
    mem_free(bytes);
    files_end(&d);
}

static void writer_refusals_leave_nothing(void **state) {
    (void)state;
    files_dir d = files_begin();
    unsigned char one = 1;
    const tensor twice[] = {{"a", DT_U8, 1, {1}, &one}, {"a", DT_U8, 1, {1}, &one}};
    const tensor reserved = {"__metadata__", DT_U8, 1, {1}, &one},
                 latin = {"\xe9", DT_U8, 1, {1}, &one};
    const tensor negative = {"a", DT_U8, 1, {-1}, &one}, fine = {"a", DT_U8, 1, {1}, &one};
    const char *const meta[][2] = {{"k", "1"}, {"k", "2"}};
    const char *path = files_at(&d, "o.safetensors");
    assert_says(safetensors_write(path, twice, 2, NULL, 0), ERR_FORMAT, "o.safetensors",
                "'a' is given twice");
    assert_says(safetensors_write(path, &reserved, 1, NULL, 0), ERR_FORMAT, "__metadata__");
    assert_says(safetensors_write(path, &latin, 1, NULL, 0), ERR_FORMAT, "UTF-8");
    assert_says(safetensors_write(path, &negative, 1, NULL, 0), ERR_SHAPE, "tensor 'a'");
    assert_says(safetensors_write(path, &fine, 1, meta, 2), ERR_FORMAT, "'k'");
    char **names = NULL;
    int n = 0;
    assert_ok(file_list(d.path, &names, &n));
    assert_int_equal(n, 0);
    file_names_free(names, n);
    assert_says(safetensors_write(files_at(&d, "no/such/o.safetensors"), &fine, 1, NULL, 0), ERR_IO,
                "no/such");
    st_file *f;
    assert_says(safetensors_open(&f, files_at(&d, "absent.safetensors")), ERR_IO,
                "absent.safetensors");
    files_end(&d);
}

/* Every write, sync and rename of a save fails in turn, each in a child process (the count of such steps is the process's,
 * so the first ones lie before the save). The file is whole after each, and nothing is left beside it. */
static void failed_save_leaves_whole_files(void **state) {
    (void)state;
    files_dir d = files_begin();
    float old = 1, fresh[3000] = {2};
    const tensor before = {"a", DT_F32, 1, {1}, &old}, after = {"a", DT_F32, 1, {3000}, fresh};
    char path[600];
    snprintf(path, sizeof path, "%s", files_at(&d, "o.safetensors"));
    int failures = 0;
    assert_ok(safetensors_write(path, &before, 1, NULL, 0));
    for (int n = 1; n < 200; n++) {
        char text[16];
        snprintf(text, sizeof text, "%d", n);
        pid_t child = fork();
        files_must(child >= 0, "fork");
        if (child == 0) {
            setenv("PACELINE_FAIL_WRITE", text, 1);
            err e = safetensors_write(path, &after, 1, NULL, 0);
            _exit(e == ERR_OK ? 0 : e == ERR_IO && strstr(err_text(), d.path) ? 1 : 2);
        }
        int status = 0, found = 0;
        files_must(waitpid(child, &status, 0) == child, "waitpid");
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        failures += WEXITSTATUS(status);
        st_file *f;
        char **names = NULL;
        assert_ok(safetensors_open(&f, path));
        safetensors_close(f);
        assert_ok(file_list(d.path, &names, &found));
        assert_int_equal(found, 1);
        file_names_free(names, found);
        if (failures && !WEXITSTATUS(status)) break;
    }
    assert_true(failures >= 3); /* a write, a sync and a rename at least */
    files_end(&d);
}

static unsigned long touch(const st_file *f, const unsigned char *begin, const unsigned char *end) {
    unsigned long sum = 0;
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        const unsigned char *p = t->data;
        size_t n = tensor_bytes(t);
        assert_true(p >= begin && p <= end && n <= (size_t)(end - p));
        for (size_t k = 0; k < n; k++) sum += p[k];
        assert_ptr_equal(safetensors_find(f, t->name), t);
    }
    return sum;
}

static void random_flips_and_cuts_never_crash(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"bb\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[24,28]}}";
    size_t full = 8 + sizeof header - 1 + 28;
    int opened = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        uint64_t length = sizeof header - 1, flips = rng_below(seed, RNG_TEST, round, 0, 4);
        size_t n = round % 3 ? full : (size_t)rng_below(seed, RNG_TEST, round, 1, full + 1);
        unsigned char *bytes = calloc(1, full), *exact = malloc(n ? n : 1);
        files_must(bytes && exact, "memory");
        memcpy(bytes, &length, 8);
        memcpy(bytes + 8, header, sizeof header - 1);
        for (uint64_t k = 0; k < flips; k++) {
            uint64_t at = rng_below(seed, RNG_TEST, round, 10 + 2 * k, full);
            unsigned digit = '0' + (unsigned)rng_below(seed, RNG_TEST, round, 11 + 2 * k, 10);
            unsigned bit = 1u << rng_below(seed, RNG_TEST, round, 11 + 2 * k, 8);
            unsigned value = k % 2 ? digit : bytes[at] ^ bit;
            bytes[at] = (unsigned char)value;
        }
        memcpy(exact, bytes, n);
        st_file *f = NULL;
        if (!open_bytes(&f, exact, n)) {
            opened++;
            (void)touch(f, exact, exact + n);
            safetensors_close(f);
        } else {
            assert_null(f);
            assert_true(*err_text());
        }
        free(bytes);
        free(exact);
    }
    assert_true(opened > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_views),
        cmocka_unit_test(file_order_is_by_offset),
        cmocka_unit_test(unaligned_offsets_are_read_right),
        cmocka_unit_test(b38_damaged_file_refused_by_name),
        cmocka_unit_test(b38_header_longer_than_file_refused),
        cmocka_unit_test(bad_entries),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(writer_refusals_leave_nothing),
        cmocka_unit_test(failed_save_leaves_whole_files),
        cmocka_unit_test(random_flips_and_cuts_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
