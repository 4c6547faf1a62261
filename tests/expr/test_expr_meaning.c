/* What expressions mean: precedence, floor semantics, wrapping, promotion, guards, captured values.
 *
 * Values are compared with a table of Python's results and with plain C loops; each case runs through the
 * scalar definition and through the tile interpreter. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "expr/expr.h"

static expr *compile(const char *text, const expr_decl *decls, int n) {
    expr *e;
    if (expr_compile(&e, EXPR_MASK, text, decls, n)) fail_msg("%s", err_text());
    return e;
}

/* One cell by both interpreters. */
static int cell(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q, int64_t kv,
                int *flag) {
    int f1 = 0, f2 = 0;
    uint8_t out = 9;
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, 1, 1) + 63) / 64 * 64);
    int v = expr_eval_mask(e, env, b, h, q, kv, &f1);
    expr_tile_mask(e, env, b, h, q, 1, kv, 1, &out, 1, scratch, &f2);
    free(scratch);
    assert_int_equal(out, v);
    assert_int_equal(f1, f2);
    if (flag) *flag = f1;
    return v;
}

static void holds(const char *text, int expected) {
    expr *e = compile(text, NULL, 0);
    int v = cell(e, NULL, 1, 2, 7, -3, NULL); /* b 1, h 2, q 7, kv -3 */
    if (v != expected) fail_msg("`%s` gives %d", text, v);
    expr_free(e);
}

static void precedence(void **state) {
    (void)state;
    holds("true || false && false", 1);
    holds("(true || false) && false", 0);
    holds("true or false and false", 1);
    holds("not true or true", 1);
    holds("not (true or true)", 0);
    holds("not q == 7", 0); /* not binds looser than == */
    holds("!true == false", 1);
    holds("2 + 3 * 4 == 14", 1);
    holds("(2 + 3) * 4 == 20", 1);
    holds("10 - 3 - 4 == 3", 1);
    holds("100 // 10 // 5 == 2 && 100 // 10 * 5 == 50 && 17 % 10 % 4 == 3", 1);
    holds("-7 // 2 == -4 && -(7 // 2) == -3", 1);
}

static void conditional(void **state) {
    (void)state;
    holds("q > 3 ? q < 9 : q < 1", 1);
    holds("(false ? 1 : true ? 2 : 3) == 2", 1);
    holds("(q > 100 ? 1 : 2.5) == 2.5", 1);
    holds("let x = q * 2; let y = x + 1; y == 15 # a comment\n", 1);
    holds("b == 1 && h == 2 && q == 7 && kv == -3", 1);
    holds("true && !false && true", 1);
    holds("0x10 == 16 && 1e2 == 100 && .5 == 0.5 && 2. == 2", 1);
    holds("+q == 7 && --q == 7 && !!(q == 7)", 1);
}

/* Columns: x, y, x // y, x % y as Python has them. */
static const int64_t python[][4] = {
    {7, 2, 3, 1},
    {-7, 2, -4, 1},
    {7, -2, -4, -1},
    {-7, -2, 3, -1},
    {6, 3, 2, 0},
    {-6, 3, -2, 0},
    {6, -3, -2, 0},
    {-6, -3, 2, 0},
    {0, 5, 0, 0},
    {0, -5, 0, 0},
    {1, 5, 0, 1},
    {-1, 5, -1, 4},
    {1, -5, -1, -4},
    {-1, -5, 0, -1},
    {127, 128, 0, 127},
    {-128, 128, -1, 0},
    {INT64_MAX, 10, 922337203685477580, 7},
    {-INT64_MAX, 10, -922337203685477581, 3},
    {INT64_MIN, 10, -922337203685477581, 2},
};

