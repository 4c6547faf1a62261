/* fp32 products against double-precision loops, with the CBLAS found here and with plain C.
 *
 * Odd extents, all transpositions, row lengths beyond the extents, alpha and beta, poisoned outputs. The error
 * is measured against the sum of absolute products, so that a wrong tile cannot hide. Bits must not
 * depend on the number of threads, and plain C gives the same bits on every instruction set. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev/gemm.h"
#include "support/numbers.h"

static uint64_t seed;

static void fill(float *v, int64_t n, uint64_t salt) {
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)(2 * rng_uniform(seed, RNG_TEST, salt, (uint64_t)i) - 1);
}

static dev *open_dev(int threads, const char *isa, const char *blas) {
    setenv("PACELINE_ISA", isa, 1);
    dev *d;
    dev_config cfg = {.threads = threads, .blas = blas};
    if (dev_open_cpu(&d, &cfg) != ERR_OK) fail_msg("%s", err_text());
    unsetenv("PACELINE_ISA");
    return d;
}

typedef struct problem {
    gemm_args g;
    float *a, *b, *c0;
    int64_t na, nb, nc;
} problem;

static problem make(int64_t m, int64_t n, int64_t k, int ta, int tb, float alpha, float beta) {
    problem p = {.g = {.m = m, .n = n, .k = k, .ta = ta, .tb = tb, .alpha = alpha, .beta = beta}};
    p.g.lda = (ta ? m : k) + 2;
    p.g.ldb = (tb ? k : n) + 1;
    p.g.ldc = n + 3;
    p.na = (ta ? k : m) * p.g.lda + 1;
    p.nb = (tb ? n : k) * p.g.ldb + 1;
    p.nc = m * p.g.ldc + 1;
    p.a = malloc((size_t)p.na * sizeof(float));
    p.b = malloc((size_t)p.nb * sizeof(float));
    p.c0 = malloc((size_t)p.nc * sizeof(float));
    assert_true(p.a && p.b && p.c0);
    fill(p.a, p.na, 1);
    fill(p.b, p.nb, 2);
    fill(p.c0, p.nc, 3);
    if (beta == 0) memset(p.c0, 0xff, (size_t)p.nc * sizeof(float)); /* NaN that must not spread */
    p.g.a = p.a;
    p.g.b = p.b;
    return p;
}

static float *run(dev *d, problem *p) {
    float *c = malloc((size_t)p->nc * sizeof *c);
    memcpy(c, p->c0, (size_t)p->nc * sizeof *c);
    p->g.c = c;
    if (gemm_f32(d, &p->g) != ERR_OK) fail_msg("%s", err_text());
    return c;
}

static void release(problem *p) {
    free(p->a);
    free(p->b);
    free(p->c0);
}

static void check(dev *d, problem *p) {
    float *c = run(d, p);
    const gemm_args *g = &p->g;
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < g->k; k++) {
                double x = (double)p->a[g->ta ? k * g->lda + i : i * g->lda + k] *
                           (double)p->b[g->tb ? j * g->ldb + k : k * g->ldb + j];
                sum += x;
                size += fabs(x);
            }
            double want = (double)g->alpha * sum, old = (double)p->c0[i * g->ldc + j];
            if (g->beta != 0) want += (double)g->beta * old, size += fabs(old);
            double have = (double)c[i * g->ldc + j];
            if (!(fabs(have - want) <= 4e-6 * (size + 1e-3)))
                fail_msg("m %lld n %lld k %lld ta %d tb %d at %lld,%lld: %.9g, not %.9g",
                         (long long)g->m, (long long)g->n, (long long)g->k, g->ta, g->tb,
                         (long long)i, (long long)j, have, want);
        }
        assert_memory_equal(c + i * g->ldc + g->n, p->c0 + i * g->ldc + g->n, 3 * sizeof *c);
    }
    free(c);
}

static const int64_t shapes[][3] = {{1, 1, 1},      {1, 300, 77},   {3, 17, 5},    {12, 32, 256},
                                    {13, 33, 257},  {64, 64, 64},   {97, 1, 600},  {100, 257, 31},
                                    {191, 129, 65}, {300, 310, 40}, {130, 70, 513}};

