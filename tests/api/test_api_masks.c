/* Masks through the public header: built, mapped, given to plans, and as lists of tiles out and in.
 *
 * Tiles are held against brute force, runs with a given mask against runs that build it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_case.h"

/* Whether the tiles of entry (b, h) are those of brute force, which knows whether an entry stands for all. */
static int same_tiles(const pl_mask *m, const pl_mask_info *info, const uint8_t *want, uint8_t *got,
                      int64_t b, int64_t h) {
    size_t n = (size_t)(info->q_tiles * info->kv_tiles);
    int64_t entry =
        (info->stored_batch == 1 ? 0 : b) * info->stored_heads + (info->stored_heads == 1 ? 0 : h);
    memset(got, 9, n);
    return pl_mask_tiles(m, b, h, got, n) == PL_OK && !memcmp(got, want + (size_t)entry * n, n);
}

static void masks_equal_brute_force(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    for (uint64_t i = 0; i < 3 * MASK_KINDS; i++) {
        flex_problem p = {.batch = 1 + numbers_below(seed, 1, i, 3),
                          .q_heads = 1 + numbers_below(seed, 2, i, 4),
                          .kv_heads = 1 + numbers_below(seed, 6, i, 2),
                          .q_len = numbers_below(seed, 3, i, 200),
                          .kv_len = numbers_below(seed, 4, i, 200),
                          .dim = 8 * (1 + numbers_below(seed, 5, i, 2)),
                          .v_dim = 8,
                          .type = i % 2 ? DT_F32 : DT_BF16,
                          .tile_q = 16,
                          .tile_kv = 24};
        attn_case c;
        attn_case_make(&c, &p, (int)(i % MASK_KINDS), seed + i);
        pl_problem *problem = api_problem(&c);
        pl_mask *m;
        pl_mask_info info = {.size = sizeof info};
        assert_pl_ok(pl_mask_create(&m, problem, NULL));
        pl_problem_free(problem);
        assert_pl_ok(pl_mask_get_info(m, &info));
        assert_int_equal(info.batch, c.p.batch);
        assert_int_equal(info.heads, c.p.q_heads);
        assert_int_equal(info.tile_q, 16);
        assert_int_equal(info.q_tiles, (c.p.q_len + 15) / 16);
        assert_int_equal(info.kv_tiles, (c.p.kv_len + 23) / 24);
        size_t n = (size_t)(info.q_tiles * info.kv_tiles);
        uint8_t *want = malloc((size_t)(info.batch * info.heads) * n + 1), *got = malloc(n + 1);
        const block_mask_args args = {
            c.p.mask, c.p.env, info.stored_batch, info.stored_heads, c.p.q_len, c.p.kv_len, 16,
            24,       0};
        assert_ok(blockmask_brute(&args, want));
        for (int64_t e = 0; e < info.batch * info.heads; e++)
            assert_true(same_tiles(m, &info, want, got, e / info.heads, e % info.heads));
        free(want), free(got);
        pl_mask_free(m);
        attn_case_free(&c);
    }
}

/* One mask's lists of one direction. */
typedef struct lists {
    int32_t *a[4];
} lists;
static lists lists_new(const pl_mask_info *i, int by_kv) {
    int64_t entries = i->stored_batch * i->stored_heads,
            lines = entries * (by_kv ? i->kv_tiles : i->q_tiles),
            across = by_kv ? i->q_tiles : i->kv_tiles;
    lists l;
    for (int x = 0; x < 4; x++) {
        l.a[x] = malloc((size_t)(lines * (x % 2 ? across : 1) + 1) * sizeof(int32_t));
        if (!l.a[x]) abort();
        memset(l.a[x], 0x55, (size_t)(lines * (x % 2 ? across : 1)) * sizeof(int32_t));
    }
    return l;
}
static void lists_free(lists *l) {
    for (int x = 0; x < 4; x++) free(l->a[x]);
}
static pl_side lists_side(const lists *l) { return (pl_side){l->a[0], l->a[1], l->a[2], l->a[3]}; }
static pl_error lists_export(const lists *l, const pl_mask *m, int by_kv) {
    return pl_mask_export(m, by_kv, l->a[0], l->a[1], l->a[2], l->a[3]);
}

static attn_result run(const attn_case *c, const pl_problem *p, pl_device *d) {
    pl_plan *plan;
    attn_result r = attn_result_new(c);
    pl_gradient list[8];
    assert_pl_ok(pl_plan_create(&plan, p, d));
    pl_io io = api_io(c, &r);
    api_gradients(c, &r, &io, list);
    assert_pl_ok(api_run(plan, d, &io));
    pl_plan_free(plan);
    return r;
}

