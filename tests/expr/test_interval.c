/* Interval analysis where it has to be exact: the masks that people use, over random boxes.
 *
 * For each mask of a table and many boxes, aligned to tiles or not, the verdict has to equal brute force:
 * not only sound but decided whenever the box is all or none. Loads behind guards have to be proven inside.
 * A last group holds ranges at the ends of 64 bits, where everything has to stay sound. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "expr/expr.h"
#include "expr/interval.h"
#include "support/numbers.h"
#include "support/random_expr.h"

enum { CTX = 203, N = 29, LENGTH = CTX + N * 16, ROUNDS = 500 };

typedef struct setting {
    uint64_t state;
    int64_t doc[LENGTH], anchor[N], doc_blk[N], shuffled[LENGTH];
    int32_t first[LENGTH];
    float bias[LENGTH];
    uint8_t keep[N];
    expr_value v[12];
    expr_env env;
} setting;

static const expr_decl decls[] = {
    {"ctx", EXPR_INT, 0},      {"bs", EXPR_INT, 0},     {"w", EXPR_INT, 0},
    {"n", EXPR_INT, 0},        {"doc", EXPR_INT, 1},    {"anchor", EXPR_INT, 1},
    {"doc_blk", EXPR_INT, 1},  {"first", EXPR_INT, 1},  {"keep", EXPR_BOOL, 1},
    {"shuffled", EXPR_INT, 1}, {"bias", EXPR_FLOAT, 1}, {"grid", EXPR_INT, 2},
};
enum { N_DECLS = sizeof decls / sizeof *decls };

static int draw(setting *s, int n) { return random_expr_below(&s->state, n); }

static void make_setting(setting *s) {
    int64_t id = 0, start = 0, bs = 1 + draw(s, 16);
    for (int i = 0; i < LENGTH; i++) {
        if (draw(s, 40) == 0) id++, start = i;
        s->doc[i] = id;
        s->first[i] = (int32_t)start;
        s->shuffled[i] = draw(s, 1000) - 500;
        s->bias[i] = (float)draw(s, 64) / 8;
    }
    for (int i = 0; i < N; i++) {
        s->anchor[i] = (int64_t)i * CTX / N + draw(s, CTX / N);
        s->doc_blk[i] = s->doc[s->anchor[i]];
        s->keep[i] = draw(s, 4) != 0;
    }
    memset(s->v, 0, sizeof s->v);
    s->v[0].scalar.i = CTX;
    s->v[1].scalar.i = bs;
    s->v[2].scalar.i = 1 + draw(s, 90);
    s->v[3].scalar.i = LENGTH;
    s->v[4] = (expr_value){.type = DT_I64, .dim = {LENGTH}, .data = s->doc};
    s->v[5] = (expr_value){.type = DT_I64, .dim = {N}, .data = s->anchor};
    s->v[6] = (expr_value){.type = DT_I64, .dim = {N}, .data = s->doc_blk};
    s->v[7] = (expr_value){.type = DT_I32, .dim = {LENGTH}, .data = s->first};
    s->v[8] = (expr_value){.type = DT_BOOL, .dim = {N}, .data = s->keep};
    s->v[9] = (expr_value){.type = DT_I64, .dim = {LENGTH}, .data = s->shuffled};
    s->v[10] = (expr_value){.type = DT_F32, .dim = {LENGTH}, .data = s->bias};
    s->v[11] = (expr_value){.type = DT_I64, .dim = {20, 30}, .data = s->shuffled};
    s->env = (expr_env){s->v, 0, 0};
}

static expr *compile(const char *text) {
    expr *e;
    if (expr_compile(&e, EXPR_MASK, text, decls, N_DECLS)) fail_msg("%s", err_text());
    return e;
}

/* Counts cells and tells whether a load left, by the tile interpreter. */
static int64_t count(const setting *s, const expr *e, const interval_box *x, int *left) {
    int64_t nq = x->q1 - x->q0 + 1, nkv = x->kv1 - x->kv0 + 1, seen = 0;
    uint8_t *out = malloc((size_t)(nq * nkv));
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, nq, nkv) + 63) / 64 * 64);
    *left = 0;
    for (int64_t b = x->b0; b <= x->b1; b++)
        for (int64_t h = x->h0; h <= x->h1; h++) {
            expr_tile_mask(e, &s->env, b, h, x->q0, nq, x->kv0, nkv, out, nkv, scratch, left);
            for (int64_t i = 0; i < nq * nkv; i++) seen += out[i];
        }
    free(out);
    free(scratch);
    return seen;
}