static void floor_division(void **state) {
    (void)state;
    static const expr_decl d[] = {
        {"x", EXPR_INT, 0}, {"y", EXPR_INT, 0}, {"d", EXPR_INT, 0}, {"m", EXPR_INT, 0}};
    expr *e = compile("x // y == d && x % y == m", d, 4);
    expr *by_kv = compile("q // kv == d && q % kv == m", d, 4);
    for (size_t i = 0; i < sizeof python / sizeof *python; i++) {
        expr_value v[4];
        for (int j = 0; j < 4; j++) v[j] = (expr_value){.scalar.i = python[i][j]};
        expr_env env = {v, 0, 0};
        assert_true(cell(e, &env, 0, 0, 0, 0, NULL));
        assert_true(cell(by_kv, &env, 0, 0, python[i][0], python[i][1], NULL));
    }
    expr_free(e);
    expr_free(by_kv);
}

static void edges_of_integers(void **state) {
    (void)state;
    holds("q // 0 == 0 && q % 0 == 0", 1);
    holds("q // (kv + 3) == 0 && q % (kv + 3) == 0", 1);
    holds("9223372036854775807 + 1 == -9223372036854775807 - 1", 1);
    holds(
        "let least = -9223372036854775807 - 1; least // -1 == least && least % -1 == 0 && abs(least) == "
        "least && -least == least",
        1);
    holds("9223372036854775807 * (q - 5) == -2", 1);
    holds(
        "min(q, kv) == -3 && max(q, kv) == 7 && abs(kv) == 3 && clamp(q, 0, 5) == 5 && clamp(kv, 0, 5) "
        "== 0",
        1);
}

static void floats(void **state) {
    (void)state;
    holds("q / 2.0 == 3.5 && 7 / 2.0 == 3.5", 1);
    holds("float(q) / 2 == 3.5", 1);
    holds("int(kv - 0.5) == -3 && floor(kv - 0.5) == -4", 1); /* int truncates */
    holds("int(0.0 / 0.0) == 0 && int(1.0 / 0.0) == 9223372036854775807", 1);
    holds("int(-1e30) == -9223372036854775807 - 1", 1);
    holds("(0.0 / 0.0) != (0.0 / 0.0) && !((0.0 / 0.0) < 1)", 1);
    holds(
        "let nan = kv / 0.0 - kv / 0.0; min(nan, 1.0) != min(nan, 1.0) && max(1.0, nan) != max(1.0, nan)",
        1);
    holds("exp(0.0) == 1 && exp2(3) == 8 && log(1) == 0 && sqrt(q + 2) == 3 && rsqrt(4) == 0.5", 1);
    holds("tanh(0.0) == 0 && sigmoid(0.0) == 0.5 && abs(-2.5) == 2.5", 1);
    holds("1.0 / tanh(0.0 * (kv - 3.0)) < 0 && 1.0 / tanh(-0.0) < 0 && 1.0 / tanh(0.0) > 0", 1);
    holds("16777217 == 16777216.0", 1); /* an integer becomes fp32 beside a float */
}

/* Three roundings: a fused multiply-add would see another cell. */
static void no_fused_multiply_add(void **state) {
    (void)state;
    static const expr_decl d[] = {{"x", EXPR_FLOAT, 0}, {"z", EXPR_FLOAT, 0}};
    float x = 1.0f + 0x1p-12f;
    volatile float square = x * x;
    expr_value v[2] = {{.scalar.f = x}, {.scalar.f = square}};
    expr_env env = {v, 0, 0};
    uint8_t out[64];
    expr *e = compile("(x + kv * 0) * x - z == 0", d, 2);
    assert_true(fmaf(x, x, -square) != 0);
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, 1, 64) + 63) / 64 * 64);
    expr_tile_mask(e, &env, 0, 0, 0, 1, 0, 64, out, 64, scratch, NULL);
    for (int i = 0; i < 64; i++) assert_true(out[i] && expr_eval_mask(e, &env, 0, 0, 0, i, NULL));
    free(scratch);
    expr_free(e);
}

