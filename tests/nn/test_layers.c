/* RMSNorm, SwiGLU, linear, embedding and argmax against plain loops in double, on fresh random inputs.
 *
 * Odd sizes, strided buffers whose gaps and outputs hold NaN, accumulation flags, in-place use, one to three threads and
 * every instruction set: the last two must give the same bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "nn/nn.h"
#include "support/numbers.h"
#include <string.h>

static dev *open_dev(int threads) {
    dev *d = NULL;
    dev_config c = {.threads = threads};
    assert_int_equal(dev_open_cpu(&d, &c), ERR_OK);
    return d;
}

typedef struct norm_case {
    int64_t n, dim, ld;
    int weight, add;
} norm_case;

static void norm_reference(const norm_case *c, const float *x, const float *w, const float *dy,
                           double eps, double *y, double *dx, double *dw, double *terms) {
    for (int64_t r = 0; r < c->n; r++) {
        const float *xr = x + r * c->ld, *gr = dy + r * c->ld;
        double sq = 0, dot = 0;
        for (int64_t i = 0; i < c->dim; i++) {
            double wi = w ? (double)w[i] : 1;
            sq += (double)xr[i] * (double)xr[i];
            dot += (double)gr[i] * wi * (double)xr[i];
        }
        double s = 1 / sqrt(sq / (double)c->dim + eps);
        for (int64_t i = 0; i < c->dim; i++) {
            double wi = w ? (double)w[i] : 1;
            y[r * c->dim + i] = (double)xr[i] * s * wi;
            dx[r * c->dim + i] =
                s * wi * (double)gr[i] - (double)xr[i] * s * s * s * dot / (double)c->dim;
            dw[i] += (double)gr[i] * (double)xr[i] * s;
            terms[i] += fabs((double)gr[i] * (double)xr[i] * s);
        }
    }
}

/* Copies rows of a strided buffer together. */
static float *gather(const float *x, int64_t n, int64_t dim, int64_t ld) {
    float *out = numbers_poisoned(n * dim);
    for (int64_t r = 0; r < n; r++) memcpy(out + r * dim, x + r * ld, (size_t)dim * sizeof *x);
    return out;
}

static void run_norm(const norm_case *c, uint64_t seed) {
    dev *d = open_dev(2);
    int64_t total = c->n * c->ld;
    float *x = numbers_new(total, seed, 1, 3), *dy = numbers_new(total, seed, 2, 1);
    float *w = c->weight ? numbers_new(c->dim, seed, 3, 1) : NULL;
    float *y = numbers_poisoned(total), *dx = numbers_poisoned(total),
          *rstd = numbers_poisoned(c->n);
    float *dw = calloc((size_t)c->dim, sizeof *dw);
    double *wy = calloc((size_t)(c->n * c->dim), 8), *wdx = calloc((size_t)(c->n * c->dim), 8);
    double *wdw = calloc((size_t)c->dim, 8), *terms = calloc((size_t)c->dim, 8);
    norm_reference(c, x, w, dy, 1e-5, wy, wdx, wdw, terms);
    assert_int_equal(nn_rmsnorm(d, x, c->ld, w, 1e-5f, c->n, c->dim, y, c->ld, rstd), ERR_OK);
    if (c->add) {
        for (int64_t i = 0; i < total; i++) dx[i] = 0.5f;
        for (int64_t i = 0; i < c->n * c->dim; i++) wdx[i] += 0.5;
    }
    for (int64_t i = 0; i < c->dim; i++) {
        dw[i] = 2;
        wdw[i] += 2;
    }
    assert_int_equal(
        nn_rmsnorm_back(d, dy, c->ld, x, c->ld, w, rstd, c->n, c->dim, dx, c->ld, c->add, dw),
        ERR_OK);
    float *gy = gather(y, c->n, c->dim, c->ld), *gdx = gather(dx, c->n, c->dim, c->ld);
    assert_true(numbers_distance(gy, wy, c->n * c->dim) < 1e-6);
    /* dx and dw are sums that may cancel (dx always, when dim is 1): judged by the size of their terms. */
    for (int64_t i = 0; i < c->n * c->dim; i++) {
        int64_t r = i / c->dim, k = i % c->dim;
        const float *xr = x + r * c->ld, *gr = dy + r * c->ld;
        const double s = (double)rstd[r];
        double dot = 0;
        for (int64_t j = 0; j < c->dim; j++)
            dot += fabs((double)gr[j] * (w ? (double)w[j] : 1) * (double)xr[j]);
        double sizes = fabs((double)gr[k] * (w ? (double)w[k] : 1) * s) +
                       fabs((double)xr[k]) * s * s * s * dot / (double)c->dim + 0.5 * c->add;
        assert_true(fabs((double)gdx[i] - wdx[i]) <= 4e-6 * sizes);
    }
    for (int64_t i = 0; i < c->dim; i++)
        assert_true(fabs((double)dw[i] - wdw[i]) < 1e-6 * (2 + terms[i]));
    if (c->ld > c->dim && c->n) assert_true(isnan(y[c->dim])); /* gaps untouched */
    /* In place gives the same bits. */
    assert_int_equal(nn_rmsnorm(d, x, c->ld, w, 1e-5f, c->n, c->dim, x, c->ld, NULL), ERR_OK);
    for (int64_t r = 0; r < c->n; r++)
        assert_memory_equal(x + r * c->ld, y + r * c->ld, (size_t)c->dim * 4);
    free(x), free(dy), free(w), free(y), free(dx), free(rstd), free(dw), free(wy), free(wdx),
        free(wdw), free(terms), free(gy), free(gdx);
    dev_close(d);
}

