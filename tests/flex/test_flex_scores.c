/* Attention with scores and sinks, by tiles, against the definition in double: masks x scores x odd shapes.
 *
 * Every output and gradient may be twice as far from the definition as a dense fp32 implementation is, plus 1e-5, and plus 1e-6
 * of the terms of what is a sum of differences.
 * Cases are drawn anew in each run; a failure prints mask, score, shape and seed. Further: equal bits for any number of
 * threads, constants that change nothing, faults named with their first cell, memory that follows tiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_dense.h"

static const int64_t heads[][2] = {{1, 1}, {3, 1}, {3, 3}, {8, 8}, {8, 2}, {7, 1}, {8, 1}, {9, 3}};
static const int64_t dims[] = {8, 16, 24, 40, 64, 72, 128, 136, 256};
static const int64_t edges[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};
static const int32_t tiles[] = {0, 0, 16, 24, 64, 128};

static flex_problem draw(uint64_t seed, int i) {
    uint64_t s = seed + (uint64_t)i * 1000;
    const int64_t *h = heads[numbers_below(s, 10, 0, 8)];
    int large = i % 16 == 0; /* the definition is slow: long ones have few heads and small dims */
    int64_t longest = large ? 301 : 64;
    flex_problem p = {.batch = 1 + numbers_below(s, 11, 0, 2),
                      .q_heads = h[0],
                      .kv_heads = h[1],
                      .q_len = numbers_below(s, 12, 0, longest),
                      .kv_len = numbers_below(s, 13, 0, longest),
                      .dim = dims[numbers_below(s, 14, 0, large ? 3 : 9)],
                      .v_dim = dims[numbers_below(s, 15, 0, large ? 3 : 9)],
                      .type = numbers_below(s, 16, 0, 2) ? DT_BF16 : DT_F32,
                      .scale = numbers_below(s, 17, 0, 3) ? 0.0f : 0.3f,
                      .zero_scale = numbers_below(s, 20, 0, 6) == 0,
                      .tile_q = tiles[numbers_below(s, 18, 0, 6)],
                      .tile_kv = tiles[numbers_below(s, 19, 0, 6)]};
    if (large) p.batch = 1, p.q_heads = p.kv_heads = 1 + numbers_below(s, 21, 0, 2);
    if (large && i % 32) {
        p.q_len = edges[numbers_below(s, 22, 0, 15)];
        p.kv_len = edges[numbers_below(s, 23, 0, 15)];
    }
    return p;
}

static void check_within(const attn_case *c, const char *what, const float *got, const float *dense,
                         const float *want, int64_t n, double bound) {
    double far = attn_far(got, want, n), most = 2 * attn_far(dense, want, n) + bound;
    if (far > most)
        printf(
            "%s of mask %s, score %s%s, B %lld H %lld/%lld L %lld S %lld D %lld Dv %lld %s tiles "
            "%d x %d: %g, more than %g\n",
            what, attn_mask_names[c->mask.kind], attn_score_names[c->score.kind],
            c->sinks ? " with sinks" : "", (long long)c->p.batch, (long long)c->p.q_heads,
            (long long)c->p.kv_heads, (long long)c->p.q_len, (long long)c->p.kv_len,
            (long long)c->p.dim, (long long)c->p.v_dim, dtype_name(c->p.type), c->p.tile_q,
            c->p.tile_kv, far, most);
    assert_true(far <= most);
}

static void check(const attn_case *c, const char *what, const float *got, const float *dense,
                  const float *want, int64_t n) {
    check_within(c, what, got, dense, want, n, 1e-5);
}
/* A sum of differences may cancel to much less than its terms, and dense then be right by luck: terms[n] measures it too. */
static void check_sum(const attn_case *c, const char *what, const float *got, const float *dense,
                      const float *terms, const float *want, int64_t n) {
    check_within(c, what, got, dense, want, n, 1e-5 + 1e-6 * attn_dense_terms(terms, want, n));
}

