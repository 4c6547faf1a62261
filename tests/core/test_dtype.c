/* Element types and tensor views.
 *
 * Every half and every bfloat16 is checked against its definition, rounding against both neighbours on random
 * values; bulk conversions read from odd addresses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/dtype.h"
#include "core/tensor.h"
#include "support/numbers.h"

static uint64_t seed;

/* A half from its definition. */
static double half_value(unsigned h) {
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static void every_half_comes_back(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = f16_to_f32((f16)h);
        if ((h >> 10 & 31) == 31) {
            if (h & 1023) {
                assert_true(isnan(f) && isnan(f16_to_f32(f16_from_f32(f))));
                continue;
            }
            assert_true(isinf(f) && (signbit(f) != 0) == (h >> 15));
        } else {
            assert_true((double)f == half_value(h) && (signbit(f) != 0) == (h >> 15));
        }
        assert_int_equal(f16_from_f32(f), h);
    }
}

static float random_bits(uint64_t i) {
    uint32_t u = (uint32_t)rng_bits(seed, RNG_TEST, 1, i);
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The rounded value is at least as near as its two neighbours, and even where it is halfway. */
static void halves_round_to_nearest_even(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        float f = i % 2 ? random_bits(i)
                        : (float)ldexp(rng_normal(seed, RNG_TEST, 2, i), (int)(i % 44) - 28);
        unsigned h = f16_from_f32(f);
        if (isnan(f)) {
            assert_true((h & 0x7fff) > 0x7c00);
            continue;
        }
        double x = fabs((double)f);
        assert_int_equal(h >> 15, signbit(f) != 0);
        h &= 0x7fff;
        if (x >= 65520) {
            assert_int_equal(h, 0x7c00);
            continue;
        }
        double here = fabs(half_value(h) - x), below = h ? fabs(half_value(h - 1) - x) : INFINITY;
        double above = fabs((h + 1 == 0x7c00 ? 65536 : half_value(h + 1)) - x);
        assert_true(here <= below && here <= above);
        if (here == below || here == above) assert_int_equal(h & 1, 0);
    }
}

static void bfloat16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (unsigned b = 0; b < 65536; b++) {
        float f = bf16_to_f32((bf16)b);
        if (isnan(f))
            assert_true(isnan(bf16_to_f32(bf16_from_f32(f))));
        else
            assert_int_equal(bf16_from_f32(f), b);
    }
    for (uint64_t i = 0; i < 200000; i++) {
        float f = random_bits(i + 1000000);
        if (isnan(f) || isinf(f)) continue;
        bf16 b = bf16_from_f32(f);
        double x = (double)f, here = fabs((double)bf16_to_f32(b) - x);
        for (int step = -1; step <= 1; step += 2) {
            double other = (double)bf16_to_f32((bf16)(b + step));
            if (isnan(other) || isinf(other) || isinf(bf16_to_f32(b))) continue;
            assert_true(here <= fabs(other - x));
            if (here == fabs(other - x)) assert_int_equal(b & 1, 0);
        }
    }
    assert_int_equal(bf16_from_f32(3.4028235e38f), 0x7f80); /* rounds up to infinity */
    uint32_t low_nan = 0x7f800001u; /* all its payload is in the bits that go */
    float f;
    memcpy(&f, &low_nan, 4);
    assert_true(isnan(bf16_to_f32(bf16_from_f32(f))));
}

static void bulk_conversion_at_any_alignment(void **state) {
    (void)state;
    unsigned char raw[8 * 5 + 1];
    float f[5];
    double d[5];
    int64_t n[5];
    const int8_t i8[5] = {-128, -1, 0, 1, 127};
    dtype_to_f32(DT_I8, i8, f, 5);
    assert_true(f[0] == -128 && f[4] == 127);
    const uint8_t u8[5] = {0, 1, 2, 128, 255};
    dtype_to_i64(DT_U8, u8, n, 5);
    assert_true(n[4] == 255);
    dtype_to_f32(DT_BOOL, u8, f, 5);
    assert_true(f[0] == 0 && f[1] == 1 && f[4] == 1);
    const int64_t i64[5] = {INT64_MIN, -5, 0, 5, INT64_MAX};
    memcpy(raw + 1, i64, sizeof i64);
    dtype_to_i64(DT_I64, raw + 1, n, 5);
    assert_memory_equal(n, i64, sizeof i64);
    dtype_to_f64(DT_I64, raw + 1, d, 5);
    assert_true(d[1] == -5);
    const int16_t i16[2] = {-32768, 32767};
    memcpy(raw + 1, i16, sizeof i16);
    dtype_to_f32(DT_I16, raw + 1, f, 2);
    assert_true(f[0] == -32768 && f[1] == 32767);
    const float src[5] = {1.5f, -0.25f, 1e10f, -1e-3f, 0};
    const dtype floats[] = {DT_F32, DT_F64, DT_F16, DT_BF16};
    for (int t = 0; t < 4; t++) {
        assert_true(dtype_is_float(floats[t]));
        dtype_from_f32(floats[t], src, raw + 1, 5);
        dtype_to_f32(floats[t], raw + 1, f, 5);
        dtype_to_f64(floats[t], raw + 1, d, 5);
        assert_true(f[0] == 1.5f && f[1] == -0.25f && f[4] == 0 && d[0] == 1.5);
        assert_true(floats[t] == DT_F16 ? isinf(f[2]) != 0 : fabsf(f[2] / 1e10f - 1) < 0.005f);
    }
}

static void names(void **state) {
    (void)state;
    dtype t;
    for (int i = 0; i < DT_COUNT; i++) {
        assert_int_equal(dtype_parse(dtype_name((dtype)i), &t), 1);
        assert_int_equal(t, i);
    }
    assert_int_equal(dtype_parse("bf16", &t), 0);
    assert_int_equal(dtype_parse("F8_E4M3", &t), 0);
    assert_int_equal(dtype_size(DT_BF16), 2);
    assert_int_equal(dtype_size(DT_I64), 8);
}

static void tensor_shapes(void **state) {
    (void)state;
    tensor t = {.name = "fc.weight", .type = DT_BF16, .ndim = 2, .dim = {3, 576}};
    char buf[64], tiny[5];
    assert_int_equal(tensor_count(&t), 1728);
    assert_int_equal(tensor_bytes(&t), 3456);
    assert_string_equal(tensor_shape_text(&t, buf, sizeof buf), "[3, 576]");
    assert_int_equal(strlen(tensor_shape_text(&t, tiny, sizeof tiny)), 4);
    const int64_t want[] = {-1, 576}, other[] = {3, 577};
    assert_int_equal(tensor_expect(&t, 2, want), ERR_OK);
    assert_int_equal(tensor_expect(&t, 2, other), ERR_SHAPE);
    assert_string_equal(err_text(),
                        "tensor 'fc.weight' has shape [3, 576] where [3, 577] is needed");
    assert_int_equal(tensor_expect(&t, 1, want), ERR_SHAPE);
    assert_string_equal(err_text(), "tensor 'fc.weight' has shape [3, 576] where [any] is needed");
    t.ndim = 0;
    assert_int_equal(tensor_count(&t), 1);
    assert_string_equal(tensor_shape_text(&t, buf, sizeof buf), "[]");
}

int main(void) {
    seed = numbers_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bfloat16_rounds_to_nearest_even),
        cmocka_unit_test(bulk_conversion_at_any_alignment),
        cmocka_unit_test(names),
        cmocka_unit_test(tensor_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