static void random_span(setting *s, int64_t limit, int64_t *from, int64_t *to) {
    static const int sizes[] = {1, 3, 16, 64, 128};
    int64_t size = sizes[draw(s, 5)];
    *from = draw(s, (int)limit);
    if (draw(s, 2)) *from = *from / size * size;
    *to = *from + size - 1 < limit ? *from + size - 1 : limit - 1;
}

/* Verdicts equal brute force on every box, and loads that never leave are proven so. */
static void exact(const char *text, int64_t q_limit, int64_t kv_limit) {
    static setting s;
    int64_t kinds[3] = {0};
    arena *a;
    s.state = numbers_seed();
    expr *e = compile(text);
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    arena_mark mark = arena_get_mark(a);
    for (int i = 0; i < ROUNDS; i++) {
        interval_tables *t = NULL;
        arena_reset(a, mark);
        make_setting(&s);
        int64_t nq = q_limit ? q_limit : N * s.v[1].scalar.i;
        int64_t nkv = kv_limit ? kv_limit : CTX + N * s.v[1].scalar.i;
        assert_int_equal(interval_tables_create(&t, e, &s.env, a), ERR_OK);
        for (int j = 0; j < 8; j++) {
            interval_box x = {0, 0, draw(&s, 4), 4, 0, 0, 0, 0};
            int left, may_leave;
            random_span(&s, nq, &x.q0, &x.q1);
            random_span(&s, nkv, &x.kv0, &x.kv1);
            int64_t seen = count(&s, e, &x, &left);
            int64_t cells = (x.h1 - x.h0 + 1) * (x.q1 - x.q0 + 1) * (x.kv1 - x.kv0 + 1);
            interval_verdict want = seen == 0       ? INTERVAL_NONE
                                    : seen == cells ? INTERVAL_ALL
                                                    : INTERVAL_MIXED;
            interval_verdict got = interval_classify(e, &s.env, t, &x, &may_leave);
            if (got != want || left || may_leave)
                fail_msg(
                    "verdict %d, brute force %d, left %d, may_leave %d: q %lld..%lld kv %lld..%lld, "
                    "bs %lld w %lld\n%s",
                    got, want, left, may_leave, (long long)x.q0, (long long)x.q1, (long long)x.kv0,
                    (long long)x.kv1, (long long)s.v[1].scalar.i, (long long)s.v[2].scalar.i, text);
            kinds[got]++;
        }
    }
    assert_true(kinds[INTERVAL_NONE] && kinds[INTERVAL_ALL] && kinds[INTERVAL_MIXED]);
    arena_destroy(a);
    expr_free(e);
}

static void causal(void **state) {
    (void)state;
    exact("q >= kv", LENGTH, LENGTH);
    exact("3 * kv - 2 * q + 17 <= kv + 40", LENGTH, LENGTH);
}
static void window(void **state) {
    (void)state;
    exact("q >= kv && q - kv < w", LENGTH, LENGTH);
    exact("let d = q - kv; d >= 0 && (d < w || kv < 16)", LENGTH, LENGTH);
    exact("abs(q - kv) < w", LENGTH, LENGTH);
}
static void documents(void **state) {
    (void)state;
    exact("doc[q] == doc[kv]", LENGTH, LENGTH);
    exact("kv >= first[q]", LENGTH, LENGTH);
}
static void prefix_and_blocks(void **state) {
    (void)state;
    exact("kv < ctx || q >= kv", LENGTH, LENGTH);
    exact("q // bs == kv // bs", LENGTH, LENGTH);
    exact("(kv - ctx) // bs <= q // bs", LENGTH, LENGTH);
    exact("q - q % bs <= kv", LENGTH, LENGTH);
    exact("h < 2 ? q >= kv : kv >= q", LENGTH, LENGTH);
}
static void minima_and_maxima(void **state) {
    (void)state;
    exact("shuffled[q] < shuffled[kv]", LENGTH, LENGTH);
    exact("bias[q] < bias[kv] + 3.5", LENGTH, LENGTH);
    exact("min(q, 100) >= max(kv, 7)", LENGTH, LENGTH);
    exact("grid[q, kv] < 430", 20, 30);
}

