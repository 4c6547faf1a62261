/* Random scores: tiles against the definition at one cell, derivatives against a complex step, printing against parsing.
 *
 * Tiles run with lanes along keys and along queries, in random rectangles near the ends of arrays; values have to be
 * equal bit for bit. Derivatives by s and by captured floats are compared with those of complex_step.h. The seed is printed with
 * every failure. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "complex_step.h"
#include "expr/expr_score.h"
#include "expr/ir.h"
#include "support/numbers.h"
#include "support/random_expr.h"

enum { PROGRAMS = 6000, MAX_LENGTH = 64, TEXT = 4000, SIDE = 70 };

typedef struct world {
    uint64_t state, seed;
    expr_decl decl[RANDOM_EXPR_CAPTURES];
    expr_value value[RANDOM_EXPR_CAPTURES];
    expr_env env;
    int64_t doc[MAX_LENGTH], table[MAX_LENGTH];
    int32_t anchor[MAX_LENGTH];
    float bias[MAX_LENGTH];
    uint8_t keep[MAX_LENGTH];
    arena *a;
    int64_t cells, slopes, smooth, elements, apart, left;
    char text[TEXT];
} world;

static int draw(world *w, int n) { return random_expr_below(&w->state, n); }
static double draw_real(world *w) { return (double)(draw(w, 20001) - 10000) / 2500.0; }

static void declare(world *w) {
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++) {
        const random_expr_capture *c = &random_expr_captures[i];
        w->decl[i].name = c->name;
        w->decl[i].type = c->kind == 'i' ? EXPR_INT : c->kind == 'f' ? EXPR_FLOAT : EXPR_BOOL;
        w->decl[i].ndim = c->ndim;
    }
}

static int find(const world *w, const char *name) {
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++)
        if (!strcmp(w->decl[i].name, name)) return i;
    abort();
}

static void bind_array(world *w, const char *name, dtype t, const void *data) {
    int i = find(w, name);
    w->value[i] = (expr_value){.type = t, .data = data, .dim = {20 + draw(w, MAX_LENGTH - 19)}};
    if (w->decl[i].ndim == 2) w->value[i].dim[0] = 1 + draw(w, 8), w->value[i].dim[1] = 8;
}

static void bind(world *w) {
    for (int i = 0; i < MAX_LENGTH; i++) {
        w->doc[i] = draw(w, 5);
        w->anchor[i] = draw(w, 60) - 10;
        w->table[i] = draw(w, 30) - 5;
        w->bias[i] = (float)draw_real(w);
        w->keep[i] = (uint8_t)draw(w, 2);
    }
    w->value[find(w, "n")].scalar.i = draw(w, 50);
    w->value[find(w, "w")].scalar.i = draw(w, 10) - 1;
    w->value[find(w, "x")].scalar.f = (float)draw_real(w);
    w->value[find(w, "on")].scalar.i = draw(w, 2);
    bind_array(w, "doc", DT_I64, w->doc);
    bind_array(w, "anchor", DT_I32, w->anchor);
    bind_array(w, "table", DT_I64, w->table);
    bind_array(w, "bias", DT_F32, w->bias);
    bind_array(w, "keep", DT_BOOL, w->keep);
    w->env = (expr_env){w->value, draw(w, 3) ? 0 : draw(w, 9) - 4, draw(w, 3) ? 0 : draw(w, 9) - 4};
}

#define FAIL(w, ...)                                                                               \
    do {                                                                                           \
        print_error(__VA_ARGS__);                                                                  \
        fail_msg("seed %llu, text:\n%s", (unsigned long long)(w)->seed, (w)->text);                \
    } while (0)

static unsigned floats_of(const world *w) { return 1u << find(w, "x") | 1u << find(w, "bias"); }

/* ---- tiles ---- */

static int same_float(float x, float y) {
    return x == y ? signbit(x) == signbit(y) : x != x && y != y;
}

static float s_of(const world *w, int64_t q, int64_t kv) {
    uint64_t state = w->seed ^ (uint64_t)(q * 1009 + kv);
    return (float)(random_expr_below(&state, 2000) - 1000) / 250.0f;
}

