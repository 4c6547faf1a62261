/* paceline plan from outside: its table, its JSON, rates kept in a file, splits of devices, and refusals with their exit codes.
 *
 * A tiny random target; figures that come from clocks are only asked to be there. */
#include "core/arena.h"
#include "io/json.h"
#include "support/chat_gguf.h"
#include "support/files.h"
#include "support/run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static files_dir dir;
static run_result r;
static char recipe[600], rates[600];
static int64_t needed; /* bytes of memory, from the JSON */

#define RUN(...) run_program(&r, NULL, (const char *const[]){__VA_ARGS__, NULL})

static void expect(int code, const char *text) {
    if (r.code != code || !strstr(r.text, text))
        fail_msg("exit %d, wanted %d and '%s':\n%s", r.code, code, text, r.text);
}

static int begin(void **state) {
    (void)state;
    static const char yaml[] =
        "target: {path: tiny.gguf}\n"
        "data: {path: rows.jsonl, validation: rows.jsonl, max_length: 200}\n"
        "drafter: {block_size: 4, taps: [1, 3]}\n"
        "run: {epochs: 2, tokens_per_step: 512, tokens_per_row: 256, evaluate_tokens: 8, out: run}\n"
        "devices: {target: cpu:0, threads: 2}\n"
        "drafters:\n"
        "  one: {drafter: {layers: 1}, devices: cpu:1}\n"
        "  two: {drafter: {layers: 2}, devices: cpu:1}\n";
    dir = files_begin();
    chat_gguf_write(files_at(&dir, "tiny.gguf"), &(chat_gguf){.seed = 3, .context = 256});
    char text[4096] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"prompt\": \"one %d\", \"response\": \"the one and the two and so on %d\"}\n",
                 i, i * i);
    files_text(&dir, "rows.jsonl", text);
    snprintf(rates, sizeof rates, "%s", files_at(&dir, "rates.json"));
    snprintf(recipe, sizeof recipe, "%s", files_text(&dir, "r.yaml", yaml));
    return 0;
}

static int end(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

/* Lines that hold no path fit a terminal of 100 columns, counting a character of several bytes once. */
static void expect_narrow(void) {
    char *text = r.text;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int columns = 0;
        for (const char *p = line; *p; p++) columns += (*p & 0xC0) != 0x80;
        if (columns > 100 && !strchr(line, '/')) fail_msg("%d columns: %s", columns, line);
    }
}

static void the_table_says_what_a_run_takes(void **state) {
    (void)state;
    RUN("plan", recipe, "--devices", "16", "--link", "25");
    static const char *const says[] = {"drafter   one: 1 layers",
                                       "drafter   two: 2 layers",
                                       "as the recipe's lists say",
                                       "moments and first weights",
                                       "available to this process",
                                       "checkpoints: 3 kept",
                                       "\u27e6",
                                       "to the end",
                                       "links of 25 GB/s (stated)",
                                       "best",
                                       "the same",
                                       "the best split by number of devices"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) expect(0, says[i]);
    expect_narrow();
    assert_false(file_exists(files_at(&dir, "run")));
}

static int64_t integer(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) fail_msg("%s is no integer", key);
    return json_integer_value(v);
}