static void guards(void **state) {
    (void)state;
    static const int64_t doc[4] = {1, 2, 3, 4};
    static const expr_decl d[] = {{"doc", EXPR_INT, 1}};
    static const struct {
        const char *text;
        int64_t kv;
        int value, flag;
    } cases[] = {
        {"doc[kv] == 3", 2, 1, 0},
        {"doc[kv] == 0", 4, 1, 1}, /* outside: 0, and the flag */
        {"doc[kv] == 0", -1, 1, 1},
        {"kv < 4 && doc[kv] > 0", 4, 0, 0},
        {"doc[kv] > 0 && kv < 4", 4, 0, 0 + 1},
        {"kv >= 4 || doc[kv] > 0", 4, 1, 0},
        {"kv >= 4 ? true : doc[kv] > 9", 4, 1, 0},
        {"kv >= 4 ? doc[kv] == 0 : false", 4, 1, 1},
        {"(kv < 4 ? doc[kv] : 7) == 7", 5, 1, 0},
        {"let x = doc[kv]; kv < 4 && x > 0", 9, 0, 0}, /* a let is evaluated where it is used */
        {"let x = doc[kv]; kv < 4 && x > 0 || x == 0", 9, 1, 1},
        {"!(kv >= 4) && doc[doc[kv] - 1] == doc[kv]", 3, 1, 0},
        {"doc[doc[kv]] == 0", 3, 1, 1},
        {"false && doc[kv] == 0", 9, 0, 0},
        {"doc[kv] == 0 && false", 9, 0, 1},
        {"true || doc[kv] == 0", 9, 1, 0},
    };
    expr_value v[1] = {{.type = DT_I64, .dim = {4}, .data = doc}};
    expr_env env = {v, 0, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int flag;
        expr *e = compile(cases[i].text, d, 1);
        int value = cell(e, &env, 0, 0, 0, cases[i].kv, &flag);
        if (value != cases[i].value || flag != cases[i].flag)
            fail_msg("`%s` at %lld: %d, flag %d", cases[i].text, (long long)cases[i].kv, value,
                     flag);
        expr_free(e);
    }
}

/* A load is flagged by a whole tile only in cells that reach it. */
static void guard_in_a_tile(void **state) {
    (void)state;
    static const int32_t doc[100] = {0};
    static const expr_decl d[] = {{"doc", EXPR_INT, 1}, {"n", EXPR_INT, 0}};
    expr_value v[2] = {{.type = DT_I32, .dim = {100}, .data = doc}};
    expr_env env = {v, 0, 0};
    expr *e = compile("q < 40 && kv < n && doc[kv] == 0", d, 2);
    static uint8_t out[64 * 300];
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, 64, 300) + 63) / 64 * 64);
    for (int64_t n = 99; n <= 101; n++)
        for (int64_t q = 0; q <= 64; q += 32) {
            int flag = 0;
            v[1].scalar.i = n;
            expr_tile_mask(e, &env, 0, 0, q, 32, 0, 300, out, 300, scratch, &flag);
            assert_int_equal(flag, n == 101 && q < 40);
            for (int i = 0; i < 32 * 300; i++)
                assert_int_equal(out[i], q + i / 300 < 40 && i % 300 < n);
        }
    free(scratch);
    expr_free(e);
}

