/* Growth: only new lines are prepared, old documents keep their ids, a cursor goes on, and whatever is not growth is refused by line.
 *
 * A grown set is compared with sets of its parts, prepared without a store. */
#include "data/store_fixture.h"
#include "support/numbers.h"

static void append(const char *path, const char *text, size_t n) {
    FILE *w = fopen(path, "ab");
    assert_non_null(w);
    assert_int_equal(fwrite(text, 1, n, w), n);
    assert_int_equal(fclose(w), 0);
}

static void append_rows(const char *path, uint64_t seed, int first, int n) {
    str text = {0};
    store_rows(&text, seed, first, n, 12);
    append(path, text.s, text.n);
    str_free(&text);
}

static void only_new_lines_are_prepared(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char path[512], dir[512], old[33], at_old[33];
    data_config cfg = fixture_config(f), none = cfg;
    store_write_rows(f, "rows.jsonl", seed, 0, 20, path);
    cfg.store = store_at(f, "store", dir);
    cfg.shard_bytes = 2000;
    data_set *s = store_open1(path, &cfg);
    data_digest(s, old);
    int64_t lines = 20;
    for (int step = 0; step < 6; step++) {
        const int more = 1 + (int)numbers_below(seed, 1, (uint64_t)step, 9);
        append_rows(path, seed, (int)lines, more);
        data_set *grown = store_open1(path, &cfg), *whole = store_open1(path, &none);
        assert_int_equal(data_get_work(grown)->lines, more);
        assert_int_equal(data_get_work(grown)->documents, more);
        store_same(grown, whole); /* one file: the order of lines */
        assert_ok(data_digest_at(grown, lines, at_old));
        assert_string_equal(at_old, old);
        /* the set that was open before still reads its documents */
        store_same_documents(s, 0, whole, 0, lines);
        assert_int_equal(store_files(dir, "documents-"), 1);
        data_close(whole);
        data_close(s);
        s = grown;
        data_digest(s, old);
        lines += more;
        store_wants(path, &cfg, 0);
    }
    data_close(s);
}

static void an_earlier_file_of_several_grows_behind_all_old_documents(void **state) {
    const fixture *f = *state;
    char a[512], b[512], c[512], dir[512];
    data_config cfg = fixture_config(f), none = cfg;
    store_write_rows(f, "a.jsonl", 3, 0, 10, a);
    store_write_rows(f, "b.jsonl", 3, 50, 7, b);
    store_write_rows(f, "c.jsonl", 3, 90, 5, c);
    const char *const paths[] = {a, b, c};
    cfg.store = store_at(f, "store", dir);
    data_set *s = store_open(paths, 2, &cfg), *parts[3];
    assert_int_equal(data_count(s), 17);
    data_close(s);
    append_rows(a, 3, 10, 4);
    s = store_open(paths, 3, &cfg); /* a grew and c is new */
    assert_int_equal(data_get_work(s)->lines, 9);
    assert_int_equal(data_count(s), 26);
    for (int i = 0; i < 3; i++) parts[i] = store_open1(paths[i], &none);
    store_same_documents(s, 0, parts[0], 0, 10);
    store_same_documents(s, 10, parts[1], 0, 7);
    store_same_documents(s, 17, parts[0], 10, 4);
    store_same_documents(s, 21, parts[2], 0, 5);
    assert_string_equal(data_at(s, 19).path, a);
    assert_int_equal(data_at(s, 19).line, 13);
    assert_string_equal(data_at(s, 21).path, c);
    data_close(s);
    for (int i = 0; i < 3; i++) data_close(parts[i]);
    /* a line in the old part of a, found behind two preparations of it */
    char *text;
    size_t n;
    assert_ok(file_read(a, &text, &n));
    memcpy(strstr(text, "row 12"), "row 21", 6);
    store_write(f, "a.jsonl", text, n, a);
    mem_free(text);
    assert_says(data_open(&s, paths, 3, &cfg), ERR_REFUSED, "a.jsonl: line 13 of 14");
    assert_says(data_open(&s, paths, 2, &cfg), ERR_REFUSED, "3 files and 2", "c.jsonl",
                "allow_changed");
    const char *const swapped[] = {b, a, c};
    assert_says(data_open(&s, swapped, 3, &cfg), ERR_REFUSED, "b.jsonl: line 1 of 14");
    cfg.allow_changed = 1;
    s = store_open(swapped, 3, &cfg);
    assert_int_equal(data_get_work(s)->lines, 26);
    data_close(s);
    s = store_open(swapped, 2, &cfg);
    assert_int_equal(data_get_work(s)->lines, 21);
    data_close(s);
}

