/* Packed products against their definition: every instruction set, both types, odd extents, any threads.
 *
 * All comparisons are of bits. Outputs are poisoned with NaN before each product, and what lies behind
 * a row's end must stay untouched. Inputs are fresh in each run; the seed is printed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev/packed.h"
#include "support/numbers.h"

enum { PAD = 5 };

static uint64_t seed;

static void fill(float *v, int64_t n, uint64_t salt) {
    for (int64_t i = 0; i < n; i++) v[i] = (float)rng_normal(seed, RNG_TEST, salt, (uint64_t)i);
}

static dev *open_dev(int threads, const char *isa) {
    setenv("PACELINE_ISA", isa, 1);
    dev *d;
    dev_config cfg = {.threads = threads, .blas = "none"};
    if (dev_open_cpu(&d, &cfg) != ERR_OK) fail_msg("%s", err_text());
    unsetenv("PACELINE_ISA");
    return d;
}

static float *poisoned(int64_t n) {
    float *y = malloc((size_t)n * sizeof *y);
    assert_non_null(y);
    memset(y, 0xff, (size_t)n * sizeof *y);
    return y;
}

static packed make(arena *a, dtype type, int64_t n, int64_t k, uint64_t salt, float **plain) {
    packed w;
    assert_int_equal(packed_alloc(&w, a, type, n, k), ERR_OK);
    float *src;
    assert_int_equal(arena_alloc(a, (size_t)(n * k), sizeof *src, &src), ERR_OK);
    fill(src, n * k, salt);
    packed_set_rows(&w, 0, n, src, k);
    if (plain) *plain = src;
    return w;
}

static const char *const isas[] = {"portable", "avx2", "avx512"};

static void check_shape(dev *d, const packed *w, int64_t m, uint64_t salt) {
    int64_t ldx = w->k + 3, ldy = w->n + PAD;
    float *x = malloc((size_t)(m * ldx + 1) * sizeof *x);
    float *want = poisoned(m * ldy + 1), *have = poisoned(m * ldy + 1);
    fill(x, m * ldx, salt);
    packed_matmul_ref(w, x, ldx, m, want, ldy);
    assert_int_equal(packed_matmul(d, w, x, ldx, m, have, ldy), ERR_OK);
    assert_memory_equal(want, have, (size_t)(m * ldy) * sizeof *want);
    free(x);
    free(want);
    free(have);
}

static void same_bits_on_every_isa_and_shape(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1},    {16, 256},  {17, 257}, {48, 64},   {49, 511},
                                        {95, 513}, {144, 300}, {33, 777}, {1000, 19}, {130, 576}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 97, 130};
    for (int i = 0; i < 3; i++) {
        dev *d = open_dev(2, isas[i]);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int t = 0; t < 2; t++) {
                arena *a;
                assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
                packed w = make(a, t ? DT_F32 : DT_BF16, shapes[s][0], shapes[s][1], s, NULL);
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                    if (rows[r] * w.n * w.k > 3000000) continue;
                    check_shape(d, &w, rows[r], 1000 + s * 100 + r);
                }
                arena_destroy(a);
            }
        dev_close(d);
    }
}

static void a_row_alone_has_the_bits_it_has_among_others(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int t = 0; t < 2; t++) {
        packed w = make(a, t ? DT_F32 : DT_BF16, 211, 576, 7, NULL);
        float *x = malloc((size_t)(17 * w.k) * sizeof *x);
        fill(x, 17 * w.k, 8);
        for (int threads = 1; threads <= 3; threads++) {
            dev *d = open_dev(threads, isas[2]);
            float *alone = poisoned(17 * w.n);
            for (int r = 0; r < 17; r++)
                assert_int_equal(packed_matmul(d, &w, x + r * w.k, w.k, 1, alone + r * w.n, w.n),
                                 ERR_OK);
            for (int m = 1; m <= 17; m++) {
                float *among = poisoned(m * w.n);
                assert_int_equal(packed_matmul(d, &w, x, w.k, m, among, w.n), ERR_OK);
                assert_memory_equal(alone, among, (size_t)(m * w.n) * sizeof *among);
                free(among);
            }
            free(alone);
            dev_close(d);
        }
        free(x);
    }
    arena_destroy(a);
}

static void parts_equal_the_whole(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    packed w = make(a, DT_BF16, 333, 290, 3, NULL);
    enum { M = 11 };
    float *x = malloc((size_t)(M * w.k) * sizeof *x);
    fill(x, M * w.k, 4);
    dev *d = open_dev(2, isas[2]);
    float *whole = poisoned(M * w.n);
    assert_int_equal(packed_matmul(d, &w, x, w.k, M, whole, w.n), ERR_OK);
    static const int64_t bounds[][2] = {{0, 16},    {0, 5},     {16, 333},
                                        {112, 131}, {320, 333}, {48, 48}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        int64_t n0 = bounds[i][0], n1 = bounds[i][1], ld = n1 - n0 + 1;
        float *part = poisoned(M * ld);
        assert_int_equal(packed_matmul_part(d, &w, n0, n1, x, w.k, M, part, ld), ERR_OK);
        for (int r = 0; r < M; r++) {
            assert_memory_equal(part + r * ld, whole + r * w.n + n0,
                                (size_t)(n1 - n0) * sizeof *part);
            assert_true(isnan(part[r * ld + n1 - n0]));
        }
        free(part);
    }
    assert_int_equal(packed_matmul_part(d, &w, 8, 16, x, w.k, M, whole, w.n), ERR_INTERNAL);
    assert_int_equal(packed_matmul_part(d, &w, 0, 334, x, w.k, M, whole, w.n), ERR_INTERNAL);
    dev_close(d);
    free(whole);
    free(x);
    arena_destroy(a);
}

static void empty_extents(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    dev *d = open_dev(2, isas[2]);
    packed w;
    float y[3] = {1, 2, 3}, x[1] = {0};
    assert_int_equal(packed_alloc(&w, a, DT_F32, 3, 0), ERR_OK);
    assert_int_equal(packed_matmul(d, &w, x, 0, 1, y, 3), ERR_OK);
    for (int i = 0; i < 3; i++) assert_true(y[i] == 0.0f);
    assert_int_equal(packed_alloc(&w, a, DT_F32, 0, 4), ERR_OK);
    assert_int_equal(packed_matmul(d, &w, x, 4, 1, y, 0), ERR_OK);
    assert_int_equal(packed_alloc(&w, a, DT_F32, 3, 1), ERR_OK);
    assert_int_equal(packed_matmul(d, &w, x, 1, 0, y, 3), ERR_OK);
    assert_int_equal(packed_alloc(&w, a, DT_F16, 3, 1), ERR_INTERNAL);
    assert_int_equal(packed_alloc(&w, a, DT_F32, INT64_MAX / 8, INT64_MAX / 8), ERR_MEMORY);
    dev_close(d);
    arena_destroy(a);
}

static void rows_come_back(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int t = 0; t < 2; t++) {
        float *src;
        packed w = make(a, t ? DT_F32 : DT_BF16, 37, 65, 5, &src);
        float row[65], all[5 * 70];
        for (int r = 0; r < 37; r++) {
            packed_row(&w, r, row);
            for (int k = 0; k < 65; k++)
                assert_true(row[k] ==
                            (t ? src[r * 65 + k] : bf16_to_f32(bf16_from_f32(src[r * 65 + k]))));
        }
        packed_rows(&w, 14, 5, all, 70);
        for (int r = 0; r < 5; r++) {
            packed_row(&w, 14 + r, row);
            assert_memory_equal(row, all + r * 70, sizeof row);
        }
        packed_set_rows(&w, 16, 1, src, 65); /* one row again: its neighbours stay */
        packed_row(&w, 16, row);
        packed_row(&w, 0, all);
        assert_memory_equal(row, all, sizeof row);
        packed_row(&w, 15, row);
        assert_true(row[0] == (t ? src[15 * 65] : bf16_to_f32(bf16_from_f32(src[15 * 65]))));
    }
    arena_destroy(a);
}

