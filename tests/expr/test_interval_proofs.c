/* Proofs over a domain: what each must say for known masks.
 *
 * The arrays have 100 elements; domains go up to or beyond them. Random masks meet the same proofs in test_expr_random. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "expr/interval_proofs.h"
#include "support/says.h"

enum { N = 100 };
static int32_t doc[N];
static int64_t far[N];
static const expr_decl decls[] = {
    {"doc", EXPR_INT, 1}, {"far", EXPR_INT, 1}, {"grid", EXPR_INT, 2}, {"n", EXPR_INT, 0}};
static const expr_value values[] = {{.type = DT_I32, .dim = {N}, .data = doc},
                                    {.type = DT_I64, .dim = {N}, .data = far},
                                    {.type = DT_I32, .dim = {10, 10}, .data = doc},
                                    {.scalar.i = N}};
static const expr_env env = {values, 0, 0};

typedef struct proof_case {
    const char *text;
    int64_t q_len, kv_len;
    int loads, inside, left, fits_32, by_batch, by_head;
} proof_case;

/* The expression is the caller's: names of arrays belong to it. */
static expr *prove(const char *text, int64_t q_len, int64_t kv_len, arena *a, interval_proofs *p) {
    const interval_box d = {0, 1, 0, 7, 0, q_len - 1, 0, kv_len - 1};
    interval_tables *t;
    expr *e;
    assert_ok(expr_compile(&e, EXPR_MASK, text, decls, sizeof decls / sizeof *decls));
    assert_ok(interval_tables_create(&t, e, &env, a));
    assert_ok(interval_prove(p, t, &d, a));
    return e;
}

static void known_masks(void **state) {
    (void)state;
    static const proof_case cases[] = {
        {"q >= kv", 1000, 1000, 0, 0, 0, 1, 0, 0},
        {"doc[q] == doc[kv]", N, N, 2, 2, 0, 1, 0, 0},
        {"doc[q] == doc[kv]", N, N + 1, 2, 1, 1, 1, 0, 0},
        {"kv < n && doc[kv] == 3", N, 5000, 1, 1, 0, 1, 0, 0},
        {"kv != n && doc[kv] == 3", N, N + 1, 1, 1, 0, 1, 0, 0},
        {"q != 0 && doc[q - 1] == doc[q]", N, N, 2, 2, 0, 1, 0, 0},
        {"abs(q - kv) < 10 && doc[q - kv + 9] == 0", 500, 500, 1, 1, 0, 1, 0, 0},
        {"min(q, kv) >= 5 && doc[q - 5] == doc[kv - 5]", N, N, 2, 2, 0, 1, 0, 0},
        {"max(q, kv) < n && doc[q] == doc[kv]", 500, 500, 2, 2, 0, 1, 0, 0},
        {"!(q < 5 && kv < 900) && doc[q - 5] == 0", N, 800, 1, 1, 0, 1, 0, 0},
        {"doc[kv] + n < 7", N, 50, 1, 1, 0, 1, 0, 0},
        {"doc[kv + 1] == 0", N, N, 1, 0, 1, 1, 0, 0},
        {"doc[kv + n] == 0", N, N, 1, 0, 1, 1, 0, 0},
        {"q > 3 && doc[doc[kv] - 9] == 0", N, N, 2, 1, 1, 1, 0, 0},
        {"far[q] == kv", N, N, 1, 1, 0, 0, 0, 0},
        {"q * kv * n < 5", 100000, 100000, 0, 0, 0, 0, 0, 0},
        {"q * kv < 5", 46340, 46340, 0, 0, 0, 1, 0, 0},
        {"q * kv < 5", 46342, 46342, 0, 0, 0, 0, 0, 0},
        {"h < 4 && q >= kv", N, N, 0, 0, 0, 1, 0, 1},
        {"h < 8 && q >= kv", N, N, 0, 0, 0, 1, 0, 0},
        {"b < 2 || q >= kv", N, N, 0, 0, 0, 1, 0, 0},
        {"kv < grid[b, h] ", N, N, 1, 1, 0, 1, 1, 1},
        {"(h // 8 + 1) * q >= kv", N, N, 0, 0, 0, 1, 0, 0},
        {"(h < 9 ? q : b) >= kv", N, N, 0, 0, 0, 1, 0, 0},
        /* always true, but where the load leaves changes with b, h */
        {"doc[kv - h] < n", N, N, 1, 0, 1, 1, 0, 1},
        {"doc[kv + 60 * b] < n", N, N, 1, 0, 0, 1, 1, 0},
        {"doc[kv + 1] < n", N, N, 1, 0, 1, 1, 0, 0},
        {"(h < 4 ? doc[kv + 1] : 5) < n", N, N, 1, 0, 1, 1, 0, 1},
    };
    arena *a;
    assert_ok(arena_create(&a, "proofs", 0));
    for (int i = 0; i < N; i++) doc[i] = i / 10, far[i] = (int64_t)i << 40;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const proof_case *c = &cases[i];
        interval_proofs p;
        expr *e = prove(c->text, c->q_len, c->kv_len, a, &p);
        if (p.n_loads != c->loads || p.inside != c->inside || p.left != c->left ||
            p.fits_32 != c->fits_32 || p.by_batch != c->by_batch || p.by_head != c->by_head)
            fail_msg("%s: %d loads, %d inside, %d outside, fits %d, by b %d, by h %d", c->text,
                     p.n_loads, p.inside, p.left, p.fits_32, p.by_batch, p.by_head);
        expr_free(e);
    }
    arena_destroy(a);
}

/* A load proven outside names array, index, extent and the box. */
static void the_box_that_proves_it(void **state) {
    (void)state;
    arena *a;
    interval_proofs p;
    char says[INTERVAL_SAYS];
    assert_ok(arena_create(&a, "proofs", 0));
    expr *e = prove("q < 7 && doc[kv - 8] == 0", 50, 50, a, &p);
    assert_int_equal(p.load[0].place, INTERVAL_OUTSIDE);
    assert_true(p.load[0].box.kv1 < 8 && p.load[0].box.q1 < 7);
    interval_proofs_say(&p, says);
    assert_non_null(strstr(says, "index 1 of 'doc' is -8.."));
    assert_non_null(strstr(says, "extent there is 100"));
    expr_free(e);
    e = prove("doc[kv] == 0", 50, 50, a, &p);
    interval_proofs_say(&p, says);
    assert_string_equal(says, "");
    assert_int_equal(p.load[0].lo[0], 0);
    assert_int_equal(p.load[0].hi[0], 49);
    expr_free(e);
    arena_destroy(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_masks),
                                       cmocka_unit_test(the_box_that_proves_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
