/* The program graph: rewriting that keeps every bit, sharing, classes of dependence, derivatives as programs, and the
 * verifier.
 *
 * Rewriting is read from the printed program. Whether values stay equal is tested with random programs elsewhere
 * (test_expr_random.c, test_expr_score.c); here is what is and what is not rewritten. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "expr/expr_grad_private.h"
#include "support/says.h"

static const expr_decl decls[] = {{"n", EXPR_INT, 0},     {"x", EXPR_FLOAT, 0},
                                  {"t", EXPR_FLOAT, 1},   {"doc", EXPR_INT, 1},
                                  {"rel", EXPR_FLOAT, 2}, {"c", EXPR_BOOL, 0}};
enum { N_DECLS = 6 };

static expr *compile(expr_role role, const char *text) {
    expr *e;
    if (expr_compile(&e, role, text, decls, N_DECLS)) fail_msg("%s", err_text());
    return e;
}

static void becomes(expr_role role, const char *text, const char *want) {
    expr *e = compile(role, text);
    str s = {0};
    assert_ok(expr_print(e, &s));
    if (strcmp(s.s, want) != 0) fail_msg("`%s` becomes `%s`, not `%s`", text, s.s, want);
    str_free(&s);
    expr_free(e);
}

static void integers_are_rewritten_modulo_2_to_the_64(void **state) {
    (void)state;
    becomes(EXPR_MASK, "q + 2 - 5 < kv", "q - 3 < kv");
    becomes(EXPR_MASK, "(3 + q) + 4 < kv", "q + 7 < kv");
    becomes(EXPR_MASK, "q - 3 + 3 < kv * 1", "q < kv");
    becomes(EXPR_MASK, "q - q + 1 < kv", "1 < kv");
    becomes(EXPR_MASK, "-(-q) < abs(-kv)", "q < abs(kv)");
    becomes(EXPR_MASK, "q % 1 < kv // 1", "0 < kv");
    becomes(EXPR_MASK, "q * 0 < kv", "0 < kv");
    becomes(EXPR_MASK, "doc[q] * 0 < kv", "doc[q] * 0 < kv"); /* the load stays reached */
    becomes(EXPR_MASK, "q + 9223372036854775807 + 1 < kv", "q + (-9223372036854775807 - 1) < kv");
}

static void conditions_are_rewritten(void **state) {
    (void)state;
    becomes(EXPR_MASK, "!(q < kv)", "kv <= q");
    becomes(EXPR_MASK, "not (q == kv)", "q != kv");
    becomes(EXPR_MASK, "q == q", "true");
    becomes(EXPR_MASK, "doc[q] == doc[q]", "let t1 = doc[q];\nt1 == t1"); /* may leave its array */
    becomes(EXPR_MASK, "!(float(q) < x)", "!(float(q) < x)");             /* NaN */
    becomes(EXPR_MASK, "c ? true : false", "c");
    becomes(EXPR_MASK, "!c ? q < kv : q == kv", "c ? q == kv : q < kv");
    becomes(EXPR_MASK, "c ? q < kv : q < kv", "q < kv");
    becomes(EXPR_MASK, "false && doc[q] == 1 || q < kv", "q < kv");
    becomes(EXPR_MASK, "doc[q] == 1 && false", "doc[q] == 1 && false");
    becomes(EXPR_MASK, "c && false", "false");
}

/* Floats: only what changes no bit of any value. */
static void floats_keep_every_bit(void **state) {
    (void)state;
    becomes(EXPR_SCORE, "s * 1.0", "s");
    becomes(EXPR_SCORE, "s / 8.0", "s * 0.125");
    becomes(EXPR_SCORE, "s / 3.0", "s / 3.0");
    becomes(EXPR_SCORE, "s - 0.0", "s");
    becomes(EXPR_SCORE, "s + 0.0", "s + 0.0"); /* -0 + 0 is 0 */
    becomes(EXPR_SCORE, "s + -0.0", "s");
    becomes(EXPR_SCORE, "s * 0.0", "s * 0.0"); /* NaN, infinity, sign */
    becomes(EXPR_SCORE, "s - s", "s - s");
    becomes(EXPR_SCORE, "-(-s)", "s");
    becomes(EXPR_SCORE, "s * -1.0", "-s");
    becomes(EXPR_SCORE, "abs(-s)", "abs(s)");
    becomes(EXPR_SCORE, "(s + 1.0) + 2.0", "s + 1.0 + 2.0"); /* no new order of sums */
    becomes(EXPR_SCORE, "2.0 * 3.0 + s", "6.0 + s");
    becomes(EXPR_SCORE, "max(s, s)", "s");
    becomes(EXPR_SCORE, "exp(x) + exp(x) * s", "let t1 = exp(x);\nt1 + t1 * s");
}

static ir_class class_of(const char *text) {
    expr *e = compile(EXPR_SCORE, text);
    ir_class k = ir__class(&e->prog.node[e->prog.n - 1]);
    expr_free(e);
    return k;
}

