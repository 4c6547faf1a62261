/* Rows, stores and sets for the tests of prepared data: texts that say which row they are, sets compared in full.
 *
 * Rows depend on (seed, number) alone, so a longer file begins with the bytes of a shorter one. Header only. */
#ifndef TESTS_DATA_STORE_FIXTURE_H
#define TESTS_DATA_STORE_FIXTURE_H
#include "core/arena.h"
#include "core/file.h"
#include "core/log.h"
#include "core/rng.h"
#include "data/data_fixture.h"
#include "support/says.h"

/* Rows first .. first + n - 1, each with its line end; answers of 2 to most + 1 words. */
static inline void store_rows(str *out, uint64_t seed, int first, int n, int most) {
    static const char *const words[] = {"moon",  " sea", " path", " red",
                                        " nine", " is",  " of",   "."};
    for (int i = first; i < first + n; i++) {
        assert_ok(str_printf(out, "{\"prompt\":\"row %d\",\"response\":\"%d", i, i));
        int k = 2 + (int)rng_below(seed, RNG_TEST, 7, (uint64_t)i, (uint64_t)most);
        for (int j = 0; j < k; j++)
            assert_ok(str_printf(
                out, "%s", words[rng_below(seed, RNG_TEST, (uint64_t)i + 100, (uint64_t)j, 8)]));
        assert_ok(str_printf(out, "\"}\n"));
    }
}

static inline void store_write(const fixture *f, const char *name, const char *text, size_t n,
                               char path[512]) {
    zst_write_temp(f->dir, name, text, n, path);
}

static inline void store_write_rows(const fixture *f, const char *name, uint64_t seed, int first,
                                    int n, char path[512]) {
    str text = {0};
    store_rows(&text, seed, first, n, 12);
    store_write(f, name, text.s, text.n, path);
    str_free(&text);
}

/* A store's folder of this name that does not exist yet. */
static inline const char *store_at(const fixture *f, const char *name, char dir[512]) {
    snprintf(dir, 512, "%s/%s", f->dir, name);
    assert_ok(file_remove_tree(dir));
    return dir;
}

static inline data_set *store_open(const char *const *paths, int n, const data_config *cfg) {
    data_set *s;
    assert_ok(data_open(&s, paths, n, cfg));
    return s;
}
static inline data_set *store_open1(const char *path, const data_config *cfg) {
    return store_open(&path, 1, cfg);
}

/* Documents from .. from + n - 1 of a are documents at .. of b in everything but their ids. */
static inline void store_same_documents(const data_set *a, int64_t from, const data_set *b,
                                        int64_t at, int64_t n) {
    assert_true(from + n <= data_count(a) && at + n <= data_count(b));
    for (int64_t i = 0; i < n; i++) {
        data_doc x, y;
        assert_ok(data_fetch(a, from + i, &x));
        assert_ok(data_fetch(b, at + i, &y));
        assert_int_equal(x.id, from + i);
        assert_int_equal(x.n, y.n);
        assert_int_equal(x.line, y.line);
        assert_int_equal(x.candidates, y.candidates);
        assert_int_equal(x.candidates, data_candidates(x.loss, x.n));
        assert_memory_equal(x.tokens, y.tokens, (size_t)x.n * 4);
        assert_memory_equal(x.loss, y.loss, (size_t)x.n);
    }
}

/* Equal in documents, counts and digest. */
static inline void store_same(const data_set *a, const data_set *b) {
    char x[33], y[33];
    assert_int_equal(data_count(a), data_count(b));
    store_same_documents(a, 0, b, 0, data_count(a));
    assert_memory_equal(data_get_counts(a), data_get_counts(b), sizeof(data_counts));
    data_digest(a, x);
    data_digest(b, y);
    assert_string_equal(x, y);
}

/* Opens, wants this many lines prepared anew, closes. */
static inline void store_wants(const char *path, const data_config *cfg, int64_t lines) {
    data_set *s = store_open1(path, cfg);
    assert_int_equal(data_get_work(s)->lines, lines);
    data_close(s);
}

/* Files of a store by prefix: how many, and nothing else than named kinds in the folder. */
static inline int store_files(const char *dir, const char *prefix) {
    char **names;
    int n, count = 0;
    assert_ok(file_list(dir, &names, &n));
    for (int i = 0; i < n; i++) count += strncmp(names[i], prefix, strlen(prefix)) == 0;
    file_names_free(names, n);
    return count;
}

/* The n-th file (from 0) whose name begins so. */
static inline void store_file(const char *dir, const char *prefix, int n, char path[512]) {
    char **names;
    int count, seen = 0;
    assert_ok(file_list(dir, &names, &count));
    for (int i = 0; i < count; i++)
        if (strncmp(names[i], prefix, strlen(prefix)) == 0 && seen++ == n)
            snprintf(path, 512, "%.200s/%.200s", dir, names[i]);
    file_names_free(names, count);
    assert_true(seen > n);
}

/* Log lines go into a text of the test's. */
static inline void store_log_to(void *ctx, log_level level, const char *line) {
    (void)level;
    str *s = ctx;
    if (str_printf(s, "%s\n", line)) abort();
}

#endif
