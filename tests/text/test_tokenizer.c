/* The tokenizer against the reference's ids (fixtures written by tools/fixtures/tokenizer.py): hard strings,
 * a megabyte of mixed text, every code point; then properties that need no reference. The vocabulary is
 * SmolLM2's own, committed without weights. */
#include "core/arena.h"
#include "core/file.h"
#include "core/str.h"
#include "support/numbers.h"
#include "support/zst.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/smollm2_tokenizer.h"

#define FIXTURES "tests/fixtures/text/"

typedef struct ids {
    int32_t *v;
    size_t n, cap;
} ids;

static char temp_dir[256];

static int set_up(void **state) {
    zst_temp_dir(temp_dir);
    *state = smollm2_tokenizer(temp_dir, NULL, NULL);
    return 0;
}

static int tear_down(void **state) {
    tokenizer_free(*state);
    zst_temp_remove(temp_dir);
    return 0;
}

static void encode(const tokenizer *t, const char *s, size_t n, int special, ids *out) {
    out->n = 0;
    if (tokenizer_encode(t, s, n, special, &out->v, &out->n, &out->cap)) fail_msg("%s", err_text());
}

static void decode(const tokenizer *t, const ids *in, str *out) {
    str_clear(out);
    for (size_t i = 0; i < in->n; i++) {
        const char *s;
        size_t n;
        assert_int_equal(tokenizer_bytes(t, in->v[i], &s, &n), ERR_OK);
        assert_int_equal(str_add(out, s, n), ERR_OK);
    }
}

/* text without the bytes that no token spells */
static void spellable(const tokenizer *t, const char *s, size_t n, str *out) {
    str_clear(out);
    for (size_t i = 0; i < n; i++)
        if (!tokenizer_unspellable(t, s + i, 1)) assert_int_equal(str_add(out, s + i, 1), ERR_OK);
}

static size_t unhex(const char *hex, size_t digits, char *out) {
    for (size_t i = 0; i + 1 < digits; i += 2) {
        unsigned v;
        char two[3] = {hex[i], hex[i + 1], 0};
        sscanf(two, "%x", &v);
        out[i / 2] = (char)v;
    }
    return digits / 2;
}

static void b34_hard_strings_equal_reference(void **state) {
    const tokenizer *t = *state;
    size_t n, cases = 0;
    char *data = zst_read(FIXTURES "strings.txt.zst", &n);
    ids got = {0};
    str back = {0}, want_back = {0};
    char *save, *line = strtok_r(data, "\n", &save);
    for (; line; line = strtok_r(NULL, "\n", &save), cases++) {
        int special = line[0] - '0';
        char *hex = line + 2, *rest = strchr(hex, ' ');
        size_t digits = (size_t)(rest - hex);
        char *text = malloc(digits + 1);
        size_t length = hex[0] == '-' ? 0 : unhex(hex, digits, text);
        encode(t, text, length, special, &got);
        size_t want_n = 0;
        for (char *end; *rest; rest = end, want_n++) {
            long id = strtol(rest, &end, 10);
            if (end == rest) break;
            if (want_n >= got.n || got.v[want_n] != id)
                fail_msg("string %zu (%.*s): id %zu differs", cases, (int)digits, hex, want_n);
        }
        if (want_n != got.n) fail_msg("string %zu: %zu ids, not %zu", cases, got.n, want_n);
        decode(t, &got, &back);
        spellable(t, text, length, &want_back);
        assert_int_equal(back.n, want_back.n);
        if (back.n) assert_memory_equal(back.s, want_back.s, back.n);
        free(text);
    }
    assert_int_equal(cases, 500);
    str_free(&back);
    str_free(&want_back);
    mem_free(got.v);
    free(data);
}

static void check_sum(const ids *got, size_t want_n, const char *want) {
    char sum[33];
    assert_int_equal(got->n, want_n);
    file_hash_bytes(got->v, got->n * sizeof *got->v, sum);
    assert_string_equal(sum, want);
}

