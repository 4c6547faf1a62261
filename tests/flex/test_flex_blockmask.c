/* Block masks against brute force, tile by tile, in both directions; their budget, proofs and cost.
 *
 * Masks and sizes are drawn anew in each run, with ragged tails and tiles of 16 to 128. The transpose is compared with
 * brute force on its own, not with the rows it should mirror. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_masks.h"
#include "flex/blockmask.h"
#include "support/says.h"

/* Writes the kinds of the lines of one direction and checks the order of runs; -1 when they break the rules. */
static int paint(const int64_t *start, const block_run *run, int64_t lines, int64_t across,
                 int64_t entry, int columns, uint8_t *kinds) {
    for (int64_t l = 0; l < lines; l++) {
        int64_t line = entry * lines + l, end = 0;
        int32_t kind = -1;
        if (start[line] > start[line + 1]) return -1;
        for (int64_t r = start[line]; r < start[line + 1]; r++) {
            const block_run *x = &run[r];
            if (x->length < 1 || x->start < end || x->start + (int64_t)x->length > across)
                return -1;
            if (x->start == end && x->full == kind) return -1; /* should be one run */
            for (int64_t t = x->start; t < x->start + (int64_t)x->length; t++)
                kinds[columns ? t * lines + l : l * across + t] = x->full ? 2 : 1;
            end = x->start + (int64_t)x->length, kind = x->full;
        }
    }
    return 0;
}

static block_mask_args args_of(const attn_mask *m, int64_t heads, int32_t tq, int32_t tk) {
    return (block_mask_args){.mask = m->e,
                             .env = &m->env,
                             .batch = m->batch,
                             .heads = heads,
                             .q_len = m->q_len,
                             .kv_len = m->kv_len,
                             .tile_q = tq,
                             .tile_kv = tk};
}

/* Whether each row sees a key, by looking. */
static int rows_all_see(const block_mask *b, const attn_mask *m) {
    for (int64_t e = 0; e < b->batch * b->heads; e++) {
        for (int64_t q = 0; q < m->q_len; q++) {
            int64_t k = 0;
            int flag;
            while (k < m->kv_len && m->e &&
                   !expr_eval_mask(m->e, &m->env, e / b->heads, e % b->heads, q, k, &flag))
                k++;
            if (k == m->kv_len) return 0;
        }
    }
    return 1;
}

static void compare(const attn_mask *m, int64_t heads, int32_t tq, int32_t tk, arena *a) {
    block_mask b;
    block_mask_args args = args_of(m, heads, tq, tk);
    arena_mark mark = arena_get_mark(a);
    assert_ok(blockmask_build(&b, &args, a, NULL));
    size_t tiles = (size_t)(b.q_tiles * b.kv_tiles), all = tiles * (size_t)(m->batch * heads);
    uint8_t *want = calloc(all + 1, 1), *rows = calloc(tiles + 1, 1), *cols = calloc(tiles + 1, 1);
    int64_t count[3] = {0, 0, 0};
    int ok = 1;
    assert_ok(blockmask_brute(&args, want));
    for (int64_t i = 0; i < m->batch * heads; i++) {
        int64_t entry = (b.batch == 1 ? 0 : i / heads) * b.heads + (b.heads == 1 ? 0 : i % heads);
        memset(rows, 0, tiles), memset(cols, 0, tiles);
        ok = ok && !paint(b.row_start, b.row_run, b.q_tiles, b.kv_tiles, entry, 0, rows) &&
             !paint(b.col_start, b.col_run, b.kv_tiles, b.q_tiles, entry, 1, cols);
        ok = ok && !memcmp(rows, want + (size_t)i * tiles, tiles) &&
             !memcmp(cols, want + (size_t)i * tiles, tiles);
    }
    for (size_t i = 0; i < all; i++) count[want[i]]++;
    for (int i = 0; i < 3; i++) count[i] /= m->batch * heads / (b.batch * b.heads);
    ok = ok && b.empty == count[0] && b.partial == count[1] && b.full == count[2] &&
         b.no_empty_row == rows_all_see(&b, m);
    if (!ok)
        printf("mask %s, B %lld H %lld L %lld S %lld, tiles %d x %d\n", attn_mask_names[m->kind],
               (long long)m->batch, (long long)heads, (long long)m->q_len, (long long)m->kv_len, tq,
               tk);
    assert_true(ok);
    assert_true(!b.may_leave);
    assert_true(b.bytes <= b.peak_bytes);
    free(want), free(rows), free(cols);
    arena_reset(a, mark);
}

