/* Random masks: the tile interpreter against the scalar definition, intervals against both, and
 * printing against parsing.
 *
 * Each program meets random captures and random rectangles near the ends of its arrays. What has to hold:
 * the tile's bytes and its flag equal the definition's; what interval analysis calls ALL or NONE is that at
 * every cell; loads it proves inside never leave; print → parse → print is a fixed point. The seed comes
 * from the clock and is printed when something differs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "expr/expr.h"
#include "expr/interval.h"
#include "support/random_expr.h"

enum { PROGRAMS = 20000, MAX_LENGTH = 64, TEXT = 4000 };

typedef struct world {
    uint64_t state;
    expr_decl decl[RANDOM_EXPR_CAPTURES];
    expr_value value[RANDOM_EXPR_CAPTURES];
    expr_env env;
    int64_t doc[MAX_LENGTH], table[MAX_LENGTH];
    int32_t anchor[MAX_LENGTH];
    float bias[MAX_LENGTH];
    uint8_t keep[MAX_LENGTH];
} world;

static int draw(world *w, int n) { return random_expr_below(&w->state, n); }

static void declare(world *w) {
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++) {
        const random_expr_capture *c = &random_expr_captures[i];
        w->decl[i].name = c->name;
        w->decl[i].type = c->kind == 'i' ? EXPR_INT : c->kind == 'f' ? EXPR_FLOAT : EXPR_BOOL;
        w->decl[i].ndim = c->ndim;
    }
}

static void bind_array(world *w, int i, dtype t, const void *data) {
    w->value[i].type = t;
    w->value[i].data = data;
    w->value[i].dim[0] = draw(w, MAX_LENGTH + 1);
    if (w->decl[i].ndim == 2) {
        w->value[i].dim[0] = draw(w, 9);
        w->value[i].dim[1] = draw(w, 9);
    }
}

static void bind(world *w) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    int sorted = draw(w, 2), id = 0;
    for (int i = 0; i < MAX_LENGTH; i++) {
        id += draw(w, 8) == 0;
        w->doc[i] = sorted ? id : draw(w, 5);
        w->anchor[i] = sorted ? i * 3 + draw(w, 3) : draw(w, 60) - 10;
        w->table[i] = draw(w, 30) - 5;
        w->bias[i] = draw(w, 20) ? (float)(draw(w, 200) - 100) / 8 : odd[draw(w, 5)];
        w->keep[i] = sorted ? i < 40 : (uint8_t)draw(w, 2);
    }
    w->value[0].scalar.i = draw(w, 50);
    w->value[1].scalar.i = draw(w, 10) - 1;
    w->value[2].scalar.f = (float)(draw(w, 100) - 30) / 4;
    w->value[3].scalar.i = draw(w, 2);
    bind_array(w, 4, DT_I64, w->doc);
    bind_array(w, 5, DT_I32, w->anchor);
    bind_array(w, 6, DT_I64, w->table);
    bind_array(w, 7, DT_F32, w->bias);
    bind_array(w, 8, DT_BOOL, w->keep);
    w->env = (expr_env){w->value, draw(w, 3) ? 0 : draw(w, 9) - 4, draw(w, 3) ? 0 : draw(w, 9) - 4};
}

static interval_box random_box(world *w) {
    interval_box x;
    x.b0 = draw(w, 2), x.b1 = x.b0 + draw(w, 2);
    x.h0 = draw(w, 3), x.h1 = x.h0 + draw(w, 2);
    x.q0 = draw(w, 50), x.q1 = x.q0 + draw(w, 9);
    x.kv0 = draw(w, 50), x.kv1 = x.kv0 + draw(w, draw(w, 8) ? 9 : 45);
    return x;
}

typedef struct counts {
    int64_t boxes, none, all, loose, sure_inside, loose_inside;
} counts;

static const char *say(const world *w, uint64_t seed, const char *text, const interval_box *x) {
    static char line[TEXT + 400]; /* a message for the test's own output */
    snprintf(line, sizeof line,
             "seed %llu, box b %lld..%lld h %lld..%lld q %lld..%lld kv %lld..%lld, "
             "offsets %lld %lld, text:\n%s\n",
             (unsigned long long)seed, (long long)x->b0, (long long)x->b1, (long long)x->h0,
             (long long)x->h1, (long long)x->q0, (long long)x->q1, (long long)x->kv0,
             (long long)x->kv1, (long long)w->env.q0, (long long)w->env.kv0, text);
    return line;
}