/* Zeros, infinities, subnormals and tiny products that round to -0 follow the definition too. */
static void special_values_follow_the_definition(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    float w0[16 * 3], x[3] = {-1e-30f, 0.0f, 1e-40f};
    for (int i = 0; i < 48; i++) w0[i] = i % 3 == 0 ? 1e-30f : i % 3 == 1 ? -0.0f : (float)i;
    packed w;
    assert_int_equal(packed_alloc(&w, a, DT_F32, 16, 3), ERR_OK);
    packed_set_rows(&w, 0, 16, w0, 3);
    for (int i = 0; i < 3; i++) {
        dev *d = open_dev(1, isas[i]);
        for (int round = 0; round < 3; round++) {
            x[1] = round == 1 ? INFINITY : 0.0f;
            x[2] = round == 2 ? 0.0f : 1e-40f;
            float want[16], have[16];
            packed_matmul_ref(&w, x, 3, 1, want, 16);
            assert_int_equal(packed_matmul(d, &w, x, 3, 1, have, 16), ERR_OK);
            for (int o = 0; o < 16; o++) {
                assert_int_equal(isnan(want[o]) != 0, isnan(have[o]) != 0);
                if (!isnan(want[o])) assert_memory_equal(want + o, have + o, sizeof *want);
            }
        }
        dev_close(d);
    }
    arena_destroy(a);
}

int main(void) {
    seed = numbers_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_every_isa_and_shape),
        cmocka_unit_test(a_row_alone_has_the_bits_it_has_among_others),
        cmocka_unit_test(parts_equal_the_whole),
        cmocka_unit_test(empty_extents),
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(special_values_follow_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