static void a_thousand_random_masks_equal_brute_force(void **state) {
    (void)state;
    static const int32_t tiles[] = {16, 24, 32, 64, 128};
    static const int kinds[] = {MASK_CAUSAL, MASK_WINDOW, MASK_DOCUMENT, MASK_DFLASH,
                                MASK_DOCUMENT_CAUSAL};
    uint64_t seed = numbers_seed();
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 1000; i++) {
        uint64_t s = seed + (uint64_t)i;
        attn_mask m;
        int64_t L = numbers_below(s, 20, 0, i % 10 == 0 ? 700 : 200),
                S = numbers_below(s, 21, 0, i % 10 == 0 ? 700 : 200);
        attn_mask_make(&m, kinds[i % 5], 1, L, S, s);
        compare(&m, 1 + numbers_below(s, 22, 0, 3), tiles[numbers_below(s, 23, 0, 5)],
                tiles[numbers_below(s, 24, 0, 5)], a);
        attn_mask_free(&m);
    }
    arena_destroy(a);
}

static void masks_by_batch_head_and_bits_equal_brute_force(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 20 * MASK_KINDS; i++) {
        uint64_t s = seed + (uint64_t)i;
        attn_mask m;
        attn_mask_make(&m, i % MASK_KINDS, 1 + numbers_below(s, 25, 0, 3),
                       numbers_below(s, 20, 0, 120), numbers_below(s, 21, 0, 120), s);
        compare(&m, 3, 16, i % 2 ? 16 : 32, a);
        attn_mask_free(&m);
    }
    arena_destroy(a);
}

/* Entries are stored only for what the expression names. */
static void broadcast_where_not_named(void **state) {
    (void)state;
    static const struct {
        int kind;
        int64_t batch, heads;
    } want[] = {{MASK_CAUSAL, 1, 1}, {MASK_PREFIX, 2, 1}, {MASK_HEADS, 1, 5}, {MASK_NONE, 1, 1}};
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 4; i++) {
        attn_mask m;
        block_mask b;
        attn_mask_make(&m, want[i].kind, 2, 300, 300, 7);
        block_mask_args args = args_of(&m, 5, 0, 0);
        assert_ok(blockmask_build(&b, &args, a, NULL));
        assert_int_equal(b.batch, want[i].batch);
        assert_int_equal(b.heads, want[i].heads);
        assert_int_equal(b.tile_q, 128);
        attn_mask_free(&m);
    }
    arena_destroy(a);
}

/* B09: a mask of 98,304 keys with 512 anchors of 16, for 1 and 32 heads: far below 64 MB, and the same for both. */
static void b09_memory_follows_runs_and_not_heads(void **state) {
    (void)state;
    enum { CONTEXT = 98304, BLOCKS = 512, WIDTH = 16 };
    size_t bytes[2], peak[2];
    for (int i = 0; i < 2; i++) {
        attn_mask m = {.batch = 1, .q_len = BLOCKS * WIDTH, .kv_len = CONTEXT + BLOCKS * WIDTH};
        arena *a;
        block_mask b;
        arena_stats s;
        attn_mask_int(&m, "context", CONTEXT);
        int32_t *anchor = attn_mask_array(&m, "anchor", BLOCKS);
        for (int j = 0; j < BLOCKS; j++) anchor[j] = 190 * j + j % 7;
        m.env.values = m.value;
        assert_ok(expr_compile(
            &m.e, EXPR_MASK,
            "kv < context ? kv < anchor[q // 16] : (kv - context) // 16 == q // 16", m.decl, m.n));
        block_mask_args args = args_of(&m, i ? 32 : 1, 128, 128);
        assert_ok(arena_create(&a, "mask", 0));
        assert_ok(blockmask_build(&b, &args, a, NULL));
        arena_get_stats(a, &s);
        bytes[i] = b.bytes, peak[i] = b.peak_bytes;
        assert_true(s.used >= b.bytes && s.used < b.bytes + 4096);
        assert_true(b.undecided < b.partial / 10 + 10);
        arena_destroy(a);
        attn_mask_free(&m);
    }
    assert_true(bytes[0] == bytes[1] && peak[0] == peak[1]);
    assert_true(peak[0] < 4u << 20);
}

