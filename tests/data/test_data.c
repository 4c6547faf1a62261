/* JSONL to documents: each bad line of B32 by line and byte, both policies, digests (B18), preview (B28).
 *
 * Files are written to a temporary folder; the vocabulary is the committed fixture. Strict runs must name the
 * place, lenient ones must account for every line. */
#include "core/file.h"
#include "core/log.h"
#include "data/data_fixture.h"

#define GOOD                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello there\"}]}"
#define PAIR "{\"id\":7,\"prompt\":\"Hi\",\"response\":\"Hello there\"}"

typedef struct bad_line {
    const char *name, *text; /* text without newline */
    const char *reason;      /* data_reason_name */
    const char *says;        /* part of the sentence */
} bad_line;

static const bad_line bad_lines[] = {
    {"cut-off object", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi", "malformed JSON",
     "column"},
    {"text behind", GOOD " x", "malformed JSON", "text follows"},
    {"byte-order mark", "\xef\xbb\xbf" GOOD, "byte-order mark", "UTF-8 without one"},
    {"invalid UTF-8", "{\"prompt\":\"a\xff\",\"response\":\"b c\"}", "invalid UTF-8",
     "column 13 (byte 0xff)"},
    {"surrogate", "{\"prompt\":\"\\ud800\",\"response\":\"b c\"}", "malformed JSON", "column"},
    {"escaped NUL", "{\"prompt\":\"\\u0000\",\"response\":\"b c\"}", "malformed JSON", "NUL"},
    {"duplicate key", "{\"prompt\":\"a\",\"prompt\":\"b\",\"response\":\"c d\"}", "duplicate key",
     "twice"},
    {"unknown role", "{\"messages\":[{\"role\":\"critic\",\"content\":\"x\"}]}", "unknown role",
     "'critic'"},
    {"from/value", "{\"messages\":[{\"from\":\"human\",\"value\":\"x\"}]}", "from/value naming",
     "role/content"},
    {"conversations", "{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"}]}",
     "from/value naming", "messages"},
    {"a list", "[1]", "not a conversation", "not an object"},
    {"a number", "3", "malformed JSON", "column"},
    {"neither", "{\"text\":\"x\"}", "not a conversation", "neither"},
    {"both", "{\"messages\":[],\"prompt\":\"x\"}", "not a conversation", "one of the two"},
    {"no response", "{\"prompt\":\"x\"}", "not a conversation", "'response'"},
    {"null content", "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "not a conversation",
     "message 1"},
    {"lost key", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[]}]}",
     "not a conversation", "'tool_calls'"},
    {"no messages", "{\"messages\":[]}", "not a conversation", "'messages'"},
    {"no answer", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "no answer",
     "chatml-smollm2"},
    {"cut user", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"cut\":true}]}",
     "not a conversation", "cut"},
    {"cut at once", "{\"prompt\":\"x\",\"response\":\"\",\"cut\":true}", "no answer", "answer"},
};
enum { BAD = sizeof bad_lines / sizeof bad_lines[0] };

static void quiet(void *ctx, log_level level, const char *line) {
    (void)level;
    snprintf(ctx, 1024, "%s", line);
}

static void add(char *text, size_t *n, const char *more) {
    size_t k = strlen(more);
    memcpy(text + *n, more, k);
    *n += k;
}

static void b32_strict_stops_with_line_and_byte(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    for (int i = 0; i < BAD; i++) {
        char text[2048], where[64];
        size_t n = 0;
        add(text, &n, GOOD "\n\n" PAIR "\r\n");
        snprintf(where, sizeof where, "bad.jsonl: line 4 (at byte %zu): ", n);
        add(text, &n, bad_lines[i].text);
        add(text, &n, "\n" GOOD);
        data_set *s;
        if (fixture_open(f, "bad.jsonl", text, n, &cfg, &s) != ERR_FORMAT)
            fail_msg("%s was taken", bad_lines[i].name);
        assert_null(s);
        if (!strstr(err_text(), where) || !strstr(err_text(), bad_lines[i].says))
            fail_msg("%s: %s", bad_lines[i].name, err_text());
    }
}

