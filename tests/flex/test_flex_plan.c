/* Plans and runs of attention from outside: switches, flags, sentences, explanations.
 *
 * Numbers are checked in test_flex_attention.c and faults that people met in test_flex_cases.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include <pthread.h>

static flex_problem shape(int64_t hq, int64_t hkv, int64_t L, int64_t S, int64_t dim) {
    return (flex_problem){.batch = 1,
                          .q_heads = hq,
                          .kv_heads = hkv,
                          .q_len = L,
                          .kv_len = S,
                          .dim = dim,
                          .v_dim = dim,
                          .type = DT_F32};
}
static int same_bits(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof(float));
}

static void no_gradient_of_lse_means_zero(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(2, 1, 50, 60, 16);
    attn_case_make(&c, &p, MASK_CAUSAL, seed);
    memset(c.d_lse, 0, (size_t)c.nq * sizeof(float));
    attn_result zeros = attn_run(&c, d), want = attn_reference(&c), none = attn_result_new(&c);
    flex_io io = attn_io(&c, &none);
    io.d_lse = NULL;
    attn_run_io(&c.p, &io, d);
    assert_true(same_bits(none.dq, zeros.dq, c.nq * 16) && same_bits(none.dk, zeros.dk, c.nk * 16));
    assert_true(attn_far(none.dq, want.dq, c.nq * 16) < 1e-5);
    attn_result_free(&zeros), attn_result_free(&want), attn_result_free(&none);
    attn_case_free(&c);
    dev_close(d);
}

static void reference_switch_runs_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(2, 1, 30, 40, 16);
    attn_case_make(&c, &p, MASK_CAUSAL, seed);
    attn_result want = attn_reference(&c), tiles = attn_run(&c, d);
    setenv("PACELINE_REFERENCE", "1", 1);
    attn_result got = attn_run(&c, d);
    arena *a;
    flex_plan *plan;
    str s = {0};
    assert_ok(arena_create(&a, "plan", 0));
    assert_ok(flex_plan_create(&plan, d, &c.p, a));
    assert_ok(flex_plan_explain(plan, &s)); /* a slow road is told of */
    assert_non_null(strstr(s.s, "plain definition"));
    str_free(&s);
    setenv("PACELINE_REFERENCE", "yes", 1);
    assert_says(flex_plan_create(&plan, d, &c.p, a), ERR_USAGE, "PACELINE_REFERENCE", "'yes'");
    arena_destroy(a);
    unsetenv("PACELINE_REFERENCE");
    assert_true(same_bits(got.o, want.o, c.nq * 16) && same_bits(got.dk, want.dk, c.nk * 16));
    assert_true(!same_bits(got.o, tiles.o, c.nq * 16)); /* another road: fp32 rounds elsewhere */
    attn_result_free(&want), attn_result_free(&tiles), attn_result_free(&got);
    attn_case_free(&c);
    dev_close(d);
}

/* A load that leaves its array in a hidden cell of a partial tile raises the flag with the first such cell. */
static void loads_that_leave_raise_the_flag(void **state) {
    (void)state;
    int32_t t[20] = {0};
    const expr_decl decl = {"t", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {20}, .data = t};
    dev *d = attn_dev(3);
    attn_case c;
    flex_problem p = shape(2, 1, 40, 40, 8);
    attn_case_make(&c, &p, MASK_NONE, 1);
    c.p.tile_q = c.p.tile_kv = 16;
    c.mask.value[0] = value;
    c.p.env = &c.mask.env;
    assert_ok(expr_compile(&c.mask.e, EXPR_MASK, "kv == q || q > 10 && t[kv] > 0", &decl, 1));
    c.p.mask = c.mask.e;
    err e = ERR_OK;
    arena *a;
    flex_plan *plan;
    assert_ok(arena_create(&a, "plan", 0));
    e = flex_plan_create(&plan, d, &c.p, a);
    assert_ok(e);
    assert_true(flex_plan_mask(plan)->may_leave);
    attn_result r = attn_result_new(&c);
    flex_io io = attn_io(&c, &r);
    int left = 0;
    io.left = &left;
    io.workspace = attn_workspace(plan, d);
    assert_ok(flex_forward(plan, d, &io));
    assert_int_equal(left, 1);
    assert_int_equal(io.left_cell[2],
                     16); /* the diagonal tile of rows 16..31 is the first to hold keys past 19 */
    assert_int_equal(io.left_cell[3], 20);
    free(io.workspace);
    attn_result_free(&r);
    arena_destroy(a);
    attn_case_free(&c);
    dev_close(d);
}

