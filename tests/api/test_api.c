/* The public library does what flex does: runs, captures, offsets, merges, and the life of handles.
 *
 * Masks are in test_api_masks.c, sentences are in test_api_errors.c, threads in test_api_threads.c, the installed tree in test_install.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_case.h"

static pl_device *device(int threads) {
    pl_device *d;
    assert_pl_ok(pl_device_open_cpu(&d, threads));
    return d;
}

static void runs_give_the_bits_of_flex(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    static const int64_t dims[] = {8, 24, 64}, groups[] = {1, 2, 3};
    dev *d = attn_dev(2);
    pl_device *mine = device(3);
    for (uint64_t i = 0; i < 4 * MASK_KINDS; i++) {
        int64_t heads = 1 + numbers_below(seed, 1, i, 2);
        flex_problem p = {.batch = 1 + numbers_below(seed, 2, i, 2),
                          .q_heads = heads * groups[numbers_below(seed, 3, i, 3)],
                          .kv_heads = heads,
                          .q_len = numbers_below(seed, 4, i, 150),
                          .kv_len = numbers_below(seed, 5, i, 150),
                          .dim = dims[numbers_below(seed, 6, i, 3)],
                          .v_dim = dims[numbers_below(seed, 7, i, 3)],
                          .type = i % 2 ? DT_F32 : DT_BF16,
                          .tile_q = i % 3 ? 0 : 16,
                          .tile_kv = i % 3 ? 0 : 32};
        attn_case c;
        pl_plan *plan;
        attn_case_make(&c, &p, (int)(i % MASK_KINDS), seed + i);
        int score = (int)(i % SCORE_KINDS);
        if (c.mask.kind == MASK_DFLASH && score == SCORE_BY_Q_AND_KV)
            score = SCORE_DENSE; /* both texts name something `a` */
        attn_case_score(&c, score, i % 3 == 0, seed + i);
        attn_result want = attn_run(&c, d), got = attn_result_new(&c);
        pl_problem *problem = api_problem(&c);
        assert_non_null(problem);
        assert_pl_ok(pl_plan_create(&plan, problem, mine));
        pl_problem_free(problem); /* the plan stands alone */
        pl_gradient list[8];
        pl_io io = api_io(&c, &got);
        api_gradients(&c, &got, &io, list);
        assert_pl_ok(api_run(plan, mine, &io));
        assert_true(api_same_result(&c, &want, &got));
        assert_int_equal(io.left, 0);
        pl_plan_free(plan);
        attn_result_free(&want), attn_result_free(&got);
        attn_case_free(&c);
    }
    pl_device_free(mine);
    dev_close(d);
}

/* [batch, length, heads, dim] in memory, keys of one head repeated by stride 0, gradients back into the same layout. */
static void strides_are_those_of_the_caller(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    enum { B = 2, H = 3, L = 37, D = 16 };
    flex_problem p = {.batch = B,
                      .q_heads = H,
                      .kv_heads = H,
                      .q_len = L,
                      .kv_len = L,
                      .dim = D,
                      .v_dim = D,
                      .type = DT_F32};
    attn_case c;
    attn_case_make(&c, &p, MASK_CAUSAL, seed);
    float *k = c.k;
    for (int64_t i = 0; i < B * H; i++) /* all heads alike, so that stride 0 means the same */
        if (i % H) memcpy(k + i * L * D, k + (i - i % H) * L * D, L * D * sizeof *k);
    dev *d = attn_dev(1);
    pl_device *mine = device(1);
    attn_result want = attn_run(&c, d), got = attn_result_new(&c);
    float *q = numbers_poisoned(B * H * L * D), *dq = numbers_poisoned(B * H * L * D);
    for (int64_t i = 0; i < B * H * L * D; i++) {
        int64_t b = i / (H * L * D), h = i / (L * D) % H, l = i / D % L;
        q[((b * L + l) * H + h) * D + i % D] = ((float *)c.q)[i];
    }
    pl_problem *problem = api_problem(&c);
    pl_plan *plan;
    assert_pl_ok(pl_plan_create(&plan, problem, mine));
    pl_io io = api_io(&c, &got);
    io.q = (pl_view){q, PL_F32, {L * H * D, D, H * D, 1}};
    io.dq = (pl_out){dq, {L * H * D, D, H * D, 1}};
    io.k.stride[1] = 0;
    assert_pl_ok(api_run(plan, mine, &io));
    for (int64_t i = 0; i < B * H * L * D; i++) {
        int64_t b = i / (H * L * D), h = i / (L * D) % H, l = i / D % L;
        got.dq[i] = dq[((b * L + l) * H + h) * D + i % D];
    }
    assert_true(api_same_result(&c, &want, &got));
    free(q), free(dq);
    pl_plan_free(plan), pl_problem_free(problem), pl_device_free(mine);
    attn_result_free(&want), attn_result_free(&got);
    attn_case_free(&c);
    dev_close(d);
}