static void b32_nul_and_forty_megabytes(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    data_set *s;
    const char nul[] = GOOD "\n{\"prompt\":\"a\0b\",\"response\":\"c d\"}\n";
    assert_int_equal(fixture_open(f, "nul.jsonl", nul, sizeof nul - 1, &cfg, &s), ERR_FORMAT);
    char where[96];
    snprintf(where, sizeof where, "nul.jsonl: line 2 (at byte %zu): column 13 holds a NUL byte",
             strlen(GOOD) + 1);
    assert_non_null(strstr(err_text(), where));
    size_t n = 40u << 20;
    char *text = malloc(n + 100);
    memset(text, 'x', n + 100);
    memcpy(text, "{\"prompt\":\"", 11);
    memcpy(text + n, "\",\"response\":\"y z\"}\n" GOOD, 20);
    assert_int_equal(fixture_open(f, "long.jsonl", text, n + 20, &cfg, &s), ERR_FORMAT);
    assert_non_null(
        strstr(err_text(), "long.jsonl: line 1 (at byte 0): the line has 41943059 bytes"));
    assert_non_null(strstr(err_text(), "16777216"));
    free(text);
}

static void b32_good_lines_in_every_dress(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    const char text[] = GOOD "\n \t\r\n" PAIR "\r\n\n  " GOOD; /* no newline at the end */
    data_set *s;
    if (fixture_open(f, "good.jsonl", text, sizeof text - 1, &cfg, &s)) fail_msg("%s", err_text());
    const data_counts *c = data_get_counts(s);
    assert_int_equal(c->lines, 5);
    assert_int_equal(c->blank, 2);
    assert_int_equal(c->documents, 3);
    assert_int_equal(c->rejected, 0);
    static const int64_t lines[] = {1, 3, 5};
    for (int i = 0; i < 3; i++) {
        const data_doc d = data_at(s, i), first = data_at(s, 0);
        assert_int_equal(d.line, lines[i]);
        assert_int_equal(d.id, i);
        assert_non_null(strstr(d.path, "good.jsonl"));
        assert_int_equal(d.n, first.n); /* prompt/response says the same as messages */
        assert_memory_equal(d.tokens, first.tokens, (size_t)d.n * 4);
        assert_memory_equal(d.loss, first.loss, (size_t)d.n);
    }
    assert_int_equal(c->tokens, 3 * data_at(s, 0).n);
    assert_int_equal(c->supervised, 3 * 3); /* Hello, there, end of turn */
    data_close(s);
}

static void b32_lenient_counts_and_copies(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    cfg.lenient = 1;
    char text[8192], side[8192], log[1024] = "", path[512];
    size_t n = 0, n_side = 0;
    for (int i = 0; i < BAD; i++) {
        add(text, &n, GOOD "\n");
        add(text, &n, bad_lines[i].text);
        add(side, &n_side, bad_lines[i].text);
        add(side, &n_side, "\n");
        if (i + 1 < BAD) add(text, &n, "\n");
    }
    log_set_sink(quiet, log);
    data_set *s;
    err e = fixture_open(f, "mixed.jsonl", text, n, &cfg, &s);
    log_set_sink(NULL, NULL);
    if (e) fail_msg("%s", err_text());
    const data_counts *c = data_get_counts(s);
    assert_int_equal(c->lines, 2 * BAD);
    assert_int_equal(c->documents, BAD);
    assert_int_equal(c->rejected, BAD);
    int64_t sum = 0;
    for (int r = 0; data_reason_name(r); r++) {
        int64_t want = 0;
        for (int i = 0; i < BAD; i++) want += strcmp(bad_lines[i].reason, data_reason_name(r)) == 0;
        assert_int_equal(c->rejected_by_reason[r], want);
        sum += want;
    }
    assert_int_equal(sum, BAD);
    data_close(s);
    assert_non_null(strstr(log, "21 of 42 lines set aside"));
    assert_non_null(strstr(log, "2 from/value naming"));
    char *copied;
    size_t n_copied;
    snprintf(path, sizeof path, "%s/mixed.jsonl.rejected.jsonl", f->dir);
    assert_int_equal(file_read(path, &copied, &n_copied), ERR_OK);
    assert_int_equal(n_copied, n_side);
    assert_memory_equal(copied, side, n_side);
    mem_free(copied);
    /* mended: the old side file would lie, so it becomes empty */
    if (fixture_open(f, "mixed.jsonl", GOOD, strlen(GOOD), &cfg, &s)) fail_msg("%s", err_text());
    data_close(s);
    assert_int_equal(file_read(path, &copied, &n_copied), ERR_OK);
    assert_int_equal(n_copied, 0);
    mem_free(copied);
}