static void classes_of_dependence(void **state) {
    (void)state;
    assert_int_equal(class_of("x * 2.0"), IR_FIXED);
    assert_int_equal(class_of("float(b + h * n)"), IR_FIXED);
    assert_int_equal(class_of("t[q] + rel[h, q % 3]"), IR_BY_Q);
    assert_int_equal(class_of("t[kv // 2] * x"), IR_BY_KV);
    assert_int_equal(class_of("float(q - kv)"), IR_DIAGONAL);
    assert_int_equal(class_of("rel[h, clamp(q - kv + 20, 0, 40)] * x"), IR_DIAGONAL);
    assert_int_equal(class_of("float((3 * q + n) - (kv * 2 + kv))"), IR_DIAGONAL);
    assert_int_equal(class_of("float(abs(kv - q) + (q - kv) * h)"), IR_DIAGONAL);
    assert_int_equal(class_of("float(2 * q - kv)"), IR_CELL);
    assert_int_equal(class_of("float(q + kv)"), IR_CELL);
    assert_int_equal(class_of("float(q - kv) + t[q]"), IR_CELL);
    assert_int_equal(class_of("s"), IR_CELL);
    assert_int_equal(class_of("s * t[q - kv]"), IR_CELL);
}

/* A derivative shares what it can with its score. */
static void derivatives_share_with_the_score(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int more;
    } cases[] = {
        {"s + t[kv]", 1},                /* the constant 1 */
        {"30.0 * tanh(s * 0.03125)", 5}, /* 1 - t * t, the 1, both factors */
        {"s * x", 0},
        {"exp(s)", 0},
    };
    arena *a;
    assert_ok(arena_create(&a, "ir", 0));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expr *e = compile(EXPR_SCORE, cases[i].text);
        expr_grad *g;
        int score, all;
        assert_ok(expr_grad_create(&g, e, 0, a));
        expr_grad_count(g, &score, &all);
        if (all - score != cases[i].more)
            fail_msg("`%s` needs %d operations more, not %d", cases[i].text, all - score,
                     cases[i].more);
        expr_free(e);
    }
    arena_destroy(a);
}

static void sites_and_owners(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int sites;
        unsigned owners; /* of rel, or of t */
    } cases[] = {
        {"s + rel[h, q]", 1, 2 | 4},
        {"s + rel[h, q] + rel[h, q]", 1, 2 | 4}, /* equal loads are one site */
        {"s + rel[h, q] + rel[h, kv]", 2, 2},
        {"s + rel[h, q] * rel[b, q + 1]", 2, 0},
        {"s + rel[b, n - kv]", 1, 1 | 8},
        {"s + rel[h + q, 2 * q]", 1, 0},
    };
    arena *a;
    assert_ok(arena_create(&a, "ir", 0));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expr *e = compile(EXPR_SCORE, cases[i].text);
        expr_grad *g;
        assert_ok(expr_grad_create(&g, e, 1u << 4, a));
        assert_int_equal(expr_grad_sites(g), cases[i].sites);
        if (expr_grad_owners(g, 4) != cases[i].owners)
            fail_msg("`%s`: owners %u, not %u", cases[i].text, expr_grad_owners(g, 4),
                     cases[i].owners);
        expr_free(e);
    }
    arena_destroy(a);
}

/* Every broken invariant is found. */
static void malformed_programs_are_found(void **state) {
    (void)state;
    expr *e = compile(EXPR_SCORE, "s + rel[h, clamp(q - kv + 20, 0, 40)] * x");
    ir_node node[64];
    const ir_prog p = {node, e->prog.n};
    assert_true(p.n < 64);
    for (int way = 0; way < 6; way++) {
        memcpy(node, e->prog.node, (size_t)p.n * sizeof *node);
        assert_ok(ir__verify(&p, e->decls, e->n_decls));
        ir_node *root = &node[p.n - 1];
        switch (way) {
        case 0: root->arg[1] = (int16_t)(p.n - 1); break; /* uses itself */
        case 1:
            root->arg[1] = root->arg[0] = 0;
            break; /* an operand of another type, or no float */
        case 2: root->type = EXPR_INT; break;
        case 3: root->uses = 0; break;
        case 4: root->n_args = 1; break;
        default: root->op = IR_OP_COUNT; break;
        }
        if (way == 1 && node[0].type == EXPR_FLOAT) root->uses ^= 1;
        assert_says(ir__verify(&p, e->decls, e->n_decls), ERR_INTERNAL, "malformed");
    }
    memcpy(node, e->prog.node, (size_t)p.n * sizeof *node);
    for (int i = 0; i < p.n; i++)
        if (node[i].op == IR_LOAD) node[i].slot = 2; /* of one dimension */
    assert_says(ir__verify(&p, e->decls, e->n_decls), ERR_INTERNAL, "malformed");
    expr_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_rewritten_modulo_2_to_the_64),
        cmocka_unit_test(conditions_are_rewritten),
        cmocka_unit_test(floats_keep_every_bit),
        cmocka_unit_test(classes_of_dependence),
        cmocka_unit_test(derivatives_share_with_the_score),
        cmocka_unit_test(sites_and_owners),
        cmocka_unit_test(malformed_programs_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
