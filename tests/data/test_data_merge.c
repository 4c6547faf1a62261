/* Growth in many small steps: few shards, little copied, documents as if prepared in one go, large shards never touched again.
 *
 * The choice of shards is tried alone on random histories; a real store grows step by step and is compared with a set without one, its
 * manifest read at each step. Kills inside a growth that merges are test_data_faults.c's. */
#include "data/data_prepare.h"
#include "data/store_fixture.h"
#include "support/files.h"
#include "support/numbers.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Shards that a store may have: each at least half full, and of the small ones each larger than all behind it, down to a part of a
 * shard; twice, since what will come is only estimated. */
static int64_t most_shards(int64_t total, int64_t most) { return 2 * total / most + 2 + 2 * 7; }

static err add_shard(data__manifest *m, int64_t bytes) {
    TRY(mem_grow(&m->shards, &m->shards_cap, m->n_shards + 1, sizeof *m->shards));
    m->shards[m->n_shards++] = (data__shard){.number = m->next_shard++, .bytes = bytes};
    return ERR_OK;
}

/* What data_out.c does with the choice: the chosen shards and the new bytes, in shards as full as they may be. */
static int64_t grow(data__manifest *m, double estimate, int64_t bytes, int64_t most) {
    const size_t from = data__merge_from(m, estimate, most);
    const int64_t copied = data__merge_bytes(m, from);
    for (size_t i = from; i < m->n_shards; i++) assert_true(m->shards[i].bytes <= most / 2);
    m->n_shards = from;
    for (int64_t left = copied + bytes; left > 0; left -= most)
        assert_ok(add_shard(m, left < most ? left : most));
    return copied;
}

static void any_history_leaves_few_shards_and_copies_little(void **state) {
    enum { MOST = 1 << 20 };
    const uint64_t seed = numbers_seed();
    (void)state;
    for (uint64_t run = 0; run < 60; run++) {
        data__manifest m = {0};
        int64_t total = 0, copied = 0;
        /* Steps of one size, from some bytes to more than a shard, or of any; the estimate is off by up to 2 either way. */
        const int64_t size = (int64_t)1 << numbers_below(seed, run, 0, 22);
        const int steps = size > MOST / 8 ? 200 : 1500;
        for (int i = 0; i < steps; i++) {
            const int64_t bytes =
                run % 2 ? size : 1 + (int64_t)numbers_below(seed, run + 100, (uint64_t)i, 2 * size);
            const double off =
                0.5 + 1.5 * (double)numbers_below(seed, run + 200, (uint64_t)i, 100) / 100;
            copied += grow(&m, off * (double)bytes, bytes, MOST);
            total += bytes;
            assert_true((int64_t)m.n_shards <= most_shards(total, MOST));
        }
        int64_t sum = 0;
        for (size_t i = 0; i < m.n_shards; i++) sum += m.shards[i].bytes;
        assert_int_equal(sum, total);
        /* At most 20 doublings, and what tiny steps copy again and again: a 64th of a shard and as much again. */
        assert_true(copied <= 20 * total + (int64_t)steps * (MOST / 32));
        if (size >= MOST / 64) assert_true(copied <= 8 * total);
        data__manifest_free(&m);
    }
}

static void shards_of_older_stores_are_merged_too(void **state) {
    enum { MOST = 6400 };
    data__manifest m = {0};
    (void)state;
    for (int i = 0; i < 300; i++) assert_ok(add_shard(&m, 90));
    assert_int_equal(data__merge_from(&m, 50, MOST), 0);
    assert_int_equal(grow(&m, 50, 50, MOST), 300 * 90);
    assert_int_equal(m.n_shards, 5);
    /* A shard larger than what comes stays, and one above half the limit whatever comes. */
    m.n_shards = 0;
    assert_ok(add_shard(&m, MOST / 2 + 1));
    assert_ok(add_shard(&m, MOST / 2));
    assert_int_equal(data__merge_from(&m, MOST / 2 - 1, MOST), 2);
    assert_int_equal(data__merge_from(&m, 100 * MOST, MOST), 1);
    data__manifest_free(&m);
    assert_int_equal(data__merge_from(&m, 100, MOST), 0);
}

/* ---- a real store ---- */

typedef struct shard_file {
    int64_t number, bytes;
    ino_t file;
} shard_file;

/* The store's shards by its manifest, each found on the disk; and no other is there. */
static int list_shards(const char *dir, shard_file *out, int cap) {
    char path[600];
    data__manifest m;
    struct stat st;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    assert_ok(data__manifest_read(&m, path));
    const int n = (int)m.n_shards;
    assert_true(n <= cap);
    assert_int_equal(store_files(dir, "tokens-"), n);
    assert_true(m.n_segments == 1);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/tokens-%08lld.bin", dir, (long long)m.shards[i].number);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, m.shards[i].bytes);
        out[i] = (shard_file){m.shards[i].number, m.shards[i].bytes, st.st_ino};
    }
    data__manifest_free(&m);
    return n;
}