static void check_all(dev *d) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 4; t++)
            for (int v = 0; v < 3; v++) {
                problem p = make(shapes[s][0], shapes[s][1], shapes[s][2], t & 1, t >> 1,
                                 v == 1 ? 0.5f : 1.0f,
                                 v == 0   ? 0.0f
                                 : v == 1 ? 1.0f
                                          : -0.25f);
                check(d, &p);
                release(&p);
            }
}

static void plain_c_on_every_isa(void **state) {
    (void)state;
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        dev *d = open_dev(2, isas[i], "none");
        assert_string_equal(dev_blas_path(d), "plain C");
        check_all(d);
        dev_close(d);
    }
}

static void the_library_found_here(void **state) {
    (void)state;
    dev *d = open_dev(2, "avx512", NULL);
    print_message("matrix library: %s (%s)\n", dev_blas_path(d), dev_blas_note(d));
    check_all(d);
    dev_close(d);
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const char *const blas[] = {"none", NULL};
    for (int l = 0; l < 2; l++)
        for (int t = 0; t < 4; t++) {
            problem p = make(300 + t, 517, 391, t & 1, t >> 1, 1.0f, 0.5f);
            float *want = NULL;
            for (int threads = 1; threads <= 5; threads++) {
                dev *d = open_dev(threads, "avx512", blas[l]);
                float *c = run(d, &p);
                if (want)
                    assert_memory_equal(want, c, (size_t)p.nc * sizeof *c);
                else
                    want = c;
                if (want != c) free(c);
                dev_close(d);
            }
            free(want);
            release(&p);
        }
}

/* Libraries without locks around their buffers fail here now and then: such a one must not have been taken. */
static void a_hundred_concurrent_products_are_equal(void **state) {
    (void)state;
    static const char *const blas[] = {"none", NULL};
    for (int l = 0; l < 2; l++) {
        problem p = make(300, 517, 191, 0, 0, 1.0f, 0.0f);
        dev *d = open_dev(4, "avx512", blas[l]);
        float *want = run(d, &p);
        for (int i = 0; i < 100; i++) {
            float *c = run(d, &p);
            assert_memory_equal(want, c, (size_t)p.nc * sizeof *c);
            free(c);
        }
        free(want);
        dev_close(d);
        release(&p);
    }
}

static void plain_c_has_the_same_bits_on_every_isa(void **state) {
    (void)state;
    problem p = make(203, 141, 700, 0, 1, 0.7f, 0.3f);
    dev *d = open_dev(1, "portable", "none");
    float *want = run(d, &p);
    dev_close(d);
    static const char *const isas[] = {"avx2", "avx512"};
    for (int i = 0; i < 2; i++) {
        d = open_dev(1, isas[i], "none");
        float *c = run(d, &p);
        assert_memory_equal(want, c, (size_t)p.nc * sizeof *c);
        free(c);
        dev_close(d);
    }
    free(want);
    release(&p);
}

static void empty_and_zero(void **state) {
    (void)state;
    static const char *const blas[] = {"none", NULL};
    for (int l = 0; l < 2; l++) {
        dev *d = open_dev(2, "avx512", blas[l]);
        float c[6] = {NAN, NAN, NAN, NAN, NAN, 7};
        gemm_args g = {
            .m = 1, .n = 5, .k = 0, .alpha = 1, .beta = 0, .c = c, .ldc = 5, .lda = 1, .ldb = 5};
        assert_int_equal(gemm_f32(d, &g), ERR_OK); /* K of 0: zeros */
        for (int i = 0; i < 5; i++) assert_true(c[i] == 0.0f);
        assert_true(c[5] == 7.0f);
        c[0] = 3;
        g.beta = 2;
        assert_int_equal(gemm_f32(d, &g), ERR_OK);
        assert_true(c[0] == 6.0f);
        g.m = 0;
        g.c = NULL;
        assert_int_equal(gemm_f32(d, &g), ERR_OK);
        g.m = 1;
        g.n = 0;
        assert_int_equal(gemm_f32(d, &g), ERR_OK);
        dev_close(d);
    }
}

int main(void) {
    seed = numbers_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_c_on_every_isa),
        cmocka_unit_test(the_library_found_here),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(a_hundred_concurrent_products_are_equal),
        cmocka_unit_test(plain_c_has_the_same_bits_on_every_isa),
        cmocka_unit_test(empty_and_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