/* The extremes of a slice are the array's own, for slices of any place and size. */
static void slices_are_exact(void **state) {
    (void)state;
    enum { LONG = 5000 };
    static setting s;
    static int64_t wide[LONG];
    static int16_t small[LONG];
    static float real[LONG];
    static const char *const texts[] = {
        "doc[kv] >= n && doc[kv] <= w && first[kv] >= n && first[kv] <= w && bias[kv] >= n && bias[kv] <= w",
        "doc[kv] > n",
        "doc[kv] < w",
        "first[kv] > n",
        "first[kv] < w",
        "bias[kv] > n",
        "bias[kv] < w"};
    arena *a;
    s.state = numbers_seed();
    make_setting(&s);
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int i = 0; i < LONG; i++) {
        small[i] = (int16_t)(draw(&s, 60000) - 30000);
        wide[i] = small[i], real[i] = small[i]; /* exact in all three types */
    }
    s.v[4] = (expr_value){.type = DT_I64, .dim = {LONG}, .data = wide};
    s.v[7] = (expr_value){.type = DT_I16, .dim = {LONG}, .data = small};
    s.v[10] = (expr_value){.type = DT_F32, .dim = {LONG}, .data = real};
    arena_mark mark = arena_get_mark(a);
    for (int round = 0; round < 300; round++) {
        int64_t from = draw(&s, LONG), size = 1 + draw(&s, draw(&s, 2) ? 200 : LONG);
        int64_t to = from + size <= LONG ? from + size - 1 : LONG - 1;
        interval_box x = {0, 0, 0, 0, 0, 0, from, to};
        s.v[3].scalar.i = s.v[2].scalar.i = wide[from];
        for (int64_t i = from; i <= to; i++) {
            if (wide[i] < s.v[3].scalar.i) s.v[3].scalar.i = wide[i];
            if (wide[i] > s.v[2].scalar.i) s.v[2].scalar.i = wide[i];
        }
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            interval_tables *t;
            expr *e = compile(texts[i]);
            assert_int_equal(interval_tables_create(&t, e, &s.env, a), ERR_OK);
            int all = interval_classify(e, &s.env, t, &x, NULL) == INTERVAL_ALL;
            if (all != (i == 0))
                fail_msg("%s at %lld..%lld", texts[i], (long long)from, (long long)to);
            expr_free(e);
            arena_reset(a, mark);
        }
    }
    arena_destroy(a);
}

/* The mask of a drafter, its own-block term and its context term. Not exact in every box: the two
 * conditions of the context term may be undecided together. What has to be: sound, and decided nearly always. */