static void b32_empty_and_all_bad_files(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    char log[1024];
    log_set_sink(quiet, log);
    for (cfg.lenient = 0; cfg.lenient < 2; cfg.lenient++) {
        data_set *s;
        assert_int_equal(fixture_open(f, "empty.jsonl", "", 0, &cfg, &s), ERR_FORMAT);
        assert_non_null(strstr(err_text(), "empty.jsonl: the file is empty"));
        assert_int_equal(fixture_open(f, "blank.jsonl", "\n \n", 3, &cfg, &s), ERR_FORMAT);
        assert_non_null(strstr(err_text(), "blank.jsonl: all 2 lines are blank"));
        assert_int_equal(fixture_open(f, "bad.jsonl", "x\ny\n", 4, &cfg, &s), ERR_FORMAT);
        assert_non_null(
            strstr(err_text(), cfg.lenient ? "none of its 2 lines" : "line 1 (at byte 0)"));
        if (cfg.lenient) assert_non_null(strstr(err_text(), "2 malformed JSON"));
        const char *empty = "{\"prompt\":\"x\",\"response\":\"\"}"; /* only an end of turn */
        assert_int_equal(fixture_open(f, "short.jsonl", empty, strlen(empty), &cfg, &s),
                         ERR_FORMAT);
        assert_non_null(strstr(err_text(), "1 without two answer tokens in a row"));
        const char *missing[] = {"/nonexistent/x.jsonl"};
        assert_int_equal(data_open(&s, missing, 1, &cfg), ERR_IO);
        assert_non_null(strstr(err_text(), "/nonexistent/x.jsonl"));
        assert_int_equal(data_open(&s, missing, 0, &cfg), ERR_USAGE);
    }
    log_set_sink(NULL, NULL);
}

static void several_files_in_order(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    cfg.lenient = 1;
    char a[512], b[512], side[512], log[1024];
    zst_write_temp(f->dir, "a.jsonl", GOOD "\nbad a\n", strlen(GOOD) + 7, a);
    zst_write_temp(f->dir, "b.jsonl", "bad b\n" PAIR, strlen(PAIR) + 6, b);
    snprintf(side, sizeof side, "%s/side.jsonl", f->dir);
    cfg.side_path = side;
    const char *paths[] = {a, b};
    data_set *s;
    log_set_sink(quiet, log);
    err e = data_open(&s, paths, 2, &cfg);
    log_set_sink(NULL, NULL);
    if (e) fail_msg("%s", err_text());
    assert_int_equal(data_count(s), 2);
    assert_string_equal(data_at(s, 0).path, a);
    assert_string_equal(data_at(s, 1).path, b);
    assert_int_equal(data_at(s, 1).line, 2);
    assert_int_equal(data_at(s, 1).id, 1);
    data_close(s);
    char *copied;
    size_t n;
    assert_int_equal(file_read(side, &copied, &n), ERR_OK);
    assert_string_equal(copied, "bad a\nbad b\n");
    mem_free(copied);
    cfg.side_path = b;
    assert_int_equal(data_open(&s, paths, 2, &cfg), ERR_USAGE);
    assert_int_equal(file_read(b, &copied, &n), ERR_OK); /* the input is as it was */
    assert_string_equal(copied, "bad b\n" PAIR);
    mem_free(copied);
}