static void element_types(void **state) {
    (void)state;
    static const int8_t i8[] = {-3, 5};
    static const uint8_t u8[] = {250, 1}, flags[] = {0, 2};
    static const int16_t i16[] = {-300, 1};
    static const int32_t i32[] = {-70000, 1};
    static const int64_t i64[] = {-5000000000, 1};
    static const float f32[] = {1.5f, 0};
    static const double f64[] = {0.1, 0};
    static const bf16 half[] = {0x3fc0, 0};
    static const f16 small[] = {0x3e00, 0};
    static const struct {
        dtype t;
        const void *data;
        expr_type as;
        const char *text;
    } cases[] = {
        {DT_I8, i8, EXPR_INT, "x[kv] == -3"},
        {DT_U8, u8, EXPR_INT, "x[kv] == 250"},
        {DT_I16, i16, EXPR_INT, "x[kv] == -300"},
        {DT_I32, i32, EXPR_INT, "x[kv] == -70000"},
        {DT_I64, i64, EXPR_INT, "x[kv] == -5000000000"},
        {DT_BOOL, flags, EXPR_INT, "x[kv + 1] == 1"},
        {DT_BOOL, flags, EXPR_BOOL, "x[kv + 1] && !x[kv]"},
        {DT_U8, u8, EXPR_BOOL, "x[kv]"},
        {DT_F32, f32, EXPR_FLOAT, "x[kv] == 1.5"},
        {DT_F64, f64, EXPR_FLOAT, "x[kv] == 0.1"},
        {DT_BF16, half, EXPR_FLOAT, "x[kv] == 1.5"},
        {DT_F16, small, EXPR_FLOAT, "x[kv] == 1.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expr_decl d = {"x", cases[i].as, 1};
        expr_value v = {.type = cases[i].t, .dim = {2}, .data = cases[i].data};
        expr_env env = {&v, 0, 0};
        expr *e = compile(cases[i].text, &d, 1);
        assert_int_equal(expr_check_env(e, &env), ERR_OK);
        if (!cell(e, &env, 0, 0, 0, 0, NULL))
            fail_msg("`%s` with %s", cases[i].text, dtype_name(cases[i].t));
        expr_free(e);
    }
}

static void captures_and_offsets(void **state) {
    (void)state;
    static const int64_t table[2][3][2] = {{{0, 1}, {2, 3}, {4, 5}}, {{6, 7}, {8, 9}, {10, 11}}};
    static const expr_decl d[] = {{"t", EXPR_INT, 3}, {"on", EXPR_BOOL, 0}, {"f", EXPR_FLOAT, 0}};
    expr_value v[3] = {
        {.type = DT_I64, .dim = {2, 3, 2}, .data = table}, {.scalar.i = 5}, {.scalar.f = 0.25f}};
    expr_env env = {v, 100, -10};
    expr *e = compile(
        "t[b, h, q - 100] == b * 6 + h * 2 + (q - 100) && on && f * 4 == 1 && kv == -8", d, 3);
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < 3; h++)
            for (int q = 0; q < 2; q++) {
                int flag;
                assert_true(cell(e, &env, b, h, q, 2, &flag));
                assert_int_equal(flag, 0);
            }
    int flag;
    assert_false(cell(e, &env, 0, 3, 0, 2, &flag));
    assert_int_equal(flag, 1);
    expr_free(e);
}

static void uses(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned uses;
    } cases[] = {{"q >= kv", 12}, {"b == 0 && q >= kv", 13}, {"h < 2", 2},
                 {"true", 0},     {"true || b == 1", 0},     {"let x = b; q > kv", 12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expr *e = compile(cases[i].text, NULL, 0);
        assert_int_equal(expr_uses(e), cases[i].uses);
        expr_free(e);
    }
}