static void check_tile(world *w, const expr *e, const expr_grad *g, expr_score_mode mode) {
    int q_lanes = draw(w, 2);
    int64_t nq = 1 + draw(w, 12), nkv = 1 + draw(w, draw(w, 6) ? 12 : SIDE);
    if (draw(w, 6) == 0) nq = 1 + draw(w, SIDE);
    int64_t b = draw(w, 2), h = draw(w, 3), q0 = draw(w, 50), kv0 = draw(w, 50);
    int64_t rows = q_lanes ? nkv : nq, lanes = q_lanes ? nq : nkv;
    double sum[EXPR_MAX_CAPTURES][MAX_LENGTH] = {{0}};
    expr_score_sums sums = {{0}, {0}};
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++) sums.wide[i] = sum[i];
    void *scratch = aligned_alloc(64, (expr_score_scratch(g, SIDE, SIDE) + 63) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xff, expr_score_scratch(g, SIDE, SIDE));
    expr_score *x = expr_score_open(g, &w->env, q_lanes, mode, SIDE, SIDE, scratch);
    for (int again = 0; again < 2; again++) { /* state of the tile before may not show */
        const expr_score_tile t = {b, h, q0, kv0, rows, lanes};
        expr_score_begin(x, &t, &sums);
        for (int64_t i = 0; i < rows; i++) {
            float s[SIDE];
            uint8_t visible[SIDE];
            int hide = draw(w, 2), left = 0, bad = 0;
            for (int64_t j = 0; j < lanes; j++) {
                s[j] = s_of(w, q0 + (q_lanes ? j : i), kv0 + (q_lanes ? i : j)) * 2.0f;
                visible[j] = !hide || draw(w, 2);
            }
            int met = expr_score_row(x, i, s, 0.5f, hide ? visible : NULL);
            for (int64_t j = 0; j < lanes; j++) {
                int64_t q = q0 + (q_lanes ? j : i), kv = kv0 + (q_lanes ? i : j);
                int flag = 0;
                float v = expr_eval_score(e, &w->env, b, h, q, kv, s_of(w, q, kv), &flag);
                w->cells++;
                if (!same_float(v, s[j]))
                    FAIL(w, "tile gives %.9g, definition %.9g at q %lld kv %lld\n", (double)s[j],
                         (double)v, (long long)q, (long long)kv);
                if (!visible[j]) continue;
                left |= flag;
                bad |= v != v || v == INFINITY;
            }
            w->left += left;
            if (left != (met & EXPR_SCORE_LEFT) || bad != (met & EXPR_SCORE_BAD) / EXPR_SCORE_BAD)
                FAIL(w, "row says %d, definition left %d bad %d\n", met, left, bad);
        }
    }
    free(scratch);
}

