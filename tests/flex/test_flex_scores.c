/* Attention with scores and sinks, by tiles, against the definition in double: masks x scores x odd shapes.
 *
 * Every output and gradient may be twice as far from the definition as a dense fp32 implementation is, plus 1e-5.
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
    int large = i % 8 == 0; /* the definition is slow: long ones have few heads and small dims */
    int64_t longest = large ? 301 : 90;
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
    if (large && i % 16) {
        p.q_len = edges[numbers_below(s, 22, 0, 15)];
        p.kv_len = edges[numbers_below(s, 23, 0, 15)];
    }
    return p;
}

static void check(const attn_case *c, const char *what, const float *got, const float *dense,
                  const float *want, int64_t n) {
    double far = attn_far(got, want, n), most = 2 * attn_far(dense, want, n) + 1e-5;
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
        check(&c, "dq", got.dq, near.dq, want.dq, c.nq * c.p.dim);
        check(&c, "dk", got.dk, near.dk, want.dk, c.nk * c.p.dim);
        check(&c, "dv", got.dv, near.dv, want.dv, c.nk * c.p.v_dim);
        float *at[3] = {got.learned, near.learned, want.learned};
        for (int k = 0; k < c.score.n; k++) {
            check(&c, c.score.decl[k].name, at[0], at[1], at[2], c.score.elements[k]);
            for (int j = 0; j < 3; j++) at[j] += c.score.elements[k];
        }
        if (c.sinks) check(&c, "sinks", got.d_sinks, near.d_sinks, want.d_sinks, c.p.q_heads);
        attn_result_free(&got), attn_result_free(&want), attn_result_free(&near);
        attn_case_free(&c);
    }
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_equal_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