/* What a file that held `was` may not become, and the line that is named. */
typedef struct change {
    const char *was, *now, *says; /* says NULL: growth */
    int64_t lines;                /* prepared when it is */
} change;
#define ROW(x) "{\"prompt\":\"" x "\",\"response\":\"one two\"}"

static void cut_and_changed_files_are_refused_by_line(void **state) {
    const fixture *f = *state;
    static const change list[] = {
        {ROW("a") "\n" ROW("b") "\n", ROW("a") "\n" ROW("c") "\n", "line 2 of 2", 0},
        {ROW("a") "\n" ROW("b") "\n", ROW("x") "\n" ROW("b") "\n" ROW("c") "\n", "line 1 of 2", 0},
        {ROW("a") "\n" ROW("b") "\n", ROW("a") "\n", "line 2 of 2", 0},
        {ROW("a") "\n" ROW("b") "\n", ROW("a") "\n" ROW("b"), "line 2 lost its line end", 0},
        {ROW("a") "\n" ROW("b") "\n", "", "line 1 of 2", 0},
        {ROW("a") "\n" ROW("b") "\n", ROW("a") "\n" ROW("bb") "\n", "line 2 of 2", 0},
        {ROW("a") "\n" ROW("b") "\n", ROW("z") "\n" ROW("a") "\n" ROW("b") "\n", "line 1 of 2", 0},
        {ROW("a") "\n\n" ROW("b") "\n", ROW("a") "\n" ROW("b") "\n\n", "line 2 of 3", 0},
        {ROW("a") "\n" ROW("b"), ROW("a") "\n" ROW("b") " ", "line 2 was prepared", 0},
        {ROW("a") "\n" ROW("b"), ROW("a") "\n" ROW("b") "\r\n", "line 2 was prepared", 0},
        {ROW("a") "\n  ", ROW("a") "\n  " ROW("b") "\n", "line 2 was prepared", 0},
        {ROW("a") "\n" ROW("b"), ROW("a") "\n" ROW("b") "\n", NULL, 0},
        {ROW("a") "\n" ROW("b"), ROW("a") "\n" ROW("b") "\n" ROW("c"), NULL, 1},
        {ROW("a") "\n" ROW("b"), ROW("a") "\n" ROW("b") "\n\n", NULL, 1},
        {ROW("a") "\n" ROW("b") "\n", ROW("a") "\n" ROW("b") "\n\n" ROW("c") "\n", NULL, 2},
        {ROW("a") "\n", ROW("a") "\n", NULL, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const change *c = &list[i];
        char path[512], dir[512];
        data_set *s, *plain;
        data_config cfg = fixture_config(f);
        cfg.store = store_at(f, "store", dir);
        store_write(f, "x.jsonl", c->was, strlen(c->was), path);
        s = store_open1(path, &cfg);
        data_close(s);
        store_write(f, "x.jsonl", c->now, strlen(c->now), path);
        if (c->says) {
            assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_REFUSED,
                        "x.jsonl: ", c->says, "data.allow_changed: true");
            store_write(f, "x.jsonl", c->was, strlen(c->was), path);
            store_wants(path, &cfg, 0); /* refused and nothing lost */
            continue;
        }
        s = store_open1(path, &cfg);
        assert_int_equal(data_get_work(s)->lines, c->lines);
        cfg.store = NULL;
        plain = store_open1(path, &cfg);
        store_same(s, plain);
        data_close(plain);
        data_close(s);
    }
}

static void a_bad_new_line_leaves_the_old_generation(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    data_set *s;
    data_config cfg = fixture_config(f);
    store_write_rows(f, "rows.jsonl", 3, 0, 9, path);
    cfg.store = store_at(f, "store", dir);
    cfg.shard_bytes = 500;
    store_wants(path, &cfg, 9);
    append_rows(path, 3, 9, 30);
    append(path, "oh\n", 3);
    const int shards = store_files(dir, "tokens-");
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_FORMAT, "line 40");
    assert_int_equal(store_files(dir, "tokens-"), shards); /* nothing half-made stays */
    assert_int_equal(store_files(dir, ".tmp"), 0);
    str text = {0};
    store_rows(&text, 3, 0, 39, 12);
    store_write(f, "rows.jsonl", text.s, text.n, path);
    str_free(&text);
    store_wants(path, &cfg, 30);
}

