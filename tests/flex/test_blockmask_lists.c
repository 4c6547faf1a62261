/* Block masks as padded lists: round trips, every refusal, given tiles against their expression, and attention under them.
 *
 * Masks are drawn anew in each run. Values behind the counts are filled with rubbish before importing: they must not be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include "flex/blockmask_lists.h"

static block_mask_args args_of(const attn_mask *m, int64_t heads, int32_t tile) {
    return (block_mask_args){.mask = m->e,
                             .env = &m->env,
                             .batch = m->batch,
                             .heads = heads,
                             .q_len = m->q_len,
                             .kv_len = m->kv_len,
                             .tile_q = tile,
                             .tile_kv = tile};
}

static int same_bits(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof(float));
}

static int same_runs(const int64_t *s, const block_run *x, const int64_t *t, const block_run *y,
                     int64_t lines) {
    return !memcmp(s, t, ((size_t)lines + 1) * sizeof *s) &&
           !memcmp(x, y, (size_t)s[lines] * sizeof *x);
}

static int same_mask(const block_mask *a, const block_mask *b) {
    int64_t entries = a->batch * a->heads;
    return a->batch == b->batch && a->heads == b->heads && a->empty == b->empty &&
           a->partial == b->partial && a->full == b->full && a->bytes == b->bytes &&
           same_runs(a->row_start, a->row_run, b->row_start, b->row_run, entries * a->q_tiles) &&
           same_runs(a->col_start, a->col_run, b->col_start, b->col_run, entries * a->kv_tiles);
}

/* Behind the counts: rubbish, and the listed tiles in another order. */
static void spoil(const int32_t *count, const int32_t *index, int64_t lines, int64_t across) {
    int32_t *x = (int32_t *)index;
    for (int64_t l = 0; l < lines; l++) {
        for (int64_t i = count[l]; i < across; i++) x[l * across + i] = -77 + (int32_t)i * 1000;
        for (int64_t i = 0, j = count[l] - 1; i < j; i++, j--) {
            int32_t t = x[l * across + i];
            x[l * across + i] = x[l * across + j], x[l * across + j] = t;
        }
    }
}

static void lists_and_back(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    arena *a;
    assert_ok(arena_create(&a, "lists", 0));
    for (int i = 0; i < 40 * MASK_KINDS; i++) {
        uint64_t s = seed + (uint64_t)i;
        attn_mask m;
        block_mask built, back;
        blockmask_lists l;
        attn_mask_make(&m, i % MASK_KINDS, 1 + numbers_below(s, 25, 0, 3),
                       1 + numbers_below(s, 20, 0, 200), 1 + numbers_below(s, 21, 0, 200), s);
        block_mask_args args = args_of(&m, 3, i % 2 ? 16 : 32);
        assert_ok(blockmask_build(&built, &args, a, NULL));
        if (!built.q_tiles) {
            attn_mask_free(&m);
            continue;
        }
        assert_ok(blockmask_export(&l, &built, a));
        int64_t n = built.batch * built.heads;
        spoil(l.kv.count, l.kv.index, n * built.q_tiles, built.kv_tiles);
        spoil(l.kv.full_count, l.kv.full_index, n * built.q_tiles, built.kv_tiles);
        spoil(l.q.count, l.q.index, n * built.kv_tiles, built.q_tiles);
        assert_ok(blockmask_import(&back, &l, 0, a));
        assert_true(same_mask(&built, &back));
        l.q = (blockmask_side){NULL, NULL, NULL,
                               NULL}; /* the other direction is made when not given */
        assert_ok(blockmask_import(&back, &l, 0, a));
        assert_true(same_mask(&built, &back));
        int64_t loose = -1;
        assert_ok(blockmask_check(&back, &args, &loose));
        assert_int_equal(loose, 0);
        attn_mask_free(&m);
    }
    arena_destroy(a);
}