static void dflash(void **state) {
    (void)state;
    static setting s;
    int64_t decided = 0, uniform = 0;
    arena *a;
    s.state = numbers_seed();
    exact("kv >= ctx && (kv - ctx) // bs == q // bs", 0, 0);
    exact("kv < ctx && kv < anchor[q // bs]", 0, 0);
    exact("keep[q // bs] && kv < ctx", 0, 0);
    expr *e =
        compile("let blk = q // bs; (kv < ctx && kv < anchor[blk] && doc[kv] == doc_blk[blk]) || "
                "(kv >= ctx && (kv - ctx) // bs == blk)");
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (int i = 0; i < ROUNDS; i++) {
        interval_tables *t = NULL;
        make_setting(&s);
        s.v[4].dim[0] = CTX; /* the guard proves doc[kv] inside */
        int64_t bs = s.v[1].scalar.i;
        assert_int_equal(interval_tables_create(&t, e, &s.env, a), ERR_OK);
        for (int j = 0; j < 8; j++) {
            interval_box x = {0, 0, 0, 0, 0, 0, 0, 0};
            int left, may_leave;
            random_span(&s, N * bs, &x.q0, &x.q1);
            random_span(&s, CTX + N * bs, &x.kv0, &x.kv1);
            int64_t seen = count(&s, e, &x, &left);
            int64_t cells = (x.q1 - x.q0 + 1) * (x.kv1 - x.kv0 + 1);
            interval_verdict v = interval_classify(e, &s.env, t, &x, &may_leave);
            assert_false(left || may_leave);
            assert_true(v != INTERVAL_ALL || seen == cells);
            assert_true(v != INTERVAL_NONE || seen == 0);
            uniform += seen == 0 || seen == cells;
            decided += v != INTERVAL_MIXED;
        }
    }
    print_message("%lld of %lld uniform boxes decided\n", (long long)decided, (long long)uniform);
    assert_true(decided * 100 >= uniform * 97);
    arena_destroy(a);
    expr_free(e);
}

/* One box: verdict and may_leave as the table says. */
typedef struct verdict_case {
    const char *text;
    int64_t q0, q1, kv0, kv1;
    interval_verdict verdict;
    int may_leave;
} verdict_case;

static void check_cases(const setting *s, const verdict_case *c, size_t n) {
    arena *a;
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    for (size_t i = 0; i < n; i++) {
        interval_tables *t;
        interval_box x = {0, 0, 0, 0, c[i].q0, c[i].q1, c[i].kv0, c[i].kv1};
        int may_leave;
        expr *e = compile(c[i].text);
        assert_int_equal(interval_tables_create(&t, e, &s->env, a), ERR_OK);
        interval_verdict v = interval_classify(e, &s->env, t, &x, &may_leave);
        if (v != c[i].verdict || may_leave != c[i].may_leave)
            fail_msg("verdict %d, may_leave %d: %s", v, may_leave, c[i].text);
        expr_free(e);
    }
    arena_destroy(a);
}
#define CASES(s, ...)                                                                              \
    do {                                                                                           \
        static const verdict_case list[] = {__VA_ARGS__};                                          \
        check_cases(s, list, sizeof list / sizeof *list);                                          \
    } while (0)

static void guards_prove_loads(void **state) {
    (void)state;
    static setting s;
    s.state = numbers_seed();
    make_setting(&s);
    CASES(&s, {"doc[kv] >= 0", 0, 9, 0, LENGTH - 1, INTERVAL_ALL, 0},
          {"doc[kv] >= 0", 0, 9, 0, LENGTH, INTERVAL_ALL, 1}, /* outside gives 0 */
          {"kv < n && doc[kv] >= 0", 0, 9, LENGTH - 5, LENGTH + 5, INTERVAL_MIXED, 0},
          {"kv >= n || doc[kv] >= 0", 0, 9, LENGTH - 5, LENGTH + 5, INTERVAL_ALL, 0},
          {"kv < n ? doc[kv] >= 0 : true", 0, 9, 0, LENGTH + 500, INTERVAL_ALL, 0},
          {"!(kv >= n) && doc[kv] >= 0", 0, 9, LENGTH, LENGTH + 5, INTERVAL_NONE, 0},
          {"q >= kv && first[q - kv] >= 0", 0, 99, 0, 99, INTERVAL_MIXED, 0},
          {"q < kv || first[q - kv] >= 0", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"q + 1 > kv && kv + 40 > q && first[q - kv] >= 0 && first[39 - q + kv] >= 0", 0, 999, 0,
           999, INTERVAL_MIXED, 0},
          {"q >= kv && first[kv - q] >= 0", 0, 99, 0, 99, INTERVAL_MIXED, 1},
          {"q == kv && doc[kv] >= 0", 0, 9, 0, LENGTH + 9, INTERVAL_MIXED, 0},
          {"kv // 16 == 2 && doc[kv + n - 48] >= 0", 0, 9, 0, 9999, INTERVAL_MIXED, 0},
          {"anchor[q] >= 0 && doc[anchor[q]] >= 0", 0, N - 1, 0, 9, INTERVAL_ALL, 0},
          {"shuffled[q] >= 0 && doc[shuffled[q]] >= 0", 0, 99, 0, 9, INTERVAL_MIXED, 0},
          {"(kv < n) == true && doc[kv] >= 0", 0, 9, 0, 9, INTERVAL_ALL, 0},
          {"false && doc[kv - 99] == 0", 0, 9, 0, 9, INTERVAL_NONE, 0},
          {"doc[kv - 99] == 0 && false", 0, 9, 0, 9, INTERVAL_NONE, 1},
          {"grid[q, kv] >= -500", 0, 19, 0, 29, INTERVAL_ALL, 0},
          {"grid[q, kv] >= -500", 0, 19, 0, 30, INTERVAL_ALL, 1});
}

