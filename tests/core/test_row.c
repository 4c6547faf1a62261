/* Metric rows: text as written, mending of a cut line, trimming for a resumed run.
 *
 * Files are compared as whole texts: rows are read by people and by strict JSON readers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/arena.h"
#include "core/file.h"
#include "core/row.h"

static char dir[64], path[96];

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "%s/rowXXXXXX", P_tmpdir);
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return file_remove_tree(dir) ? -1 : 0;
}

static void put(const char *text) {
    file_writer *w;
    assert_int_equal(file_writer_open(&w, path), ERR_OK);
    assert_int_equal(file_write(w, text, strlen(text)), ERR_OK);
    assert_int_equal(file_commit(&w), ERR_OK);
}

static void holds(const char *want) {
    char *have;
    size_t n;
    assert_int_equal(file_read(path, &have, &n), ERR_OK);
    assert_string_equal(have, want);
    mem_free(have);
}

static void a_row_is_one_json_line(void **state) {
    (void)state;
    row_file *f;
    assert_int_equal(row_open(&f, path), ERR_OK);
    row_begin(f);
    row_int(f, "update", 7);
    row_real(f, "loss", 0.1);
    row_real(f, "one", 1);
    row_real(f, "nan", NAN);
    row_real(f, "inf", -INFINITY);
    row_text(f, "note", "a \"b\"\\\n\x01 \xc3\xa9");
    const double v[] = {1.0 / 3, 1e300, 1e-7};
    row_reals(f, "v", v, 3);
    row_reals(f, "none", v, 0);
    assert_int_equal(row_end(f), ERR_OK);
    row_begin(f);
    assert_int_equal(row_end(f), ERR_OK);
    row_close(f);
    holds("{\"update\": 7, \"loss\": 0.1, \"one\": 1.0, \"nan\": \"NaN\", \"inf\": \"-Infinity\", "
          "\"note\": \"a \\\"b\\\"\\\\\\u000a\\u0001 \xc3\xa9\", "
          "\"v\": [0.3333333333333333, 1e+300, 1e-07], \"none\": []}\n{}\n");
}

static void a_cut_line_is_removed(void **state) {
    (void)state;
    put("{\"update\": 1}\n{\"upda");
    row_file *f;
    assert_int_equal(row_open(&f, path), ERR_OK);
    holds("{\"update\": 1}\n");
    row_begin(f);
    row_int(f, "update", 2);
    assert_int_equal(row_end(f), ERR_OK);
    row_close(f);
    holds("{\"update\": 1}\n{\"update\": 2}\n");
    put("{\"upda");
    assert_int_equal(row_open(&f, path), ERR_OK);
    row_close(f);
    holds("");
    row_close(NULL);
}

static void repeated_rows_are_trimmed(void **state) {
    (void)state;
    assert_int_equal(row_trim(path, "update", 3), ERR_OK); /* absent */
    put("{\"update\": 9}\n{\"update\": 3}\n{\"kind\": \"evaluation\"}\n"
        "{\"note\": \"update\\\": 2\", \"in\": {\"update\": 1}, \"update\": 4}\n{\"kind\": 1}\n{\"update\": 5}\n{\"upd");
    assert_int_equal(row_trim(path, "update", 3), ERR_OK);
    holds("{\"update\": 9}\n{\"update\": 3}\n{\"kind\": \"evaluation\"}\n");
    assert_int_equal(row_trim(path, "update", 3), ERR_OK);
    holds("{\"update\": 9}\n{\"update\": 3}\n{\"kind\": \"evaluation\"}\n");
    assert_int_equal(row_trim(path, "update", -1), ERR_OK);
    holds("");
}

static void no_place_to_write(void **state) {
    (void)state;
    row_file *f;
    char bad[128];
    snprintf(bad, sizeof bad, "%s/none/m.jsonl", dir);
    assert_int_equal(row_open(&f, bad), ERR_IO);
    assert_null(f);
    assert_non_null(strstr(err_text(), bad));
    assert_int_equal(row_open(&f, "/dev/full"), ERR_OK);
    row_begin(f);
    row_int(f, "update", 1);
    assert_int_equal(row_end(f), ERR_IO);
    assert_non_null(strstr(err_text(), "No space left"));
    row_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_row_is_one_json_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_cut_line_is_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(repeated_rows_are_trimmed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_place_to_write, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