/* Gradients of a tile against sums of the definition's. */
static void check_sums(world *w, const expr_grad *g) {
    int q_lanes = draw(w, 2), n = expr_grad_sites(g);
    enum { N = 21 };
    double want[EXPR_MAX_CAPTURES][MAX_LENGTH] = {{0}}, size[EXPR_MAX_CAPTURES][MAX_LENGTH] = {{0}};
    double got[EXPR_MAX_CAPTURES][MAX_LENGTH] = {{0}};
    float narrow[MAX_LENGTH] = {0}, slope[N][N];
    double site[64], ds;
    int64_t place[64];
    int finite = 1, bias = find(w, "bias"), use_narrow = draw(w, 2);
    if (n > 64) return;
    expr_score_sums sums = {{0}, {0}};
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++) sums.wide[i] = got[i];
    if (use_narrow) sums.wide[bias] = NULL, sums.narrow[bias] = narrow;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int64_t q = q_lanes ? j : i, kv = q_lanes ? i : j;
            double grad = (double)s_of(w, kv + 77, q);
            (void)expr_grad_eval(g, &w->env, 1, 2, q, kv, (double)s_of(w, q, kv), &ds, site, place,
                                 NULL);
            slope[i][j] = (float)(3.0 * grad * ds);
            finite &= isfinite(ds) && fabs(ds) < 1e6;
            for (int k = 0; k < n; k++) {
                finite &= isfinite(site[k]) && fabs(site[k]) < 1e6;
                if (place[k] < 0) continue;
                want[expr_grad_capture(g, k)][place[k]] += grad * site[k];
                size[expr_grad_capture(g, k)][place[k]] += fabs(grad * site[k]);
            }
        }
    if (!finite) return;
    void *scratch = aligned_alloc(64, (expr_score_scratch(g, N, N) + 63) / 64 * 64);
    assert_non_null(scratch);
    expr_score *x = expr_score_open(g, &w->env, q_lanes, EXPR_SCORE_CAPTURES, N, N, scratch);
    const expr_score_tile t = {1, 2, 0, 0, N, N};
    expr_score_begin(x, &t, &sums);
    for (int i = 0; i < N; i++) {
        float s[N], d[N];
        for (int j = 0; j < N; j++) {
            s[j] = s_of(w, q_lanes ? j : i, q_lanes ? i : j);
            d[j] = s_of(w, (q_lanes ? i : j) + 77, q_lanes ? j : i);
        }
        (void)expr_score_row(x, i, s, 1.0f, NULL);
        (void)expr_score_row_grad(x, i, d, 3.0f);
        for (int j = 0; j < N; j++)
            if (!(fabs((double)(d[j] - slope[i][j])) <= 2e-3 * (1 + fabs((double)slope[i][j]))))
                w->apart++; /* rounding of wild programs; few, see the caller */
    }
    expr_score_end(x);
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++)
        for (int i = 0; i < MAX_LENGTH; i++) {
            double v = use_narrow && c == bias ? (double)narrow[i] : got[c][i];
            w->elements++;
            w->apart += !(fabs(v - want[c][i]) <= 2e-3 * (1 + size[c][i]));
        }
    free(scratch);
}

/* ---- derivatives ---- */

/* ds by one logit or element against a complex step of the score. Left out: edges of min, max and abs, what is not finite (0 * inf, as in
 * sqrt(0 * s)), and programs so wild that rounding in double might be seen. */
static void check_derivative(world *w, const expr_grad *g, const int64_t at[4], double s,
                             complex_step_by by, double value, double ds) {
    static ir_val v[IR_MAX_GRAD];
    static int64_t place[IR_MAX_GRAD];
    static complex_step_node node[IR_MAX_GRAD];
    const complex_step_node r = complex_step(g, &w->env, at, s, by, v, place, node);
    const double want = cimag(r.z) / COMPLEX_STEP_T, want_value = creal(r.z);
    w->slopes++;
    if (r.edge || !isfinite(want) || !isfinite(ds) || !isfinite(want_value)) return;
    if (!(r.rough_d * 0x1p-53 <= 1e-6 * (1 + fabs(want)))) return;
    if (!(r.rough * 0x1p-53 <= 1e-6 * (1 + fabs(want_value)))) return;
    w->smooth++;
    if (!(fabs(ds - want) <= 1e-5 * (1 + fabs(want))) ||
        !(fabs(value - want_value) <= 1e-5 * (1 + fabs(want_value))))
        FAIL(
            w,
            "d/d%s[%lld] is %.9g of %.9g, a complex step says %.9g of %.9g at s %.9g, b %lld h %lld q "
            "%lld kv %lld\n",
            by.capture < 0 ? "s" : w->decl[by.capture].name, (long long)by.place, ds, value, want,
            want_value, s, (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3]);
}

static void check_slope(world *w, const expr_grad *g) {
    const int64_t at[4] = {draw(w, 2), draw(w, 3), draw(w, 40), draw(w, 40)};
    double s = draw_real(w), ds;
    const double value =
        expr_grad_eval(g, &w->env, at[0], at[1], at[2], at[3], s, &ds, NULL, NULL, NULL);
    check_derivative(w, g, at, s, (complex_step_by){-1, 0}, value, ds);
}