static void json_has_the_keys_that_are_documented(void **state) {
    (void)state;
    json_t *o = NULL;
    const json_t *one;
    size_t i;
    RUN("plan", recipe, "--json", "--devices", "8");
    assert_int_equal(r.code, 0);
    if (json_parse(&o, "plan", strchr(r.text, '{'), strlen(strchr(r.text, '{'))))
        fail_msg("%s\n%s", err_text(), r.text);
    static const char *const counts[] = {
        "documents",       "tokens",      "supervised",   "rows_per_epoch",  "tokens_per_epoch",
        "max_row_tokens",  "updates",     "updates_done", "target_params",   "drafter_params",
        "max_row_anchors", "total_bytes", "allowance",    "memory_available"};
    for (i = 0; i < sizeof counts / sizeof *counts; i++) assert_true(integer(o, counts[i]) >= 0);
    assert_int_equal(integer(o, "documents"), 12);
    assert_true(json_is_true(json_object_get(o, "fits")));
    assert_string_equal(json_string_value(json_object_get(o, "refused")), "");
    assert_int_equal(json_array_size(json_object_get(o, "drafters")), 2);
    int64_t sum = 0;
    json_array_foreach(json_object_get(o, "arenas"), i, one) sum += integer(one, "bytes");
    assert_int_equal(sum, integer(o, "total_bytes"));
    needed = sum + integer(o, "allowance");
    assert_true(json_array_size(json_object_get(o, "files")) == 4);
    const json_t *scaling = json_object_get(o, "scaling");
    const json_t *splits = json_object_get(scaling, "splits");
    assert_true((size_t)integer(scaling, "best") < json_array_size(splits));
    json_array_foreach(splits, i, one) {
        int64_t devices = integer(one, "target_devices");
        size_t k;
        const json_t *n, *ranks = json_object_get(one, "drafter_devices");
        assert_int_equal(json_array_size(ranks), 2);
        if (json_is_true(json_object_get(one, "in_turns"))) continue;
        json_array_foreach(ranks, k, n) devices += json_integer_value(n);
        assert_int_equal(devices, 8);
    }
    assert_int_equal(json_array_size(json_object_get(scaling, "best_by_devices")), 4);
    assert_true(json_real_value(json_object_get(json_object_get(o, "forecast"), "seconds")) > 0);
    json_decref(o);
}

static void rates_are_written_once_and_read_again(void **state) {
    (void)state;
    char *first, *again;
    size_t n, m;
    RUN("plan", recipe, "--rates", rates);
    expect(0, "rates     measured, ");
    assert_false(file_read(rates, &first, &n));
    RUN("plan", recipe, "--rates", rates, "--devices", "2");
    expect(0, "rates     of a table, ");
    assert_false(file_read(rates, &again, &m));
    assert_int_equal(n, m);
    assert_memory_equal(first, again, n);
    mem_free(first);
    mem_free(again);
    RUN("plan", recipe, "drafters.two.drafter.layers=3", "--rates", rates);
    expect(1, "drafter two: 2 layers");
    RUN("plan", recipe, "devices.threads=4", "--rates", rates);
    expect(1, "2 threads");
}

static void what_does_not_fit_is_refused_after_the_table(void **state) {
    (void)state;
    char *text = NULL, gib[32];
    snprintf(gib, sizeof gib, "%.12f", (double)(needed - 20000) / (1 << 30));
    RUN("plan", recipe, "--memory", gib);
    expect(1, "what would fit: ");
    text = strstr(r.text, "in all");
    assert_non_null(text);
    assert_true(text < strstr(r.text, "paceline plan: the run needs"));
    assert_null(strstr(r.text, "tokens/s"));
    RUN("plan", recipe, "--disk", "0.0001");
    expect(1, "the run will write");
    RUN("plan", recipe, "--json", "--memory", gib);
    expect(1, "\"fits\": false");
    RUN("plan", recipe, "--devices", "1025");
    expect(2, "--devices");
    RUN("plan", recipe, "--link", "3");
    expect(2, "--link is for --devices");
    RUN("plan", recipe, "--devices", "2", "--link", "-3");
    expect(2, "--link needs GB/s");
    RUN("plan", recipe, "--memory", "0");
    expect(2, "--memory needs GiB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_says_what_a_run_takes),
        cmocka_unit_test(json_has_the_keys_that_are_documented),
        cmocka_unit_test(rates_are_written_once_and_read_again),
        cmocka_unit_test(what_does_not_fit_is_refused_after_the_table),
    };
    return cmocka_run_group_tests_name("the plan command", tests, begin, end);
}
