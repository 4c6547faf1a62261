/* Rows: what they hold (B13), how they are packed, that a cursor restores exactly, that ranks partition them (B44).
 *
 * Data sets are made of documents whose text says which one they are. Rows are checked against the documents
 * they name, not against a second packer. */
#include "data/data_fixture.h"
#include "support/numbers.h"

/* n documents; the answer of document i repeats "i " between 1 and most times. */
static data_set *make_set(const fixture *f, int n, int most, uint64_t seed) {
    str text = {0};
    for (int i = 0; i < n; i++) {
        assert_int_equal(str_printf(&text, "{\"prompt\":\"%d\",\"response\":\"", i), ERR_OK);
        int k = 1 + (int)rng_below(seed, RNG_TEST, 1, (uint64_t)i, (uint64_t)most);
        for (int j = 0; j < k; j++) assert_int_equal(str_printf(&text, "%d ", i), ERR_OK);
        assert_int_equal(str_printf(&text, "\"}\n"), ERR_OK);
    }
    data_config cfg = fixture_config(f);
    data_set *s;
    if (fixture_open(f, "rows.jsonl", text.s, text.n, &cfg, &s)) fail_msg("%s", err_text());
    str_free(&text);
    assert_int_equal(data_count(s), n);
    return s;
}

static data_stream *open_stream(const data_set *s, int64_t seed, int64_t budget) {
    data_stream *st;
    if (data_stream_open(&st, s, seed, budget)) fail_msg("%s", err_text());
    return st;
}

static const data_row *next(data_stream *st) {
    const data_row *r;
    if (data_stream_next(st, &r)) fail_msg("%s", err_text());
    return r;
}

/* Everything a row says about itself against the documents it names. */
static void check_row(const data_set *s, const data_row *r) {
    assert_int_equal(r->doc_start[0], 0);
    assert_int_equal(r->doc_start[r->docs], r->n);
    for (int64_t k = 0; k < r->docs; k++) {
        const data_doc d = data_at(s, r->doc_id[k]);
        int64_t at = r->doc_start[k];
        assert_int_equal(r->doc_start[k + 1] - at, d.n);
        assert_memory_equal(r->tokens + at, d.tokens, (size_t)d.n * sizeof *d.tokens);
        assert_memory_equal(r->loss + at, d.loss, (size_t)d.n);
        for (int64_t i = 0; i < d.n; i++) {
            assert_int_equal(r->document[at + i], k);
            assert_int_equal(r->position[at + i], i);
        }
    }
}

static void b13_rows_keep_documents_apart_and_whole(void **state) {
    uint64_t seed = numbers_seed();
    data_set *s = make_set(*state, 40, 30, seed);
    static const int64_t budgets[] = {1, 47, 60, 130, 1000, 1000000};
    for (int b = 0; b < 6; b++) {
        data_stream *st = open_stream(s, (int64_t)(seed >> 1), budgets[b]);
        int64_t max_tokens, max_docs, rows = 0, seen[40] = {0}, tokens = 0;
        data_stream_limits(st, &max_tokens, &max_docs);
        int64_t total = data_stream_rows_per_epoch(st, 0);
        int64_t before = -1; /* tokens of the row before */
        while (data_stream_tell(st).epoch == 0) {
            const data_row *r = next(st);
            check_row(s, r);
            assert_true(r->n <= budgets[b] || r->docs == 1);
            assert_true(r->n <= max_tokens && r->docs <= max_docs);
            /* greedy: this row's first document had no room in the row before */
            if (before >= 0) assert_true(before + r->doc_start[1] > budgets[b]);
            before = r->n;
            for (int64_t k = 0; k < r->docs; k++) seen[r->doc_id[k]]++;
            tokens += r->n;
            rows++;
        }
        assert_int_equal(rows, total);
        assert_int_equal(tokens, data_get_counts(s)->tokens);
        data_cursor c = data_stream_tell(st);
        assert_int_equal(c.epoch, 1);
        assert_int_equal(c.next, 0);
        assert_int_equal(c.rows, rows);
        assert_int_equal(c.tokens, tokens);
        for (int i = 0; i < 40; i++) assert_int_equal(seen[i], 1);
        data_stream_close(st);
    }
    data_close(s);
}