static void rmsnorm_matches_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    norm_case c[] = {{1, 1, 1, 1, 0},       {3, 7, 9, 1, 1},      {65, 64, 64, 1, 0},
                     {130, 576, 600, 1, 1}, {33, 100, 100, 0, 0}, {0, 5, 5, 1, 0}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) run_norm(&c[i], seed + i);
}

static void rmsnorm_of_zeros_is_zero(void **state) {
    (void)state;
    dev *d = open_dev(1);
    float x[20] = {0}, y[20], w[20];
    for (int i = 0; i < 20; i++) w[i] = 1;
    assert_int_equal(nn_rmsnorm(d, x, 20, w, 1e-6f, 1, 20, y, 20, NULL), ERR_OK);
    for (int i = 0; i < 20; i++) assert_true(y[i] == 0);
    assert_int_equal(nn_rmsnorm(d, x, 10, w, 1e-6f, 1, 20, y, 20, NULL), ERR_SHAPE);
    dev_close(d);
}

static void swiglu_matches_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2);
    int64_t n = 20011;
    float *g = numbers_new(n, seed, 1, 10), *u = numbers_new(n, seed, 2, 2),
          *dy = numbers_new(n, seed, 3, 1);
    float *y = numbers_poisoned(n), *dg = numbers_poisoned(n), *du = numbers_poisoned(n);
    const float edge[] = {0, -0.0f, 100, -100, 87.5f, -87.5f, 1e30f, -1e30f, 1e-30f};
    memcpy(g, edge, sizeof edge);
    assert_int_equal(nn_swiglu(d, g, u, n, y), ERR_OK);
    assert_int_equal(nn_swiglu_back(d, dy, g, u, n, dg, du), ERR_OK);
    for (int64_t i = 0; i < n; i++) {
        double gi = (double)g[i], s = 1 / (1 + exp(-gi)), silu = gi * s;
        double wy = silu * (double)u[i], wdu = silu * (double)dy[i];
        double wdg = (double)dy[i] * (double)u[i] * s * (1 + gi * (1 - s));
        /* Past the clamp at -87 the product with sigmoid is cut off at 1e-38 * |g|. */
        double room = 1e-30 + (gi < -87 ? 1e-37 * fabs(gi) * 100 : 0);
        assert_true(fabs((double)y[i] - wy) <= 1e-6 * fabs(wy) + room);
        assert_true(fabs((double)du[i] - wdu) <= 1e-6 * fabs(wdu) + room);
        assert_true(fabs((double)dg[i] - wdg) <=
                    2e-6 * fabs((double)dy[i] * (double)u[i]) * (1 + fabs(gi) * s) + room);
    }
    g[5] = NAN;
    assert_int_equal(nn_swiglu(d, g, u, n, y), ERR_OK);
    assert_true(isnan(y[5]) && !isnan(y[4]) && !isnan(y[6]));
    free(g), free(u), free(dy), free(y), free(dg), free(du);
    dev_close(d);
}