static void b34_megabyte_of_mixed_text_equals_reference(void **state) {
    const tokenizer *t = *state;
    size_t n, bytes, count, sum_n;
    char *data = zst_read(FIXTURES "mixed.txt.zst", &n), *sums, sum[33];
    assert_int_equal(file_read(FIXTURES "mixed.sum", &sums, &sum_n), ERR_OK);
    assert_int_equal(sscanf(sums, "%zu %zu %32s", &bytes, &count, sum), 3);
    assert_int_equal(n, bytes);
    ids got = {0};
    encode(t, data, n, 0, &got);
    check_sum(&got, count, sum);
    str back = {0}, want = {0};
    decode(t, &got, &back);
    spellable(t, data, n, &want);
    assert_int_equal(back.n, want.n);
    assert_memory_equal(back.s, want.s, want.n);
    str_free(&back);
    str_free(&want);
    mem_free(got.v);
    mem_free(sums);
    free(data);
}

/* The same text as the script makes: each code point beside letters, digits, marks, blanks, itself. */
static void codepoint_text(uint32_t first, str *out) {
    str_clear(out);
    for (uint32_t cp = first; cp < first + 4096; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        char c[4];
        size_t n = (size_t)utf8_encode(cp, c);
        static const char *const around[] = {"x", "x1", "1!", "! ", " \t", "", "\n'", "\n"};
        for (int i = 0; i < 8; i++) {
            assert_int_equal(str_add(out, around[i], strlen(around[i])), ERR_OK);
            if (i < 7) assert_int_equal(str_add(out, c, n), ERR_OK);
        }
    }
}

static void b34_every_code_point_splits_as_reference(void **state) {
    const tokenizer *t = *state;
    char *sums, sum[33];
    size_t sum_n, count;
    assert_int_equal(file_read(FIXTURES "codepoints.sum", &sums, &sum_n), ERR_OK);
    str text = {0};
    ids got = {0};
    const char *at = sums;
    for (uint32_t first = 0; first < 0x110000; first += 4096) {
        int used;
        assert_int_equal(sscanf(at, "%zu %32s%n", &count, sum, &used), 2);
        at += used;
        codepoint_text(first, &text);
        encode(t, text.n ? text.s : "", text.n, 0, &got);
        if (got.n != count) fail_msg("U+%04X and on: %zu ids, not %zu", first, got.n, count);
        if (got.n) check_sum(&got, count, sum);
    }
    str_free(&text);
    mem_free(got.v);
    mem_free(sums);
}

/* The definition: of all neighbouring pairs the one of lowest rank, leftmost first; ranks by binary search in the
 * file's merge list, whose spellings of a..z are the letters themselves. */
typedef struct merge_line {
    const char *s;
    size_t n;
    int64_t rank;
} merge_line;

