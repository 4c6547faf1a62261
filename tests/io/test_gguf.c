/* GGUF: values against the gguf package's own, and every bound of a damaged file.
 *
 * tests/fixtures/gguf_quant.gguf (made by tools/fixtures/make_gguf.py) holds rows of every type with expected
 * values beside it, compared bit for bit. Damaged files are built here byte by byte; the last case flips and
 * cuts the fixture at random. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/arena.h"
#include "core/str.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"

#define FIXTURE  "tests/fixtures/gguf_quant.gguf"
#define EXPECTED "tests/fixtures/gguf_quant_expected.safetensors"

static void rows_of_every_type_equal_reference(void **state) {
    (void)state;
    gguf *g;
    st_file *want;
    assert_ok(gguf_open(&g, FIXTURE));
    assert_ok(safetensors_open(&want, EXPECTED));
    assert_int_equal(safetensors_count(want), 7);
    assert_int_equal(gguf_tensor_count(g), 8);
    for (int i = 0; i < safetensors_count(want); i++) {
        const tensor *w = safetensors_at(want, i);
        const gguf_tensor *t = gguf_tensor_find(g, w->name);
        assert_non_null(t);
        assert_int_equal(t->ndim, w->ndim);
        assert_memory_equal(t->dim, w->dim, (size_t)t->ndim * sizeof *t->dim);
        int64_t width = t->dim[t->ndim - 1], rows = tensor_count(w) / width;
        float *row = numbers_poisoned(width);
        for (int64_t r = rows - 1; r >= 0; r--) {
            assert_ok(gguf_row(g, t, r, row));
            assert_memory_equal(row, (const char *)w->data + r * width * 4, (size_t)width * 4);
        }
        assert_says(gguf_row(g, t, rows, row), ERR_RANGE, FIXTURE, w->name, "rows");
        assert_says(gguf_row(g, t, -1, row), ERR_RANGE, w->name);
        free(row);
    }
    float row[96];
    const gguf_tensor *t = gguf_tensor_find(g, "blk.Q5_0.weight");
    assert_says(gguf_row(g, t, 0, row), ERR_REFUSED, FIXTURE, "'blk.Q5_0.weight'", "Q5_0");
    assert_null(gguf_tensor_find(g, "blk.none"));
    safetensors_close(want);
    gguf_close(g);
}

static void metadata(void **state) {
    (void)state;
    gguf *g;
    assert_ok(gguf_open(&g, FIXTURE));
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {
        {"test.u8", 200},          {"test.i8", -100},
        {"test.u16", 60000},       {"test.i16", -30000},
        {"test.u32", 4000000000},  {"test.i32", -2000000000},
        {"test.u64", INT64_MAX},   {"test.i64", -(INT64_C(1) << 62)},
        {"general.alignment", 64},
    };
    int64_t v = 0;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        assert_true(gguf_has(g, ints[i].key));
        assert_ok(gguf_get_int(g, ints[i].key, &v));
        assert_true(v == ints[i].value);
    }
    double r = 0;
    int b = 0;
    const char *s;
    size_t n = 0;
    assert_ok(gguf_get_real(g, "test.f32", &r));
    assert_true(r == (double)0.1f);
    assert_ok(gguf_get_real(g, "test.f64", &r));
    assert_true(r == 0.1);
    assert_ok(gguf_get_real(g, "test.i8", &r));
    assert_true(r == -100);
    assert_ok(gguf_get_bool(g, "test.bool", &b));
    assert_int_equal(b, 1);
    assert_ok(gguf_get_text(g, "test.text", &s, &n));
    assert_int_equal(n, 6);
    assert_memory_equal(s, "na\xc3\xafve", 6);
    assert_says(gguf_get_int(g, "test.u64_beyond", &v), ERR_RANGE, "'test.u64_beyond'");
    assert_says(gguf_get_int(g, "test.f32", &v), ERR_FORMAT, FIXTURE, "'test.f32'", "f32",
                "integer");
    assert_says(gguf_get_int(g, "absent", &v), ERR_FORMAT, FIXTURE, "'absent' is missing");
    assert_says(gguf_get_text(g, "test.u8", &s, &n), ERR_FORMAT, "'test.u8'", "u8");
    assert_says(gguf_get_bool(g, "test.u8", &b), ERR_FORMAT, "'test.u8'");
    assert_says(gguf_get_real(g, "test.text", &r), ERR_FORMAT, "'test.text'");
    assert_says(gguf_get_int(g, "test.ints", &v), ERR_FORMAT, "'test.ints'", "single");
    assert_false(gguf_has(g, "test."));
    gguf_close(g);
}

static void metadata_arrays(void **state) {
    (void)state;
    gguf *g;
    int64_t n = 0, v = 0;
    double r = 0;
    const char *s, *key;
    size_t len = 0;
    char text[64];
    assert_ok(gguf_open(&g, FIXTURE));
    assert_ok(gguf_array_count(g, "test.texts", &n));
    assert_int_equal(n, 4);
    assert_ok(gguf_array_text(g, "test.texts", 3, &s, &len));
    assert_int_equal(len, 300);
    assert_int_equal(s[299], 'd');
    assert_ok(gguf_array_text(g, "test.texts", 2, &s, &len));
    assert_memory_equal(s, "\xc3\x9f\xe2\x80\xa8", 5);
    assert_ok(gguf_array_text(g, "test.texts", 1, &s, &len));
    assert_int_equal(len, 0);
    assert_ok(gguf_array_int(g, "test.ints", 1, &v));
    assert_int_equal(v, -2);
    assert_ok(gguf_array_real(g, "test.reals", 1, &r));
    assert_true(r == -1.25);
    assert_ok(gguf_array_real(g, "test.ints", 2, &r));
    assert_true(r == 3);
    assert_says(gguf_array_int(g, "test.ints", 3, &v), ERR_RANGE, "'test.ints' has 3");
    assert_says(gguf_array_int(g, "test.ints", -1, &v), ERR_RANGE, "'test.ints'");
    assert_says(gguf_array_text(g, "test.ints", 0, &s, &len), ERR_FORMAT, "'test.ints'");
    assert_says(gguf_array_count(g, "test.u8", &n), ERR_FORMAT, "'test.u8'", "array");
    int seen = 0;
    for (int i = 0; i < gguf_key_count(g); i++) {
        assert_ok(gguf_key_at(g, i, &key, &len, text, sizeof text));
        if (len == 10 && memcmp(key, "test.texts", 10) == 0)
            assert_string_equal(text, "[4] string"), seen++;
        if (len == 8 && memcmp(key, "test.u32", 8) == 0)
            assert_string_equal(text, "u32 4000000000"), seen++;
        if (len == 9 && memcmp(key, "test.bool", 9) == 0)
            assert_string_equal(text, "bool true"), seen++;
        if (len == 15 && memcmp(key, "test.u64_beyond", 15) == 0)
            assert_string_equal(text, "u64 18446744073709551615"), seen++;
    }
    assert_int_equal(seen, 4);
    assert_says(gguf_key_at(g, gguf_key_count(g), &key, &len, text, sizeof text), ERR_RANGE,
                FIXTURE);
    gguf_close(g);
}

/* ---- files built here ---------------------------------------------------------------------------- */