static pl_problem *square(int64_t n, const char *mask) {
    const pl_shape s = {sizeof s, 1, 1, 1, n, n, 8, 8};
    pl_problem *p;
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_ok(pl_problem_mask(p, mask));
    assert_pl_ok(pl_problem_tiles(p, 8, 8));
    return p;
}
static pl_mask_info counts(const pl_problem *p) {
    pl_mask_info info = {.size = sizeof info};
    pl_mask *m;
    assert_pl_ok(pl_mask_create(&m, p, NULL));
    assert_pl_ok(pl_mask_get_info(m, &info));
    pl_mask_free(m);
    return info;
}

static void every_type_of_capture_is_read(void **state) {
    (void)state;
    static const int8_t i8[4] = {0, 1, 2, 3};
    static const uint8_t u8[4] = {0, 1, 2, 3}, flags[4] = {1, 0, 1, 0};
    static const int16_t i16[4] = {0, 1, 2, 3};
    static const int32_t i32[4] = {0, 1, 2, 3};
    static const int64_t i64[4] = {0, 1, 2, 3}, four = 4;
    static const float f32[4] = {0, 1, 2, 3};
    static const double f64[4] = {0, 1, 2, 3};
    static const uint16_t b16[4] = {0, 0x3f80, 0x4000, 0x4040},
                          h16[4] = {0, 0x3c00, 0x4000, 0x4200};
    static const struct {
        pl_type type;
        const void *data;
    } arrays[] = {{PL_I8, i8},   {PL_U8, u8},   {PL_I16, i16},  {PL_I32, i32}, {PL_I64, i64},
                  {PL_F32, f32}, {PL_F64, f64}, {PL_BF16, b16}, {PL_F16, h16}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        pl_problem *p = square(32, i < 5 ? "x[q // 8] == kv // 8" : "x[q // 8] == float(kv // 8)");
        assert_pl_ok(pl_problem_array(p, "x", arrays[i].type, 1, &four, arrays[i].data));
        pl_mask_info info = counts(p); /* the diagonal */
        assert_int_equal(info.full, 4);
        assert_int_equal(info.empty, 12);
        pl_problem_free(p);
    }
    pl_problem *p = square(32, "x[q // 8] && kv >= n && on && float(kv) < limit");
    assert_pl_ok(pl_problem_array(p, "x", PL_BOOL, 1, &four, flags));
    assert_pl_ok(pl_problem_int(p, "n", 8));
    assert_pl_ok(pl_problem_bool(p, "on", 7)); /* whatever is not 0 */
    assert_pl_ok(pl_problem_float(p, "limit", 24.0f));
    assert_int_equal(counts(p).full, 4);      /* 2 rows of tiles, 2 tiles each */
    assert_pl_ok(pl_problem_int(p, "n", 16)); /* given again: another value */
    assert_int_equal(counts(p).full, 2);
    assert_pl_ok(pl_problem_mask(p, NULL));
    assert_int_equal(counts(p).full, 16);
    pl_problem_free(p);
}

/* A slice with offsets is the same rows and columns of the whole. */
static void offsets_move_the_mask(void **state) {
    (void)state;
    pl_problem *whole = square(64, "kv <= q && q - kv < 20"),
               *part = square(32, "kv <= q && q - kv < 20");
    pl_mask *a, *b;
    uint8_t all[64], some[16];
    assert_pl_ok(pl_problem_offsets(part, 32, 16));
    assert_pl_ok(pl_mask_create(&a, whole, NULL));
    assert_pl_ok(pl_mask_create(&b, part, NULL));
    assert_pl_ok(pl_mask_tiles(a, 0, 0, all, sizeof all));
    assert_pl_ok(pl_mask_tiles(b, 0, 0, some, sizeof some));
    for (int i = 0; i < 4; i++) assert_memory_equal(some + 4 * i, all + 8 * (i + 4) + 2, 4);
    pl_mask_free(a), pl_mask_free(b);
    pl_problem_free(whole), pl_problem_free(part);
}