/* Built once and given, or taken through lists: the same bits as a plan that builds its mask. */
static void given_masks_run_like_their_text(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    pl_device *d;
    assert_pl_ok(pl_device_open_cpu(&d, 2));
    for (uint64_t i = 1; i < MASK_KINDS; i++) {
        flex_problem p = {.batch = 1 + numbers_below(seed, 1, i, 3),
                          .q_heads = 2 + 2 * numbers_below(seed, 2, i, 2),
                          .kv_heads = 2,
                          .q_len = 1 + numbers_below(seed, 3, i, 100),
                          .kv_len = 1 + numbers_below(seed, 4, i, 100),
                          .dim = 8 * (1 + numbers_below(seed, 5, i, 3)),
                          .v_dim = 8,
                          .type = i % 2 ? DT_F32 : DT_BF16,
                          .tile_q = 16,
                          .tile_kv = 24};
        attn_case c;
        attn_case_make(&c, &p, (int)i, seed + i);
        attn_case_score(&c, SCORE_SOFTCAP, 1, seed + i);
        pl_problem *problem = api_problem(&c);
        attn_result want = run(&c, problem, d);
        pl_mask *m, *again;
        pl_mask_info info = {.size = sizeof info};
        int64_t loose = -1;
        assert_pl_ok(pl_mask_create(&m, problem, d));
        assert_pl_ok(pl_mask_get_info(m, &info));
        lists q = lists_new(&info, 0), kv = lists_new(&info, 1);
        assert_pl_ok(lists_export(&q, m, 0));
        assert_pl_ok(lists_export(&kv, m, 1));
        const pl_lists all = {sizeof all, info.stored_batch, info.stored_heads, 16,
                              24,         lists_side(&q),    lists_side(&kv)};
        assert_pl_ok(pl_mask_import(&again, problem, &all));
        assert_pl_ok(pl_mask_check(again, &loose));
        assert_int_equal(loose, 0);
        const pl_mask *given[2] = {m, again};
        for (int g = 0; g < 2; g++) {
            assert_pl_ok(pl_problem_use_mask(problem, given[g]));
            if (g) assert_pl_ok(pl_problem_tiles(problem, 0, 0)); /* the mask's */
            attn_result got = run(&c, problem, d);
            assert_true(api_same_result(&c, &want, &got));
            attn_result_free(&got);
        }
        pl_problem_free(problem);
        pl_mask_free(m), pl_mask_free(again);
        lists_free(&q), lists_free(&kv);
        attn_result_free(&want);
        attn_case_free(&c);
    }
    pl_device_free(d);
}

/* The plain definition needs expressions alone, so a mask that was built from one is no hindrance; lists are, and say so. */
static void the_definition_runs_under_a_mask_that_was_built(void **state) {
    (void)state;
    const flex_problem p = {.batch = 1,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .q_len = 50,
                            .kv_len = 60,
                            .dim = 8,
                            .v_dim = 8,
                            .tile_q = 16,
                            .tile_kv = 24};
    attn_case c;
    pl_device *d;
    pl_mask *m;
    assert_pl_ok(pl_device_open_cpu(&d, 1));
    attn_case_make(&c, &p, MASK_CAUSAL, numbers_seed());
    pl_problem *problem = api_problem(&c);
    assert_pl_ok(pl_mask_create(&m, problem, NULL));
    setenv("PACELINE_REFERENCE", "1", 1);
    attn_result want = run(&c, problem, d);
    assert_pl_ok(pl_problem_use_mask(problem, m));
    attn_result got = run(&c, problem, d);
    unsetenv("PACELINE_REFERENCE");
    assert_true(api_same_result(&c, &want, &got));
    attn_result_free(&want), attn_result_free(&got);
    pl_problem_free(problem);
    pl_mask_free(m);
    pl_device_free(d);
    attn_case_free(&c);
}