static uint64_t fold(uint64_t h, const data_row *r) {
    for (int64_t i = 0; i < r->n; i++)
        h = (h ^ (uint64_t)(uint32_t)r->tokens[i] ^ (uint64_t)r->position[i] << 32) *
            0x100000001b3u;
    for (int64_t k = 0; k < r->docs; k++) h = (h ^ (uint64_t)r->doc_id[k]) * 0x100000001b3u;
    return h;
}

static void cursor_restores_exactly(void **state) {
    uint64_t seed = numbers_seed();
    data_set *s = make_set(*state, 25, 12, seed);
    data_stream *st = open_stream(s, 5, 100);
    enum { ROWS = 60 };
    uint64_t want[ROWS];
    data_cursor at[ROWS];
    for (int i = 0; i < ROWS; i++) {
        at[i] = data_stream_tell(st);
        want[i] = fold(1, next(st));
    }
    assert_true(at[ROWS - 1].epoch >= 2);
    for (int i = 0; i < ROWS; i++) { /* from each place, in a new stream, to the end */
        data_stream *again = open_stream(s, 5, 100);
        assert_int_equal(data_stream_seek(again, at[i]), ERR_OK);
        for (int k = i; k < ROWS; k++) {
            data_cursor c = data_stream_tell(again);
            assert_memory_equal(&c, &at[k], sizeof c);
            if (k % 7 == 0)
                (void)data_stream_rows_per_epoch(again, k); /* counting changes nothing */
            assert_true(fold(1, next(again)) == want[k]);
        }
        data_stream_close(again);
    }
    for (int i = ROWS - 1; i >= 0; i--) { /* backwards, in the old one */
        assert_int_equal(data_stream_seek(st, at[i]), ERR_OK);
        assert_true(fold(1, next(st)) == want[i]);
    }
    data_stream_close(st);
    data_close(s);
}

static void cursors_of_other_sets_are_refused(void **state) {
    data_set *s = make_set(*state, 5, 3, 1);
    data_stream *st = open_stream(s, 5, 100);
    assert_int_equal(data_stream_seek(st, (data_cursor){.next = 5}), ERR_RANGE);
    assert_non_null(strstr(err_text(), "5"));
    assert_int_equal(data_stream_seek(st, (data_cursor){.epoch = -1}), ERR_RANGE);
    assert_int_equal(data_stream_seek(st, (data_cursor){.rows = -1}), ERR_RANGE);
    assert_int_equal(data_stream_seek(st, (data_cursor){.next = 2}), ERR_RANGE);
    assert_int_equal(data_stream_seek(st, (data_cursor){.next = 2, .docs = 6}), ERR_RANGE);
    assert_int_equal(data_stream_seek(st, (data_cursor){.next = 4, .docs = 5}), ERR_OK);
    data_stream_close(st);
    assert_int_equal(data_stream_open(&st, s, 5, 0), ERR_RANGE);
    assert_null(st);
    data_close(s);
}

static void order_depends_on_seed_and_epoch_alone(void **state) {
    data_set *s = make_set(*state, 103, 3, 1);
    int64_t order[4]
                 [103]; /* seed 1 epoch 0, seed 1 epoch 1, seed 2 epoch 0, seed 1 epoch 0 again */
    static const int64_t seeds[] = {1, 1, 2, 1}, epochs[] = {0, 1, 0, 0};
    for (int v = 0; v < 4; v++) {
        data_stream *st = open_stream(s, seeds[v], 1);
        assert_int_equal(data_stream_seek(st, (data_cursor){.epoch = epochs[v]}), ERR_OK);
        for (int i = 0; i < 103; i++) order[v][i] = next(st)->doc_id[0];
        data_stream_close(st);
    }
    assert_memory_equal(order[0], order[3], sizeof order[0]);
    assert_true(memcmp(order[0], order[1], sizeof order[0]) != 0);
    assert_true(memcmp(order[0], order[2], sizeof order[0]) != 0);
    int moved = 0;
    for (int i = 0; i < 103; i++) moved += order[0][i] != i;
    assert_true(moved > 80);
    data_close(s);
}