static void plans_explain_themselves(void **state) {
    (void)state;
    pl_device *d = device(2);
    pl_problem *p = square(4096, "kv <= q");
    pl_plan *plan;
    size_t need = 0, again;
    char cut[20], *text;
    assert_non_null(strstr(pl_device_text(d), "CPU, 2 threads"));
    assert_int_equal(pl_device_threads(d), 2);
    assert_pl_ok(pl_plan_create(&plan, p, d));
    assert_pl_ok(pl_plan_explain(plan, NULL, 0, &need));
    text = malloc(need);
    assert_pl_ok(pl_plan_explain(plan, text, need, &again));
    assert_int_equal(again, need);
    assert_int_equal(strlen(text) + 1, need);
    assert_non_null(strstr(text, "empty tiles"));
    assert_pl_ok(pl_plan_explain(plan, cut, sizeof cut, NULL));
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, text, sizeof cut - 1);
    assert_true(pl_plan_visited(plan) > 0.5 && pl_plan_visited(plan) < 0.502);
    assert_true(pl_plan_dense_bytes(plan) == 4.0 * 4096 * 4096);
    pl_mask_info info = {.size = sizeof info};
    assert_pl_ok(pl_mask_get_info(pl_plan_mask(plan), &info));
    assert_int_equal(info.partial, 512);
    assert_true(pl_plan_bytes(plan) >= info.bytes && pl_plan_bytes(plan) < 1 << 20);
    assert_int_equal(pl_plan_forward_workspace(plan, d) % 64, 0);
    pl_device *one = device(1);
    assert_true(pl_plan_forward_workspace(plan, one) < pl_plan_forward_workspace(plan, d));
    free(text);
    pl_plan_free(plan), pl_problem_free(p), pl_device_free(d), pl_device_free(one);
}

/* A load in a hidden cell that leaves its array is told with its place, and the next clean run says so. */
static void loads_that_left_are_told(void **state) {
    (void)state;
    enum { N = 24 };
    static const int32_t t[20] = {0};
    static const int64_t extent = 20;
    static float x[N * 8], y[N * 8], lse[N];
    pl_device *d = device(2);
    pl_problem *p = square(N, "kv == q || q > 10 && t[kv] > 0");
    pl_plan *plan;
    assert_pl_ok(pl_problem_array(p, "t", PL_I32, 1, &extent, t));
    assert_pl_ok(pl_plan_create(&plan, p, d));
    pl_io io = {.size = sizeof io,
                .q = pl_view_dense(x, PL_F32, 1, N, 8),
                .o = pl_out_dense(y, 1, N, 8),
                .lse = lse};
    io.k = io.v = io.q;
    api_workspace(&io, pl_plan_forward_workspace(plan, d));
    assert_pl_ok(pl_forward(plan, d, &io));
    assert_int_equal(io.left, 1);
    assert_int_equal(io.left_cell[2], 16); /* rows 16..23 hold the diagonal tile past key 19 */
    assert_int_equal(io.left_cell[3], 20);
    pl_plan_free(plan);
    assert_pl_ok(pl_problem_mask(p, "kv == q || q > 10 && kv < 20 && t[kv] > 0"));
    assert_pl_ok(pl_plan_create(&plan, p, d));
    free(io.workspace);
    api_workspace(&io, pl_plan_forward_workspace(plan, d));
    assert_pl_ok(pl_forward(plan, d, &io));
    assert_int_equal(io.left, 0);
    pl_plan_free(plan);
    /* The same cells of a slice: they are told as rows of the tensors. */
    assert_pl_ok(
        pl_problem_mask(p, "let i = q - 100; let j = kv - 1000; i == j || i > 10 && t[j] > 0"));
    assert_pl_ok(pl_problem_offsets(p, 100, 1000));
    assert_pl_ok(pl_plan_create(&plan, p, d));
    free(io.workspace);
    api_workspace(&io, pl_plan_forward_workspace(plan, d));
    assert_pl_ok(pl_forward(plan, d, &io));
    assert_int_equal(io.left, 1);
    assert_int_equal(io.left_cell[2], 16);
    assert_int_equal(io.left_cell[3], 20);
    free(io.workspace);
    pl_plan_free(plan), pl_problem_free(p), pl_device_free(d);
}

