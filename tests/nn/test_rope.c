/* RoPE: published frequencies of every kind (B27), both pairings and partial rotation (B26), refusals, and the transpose.
 *
 * The rotation is checked against the complex product in double at long positions; forward then backward must give the
 * input back, because a rotation's gradient is its inverse when the magnitude factor is 1. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "nn/nn.h"
#include "support/numbers.h"
#include <string.h>

static dev *open_dev(void) {
    dev *d = NULL;
    dev_config c = {.threads = 2};
    assert_int_equal(dev_open_cpu(&d, &c), ERR_OK);
    return d;
}
static rope_config plain(int64_t dim, double theta) {
    rope_config c = {.kind = ROPE_DEFAULT, .head_dim = dim, .rotary_dim = dim, .theta = theta};
    return c;
}
static void near(double got, double want) { assert_true(fabs(got - want) <= 1e-7 * fabs(want)); }

static void b27_llama3_frequencies(void **state) {
    (void)state;
    rope_config c = plain(128, 5e5);
    double f[64], p[64], m;
    assert_int_equal(nn_rope_freqs(&c, p, &m), ERR_OK);
    c.kind = ROPE_LLAMA3;
    c.factor = 8;
    c.low_freq = 1;
    c.high_freq = 4;
    c.original_length = 8192;
    assert_int_equal(nn_rope_freqs(&c, f, &m), ERR_OK);
    assert_true(m == 1);
    for (int i = 0; i <= 28; i++) assert_true(f[i] == p[i]);
    near(f[28], 3.211445995e-3);
    near(f[29], 2.166570764e-3);
    near(f[32], 5.248461610e-4);
    near(f[35], 9.556212354e-5);
}

static void b27_yarn_frequencies(void **state) {
    (void)state;
    rope_config c = plain(128, 1e6);
    double f[64], p[64], m;
    assert_int_equal(nn_rope_freqs(&c, p, &m), ERR_OK);
    c.kind = ROPE_YARN;
    c.factor = 4;
    c.original_length = 32768;
    c.beta_fast = 32;
    c.beta_slow = 1;
    assert_int_equal(nn_rope_freqs(&c, f, &m), ERR_OK);
    for (int i = 0; i <= 23; i++) near(f[i], p[i]);
    near(f[23], 6.978305849e-3);
    near(f[24], 5.375321491e-3);
    near(f[40], 4.445698525e-5);
    near(m, 1.138629436);
    c.attention_factor = 1.5;
    assert_int_equal(nn_rope_freqs(&c, f, &m), ERR_OK);
    assert_true(m == 1.5);
}

static void b27_linear_and_default(void **state) {
    (void)state;
    rope_config c = plain(64, 1e4);
    double f[32], m;
    assert_int_equal(nn_rope_freqs(&c, f, &m), ERR_OK);
    for (int i = 0; i < 32; i++) near(f[i], pow(1e4, -i / 32.0));
    c.kind = ROPE_LINEAR;
    c.factor = 4;
    assert_int_equal(nn_rope_freqs(&c, f, &m), ERR_OK);
    for (int i = 0; i < 32; i++) near(f[i], pow(1e4, -i / 32.0) / 4);
}

static void b27_bad_configs_are_refused(void **state) {
    (void)state;
    rope_config ok = plain(64, 1e4), c;
    c = ok, c.kind = (rope_kind)9;
    assert_int_equal(nn_rope_check(&c), ERR_REFUSED);
    assert_non_null(strstr(err_text(), "unknown"));
    c = ok, c.pairing = (rope_pairing)2;
    assert_int_equal(nn_rope_check(&c), ERR_REFUSED);
    c = ok, c.rotary_dim = 65;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
    c = ok, c.rotary_dim = 66;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
    c = ok, c.theta = 0;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
    c = ok, c.kind = ROPE_LINEAR, c.factor = 0;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
    c = ok, c.kind = ROPE_LLAMA3, c.factor = 8, c.low_freq = 1, c.high_freq = 4;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE); /* no original length */
    c.original_length = 8192, c.high_freq = 1;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
    c = ok, c.kind = ROPE_YARN, c.factor = 2, c.original_length = 8, c.beta_fast = 1,
    c.beta_slow = 32;
    assert_int_equal(nn_rope_check(&c), ERR_RANGE);
}