static void problems_are_refused_with_sentences(void **state) {
    (void)state;
    dev *d = attn_dev(1);
    arena *a;
    flex_plan *plan;
    assert_ok(arena_create(&a, "plan", 0));
    flex_problem p = shape(8, 3, 10, 10, 16);
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "8 query heads", "3 key/value heads");
    p = shape(2, 1, 10, 10, 12);
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "head dimension of q and k is 12",
                "multiple of 8");
    p = shape(2, 1, 10, 10, 16), p.v_dim = 264;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "head dimension of v is 264");
    p = shape(2, 1, -1, 10, 16);
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_RANGE, "query length is -1");
    p = shape(2, 1, 10, INT64_C(1) << 40, 16), p.batch = INT64_C(1) << 20;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_RANGE, "batch 1048576", "addressed");
    p = shape(2, 1, 10, 10, 16), p.tile_q = 12;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_RANGE, "tile_q is 12");
    p = shape(2, 1, 10, 10, 16), p.type = DT_F16;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "F16", "BF16");
    p = shape(2, 1, 10, 10, 16), p.scale = NAN;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_RANGE, "scale");
    attn_mask m;
    attn_mask_make(&m, MASK_CAUSAL, 1, 100000, 100000, 1);
    p = shape(1, 1, 100000, 100000, 16), p.mask = m.e, p.env = &m.env, p.tile_q = p.tile_kv = 16,
    p.mask_budget = 4096;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_REFUSED, "budget is 4.0 KiB", "need");
    attn_mask_free(&m);
    p = shape(2, 1, 10, 10, 16);
    assert_ok(flex_plan_create(&plan, d, &p, a));
    float x[10 * 2 * 16] = {0}, lse[20];
    flex_io io = {.q = attn_view(DT_BF16, x, 2, 10, 16),
                  .k = attn_view(DT_F32, x, 1, 10, 16),
                  .v = attn_view(DT_F32, x, 1, 10, 16),
                  .o = attn_out(x, 2, 10, 16),
                  .lse = lse};
    assert_says(flex_forward(plan, d, &io), ERR_SHAPE, "q is BF16", "F32");
    io.q.type = DT_F32;
    assert_says(flex_forward(plan, d, &io), ERR_USAGE, "workspace", "bytes");
    assert_says(flex_backward(plan, d, &io), ERR_USAGE, "gradient of o");
    arena_destroy(a);
    dev_close(d);
}

static void a_plan_explains_itself(void **state) {
    (void)state;
    dev *d = attn_dev(1);
    arena *a;
    flex_plan *plan;
    attn_mask m;
    str s = {0};
    attn_mask_make(&m, MASK_CAUSAL, 1, 1024, 1024, 1);
    flex_problem p = shape(9, 3, 1024, 1024, 64);
    p.mask = m.e, p.env = &m.env, p.tile_q = p.tile_kv = 128;
    assert_ok(arena_create(&a, "plan", 0));
    assert_ok(flex_plan_create(&plan, d, &p, a));
    assert_ok(flex_plan_explain(plan, &s));
    static const char *const parts[] = {"28 full, 8 partial, 28 empty", "128 x 128", "0.5625",
                                        "36 MiB", "compiles: 0"};
    for (int i = 0; i < 5; i++) {
        if (!strstr(s.s, parts[i])) printf("'%s' is not in:\n%s\n", parts[i], s.s);
        assert_non_null(strstr(s.s, parts[i]));
    }
    assert_true(flex_plan_visited(plan) == 36.0 / 64.0);
    str_free(&s);
    arena_destroy(a);
    attn_mask_free(&m);
    dev_close(d);
}

/* One plan, several threads, each with its own device handle, outputs and workspace. */
typedef struct runner {
    const flex_plan *plan;
    dev *d;
    flex_io io;
    err failed;
} runner;

static void *run_plan(void *ctx) {
    runner *r = ctx;
    for (int i = 0; i < 3 && !r->failed; i++) {
        r->failed = flex_forward(r->plan, r->d, &r->io);
        if (!r->failed) r->failed = flex_backward(r->plan, r->d, &r->io);
    }
    return NULL;
}

static void one_plan_runs_from_many_threads(void **state) {
    (void)state;
    enum { N = 4 };
    uint64_t seed = numbers_seed();
    attn_case c;
    flex_problem p = shape(4, 2, 100, 130, 16);
    attn_case_make(&c, &p, MASK_BITS, seed);
    arena *a;
    flex_plan *plan;
    runner r[N];
    pthread_t thread[N];
    attn_result out[N];
    dev *first = attn_dev(1);
    assert_ok(arena_create(&a, "plan", 0));
    assert_ok(flex_plan_create(&plan, first, &c.p, a));
    for (int i = 0; i < N; i++) {
        out[i] = attn_result_new(&c);
        r[i] = (runner){plan, i ? attn_dev(1 + i % 2) : first, attn_io(&c, &out[i]), ERR_OK};
        r[i].io.workspace = attn_workspace(plan, r[i].d);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_plan, &r[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(r[i].failed, ERR_OK);
        assert_true(same_bits(out[i].o, out[0].o, c.nq * 16) &&
                    same_bits(out[i].dq, out[0].dq, c.nq * 16));
        assert_true(same_bits(out[i].dk, out[0].dk, c.nk * 16) &&
                    same_bits(out[i].dv, out[0].dv, c.nk * 16));
    }
    for (int i = 0; i < N; i++) {
        free(r[i].io.workspace);
        attn_result_free(&out[i]);
        dev_close(r[i].d);
    }
    arena_destroy(a);
    attn_case_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_plan_runs_from_many_threads),
        cmocka_unit_test(no_gradient_of_lse_means_zero),
        cmocka_unit_test(reference_switch_runs_the_definition),
        cmocka_unit_test(loads_that_leave_raise_the_flag),
        cmocka_unit_test(problems_are_refused_with_sentences),
        cmocka_unit_test(a_plan_explains_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
