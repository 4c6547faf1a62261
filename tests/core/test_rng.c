/* Keyed random numbers: the published answers of Philox, independence of keys, moments, permutations.
 *
 * Seeds are fixed here: the draws are the same on every machine, and the bounds are five or more
 * standard deviations wide. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/rng.h"

static void published_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        rng_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void keys_and_counters_all_matter(void **state) {
    (void)state;
    uint64_t x = rng_bits(1, 2, 3, 4);
    assert_true(x == rng_bits(1, 2, 3, 4));
    assert_true(x != rng_bits(2, 2, 3, 4) && x != rng_bits(1, 3, 3, 4));
    assert_true(x != rng_bits(1, 2, 4, 4) && x != rng_bits(1, 2, 3, 5) &&
                x != rng_bits(1, 2, 4, 3));
    assert_true(x != rng_bits(1, 2, 3 + ((uint64_t)1 << 32), 4) &&
                x != rng_bits(1 + ((uint64_t)1 << 32), 2, 3, 4));
}

static void moments(void **state) {
    (void)state;
    enum { N = 200000 };
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0;
    int below[7] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(5, RNG_TEST, 0, i), g = rng_normal(5, RNG_TEST, 1, i);
        assert_true(u >= 0 && u < 1);
        u1 += u, u2 += u * u, n1 += g, n2 += g * g, n4 += g * g * g * g;
        below[rng_below(5, RNG_TEST, 2, i, 7)]++;
    }
    assert_true(fabs(u1 / N - 0.5) < 0.005 && fabs(u2 / N - 1.0 / 3) < 0.005);
    assert_true(fabs(n1 / N) < 0.015 && fabs(n2 / N - 1) < 0.02 && fabs(n4 / N - 3) < 0.15);
    for (int i = 0; i < 7; i++) assert_true(abs(below[i] - N / 7) < 1000);
    assert_true(rng_below(5, RNG_TEST, 2, 9, 1) == 0);
}

static void permutations(void **state) {
    (void)state;
    for (int64_t n = 0; n <= 100; n += 25) {
        int64_t perm[100] = {0}, other[100] = {0}, seen[100] = {0};
        rng_permutation(9, RNG_SHUFFLE, 1, n, perm);
        for (int64_t i = 0; i < n; i++) {
            assert_in_range(perm[i], 0, n - 1);
            seen[perm[i]]++;
        }
        for (int64_t i = 0; i < n; i++) assert_int_equal(seen[i], 1);
        rng_permutation(9, RNG_SHUFFLE, 1, n, other);
        assert_memory_equal(perm, other, sizeof perm);
        rng_permutation(9, RNG_SHUFFLE, 2, n, other);
        if (n) assert_memory_not_equal(perm, other, sizeof perm);
    }
    int first[6] = {0};
    for (uint64_t a = 0; a < 6000; a++) {
        int64_t p[6];
        rng_permutation(1, RNG_TEST, a, 6, p);
        first[p[0]]++;
    }
    for (int i = 0; i < 6; i++) assert_in_range(first[i], 850, 1150);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_answers),
        cmocka_unit_test(keys_and_counters_all_matter),
        cmocka_unit_test(moments),
        cmocka_unit_test(permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