static void append_rows(const char *path, uint64_t seed, int first, int n) {
    str text = {0};
    store_rows(&text, seed, first, n, 12);
    FILE *w = fopen(path, "ab");
    assert_non_null(w);
    assert_int_equal(fwrite(text.s, 1, text.n, w), text.n);
    assert_int_equal(fclose(w), 0);
    str_free(&text);
}

static void b42_many_small_growths_leave_few_shards_and_the_same_documents(void **state) {
    enum { MOST = 8000, STEPS = 150, SHARDS = 64 };
    const fixture *f = *state;
    const uint64_t seed = numbers_seed();
    char path[512], dir[512];
    data_config cfg = fixture_config(f), none = cfg;
    shard_file was[SHARDS], now[SHARDS];
    int64_t copied = 0, total = 0;
    store_write_rows(f, "rows.jsonl", seed, 0, 60, path);
    cfg.store = store_at(f, "store", dir);
    cfg.shard_bytes = MOST;
    store_wants(path, &cfg, 60);
    int n = list_shards(dir, was, SHARDS), rows = 60;
    for (int i = 0; i < n; i++) total += was[i].bytes;
    for (int step = 0; step < STEPS; step++) {
        const int more = 1 + (int)numbers_below(seed, 1, (uint64_t)step, 4);
        append_rows(path, seed, rows, more);
        rows += more;
        store_wants(path, &cfg, more);
        const int m = list_shards(dir, now, SHARDS);
        int64_t sum = 0, same = 0;
        for (int i = 0; i < m; i++) {
            sum += now[i].bytes;
            if (i < n && now[i].number == was[i].number) same += now[i].bytes;
        }
        for (int i = 0; i < n; i++) /* what is large stays as the file it is */
            if (was[i].bytes > MOST / 2)
                assert_true(i < m && was[i].number == now[i].number && was[i].file == now[i].file);
        copied += total - same;
        total = sum;
        assert_true(m <= most_shards(total, MOST));
        memcpy(was, now, sizeof was);
        n = m;
        if (step % 25 != STEPS % 25 && step + 1 < STEPS) continue;
        data_set *grown = store_open1(path, &cfg), *whole = store_open1(path, &none);
        store_same(grown, whole);
        data_close(whole);
        data_close(grown);
    }
    print_message("%d rows in %d growths: %d shards, %lld bytes, %lld copied\n", rows, STEPS, n,
                  (long long)total, (long long)copied);
    assert_true(copied <= 8 * total);
    /* the kept hashes of lines still find the first that differs */
    char *text;
    size_t size;
    data_set *s;
    assert_ok(file_read(path, &text, &size));
    memcpy(strstr(text, "row 77\""), "row 78\"", 7);
    store_write(f, "rows.jsonl", text, size, path);
    mem_free(text);
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_REFUSED, "line 78 of");
}

/* A copy must not make a damaged document one of the new shard's. */
static void a_damaged_shard_is_not_copied(void **state) {
    const fixture *f = *state;
    char path[512], dir[512], shard[512];
    uint8_t byte = 0;
    data_set *s;
    data_config cfg = fixture_config(f);
    store_write_rows(f, "rows.jsonl", 3, 0, 12, path);
    cfg.store = store_at(f, "store", dir);
    store_wants(path, &cfg, 12);
    store_file(dir, "tokens-", 0, shard);
    int fd = open(shard, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 400) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 400), 1);
    append_rows(path, 3, 12, 12);
    assert_says(data_open(&s, (const char *const[]){path}, 1, &cfg), ERR_FORMAT, shard, "damaged",
                "document ", "rows.jsonl, line ", "bring the file back");
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 400), 1);
    close(fd);
    store_wants(path, &cfg, 12);
    assert_false(file_exists(shard));
    assert_int_equal(store_files(dir, "tokens-"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_history_leaves_few_shards_and_copies_little),
        cmocka_unit_test(shards_of_older_stores_are_merged_too),
        cmocka_unit_test(b42_many_small_growths_leave_few_shards_and_the_same_documents),
        cmocka_unit_test(a_damaged_shard_is_not_copied),
    };
    log_set_level(LOG_WARN); /* a line for each growth */
    files_in_memory();       /* syncs are many */
    return cmocka_run_group_tests_name("data merging", tests, fixture_set_up, fixture_tear_down);
}