static void relations(void **state) {
    (void)state;
    static setting s;
    s.state = numbers_seed();
    make_setting(&s);
    CASES(&s, {"(2 * kv) % 4 != 1", 0, 99, 0, 99, INTERVAL_ALL, 0}, /* congruences */
          {"(6 * q + 4 * kv + 3) % 4 == 2", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"(6 * q) % 9 + 3 * kv == 10", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"((4 * q + 1) % 6) % 2 == 1", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"abs(q - kv) < 5 && q - kv > 4", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"max(q, kv) < 50 && q == 60", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"clamp(q, 3, 7) == 3 || q > 3", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"q >= kv && kv > q", 0, 99, 0, 99, INTERVAL_NONE, 0}, /* contradicts its guard */
          {"q >= kv || kv > q", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"q - kv < 5 && kv - q < -4", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"2 * q - 2 * kv != 1", 0, 99, 0, 99, INTERVAL_ALL, 0}, /* parity */
          {"6 * q + 4 * kv == 2 * n + 1", 0, 99, 0, 99, INTERVAL_NONE, 0},
          {"q - q == 0", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"q - q % 16 == 16 * (q // 16)", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"q % 16 < 16 && q % 16 >= 0", -50, 99, 0, 99, INTERVAL_ALL, 0},
          {"q % 16 == q - 32", 32, 47, 0, 0, INTERVAL_ALL, 0},
          {"(4 * q + 3) % 4 == 3", 0, 99, 0, 99, INTERVAL_ALL, 0},
          {"(16 * q + 5) // 16 == q", -7, 99, 0, 99, INTERVAL_ALL, 0},
          {"exp(float(q)) > 0.5 && sigmoid(kv * 1.0) <= 1.001 && sqrt(q + 1.0) >= 1", 0, 9, 0, 9,
           INTERVAL_ALL, 0},
          {"q / 2.0 < kv * 1.5", 0, 9, 20, 29, INTERVAL_ALL, 0},
          {"bias[q] < 8", 0, 99, 0, 9, INTERVAL_ALL, 0},
          {"min(float(q), 0.0 / 0.0) < 1000", 0, 9, 0, 9, INTERVAL_MIXED, 0});
}

