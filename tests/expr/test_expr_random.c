/* Random masks: the tile interpreter against the scalar definition, intervals against both, and
 * printing against parsing.
 *
 * Each program meets random captures and random rectangles near the ends of its arrays. What has to hold:
 * the tile's bytes and its flag equal the definition's; what interval analysis calls ALL or NONE is that at
 * every cell, box by box and many at a time; loads it proves inside never leave; print → parse → print is a
 * fixed point. A failure names its program's seed: with PACELINE_TEST_SEED of that number it is the first one.
 * Usage: test_expr_random [PROGRAMS]; every operation has to occur in a hundredth of them, as a campaign of 100,000 shows. */
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
#include "expr/interval_proofs.h"
#include "expr/ir.h"
#include "support/numbers.h"
#include "support/random_world.h"

enum { PROGRAMS = 12000, MAX_LENGTH = 64, TEXT = 4000, MAX_DEPTH = 40 };
static int programs = PROGRAMS;

typedef random_world world;
static int draw(world *w, int n) { return random_world_draw(w, n); }

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
    int64_t many, many_decided, many_uniform;
    int64_t domains, all_inside, outside, no_head, no_batch, fits, diagonal;
    int64_t op[IR_OP_COUNT], depth[MAX_DEPTH + 1];
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

/* The same boxes many at a time: as sound, for one batch entry and head. */
static void check_many(world *w, const expr *e, const interval_tables *t, uint64_t seed, arena *a,
                       counts *c) {
    enum { SPAN = 120 };
    const interval_box domain = {0, 3, 0, 4, 0, SPAN, 0, SPAN};
    interval_spans s;
    interval_many *m;
    uint8_t verdict[INTERVAL_MANY];
    int64_t b = draw(w, 3), h = draw(w, 4);
    int n = 1 + draw(w, 6);
    assert_int_equal(interval_many_create(&m, t, &domain, a), ERR_OK);
    if (!m) return;
    for (int i = 0; i < n; i++) {
        interval_box x = random_box(w);
        s.q0[i] = x.q0, s.q1[i] = draw(w, 2) ? x.q0 : x.q1;
        s.kv0[i] = x.kv0, s.kv1[i] = draw(w, 2) ? x.kv0 : x.kv1;
    }
    interval_many_classify(m, b, h, n, &s, verdict);
    for (int i = 0; i < n; i++) {
        interval_box x = {b, b, h, h, s.q0[i], s.q1[i], s.kv0[i], s.kv1[i]};
        int64_t seen = 0, cells = (x.q1 - x.q0 + 1) * (x.kv1 - x.kv0 + 1);
        int left = 0;
        for (int64_t q = x.q0; q <= x.q1; q++)
            for (int64_t kv = x.kv0; kv <= x.kv1; kv++)
                seen += expr_eval_mask(e, &w->env, b, h, q, kv, &left);
        int uniform = !left && (seen == 0 || seen == cells);
        if ((verdict[i] == INTERVAL_ALL && seen != cells) ||
            (verdict[i] == INTERVAL_NONE && seen != 0) || (verdict[i] < INTERVAL_MIXED && left))
            fail_msg("many at a time: verdict %d, %lld of %lld cells, left %d; %s", verdict[i],
                     (long long)seen, (long long)cells, left, say(w, seed, expr_source(e), &x));
        c->many++;
        c->many_uniform += uniform;
        c->many_decided += verdict[i] < INTERVAL_MIXED;
    }
}

/* Proofs over a small domain: all loads inside means none leaves; outside, that one leaves in every cell of the box told;
 * and a mask that does not depend on b or h is the same for all of them, loads that leave included. */
static void check_proofs(world *w, const expr *e, const interval_tables *t, uint64_t seed, arena *a,
                         counts *c) {
    interval_proofs p;
    interval_box d = random_box(w);
    d.b1 = d.b0 + 1, d.h1 = d.h0 + 1;
    if (d.kv1 > d.kv0 + 9) d.kv1 = d.kv0 + 9;
    assert_int_equal(interval_prove(&p, t, &d, a), ERR_OK);
    for (int64_t q = d.q0; q <= d.q1; q++)
        for (int64_t kv = d.kv0; kv <= d.kv1; kv++) {
            int v[2][2], left = 0; /* bit 0: visible; bit 1: and a load left */
            for (int i = 0; i < 4; i++) {
                int leaves = 0;
                v[i / 2][i % 2] =
                    expr_eval_mask(e, &w->env, d.b0 + i / 2, d.h0 + i % 2, q, kv, &leaves);
                left |= leaves;
                if (v[i / 2][i % 2] && leaves) v[i / 2][i % 2] |= 2;
                for (int l = 0; l < p.n_loads; l++) {
                    const interval_box *x = &p.load[l].box;
                    if (p.load[l].place == INTERVAL_OUTSIDE && d.b0 + i / 2 >= x->b0 &&
                        d.b0 + i / 2 <= x->b1 && d.h0 + i % 2 >= x->h0 && d.h0 + i % 2 <= x->h1 &&
                        q >= x->q0 && q <= x->q1 && kv >= x->kv0 && kv <= x->kv1 && !leaves)
                        fail_msg("a load proven outside is not; %s",
                                 say(w, seed, expr_source(e), &d));
                }
            }
            int leaves = 0, next = expr_eval_mask(e, &w->env, d.b0, d.h0, q + 1, kv + 1, &leaves);
            if (next && leaves) next |= 2;
            if (p.diagonal && q < d.q1 && kv < d.kv1 && v[0][0] != next)
                fail_msg("differs along a diagonal in spite of the proof; %s",
                         say(w, seed, expr_source(e), &d));
            if (left && p.inside == p.n_loads)
                fail_msg("all loads proven inside, one leaves; %s",
                         say(w, seed, expr_source(e), &d));
            if ((!p.by_batch && (v[0][0] != v[1][0] || v[0][1] != v[1][1])) ||
                (!p.by_head && (v[0][0] != v[0][1] || v[1][0] != v[1][1])))
                fail_msg("differs by b or h in spite of the proof; %s",
                         say(w, seed, expr_source(e), &d));
        }
    c->domains++;
    c->all_inside += p.inside == p.n_loads;
    c->outside += p.left > 0;
    c->no_batch += !p.by_batch;
    c->no_head += !p.by_head;
    c->fits += p.fits_32;
    c->diagonal += p.diagonal;
}

