/* Scores from outside: faults named with their first cell, sentences, many threads at once, memory, and the definition
 * against finite differences.
 *
 * Numbers of the tiles are compared with the definition in test_flex_scores.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include "flex/flexref.h"
#include <pthread.h>

static flex_problem shape(int64_t hq, int64_t hkv, int64_t L, int64_t S, int64_t dim) {
    return (flex_problem){.batch = 1,
                          .q_heads = hq,
                          .kv_heads = hkv,
                          .q_len = L,
                          .kv_len = S,
                          .dim = dim,
                          .v_dim = dim,
                          .type = DT_F32};
}

/* A case with a score of this text over the captures that c->score already holds. */
static void with_text(attn_case *c, const char *text) {
    attn_score *s = &c->score;
    s->env.values = s->value;
    s->n_learned = 0;
    for (int k = 0; k < s->n; k++) s->n_learned += s->elements[k];
    assert_ok(expr_compile(&s->e, EXPR_SCORE, text, s->decl, s->n));
    c->p.score = s->e, c->p.score_env = &s->env, c->p.score_grads = s->wanted;
}

typedef struct ran {
    err plan, forward, backward;
    char text[3][600];
    attn_result r;
    int left;
    int64_t cell[4];
} ran;

/* Plan, forward and backward with whatever they say. */
static ran run_it(const attn_case *c, dev *d) {
    ran x = {.r = attn_result_new(c)};
    flex_io io = attn_io(c, &x.r);
    arena *a;
    flex_plan *plan;
    io.left = &x.left;
    assert_ok(arena_create(&a, "case", 0));
    x.plan = flex_plan_create(&plan, d, &c->p, a);
    snprintf(x.text[0], sizeof x.text[0], "%s", err_text());
    if (!x.plan) {
        io.workspace = attn_workspace(plan, d);
        x.forward = flex_forward(plan, d, &io);
        snprintf(x.text[1], sizeof x.text[1], "%s", err_text());
        memcpy(x.cell, io.left_cell, sizeof x.cell);
        x.backward = flex_backward(plan, d, &io);
        snprintf(x.text[2], sizeof x.text[2], "%s", err_text());
        free(io.workspace);
    }
    arena_destroy(a);
    return x;
}

static void says(const char *text, const char *part) {
    if (!strstr(text, part)) printf("'%s' is not in: %s\n", part, text);
    assert_non_null(strstr(text, part));
}

/* The first cell in the order of b, h, q, kv, whatever the number of threads and the tile it lies in. */
static void nan_and_infinity_are_named_with_their_first_cell(void **state) {
    (void)state;
    static const struct {
        const char *text, *what, *cell;
    } cases[] = {
        {"q >= 70 && kv >= 40 && h > 0 ? 0.0 / 0.0 : s", "NaN", "b 0, h 1, q 70, kv 40"},
        {"(q == 90 && kv == 3) || (q == 20 && kv == 19) ? 1.0 / 0.0 : s", "+inf",
         "b 0, h 0, q 20, kv 19"},
        {"kv > q ? 0.0 / 0.0 : kv == 64 ? log(-1.0 - s * s) : s", "NaN", "b 0, h 0, q 64, kv 64"},
        {"exp(exp(exp(float(q + kv))))", "+inf", "b 0, h 0, q 1, kv 1"},
        {"exp(float(q + kv))", "+inf", "b 0, h 0, q 45, kv 44"}, /* finite in double */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            attn_case c;
            dev *d = attn_dev(threads);
            flex_problem p = shape(4, 2, 100, 100, 16);
            attn_case_make(&c, &p, MASK_CAUSAL, 3);
            with_text(&c, cases[i].text);
            ran x = run_it(&c, d);
            assert_int_equal(x.plan, ERR_OK);
            assert_int_equal(x.forward, ERR_NUMERIC);
            says(x.text[1], cases[i].what), says(x.text[1], cases[i].cell);
            assert_int_equal(x.backward, ERR_NUMERIC);
            says(x.text[2], cases[i].cell);
            attn_result_free(&x.r);
            x.r = attn_result_new(&c);
            flex_io io = attn_io(&c, &x.r);
            assert_says(flex_reference_forward(&c.p, &io), ERR_NUMERIC, cases[i].what,
                        cases[i].cell);
            attn_result_free(&x.r);
            attn_case_free(&c);
            dev_close(d);
        }
    }
}