static void printing(void **state) {
    (void)state;
    static const expr_decl d[] = {{"t1", EXPR_INT, 1}, {"x", EXPR_FLOAT, 0}};
    static const struct {
        const char *text, *printed;
    } cases[] = {
        {"q>=kv", "kv <= q"},
        {"q >= kv and q - kv < 3 + 4", "kv <= q && q - kv < 7"},
        {"(q - kv) - (1 - h) < (q + 2) * 3", "q - kv - (1 - h) < (q + 2) * 3"},
        {"let d = q - kv; d > 0 && d < 5", "let t_1 = q - kv;\n0 < t_1 && t_1 < 5"},
        {"t1[q] == -1 && x < 1e30 && x > 0.1",
         "t1[q] == -1 && x < 1.00000002e+30 && 0.100000001 < x"},
        {"(q < 3 ? 1 : 2) == kv", "(q < 3 ? 1 : 2) == kv"},
        {"!(q < 3 && h < 2) || b == 1", "!(q < 3 && h < 2) || b == 1"},
        {"q == -9223372036854775807 - 1", "q == (-9223372036854775807 - 1)"},
        {"x < 1.0 / 0.0", "x < (1.0 / 0.0)"},
        {"clamp(q, 0, 4) == int(x * -2)", "min(max(q, 0), 4) == int(x * -2.0)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        str out = {0};
        expr *e = compile(cases[i].text, d, 2);
        assert_string_equal(expr_source(e), cases[i].text);
        assert_int_equal(expr_print(e, &out), ERR_OK);
        assert_string_equal(out.s, cases[i].printed);
        expr_free(e);
        str_free(&out);
    }
}

/* DFlash against a plain loop, over tiles that straddle the end of the context. */
static void dflash(void **state) {
    (void)state;
    enum { CTX = 50, BLOCK = 4, N = 7, LQ = N * BLOCK, LKV = CTX + LQ };
    static const expr_decl d[] = {{"ctx", EXPR_INT, 0},
                                  {"bs", EXPR_INT, 0},
                                  {"anchor", EXPR_INT, 1},
                                  {"doc_ctx", EXPR_INT, 1},
                                  {"doc_blk", EXPR_INT, 1}};
    static const int64_t anchor[N] = {10, 14, 15, 30, 31, 47, 49};
    static int64_t doc_ctx[CTX], doc_blk[N];
    static uint8_t out[LQ * LKV];
    for (int i = 0; i < CTX; i++) doc_ctx[i] = i / 17;
    for (int i = 0; i < N; i++) doc_blk[i] = anchor[i] / 17;
    expr_value v[5] = {{.scalar.i = CTX},
                       {.scalar.i = BLOCK},
                       {.type = DT_I64, .dim = {N}, .data = anchor},
                       {.type = DT_I64, .dim = {CTX}, .data = doc_ctx},
                       {.type = DT_I64, .dim = {N}, .data = doc_blk}};
    expr_env env = {v, 0, 0};
    expr *e = compile(
        "let blk = q // bs; (kv < ctx && kv < anchor[blk] && doc_ctx[kv] == doc_blk[blk]) || "
        "(kv >= ctx && (kv - ctx) // bs == blk)",
        d, 5);
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, LQ, LKV) + 63) / 64 * 64);
    int flag = 0;
    assert_int_equal(expr_uses(e), 12);
    expr_tile_mask(e, &env, 0, 0, 0, LQ, 0, LKV, out, LKV, scratch, &flag);
    assert_int_equal(flag, 0);
    for (int q = 0; q < LQ; q++)
        for (int kv = 0; kv < LKV; kv++) {
            int k = q / BLOCK;
            int want =
                kv < CTX ? kv < anchor[k] && doc_ctx[kv] == doc_blk[k] : (kv - CTX) / BLOCK == k;
            assert_int_equal(out[q * LKV + kv], want);
            assert_int_equal(expr_eval_mask(e, &env, 0, 0, q, kv, &flag), want);
        }
    assert_int_equal(flag, 0);
    free(scratch);
    expr_free(e);
}

/* B07: index products beyond 32 bits. */
static void b07_indices_beyond_32_bits(void **state) {
    (void)state;
    static const expr_decl d[] = {{"len", EXPR_INT, 0}};
    expr_value v[1] = {{.scalar.i = 46341}};
    expr_env env = {v, 0, 0};
    expr *e = compile("q * len + kv == 2147534621", d, 1);
    assert_true(cell(e, &env, 0, 0, 46341, 46340, NULL));
    expr_free(e);
    holds("46341 * 46341 == 2147488281 && 46340 * 46340 == 2147395600", 1);
    e = compile("q >= kv", NULL, 0);
    assert_true(cell(e, NULL, 0, 0, (int64_t)1 << 33, ((int64_t)1 << 33) - 1, NULL));
    assert_false(cell(e, NULL, 0, 0, (int64_t)1 << 33, ((int64_t)1 << 33) + 1, NULL));
    expr_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(precedence),     cmocka_unit_test(conditional),
        cmocka_unit_test(floor_division), cmocka_unit_test(edges_of_integers),
        cmocka_unit_test(floats),         cmocka_unit_test(no_fused_multiply_add),
        cmocka_unit_test(guards),         cmocka_unit_test(guard_in_a_tile),
        cmocka_unit_test(element_types),  cmocka_unit_test(captures_and_offsets),
        cmocka_unit_test(uses),           cmocka_unit_test(printing),
        cmocka_unit_test(dflash),         cmocka_unit_test(b07_indices_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