static void beyond_its_budget_it_is_refused(void **state) {
    (void)state;
    attn_mask m;
    arena *a;
    block_mask b;
    attn_mask_make(&m, MASK_CAUSAL, 1, 100000, 100000, 1);
    block_mask_args args = args_of(&m, 1, 16, 16);
    args.budget = 100 * 1024;
    assert_ok(arena_create(&a, "mask", 0));
    assert_says(blockmask_build(&b, &args, a, NULL), ERR_REFUSED, "budget is 100", "KiB", "need");
    args.budget = 64u << 20;
    assert_ok(blockmask_build(&b, &args, a, NULL));
    assert_true(b.peak_bytes <= args.budget);
    arena_destroy(a);
    attn_mask_free(&m);
}

/* 65,536 tiles that are all partial are a few boxes and one run a row. */
static void equal_neighbours_become_one_box(void **state) {
    (void)state;
    arena *a;
    block_mask b;
    const expr_env env = {NULL, 0, 0};
    block_mask_args args = {.env = &env,
                            .batch = 1,
                            .heads = 1,
                            .q_len = 4096,
                            .kv_len = 4096,
                            .tile_q = 16,
                            .tile_kv = 16};
    expr *e;
    assert_ok(expr_compile(&e, EXPR_MASK, "(7 * q + 13 * kv) % 5 != 0", NULL, 0));
    args.mask = e;
    assert_ok(arena_create(&a, "mask", 0));
    assert_ok(blockmask_build(&b, &args, a, NULL));
    assert_int_equal(b.partial, 65536);
    assert_int_equal(b.row_start[256], 256);
    assert_true(b.peak_bytes < 100 * 1024);
    expr_free(e);
    arena_destroy(a);
}

/* A failing allocation at any place gives an error and leaks nothing (seen under the address sanitizer). */
static void every_allocation_may_fail(void **state) {
    (void)state;
    attn_mask m;
    arena *a;
    block_mask b;
    int failures = 0;
    attn_mask_make(&m, MASK_DOCUMENT, 1, 500, 500, 3);
    block_mask_args args = args_of(&m, 1, 16, 16);
    for (uint64_t n = 1;; n++) {
        assert_ok(arena_create(&a, "mask", 0));
        arena_fail_at(a, n);
        err e = blockmask_build(&b, &args, a, NULL);
        arena_destroy(a);
        if (!e) break;
        assert_int_equal(e, ERR_MEMORY);
        failures++;
    }
    assert_true(failures >= 4);
    attn_mask_free(&m);
}

/* Loads outside an array: harmless where hidden, an error that names the cell where visible. */
static void loads_that_leave_are_found(void **state) {
    (void)state;
    int32_t doc[100] = {0};
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {100}, .data = doc};
    const expr_env env = {&value, 0, 0};
    arena *a;
    block_mask b;
    expr *hidden, *visible, *guarded;
    assert_ok(arena_create(&a, "mask", 0));
    assert_ok(expr_compile(&hidden, EXPR_MASK, "doc[kv] > 0 && kv <= q || kv == q", &decl, 1));
    assert_ok(expr_compile(&visible, EXPR_MASK, "doc[q] == doc[kv]", &decl, 1));
    assert_ok(expr_compile(&guarded, EXPR_MASK, "kv < 100 && doc[kv] == 0", &decl, 1));
    block_mask_args args = {.mask = visible,
                            .env = &env,
                            .batch = 1,
                            .heads = 1,
                            .q_len = 100,
                            .kv_len = 101,
                            .tile_q = 16,
                            .tile_kv = 16};
    assert_says(blockmask_build(&b, &args, a, NULL), ERR_RANGE, "doc[q] == doc[kv]", "q=0 kv=100");
    args.mask = guarded;
    assert_ok(blockmask_build(&b, &args, a, NULL));
    assert_true(!b.may_leave);
    args.mask = hidden; /* cells past the array are evaluated in partial tiles, and hidden */
    assert_ok(blockmask_build(&b, &args, a, NULL));
    expr_free(hidden), expr_free(visible), expr_free(guarded);
    arena_destroy(a);
}

/* Values that are the same for all heads or along a diagonal do not hide a load that leaves in some of these cells only: 0
 * stands for what is outside, as it does in the array. */