/* So does the plain definition. */
static void definition_names(attn_case *c, const char *cell) {
    attn_result r = attn_result_new(c);
    flex_io io = attn_io(c, &r);
    assert_ok(flex_reference_forward(&c->p, &io));
    assert_says(flex_reference_backward(&c->p, &io), ERR_NUMERIC, "gradient through the score",
                cell);
    attn_result_free(&r);
}

/* -inf hides a cell, and a row of nothing else is an empty row; slopes without a value are told apart. */
static void minus_infinity_hides_and_steep_slopes_are_named(void **state) {
    (void)state;
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(2, 1, 70, 70, 16);
    attn_case_make(&c, &p, MASK_CAUSAL, 3);
    with_text(&c, "q % 3 == 1 ? log(0.0 * s) : s");
    ran x = run_it(&c, d);
    assert_int_equal(x.forward, ERR_OK);
    assert_int_equal(x.backward, ERR_OK);
    assert_true(x.r.lse[1] == -INFINITY && x.r.o[16] == 0.0f && x.r.dq[16] == 0.0f);
    attn_result_free(&x.r);
    expr_free(c.score.e);
    with_text(&c, "h == 1 && q == 33 ? sqrt(s - s) : s");
    x = run_it(&c, d);
    assert_int_equal(x.forward, ERR_OK);
    assert_int_equal(x.backward, ERR_NUMERIC);
    says(x.text[2], "gradient through the score"), says(x.text[2], "b 0, h 1, q 33, kv 0");
    definition_names(&c, "b 0, h 1, q 33, kv 0");
    attn_result_free(&x.r);
    expr_free(c.score.e);
    attn_score_real(&c.score, "x", 0.0); /* its own slope is infinite, that of s is not */
    with_text(&c, "h == 1 && q == 40 ? s + sqrt(x) : s");
    x = run_it(&c, d);
    assert_int_equal(x.forward, ERR_OK);
    assert_int_equal(x.backward, ERR_NUMERIC);
    says(x.text[2], "gradient through the score"), says(x.text[2], "b 0, h 1, q 40, kv 0");
    definition_names(&c, "b 0, h 1, q 40, kv 0");
    attn_result_free(&x.r);
    attn_case_free(&c);
    dev_close(d);
}

/* A load outside its array in a visible cell: proven, an error of the plan; else 0 and a flag with the first cell. */
static void loads_that_leave_are_proven_or_flagged(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int plan, left;
        const char *says;
    } cases[] = {
        {"s + t[q - kv]", ERR_OK, 0, ""}, /* hidden cells load nothing */
        {"s + t[kv - q]", ERR_RANGE, 0, "`t` outside it, at [-"},
        {"s + t[q + 30]", ERR_RANGE, 0, "of [100]"},
        {"q < 70 ? s + t[q + 30] : s", ERR_OK, 0, ""},
        {"s > -1000.0 ? s + t[q + 30] : s", ERR_OK, 1, ""}, /* depends on s: not proven */
        {"s + t[q == 50 && kv == 33 ? 100 : 0]", ERR_OK, 1, ""},
        {"s + t[h == 1 && q == 70 && kv <= 20 ? -1 : 3]", ERR_OK, 1, ""},
    };
    dev *d = attn_dev(3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_case c;
        flex_problem p = shape(2, 1, 100, 100, 8);
        attn_case_make(&c, &p, MASK_CAUSAL, 3);
        attn_score_floats(&c.score, "t", (int64_t[]){100}, 1, DT_F32, 1, 3);
        with_text(&c, cases[i].text);
        ran x = run_it(&c, d);
        assert_int_equal(x.plan, cases[i].plan);
        if (x.plan) says(x.text[0], cases[i].says);
        if (x.plan) says(x.text[0], "visible cell");
        assert_int_equal(x.left, cases[i].left);
        if (x.left) {
            attn_result want = attn_result_new(&c);
            flex_io io = attn_io(&c, &want);
            int left = 0;
            io.left = &left;
            assert_ok(flex_reference_forward(&c.p, &io));
            assert_true(left);
            assert_memory_equal(io.left_cell, x.cell, sizeof x.cell);
            assert_true(attn_far(x.r.o, want.o, c.nq * 8) < 1e-5);
            attn_result_free(&want);
        }
        attn_result_free(&x.r);
        attn_case_free(&c);
    }
    dev_close(d);
}