static void scores_equal_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int i = 0; i < SCORE_KINDS * MASK_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, i);
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        attn_case_score(&c, i % SCORE_KINDS, i % 3 == 0, seed + (uint64_t)i);
        attn_result got = attn_run(&c, d), want = attn_reference(&c), near = attn_dense_run(&c);
        check(&c, "o", got.o, near.o, want.o, c.nq * c.p.v_dim);
        check(&c, "lse", got.lse, near.lse, want.lse, c.nq);
        check_sum(&c, "dq", got.dq, near.dq, near.dq_terms, want.dq, c.nq * c.p.dim);
        check_sum(&c, "dk", got.dk, near.dk, near.dk_terms, want.dk, c.nk * c.p.dim);
        check(&c, "dv", got.dv, near.dv, want.dv, c.nk * c.p.v_dim);
        for (int64_t k = 0, at = 0; k < c.score.n; at += c.score.elements[k++])
            check_sum(&c, c.score.decl[k].name, got.learned + at, near.learned + at,
                      near.learned_terms + at, want.learned + at, c.score.elements[k]);
        if (c.sinks)
            check_sum(&c, "sinks", got.d_sinks, near.d_sinks, near.sinks_terms, want.d_sinks,
                      c.p.q_heads);
        attn_result_free(&got), attn_result_free(&want), attn_result_free(&near);
        attn_case_free(&c);
    }
    dev_close(d);
}

static int same_bits(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof(float));
}

static int same(const attn_case *c, const attn_result *a, const attn_result *b) {
    return same_bits(a->o, b->o, c->nq * c->p.v_dim) && same_bits(a->lse, b->lse, c->nq) &&
           same_bits(a->dq, b->dq, c->nq * c->p.dim) && same_bits(a->dk, b->dk, c->nk * c->p.dim) &&
           same_bits(a->dv, b->dv, c->nk * c->p.v_dim) &&
           same_bits(a->learned, b->learned, c->score.n_learned) &&
           (!c->sinks || same_bits(a->d_sinks, b->d_sinks, c->p.q_heads));
}

static void threads_change_no_bit(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d[3] = {attn_dev(1), attn_dev(2), attn_dev(3)};
    for (int i = 0; i < 2 * SCORE_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, 3 * i + 1);
        attn_case_make(&c, &p, (i + 1) % MASK_KINDS, seed + (uint64_t)i);
        attn_case_score(&c, i % SCORE_KINDS, 1, seed + (uint64_t)i);
        attn_result one = attn_run(&c, d[0]), two = attn_run(&c, d[1]), three = attn_run(&c, d[2]);
        assert_true(same(&c, &one, &two) && same(&c, &one, &three));
        attn_result_free(&one), attn_result_free(&two), attn_result_free(&three);
        attn_case_free(&c);
    }
    for (int i = 0; i < 3; i++) dev_close(d[i]);
}

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

/* Arrays that are too large for a copy per slot: added in place by h and q, or in few slots. */
static void large_arrays_are_summed_in_any_way(void **state) {
    (void)state;
    enum { L = 520, S = 521, MANY = 530000 };
    uint64_t seed = numbers_seed();
    dev *d[3] = {attn_dev(1), attn_dev(2), attn_dev(3)};
    static const char *const texts[] = {"s + bias[h, q, kv]",
                                        "s + far[(q * 811 + kv * 7919) % 530000]",
                                        "s * (1.0 + 0.1 * bias[h, q, kv]) + far[q * 1000 + kv]"};
    for (int i = 0; i < 3; i++) {
        attn_case c;
        flex_problem p = shape(2, 1, L, S, 8);
        attn_case_make(&c, &p, MASK_GAPS, seed);
        attn_score *s = &c.score;
        if (i != 1) attn_score_floats(s, "bias", (int64_t[]){2, L, S}, 3, DT_F32, 1, seed);
        if (i != 0) attn_score_floats(s, "far", (int64_t[]){MANY}, 1, DT_F32, 1, seed);
        s->env.values = s->value;
        for (int k = 0; k < s->n; k++) s->n_learned += s->elements[k];
        assert_ok(expr_compile(&s->e, EXPR_SCORE, texts[i], s->decl, s->n));
        c.p.score = s->e, c.p.score_env = &s->env, c.p.score_grads = s->wanted;
        attn_result want = attn_reference(&c), near = attn_dense_run(&c);
        attn_result one = attn_run(&c, d[0]), two = attn_run(&c, d[1]), three = attn_run(&c, d[2]);
        check_sum(&c, "large", one.learned, near.learned, near.learned_terms, want.learned,
                  s->n_learned);
        check_sum(&c, "dq", one.dq, near.dq, near.dq_terms, want.dq, c.nq * 8);
        assert_true(same(&c, &one, &two) && same(&c, &one, &three));
        attn_result_free(&one), attn_result_free(&two), attn_result_free(&three);
        attn_result_free(&want), attn_result_free(&near);
        attn_case_free(&c);
    }
    for (int i = 0; i < 3; i++) dev_close(d[i]);
}