static void b44_ranks_partition_rows_exactly(void **state) {
    data_set *s = make_set(*state, 103, 3, 1);
    enum { ROWS = 206 };
    int64_t whole[ROWS];
    data_stream *st = open_stream(s, 9, 1); /* one document a row: 103 rows an epoch */
    assert_int_equal(data_stream_rows_per_epoch(st, 0), 103);
    for (int i = 0; i < ROWS; i++) whole[i] = next(st)->doc_id[0];
    data_stream_close(st);
    for (int ranks = 1; ranks <= 4; ranks++) {
        int64_t joined[ROWS];
        int taken[103] = {0};
        for (int i = 0; i < ROWS; i++) joined[i] = -1;
        for (int rank = 0; rank < ranks;
             rank++) { /* each rank has a stream of its own, same seed */
            st = open_stream(s, 9, 1);
            while (data_stream_tell(st).rows < ROWS) {
                int64_t i = data_stream_tell(st).rows;
                const data_row *r = next(st);
                if (i % ranks != rank) continue;
                assert_int_equal(joined[i], -1);
                joined[i] = r->doc_id[0];
                taken[r->doc_id[0]]++;
            }
            data_stream_close(st);
        }
        assert_memory_equal(joined, whole,
                            sizeof whole); /* no gap, no overlap, same at any count */
        for (int i = 0; i < 103; i++) assert_int_equal(taken[i], 2);
    }
    data_close(s);
}

static void b13_two_documents_of_seventy_and_sixty(void **state) {
    const fixture *f = *state;
    str text = {0};
    static const int want[] = {70, 60};
    for (int d = 0; d < 2; d++) {
        /* what surrounds the answer, measured; digits are one token each */
        data_config cfg = fixture_config(f);
        data_set *probe;
        const char *one = "{\"prompt\":\"q\",\"response\":\"1\"}";
        if (fixture_open(f, "probe.jsonl", one, strlen(one), &cfg, &probe))
            fail_msg("%s", err_text());
        int around = (int)data_at(probe, 0).n - 1;
        data_close(probe);
        assert_int_equal(str_printf(&text, "{\"prompt\":\"q\",\"response\":\"%0*d\"}\n",
                                    want[d] - around, d + 1),
                         ERR_OK);
    }
    data_config cfg = fixture_config(f);
    data_set *s;
    if (fixture_open(f, "two.jsonl", text.s, text.n, &cfg, &s)) fail_msg("%s", err_text());
    data_stream *st = open_stream(s, 1, 130);
    const data_row *r = next(st);
    assert_int_equal(r->docs, 2);
    assert_int_equal(r->n, 130);
    check_row(s, r);
    int64_t first = data_at(s, r->doc_id[0]).n;
    assert_true(first == 70 || first == 60);
    assert_int_equal(r->document[first - 1], 0);
    assert_int_equal(r->document[first], 1);
    assert_int_equal(r->position[first - 1], first - 1);
    assert_int_equal(r->position[first], 0);
    assert_int_equal(data_stream_tell(st).epoch, 1);
    data_stream_close(st);
    st = open_stream(s, 1, 129); /* one token less: two rows */
    assert_int_equal(data_stream_rows_per_epoch(st, 0), 2);
    data_stream_close(st);
    data_close(s);
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b13_rows_keep_documents_apart_and_whole),
        cmocka_unit_test(b13_two_documents_of_seventy_and_sixty),
        cmocka_unit_test(cursor_restores_exactly),
        cmocka_unit_test(cursors_of_other_sets_are_refused),
        cmocka_unit_test(order_depends_on_seed_and_epoch_alone),
        cmocka_unit_test(b44_ranks_partition_rows_exactly),
    };
    return cmocka_run_group_tests_name("data stream", tests, fixture_set_up, fixture_tear_down);
}