static void problems_are_refused_with_sentences(void **state) {
    (void)state;
    dev *d = attn_dev(1);
    arena *a;
    flex_plan *plan;
    attn_case c;
    flex_problem p = shape(2, 1, 20, 20, 8), q;
    assert_ok(arena_create(&a, "plan", 0));
    attn_case_make(&c, &p, MASK_CAUSAL, 3);
    attn_score_ints(&c.score, "id", (int64_t[]){20}, 1, 3, 3);
    attn_score_floats(&c.score, "t", (int64_t[]){20}, 1, DT_F32, 1, 3);
    with_text(&c, "s + t[id[q]]");
    q = c.p, q.score = c.mask.e;
    assert_says(flex_plan_create(&plan, d, &q, a), ERR_USAGE, "mask", "scores");
    q = c.p, q.score_env = NULL;
    assert_says(flex_plan_create(&plan, d, &q, a), ERR_USAGE, "values of its captures");
    q = c.p, q.score = NULL;
    assert_says(flex_plan_create(&plan, d, &q, a), ERR_USAGE, "without a score");
    q = c.p, q.score_grads = 1;
    assert_says(flex_plan_create(&plan, d, &q, a), ERR_USAGE, "`id`", "not a float");
    q = c.p, q.score_grads = 4;
    assert_says(flex_plan_create(&plan, d, &q, a), ERR_USAGE, "2 of them");
    c.score.value[1].type = DT_I32;
    assert_says(flex_plan_create(&plan, d, &c.p, a), ERR_SHAPE, "`t`", "floats", "I32");
    c.score.value[1].type = DT_F32;
    c.score.value[1].dim[0] = -1;
    assert_says(flex_plan_create(&plan, d, &c.p, a), ERR_SHAPE, "`t`", "-1");
    c.score.value[1].dim[0] = 20;
    const float sinks[2] = {1.0f, NAN};
    c.p.sinks = sinks;
    ran x = run_it(&c, d);
    assert_int_equal(x.forward, ERR_NUMERIC);
    says(x.text[1], "sink of head 1");
    attn_result r = attn_result_new(&c);
    flex_io io = attn_io(&c, &r);
    c.p.sinks = NULL;
    assert_ok(flex_plan_create(&plan, d, &c.p, a));
    io.workspace = attn_workspace(plan, d);
    io.d_capture[1] = NULL;
    assert_ok(flex_forward(plan, d, &io));
    assert_says(flex_backward(plan, d, &io), ERR_USAGE, "captured value's gradient", "no data");
    free(io.workspace);
    attn_result_free(&r), attn_result_free(&x.r);
    attn_case_free(&c);
    arena_destroy(a);
    dev_close(d);
}

