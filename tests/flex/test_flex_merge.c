/* Slices of a problem, each with a plan of its own, merged by their LSE: the whole again.
 *
 * Keys are cut into any number of parts, empty ones and ones of no length among them; queries into strips. Each slice sees the
 * mask through its offsets (expr_env's q0 and kv0), as users do who spread a long sequence over calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"

enum { DIM = 16, HEADS = 3, MOST = 9 };

typedef struct slice {
    int64_t q0, q1, k0, k1;
    float *o, *lse; /* [HEADS, q1 - q0, DIM], [HEADS, q1 - q0] */
} slice;

static void run_slice(const attn_case *c, dev *d, slice *s) {
    const flex_problem *p = &c->p;
    int64_t rows = s->q1 - s->q0, S = p->kv_len;
    expr_env env = c->mask.env;
    env.q0 += s->q0, env.kv0 += s->k0;
    flex_problem part = *p;
    part.q_len = rows, part.kv_len = s->k1 - s->k0, part.env = &env;
    s->o = numbers_poisoned(HEADS * rows * DIM);
    s->lse = numbers_poisoned(HEADS * rows);
    flex_io io = {.q = {DT_F32, (const float *)c->q + s->q0 * DIM, 0, p->q_len * DIM, DIM},
                  .k = {DT_F32, (const float *)c->k + s->k0 * DIM, 0, S * DIM, DIM},
                  .v = {DT_F32, (const float *)c->v + s->k0 * DIM, 0, S * DIM, DIM},
                  .o = {s->o, 0, rows * DIM, DIM},
                  .lse = s->lse};
    arena *a;
    flex_plan *plan;
    assert_ok(arena_create(&a, "slice", 0));
    assert_ok(flex_plan_create(&plan, d, &part, a));
    io.workspace = attn_workspace(plan, d);
    assert_ok(flex_forward(plan, d, &io));
    free(io.workspace);
    arena_destroy(a);
}

static int by_place(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The parts of one strip of queries against the rows of the whole. */
static void check_rows(const attn_case *c, const attn_result *whole, slice *part, int n) {
    int64_t L = c->p.q_len;
    for (int64_t row = 0; row < HEADS * (part->q1 - part->q0); row++) {
        int64_t h = row / (part->q1 - part->q0), q = part->q0 + row % (part->q1 - part->q0);
        const float *want = whole->o + (h * L + q) * DIM, want_lse = whole->lse[h * L + q];
        const float *o[MOST];
        float lse[MOST], got[2][DIM], got_lse[2];
        for (int order = 0; order < 2; order++) {
            for (int i = 0; i < n; i++) {
                slice *s = &part[order ? n - 1 - i : i];
                lse[i] = s->lse[row];
                o[i] = s->o + row * DIM;
                if (lse[i] == -INFINITY && order) /* what an empty part holds is never used */
                    numbers_poison(s->o + row * DIM, DIM);
            }
            numbers_poison(got[order], DIM);
            flex_merge(n, o, lse, DIM, got[order], &got_lse[order]);
            assert_true(attn_far(got[order], want, DIM) < 2e-6);
            assert_true(attn_far(&got_lse[order], &want_lse, 1) < 2e-6);
            for (int i = 0; i < DIM && want_lse == -INFINITY; i++)
                assert_true(got[order][i] == 0.0f && got_lse[order] == -INFINITY);
        }
        assert_true(attn_far(got[0], got[1], DIM) < 1e-6); /* whatever their order */
    }
}

static void slices_merge_to_the_whole(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int round = 0; round < 6 * MASK_KINDS; round++) {
        uint64_t s = seed + (uint64_t)round;
        attn_case c;

        flex_problem p = {.batch = 1,
                          .q_heads = HEADS,
                          .kv_heads = 1 + round % 2 * 2,
                          .q_len = numbers_below(s, 50, 0, 120),
                          .kv_len = numbers_below(s, 51, 0, 200),
                          .dim = DIM,
                          .v_dim = DIM,
                          .type = DT_F32};
        attn_case_make(&c, &p, round % MASK_KINDS, s);
        attn_result whole = attn_run(&c, d);
        int64_t cut[MOST + 1], strip[4];
        int n = 1 + (int)numbers_below(s, 52, 0, MOST);
        cut[0] = 0, cut[n] = c.p.kv_len, strip[0] = 0, strip[3] = c.p.q_len;
        for (int i = 1; i < n; i++) cut[i] = numbers_below(s, 53, (uint64_t)i, c.p.kv_len + 1);
        for (int i = 1; i < 3; i++) strip[i] = numbers_below(s, 54, (uint64_t)i, c.p.q_len + 1);
        qsort(cut, (size_t)n + 1, sizeof *cut, by_place);
        qsort(strip, 4, sizeof *strip, by_place);
        for (int t = 0; t < 3; t++) {
            slice part[MOST];
            for (int i = 0; i < n; i++) {
                part[i] = (slice){strip[t], strip[t + 1], cut[i], cut[i + 1], NULL, NULL};
                run_slice(&c, d, &part[i]);
            }
            check_rows(&c, &whole, part, n);
            for (int i = 0; i < n; i++) free(part[i].o), free(part[i].lse);
        }
        attn_result_free(&whole);
        attn_case_free(&c);
    }
    dev_close(d);
}

static void parts_that_see_nothing(void **state) {
    (void)state;
    const float junk[3] = {NAN, INFINITY, -7}, one[3] = {1, 2, 3}, other[3] = {3, 0, -1};
    const float *o[5] = {junk, one, junk, other, junk};
    const float lse[5] = {-INFINITY, 0.5f, -INFINITY, 0.5f, -INFINITY};
    const float none[3] = {-INFINITY, -INFINITY, -INFINITY}, far[2] = {1000.0f, -1000.0f};
    float out[3], sum;
    flex_merge(5, o, lse, 3, out, &sum);
    assert_true(out[0] == 2 && out[1] == 1 && out[2] == 1);
    assert_true(fabsf(sum - (0.5f + logf(2))) < 1e-6f);
    flex_merge(3, o, none, 3, out, &sum);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && sum == -INFINITY);
    flex_merge(0, NULL, NULL, 3, out, &sum);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && sum == -INFINITY);
    flex_merge(2, o + 1, far, 3, out, &sum); /* no overflow at sizes that fp32 cannot raise e to */
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 3 && sum == 1000.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_merge_to_the_whole),
                                       cmocka_unit_test(parts_that_see_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
