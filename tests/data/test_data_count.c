/* Sets that are only counted: tokens are let go, what is asked for is made again, and a read-only opening changes nothing on disk.
 *
 * A counted set is compared with one that keeps its tokens: counts, digests, documents, whole epochs of rows. Folders are compared byte by
 * byte before and after. Memory is what the set says of itself. */
#include "data/store_fixture.h"
#include "support/numbers.h"

static void quiet(void *ctx, log_level level, const char *line) {
    (void)ctx;
    (void)level;
    (void)line;
}

/* Every file below a folder, by name and digest. */
static void picture(const char *dir, str *out) {
    char **names, path[600], digest[33];
    int n;
    str_clear(out);
    assert_ok(file_list(dir, &names, &n));
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (file_is_dir(path)) continue;
        assert_ok(file_hash(path, digest));
        assert_ok(str_printf(out, "%s %s\n", names[i], digest));
    }
    file_names_free(names, n);
}

static void expect_unchanged(const char *dir, const str *before) {
    str now = {0};
    picture(dir, &now);
    assert_string_equal(now.s, before->s);
    str_free(&now);
}

static void same_rows(const data_set *a, const data_set *b) {
    data_stream *x, *y;
    const data_row *p, *q;
    assert_ok(data_stream_open(&x, a, 5, 200));
    assert_ok(data_stream_open(&y, b, 5, 200));
    while (data_stream_tell(x).epoch < 2) {
        assert_ok(data_stream_next(x, &p));
        assert_ok(data_stream_next(y, &q));
        assert_int_equal(p->n, q->n);
        assert_int_equal(p->docs, q->docs);
        assert_memory_equal(p->tokens, q->tokens, (size_t)p->n * sizeof *p->tokens);
        assert_memory_equal(p->loss, q->loss, (size_t)p->n);
        assert_memory_equal(p->doc_id, q->doc_id, (size_t)p->docs * sizeof *p->doc_id);
    }
    data_stream_close(x);
    data_stream_close(y);
}

static void same_preview(const fixture *f, const data_set *a, const data_set *b) {
    str x = {0}, y = {0};
    assert_ok(data_preview(a, f->tok, data_count(a) / 2, &x));
    assert_ok(data_preview(b, f->tok, data_count(a) / 2, &y));
    assert_string_equal(x.s, y.s);
    str_free(&x);
    str_free(&y);
}

static void a_counted_set_is_the_kept_one_without_its_tokens(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char a[512], b[512];
    str text = {0};
    for (int i = 0; i < 300; i += 30) { /* blank and bad lines between, no line end at the end */
        store_rows(&text, seed, i, 29, i % 60 ? 4 : 400);
        assert_ok(str_printf(&text, "\n{\"prompt\": 3}\n"));
    }
    store_rows(&text, seed, 300, 1, 4);
    store_write(f, "a.jsonl", text.s, text.n - 1, a);
    str_free(&text);
    store_write_rows(f, "b.jsonl", seed, 500, 40, b);
    const char *const paths[] = {a, b};
    data_config cfg = fixture_config(f);
    cfg.lenient = 1;
    log_set_sink(quiet, NULL);
    data_set *kept = store_open(paths, 2, &cfg);
    for (int threads = 1; threads <= 4; threads += 3) {
        cfg.let_go = 1;
        cfg.threads = threads;
        data_set *s = store_open(paths, 2, &cfg);
        assert_int_equal(data_count(s), 331);
        assert_null(data_at(s, 7).tokens);
        store_same(s, kept);
        same_rows(s, kept);
        same_preview(f, s, kept);
        assert_true(data_memory(s) < data_memory(kept) / 2);
        data_close(s);
    }
    data_close(kept);
    log_set_sink(NULL, NULL);
}

static void what_is_let_go_is_not_in_memory(void **state) {
    const fixture *f = *state;
    char path[512];
    size_t held[2];
    data_config cfg = fixture_config(f);
    cfg.max_length = 4096;
    cfg.let_go = 1;
    for (int i = 0; i < 2; i++) { /* as many documents, of 20 words and of 1,000 */
        str text = {0};
        store_rows(&text, 9, 0, 2000, i ? 2000 : 40);
        store_write(f, "rows.jsonl", text.s, text.n, path);
        str_free(&text);
        data_set *s = store_open1(path, &cfg);
        held[i] = data_memory(s);
        assert_true(data_get_counts(s)->tokens > (i ? 1000000 : 20000));
        data_close(s);
    }
    assert_int_equal(held[0], held[1]);
    assert_true(held[0] < (256 << 10) + 2000 * 48 * 3 / 2 + 4096);
}