static void a_plan_explains_its_score(void **state) {
    (void)state;
    dev *d = attn_dev(1);
    arena *a;
    flex_plan *plan;
    attn_case c;
    str s = {0};
    flex_problem p = shape(2, 1, 200, 200, 8);
    assert_ok(arena_create(&a, "plan", 0));
    attn_case_make(&c, &p, MASK_CAUSAL, 3);
    attn_case_score(&c, SCORE_RELATIVE, 1, 3);
    assert_ok(flex_plan_create(&plan, d, &c.p, a));
    assert_ok(flex_plan_explain(plan, &s));
    says(s.s, "score: "), says(s.s, "gradient of `rel`, 82 elements"), says(s.s, "sinks:");
    str_free(&s);
    attn_case_free(&c);
    arena_destroy(a);
    dev_close(d);
}

/* A square of twice the side takes about twice the workspace, and runs allocate nothing. */
static void memory_follows_tiles(void **state) {
    (void)state;
    dev *d = attn_dev(2);
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        attn_case c;
        arena *a;
        flex_plan *plan;
        arena_stats before, after;
        flex_problem p = shape(2, 1, 512 << i, 512 << i, 16);
        assert_ok(arena_create(&a, "plan", 0));
        attn_case_make(&c, &p, MASK_CAUSAL, 3);
        attn_case_score(&c, SCORE_TWICE, 1, 3);
        assert_ok(flex_plan_create(&plan, d, &c.p, a));
        bytes[i] = flex_backward_workspace(plan, 2);
        attn_result r = attn_result_new(&c);
        flex_io io = attn_io(&c, &r);
        io.workspace = attn_workspace(plan, d);
        size_t held = dev_bytes(d);
        arena_get_stats(a, &before);
        assert_ok(flex_forward(plan, d, &io));
        assert_ok(flex_backward(plan, d, &io));
        arena_get_stats(a, &after);
        assert_true(before.allocations == after.allocations && dev_bytes(d) == held);
        free(io.workspace);
        attn_result_free(&r);
        attn_case_free(&c);
        arena_destroy(a);
    }
    assert_true(bytes[1] < 3 * bytes[0]);
    dev_close(d);
}

/* ---- 16 threads that parse, plan and run at once ---- */

typedef struct runner {
    attn_case *c;
    attn_result r;
    err failed;
} runner;

static err parse_and_run(runner *x) {
    static const char *const text =
        "let d = q - kv; slope[h] * tanh(s) + (d >= 0 ? t[d] : t[-d]) * 0.5";
    const dev_config cfg = {.threads = 1, .blas = "none"};
    const attn_score *s = &x->c->score;
    dev *d = NULL;
    expr *mask = NULL, *score = NULL;
    arena *a = NULL;
    flex_plan *plan;
    flex_io io = attn_io(x->c, &x->r);
    flex_problem p = x->c->p;
    err e;
    TRY_GOTO(dev_open_cpu(&d, &cfg), done);
    TRY_GOTO(arena_create(&a, "thread", 0), done);
    TRY_GOTO(expr_compile(&mask, EXPR_MASK, "kv <= q + 3 && q % 5 != 2", NULL, 0), done);
    TRY_GOTO(expr_compile(&score, EXPR_SCORE, text, s->decl, s->n), done);
    const expr_env none = {0};
    p.mask = mask, p.env = &none, p.score = score;
    TRY_GOTO(flex_plan_create(&plan, d, &p, a), done);
    io.workspace = attn_workspace(plan, d);
    e = flex_forward(plan, d, &io);
    if (!e) e = flex_backward(plan, d, &io);
    free(io.workspace);
done:
    arena_destroy(a);
    expr_free(mask), expr_free(score);
    dev_close(d);
    return e;
}

static void *thread_main(void *ctx) {
    runner *x = ctx;
    x->failed = parse_and_run(x);
    return NULL;
}