/* 3 x 4 tiles for all batches and heads. */
enum { ROWS = 3, COLS = 4 };
typedef struct small {
    int32_t count[ROWS], index[ROWS * COLS], full_count[ROWS], full_index[ROWS * COLS];
    int32_t q_count[COLS], q_index[COLS * ROWS], q_full_count[COLS], q_full_index[COLS * ROWS];
} small;
static const small fine = {
    .count = {1, 2, 0},
    .index = {0, 9, 9, 9, 1, 3, 9, 9},
    .full_count = {0, 1, 2},
    .full_index = {9, 9, 9, 9, 0, 9, 9, 9, 2, 0},
    .q_count = {1, 1, 0, 1},
    .q_index = {0, 0, 0, 1, 0, 0, 0, 0, 0, 1},
    .q_full_count = {2, 0, 1, 0},
    .q_full_index = {1, 2, 0, 0, 0, 0, 2},
};
static blockmask_lists lists_of(const small *s) {
    return (blockmask_lists){1,
                             1,
                             45,
                             50,
                             16,
                             16,
                             {s->count, s->index, s->full_count, s->full_index},
                             {s->q_count, s->q_index, s->q_full_count, s->q_full_index}};
}

static void inconsistent_lists_are_refused(void **state) {
    (void)state;
    arena *a;
    block_mask m;
    small s = fine;
    blockmask_lists l = lists_of(&s);
    assert_ok(arena_create(&a, "lists", 0));
    assert_ok(blockmask_import(&m, &l, 0, a));
    assert_true(m.partial == 3 && m.full == 3 && m.empty == 6);
#define REFUSED(change, ...)                                                                       \
    do {                                                                                           \
        s = fine;                                                                                  \
        l = lists_of(&s);                                                                          \
        change;                                                                                    \
        assert_says(blockmask_import(&m, &l, 0, a), __VA_ARGS__);                                  \
    } while (0)
    REFUSED(s.count[1] = 5, ERR_RANGE, "kv_num_blocks says 5", "query tile 1", "0 to 4");
    REFUSED(s.count[2] = -1, ERR_RANGE, "kv_num_blocks says -1", "query tile 2");
    REFUSED(s.index[5] = 4, ERR_RANGE, "kv_indices names key tile 4", "query tile 1",
            "there are 4");
    REFUSED(s.index[4] = -1, ERR_RANGE, "kv_indices names key tile -1");
    REFUSED(s.index[5] = 1, ERR_RANGE, "key tile 1", "listed twice", "query tile 1");
    REFUSED(s.full_index[4] = 3, ERR_RANGE, "key tile 3", "both as partial and as full");
    REFUSED(s.full_count[0] = 9, ERR_RANGE, "full_kv_num_blocks says 9");
    REFUSED(s.full_index[8] = 17, ERR_RANGE, "full_kv_indices names key tile 17");
    REFUSED(s.q_count[0] = 0, ERR_RANGE, "tile (query 0, key 0)", "partial",
            "empty by those of key");
    REFUSED(s.q_full_index[1] = 0, ERR_RANGE, "query tile 0", "both as partial and as full",
            "key tile 0");
    REFUSED(s.q_index[3] = 2, ERR_RANGE, "tile (query 1, key 1)");
    REFUSED((s.q_full_count[0] = 1, s.q_count[0] = 2, s.q_index[1] = 2), ERR_RANGE,
            "tile (query 2, key 0)", "full by", "partial by");
    REFUSED(l.kv.full_index = NULL, ERR_USAGE, "pairs");
    REFUSED(l.kv.count = NULL, ERR_USAGE, "pairs");
    REFUSED((l.q.full_count = NULL, l.q.full_index = NULL), ERR_USAGE, "one direction");
    REFUSED(l.batch = 0, ERR_RANGE, "at least 1");
#undef REFUSED
    s = fine, l = lists_of(&s);
    assert_says(blockmask_import(&m, &l, 100, a), ERR_REFUSED, "budget is 100 ");
    arena_destroy(a);
}

