/* Tile arithmetic of every instruction set against plain loops, and against each other bit for bit.
 *
 * Forms that this CPU lacks are left out; the portable ones always run. Extents go around the edges of the register
 * blocks, outputs are poisoned, and the exponential is judged against the library's in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flex/tileops.h"
#include "support/numbers.h"
#include "support/says.h"
#include <string.h>

enum { MAX_FORMS = 4 };
typedef struct forms {
    const tileops *t[MAX_FORMS];
    int n; /* t[0]: portable, bits of its own; the others are exact */
} forms;

static forms usable(void) {
    forms f = {{tileops_get(DEV_ISA_PORTABLE), tileops_get_exact(DEV_ISA_PORTABLE)}, 2};
    dev *d;
    const dev_config cfg = {.threads = 1, .blas = "none"};
    assert_ok(dev_open_cpu(&d, &cfg));
    for (int isa = DEV_ISA_AVX2; isa <= (int)dev_get_isa(d); isa++)
        f.t[f.n++] = tileops_get((dev_isa)isa);
    dev_close(d);
    return f;
}

static void products_equal_plain_loops(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    forms f = usable();
    for (int i = 0; i < 150; i++) {
        uint64_t s = seed + (uint64_t)i;
        int64_t m = numbers_below(s, 1, 0, 20), n = 8 * numbers_below(s, 2, 0, 20),
                k = numbers_below(s, 3, 0, 70);
        int along = (int)numbers_below(s, 4, 0, 2), add = (int)numbers_below(s, 5, 0, 2);
        int64_t sam = along ? 1 : k + 3, sak = along ? m + 2 : 1, ldb = n + 8, ldc = n + 16,
                cells = m * ldc + 1;
        float *a = numbers_new((m + 3) * (k + 3) + 9, s, 6, 1),
              *b = numbers_new((k + 1) * ldb, s, 7, 1), *c[MAX_FORMS];
        float *start = numbers_new(cells, s, 8, 1);
        for (int j = 0; j < f.n; j++) {
            c[j] = numbers_poisoned(cells);
            if (add) memcpy(c[j], start, (size_t)cells * sizeof(float));
            const tile_mm g = {m, n, k, a, sam, sak, b, ldb, c[j], ldc, add};
            f.t[j]->gemm(&g);
            for (int64_t r = 0; r < m; r++) {
                for (int64_t x = 0; x < ldc; x++) {
                    float got = c[j][r * ldc + x];
                    double want = add ? (double)start[r * ldc + x] : 0;
                    if (x >= n) { /* nothing past n is touched */
                        assert_true(add ? got == start[r * ldc + x] : got != got);
                        continue;
                    }
                    for (int64_t z = 0; z < k; z++)
                        want += (double)a[r * sam + z * sak] * (double)b[z * ldb + x];
                    assert_true(fabs((double)got - want) < 1e-4);
                }
            }
            if (j > 1) assert_memory_equal(c[j], c[1], (size_t)cells * sizeof(float));
        }
        for (int j = 0; j < f.n; j++) free(c[j]);
        free(a), free(b), free(start);
    }
}

static void transposes_equal_plain_loops(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    forms f = usable();
    for (int i = 0; i < 100; i++) {
        uint64_t s = seed + (uint64_t)i;
        int64_t rows = numbers_below(s, 1, 0, 65), cols = 8 * numbers_below(s, 2, 0, 20),
                ld = cols + 5, ldd = rows + 3;
        float *src = numbers_new((rows + 1) * ld, s, 3, 1);
        for (int j = 0; j < f.n; j++) {
            float *dst = numbers_poisoned((cols + 1) * ldd);
            f.t[j]->transpose(src, ld, rows, cols, dst, ldd);
            for (int64_t c = 0; c < cols; c++) {
                for (int64_t r = 0; r < ldd; r++) {
                    float got = dst[c * ldd + r];
                    assert_true(r < rows ? got == src[r * ld + c] : got != got);
                }
            }
            free(dst);
        }
        free(src);
    }
}

