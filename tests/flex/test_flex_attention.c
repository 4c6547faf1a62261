/* Attention by tiles against the definition in double, over masks, types and odd shapes, and its promises about threads
 * and memory.
 *
 * Every case is drawn anew in each run; a failure prints mask, shape and seed. Inputs are the same values on both
 * sides (bf16 is widened exactly), so one bound serves both types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"

static const int64_t heads[][2] = {{1, 1}, {3, 1}, {3, 3}, {8, 8}, {8, 2}, {8, 1}, {9, 3}};
static const int64_t dims[] = {8, 16, 24, 40, 64, 72, 128, 136, 256};
static const int32_t tiles[] = {0, 0, 16, 24, 64, 128};

static flex_problem draw(uint64_t seed, int i) {
    uint64_t s = seed + (uint64_t)i * 1000;
    const int64_t *h = heads[numbers_below(s, 10, 0, 7)];
    int64_t longest = i % 4 == 0 ? 301 : 100;
    return (flex_problem){.batch = 1 + numbers_below(s, 11, 0, 2),
                          .q_heads = h[0],
                          .kv_heads = h[1],
                          .q_len = numbers_below(s, 12, 0, longest),
                          .kv_len = numbers_below(s, 13, 0, longest),
                          .dim = dims[numbers_below(s, 14, 0, i % 4 == 0 ? 5 : 9)],
                          .v_dim = dims[numbers_below(s, 15, 0, i % 4 == 0 ? 5 : 9)],
                          .type = numbers_below(s, 16, 0, 2) ? DT_BF16 : DT_F32,
                          .scale = numbers_below(s, 17, 0, 3) ? 0.0f : 0.3f,
                          .zero_scale = numbers_below(s, 20, 0, 4) == 0,
                          .tile_q = tiles[numbers_below(s, 18, 0, 6)],
                          .tile_kv = tiles[numbers_below(s, 19, 0, 6)]};
}

/* Rounding alone makes up to 5e-6, where rows are wide and few keys are seen. */
#define BOUND 4e-5
static void check(const attn_case *c, const char *what, const float *got, const float *want,
                  int64_t n) {
    double far = attn_far(got, want, n);
    if (far > BOUND)
        printf(
            "%s of mask %s, B %lld H %lld/%lld L %lld S %lld D %lld Dv %lld %s tiles %d x %d: %g\n",
            what, attn_mask_names[c->mask.kind], (long long)c->p.batch, (long long)c->p.q_heads,
            (long long)c->p.kv_heads, (long long)c->p.q_len, (long long)c->p.kv_len,
            (long long)c->p.dim, (long long)c->p.v_dim, dtype_name(c->p.type), c->p.tile_q,
            c->p.tile_kv, far);
    assert_true(far <= BOUND);
}

static void tiles_equal_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int i = 0; i < 10 * MASK_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, i);
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        attn_result got = attn_run(&c, d), want = attn_reference(&c);
        check(&c, "o", got.o, want.o, c.nq * c.p.v_dim);
        check(&c, "lse", got.lse, want.lse, c.nq);
        check(&c, "dq", got.dq, want.dq, c.nq * c.p.dim);
        check(&c, "dk", got.dk, want.dk, c.nk * c.p.dim);
        check(&c, "dv", got.dv, want.dv, c.nk * c.p.v_dim);
        attn_result_free(&got), attn_result_free(&want);
        attn_case_free(&c);
    }
    dev_close(d);
}

static int same(const attn_case *c, const attn_result *a, const attn_result *b) {
    size_t f = sizeof(float);
    return !memcmp(a->o, b->o, (size_t)(c->nq * c->p.v_dim) * f) &&
           !memcmp(a->lse, b->lse, (size_t)c->nq * f) &&
           !memcmp(a->dq, b->dq, (size_t)(c->nq * c->p.dim) * f) &&
           !memcmp(a->dk, b->dk, (size_t)(c->nk * c->p.dim) * f) &&
           !memcmp(a->dv, b->dv, (size_t)(c->nk * c->p.v_dim) * f);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d[3] = {attn_dev(1), attn_dev(2), attn_dev(3)};
    for (int i = 0; i < 2 * MASK_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, 4 * i);
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        attn_result one = attn_run(&c, d[0]), two = attn_run(&c, d[1]), three = attn_run(&c, d[2]);
        assert_true(same(&c, &one, &two));
        assert_true(same(&c, &one, &three));
        attn_result_free(&one), attn_result_free(&two), attn_result_free(&three);
        attn_case_free(&c);
    }
    for (int i = 0; i < 3; i++) dev_close(d[i]);
}