/* Fills x, rotates, compares with the complex product, rotates back. */
static void check_rotation(const rope_config *c, uint64_t seed) {
    const int64_t n = 45, heads = 3, positions = 5000, ld = heads * c->head_dim + 5,
                  half = c->rotary_dim / 2;
    dev *d = open_dev();
    arena *a;
    rope_table t;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    assert_int_equal(nn_rope_table(&t, c, positions, a), ERR_OK);
    float *x = numbers_new(n * ld, seed, 1, 1), *was = numbers_new(n * ld, seed, 1, 1);
    double *room =
        calloc((size_t)(n * ld), sizeof *room); /* what is not turned comes back as it was */
    int32_t pos[45];
    for (int64_t r = 0; r < n; r++)
        pos[r] = (int32_t)numbers_below(seed, 2, (uint64_t)r, positions);
    pos[0] = 0;
    pos[1] = (int32_t)positions - 1;
    assert_int_equal(nn_rope(d, &t, x, ld, pos, n, heads, 0), ERR_OK);
    double f[256], m;
    assert_int_equal(nn_rope_freqs(c, f, &m), ERR_OK);
    for (int64_t r = 0; r < n; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < c->head_dim; i++) {
                const float *w = was + r * ld + h * c->head_dim;
                float got = x[r * ld + h * c->head_dim + i];
                if (i >= c->rotary_dim) {
                    assert_true(got == w[i]);
                    continue;
                }
                int inter = c->pairing == ROPE_INTERLEAVED,
                    second = inter ? (int)(i & 1) : i >= half;
                int64_t k = inter ? i / 2 : i % half;
                double x0 = (double)w[inter ? 2 * k : k],
                       x1 = (double)w[inter ? 2 * k + 1 : k + half], an = pos[r] * f[k];
                double want =
                    m * (second ? x1 * cos(an) + x0 * sin(an) : x0 * cos(an) - x1 * sin(an));
                /* Two products, their sum, and two factors of the table, each rounded once. */
                assert_true(fabs((double)got - want) <= 3 * 0x1p-24 * (fabs(x0) + fabs(x1)));
                room[r * ld + h * c->head_dim + i] = 8 * 0x1p-24 * (fabs(x0) + fabs(x1));
            }
    assert_int_equal(nn_rope(d, &t, x, ld, pos, n, heads, 1), ERR_OK);
    for (int64_t i = 0; i < n * ld; i++)
        assert_true(fabs((double)x[i] - (double)was[i]) <= room[i]);
    pos[7] = (int32_t)positions;
    assert_int_equal(nn_rope(d, &t, x, ld, pos, n, heads, 0), ERR_RANGE);
    assert_non_null(strstr(err_text(), "position 5000 of row 7"));
    free(x), free(was), free(room);
    arena_destroy(a);
    dev_close(d);
}

static void b26_rotation_fraction_and_pairing(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    for (int pairing = 0; pairing < 2; pairing++) {
        rope_config c = plain(256, 1e4);
        c.pairing = (rope_pairing)pairing;
        c.rotary_dim = 64; /* dims 64..255 stay */
        check_rotation(&c, seed);
        c = plain(64, 1e5);
        c.pairing = (rope_pairing)pairing;
        check_rotation(&c, seed + 1);
        c = plain(24, 1e4);
        c.pairing = (rope_pairing)pairing;
        check_rotation(&c, seed + 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b27_llama3_frequencies),
        cmocka_unit_test(b27_yarn_frequencies),
        cmocka_unit_test(b27_linear_and_default),
        cmocka_unit_test(b27_bad_configs_are_refused),
        cmocka_unit_test(b26_rotation_fraction_and_pairing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