static void loads_that_leave_change_no_value(void **state) {
    (void)state;
    static const struct {
        const char *text, *cell;
    } cases[] = {{"kv <= q && doc[kv] == doc[0]", "b=0 h=0 q=100 kv=100"},
                 {"kv <= q && doc[q] == doc[0]", "b=0 h=0 q=100 kv=0"},
                 {"kv <= q && kv < 100 && doc[kv + b] == 0", "b=1 h=0 q=99 kv=99"},
                 {"kv < 100 && doc[kv + (h == 2 ? 1 : 0)] == 0", "b=0 h=2 q=0 kv=99"},
                 {"kv < 100 && (h == 2 ? doc[kv + 1] : 0) == 0", "b=0 h=2 q=0 kv=99"}};
    int32_t doc[100] = {0};
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {100}, .data = doc};
    const expr_env env = {&value, 0, 0};
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        block_mask b;
        block_mask_args args = {.env = &env,
                                .batch = 2,
                                .heads = 3,
                                .q_len = 150,
                                .kv_len = 150,
                                .tile_q = 16,
                                .tile_kv = 16};
        expr *e;
        assert_ok(expr_compile(&e, EXPR_MASK, cases[i].text, &decl, 1));
        args.mask = e;
        assert_says(blockmask_build(&b, &args, a, NULL), ERR_RANGE, "visible cell", cases[i].cell);
        expr_free(e);
    }
    arena_destroy(a);
}

/* Masks of q - kv alone are made from one row and one column of tiles: any length, ragged or not, with tables and heads. */
static void masks_of_distance_alone(void **state) {
    (void)state;
    static const char *const texts[] = {
        "q >= kv",
        "q >= kv && q - kv < w",
        "abs(q - kv) % 7 == w % 7 || q - kv > w",
        "q - kv >= -w && near[clamp(q - kv, 0, 99)] > 3",
        "h % 2 == 0 ? q - kv < w : 2 * kv - 2 * q < h * 30",
        "q - kv + 400 >= 0 && q - kv < 400 && near[(q - kv + 400) // 8] > w // 9",
        "true",
        "q - kv > 1000",
        "h == 1"};
    static const int32_t tiles[] = {16, 24, 64, 128};
    uint64_t seed = numbers_seed();
    int diagonal = 0;
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 400; i++) {
        uint64_t s = seed + (uint64_t)i;
        attn_mask m = {.batch = 1,
                       .q_len = 1 + numbers_below(s, 40, 0, 260),
                       .kv_len = 1 + numbers_below(s, 41, 0, 260)};
        block_mask b;
        if (i % 3 == 0) m.q_len = m.kv_len;
        attn_mask_int(&m, "w", numbers_below(s, 42, 0, 90));
        int32_t *near = attn_mask_array(&m, "near", 100), tile = tiles[i % 4];
        for (int j = 0; j < 100; j++) near[j] = (int32_t)numbers_below(s, 43, (uint64_t)j / 9, 10);
        m.env = (expr_env){m.value, numbers_below(s, 44, 0, 40), numbers_below(s, 45, 0, 40)};
        assert_ok(expr_compile(&m.e, EXPR_MASK, texts[i % 9], m.decl, m.n));
        compare(&m, 3, tile, tile, a);
        block_mask_args args = args_of(&m, 3, tile, tile);
        assert_ok(blockmask_build(&b, &args, a, NULL));
        diagonal += b.proofs.diagonal;
        attn_mask_free(&m);
    }
    assert_int_equal(diagonal, 400); /* all of them are seen to be so */
    arena_destroy(a);
}

/* Offsets shift q and kv: a slice of a causal square. */
static void slices_shift_positions(void **state) {
    (void)state;
    arena *a;
    uint64_t seed = numbers_seed();
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 50; i++) {
        attn_mask m;
        attn_mask_make(&m, MASK_WINDOW, 1, numbers_below(seed, 30, (uint64_t)i, 200),
                       numbers_below(seed, 31, (uint64_t)i, 200), seed);
        m.env.q0 = numbers_below(seed, 32, (uint64_t)i, 300);
        m.env.kv0 = numbers_below(seed, 33, (uint64_t)i, 300);
        compare(&m, 1, 16, 32, a);
        attn_mask_free(&m);
    }
    arena_destroy(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_random_masks_equal_brute_force),
        cmocka_unit_test(masks_by_batch_head_and_bits_equal_brute_force),
        cmocka_unit_test(broadcast_where_not_named),
        cmocka_unit_test(b09_memory_follows_runs_and_not_heads),
        cmocka_unit_test(beyond_its_budget_it_is_refused),
        cmocka_unit_test(equal_neighbours_become_one_box),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(loads_that_leave_are_found),
        cmocka_unit_test(loads_that_leave_change_no_value),
        cmocka_unit_test(masks_of_distance_alone),
        cmocka_unit_test(slices_shift_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
