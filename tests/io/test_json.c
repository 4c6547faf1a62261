/* JSON: strict reading, typed getters with sentences, writing that reads back.
 *
 * Every refusal is checked for its code and for what its sentence names. Texts are small and made here. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/arena.h"
#include "io/json.h"
#include "support/files.h"
#include "support/says.h"

static err parse(json_t **j, const char *text) {
    return json_parse(j, "line 7 of d.jsonl", text, strlen(text));
}

static void refusals(void **state) {
    (void)state;
    json_t *j;
    assert_says(parse(&j, "{\"a\": 1, \"a\": 2}"), ERR_FORMAT, "line 7 of d.jsonl", "twice",
                "\"a\"");
    assert_says(parse(&j, "{\"a\": 1} x"), ERR_FORMAT, "line 7 of d.jsonl: line 1, column 10");
    assert_says(parse(&j, "{\"a\": "), ERR_FORMAT, "ends too early");
    assert_says(parse(&j, ""), ERR_FORMAT, "line 7 of d.jsonl");
    assert_says(parse(&j, "{\"a\": \"\\u0000\"}"), ERR_FORMAT, "NUL");
    assert_says(parse(&j, "{\"a\\u0000b\": 1}"), ERR_FORMAT, "NUL");
    assert_says(parse(&j, "{\"a\": \"\xff\"}"), ERR_FORMAT, "line 1");
    assert_says(parse(&j, "{\"a\": \"\\ud800\"}"), ERR_FORMAT, "line 1");
    assert_says(parse(&j, "{\"a\": 99999999999999999999}"), ERR_FORMAT, "big integer");
    assert_says(parse(&j, "{\"a\": 1e999}"), ERR_FORMAT, "overflow");
    assert_says(parse(&j, "{\"a\": NaN}"), ERR_FORMAT, "line 1");
    assert_says(parse(&j, "{\"a\": 01}"), ERR_FORMAT, "line 1");
    assert_says(parse(&j, "\xef\xbb\xbf{}"), ERR_FORMAT, "byte order mark");
    assert_null(j);
    char *deep = malloc(100001);
    files_must(deep != NULL, "memory");
    memset(deep, '[', 100000);
    deep[100000] = 0;
    assert_says(parse(&j, deep), ERR_FORMAT, "nested too deeply");
    free(deep);
}

static void getters(void **state) {
    (void)state;
    json_t *j;
    int64_t i, list[3];
    double r;
    int b, n;
    const char *s;
    assert_ok(parse(
        &j,
        "{\"i\": -5, \"r\": 2.5, \"t\": true, \"s\": \"x\", \"z\": null, \"l\": [1, 2, 3], \"m\": [1, 2.0]}"));
    assert_ok(json_get_int(j, "c.json", "i", &i));
    assert_int_equal(i, -5);
    assert_ok(json_get_real(j, "c.json", "i", &r));
    assert_true(r == -5.0);
    assert_ok(json_get_real(j, "c.json", "r", &r));
    assert_true(r == 2.5);
    assert_ok(json_get_bool(j, "c.json", "t", &b));
    assert_int_equal(b, 1);
    assert_ok(json_get_text(j, "c.json", "s", &s));
    assert_string_equal(s, "x");
    assert_ok(json_get_ints(j, "c.json", "l", list, 3, &n));
    assert_int_equal(n, 3);
    assert_int_equal(list[2], 3);
    assert_says(json_get_int(j, "c.json", "r", &i), ERR_FORMAT,
                "c.json: 'r' must be an integer, not the real number 2.5");
    assert_says(json_get_int(j, "c.json", "q", &i), ERR_FORMAT, "c.json: 'q' is missing");
    assert_says(json_get_int(j, "c.json", "z", &i), ERR_FORMAT, "'z'", "null");
    assert_says(json_get_real(j, "c.json", "s", &r), ERR_FORMAT,
                "'s' must be a number, not the text 'x'");
    assert_says(json_get_bool(j, "c.json", "i", &b), ERR_FORMAT,
                "'i' must be true or false, not the integer -5");
    assert_says(json_get_text(j, "c.json", "l", &s), ERR_FORMAT, "'l' must be text, not a list");
    char own[8];
    const size_t fits = strlen(json_string_value(json_object_get(j, "s")));
    assert_true(fits > 0 && fits < sizeof own);
    assert_ok(json_copy_text(j, "c.json", "s", own, fits + 1));
    assert_string_equal(own, json_string_value(json_object_get(j, "s")));
    assert_says(json_copy_text(j, "c.json", "s", own, fits), ERR_FORMAT,
                "c.json: \"s\" is too long");
    assert_says(json_copy_text(j, "c.json", "l", own, sizeof own), ERR_FORMAT, "must be text");
    assert_says(json_get_ints(j, "c.json", "m", list, 3, &n), ERR_FORMAT, "'m'[1]", "2");
    assert_says(json_get_ints(j, "c.json", "l", list, 2, &n), ERR_FORMAT, "'l' has 3 elements");
    assert_says(json_get_int(json_object_get(j, "l"), "c.json", "i", &i), ERR_FORMAT, "an object");
    json_decref(j);
}

static void defaults(void **state) {
    (void)state;
    json_t *j;
    int64_t i;
    double r;
    int b;
    const char *s;
    assert_ok(parse(&j, "{\"z\": null, \"s\": \"x\", \"i\": 3}"));
    assert_ok(json_get_int_or(j, "c", "absent", 7, &i));
    assert_int_equal(i, 7);
    assert_ok(json_get_int_or(j, "c", "i", 7, &i));
    assert_int_equal(i, 3);
    assert_ok(json_get_real_or(j, "c", "z", 0.5, &r));
    assert_true(r == 0.5);
    assert_ok(json_get_bool_or(j, "c", "z", 1, &b));
    assert_int_equal(b, 1);
    assert_ok(json_get_text_or(j, "c", "z", "d", &s));
    assert_string_equal(s, "d");
    assert_says(json_get_int_or(j, "c", "s", 7, &i), ERR_FORMAT, "'s' must be an integer");
    assert_says(json_get_bool_or(j, "c", "s", 1, &b), ERR_FORMAT, "'s'");
    json_decref(j);
}

static void write_and_read(void **state) {
    (void)state;
    files_dir d = files_begin();
    json_t *j, *back;
    assert_ok(parse(&j, "{\"z\": 1, \"a\": [0.1, 1e-5, 10000.0, -3], \"\xc3\xa9\": \"\\n\"}"));
    assert_ok(json_write_file(j, files_at(&d, "x.json")));
    assert_ok(json_read_file(&back, d.name));
    assert_true(json_equal(j, back));
    char *text = NULL;
    size_t n = 0;
    assert_ok(file_read(d.name, &text, &n));
    assert_true(strstr(text, "\"z\"") < strstr(text, "\"a\""));
    assert_int_equal(text[n - 1], '\n');
    mem_free(text);
    json_decref(back);
    assert_says(json_read_file(&back, files_at(&d, "none.json")), ERR_IO, "none.json");
    assert_says(json_write_file(j, files_at(&d, "no/such/x.json")), ERR_IO, "no/such");
    json_decref(j);
    files_end(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(getters),
        cmocka_unit_test(defaults),
        cmocka_unit_test(write_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
