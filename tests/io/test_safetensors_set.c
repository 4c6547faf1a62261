/* Sharded weights (B38): every disagreement between index and shards is refused, naming file and tensor.
 *
 * A set of three small shards is written here, damaged in one way per case, and must be refused before any
 * value is used. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/safetensors.h"
#include "support/files.h"
#include "support/says.h"
#include <unistd.h>

#define S1    "model-00001-of-00003.safetensors"
#define S2    "model-00002-of-00003.safetensors"
#define S3    "model-00003-of-00003.safetensors"
#define INDEX "model.safetensors.index.json"

enum { VALUES = 2000 };

static void write_shard(files_dir *d, const char *name, const char *const *names, int n) {
    static float values[VALUES];
    tensor t[4];
    for (int i = 0; i < VALUES; i++) values[i] = (float)i;
    for (int i = 0; i < n; i++) t[i] = (tensor){names[i], DT_F32, 1, {VALUES}, values};
    files_must(!safetensors_write(files_at(d, name), t, n, NULL, 0), name);
}

static void write_index(files_dir *d, const char *entries) {
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},\"weight_map\":{%s}}", entries);
    files_text(d, INDEX, text);
}

#define ENTRIES "\"a\":\"" S1 "\",\"b\":\"" S1 "\",\"c\":\"" S2 "\",\"d\":\"" S3 "\""

static files_dir make_set(void) {
    files_dir d = files_begin();
    write_shard(&d, S1, (const char *const[]){"a", "b"}, 2);
    write_shard(&d, S2, (const char *const[]){"c"}, 1);
    write_shard(&d, S3, (const char *const[]){"d"}, 1);
    write_index(&d, ENTRIES);
    return d;
}

static void opens_whole_set(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    assert_ok(safetensors_set_open(&s, d.path));
    assert_int_equal(safetensors_set_count(s), 4);
    const char *const order[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(safetensors_set_at(s, i)->name, order[i]);
        assert_ptr_equal(safetensors_set_find(s, order[i]), safetensors_set_at(s, i));
    }
    assert_non_null(strstr(safetensors_set_path(s, 2), S2));
    assert_null(safetensors_set_at(s, 4));
    assert_null(safetensors_set_find(s, "e"));
    safetensors_set_close(s);
    files_end(&d);
}

static void opens_single_file(void **state) {
    (void)state;
    files_dir d = files_begin();
    st_set *s;
    assert_says(safetensors_set_open(&s, d.path), ERR_IO, d.path, "neither");
    files_text(&d, "pytorch_model.bin", "x");
    assert_says(safetensors_set_open(&s, d.path), ERR_REFUSED, "pytorch_model.bin", "convert");
    write_shard(&d, "model.safetensors", (const char *const[]){"z", "y"}, 2);
    assert_ok(safetensors_set_open(&s, d.path));
    assert_int_equal(safetensors_set_count(s), 2);
    assert_string_equal(safetensors_set_at(s, 0)->name, "z");
    safetensors_set_close(s);
    /* An index over the one file is fine, too. */
    write_index(&d, "\"z\":\"model.safetensors\",\"y\":\"model.safetensors\"");
    assert_ok(safetensors_set_open(&s, d.path));
    safetensors_set_close(s);
    files_end(&d);
}

static void b38_missing_shard_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    files_must(unlink(files_at(&d, S2)) == 0, S2);
    assert_says(safetensors_set_open(&s, d.path), ERR_IO, S2, "missing", "'c'");
    assert_null(s);
    files_end(&d);
}

static void b38_short_shard_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    size_t size = 0;
    char *bytes = NULL;
    assert_ok(file_read(files_at(&d, S3), &bytes, &size));
    files_must(truncate(d.name, (off_t)size - 4096) == 0, S3);
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, S3, "'d'",
                "4096 bytes beyond the end");
    files_write(&d, S3, bytes, size);
    FILE *f = fopen(files_at(&d, S3), "ab");
    files_must(f && fwrite("12345678", 1, 8, f) == 8 && fclose(f) == 0, S3);
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, S3, "'d'", "8 bytes follow");
    free(bytes);
    files_end(&d);
}

static void b38_index_without_tensor_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    write_index(&d, ENTRIES ",\"e\":\"" S3 "\"");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, INDEX, "'e'", S3);
    write_index(&d, "\"a\":\"" S1 "\",\"b\":\"" S2 "\",\"c\":\"" S2 "\",\"d\":\"" S3 "\"");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, "'b' should be in " S2,
                "it is in " S1);
    files_end(&d);
}

static void b38_tensor_without_index_entry_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    write_index(&d, "\"a\":\"" S1 "\",\"c\":\"" S2 "\",\"d\":\"" S3 "\"");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, S1, "'b' has no entry");
    files_end(&d);
}

static void b38_duplicate_name_in_two_shards_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    write_shard(&d, S2, (const char *const[]){"c", "a"}, 2);
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, "'a'", S1, S2);
    files_end(&d);
}

static void stray_and_unindexed_shards_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    write_shard(&d, "model-00004-of-00004.safetensors", (const char *const[]){"q"}, 1);
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, "model-00004-of-00004.safetensors",
                "not named");
    files_must(unlink(files_at(&d, "model-00004-of-00004.safetensors")) == 0, "unlink");
    write_shard(&d, "model.safetensors", (const char *const[]){"q"}, 1);
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, "/model.safetensors", "not named");
    files_must(unlink(files_at(&d, INDEX)) == 0, "unlink");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, S1, "no " INDEX);
    files_end(&d);
}

static void bad_index_refused(void **state) {
    (void)state;
    files_dir d = make_set();
    st_set *s;
    files_text(&d, INDEX, "{}");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, INDEX, "weight_map");
    files_text(&d, INDEX, "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}");
    assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, INDEX, "twice");
    static const char *const names[] = {"\"../" S1 "\"", "\"..\"", "\"\"", "3", "\"/etc/passwd\""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char entry[200];
        snprintf(entry, sizeof entry, "\"a\":%s", names[i]);
        write_index(&d, entry);
        assert_says(safetensors_set_open(&s, d.path), ERR_FORMAT, INDEX, "'a'", "same folder");
    }
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_whole_set),
        cmocka_unit_test(opens_single_file),
        cmocka_unit_test(b38_missing_shard_refused),
        cmocka_unit_test(b38_short_shard_refused),
        cmocka_unit_test(b38_index_without_tensor_refused),
        cmocka_unit_test(b38_tensor_without_index_entry_refused),
        cmocka_unit_test(b38_duplicate_name_in_two_shards_refused),
        cmocka_unit_test(stray_and_unindexed_shards_refused),
        cmocka_unit_test(bad_index_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