static void put(str *b, const void *p, size_t n) { files_must(!str_add(b, p, n), "memory"); }
static void put32(str *b, uint32_t v) { put(b, &v, 4); }
static void put64(str *b, uint64_t v) { put(b, &v, 8); }
static void put_text(str *b, const char *s) {
    put64(b, strlen(s));
    put(b, s, strlen(s));
}
static void put_head(str *b, uint32_t version, uint64_t tensors, uint64_t values) {
    str_clear(b);
    put(b, "GGUF", 4);
    put32(b, version);
    put64(b, tensors);
    put64(b, values);
}
static void put_tensor(str *b, const char *name, uint32_t type, uint64_t offset, uint32_t ndim,
                       const uint64_t *dims) {
    put_text(b, name);
    put32(b, ndim);
    for (uint32_t i = 0; i < ndim; i++) put64(b, dims[i]);
    put32(b, type);
    put64(b, offset);
}
static void put_data(str *b, size_t n) {
    while (b->n % 32) put(b, "", 1);
    for (size_t i = 0; i < n; i++) put(b, "x", 1);
}
static err open_str(gguf **g, const str *b) { return gguf_open_memory(g, "m.gguf", b->s, b->n); }

/* Two F32 vectors of 8 (inner, outer extents as given), offsets and data size chosen by the case. */
static err open_two(gguf **g, const uint64_t dims[2], uint64_t second, size_t data) {
    str b = {0};
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "one", 0, 0, 1, dims);
    put_tensor(&b, "two", 0, second, 1, dims + 1);
    put_data(&b, data);
    err e = open_str(g, &b);
    if (!e) gguf_close(*g);
    str_free(&b);
    return e;
}