/* 4 x 4 tiles of a causal mask, then one of them told wrongly. */
static void lists_are_judged(void **state) {
    (void)state;
    const pl_shape s = {sizeof s, 2, 3, 1, 32, 32, 8, 8};
    pl_mask_info info = {.size = sizeof info};
    pl_problem *p;
    pl_mask *m, *wrong;
    int64_t loose;
    assert_pl_ok(pl_problem_create(&p, &s, PL_F32));
    assert_pl_ok(pl_problem_mask(p, "kv <= q"));
    assert_pl_ok(pl_problem_tiles(p, 8, 8));
    assert_pl_ok(pl_mask_create(&m, p, NULL));
    assert_pl_ok(pl_mask_get_info(m, &info));
    lists q = lists_new(&info, 0), kv = lists_new(&info, 1);
    assert_pl_ok(lists_export(&q, m, 0));
    assert_pl_ok(lists_export(&kv, m, 1));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(q.a[0][i], 1); /* the diagonal is partial, what lies before it full */
        assert_int_equal(q.a[1][4 * i], i);
        assert_int_equal(q.a[1][4 * i + 1], -1);
        assert_int_equal(q.a[2][i], i);
        assert_int_equal(kv.a[2][i], 3 - i);
    }
    pl_lists l = {sizeof l, 1, 1, 8, 8, lists_side(&q), lists_side(&kv)};
    q.a[2][3] = 2; /* key tile 2 of the last rows is left out */
    assert_pl_says(pl_mask_import(&wrong, p, &l), PL_ERROR_RANGE, "tile (query 3, key 2)",
                   "lists of query tiles");
    assert_null(wrong);
    l.by_kv = (pl_side){0};
    assert_pl_ok(pl_mask_import(&wrong, p, &l));
    assert_pl_says(pl_mask_check(wrong, NULL), PL_ERROR_RANGE, "tile (query 3, key 2)",
                   "given as empty", "full");
    pl_mask_free(wrong);
    q.a[0][3] = 2, q.a[1][13] = 2; /* as partial it is right, only slower */
    assert_pl_ok(pl_mask_import(&wrong, p, &l));
    assert_pl_ok(pl_mask_check(wrong, &loose));
    assert_int_equal(loose, 1);
    pl_mask_free(wrong);
    l.batch = 2, l.heads = 2;
    q.a[0][0] = 9;
    assert_pl_says(pl_mask_import(&wrong, p, &l), PL_ERROR_RANGE, "kv_num_blocks says 9");
    l.size = 1;
    assert_pl_says(pl_mask_import(&wrong, p, &l), PL_ERROR_USAGE, "pl_lists is 1");
    assert_pl_says(pl_mask_import(&wrong, p, NULL), PL_ERROR_USAGE, "lists is NULL");
    assert_pl_says(pl_mask_import(NULL, p, &l), PL_ERROR_USAGE, "out is NULL");
    assert_pl_says(pl_mask_export(m, 0, q.a[0], NULL, q.a[2], q.a[3]), PL_ERROR_USAGE,
                   "index is NULL");
    assert_pl_says(pl_mask_check(NULL, NULL), PL_ERROR_USAGE, "mask is NULL");
    lists_free(&q), lists_free(&kv);
    pl_mask_free(m), pl_problem_free(p);
}

/* Refused with both extents: other lengths, batch, heads, tiles, offsets. */
static void masks_of_other_problems_are_refused(void **state) {
    (void)state;
    const pl_shape shapes[] = {{sizeof(pl_shape), 2, 4, 2, 32, 40, 8, 8},
                               {sizeof(pl_shape), 2, 4, 2, 33, 40, 8, 8},
                               {sizeof(pl_shape), 2, 4, 2, 32, 41, 8, 8},
                               {sizeof(pl_shape), 3, 4, 2, 32, 40, 8, 8},
                               {sizeof(pl_shape), 2, 6, 2, 32, 40, 8, 8}};
    static const char *const numbers[] = {"", "33 and 40", "32 and 41", "has 3, 4", "has 2, 6"};
    pl_problem *p;
    pl_mask *m;
    pl_plan *plan;
    pl_device *d;
    assert_pl_ok(pl_device_open_cpu(&d, 1));
    assert_pl_ok(pl_problem_create(&p, &shapes[0], PL_F32));
    assert_pl_ok(pl_problem_mask(p, "kv <= q + h"));
    assert_pl_ok(pl_mask_create(&m, p, d));
    assert_pl_ok(pl_problem_use_mask(p, m));
    assert_pl_says(pl_mask_create(&(pl_mask *){NULL}, p, d), PL_ERROR_USAGE,
                   "a mask that is made already");
    assert_pl_ok(pl_plan_create(&plan, p, d));
    pl_plan_free(plan);
    assert_pl_ok(pl_problem_tiles(p, 64, 64));
    assert_pl_says(pl_plan_create(&plan, p, d), PL_ERROR_SHAPE, "tiles of 128 x 128", "64 x 64");
    assert_pl_ok(pl_problem_tiles(p, 0, 0));
    assert_pl_ok(pl_problem_offsets(p, 5, 0));
    assert_pl_says(pl_plan_create(&plan, p, d), PL_ERROR_SHAPE, "offsets q0 0", "5");
    pl_problem_free(p);
    for (size_t i = 1; i < sizeof shapes / sizeof *shapes; i++) {
        assert_pl_ok(pl_problem_create(&p, &shapes[i], PL_F32));
        assert_pl_ok(pl_problem_use_mask(p, m));
        assert_pl_says(pl_plan_create(&plan, p, d), PL_ERROR_SHAPE,
                       "batch 2, 4 query heads, 32 queries and 40 keys", numbers[i]);
        assert_null(plan);
        assert_pl_ok(pl_problem_use_mask(p, NULL));
        assert_pl_ok(pl_plan_create(&plan, p, d));
        pl_plan_free(plan), pl_problem_free(p);
    }
    assert_pl_says(pl_problem_use_mask(NULL, m), PL_ERROR_USAGE, "problem is NULL");
    pl_mask_free(m), pl_device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_equal_brute_force),
        cmocka_unit_test(given_masks_run_like_their_text),
        cmocka_unit_test(the_definition_runs_under_a_mask_that_was_built),
        cmocka_unit_test(lists_are_judged),
        cmocka_unit_test(masks_of_other_problems_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