static void cut_documents_and_answers_out_of_reach(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    char log[1024] = "";
    data_set *s, *whole;
    if (fixture_open(f, "one.jsonl", GOOD, strlen(GOOD), &cfg, &whole)) fail_msg("%s", err_text());
    int64_t n = data_at(whole, 0).n; /* ... Hello there end \n: supervised n-4 .. n-2 */
    log_set_sink(quiet, log);
    for (int64_t length = 1; length <= n; length++) {
        cfg.max_length = length;
        err e = fixture_open(f, "one.jsonl", GOOD, strlen(GOOD), &cfg, &s);
        if (length <= n - 4) {
            assert_int_equal(e, ERR_FORMAT);
            assert_non_null(strstr(err_text(), "line 1 (at byte 0)"));
            assert_non_null(strstr(err_text(), "max_length"));
        } else if (length == n - 3) { /* one answer token: no anchor fits, nothing is left */
            assert_int_equal(e, ERR_FORMAT);
            assert_non_null(strstr(err_text(), "1 without two answer tokens"));
        } else {
            assert_int_equal(e, ERR_OK);
            assert_int_equal(data_get_counts(s)->cut, length < n);
            assert_int_equal(data_at(s, 0).n, length);
            assert_memory_equal(data_at(s, 0).tokens, data_at(whole, 0).tokens, (size_t)length * 4);
            assert_memory_equal(data_at(s, 0).loss, data_at(whole, 0).loss, (size_t)length);
            data_close(s);
        }
    }
    log_set_sink(NULL, NULL);
    data_close(whole);
    cfg.max_length = 0;
    assert_int_equal(fixture_open(f, "one.jsonl", GOOD, strlen(GOOD), &cfg, &s), ERR_RANGE);
}