/* A list is wrong where it leaves out what is visible or calls full what is not; partial is never wrong. */
static void given_tiles_against_their_expression(void **state) {
    (void)state;
    arena *a;
    block_mask m;
    blockmask_lists l;
    expr *e;
    int64_t loose;
    assert_ok(arena_create(&a, "lists", 0));
    assert_ok(expr_compile(&e, EXPR_MASK, "q >= kv", NULL, 0));
    block_mask_args args = {
        .mask = e, .batch = 2, .heads = 3, .q_len = 64, .kv_len = 64, .tile_q = 16, .tile_kv = 16};
    assert_ok(blockmask_build(&m, &args, a, NULL));
    assert_ok(blockmask_export(&l, &m, a));
    l.q = (blockmask_side){NULL, NULL, NULL, NULL};
    int32_t *full = (int32_t *)l.kv.full_count, *count = (int32_t *)l.kv.count,
            *index = (int32_t *)l.kv.index;
    full[3] = 2, count[3] = 3, index[3 * 4 + 1] = 2,
    index[3 * 4 + 2] = 0; /* full tile 2 as partial */
    full[3] = 0, count[3] = 4, index[3 * 4 + 3] = 1;
    assert_ok(blockmask_import(&m, &l, 0, a));
    assert_ok(blockmask_check(&m, &args, &loose));
    assert_int_equal(loose, 3);
    count[3] = 3; /* tile 1 left out */
    assert_ok(blockmask_import(&m, &l, 0, a));
    assert_says(blockmask_check(&m, &args, &loose), ERR_RANGE, "tile (query 3, key 1)",
                "given as empty", "it is full");
    full[3] = 3, count[3] = 1, count[0] = 0, full[0] = 1, ((int32_t *)l.kv.full_index)[0] = 0;
    assert_ok(blockmask_import(&m, &l, 0, a));
    assert_says(blockmask_check(&m, &args, &loose), ERR_RANGE, "tile (query 0, key 0)",
                "given as full", "it is partial");
    args.q_len = 65;
    assert_says(blockmask_check(&m, &args, &loose), ERR_SHAPE, "64 queries and 64 keys",
                "65 and 64");
    expr_free(e);
    arena_destroy(a);
}

/* Attention under given tiles gives the bits of attention under the built ones. */
static void attention_under_given_tiles(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    arena *a;
    assert_ok(arena_create(&a, "lists", 0));
    for (int i = 0; i < 2 * MASK_KINDS; i++) {
        attn_case c;
        const int64_t dim = i % 2 ? 16 : 24;
        block_mask built, given;
        blockmask_lists l;
        const flex_problem p = {.batch = 1 + i % 3,
                                .q_heads = 3,
                                .kv_heads = 1,
                                .q_len = 90,
                                .kv_len = 101,
                                .dim = dim,
                                .v_dim = dim,
                                .type = DT_F32,
                                .tile_q = 16,
                                .tile_kv = 32};
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        attn_result want = attn_run(&c, d);
        block_mask_args args = args_of(&c.mask, 3, 16);
        args.tile_kv = 32;
        assert_ok(blockmask_build(&built, &args, a, NULL));
        if (built.q_tiles && built.kv_tiles) {
            assert_ok(blockmask_export(&l, &built, a));
            assert_ok(blockmask_import(&given, &l, 0, a));
            c.p.blocks = &given, c.p.tile_q = c.p.tile_kv = 0;
            attn_result got = attn_run(&c, d);
            assert_true(same_bits(got.o, want.o, c.nq * dim));
            assert_true(same_bits(got.dq, want.dq, c.nq * dim));
            assert_true(same_bits(got.dk, want.dk, c.nk * dim));
            attn_result_free(&got);
        }
        attn_result_free(&want);
        attn_case_free(&c);
    }
    arena_destroy(a);
    dev_close(d);
}

/* Tiles listed once for all batch entries and heads, partial ones whose cells differ between these: as though each had a list of
 * its own. In fp32 and bf16, with few key heads, so that heads would stand side by side. */