static void sixteen_threads_parse_plan_and_run_at_once(void **state) {
    (void)state;
    enum { N = 16, L = 70, S = 90, D = 16 };
    uint64_t seed = numbers_seed();
    attn_case c;
    runner x[N];
    pthread_t thread[N];
    flex_problem p = shape(4, 2, L, S, D);
    attn_case_make(&c, &p, MASK_NONE, seed);
    attn_score_floats(&c.score, "slope", (int64_t[]){4}, 1, DT_F32, 1, seed);
    attn_score_floats(&c.score, "t", (int64_t[]){S}, 1, DT_F32, 1, seed);
    c.score.n_learned = 4 + S, c.score.env.values = c.score.value;
    c.p.score_env = &c.score.env, c.p.score_grads = c.score.wanted;
    c.sinks = numbers_new(4, seed, 6, 1.0f), c.p.sinks = c.sinks;
    for (int i = 0; i < N; i++) x[i] = (runner){&c, attn_result_new(&c), ERR_OK};
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, thread_main, &x[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++) {
        const attn_result *a = &x[0].r, *b = &x[i].r;
        assert_int_equal(x[i].failed, ERR_OK);
        assert_memory_equal(a->o, b->o, (size_t)(c.nq * D) * 4);
        assert_memory_equal(a->dq, b->dq, (size_t)(c.nq * D) * 4);
        assert_memory_equal(a->dk, b->dk, (size_t)(c.nk * D) * 4);
        assert_memory_equal(a->learned, b->learned, (size_t)c.score.n_learned * 4);
        assert_memory_equal(a->d_sinks, b->d_sinks, 4 * 4);
    }
    for (int i = 0; i < N; i++) attn_result_free(&x[i].r);
    attn_case_free(&c);
}

/* ---- the definition against finite differences ---- */

enum { Q, K, V, GO, GL, O, LSE, DQ, DK, DV, O2, LSE2, PARTS };
typedef struct doubles {
    double *x[PARTS];
    int64_t n[PARTS];
} doubles;

static double loss(const flex_problem *p, const doubles *y) {
    flexref_data f = {.q = y->x[Q], .k = y->x[K], .v = y->x[V], .o = y->x[O2], .lse = y->x[LSE2]};
    double sum = 0;
    assert_ok(flexref_forward(p, &f));
    for (int64_t i = 0; i < y->n[GO]; i++) sum += f.o[i] * y->x[GO][i];
    for (int64_t i = 0; i < y->n[GL]; i++)
        sum += f.lse[i] == -INFINITY ? 0 : f.lse[i] * y->x[GL][i];
    return sum;
}

static void compare(const char *what, int64_t at, double got, double want, double bound) {
    if (!(fabs(got - want) < bound * (1 + fabs(want))))
        printf("%s [%lld]: %g, differences say %g\n", what, (long long)at, got, want);
    assert_true(fabs(got - want) < bound * (1 + fabs(want)));
}

static void compare_tensors(const flex_problem *p, doubles *y, uint64_t seed) {
    for (int t = 0; t < 12; t++) {
        int which = t % 3;
        int64_t at = numbers_below(seed, 80, (uint64_t)t, y->n[which]);
        double keep = y->x[which][at], h = 1e-5, hi, lo;
        y->x[which][at] = keep + h, hi = loss(p, y);
        y->x[which][at] = keep - h, lo = loss(p, y);
        y->x[which][at] = keep;
        compare("q, k or v", at, y->x[DQ + which][at], (hi - lo) / (2 * h), 1e-6);
    }
}

/* fp32 values are moved by steps that they hold exactly, or nearly; the two quotients together leave an error of the
 * fourth order, since a slope that multiplies distances has large third derivatives. */
static void compare_float(const flex_problem *p, const doubles *y, const char *what, int64_t at,
                          float *x, double got) {
    const float keep = *x;
    double quotient[2];
    for (int i = 0; i < 2; i++) {
        float above = keep + ldexpf(1, i - 10), below = keep - ldexpf(1, i - 10);
        *x = above;
        double hi = loss(p, y);
        *x = below;
        double lo = loss(p, y);
        quotient[i] = (hi - lo) / ((double)above - (double)below);
    }
    *x = keep;
    compare(what, at, got, (4 * quotient[0] - quotient[1]) / 3, 1e-4);
}