static void check_capture(world *w, const expr_grad *g) {
    const int64_t at[4] = {draw(w, 2), draw(w, 3), draw(w, 40), draw(w, 40)};
    int64_t place[64];
    double s = draw_real(w), site[64], sum = 0;
    int n = expr_grad_sites(g);
    if (n == 0 || n > 64) return;
    const double value =
        expr_grad_eval(g, &w->env, at[0], at[1], at[2], at[3], s, NULL, site, place, NULL);
    const int k = draw(w, n), c = expr_grad_capture(g, k);
    if (place[k] < 0) return;
    for (int i = 0; i < n; i++)
        if (expr_grad_capture(g, i) == c && place[i] == place[k]) sum += site[i];
    check_derivative(w, g, at, s, (complex_step_by){c, place[k]}, value, sum);
}

/* ---- printing ---- */

static int same_graph(const expr *a, const expr *b) {
    int16_t at[IR_MAX_NODES + IR_SLACK];
    if (a->prog.n != b->prog.n) return 0;
    for (int i = 0; i < a->prog.n; i++) { /* every node of a has an equal one in b */
        const ir_node *x = &a->prog.node[i];
        at[i] = -1;
        for (int j = 0; j < b->prog.n && at[i] < 0; j++) {
            const ir_node *y = &b->prog.node[j];
            int same = x->op == y->op && x->type == y->type && x->slot == y->slot &&
                       x->n_args == y->n_args && x->k.i == y->k.i;
            for (int k = 0; same && k < x->n_args; k++) same = at[x->arg[k]] == y->arg[k];
            if (same) at[i] = (int16_t)j;
        }
        if (at[i] < 0) return 0;
    }
    return at[a->prog.n - 1] == b->prog.n - 1;
}

static void check_print(world *w, const expr *e) {
    str text = {0};
    expr *again;
    assert_int_equal(expr_print(e, &text), ERR_OK);
    if (expr_compile(&again, EXPR_SCORE, text.s, w->decl, RANDOM_EXPR_CAPTURES))
        FAIL(w, "printed text does not compile: %s\nprinted:\n%s\n", err_text(), text.s);
    if (!same_graph(e, again)) FAIL(w, "printed text is another program:\n%s\n", text.s);
    expr_free(again);
    str_free(&text);
}

static void random_scores(void **state) {
    (void)state;
    static world w;
    const uint64_t seed = numbers_seed();
    declare(&w);
    assert_int_equal(arena_create(&w.a, "test", 0), ERR_OK);
    for (int i = 0; i < PROGRAMS; i++) {
        expr *e;
        expr_grad *g;
        arena_mark mark = arena_get_mark(w.a);
        w.seed = w.state = seed + (uint64_t)i;
        random_expr_score(&w.state, 1 + draw(&w, 6), w.text, sizeof w.text);
        bind(&w);
        if (expr_compile(&e, EXPR_SCORE, w.text, w.decl, RANDOM_EXPR_CAPTURES))
            FAIL(&w, "%s\n", err_text());
        if (expr_grad_create(&g, e, floats_of(&w), w.a)) FAIL(&w, "%s\n", err_text());
        check_print(&w, e);
        check_tile(&w, e, g, (expr_score_mode)draw(&w, 3));
        check_sums(&w, g);
        for (int k = 0; k < 8; k++) check_slope(&w, g), check_capture(&w, g);
        expr_free(e);
        arena_reset(w.a, mark);
    }
    arena_destroy(w.a);
    print_message("from seed %llu: %lld cells equal, %lld rows with loads that left, %lld of %lld "
                  "slopes compared, %lld of %lld sums apart by rounding\n",
                  (unsigned long long)seed, (long long)w.cells, (long long)w.left,
                  (long long)w.smooth, (long long)w.slopes, (long long)w.apart,
                  (long long)w.elements);
    assert_true(w.smooth > w.slopes / 2 && w.left > 0);
    assert_true(w.elements > 0 && w.apart * 200 < w.elements);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