static void data_section(void **state) {
    (void)state;
    gguf *g;
    const uint64_t dims[2] = {8, 8}, odd[2] = {3, 8}, empty[2] = {0, 8},
                   big[2] = {8, UINT64_C(1) << 62};
    assert_ok(open_two(&g, dims, 32, 64));
    assert_ok(open_two(&g, odd, 32, 64));
    assert_ok(open_two(&g, empty, 0, 32));
    assert_says(open_two(&g, dims, 32, 63), ERR_FORMAT, "m.gguf", "'two'", "cut short");
    assert_says(open_two(&g, dims, 32, 20), ERR_FORMAT, "m.gguf", "'one'", "cut short");
    assert_says(open_two(&g, dims, 32, 0), ERR_FORMAT, "m.gguf", "'one'", "cut short");
    assert_says(open_two(&g, dims, 32, 72), ERR_FORMAT, "m.gguf",
                "8 bytes follow the last tensor 'two'");
    assert_says(open_two(&g, dims, 64, 96), ERR_FORMAT, "m.gguf", "'two'", "gap");
    assert_says(open_two(&g, dims, 0, 64), ERR_FORMAT, "m.gguf", "'two'", "overlap");
    assert_says(open_two(&g, dims, UINT64_MAX - 31, 64), ERR_FORMAT, "m.gguf", "'two'");
    assert_says(open_two(&g, big, 32, 64), ERR_FORMAT, "m.gguf", "'two'", "63 bits");
    const uint64_t padded[2] = {8, 7};
    assert_ok(open_two(&g, padded, 32, 64)); /* the last tensor with its padding */
    assert_ok(open_two(&g, padded, 32, 60)); /* and without */
}

static err open_tensor(gguf **g, const char *name, uint32_t type, uint32_t ndim,
                       const uint64_t *dims, int twice) {
    str b = {0};
    put_head(&b, 2, twice ? 2 : 1, 0);
    put_tensor(&b, name, type, 0, ndim, dims);
    if (twice) put_tensor(&b, name, type, 0, ndim, dims);
    put_data(&b, 128);
    err e = open_str(g, &b);
    str_free(&b);
    return e;
}

