/* Faults that people met with masks (B03, B07): lengths beside multiples of tiles, arrays past 2^31 elements; lengths by batch.
 *
 * Big arrays are address space only: pages that nobody writes take no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include <sys/mman.h>

static int all_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

/* One of B03's 40 cases: bf16 or fp32, a bias that grows with distance either way, with and without a causal mask. */
static void one_length(int64_t S, int causal, int sign, dtype type, dev *d, uint64_t seed) {
    attn_case c;
    expr *score, *mask = NULL;
    int64_t dim = 64;
    flex_problem p = {.batch = 1,
                      .q_heads = 1,
                      .kv_heads = 1,
                      .q_len = S,
                      .kv_len = S,
                      .dim = dim,
                      .v_dim = dim,
                      .type = type};
    attn_case_make(&c, &p, MASK_NONE, seed);
    assert_ok(expr_compile(&score, EXPR_SCORE, sign > 0 ? "s + float(q - kv)" : "s - float(q - kv)",
                           NULL, 0));
    if (causal) assert_ok(expr_compile(&mask, EXPR_MASK, "q >= kv", NULL, 0));
    const expr_env none = {NULL, 0, 0};
    c.p.score = score, c.p.score_env = &none, c.p.mask = mask;
    for (int64_t i = 0; i < c.nq * dim; i++)
        c.d_o[i] = 0.01f / (float)(c.nq * dim); /* 0.01 * mean */
    memset(c.d_lse, 0, (size_t)c.nq * sizeof(float));
    attn_result got = attn_run(&c, d), want = attn_reference(&c);
    assert_true(all_finite(got.o, c.nq * dim) && all_finite(got.lse, c.nq));
    assert_true(all_finite(got.dq, c.nq * dim) && all_finite(got.dk, c.nk * dim) &&
                all_finite(got.dv, c.nk * dim));
    const double far = S > 300 ? 2e-4 : 5e-5; /* scores near S are 2^-14 and 2^-16 apart in fp32 */
    assert_true(attn_far(got.o, want.o, c.nq * dim) < far);
    assert_true(attn_far(got.dq, want.dq, c.nq * dim) < far);
    assert_true(attn_far(got.dk, want.dk, c.nk * dim) < far);
    assert_true(attn_far(got.dv, want.dv, c.nk * dim) < far);
    attn_result_free(&got), attn_result_free(&want);
    attn_case_free(&c);
    expr_free(score), expr_free(mask);
}

static void b03_lengths_beside_tiles_have_finite_gradients(void **state) {
    (void)state;
    static const int64_t lengths[] = {127, 128, 129, 257, 1025};
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int i = 0; i < 40; i++)
        one_length(lengths[i / 8], i & 1, i & 2 ? 1 : -1, i & 4 ? DT_BF16 : DT_F32, d,
                   seed + (uint64_t)i);
    dev_close(d);
}

/* B07: a membership table of 46341 x 46341 elements, the first square past 2^31: the last element is read, not one
 * 2^32 or 2^31 before it; by the definition, the tiles and the analysis. */
static void b07_tables_past_two_to_the_31_are_read_where_they_are(void **state) {
    (void)state;
    enum { N = 46341, L = 200 };
    const int64_t last = (int64_t)N * N - 1;
    size_t bytes = (size_t)N * N;
    uint8_t *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
        printf("skipped: 2 GiB of address space cannot be had\n");
        skip();
    }
    const expr_decl decl = {"table", EXPR_INT, 2};
    const expr_value value = {.type = DT_U8, .dim = {N, N}, .data = table};
    const expr_env env = {&value, N - L, N - L};
    const int64_t cell[3] = {last, last - N * INT64_C(150) - 3, last - N * INT64_C(199) - 199};
    expr *e;
    arena *a;
    block_mask m;
    int flag = 0;
    assert_true(last > INT32_MAX);
    for (int i = 0; i < 3; i++) table[cell[i]] = (uint8_t)(i + 1);
    assert_ok(arena_create(&a, "mask", 0));
    assert_ok(expr_compile(&e, EXPR_MASK, "table[q, kv] > 0", &decl, 1));
    const block_mask_args args = {.mask = e,
                                  .env = &env,
                                  .batch = 1,
                                  .heads = 1,
                                  .q_len = L,
                                  .kv_len = L,
                                  .tile_q = 64,
                                  .tile_kv = 64};
    assert_ok(blockmask_build(&m, &args, a, NULL));
    assert_int_equal(m.partial, 3);
    assert_int_equal(m.full, 0);
    assert_true(m.proofs.inside == 1 && !m.proofs.fits_32 && !m.may_leave);
    for (int64_t q = 0; q < L; q++)
        for (int64_t k = 0; k < L; k++) {
            int64_t at = (N - L + q) * N + N - L + k;
            int want = at == cell[0] || at == cell[1] || at == cell[2];
            assert_int_equal(expr_eval_mask(e, &env, 0, 0, q, k, &flag), want);
        }
    assert_int_equal(flag, 0);
    expr_free(e);
    arena_destroy(a);
    munmap(table, bytes);
}

/* Lengths that differ by batch entry, from an array read by b: tiles, empty rows and attention. */
static void lengths_by_batch(void **state) {
    (void)state;
    enum { B = 5, N = 100 };
    static const int32_t length[B] = {0, 1, 57, 64, N};
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    int64_t dim = 16;
    flex_problem p = {.batch = B,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .q_len = N,
                      .kv_len = N,
                      .dim = dim,
                      .v_dim = dim,
                      .type = DT_F32,
                      .tile_q = 16,
                      .tile_kv = 16};
    const expr_decl decl = {"length", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {B}, .data = length};
    const expr_env env = {&value, 0, 0};
    expr *e;
    arena *a;
    flex_plan *plan;
    assert_ok(expr_compile(&e, EXPR_MASK, "q < length[b] && kv <= q", &decl, 1));
    attn_case_make(&c, &p, MASK_NONE, seed);
    c.p.mask = e, c.p.env = &env;
    assert_ok(arena_create(&a, "plan", 0));
    assert_ok(flex_plan_create(&plan, d, &c.p, a));
    const block_mask *m = flex_plan_mask(plan);
    assert_true(m->batch == B && m->heads == 1 && !m->no_empty_row && m->proofs.inside == 1);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < m->q_tiles; t++) /* tiles behind the length are not there */
            assert_int_equal(m->row_start[b * m->q_tiles + t + 1] >
                                 m->row_start[b * m->q_tiles + t],
                             t * 16 < length[b]);
    attn_result got = attn_run(&c, d), want = attn_reference(&c);
    assert_true(attn_far(got.o, want.o, c.nq * dim) < 1e-5);
    assert_true(attn_far(got.dk, want.dk, c.nk * dim) < 1e-5);
    for (int64_t i = 0; i < c.nq; i++)
        assert_int_equal(got.lse[i] == -INFINITY, i % N >= length[i / (2 * N)]);
    attn_result_free(&got), attn_result_free(&want);
    attn_case_free(&c);
    arena_destroy(a);
    expr_free(e);
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b03_lengths_beside_tiles_have_finite_gradients),
        cmocka_unit_test(b07_tables_past_two_to_the_31_are_read_where_they_are),
        cmocka_unit_test(lengths_by_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
