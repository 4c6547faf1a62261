/* Prompt files: the three shapes, names, filters, and sentences that name line and byte.
 *
 * Files are written to a temporary folder; no tokenizer is needed. What a prompt holds is compared text by
 * text, also where the text has line separators of Unicode, which do not end a line. */
#include "core/arena.h"
#include "data/prompts.h"
#include "support/zst.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

typedef struct fixture {
    char dir[256];
    arena *mem;
} fixture;

static int set_up(void **state) {
    static fixture f;
    zst_temp_dir(f.dir);
    if (arena_create(&f.mem, "prompts", 0)) return -1;
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    arena_destroy(f->mem);
    zst_temp_remove(f->dir);
    return 0;
}

static err load(const fixture *f, const char *text, const char *key, const char *value,
                int64_t limit, prompt_set *out) {
    char path[512];
    zst_write_temp(f->dir, "p.jsonl", text, strlen(text), path);
    return prompts_load(out, path, key, value, limit, f->mem);
}

static const char three[] =
    "{\"id\":\"a\",\"split\":\"train\",\"kind\":\"story\",\"prompt\":\"one\\u2028line\"}\r\n\n"
    "{\"id\":7,\"split\":\"heldout\",\"source\":\"gsm\",\"turns\":[\"first\",\"second\"]}\n"
    "{\"split\":\"train\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]}";

static void three_shapes_and_their_names(void **state) {
    prompt_set p;
    if (load(*state, three, NULL, NULL, 0, &p)) fail_msg("%s", err_text());
    assert_int_equal(p.n, 3);
    assert_string_equal(p.items[0].id, "a");
    assert_string_equal(p.items[0].source, "story");
    assert_string_equal(p.items[0].messages[0].content, "one\xe2\x80\xa8line");
    assert_int_equal(p.items[0].messages[0].content_len, 10);
    assert_string_equal(p.items[1].id, "7");
    assert_string_equal(p.items[1].source, "gsm");
    assert_int_equal(p.items[1].line, 3);
    assert_string_equal(p.items[1].messages[0].content, "first");
    assert_int_equal(p.items[1].n_turns, 1);
    assert_string_equal(p.items[1].turns[0], "second");
    assert_string_equal(p.items[2].id, "line 4");
    assert_int_equal(p.items[2].n, 2);
    assert_string_equal(p.items[2].messages[0].role, "system");
    assert_string_equal(p.items[2].messages[1].content, "u");
}

static void filters_and_limits(void **state) {
    prompt_set p;
    assert_int_equal(load(*state, three, "split", "heldout", 0, &p), ERR_OK);
    assert_int_equal(p.n, 1);
    assert_string_equal(p.items[0].id, "7");
    assert_int_equal(load(*state, three, NULL, NULL, 2, &p), ERR_OK);
    assert_int_equal(p.n, 2);
    assert_int_equal(load(*state, three, "split", "none", 0, &p), ERR_FORMAT);
    assert_non_null(strstr(err_text(), "none"));
    assert_int_equal(load(*state, "", NULL, NULL, 0, &p), ERR_FORMAT);
    assert_non_null(strstr(err_text(), "p.jsonl holds no prompts"));
}

static void bad_lines_are_named(void **state) {
    static const char *const bad[] = {
        "{\"prompt\":3}",
        "{\"turns\":[]}",
        "{\"turns\":[1]}",
        "{\"prompt\":\"a\",\"turns\":[\"b\"]}",
        "{\"id\":\"x\"}",
        "[\"x\"]",
        "{\"prompt\":\"a",
        "{\"messages\":[]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":1}]}",
        "{\"prompt\":\"a\",\"id\":1.5}",
        "{\"prompt\":\"a\",\"source\":1}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        prompt_set p;
        snprintf(text, sizeof text, "{\"prompt\":\"ok\"}\n%s\n", bad[i]);
        if (load(*state, text, NULL, NULL, 0, &p) != ERR_FORMAT) fail_msg("taken: %s", bad[i]);
        if (!strstr(err_text(), "p.jsonl:2") || !strstr(err_text(), "byte 16"))
            fail_msg("%s: %s", bad[i], err_text());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_shapes_and_their_names),
        cmocka_unit_test(filters_and_limits),
        cmocka_unit_test(bad_lines_are_named),
    };
    return cmocka_run_group_tests_name("prompts", tests, set_up, tear_down);
}