static void side_files_are_whole_after_growth(void **state) {
    const fixture *f = *state;
    char a[512], b[512], dir[512], side[512], *text;
    size_t n;
    str log = {0};
    data_config cfg = fixture_config(f);
    cfg.lenient = 1;
    cfg.store = store_at(f, "store", dir);
    for (int own = 0; own < 2; own++) { /* one side file for all, then one beside each input */
        store_at(f, "store", dir);
        store_write(f, "a.jsonl", ROW("1") "\nbad a1\n", strlen(ROW("1")) + 8, a);
        store_write(f, "b.jsonl", "bad b1\n" ROW("2") "\n", strlen(ROW("2")) + 8, b);
        const char *const paths[] = {a, b};
        snprintf(side, sizeof side, own ? "%s/a.jsonl.rejected.jsonl" : "%s/side.jsonl", f->dir);
        cfg.side_path = own ? NULL : side;
        log_set_sink(store_log_to, &log);
        data_close(store_open(paths, 2, &cfg));
        assert_ok(file_remove_tree(side));
        append(a, ROW("3") "\nbad a2\n", strlen(ROW("3")) + 8);
        data_set *s = store_open(paths, 2, &cfg);
        log_set_sink(NULL, NULL);
        assert_int_equal(data_get_counts(s)->rejected, 3);
        assert_int_equal(data_get_counts(s)->lines, 6);
        assert_int_equal(data_count(s), 3);
        data_close(s);
        assert_ok(file_read(side, &text, &n));
        assert_string_equal(text, own ? "bad a1\nbad a2\n" : "bad a1\nbad b1\nbad a2\n");
        mem_free(text);
    }
    str_free(&log);
}

/* ---- cursors ---- */

enum { OLD = 40, NEW = 26 };

static data_stream *stream_of(const data_set *s) {
    data_stream *st;
    assert_ok(data_stream_open(&st, s, 11, 120));
    return st;
}

static void a_cursor_goes_on_and_new_documents_join_at_the_next_epoch(void **state) {
    const fixture *f = *state;
    char path[512], dir[512];
    data_config cfg = fixture_config(f);
    store_write_rows(f, "rows.jsonl", 3, 0, OLD, path);
    cfg.store = store_at(f, "store", dir);
    data_set *old = store_open1(path, &cfg);
    append_rows(path, 3, OLD, NEW);
    data_set *grown = store_open1(path, &cfg);
    data_stream *a = stream_of(old), *b;
    const data_row *x, *y;
    /* from every place of the first epoch: the old order to its end, then everything once */
    while (data_stream_tell(a).epoch == 0) {
        const data_cursor from = data_stream_tell(a);
        int seen[OLD + NEW] = {0};
        b = stream_of(grown);
        assert_ok(data_stream_seek(b, from));
        data_stream *rest = stream_of(old);
        assert_ok(data_stream_seek(rest, from));
        if (from.next == 0) { /* an epoch that has not begun takes the grown set */
            assert_int_equal(from.docs, 0);
            assert_int_equal(data_stream_rows_per_epoch(a, 0) < data_stream_rows_per_epoch(b, 0),
                             1);
        } else {
            assert_int_equal(from.docs, OLD);
            assert_int_equal(data_stream_rows_per_epoch(b, 0), data_stream_rows_per_epoch(a, 0));
            while (data_stream_tell(rest).epoch == 0) {
                assert_ok(data_stream_next(rest, &x));
                assert_ok(data_stream_next(b, &y));
                assert_int_equal(x->n, y->n);
                assert_int_equal(x->docs, y->docs);
                assert_memory_equal(x->doc_id, y->doc_id, (size_t)x->docs * sizeof *x->doc_id);
                assert_memory_equal(x->tokens, y->tokens, (size_t)x->n * sizeof *x->tokens);
            }
            data_cursor p = data_stream_tell(rest), q = data_stream_tell(b);
            assert_memory_equal(&p, &q, sizeof p);
            assert_int_equal(q.epoch, 1);
        }
        const int64_t epoch = data_stream_tell(b).epoch;
        while (data_stream_tell(b).epoch == epoch) {
            assert_ok(data_stream_next(b, &y));
            for (int64_t k = 0; k < y->docs; k++) seen[y->doc_id[k]]++;
        }
        for (int i = 0; i < OLD + NEW; i++) assert_int_equal(seen[i], 1);
        data_stream_close(rest);
        data_stream_close(b);
        assert_ok(data_stream_next(a, &x));
    }
    data_stream_close(a);
    data_close(grown);
    data_close(old);
}

