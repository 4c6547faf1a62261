/* Token shards on disk: a store gives what memory gives, is found again, and is never found by mistake (B18).
 *
 * Sets are compared document by document with sets that were prepared without a store. What was read again is counted by
 * the set itself (data_get_work), so a hit is told from a preparation. */
#include "data/store_fixture.h"
#include "io/json.h"
#include "support/numbers.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { ROWS = 60 };

static void a_store_gives_what_memory_gives(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char path[512], dir[512];
    store_write_rows(f, "rows.jsonl", seed, 0, ROWS, path);
    data_config cfg = fixture_config(f);
    data_set *plain = store_open1(path, &cfg);
    assert_int_equal(data_count(plain), ROWS);
    assert_int_equal(data_get_work(plain)->lines, ROWS);
    for (int threads = 0; threads <= 5; threads += 5)
        for (int64_t shard = 0; shard <= 4000; shard += 1000) { /* 0: one; 1000: a few documents */
            cfg.store = store_at(f, "store", dir);
            cfg.threads = threads;
            cfg.shard_bytes = shard;
            data_set *s = store_open1(path, &cfg), *again;
            assert_int_equal(data_get_work(s)->lines, ROWS);
            assert_int_equal(data_get_work(s)->documents, ROWS);
            store_same(s, plain);
            assert_true((store_files(dir, "tokens-") > 3) == (shard > 0));
            cfg.shard_bytes = 0; /* no part of the key */
            again = store_open1(path, &cfg);
            assert_int_equal(data_get_work(again)->lines, 0);
            assert_int_equal(data_get_work(again)->bytes, 0);
            store_same(again, plain);
            assert_string_equal(data_at(again, 3).path, path);
            assert_true(data_memory(again) < data_memory(plain));
            data_close(again);
            data_close(s);
        }
    data_close(plain);
}

static void threads_do_not_change_documents(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    str text = {0};
    char path[512];
    for (int i = 0; i < 900; i += 90) { /* several batches, long and short rows, blank lines */
        store_rows(&text, seed, i, 89, i % 180 ? 300 : 3);
        assert_ok(str_printf(&text, "\n"));
    }
    store_write(f, "rows.jsonl", text.s, text.n, path);
    str_free(&text);
    data_config cfg = fixture_config(f);
    data_set *one = store_open1(path, &cfg);
    assert_int_equal(data_get_counts(one)->blank, 10);
    static const int counts[] = {1, 2, 3, 8, 40};
    for (int i = 0; i < 5; i++) {
        cfg.threads = counts[i];
        data_set *s = store_open1(path, &cfg);
        store_same(s, one);
        data_close(s);
    }
    data_close(one);
    cfg.threads = 2000;
    assert_says(data_open(&one, (const char *const[]){path}, 1, &cfg), ERR_RANGE, "2000 threads");
}

static void the_first_bad_line_is_told_at_any_number_of_threads(void **state) {
    const fixture *f = *state;
    str text = {0};
    char path[512];
    store_rows(&text, 1, 0, 700, 40);
    const size_t at = text.n;
    assert_ok(str_printf(&text, "bad one\n"));
    store_rows(&text, 1, 700, 3, 4);
    assert_ok(str_printf(&text, "bad two\n"));
    store_write(f, "rows.jsonl", text.s, text.n, path);
    str_free(&text);
    char where[64], dir[512];
    snprintf(where, sizeof where, "line 701 (at byte %zu)", at);
    data_config cfg = fixture_config(f);
    for (int i = 0; i < 12; i++) {
        data_set *s;
        cfg.threads = 1 + i % 4;
        cfg.store = i < 6 ? NULL : store_at(f, "store", dir);
        assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_FORMAT, where);
    }
    assert_int_equal(store_files(dir, "tokens-") + store_files(dir, "manifest"), 0);
}

/* Same size, same time stamps: only the bytes tell. */
static void change_byte_in_place(const char *path, const char *from, const char *to) {
    struct stat st;
    char *text;
    size_t n;
    assert_int_equal(stat(path, &st), 0);
    assert_ok(file_read(path, &text, &n));
    char *at = strstr(text, from);
    assert_non_null(at);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, to, strlen(to), at - text), strlen(to));
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    mem_free(text);
    struct stat now;
    assert_int_equal(stat(path, &now), 0);
    assert_true(now.st_size == st.st_size && now.st_mtim.tv_sec == st.st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == st.st_mtim.tv_nsec);
}