static void check_tile(world *w, const expr *e, uint64_t seed, const interval_box *x, void *scratch,
                       int64_t *seen, int *left) {
    uint8_t out[9 * 60];
    int64_t nq = x->q1 - x->q0 + 1, nkv = x->kv1 - x->kv0 + 1, ld = nkv + draw(w, 3);
    *seen = 0;
    *left = 0;
    for (int64_t b = x->b0; b <= x->b1; b++)
        for (int64_t h = x->h0; h <= x->h1; h++) {
            int flag = 0, expected = 0;
            memset(out, 0x5a, sizeof out);
            expr_tile_mask(e, &w->env, b, h, x->q0, nq, x->kv0, nkv, out, ld, scratch, &flag);
            for (int64_t i = 0; i < nq; i++)
                for (int64_t j = 0; j < nkv; j++) {
                    int v = expr_eval_mask(e, &w->env, b, h, x->q0 + i, x->kv0 + j, &expected);
                    *seen += v;
                    if (out[i * ld + j] != v)
                        fail_msg("tile gives %d, definition %d at q %lld kv %lld; %s",
                                 out[i * ld + j], v, (long long)(x->q0 + i),
                                 (long long)(x->kv0 + j), say(w, seed, expr_source(e), x));
                }
            if (flag != expected)
                fail_msg("tile flag %d, definition %d; %s", flag, expected,
                         say(w, seed, expr_source(e), x));
            *left |= expected;
        }
}

static void check_interval(world *w, const expr *e, const interval_tables *t, uint64_t seed,
                           const interval_box *x, int64_t seen, int left, counts *c) {
    int64_t cells =
        (x->b1 - x->b0 + 1) * (x->h1 - x->h0 + 1) * (x->q1 - x->q0 + 1) * (x->kv1 - x->kv0 + 1);
    int may_leave = 0;
    interval_verdict v = interval_classify(e, &w->env, t, x, &may_leave);
    if (v == INTERVAL_ALL && seen != cells)
        fail_msg("ALL, but %lld of %lld cells; %s", (long long)seen, (long long)cells,
                 say(w, seed, expr_source(e), x));
    if (v == INTERVAL_NONE && seen != 0)
        fail_msg("NONE, but %lld cells; %s", (long long)seen, say(w, seed, expr_source(e), x));
    if (left && !may_leave)
        fail_msg("a load leaves that was proven inside; %s", say(w, seed, expr_source(e), x));
    c->boxes++;
    c->none += v == INTERVAL_NONE;
    c->all += v == INTERVAL_ALL;
    c->loose += v == INTERVAL_MIXED && (seen == 0 || seen == cells);
    c->sure_inside += !may_leave;
    c->loose_inside += may_leave && !left;
}

static void check_print(const world *w, const expr *e, const char *text) {
    str once = {0}, twice = {0};
    expr *again;
    assert_int_equal(expr_print(e, &once), ERR_OK);
    if (expr_compile(&again, EXPR_MASK, once.s, w->decl, RANDOM_EXPR_CAPTURES))
        fail_msg("printed text does not compile: %s\nprinted:\n%s\nfrom:\n%s", err_text(), once.s,
                 text);
    assert_int_equal(expr_print(again, &twice), ERR_OK);
    if (strcmp(once.s, twice.s) != 0)
        fail_msg("printing is no fixed point:\n%s\n%s\nfrom:\n%s", once.s, twice.s, text);
    expr_free(again);
    str_free(&once);
    str_free(&twice);
}

static void check_program(world *w, uint64_t seed, arena *a, counts *c) {
    static char text[TEXT];
    expr *e;
    interval_tables *t;
    arena_mark mark = arena_get_mark(a);
    w->state = seed;
    random_expr_mask(&w->state, 1 + draw(w, 6), text, sizeof text);
    bind(w);
    if (expr_compile(&e, EXPR_MASK, text, w->decl, RANDOM_EXPR_CAPTURES))
        fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
    assert_int_equal(expr_check_env(e, &w->env), ERR_OK);
    check_print(w, e, text);
    assert_int_equal(interval_tables_create(&t, e, &w->env, a), ERR_OK);
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, 9, 60) + 63) / 64 * 64);
    assert_non_null(scratch);
    for (int i = 0; i < 3; i++) {
        interval_box x = random_box(w);
        int64_t seen;
        int left;
        check_tile(w, e, seed, &x, scratch, &seen, &left);
        check_interval(w, e, t, seed, &x, seen, left, c);
    }
    free(scratch);
    expr_free(e);
    arena_reset(a, mark);
}

static void random_programs(void **state) {
    (void)state;
    static world w;
    counts c = {0};
    arena *a;
    const char *fixed = getenv("RANDOM_EXPR_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed =
        fixed ? strtoull(fixed, NULL, 10) : (uint64_t)now.tv_sec * 1000003u + (uint64_t)now.tv_nsec;
    declare(&w);
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int i = 0; i < (fixed ? 1 : PROGRAMS); i++) check_program(&w, seed + (uint64_t)i, a, &c);
    arena_destroy(a);
    print_message("from seed %llu: %lld boxes, %lld none, %lld all, %lld undecided though uniform; "
                  "loads proven inside %lld, unproven though inside %lld\n",
                  (unsigned long long)seed, (long long)c.boxes, (long long)c.none, (long long)c.all,
                  (long long)c.loose, (long long)c.sure_inside, (long long)c.loose_inside);
    if (!fixed) assert_true(c.none > 0 && c.all > 0 && c.sure_inside > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
