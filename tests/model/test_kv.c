/* The paged cache: pages come and go, places do not overlap, and what does not fit is a sentence.
 *
 * Three sequences grow and are cropped at random; each position of each holds a number of its own in every layer, so any
 * page given to two owners, or lost, shows. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "flex/paged.h"
#include "model/kv.h"
#include "support/numbers.h"
#include "support/says.h"

enum { LAYERS = 2, HEADS = 3, DIM = 8, SEQS = 3, TOKENS = 400 };

static float mark(int seq, int64_t layer, int64_t pos) {
    return (float)(seq * 100000 + layer * 10000 + pos);
}
static void put(kv_pool *p, kv_seq *s, int seq, int64_t pos) {
    for (int64_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < HEADS * DIM; i++) {
            kv_at_k(p, l, s, pos)[i] = mark(seq, l, pos);
            kv_at_v(p, l, s, pos)[i] = -mark(seq, l, pos);
        }
}
static void check(kv_pool *p, kv_seq *s, int seq) {
    for (int64_t pos = 0; pos < s->length; pos++)
        for (int64_t l = 0; l < LAYERS; l++)
            for (int i = 0; i < HEADS * DIM; i++) {
                assert_true(kv_at_k(p, l, s, pos)[i] == mark(seq, l, pos));
                assert_true(kv_at_v(p, l, s, pos)[i] == -mark(seq, l, pos));
            }
}

static void growth_and_crop_keep_every_place(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    kv_pool *p;
    kv_seq s[SEQS];
    assert_ok(kv_pool_create(&p, LAYERS, HEADS, DIM, TOKENS, SEQS));
    int64_t all = kv_pool_free_pages(p);
    for (int i = 0; i < SEQS; i++) assert_ok(kv_seq_open(p, &s[i], TOKENS));
    for (int step = 0; step < 200; step++) {
        int i = (int)numbers_below(seed, 1, (uint64_t)step, SEQS);
        int64_t n = numbers_below(seed, 2, (uint64_t)step, 90), held = 0;
        for (int k = 0; k < SEQS; k++) held += s[k].length;
        if (held + n > TOKENS || numbers_below(seed, 3, (uint64_t)step, 3) == 0) {
            kv_seq_crop(p, &s[i], numbers_below(seed, 4, (uint64_t)step, s[i].length + 1));
        } else {
            assert_ok(kv_seq_reserve(p, &s[i], n));
            for (int64_t k = 0; k < n; k++) put(p, &s[i], i, s[i].length + k);
            kv_seq_commit(&s[i], n);
        }
        int64_t pages = 0;
        for (int k = 0; k < SEQS; k++) {
            check(p, &s[k], k);
            assert_int_equal(s[k].n_pages, (s[k].length + PAGED_PAGE - 1) / PAGED_PAGE);
            pages += s[k].n_pages;
        }
        assert_int_equal(kv_pool_free_pages(p) + pages, all);
    }
    for (int i = 0; i < SEQS; i++) kv_seq_close(p, &s[i]);
    assert_int_equal(kv_pool_free_pages(p), all);
    assert_true(kv_pool_bytes(p) >= (size_t)LAYERS * HEADS * DIM * TOKENS * 2 * sizeof(float));
    kv_pool_free(p);
}

static void reserved_pages_go_back_without_commit(void **state) {
    (void)state;
    kv_pool *p;
    kv_seq s;
    assert_ok(kv_pool_create(&p, 1, 1, 8, 128, 1));
    assert_ok(kv_seq_open(p, &s, 192));
    assert_ok(kv_seq_reserve(p, &s, 10));
    kv_seq_commit(&s, 10);
    assert_ok(kv_seq_reserve(p, &s, 100));
    assert_int_equal(s.n_pages, 2);
    kv_seq_crop(p, &s, s.length);
    assert_int_equal(s.n_pages, 1);
    assert_int_equal(s.length, 10);
    kv_seq_close(p, &s);
    kv_pool_free(p);
}

static void too_much_is_refused(void **state) {
    (void)state;
    kv_pool *p;
    kv_seq a, b;
    assert_says(kv_pool_create(&p, 1, 1, 8, 0, 1), ERR_RANGE, "0 tokens");
    assert_null(p);
    assert_ok(kv_pool_create(&p, 1, 1, 8, 128, 2));
    assert_ok(kv_seq_open(p, &a, 1000));
    assert_ok(kv_seq_open(p, &b, 64));
    assert_says(kv_seq_reserve(p, &b, 65), ERR_RANGE, "64 tokens", "65");
    assert_ok(kv_seq_reserve(p, &a, 200));
    assert_says(kv_seq_reserve(p, &a, 300), ERR_MEMORY, "256 tokens", "300 more");
    kv_seq_close(p, &a);
    kv_seq_close(p, &b);
    kv_pool_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growth_and_crop_keep_every_place),
        cmocka_unit_test(reserved_pages_go_back_without_commit),
        cmocka_unit_test(too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