static void skipping_counts_what_reading_finds(void **state) {
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char path[512];
    data_config cfg = fixture_config(f);
    store_write_rows(f, "rows.jsonl", seed, 0, 50, path);
    data_set *s = store_open1(path, &cfg);
    static const int64_t limits[] = {1, 5, 1000};
    for (int l = 0; l < 3; l++) {
        data_stream *a = stream_of(s), *b = stream_of(s);
        while (data_stream_tell(a).epoch < 3) {
            const data_row *row;
            data_row_size size;
            int64_t anchors = 0;
            const int64_t epoch = data_stream_tell(a).epoch;
            assert_ok(data_stream_next(a, &row));
            data_stream_skip(b, limits[l], &size);
            for (int64_t k = 0; k < row->docs; k++) {
                const int64_t at = row->doc_start[k];
                const int64_t c = data_candidates(row->loss + at, row->doc_start[k + 1] - at);
                anchors += c < limits[l] ? c : limits[l];
            }
            assert_int_equal(size.epoch, epoch);
            assert_int_equal(size.n, row->n);
            assert_int_equal(size.docs, row->docs);
            assert_int_equal(size.anchors, anchors);
            data_cursor p = data_stream_tell(a), q = data_stream_tell(b);
            assert_memory_equal(&p, &q, sizeof p);
        }
        data_stream_close(a);
        data_stream_close(b);
    }
    data_close(s);
}

static void b44_four_ranks_partition_a_grown_set(void **state) {
    const fixture *f = *state;
    enum { ROWS = 103, RANKS = 4, EPOCHS = 2 };
    char path[512], dir[512];
    data_config cfg = fixture_config(f);
    store_write_rows(f, "rows.jsonl", 3, 0, 60, path);
    cfg.store = store_at(f, "store", dir);
    store_wants(path, &cfg, 60);
    append_rows(path, 3, 60, ROWS - 60);
    int64_t order[EPOCHS][ROWS];
    int taken[EPOCHS][ROWS] = {{0}}, owners[EPOCHS][ROWS];
    memset(order, -1, sizeof order);
    for (int rank = 0; rank < RANKS; rank++) { /* each rank opens set and stream by itself */
        data_set *s = store_open1(path, &cfg);
        assert_int_equal(data_get_work(s)->lines, rank ? 0 : ROWS - 60);
        data_stream *st;
        const data_row *row;
        assert_ok(data_stream_open(&st, s, 9, 1)); /* one document a row */
        while (data_stream_tell(st).epoch < EPOCHS) {
            const data_cursor c = data_stream_tell(st);
            assert_ok(data_stream_next(st, &row));
            assert_int_equal(row->docs, 1);
            /* the whole order is every rank's: it depends on seed and epoch alone */
            int64_t *place = &order[c.epoch][c.rows % ROWS];
            assert_true(rank == 0 || *place == row->doc_id[0]);
            *place = row->doc_id[0];
            if (c.rows % RANKS != rank) continue;
            taken[c.epoch][row->doc_id[0]]++;
            owners[c.epoch][row->doc_id[0]] = rank;
        }
        data_stream_close(st);
        data_close(s);
    }
    int moved = 0, other = 0;
    for (int i = 0; i < ROWS; i++) {
        for (int e = 0; e < EPOCHS; e++) assert_int_equal(taken[e][i], 1); /* no gap, no overlap */
        moved += owners[0][i] != owners[1][i];
        other += order[0][i] != order[1][i];
    }
    assert_true(moved > 30 && other > 80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_new_lines_are_prepared),
        cmocka_unit_test(an_earlier_file_of_several_grows_behind_all_old_documents),
        cmocka_unit_test(cut_and_changed_files_are_refused_by_line),
        cmocka_unit_test(a_bad_new_line_leaves_the_old_generation),
        cmocka_unit_test(side_files_are_whole_after_growth),
        cmocka_unit_test(a_cursor_goes_on_and_new_documents_join_at_the_next_epoch),
        cmocka_unit_test(skipping_counts_what_reading_finds),
        cmocka_unit_test(b44_four_ranks_partition_a_grown_set),
    };
    return cmocka_run_group_tests_name("data growth", tests, fixture_set_up, fixture_tear_down);
}