static void b18_file_bytes_of_equal_size_and_time_are_seen(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    store_write_rows(f, "rows.jsonl", 5, 0, ROWS, path);
    data_config cfg = fixture_config(f);
    cfg.store = store_at(f, "store", dir);
    store_wants(path, &cfg, ROWS);
    store_wants(path, &cfg, 0);
    data_set *s;
    change_byte_in_place(path, "row 41", "row 14");
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_REFUSED, "rows.jsonl",
                "line 42", dir, "data.allow_changed: true");
    cfg.allow_changed = 1;
    str log = {0};
    log_set_sink(store_log_to, &log);
    store_wants(path, &cfg, ROWS); /* a miss */
    log_set_sink(NULL, NULL);
    assert_non_null(strstr(log.s, "line 42"));
    assert_non_null(strstr(log.s, "anew"));
    str_free(&log);
    store_wants(path, &cfg, 0);
    cfg.allow_changed = 0;
    data_set *disk = store_open1(path, &cfg);
    cfg.store = NULL;
    data_set *plain = store_open1(path, &cfg);
    store_same(disk, plain);
    data_close(plain);
    data_close(disk);
}

/* Each change prepares anew and says why; coming back does too, since a store holds one set. */
static void miss_and_back(const char *path, const data_config *was, const data_config *now,
                          const char *why) {
    str log = {0};
    store_wants(path, was, 0);
    log_set_sink(store_log_to, &log);
    store_wants(path, now, ROWS);
    log_set_sink(NULL, NULL);
    if (!log.s || !strstr(log.s, why)) fail_msg("'%s' is not in: %s", why, log.s ? log.s : "");
    str_free(&log);
    store_wants(path, now, 0);
    store_wants(path, was, ROWS);
}

static void b18_each_ingredient_is_a_miss_and_nothing_a_hit(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    store_write_rows(f, "rows.jsonl", 5, 0, ROWS, path);
    data_config was = fixture_config(f);
    was.store = store_at(f, "store", dir);
    store_wants(path, &was, ROWS);
    data_config now = was;
    now.max_length--;
    miss_and_back(path, &was, &now, "max_length was 512 and is 511");
    now = was;
    now.lenient = 1;
    miss_and_back(path, &was, &now, "bad lines are set aside now");
    chat_template *plain, *same;
    assert_ok(chat_template_open(&plain, "chatml", f->tok));
    now = was;
    now.chat = plain;
    miss_and_back(path, &was, &now, "the chat template is another");
    chat_template_free(plain);
    /* one character of the tokenizer's file */
    tokenizer *t = smollm2_tokenizer(f->dir, "<gh_stars>", "<gh_stats>");
    assert_ok(chat_template_open(&same, "auto", t));
    now = was;
    now.tok = t;
    now.chat = same;
    miss_and_back(path, &was, &now, "the tokenizer is another");
    chat_template_free(same);
    tokenizer_free(t);
    /* another name for the same bytes is no change */
    char moved[512], *text;
    size_t n;
    assert_ok(file_read(path, &text, &n));
    store_write(f, "moved.jsonl", text, n, moved);
    mem_free(text);
    store_wants(moved, &was, 0);
    data_set *s = store_open1(moved, &was);
    assert_string_equal(data_at(s, 0).path, moved);
    data_close(s);
}

typedef enum edit { OTHER_RULE, NO_KEY, OTHER_FORMAT, STALE_DIGEST } edit;

/* Changes a manifest as another version of this program would have written it, digest and all. */
static void edit_manifest(const char *dir, edit what) {
    char path[600], digest[33];
    json_t *top;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    assert_ok(json_read_file(&top, path));
    json_t *store = json_object_get(top, "store"), *key = json_object_get(store, "key");
    if (what == OTHER_RULE) json_object_set_new(key, "rule", json_string("paceline data 1"));
    if (what == NO_KEY) json_object_del(store, "key");
    if (what == OTHER_FORMAT) json_object_set_new(top, "format", json_integer(0));
    if (what == STALE_DIGEST) json_object_set_new(store, "next_shard", json_integer(9));
    char *text = json_dumps(store, JSON_COMPACT | JSON_SORT_KEYS);
    file_hash_bytes(text, strlen(text), digest);
    free(text);
    if (what != STALE_DIGEST) json_object_set_new(top, "digest", json_string(digest));
    assert_ok(json_write_file(top, path));
    json_decref(top);
}