static int by_text(const void *a, const void *b) {
    const merge_line *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static int64_t plain_rank(const merge_line *lines, size_t n, const char *left, size_t n_left,
                          size_t n_right) {
    char joined[512];
    memcpy(joined, left, n_left);
    joined[n_left] = ' ';
    memcpy(joined + n_left + 1, left + n_left, n_right);
    merge_line key = {joined, n_left + 1 + n_right, 0};
    const merge_line *hit = bsearch(&key, lines, n, sizeof *lines, by_text);
    return hit ? hit->rank : INT64_MAX;
}

/* Boundaries of the pieces that remain of text[0..n) into starts[0..result]. */
static size_t plain_merge(const merge_line *lines, size_t n_lines, const char *text, size_t n,
                          size_t *starts) {
    size_t m = n;
    for (size_t i = 0; i <= n; i++) starts[i] = i;
    for (;;) {
        size_t best = 0;
        int64_t best_rank = INT64_MAX;
        for (size_t i = 0; i + 1 < m; i++) {
            int64_t r = plain_rank(lines, n_lines, text + starts[i], starts[i + 1] - starts[i],
                                   starts[i + 2] - starts[i + 1]);
            if (r < best_rank) best = i, best_rank = r;
        }
        if (best_rank == INT64_MAX) return m;
        memmove(starts + best + 1, starts + best + 2, (m - best - 1) * sizeof *starts);
        m--;
    }
}

static void merges_equal_the_plain_definition(void **state) {
    const tokenizer *t = *state;
    uint64_t seed = numbers_seed();
    char path[512];
    gguf *g;
    snprintf(path, sizeof path, "%s/tokenizer.gguf", temp_dir);
    assert_int_equal(gguf_open(&g, path), ERR_OK);
    int64_t n_lines;
    assert_int_equal(gguf_array_count(g, "tokenizer.ggml.merges", &n_lines), ERR_OK);
    merge_line *lines = malloc((size_t)n_lines * sizeof *lines);
    for (int64_t i = 0; i < n_lines; i++) {
        lines[i].rank = i;
        assert_int_equal(gguf_array_text(g, "tokenizer.ggml.merges", i, &lines[i].s, &lines[i].n),
                         ERR_OK);
    }
    qsort(lines, (size_t)n_lines, sizeof *lines, by_text);
    ids got = {0};
    for (uint64_t round = 0; round < 60; round++) {
        char text[200];
        size_t starts[201], n = 1 + rng_below(seed, RNG_TEST, round, 0, sizeof text - 1);
        uint64_t letters = 1 + rng_below(seed, RNG_TEST, round, 1, 26);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_below(seed, RNG_TEST, round, 2 + i, letters));
        size_t m = plain_merge(lines, (size_t)n_lines, text, n, starts);
        encode(t, text, n, 0, &got);
        assert_int_equal(got.n, m);
        for (size_t i = 0; i < m; i++) {
            const char *s;
            size_t k;
            assert_int_equal(tokenizer_bytes(t, got.v[i], &s, &k), ERR_OK);
            assert_int_equal(k, starts[i + 1] - starts[i]);
            assert_memory_equal(s, text + starts[i], k);
        }
    }
    mem_free(got.v);
    free(lines);
    gguf_close(g);
}

static void any_bytes_come_back(void **state) {
    const tokenizer *t = *state;
    uint64_t seed = numbers_seed();
    ids got = {0};
    str back = {0}, want = {0};
    for (uint64_t round = 0; round < 300; round++) {
        char text[600];
        size_t n = rng_below(seed, RNG_TEST, round, 0, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(rng_bits(seed, RNG_TEST, round, i + 1) & (round & 1 ? 0xff : 0x7f));
        encode(t, text, n, 0, &got);
        decode(t, &got, &back);
        spellable(t, text, n, &want);
        assert_int_equal(back.n, want.n);
        if (want.n) assert_memory_equal(back.s, want.s, want.n);
        assert_int_equal(n - want.n, tokenizer_unspellable(t, text, n));
    }
    str_free(&back);
    str_free(&want);
    mem_free(got.v);
}

static void a_megabyte_without_a_break(void **state) {
    const tokenizer *t = *state;
    size_t n = 1 << 20;
    char *text = malloc(n);
    ids got = {0};
    str back = {0};
    for (const char *fill = "aA \n!0'"; *fill; fill++) {
        memset(text, *fill, n);
        encode(t, text, n, 0, &got);
        decode(t, &got, &back);
        assert_int_equal(back.n, n);
        assert_memory_equal(back.s, text, n);
    }
    free(text);
    str_free(&back);
    mem_free(got.v);
}

static void control_tokens_only_when_asked(void **state) {
    const tokenizer *t = *state;
    ids got = {0};
    int32_t start = tokenizer_find(t, "<|im_start|>");
    assert_int_equal(start, 1);
    assert_int_equal(tokenizer_find(t, "<|im_end|>"), 2);
    assert_int_equal(tokenizer_find(t, "the"), -1);
    assert_int_equal(tokenizer_find(t, "<|nothing|>"), -1);
    encode(t, "<|im_start|>", 12, 1, &got);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.v[0], start);
    encode(t, "<|im_start|>", 12, 0, &got);
    assert_true(got.n > 1);
    for (size_t i = 0; i < got.n; i++) assert_false(tokenizer_is_control(t, got.v[i]));
    assert_true(tokenizer_is_control(t, start));
    assert_false(tokenizer_is_control(t, -1));
    assert_false(tokenizer_is_control(t, 49152));
    mem_free(got.v);
}