static void compare_learned(attn_case *c, const flexref_data *f, const doubles *y, uint64_t seed) {
    attn_score *s = &c->score;
    for (int k = 0; k < s->n; k++) {
        int64_t at = s->elements[k] ? numbers_below(seed, 81, (uint64_t)k, s->elements[k]) : 0;
        expr_value *v = &s->value[k];
        if (s->elements[k] == 0) continue;
        if (s->decl[k].ndim == 0)
            compare_float(&c->p, y, s->decl[k].name, 0, &v->scalar.f, f->d_capture[k][0]);
        else if (v->type == DT_F32)
            compare_float(&c->p, y, s->decl[k].name, at, &((float *)(uintptr_t)v->data)[at],
                          f->d_capture[k][at]);
    }
    for (int h = 0; c->sinks && h < c->p.q_heads; h++)
        compare_float(&c->p, y, "sink", h, &c->sinks[h], f->d_sinks[h]);
}

static void the_definition_is_finite_differences(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    static const int masks[] = {MASK_NONE, MASK_CAUSAL, MASK_GAPS, MASK_BITS};
    for (int kind = SCORE_NONE; kind < SCORE_KINDS; kind++) {
        attn_case c;
        flex_problem p = shape(4, 2, 7, 9, 8);
        p.batch = 2, p.v_dim = 16;
        attn_case_make(&c, &p, masks[kind % 4], seed);
        attn_case_score(&c, kind, kind % 2, seed + (uint64_t)kind);
        int64_t nq = c.nq, nk = c.nk;
        doubles y = {.n = {nq * 8, nk * 8, nk * 16, nq * 16, nq, nq * 16, nq, nq * 8, nk * 8,
                           nk * 16, nq * 16, nq}};
        for (int i = 0; i < PARTS; i++) {
            y.x[i] = calloc((size_t)y.n[i] + 1, sizeof(double));
            for (int64_t j = 0; i <= GL && j < y.n[i]; j++)
                y.x[i][j] = rng_normal(seed, RNG_TEST, (uint64_t)(kind * 16 + i), (uint64_t)j);
        }
        double sinks[4], *learned = calloc((size_t)c.score.n_learned + 1, sizeof *learned);
        flexref_data f = {.q = y.x[Q],
                          .k = y.x[K],
                          .v = y.x[V],
                          .o = y.x[O],
                          .lse = y.x[LSE],
                          .d_o = y.x[GO],
                          .d_lse = y.x[GL],
                          .dq = y.x[DQ],
                          .dk = y.x[DK],
                          .dv = y.x[DV],
                          .d_sinks = sinks};
        double *at = learned;
        for (int k = 0; k < c.score.n; at += c.score.elements[k++]) f.d_capture[k] = at;
        assert_ok(flexref_forward(&c.p, &f));
        assert_ok(flexref_backward(&c.p, &f));
        if (kind != SCORE_CUT && kind != SCORE_CLAMPED) { /* steps and kinks */
            compare_tensors(&c.p, &y, seed + (uint64_t)kind);
            compare_learned(&c, &f, &y, seed + (uint64_t)kind);
        }
        for (int i = 0; i < PARTS; i++) free(y.x[i]);
        free(learned);
        attn_case_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_and_infinity_are_named_with_their_first_cell),
        cmocka_unit_test(minus_infinity_hides_and_steep_slopes_are_named),
        cmocka_unit_test(loads_that_leave_are_proven_or_flagged),
        cmocka_unit_test(problems_are_refused_with_sentences),
        cmocka_unit_test(a_plan_explains_its_score),
        cmocka_unit_test(memory_follows_tiles),
        cmocka_unit_test(sixteen_threads_parse_plan_and_run_at_once),
        cmocka_unit_test(the_definition_is_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