static void read_only_uses_a_store_and_changes_nothing(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char path[512], dir[512];
    str before = {0}, inputs = {0};
    data_set *s, *kept;
    data_config cfg = fixture_config(f), none = cfg, look;
    cfg.lenient = none.lenient = 1;
    cfg.store = store_at(f, "store", dir);
    cfg.shard_bytes = 2000;
    store_write_rows(f, "rows.jsonl", seed, 0, 50, path);
    store_wants(path, &cfg, 50);
    picture(dir, &before);
    look = cfg;
    look.read_only = 1;
    store_wants(path, &look, 0); /* all of it is there */
    /* It grew, by a bad line too: the new lines alone are read, and every document is that of a set without a store. */
    str text = {0};
    store_rows(&text, seed, 0, 80, 12);
    assert_ok(str_printf(&text, "bad\n"));
    store_write(f, "rows.jsonl", text.s, text.n, path);
    log_set_sink(quiet, NULL);
    picture(f->dir, &inputs);
    s = store_open1(path, &look);
    expect_unchanged(dir, &before);
    expect_unchanged(f->dir, &inputs); /* no side file either */
    assert_int_equal(data_get_work(s)->lines, 31);
    assert_non_null(data_at(s, 49).tokens);
    assert_null(data_at(s, 50).tokens);
    kept = store_open1(path, &none);
    store_same(s, kept);
    same_rows(s, kept);
    same_preview(f, s, kept);
    char x[33], y[33];
    assert_ok(data_digest_at(s, 50, x));
    assert_ok(data_digest_at(kept, 50, y));
    assert_string_equal(x, y);
    data_close(s);
    data_close(kept);
    /* Prepared otherwise: everything is counted, and the store stays what it was. */
    look.max_length = none.max_length = 40;
    s = store_open1(path, &look);
    kept = store_open1(path, &none);
    assert_int_equal(data_get_work(s)->lines, 81);
    store_same(s, kept);
    data_close(s);
    data_close(kept);
    expect_unchanged(dir, &before);
    look.max_length = none.max_length = 512;
    /* Changed: refused by its line as ever, or counted anew where that is allowed. */
    memcpy(strstr(text.s, "row 41"), "row 14", 6);
    store_write(f, "rows.jsonl", text.s, text.n, path);
    str_free(&text);
    assert_says(data_open(&s, (const char *const[]){path}, 1, &look), ERR_REFUSED, "line 42");
    look.allow_changed = 1;
    s = store_open1(path, &look);
    kept = store_open1(path, &none);
    assert_int_equal(data_get_work(s)->lines, 81);
    store_same(s, kept);
    data_close(s);
    data_close(kept);
    log_set_sink(NULL, NULL);
    expect_unchanged(dir, &before);
    str_free(&before);
    str_free(&inputs);
}

/* The line of a document that is made again may have changed, moved or gone since it was counted. */
static void a_line_that_changed_since_is_told(void **state) {
    const fixture *f = *state;
    char path[512];
    data_doc d;
    data_config cfg = fixture_config(f);
    cfg.let_go = 1;
    for (int how = 0; how < 4; how++) {
        str text = {0};
        store_rows(&text, 3, 0, 20, 12);
        store_write(f, "rows.jsonl", text.s, text.n, path);
        data_set *s = store_open1(path, &cfg);
        char *at = strstr(text.s, "row 19\"");
        assert_ok(data_fetch(s, 19, &d));
        if (how == 0) memcpy(at, "row 91", 6);
        if (how == 1) memcpy(at, "row\"19", 6);
        store_write(f, "rows.jsonl", how == 2 ? text.s + 1 : text.s,
                    how == 3 ? (size_t)(at - text.s) - 11 : text.n - (how == 2), path);
        assert_says(data_fetch(s, 19, &d), ERR_IO, "rows.jsonl: line 20 changed");
        if (how != 2) assert_ok(data_fetch(s, 18, &d));
        data_close(s);
        str_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counted_set_is_the_kept_one_without_its_tokens),
        cmocka_unit_test(what_is_let_go_is_not_in_memory),
        cmocka_unit_test(read_only_uses_a_store_and_changes_nothing),
        cmocka_unit_test(a_line_that_changed_since_is_told),
    };
    return cmocka_run_group_tests_name("data counted", tests, fixture_set_up, fixture_tear_down);
}