static void facts_of_the_file(void **state) {
    const tokenizer *t = *state;
    const int32_t *ends;
    const char *s;
    size_t n;
    assert_int_equal(tokenizer_count(t), 49152);
    assert_int_equal(tokenizer_end_ids(t, &ends), 1);
    assert_int_equal(ends[0], 2);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_string_equal(tokenizer_pre(t), "smollm");
    assert_non_null(strstr(tokenizer_chat_template(t), "SmolLM"));
    assert_int_equal(tokenizer_bytes(t, 49152, &s, &n), ERR_RANGE);
    assert_non_null(strstr(err_text(), "49152"));
    assert_int_equal(tokenizer_bytes(t, -1, &s, &n), ERR_RANGE);
}

static void b34_unknown_pre_tokenizer_refused_by_name(void **state) {
    (void)state;
    tokenizer *t;
    assert_int_equal(smollm2_load(temp_dir, "smollm", "smullm", &t), ERR_REFUSED);
    assert_null(t);
    assert_non_null(strstr(err_text(), "'smullm'"));
    assert_non_null(strstr(err_text(), "known: smollm"));
    assert_int_equal(smollm2_load(temp_dir, "gpt2", "bert", &t), ERR_REFUSED);
    assert_non_null(strstr(err_text(), "'bert'"));
}

static void damaged_vocabularies_are_refused(void **state) {
    (void)state;
    tokenizer *t;
    assert_int_equal(smollm2_load(temp_dir, "\xc4\xa0 t", "\xc4\xa0 \x07", &t), ERR_FORMAT);
    assert_non_null(strstr(err_text(), "merge 0 "));
    assert_int_equal(smollm2_load(temp_dir, "<|im_end|>", "<|im_endX>", &t),
                     ERR_OK); /* a spelling is free */
    assert_int_equal(tokenizer_find(t, "<|im_endX>"), 2);
    tokenizer_free(t);
    assert_int_equal(smollm2_load(temp_dir, "<gh_stars>", "<filename>", &t), ERR_FORMAT);
    assert_non_null(strstr(err_text(), "same spelling '<filename>'"));
}

static void b18_digest_follows_vocabulary_merges_and_specials(void **state) {
    tokenizer *t;
    char before[33], after[33], again[33];
    tokenizer_digest(*state, before);
    assert_int_equal(strlen(before), 32);
    assert_int_equal(smollm2_load(temp_dir, "<|im_end|>", "<|im_endX>", &t), ERR_OK);
    tokenizer_digest(t, after);
    assert_string_not_equal(before, after);
    tokenizer_free(t);
    assert_int_equal(smollm2_load(temp_dir, "<|im_end|>", "<|im_end|>", &t), ERR_OK);
    tokenizer_digest(t, again);
    assert_string_equal(before, again);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b34_hard_strings_equal_reference),
        cmocka_unit_test(b34_megabyte_of_mixed_text_equals_reference),
        cmocka_unit_test(b34_every_code_point_splits_as_reference),
        cmocka_unit_test(merges_equal_the_plain_definition),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(a_megabyte_without_a_break),
        cmocka_unit_test(control_tokens_only_when_asked),
        cmocka_unit_test(facts_of_the_file),
        cmocka_unit_test(b34_unknown_pre_tokenizer_refused_by_name),
        cmocka_unit_test(damaged_vocabularies_are_refused),
        cmocka_unit_test(b18_digest_follows_vocabulary_merges_and_specials),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, set_up, tear_down);
}