/* NaN in keys, values and captured elements that no visible cell reaches. */
static void hidden_nan_changes_no_bit(void **state) {
    (void)state;
    enum { L = 90, S = 130, D = 24 };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    static const int kinds[] = {SCORE_BY_Q_AND_KV, SCORE_DENSE,   SCORE_TWICE,
                                SCORE_SOFTCAP,     SCORE_GUARDED, SCORE_LOG};
    for (int i = 0; i < 12; i++) {
        attn_case c;
        flex_problem p = shape(3, 1, L, S, D);
        attn_case_make(&c, &p, MASK_CAUSAL, seed + (uint64_t)i);
        attn_case_score(&c, kinds[i % 6], i % 2, seed + (uint64_t)i);
        attn_result plain = attn_run(&c, d);
        for (int64_t j = L * D; j < S * D; j++) {
            ((float *)c.k)[j] = j % 2 ? NAN : INFINITY;
            ((float *)c.v)[j] = j % 2 ? -INFINITY : NAN;
        }
        if (c.score.kind == SCORE_BY_Q_AND_KV)
            for (int j = L; j < S; j++) ((double *)c.score.array[1])[j] = NAN;
        if (c.score.kind == SCORE_TWICE)
            for (int j = L; j < S; j++) ((float *)c.score.array[0])[j] = NAN;
        if (c.score.kind == SCORE_DENSE)
            for (int64_t j = 0; j < 3 * L * S; j++)
                if (j % S > j / S % L) ((float *)c.score.array[0])[j] = NAN;
        attn_result r = attn_run(&c, d);
        assert_true(same(&c, &plain, &r));
        for (int64_t j = L * D; j < S * D; j++) assert_true(r.dk[j] == 0.0f && r.dv[j] == 0.0f);
        attn_result_free(&plain), attn_result_free(&r);
        attn_case_free(&c);
    }
    dev_close(d);
}

/* A constant added to every score moves the LSE by it and nothing else. */
static void constants_added_to_scores_cancel(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int kind = SCORE_SAME; kind < SCORE_CUT; kind++) {
        attn_case c;
        expr *more;
        char text[1000];
        flex_problem p = shape(4, 2, 70, 85, 16);
        attn_case_make(&c, &p, MASK_BITS, seed);
        attn_case_score(&c, kind, 0, seed);
        attn_result plain = attn_run(&c, d);
        const char *source = expr_source(c.score.e), *last = strrchr(source, ';');
        int lets = last ? (int)(last + 1 - source) : 0;
        snprintf(text, sizeof text, "%.*s 3.5 + (%s)", lets, source, source + lets);
        assert_ok(expr_compile(&more, EXPR_SCORE, text, c.score.decl, c.score.n));
        c.p.score = more;
        attn_result r = attn_run(&c, d);
        assert_true(attn_far(r.o, plain.o, c.nq * 16) < 1e-5);
        assert_true(attn_far(r.dq, plain.dq, c.nq * 16) < 1e-5);
        assert_true(attn_far(r.dk, plain.dk, c.nk * 16) < 1e-5);
        assert_true(attn_far(r.learned, plain.learned, c.score.n_learned) < 2e-5);
        for (int64_t i = 0; i < c.nq; i++)
            if (plain.lse[i] != -INFINITY)
                assert_true(fabsf(r.lse[i] - plain.lse[i] - 3.5f) < 1e-5f);
        attn_result_free(&plain), attn_result_free(&r);
        c.p.score = c.score.e;
        expr_free(more);
        attn_case_free(&c);
    }
    dev_close(d);
}