static void b18_other_rules_miss_and_unknown_entries_are_refused(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    data_set *s;
    store_write_rows(f, "rows.jsonl", 5, 0, ROWS, path);
    const char *const paths[] = {path};
    data_config cfg = fixture_config(f);
    cfg.store = store_at(f, "store", dir);
    store_wants(path, &cfg, ROWS);
    edit_manifest(dir, OTHER_RULE);
    store_wants(path, &cfg, ROWS);
    store_wants(path, &cfg, 0);
    edit_manifest(dir, NO_KEY);
    assert_says(data_open(&s, paths, 1, &cfg), ERR_REFUSED, "manifest.json", "no key");
    store_at(f, "store", dir);
    store_wants(path, &cfg, ROWS);
    edit_manifest(dir, OTHER_FORMAT);
    assert_says(data_open(&s, paths, 1, &cfg), ERR_REFUSED, "manifest.json", "format 0");
    store_at(f, "store", dir);
    store_wants(path, &cfg, ROWS);
    edit_manifest(dir, STALE_DIGEST);
    assert_says(data_open(&s, paths, 1, &cfg), ERR_FORMAT, "manifest.json is damaged");
    cfg.allow_changed = 1; /* is about files, not about a damaged store */
    assert_says(data_open(&s, paths, 1, &cfg), ERR_FORMAT, "manifest.json is damaged");
}

static void foreign_files_in_the_folder_stay(void **state) {
    const fixture *f = *state;
    static const char *const kept[] = {"tokens-1.bin", "tokens-00000001.bin.old", "notes.txt"};
    static const char *const swept[] = {"tokens-00000007.bin", "lines-00000003.bin"};
    char path[512], dir[512], other[600];
    store_write_rows(f, "rows.jsonl", 5, 0, ROWS, path);
    data_config cfg = fixture_config(f);
    cfg.store = store_at(f, "deep/er/store", dir);
    data_set *s;
    /* A folder that never was a store is refused, whatever its files are called: none is swept or added. */
    assert_ok(file_make_dirs(dir));
    zst_write_temp(dir, swept[0], "x", 1, other);
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_REFUSED, dir, swept[0],
                "of its own");
    assert_int_equal(store_files(dir, ""), 1);
    assert_ok(file_remove_tree(other));
    store_wants(path, &cfg, ROWS);
    for (int i = 0; i < 3; i++) zst_write_temp(dir, kept[i], "x", 1, other);
    for (int i = 0; i < 2; i++) zst_write_temp(dir, swept[i], "x", 1, other);
    store_wants(path, &cfg, 0);
    for (int i = 0; i < 3; i++) assert_int_equal(store_files(dir, kept[i]), 1);
    for (int i = 0; i < 2; i++) assert_int_equal(store_files(dir, swept[i]), 0);
    cfg.store = path; /* a file */
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_IO, "folder", path);
}

static void digests_of_any_number_of_documents(void **state) {
    const fixture *f = *state;
    char path[512], dir[512], a[33], b[33];
    data_config cfg = fixture_config(f);
    for (int n = 1; n <= 9; n += 4) {
        store_write_rows(f, "rows.jsonl", 5, 0, ROWS, path);
        cfg.store = store_at(f, "store", dir);
        data_set *whole = store_open1(path, &cfg);
        store_write_rows(f, "part.jsonl", 5, 0, n, path);
        cfg.store = NULL;
        data_set *part = store_open1(path, &cfg);
        assert_ok(data_digest_at(whole, n, a));
        data_digest(part, b);
        assert_string_equal(a, b);
        assert_ok(data_digest_at(whole, n + 1, b));
        assert_string_not_equal(a, b);
        assert_says(data_digest_at(part, n + 1, b), ERR_RANGE, "documents");
        data_close(part);
        data_close(whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_gives_what_memory_gives),
        cmocka_unit_test(threads_do_not_change_documents),
        cmocka_unit_test(the_first_bad_line_is_told_at_any_number_of_threads),
        cmocka_unit_test(b18_file_bytes_of_equal_size_and_time_are_seen),
        cmocka_unit_test(b18_each_ingredient_is_a_miss_and_nothing_a_hit),
        cmocka_unit_test(b18_other_rules_miss_and_unknown_entries_are_refused),
        cmocka_unit_test(foreign_files_in_the_folder_stay),
        cmocka_unit_test(digests_of_any_number_of_documents),
    };
    return cmocka_run_group_tests_name("data store", tests, fixture_set_up, fixture_tear_down);
}