static void swiglu_of_fused_rows_is_the_same(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2);
    const int64_t n = 37, width = 1003;
    float *gu = numbers_new(n * 2 * width, seed, 1, 3), *y = numbers_poisoned(n * width),
          *want = numbers_poisoned(width);
    assert_int_equal(nn_swiglu_rows(d, gu, n, width, y), ERR_OK);
    for (int64_t r = 0; r < n; r++) {
        assert_int_equal(nn_swiglu(d, gu + 2 * r * width, gu + 2 * r * width + width, width, want),
                         ERR_OK);
        assert_memory_equal(y + r * width, want, (size_t)width * 4);
    }
    free(gu), free(y), free(want);
    dev_close(d);
}

static void add_adds(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2);
    int64_t n = 40003;
    float *x = numbers_new(n, seed, 1, 1), *y = numbers_new(n, seed, 2, 1),
          *was = numbers_new(n, seed, 2, 1);
    assert_int_equal(nn_add(d, y, x, n), ERR_OK);
    for (int64_t i = 0; i < n; i++) assert_true(y[i] == was[i] + x[i]);
    free(x), free(y), free(was);
    dev_close(d);
}

/* A sum of products and the size of its terms. In fp32 each of the up to 71 terms adds at most 2^-24 of that size. */
typedef struct sum {
    double value, size;
} sum;
static void add_term(sum *s, float a, float b) {
    s->value += (double)a * (double)b;
    s->size += fabs((double)a * (double)b);
}
static int is_near(const sum *s, float got) {
    return fabs(s->value - (double)got) <= 71 * 0x1p-24 * s->size;
}

static void linear_matches_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2);
    const int64_t n = 37, in = 70, out = 53, ldx = 75, ldy = 60;
    float *w = numbers_new(out * in, seed, 1, 1), *x = numbers_new(n * ldx, seed, 2, 1),
          *dy = numbers_new(n * ldy, seed, 3, 1);
    float *y = numbers_poisoned(n * ldy), *dx = numbers_poisoned(n * ldx),
          *dw = numbers_new(out * in, seed, 4, 1), *dw0 = numbers_new(out * in, seed, 4, 1);
    for (int add = 0; add < 2; add++) {
        if (add) {
            numbers_fill(y, n * ldy, seed, 5, 1);
            numbers_fill(dx, n * ldx, seed, 6, 1);
            memcpy(dw, dw0, (size_t)(out * in) * 4);
        }
        float *y0 = numbers_new(n * ldy, seed, 5, 1), *dx0 = numbers_new(n * ldx, seed, 6, 1);
        assert_int_equal(nn_linear(d, w, out, in, x, ldx, n, y, ldy, add), ERR_OK);
        assert_int_equal(nn_linear_back(d, w, out, in, x, ldx, dy, ldy, n, dx, ldx, add, dw),
                         ERR_OK);
        for (int64_t r = 0; r < n; r++)
            for (int64_t o = 0; o < out; o++) {
                sum s = {0, 0};
                if (add) add_term(&s, y0[r * ldy + o], 1);
                for (int64_t i = 0; i < in; i++) add_term(&s, x[r * ldx + i], w[o * in + i]);
                assert_true(is_near(&s, y[r * ldy + o]));
            }
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < in; i++) {
                sum s = {0, 0};
                if (add) add_term(&s, dx0[r * ldx + i], 1);
                for (int64_t o = 0; o < out; o++) add_term(&s, dy[r * ldy + o], w[o * in + i]);
                assert_true(is_near(&s, dx[r * ldx + i]));
            }
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++) {
                sum s = {0, 0};
                add_term(&s, dw0[o * in + i], 1);
                for (int64_t r = 0; r < n; r++) add_term(&s, dy[r * ldy + o], x[r * ldx + i]);
                assert_true(is_near(&s, dw[o * in + i]));
            }
        free(y0), free(dx0);
    }
    free(w), free(x), free(dy), free(y), free(dx), free(dw), free(dw0);
    dev_close(d);
}

static void embedding_gives_rows_and_refuses_ids(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2);
    arena *a;
    packed w;
    const int64_t v = 101, h = 77;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    assert_int_equal(packed_alloc(&w, a, DT_BF16, v, h), ERR_OK);
    float *m = numbers_new(v * h, seed, 1, 1), *y = numbers_poisoned(60 * 80);
    packed_set_rows(&w, 0, v, m, h);
    int32_t ids[60];
    for (int i = 0; i < 60; i++) ids[i] = (int32_t)numbers_below(seed, 2, (uint64_t)i, v);
    assert_int_equal(nn_embed(d, &w, ids, 60, y, 80), ERR_OK);
    for (int i = 0; i < 60; i++)
        for (int64_t k = 0; k < h; k++)
            assert_true(y[i * 80 + k] == bf16_to_f32(bf16_from_f32(m[ids[i] * h + k])));
    assert_true(isnan(y[77]));
    ids[3] = 101;
    assert_int_equal(nn_embed(d, &w, ids, 60, y, 80), ERR_RANGE);
    assert_non_null(strstr(err_text(), "token id 101 at position 3"));
    ids[3] = -1;
    assert_int_equal(nn_embed(d, &w, ids, 60, y, 80), ERR_RANGE);
    free(m), free(y);
    arena_destroy(a);
    dev_close(d);
}