static void tensor_table(void **state) {
    (void)state;
    gguf *g;
    const uint64_t flat[5] = {32, 1, 1, 1, 1}, wide[4] = {33, 1, 1, 1}, none[4] = {0, 1, 1, 1};
    const uint64_t wrap[4] = {32, UINT64_C(1) << 31, UINT64_C(1) << 31, 1},
                   minus[4] = {UINT64_MAX, 1, 1, 1};
    const uint64_t zero[4] = {0, UINT64_C(1) << 40, UINT64_C(1) << 40, 1};
    assert_says(open_tensor(&g, "t", 77, 1, flat, 0), ERR_FORMAT, "m.gguf", "'t'",
                "type number 77");
    assert_says(open_tensor(&g, "t", UINT32_MAX, 1, flat, 0), ERR_FORMAT, "m.gguf", "'t'",
                "type number");
    assert_says(open_tensor(&g, "t", 8, 1, wide, 0), ERR_FORMAT, "m.gguf", "'t'", "33", "Q8_0");
    assert_says(open_tensor(&g, "t", 0, 5, flat, 0), ERR_FORMAT, "m.gguf", "'t'", "more than 4");
    assert_says(open_tensor(&g, "t", 0, 3, wrap, 0), ERR_FORMAT, "m.gguf", "'t'", "63 bits");
    assert_says(open_tensor(&g, "t", 0, 3, zero, 0), ERR_FORMAT, "m.gguf", "'t'", "63 bits");
    assert_says(open_tensor(&g, "t", 0, 1, minus, 0), ERR_FORMAT, "m.gguf", "'t'", "63 bits");
    assert_says(open_tensor(&g, "", 0, 1, flat, 0), ERR_FORMAT, "m.gguf", "empty");
    assert_says(open_tensor(&g, "t", 0, 1, none, 1), ERR_FORMAT, "m.gguf", "'t'", "twice");
    assert_null(g);
}

static err open_value(gguf **g, uint32_t type, const void *value, size_t n, const char *key,
                      int count) {
    str b = {0};
    put_head(&b, 3, 0, (uint64_t)count);
    for (int i = 0; i < count; i++) {
        put_text(&b, key);
        put32(&b, type);
        put(&b, value, n);
    }
    err e = open_str(g, &b);
    if (!e) gguf_close(*g);
    str_free(&b);
    return e;
}

static void metadata_bounds(void **state) {
    (void)state;
    gguf *g;
    const uint32_t nested[3] = {9, 1, 0}, three = 3, zero = 0;
    const struct {
        uint32_t type;
        uint64_t n;
    } __attribute__((packed)) huge = {8, UINT64_C(1) << 61}, numbers = {4, UINT64_MAX / 2},
                              flags = {99, 1};
    assert_ok(open_value(&g, 4, &three, 4, "k", 1));
    assert_says(open_value(&g, 4, &three, 4, "k", 2), ERR_FORMAT, "m.gguf", "'k'", "twice");
    assert_says(open_value(&g, 4, &three, 3, "k", 1), ERR_FORMAT, "m.gguf");
    assert_says(open_value(&g, 13, &three, 4, "k", 1), ERR_FORMAT, "'k'", "value type 13");
    assert_says(open_value(&g, 7, "\2", 1, "k", 1), ERR_FORMAT, "'k'", "bool");
    assert_says(open_value(&g, 9, nested, 12, "k", 1), ERR_FORMAT, "'k'", "arrays of arrays");
    assert_says(open_value(&g, 9, &huge, 12, "k", 1), ERR_FORMAT, "m.gguf", "2305843009213693952");
    assert_says(open_value(&g, 9, &numbers, 12, "k", 1), ERR_FORMAT, "m.gguf", "cannot be in");
    assert_says(open_value(&g, 9, &flags, 12, "k", 1), ERR_FORMAT, "'k'", "value type 99");
    assert_says(open_value(&g, 8, &huge, 12, "k", 1), ERR_FORMAT, "m.gguf");
    assert_says(open_value(&g, 4, &three, 4, "", 1), ERR_FORMAT, "m.gguf", "NUL");
    assert_says(open_value(&g, 4, &three, 4, "general.alignment", 1), ERR_FORMAT, "power of two");
    assert_says(open_value(&g, 4, &zero, 4, "general.alignment", 1), ERR_FORMAT, "power of two");
    assert_says(open_value(&g, 5, &three, 4, "general.alignment", 1), ERR_FORMAT, "u32");
}