static void one_list_for_heads_that_differ(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    arena *a;
    assert_ok(arena_create(&a, "lists", 0));
    for (int i = 0; i < 12; i++) {
        attn_case c;
        block_mask full, given, short_of;
        blockmask_lists l;
        const flex_problem p = {.batch = 2,
                                .q_heads = 6,
                                .kv_heads = 2,
                                .q_len = 70,
                                .kv_len = 61,
                                .dim = 16,
                                .v_dim = 16,
                                .type = i % 2 ? DT_BF16 : DT_F32,
                                .tile_q = 16,
                                .tile_kv = 16};
        static const char *const texts[] = {"kv <= q + 3 * h", "kv + 5 * b <= q",
                                            "(q + kv + h + b) % 3 > 0"};
        attn_case_make(&c, &p, MASK_CAUSAL, seed + (uint64_t)i);
        expr_free(c.mask.e);
        c.p.mask = NULL;
        assert_ok(expr_compile(&c.mask.e, EXPR_MASK, texts[i / 2 % 3], NULL, 0));
        c.p.mask = c.mask.e;
        attn_result want = attn_run(&c, d);
        /* Every tile is partial, in one list of tiles and in 12. */
        const block_mask_args args = {
            .batch = 1, .heads = 1, .q_len = 70, .kv_len = 61, .tile_q = 16, .tile_kv = 16};
        assert_ok(blockmask_build(&full, &args, a, NULL));
        assert_ok(blockmask_export(&l, &full, a));
        l.kv.count = l.kv.full_count, l.kv.index = l.kv.full_index;
        l.kv.full_count = l.kv.full_index = NULL;
        l.q = (blockmask_side){0};
        assert_ok(blockmask_import(&given, &l, 0, a));
        assert_int_equal(given.partial, 5 * 4);
        c.p.blocks = &given, c.p.tile_q = c.p.tile_kv = 0;
        attn_result got = attn_run(&c, d);
        assert_true(same_bits(got.o, want.o, c.nq * 16) && same_bits(got.lse, want.lse, c.nq));
        assert_true(same_bits(got.dq, want.dq, c.nq * 16) && same_bits(got.dk, want.dk, c.nk * 16));
        assert_true(same_bits(got.dv, want.dv, c.nk * 16));
        attn_result_free(&got);
        assert_ok(blockmask_spread(&short_of, &given, 2, 6, 0, a));
        assert_int_equal(short_of.partial, 12 * 5 * 4);
        assert_says(blockmask_spread(&short_of, &given, 2, 6, short_of.bytes - 1, a), ERR_REFUSED,
                    "raise the budget");
        assert_says(blockmask_spread(&short_of, &given, INT64_C(1) << 40, INT64_C(1) << 40, 0, a),
                    ERR_REFUSED, "raise the budget");
        attn_result_free(&want);
        attn_case_free(&c);
    }
    arena_destroy(a);
    dev_close(d);
}

/* Masks made for other lengths, batches or heads are refused with both extents. */
static void masks_of_other_tensors_are_refused(void **state) {
    (void)state;
    small s = fine;
    blockmask_lists l = lists_of(&s);
    dev *d = attn_dev(1);
    arena *a;
    block_mask m;
    flex_plan *plan;
    assert_ok(arena_create(&a, "lists", 0));
    assert_ok(blockmask_import(&m, &l, 0, a));
    flex_problem p = {.batch = 2,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 45,
                      .kv_len = 50,
                      .dim = 16,
                      .v_dim = 16,
                      .type = DT_F32,
                      .blocks = &m};
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_USAGE, "3 of the given tiles are partial");
    m.partial = 0;
    assert_ok(flex_plan_create(&plan, d, &p, a));
    assert_int_equal(flex_plan_problem(plan)->tile_q, 16);
    p.kv_len = 51;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "45 queries and 50 keys",
                "45 and 51");
    p.kv_len = 50, m.batch = 3;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "batch 3 and 1 heads",
                "batch 2 and 4 heads");
    m.batch = 1, m.heads = 2;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_SHAPE, "batch 1 and 2 heads",
                "batch 2 and 4 heads");
    m.heads = 1, m.tile_q = 12;
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_RANGE, "tiles of 12 x ", "multiples of 8");
    m.tile_q = 16;
    setenv("PACELINE_REFERENCE", "1", 1);
    assert_says(flex_plan_create(&plan, d, &p, a), ERR_USAGE, "PACELINE_REFERENCE",
                "not given tiles");
    unsetenv("PACELINE_REFERENCE");
    arena_destroy(a);
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_and_back),
        cmocka_unit_test(inconsistent_lists_are_refused),
        cmocka_unit_test(given_tiles_against_their_expression),
        cmocka_unit_test(attention_under_given_tiles),
        cmocka_unit_test(one_list_for_heads_that_differ),
        cmocka_unit_test(masks_of_other_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
