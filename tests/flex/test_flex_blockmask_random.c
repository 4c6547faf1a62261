/* Block masks of random expressions against every cell: kinds of tiles, both directions, proofs, and loads that leave.
 *
 * Lengths are odd, tiles of 16 to 128, offsets and captured arrays random. A mask is refused exactly when a visible cell reads
 * outside an array, or no cell reads inside. Cells come from the tile interpreter, which has its own test against the definition. The seed comes
 * from the clock and is printed. Usage: test_flex_blockmask_random [MASKS] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flex/blockmask.h"
#include "support/numbers.h"
#include "support/random_world.h"
#include "support/says.h"

enum { BATCH = 2, HEADS = 3, LONGEST = 300, TEXT = 4000 };
static int masks = 10000;

typedef struct cells {
    uint8_t *seen; /* [entries, q_len, kv_len] */
    int visible_left, rows_see;
} cells;

static void evaluate(const expr *e, const expr_env *env, const block_mask *m, cells *c) {
    static uint8_t seen[BATCH * HEADS * LONGEST * LONGEST];
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, 1, m->kv_len) + 63) / 64 * 64);
    c->seen = seen;
    c->visible_left = 0;
    c->rows_see = 1;
    for (int64_t i = 0; i < m->batch * m->heads; i++) {
        for (int64_t q = 0; q < m->q_len; q++) {
            int flag = 0, any = 0;
            uint8_t *row = seen + (i * m->q_len + q) * m->kv_len;
            expr_tile_mask(e, env, i / m->heads, i % m->heads, q, 1, 0, m->kv_len, row, m->kv_len,
                           scratch, &flag);
            for (int64_t k = 0; k < m->kv_len; k++) any |= row[k];
            c->rows_see &= any;
            for (int64_t k = 0; flag && k < m->kv_len && !c->visible_left; k++) {
                int left = 0;
                c->visible_left =
                    expr_eval_mask(e, env, i / m->heads, i % m->heads, q, k, &left) && left;
            }
        }
    }
    free(scratch);
}

static int kind_of(const block_mask *m, const cells *c, int64_t entry, int64_t qt, int64_t kt) {
    int64_t q1 = (qt + 1) * m->tile_q, k1 = (kt + 1) * m->tile_kv, n = 0, all = 0;
    if (q1 > m->q_len) q1 = m->q_len;
    if (k1 > m->kv_len) k1 = m->kv_len;
    for (int64_t q = qt * m->tile_q; q < q1; q++)
        for (int64_t k = kt * m->tile_kv; k < k1; k++, all++)
            n += c->seen[(entry * m->q_len + q) * m->kv_len + k];
    return n == 0 ? 0 : n == all ? 2 : 1;
}

static int kind_in(const int64_t *start, const block_run *run, int64_t line, int64_t at) {
    for (int64_t r = start[line]; r < start[line + 1]; r++)
        if (at >= run[r].start && at < run[r].start + run[r].length) return 1 + run[r].full;
    return 0;
}

static void compare(const block_mask *m, const cells *c, uint64_t seed, const char *text) {
    int64_t count[3] = {0, 0, 0};
    for (int64_t i = 0; i < m->batch * m->heads; i++) {
        for (int64_t q = 0; q < m->q_tiles; q++) {
            for (int64_t k = 0; k < m->kv_tiles; k++) {
                int want = kind_of(m, c, i, q, k);
                int row = kind_in(m->row_start, m->row_run, i * m->q_tiles + q, k),
                    col = kind_in(m->col_start, m->col_run, i * m->kv_tiles + k, q);
                count[want]++;
                if (want != row || want != col)
                    fail_msg(
                        "seed %llu: entry %lld tile %lld, %lld is %d, by rows %d, by columns %d\n%s",
                        (unsigned long long)seed, (long long)i, (long long)q, (long long)k, want,
                        row, col, text);
            }
        }
    }
    assert_int_equal(m->empty, count[0]);
    assert_int_equal(m->partial, count[1]);
    assert_int_equal(m->full, count[2]);
    if (m->no_empty_row != c->rows_see)
        fail_msg("seed %llu: no_empty_row is %d\n%s", (unsigned long long)seed, m->no_empty_row,
                 text);
}

/* One random mask; 1 when it was built, 0 when it was rightly refused. */
static int one_mask(random_world *w, uint64_t seed, arena *a) {
    static const int32_t tiles[] = {128, 64, 16, 128, 64, 40};
    static char text[TEXT];
    block_mask m = {0};
    cells c;
    expr *e;
    w->state = seed;
    random_expr_mask(&w->state, 1 + random_world_draw(w, 4), text, sizeof text);
    random_world_bind(w, RANDOM_WORLD_LENGTH);
    int longest = random_world_draw(w, 8) ? 150 : LONGEST;
    block_mask_args args = {.env = &w->env,
                            .batch = BATCH,
                            .heads = HEADS,
                            .q_len = 1 + random_world_draw(w, longest),
                            .kv_len = 1 + random_world_draw(w, longest),
                            .tile_q = tiles[random_world_draw(w, 6)],
                            .tile_kv = tiles[random_world_draw(w, 6)]};
    if (random_world_draw(w, 2)) /* arrays that cover the lengths: masks without refusals */
        for (int i = 4; i < RANDOM_EXPR_CAPTURES; i++)
            if (w->decl[i].ndim == 1) w->value[i].dim[0] = RANDOM_WORLD_LENGTH;
    assert_ok(expr_compile(&e, EXPR_MASK, text, w->decl, RANDOM_EXPR_CAPTURES));
    args.mask = e;
    err got = blockmask_build(&m, &args, a, NULL);
    evaluate(e, &w->env, &m, &c);
    int never = got == ERR_RANGE && strstr(err_text(), "never reads inside");
    if ((c.visible_left != (got == ERR_RANGE) && !never) || (got && got != ERR_RANGE))
        fail_msg("seed %llu: visible cell leaves %d, build says '%s'\n%s", (unsigned long long)seed,
                 c.visible_left, got ? err_text() : "fine", text);
    if (!got) compare(&m, &c, seed, text);
    expr_free(e);
    return !got;
}

static void random_masks_equal_brute_force(void **state) {
    (void)state;
    static random_world w;
    uint64_t seed = numbers_seed();
    const int n = masks;
    int built = 0;
    arena *a;
    random_world_declare(&w);
    assert_ok(arena_create(&a, "masks", 0));
    arena_mark mark = arena_get_mark(a);
    for (int i = 0; i < n; i++) {
        built += one_mask(&w, seed + (uint64_t)i, a);
        arena_reset(a, mark);
    }
    print_message("%d of %d masks built and equal, the others rightly refused\n", built, n);
    assert_true(built > n / 2 && built < n);
    arena_destroy(a);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_masks_equal_brute_force)};
    if (argc > 1 && atoi(argv[1]) > 0) masks = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