static void versions_and_magic(void **state) {
    (void)state;
    gguf *g;
    str b = {0};
    put_head(&b, 2, 0, 0);
    assert_ok(open_str(&g, &b));
    assert_int_equal(gguf_version(g), 2);
    gguf_close(g);
    put_head(&b, 1, 0, 0);
    assert_says(open_str(&g, &b), ERR_REFUSED, "m.gguf", "version 1");
    put_head(&b, 4, 0, 0);
    assert_says(open_str(&g, &b), ERR_REFUSED, "m.gguf", "version 4");
    put_head(&b, 3u << 24, 0, 0);
    assert_says(open_str(&g, &b), ERR_REFUSED, "m.gguf", "big-endian");
    put_head(&b, 3, UINT64_MAX, 0);
    assert_says(open_str(&g, &b), ERR_FORMAT, "m.gguf", "18446744073709551615 tensor entries");
    put_head(&b, 3, 0, UINT64_C(1) << 40);
    assert_says(open_str(&g, &b), ERR_FORMAT, "m.gguf", "metadata entries");
    b.s[0] = 'g';
    assert_says(open_str(&g, &b), ERR_FORMAT, "m.gguf: not a GGUF file");
    assert_says(gguf_open_memory(&g, "m.gguf", b.s, 3), ERR_FORMAT, "m.gguf");
    assert_says(gguf_open_memory(&g, "m.gguf", b.s, 0), ERR_FORMAT, "m.gguf");
    assert_says(gguf_open(&g, "no/such.gguf"), ERR_IO, "no/such.gguf");
    str_free(&b);
}

static void touch(const gguf *g) {
    float *row = NULL;
    char text[80];
    const char *key;
    size_t len;
    for (int i = 0; i < gguf_tensor_count(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        int64_t width = t->dim[t->ndim - 1], rows = 1;
        for (int k = 0; k + 1 < t->ndim; k++) rows *= t->dim[k];
        row = realloc(row, (size_t)width * 4 + 1);
        files_must(row != NULL, "memory");
        for (int64_t r = 0; r < rows && r < 100; r++)
            if (gguf_row(g, t, r, row)) assert_non_null(strstr(err_text(), t->name));
    }
    for (int i = 0; i < gguf_key_count(g); i++)
        assert_ok(gguf_key_at(g, i, &key, &len, text, sizeof text));
    free(row);
}

static void random_flips_and_cuts_never_crash(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    char *whole = NULL;
    size_t full = 0;
    int opened = 0;
    assert_ok(file_read(FIXTURE, &whole, &full));
    for (uint64_t round = 0; round < 20000; round++) {
        uint64_t flips = rng_below(seed, RNG_TEST, round, 0, 4);
        size_t n = round % 3 ? full : (size_t)rng_below(seed, RNG_TEST, round, 1, full + 1);
        char *bytes = malloc(full + 1);
        files_must(bytes != NULL, "memory");
        memcpy(bytes, whole, full);
        for (uint64_t k = 0; k < flips; k++) /* mostly in the tables at the front */
            bytes[rng_below(seed, RNG_TEST, round, 10 + 2 * k, k ? 1300 : full)] ^=
                (char)(1u << rng_below(seed, RNG_TEST, round, 11 + 2 * k, 8));
        bytes = realloc(bytes, n ? n : 1);
        files_must(bytes != NULL, "memory");
        gguf *g = NULL;
        if (!gguf_open_memory(&g, "m.gguf", bytes, n)) {
            opened++;
            touch(g);
            gguf_close(g);
        } else {
            assert_null(g);
            assert_true(*err_text());
        }
        free(bytes);
    }
    assert_true(opened > 0);
    mem_free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_every_type_equal_reference),
        cmocka_unit_test(metadata),
        cmocka_unit_test(metadata_arrays),
        cmocka_unit_test(data_section),
        cmocka_unit_test(tensor_table),
        cmocka_unit_test(metadata_bounds),
        cmocka_unit_test(versions_and_magic),
        cmocka_unit_test(random_flips_and_cuts_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