/* Widening what bf16 holds is exact, so without a matrix unit the same numbers in both types give the same bits. */
static void bf16_is_widened_exactly(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    setenv("PACELINE_ISA", "avx512", 1);
    dev *d = attn_dev(2);
    unsetenv("PACELINE_ISA");
    attn_case c;
    flex_problem p = draw(seed, 4);
    p.type = DT_BF16, p.q_len = 150, p.kv_len = 170;
    attn_case_make(&c, &p, MASK_WINDOW, seed);
    attn_result narrow = attn_run(&c, d);
    void **x[3] = {&c.q, &c.k, &c.v};
    int64_t n[3] = {c.nq * p.dim, c.nk * p.dim, c.nk * p.v_dim};
    for (int i = 0; i < 3; i++) {
        float *wide = numbers_poisoned(n[i]);
        dtype_to_f32(DT_BF16, *x[i], wide, (size_t)n[i]);
        free(*x[i]);
        *x[i] = wide;
    }
    c.p.type = DT_F32;
    attn_result wide = attn_run(&c, d);
    assert_true(same(&c, &narrow, &wide));
    attn_result_free(&narrow), attn_result_free(&wide);
    attn_case_free(&c);
    dev_close(d);
}

/* Nothing grows with L * S: a square of twice the side takes about twice the memory, far below a dense matrix. */
static void memory_follows_tiles(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    size_t plan_bytes[2], work_bytes[2];
    for (int i = 0; i < 2; i++) {
        attn_mask m;
        arena *a;
        flex_plan *plan;
        arena_stats s;
        int64_t n = 1024 << i;
        attn_mask_make(&m, MASK_CAUSAL, 1, n, n, seed);
        flex_problem p = {.batch = 1,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .q_len = n,
                          .kv_len = n,
                          .dim = 64,
                          .v_dim = 64,
                          .type = DT_F32,
                          .mask = m.e,
                          .env = &m.env};
        assert_ok(arena_create(&a, "plan", 0));
        assert_ok(flex_plan_create(&plan, d, &p, a));
        arena_get_stats(a, &s);
        plan_bytes[i] = s.used;
        work_bytes[i] = flex_backward_workspace(plan, 1) - flex_forward_workspace(plan, 1);
        assert_true((double)s.used < flex_dense_bytes(plan) / 50);
        assert_true(flex_forward_workspace(plan, 2) == 2 * flex_forward_workspace(plan, 1));
        arena_destroy(a);
        attn_mask_free(&m);
    }
    assert_true(plan_bytes[1] < 3 * plan_bytes[0]);
    assert_true(work_bytes[1] <
                work_bytes[0] + 64 * 1024); /* one float a row more, whatever S is */
    dev_close(d);
}

static void a_run_allocates_nothing(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    arena *a;
    flex_plan *plan;
    arena_stats before, after;
    flex_problem p = draw(seed, 8);
    attn_case_make(&c, &p, MASK_DFLASH, seed);
    attn_result r = attn_result_new(&c);
    flex_io io = attn_io(&c, &r);
    assert_ok(arena_create(&a, "plan", 0));
    assert_ok(flex_plan_create(&plan, d, &c.p, a));
    io.workspace = attn_workspace(plan, d);
    size_t bytes = dev_bytes(d);
    arena_get_stats(a, &before);
    for (int i = 0; i < 3; i++) {
        assert_ok(flex_forward(plan, d, &io));
        assert_ok(flex_backward(plan, d, &io));
    }
    arena_get_stats(a, &after);
    assert_true(before.allocations == after.allocations);
    assert_true(dev_bytes(d) == bytes);
    free(io.workspace);
    attn_result_free(&r);
    arena_destroy(a);
    attn_case_free(&c);
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_equal_definition),  cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(bf16_is_widened_exactly), cmocka_unit_test(memory_follows_tiles),
        cmocka_unit_test(a_run_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