static void count_program(const expr *e, counts *c) {
    int depth[IR_MAX_NODES + IR_SLACK], deepest = 0;
    for (int i = 0; i < e->prog.n; i++) {
        const ir_node *n = &e->prog.node[i];
        c->op[n->op]++;
        depth[i] = 1;
        for (int j = 0; j < n->n_args; j++)
            if (depth[n->arg[j]] >= depth[i]) depth[i] = depth[n->arg[j]] + 1;
        deepest = depth[i]; /* the root is last */
    }
    c->depth[deepest < MAX_DEPTH ? deepest : MAX_DEPTH]++;
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
    random_world_bind(w, MAX_LENGTH);
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
    check_many(w, e, t, seed, a, c);
    check_proofs(w, e, t, seed, a, c);
    count_program(e, c);
    free(scratch);
    expr_free(e);
    arena_reset(a, mark);
}

static void show(const counts *c, uint64_t seed) {
    print_message("from seed %llu: %lld boxes, %lld none, %lld all, %lld undecided though uniform "
                  "(%.2f %% of the uniform ones)\n",
                  (unsigned long long)seed, (long long)c->boxes, (long long)c->none,
                  (long long)c->all, (long long)c->loose,
                  100.0 * (double)c->loose / (double)(c->none + c->all + c->loose));
    print_message("many at a time: %lld boxes, %lld of %lld uniform ones decided\n",
                  (long long)c->many, (long long)c->many_decided, (long long)c->many_uniform);
    print_message("loads: proven inside in %lld boxes, unproven though inside in %lld\n",
                  (long long)c->sure_inside, (long long)c->loose_inside);
    print_message(
        "proofs over %lld domains: all loads inside %lld, one outside %lld, 32 bits enough %lld, "
        "not by batch %lld, not by head %lld, by q - kv alone %lld\n",
        (long long)c->domains, (long long)c->all_inside, (long long)c->outside, (long long)c->fits,
        (long long)c->no_batch, (long long)c->no_head, (long long)c->diagonal);
    print_message("operations:");
    for (int i = 0; i < IR_OP_COUNT; i++)
        if (c->op[i]) print_message(" %s %lld", ir__ops[i].spelling, (long long)c->op[i]);
    print_message("\ndepths:");
    for (int i = 1; i <= MAX_DEPTH; i++)
        if (c->depth[i]) print_message(" %d: %lld", i, (long long)c->depth[i]);
    print_message("\n");
}

/* Every operation that a mask may hold, but captured scalars by themselves, occurs about as often as it should: the rarest does half
 * as often again, and a count of so many strays by its root now and then, hardly ever by eight of them. */
static void check_shares(const counts *c) {
    const double share = programs / 100.0;
    for (int i = 0; i < IR_OP_COUNT; i++) {
        if (i >= IR_NEG_I || i == IR_AND || i == IR_OR || i == IR_SELECT || i == IR_LOAD)
            if ((double)c->op[i] < share - 8 * sqrt(share))
                fail_msg("'%s' occurs %lld times in %d programs", ir__ops[i].spelling,
                         (long long)c->op[i], programs);
    }
    assert_true(c->none > 0 && c->all > 0 && c->sure_inside > 0);
    assert_true(c->loose * 100 < (c->none + c->all + c->loose) * 12);
    assert_true(c->many_decided * 100 > c->many_uniform * 80);
}

static void random_programs(void **state) {
    (void)state;
    static world w;
    counts c = {0};
    arena *a;
    const uint64_t seed = numbers_seed();
    random_world_declare(&w);
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int i = 0; i < programs; i++) check_program(&w, seed + (uint64_t)i, a, &c);
    arena_destroy(a);
    show(&c, seed);
    check_shares(&c);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs)};
    if (argc > 1 && atoi(argv[1]) > 0) programs = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