/* exp over its whole range: within 1.5 ulp, 0 for -inf and below the smallest normal number, NaN kept. */
static void the_exponential_is_close_and_the_same_everywhere(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    forms f = usable();
    enum { N = 4096 };
    static float x[N], y[MAX_FORMS][N];
    double worst = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)(rng_uniform(seed, RNG_TEST, 9, (uint64_t)i) * (i % 2 ? -87.3 : -3.0));
    x[0] = 0, x[1] = -INFINITY, x[2] = -88, x[3] = -1e30f;
    for (int j = 0; j < f.n; j++) {
        float max, sum;
        memcpy(y[j], x, sizeof x);
        f.t[j]->softmax_row(y[j], N, 1.0f, &max, &sum);
        assert_true(max == 0.0f);
        assert_memory_equal(y[j], y[0], sizeof x);
        double want_sum = 0;
        for (int i = 0; i < N; i++) want_sum += (double)y[j][i];
        assert_true(fabs((double)sum - want_sum) < 1e-5 * want_sum);
    }
    for (int i = 0; i < N; i++) {
        if (i >= 1 && i <= 3) {
            assert_true(y[0][i] == 0.0f);
            continue;
        }
        double want = exp((double)x[i]), ulp = ldexp(1.0, ilogb(want) - 23),
               far = fabs((double)y[0][i] - want) / ulp;
        if (far > worst) worst = far;
    }
    printf("exp: %.2f ulp at worst\n", worst);
    assert_true(worst < 1.5);
    for (int j = 0; j < f.n; j++) {
        float max, sum, z[16] = {1, NAN, 2};
        f.t[j]->softmax_row(z, 16, 1.0f, &max, &sum);
        assert_true(max == 2.0f && z[1] != z[1] && z[2] == 1.0f && sum != sum);
        for (int i = 0; i < 16; i++) z[i] = -INFINITY;
        f.t[j]->softmax_row(z, 16, 1.0f, &max, &sum);
        assert_true(max == -INFINITY && sum == 0.0f && z[3] == 0.0f);
    }
}

static void dots_rows_and_finiteness(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    forms f = usable();
    for (int64_t n = 0; n <= 256; n += 8) {
        float *a = numbers_new(n + 1, seed, 10, 1), *b = numbers_new(n + 1, seed, 11, 1), first = 0;
        double want = 0;
        bf16 half[256];
        for (int64_t i = 0; i < n; i++)
            want += (double)a[i] * (double)b[i], half[i] = bf16_from_f32(a[i]);
        for (int j = 0; j < f.n; j++) {
            float got = f.t[j]->dot(a, b, n), wide[256], factor[2] = {1.0f, 0.5f};
            assert_true(fabs((double)got - want) < 1e-4);
            if (j == 1) first = got;
            if (j > 1) assert_true(got == first);
            f.t[j]->widen(half, wide, n);
            for (int64_t i = 0; i < n; i++) assert_true(wide[i] == bf16_to_f32(half[i]));
            f.t[j]->scale_rows(wide, n / 16 * 8, 2, n / 16 * 8, factor);
            for (int64_t i = 0; i < n / 16 * 16; i++)
                assert_true(wide[i] == bf16_to_f32(half[i]) * (i < n / 16 * 8 ? 1.0f : 0.5f));
            assert_true(f.t[j]->all_finite(a, n));
            for (int64_t i = 0; i < n; i += 7) {
                float keep = a[i];
                a[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
                assert_false(f.t[j]->all_finite(a, n));
                a[i] = keep;
            }
        }
        free(a), free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_plain_loops),
        cmocka_unit_test(transposes_equal_plain_loops),
        cmocka_unit_test(the_exponential_is_close_and_the_same_everywhere),
        cmocka_unit_test(dots_rows_and_finiteness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