/* Keys in another order, with what is captured by key: the same rows, gradients in that order. */
static void permuted_keys_change_nothing(void **state) {
    (void)state;
    enum { L = 50, S = 77, D = 16 };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(2, 1, L, S, D);
    attn_case_make(&c, &p, MASK_NONE, seed);
    attn_case_score(&c, SCORE_BY_Q_AND_KV, 1, seed);
    attn_result plain = attn_run(&c, d);
    float k[S * D], v[S * D];
    double bias[S];
    int to[S];
    for (int j = 0; j < S; j++) to[j] = (j * 30 + 11) % S; /* 30 and 77 have no common divisor */
    memcpy(k, c.k, sizeof k), memcpy(v, c.v, sizeof v);
    memcpy(bias, c.score.array[1], sizeof bias);
    for (int j = 0; j < S; j++) {
        memcpy((float *)c.k + to[j] * D, k + j * D, D * sizeof *k);
        memcpy((float *)c.v + to[j] * D, v + j * D, D * sizeof *v);
        ((double *)c.score.array[1])[to[j]] = bias[j];
    }
    attn_result r = attn_run(&c, d);
    assert_true(attn_far(r.o, plain.o, c.nq * D) < 1e-5 && attn_far(r.lse, plain.lse, c.nq) < 1e-5);
    assert_true(attn_far(r.dq, plain.dq, c.nq * D) < 1e-5);
    assert_true(attn_far(r.learned, plain.learned, L) < 1e-5);
    for (int j = 0; j < S; j++) {
        assert_true(attn_far(r.dk + to[j] * D, plain.dk + j * D, D) < 1e-5);
        assert_true(attn_far(r.dv + to[j] * D, plain.dv + j * D, D) < 1e-5);
        assert_true(attn_far(r.learned + L + to[j], plain.learned + L + j, 1) < 1e-5);
    }
    attn_result_free(&plain), attn_result_free(&r);
    attn_case_free(&c);
    dev_close(d);
}

/* A sink is a key without a value: it scales rows by a sigmoid; -inf is none; an empty row has it alone. */
static void sinks_join_the_denominator(void **state) {
    (void)state;
    enum { D = 16 };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(4, 2, 60, 70, D);
    attn_case_make(&c, &p, MASK_GAPS, seed); /* q % 5 == 2 sees nothing */
    attn_result plain = attn_run(&c, d);
    float sink[4] = {0.5f, -3.0f, 40.0f, -INFINITY};
    c.p.sinks = sink;
    attn_result r = attn_run(&c, d);
    for (int64_t i = 0; i < c.nq; i++) {
        float s = sink[i / 60], lse = plain.lse[i];
        double weight = lse == -INFINITY ? 0 : 1 / (1 + exp((double)s - (double)lse));
        double both = lse == -INFINITY ? (double)s : (double)lse - log(weight);
        if (s == -INFINITY)
            assert_true(same_bits(&r.lse[i], &plain.lse[i], 1));
        else
            assert_true(fabs((double)r.lse[i] - both) < 1e-5 * (1 + fabs(both)));
        for (int e = 0; e < D; e++)
            assert_true(fabs((double)r.o[i * D + e] - weight * (double)plain.o[i * D + e]) < 1e-6);
    }
    assert_true(r.d_sinks[3] == 0.0f && r.d_sinks[0] != 0.0f);
    attn_result_free(&plain), attn_result_free(&r);
    attn_case_free(&c);
    dev_close(d);
}

static void nothing_to_see_gives_zero_gradients(void **state) {
    (void)state;
    dev *d = attn_dev(2);
    static const int64_t lengths[][2] = {{0, 5}, {5, 0}, {0, 0}, {5, 9}};
    for (int i = 0; i < 4; i++) {
        attn_case c;
        flex_problem p = shape(2, 1, lengths[i][0], lengths[i][1], 8);
        attn_case_make(&c, &p, MASK_HIDDEN, 5);
        attn_case_score(&c, SCORE_RELATIVE, 0, 5);
        attn_result r = attn_run(&c, d);
        for (int64_t k = 0; k < c.score.n_learned; k++) assert_true(r.learned[k] == 0.0f);
        for (int64_t k = 0; k < c.nk * 8; k++) assert_true(r.dk[k] == 0.0f);
        attn_result_free(&r);
        attn_case_free(&c);
    }
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_equal_definition),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(large_arrays_are_summed_in_any_way),
        cmocka_unit_test(hidden_nan_changes_no_bit),
        cmocka_unit_test(constants_added_to_scores_cancel),
        cmocka_unit_test(permuted_keys_change_nothing),
        cmocka_unit_test(sinks_join_the_denominator),
        cmocka_unit_test(nothing_to_see_gives_zero_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