/* A bias and sinks that are learned: new values between runs of one plan act as in a plan made anew. */
static void learned_values_need_no_new_plan(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    flex_problem p = {.batch = 1,
                      .q_heads = 2 + 2 * numbers_below(seed, 1, 0, 2),
                      .kv_heads = 2,
                      .q_len = 20 + numbers_below(seed, 2, 0, 40),
                      .kv_len = 20 + numbers_below(seed, 3, 0, 40),
                      .dim = 16,
                      .v_dim = 16,
                      .type = DT_F32};
    attn_case c;
    pl_device *d = device(2);
    pl_plan *plan, *anew;
    pl_gradient list[8];
    attn_case_make(&c, &p, MASK_CAUSAL, seed);
    attn_case_score(&c, SCORE_DENSE, 1, seed);
    attn_result first = attn_result_new(&c), again = attn_result_new(&c),
                want = attn_result_new(&c);
    pl_problem *problem = api_problem(&c);
    assert_pl_ok(pl_plan_create(&plan, problem, d));
    pl_io io = api_io(&c, &first);
    api_gradients(&c, &first, &io, list);
    assert_pl_ok(api_run(plan, d, &io));
    for (int64_t i = 0; i < c.score.n_learned; i++) ((float *)c.score.array[0])[i] *= -0.5f;
    for (int64_t h = 0; h < c.p.q_heads; h++) c.sinks[h] += 1.0f;
    io = api_io(&c, &again), api_gradients(&c, &again, &io, list);
    assert_pl_ok(api_run(plan, d, &io));
    assert_pl_ok(pl_plan_create(&anew, problem, d));
    io = api_io(&c, &want), api_gradients(&c, &want, &io, list);
    assert_pl_ok(api_run(anew, d, &io));
    assert_true(api_same_result(&c, &want, &again) && !api_same_result(&c, &first, &again));
    attn_result_free(&first), attn_result_free(&again), attn_result_free(&want);
    pl_plan_free(plan), pl_plan_free(anew), pl_problem_free(problem), pl_device_free(d);
    attn_case_free(&c);
}

/* B02: parts of the keys, one of them empty, merge into the whole; what sees nothing stays 0 and -inf. */
static void b02_merged_parts_equal_the_whole(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    enum { L = 40, D = 16, PARTS = 3 };
    static const int64_t cut[PARTS + 1] = {0, 17, 17, L};
    static const char text[] = "kv <= q && q != 20";
    pl_device *d = device(2);
    float *q = numbers_new(L * D, seed, 1, 1), *k = numbers_new(L * D, seed, 2, 1),
          *v = numbers_new(L * D, seed, 3, 1), *o[PARTS + 1], *lse[PARTS + 1], out[L * D],
          out_lse[L];
    for (int i = 0; i <= PARTS; i++) { /* the last is the whole */
        int64_t from = i < PARTS ? cut[i] : 0, n = i < PARTS ? cut[i + 1] - from : L;
        const pl_shape s = {sizeof s, 1, 1, 1, L, n, D, D};
        pl_problem *p;
        pl_plan *plan;
        o[i] = numbers_poisoned(L * D), lse[i] = numbers_poisoned(L);
        assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
        assert_pl_ok(pl_problem_mask(p, text));
        assert_pl_ok(pl_problem_offsets(p, 0, from));
        assert_pl_ok(pl_plan_create(&plan, p, d));
        pl_io io = {.size = sizeof io,
                    .q = pl_view_dense(q, PL_F32, 1, L, D),
                    .k = pl_view_dense(k + from * D, PL_F32, 1, n, D),
                    .v = pl_view_dense(v + from * D, PL_F32, 1, n, D),
                    .o = pl_out_dense(o[i], 1, L, D),
                    .lse = lse[i]};
        api_workspace(&io, pl_plan_forward_workspace(plan, d));
        assert_pl_ok(pl_forward(plan, d, &io));
        free(io.workspace);
        pl_plan_free(plan), pl_problem_free(p);
    }
    numbers_poison(o[1], L * D); /* an empty part may hold anything */
    assert_pl_ok(
        pl_merge(PARTS, L, D, (const float *const *)o, (const float *const *)lse, out, out_lse));
    assert_true(attn_far(out, o[PARTS], L * D) < 1e-6 && attn_far(out_lse, lse[PARTS], L) < 1e-6);
    assert_true(out_lse[20] == -INFINITY && out[20 * D] == 0.0f);
    assert_pl_ok(pl_merge(0, L, D, NULL, NULL, out, out_lse));
    assert_true(out_lse[0] == -INFINITY && out[0] == 0.0f);
    for (int i = 0; i <= PARTS; i++) free(o[i]), free(lse[i]);
    free(q), free(k), free(v);
    pl_device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_give_the_bits_of_flex),
        cmocka_unit_test(strides_are_those_of_the_caller),
        cmocka_unit_test(every_type_of_capture_is_read),
        cmocka_unit_test(offsets_move_the_mask),
        cmocka_unit_test(plans_explain_themselves),
        cmocka_unit_test(loads_that_left_are_told),
        cmocka_unit_test(learned_values_need_no_new_plan),
        cmocka_unit_test(b02_merged_parts_equal_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