static void a_cut_answer_has_no_end_of_turn(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    const char text[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"Hello there\",\"cut\":true}]}\n"
        "{\"prompt\":\"x\",\"response\":\"Hello there\",\"cut\":true}\n"
        "{\"prompt\":\"x\",\"response\":\"Hello there\",\"cut\":false}\n";
    data_set *s;
    if (fixture_open(f, "cut.jsonl", text, sizeof text - 1, &cfg, &s)) fail_msg("%s", err_text());
    const data_doc a = data_at(s, 0), b = data_at(s, 1), whole = data_at(s, 2);
    assert_int_equal(a.n, whole.n - 2);
    assert_int_equal(b.n, a.n);
    assert_memory_equal(a.tokens, whole.tokens, (size_t)a.n * 4);
    assert_memory_equal(b.tokens, whole.tokens, (size_t)a.n * 4);
    assert_int_equal(whole.tokens[a.n], 2);
    data_close(s);
}

static void counts_add_up_and_losses_are_told(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    cfg.lenient = 1;
    char log[1024] = "";
    const char text[] = GOOD "\n\n{\"prompt\":\"x\",\"response\":\"\"}\nbad\n"
                             "{\"prompt\":\"\\u0013\\u0006\",\"response\":\"b c\"}";
    data_set *s;
    log_set_sink(quiet, log);
    err e = fixture_open(f, "sum.jsonl", text, sizeof text - 1, &cfg, &s);
    log_set_sink(NULL, NULL);
    if (e) fail_msg("%s", err_text());
    const data_counts *c = data_get_counts(s);
    assert_int_equal(c->lines, 5);
    assert_int_equal(c->lines, c->blank + c->rejected + c->without_anchor + c->documents);
    assert_int_equal(c->without_anchor, 1);
    assert_int_equal(c->unspellable, 2); /* SmolLM2's vocabulary has no token for these bytes */
    assert_non_null(strstr(log, "2 bytes of text have no token"));
    data_close(s);
}

static void digest_of(const fixture *f, const char *text, const data_config *cfg, char out[33]) {
    data_set *s;
    if (fixture_open(f, "digest.jsonl", text, strlen(text), cfg, &s)) fail_msg("%s", err_text());
    data_digest(s, out);
    data_close(s);
}

static void b18_digest_follows_every_ingredient(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    char base[33], other[33];
    digest_of(f, GOOD "\n", &cfg, base);
    digest_of(f, GOOD "\n", &cfg, other);
    assert_string_equal(base, other); /* nothing changed */
    char changed[] = GOOD "\n";       /* equal size; the time stamp plays no part */
    *strstr(changed, "Hi") = 'h';
    digest_of(f, changed, &cfg, other);
    assert_string_not_equal(base, other);
    cfg.max_length = 511;
    digest_of(f, GOOD "\n", &cfg, other);
    assert_string_not_equal(base, other);
    cfg.max_length = 512;
    chat_template *plain;
    assert_int_equal(chat_template_open(&plain, "chatml", f->tok), ERR_OK);
    cfg.chat = plain;
    digest_of(f, GOOD "\n", &cfg, other);
    assert_string_not_equal(base, other);
    chat_template_free(plain);
    tokenizer *t = smollm2_tokenizer(f->dir, "<gh_stars>", "<gh_stats>");
    chat_template *same;
    assert_int_equal(chat_template_open(&same, "auto", t), ERR_OK);
    cfg.tok = t;
    cfg.chat = same;
    digest_of(f, GOOD "\n", &cfg, other);
    assert_string_not_equal(base, other);
    chat_template_free(same);
    tokenizer_free(t);
}

static void b28_preview_marks_supervised_text(void **state) {
    const fixture *f = *state;
    data_config cfg = fixture_config(f);
    const char *text =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Hi\"},"
        "{\"role\":\"assistant\",\"content\":\"\\ud83d\\ude00 yes\"},{\"role\":\"user\",\"content\":\"more\"},"
        "{\"role\":\"assistant\",\"content\":\"end\"}]}";
    data_set *s;
    str out = {0};
    if (fixture_open(f, "preview.jsonl", text, strlen(text), &cfg, &s)) fail_msg("%s", err_text());
    assert_int_equal(data_preview(s, f->tok, 0, &out), ERR_OK);
    assert_string_equal(out.s, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                               "<|im_start|>assistant\n\u27e6\U0001F600 yes<|im_end|>\u27e7\n"
                               "<|im_start|>user\nmore<|im_end|>\n"
                               "<|im_start|>assistant\n\u27e6end<|im_end|>\u27e7\n");
    assert_int_equal(data_preview(s, f->tok, 1, &out), ERR_RANGE);
    str_free(&out);
    data_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b32_strict_stops_with_line_and_byte),
        cmocka_unit_test(b32_nul_and_forty_megabytes),
        cmocka_unit_test(b32_good_lines_in_every_dress),
        cmocka_unit_test(b32_lenient_counts_and_copies),
        cmocka_unit_test(b32_empty_and_all_bad_files),
        cmocka_unit_test(several_files_in_order),
        cmocka_unit_test(cut_documents_and_answers_out_of_reach),
        cmocka_unit_test(a_cut_answer_has_no_end_of_turn),
        cmocka_unit_test(counts_add_up_and_losses_are_told),
        cmocka_unit_test(b18_digest_follows_every_ingredient),
        cmocka_unit_test(b28_preview_marks_supervised_text),
    };
    return cmocka_run_group_tests_name("data", tests, fixture_set_up, fixture_tear_down);
}