static void b49_argmax_lowest_id_wins_and_nan_is_an_error(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    enum { N = 1003 };
    float x[N];
    int32_t id = -1;
    for (int t = 0; t < 200; t++) {
        numbers_fill(x, N, seed, (uint64_t)t, 1);
        int a = (int)numbers_below(seed, 1000, (uint64_t)t, N),
            b = (int)numbers_below(seed, 1001, (uint64_t)t, N);
        x[a] = x[b] = 100;
        assert_int_equal(nn_argmax(x, N, &id), ERR_OK);
        assert_int_equal(id, a < b ? a : b);
        x[numbers_below(seed, 1002, (uint64_t)t, N)] = NAN;
        assert_int_equal(nn_argmax(x, N, &id), ERR_NUMERIC);
    }
    for (int i = 0; i < N; i++) x[i] = 2;
    assert_int_equal(nn_argmax(x, N, &id), ERR_OK);
    assert_int_equal(id, 0);
    for (int i = 0; i < N; i++) x[i] = -INFINITY;
    assert_int_equal(nn_argmax(x, N, &id), ERR_NUMERIC);
    x[N - 1] = -3e38f;
    assert_int_equal(nn_argmax(x, N, &id), ERR_OK);
    assert_int_equal(id, N - 1);
    assert_int_equal(nn_argmax(x, 0, &id), ERR_RANGE);
}

/* One pass through the row-wise layers; the digest of bits is compared between settings. */
static void layers_into(dev *d, uint64_t seed, float *out) {
    const int64_t n = 150, dim = 333;
    float *x = numbers_new(n * dim, seed, 1, 2), *w = numbers_new(dim, seed, 2, 1),
          *rstd = numbers_poisoned(n), *dw = out + 3 * n * dim;
    assert_int_equal(nn_rmsnorm(d, x, dim, w, 1e-6f, n, dim, out, dim, rstd), ERR_OK);
    assert_int_equal(nn_swiglu(d, out, x, n * dim, out + n * dim), ERR_OK);
    memset(dw, 0, (size_t)dim * 4);
    assert_int_equal(nn_rmsnorm_back(d, out + n * dim, dim, x, dim, w, rstd, n, dim,
                                     out + 2 * n * dim, dim, 0, dw),
                     ERR_OK);
    free(x), free(w), free(rstd);
}

static void same_bits_for_threads_and_instruction_sets(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    const int64_t total = 3 * 150 * 333 + 333;
    float *first = numbers_poisoned(total), *other = numbers_poisoned(total);
    dev *d = open_dev(1);
    layers_into(d, seed, first);
    dev_close(d);
    for (int threads = 2; threads <= 3; threads++) {
        d = open_dev(threads);
        layers_into(d, seed, other);
        assert_memory_equal(first, other, (size_t)total * 4);
        dev_close(d);
    }
    const char *isa[] = {"portable", "avx2"};
    for (int i = 0; i < 2; i++) {
        setenv("PACELINE_ISA", isa[i], 1);
        d = open_dev(2);
        layers_into(d, seed, other);
        assert_memory_equal(first, other, (size_t)total * 4);
        dev_close(d);
    }
    unsetenv("PACELINE_ISA");
    free(first), free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_matches_the_definition),
        cmocka_unit_test(rmsnorm_of_zeros_is_zero),
        cmocka_unit_test(swiglu_matches_the_definition),
        cmocka_unit_test(swiglu_of_fused_rows_is_the_same),
        cmocka_unit_test(add_adds),
        cmocka_unit_test(linear_matches_the_definition),
        cmocka_unit_test(embedding_gives_rows_and_refuses_ids),
        cmocka_unit_test(b49_argmax_lowest_id_wins_and_nan_is_an_error),
        cmocka_unit_test(same_bits_for_threads_and_instruction_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