static void ends_of_64_bits(void **state) {
    (void)state;
    static setting s;
    s.state = numbers_seed();
    make_setting(&s);
    /* Wrapping makes these false or true somewhere: nothing may be claimed. */
    CASES(
        &s, {"q + 9223372036854775807 > 0", 0, 1, 0, 0, INTERVAL_MIXED, 0},
        {"q + 9223372036854775807 > q", 0, 1, 0, 0, INTERVAL_MIXED, 0},
        {"q * 4611686018427387904 >= 0", 0, 3, 0, 0, INTERVAL_MIXED, 0},
        {"q > kv - 1", INT64_MIN, INT64_MIN + 1, INT64_MIN, INT64_MIN + 1, INTERVAL_MIXED, 0},
        {"q >= kv", INT64_MAX - 1, INT64_MAX, INT64_MIN, INT64_MIN + 1, INTERVAL_ALL, 0},
        {"q * 4611686018427387904 // 4611686018427387904 == q", 0, 3, 0, 0, INTERVAL_MIXED, 0},
        {"(2 * q + 9223372036854775806) // 2 == q + 4611686018427387903", 0, 3, 0, 0,
         INTERVAL_MIXED, 0},
        {"(q * 3074457345618258603 + 1) % 3074457345618258603 == 1", 0, 3, 0, 0, INTERVAL_MIXED, 0},
        {"abs(q) >= 0", INT64_MIN, 5, 0, 0, INTERVAL_MIXED, 0},
        {"q // -1 < 0", INT64_MIN, 5, 0, 0, INTERVAL_MIXED, 0});
    s.env.q0 = INT64_MAX - 3;
    CASES(&s, {"q > 0", 0, 9, 0, 0, INTERVAL_MIXED, 1}, {"q > 0", 0, 3, 0, 0, INTERVAL_ALL, 0});
}

/* Conditions that share parts many times over are given up, not explored for ever; nothing is claimed. */
static void bounded_work(void **state) {
    (void)state;
    static const char *const lines[] = {
        "let c%d = (q - kv != %d && c%d) || (q + kv > %d && c%d);\n",
        "let c%d = (q - kv < 99%d && c%d) && (q + kv > -1%d && c%d);\n",
    };
    static setting s;
    s.state = numbers_seed();
    make_setting(&s);
    for (int k = 0; k < 2; k++) {
        char text[8000], *p = text;
        p += sprintf(p, "let c0 = q > kv;\n");
        for (int i = 1; i <= 100; i++) {
            const char *line = lines[k];
            p += sprintf(p, line, i, i, i - 1, i, i - 1);
        }
        strcpy(p, "c100 && doc[kv] > -1");
        verdict_case c = {text, 0, 9999, 0, 99, INTERVAL_MIXED, 1};
        check_cases(&s, &c, 1);
    }
}

/* A binding's scalars are part of the tables: another value gives another verdict. */
static void bindings_are_kept(void **state) {
    (void)state;
    static setting s;
    interval_tables *narrow, *wide;
    arena *a;
    s.state = numbers_seed();
    make_setting(&s);
    expr *e = compile("q - kv < w");
    interval_box x = {0, 0, 0, 0, 100, 163, 0, 63};
    assert_int_equal(arena_create(&a, "test", 0), ERR_OK);
    s.v[2].scalar.i = 10;
    assert_int_equal(interval_tables_create(&narrow, e, &s.env, a), ERR_OK);
    s.v[2].scalar.i = 1000;
    assert_int_equal(interval_tables_create(&wide, e, &s.env, a), ERR_OK);
    assert_int_equal(interval_classify(e, &s.env, narrow, &x, NULL), INTERVAL_NONE);
    assert_int_equal(interval_classify(e, &s.env, wide, &x, NULL), INTERVAL_ALL);
    s.v[4].type = DT_F32;
    assert_int_equal(interval_tables_create(&wide, e, &s.env, a), ERR_SHAPE);
    arena_fail_at(a, 1);
    s.v[4].type = DT_I64;
    assert_int_equal(interval_tables_create(&wide, e, &s.env, a), ERR_MEMORY);
    arena_destroy(a);
    expr_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal),
        cmocka_unit_test(window),
        cmocka_unit_test(documents),
        cmocka_unit_test(prefix_and_blocks),
        cmocka_unit_test(minima_and_maxima),
        cmocka_unit_test(slices_are_exact),
        cmocka_unit_test(dflash),
        cmocka_unit_test(guards_prove_loads),
        cmocka_unit_test(relations),
        cmocka_unit_test(ends_of_64_bits),
        cmocka_unit_test(bounded_work),
        cmocka_unit_test(bindings_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
