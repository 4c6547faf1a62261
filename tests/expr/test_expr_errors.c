/* Golden messages of the compiler: line, column, sentence with a hint, the text and its caret.
 * The whole message is compared, so a change of wording shows here and is made on purpose. What valid
 * text means is tested in test_expr_meaning.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "expr/expr.h"

static const expr_decl decls[] = {
    {"doc", EXPR_INT, 1},     {"bias", EXPR_FLOAT, 2}, {"ctx", EXPR_INT, 0},
    {"alpha", EXPR_FLOAT, 0}, {"keep", EXPR_BOOL, 1},
};
enum { N_DECLS = sizeof decls / sizeof *decls };

typedef struct golden {
    const char *text, *message;
} golden;

static void refused(expr_role role, const golden *g, size_t n) {
    for (size_t i = 0; i < n; i++) {
        expr *e = NULL;
        err_clear();
        assert_int_equal(expr_compile(&e, role, g[i].text, decls, N_DECLS), ERR_SYNTAX);
        assert_null(e);
        assert_string_equal(err_text(), g[i].message);
    }
}
#define REFUSED(role, ...)                                                                         \
    do {                                                                                           \
        static const golden list[] = {__VA_ARGS__};                                                \
        refused(role, list, sizeof list / sizeof *list);                                           \
    } while (0)

static void spelling(void **state) {
    (void)state;
    REFUSED(
        EXPR_MASK,
        {"q = kv", "mask, line 1, column 3: `=` names a value in a `let` line only; write `==` to "
                   "compare\n  q = kv\n    ^"},
        {"q >= kv & q < 3",
         "mask, line 1, column 9: write `&&` or `and`; there are no operations on "
         "bits\n  q >= kv & q < 3\n          ^"},
        {"q \xe2\x89\xa4 kv", "mask, line 1, column 3: write `<=`\n  q \xe2\x89\xa4 kv\n    ^"},
        {"q + \xe2\x82\xac < 3",
         "mask, line 1, column 5: `\xe2\x82\xac` is not part of the language\n  q + \xe2\x82\xac < 3\n"
         "      ^"},
        {"true \xc3\x97 3 = q",
         "mask, line 1, column 6: write `*`\n  true \xc3\x97 3 = q\n       ^"},
        {"q === kv", "mask, line 1, column 3: write `==`\n  q === kv\n    ^"},
        {"q => kv", "mask, line 1, column 3: write `>=`\n  q => kv\n    ^"},
        {"q =< kv", "mask, line 1, column 3: write `<=`\n  q =< kv\n    ^"},
        {"q !== kv", "mask, line 1, column 3: write `!=`\n  q !== kv\n    ^"},
        {"q <> kv", "mask, line 1, column 3: write `!=`\n  q <> kv\n    ^"},
        {"/* all */ true",
         "mask, line 1, column 1: a comment begins with `#` and ends with its line\n"
         "  /* all */ true\n  ^"},
        {"q << 2 < kv",
         "mask, line 1, column 3: there are no operations on bits; multiply by a power of two\n"
         "  q << 2 < kv\n    ^"},
        {"q ** 2 < kv",
         "mask, line 1, column 3: there is no power; write a product, or `exp2(y * log(x) "
         "/ log(2.0))`\n  q ** 2 < kv\n    ^"},
        {"3q < kv",
         "mask, line 1, column 2: a name cannot follow a number directly; put an operator "
         "such as `*` between them\n  3q < kv\n   ^"},
        {"99999999999999999999 < q",
         "mask, line 1, column 1: this integer does not fit in 64 bits; the largest is "
         "9223372036854775807\n  99999999999999999999 < q\n  ^"},
        {"1e99 < alpha", "mask, line 1, column 1: this number is too large for a 32-bit float\n"
                         "  1e99 < alpha\n  ^"},
        {"\x01",
         "mask, line 1, column 1: a control character (byte 1) is not part of the language\n"
         "  ?\n  ^"},
        {"\tq = 1", "mask, line 1, column 4: `=` names a value in a `let` line only; write `==` to "
                    "compare\n  \tq = 1\n  \t  ^"});
}

static void names(void **state) {
    (void)state;
    REFUSED(
        EXPR_MASK,
        {"dok[q] == 1", "mask, line 1, column 1: unknown name `dok`; did you mean `doc`?\n"
                        "  dok[q] == 1\n  ^"},
        {"sqr(alpha) < 2",
         "mask, line 1, column 1: unknown name `sqr`; did you mean `sqrt`?\n  sqr(alpha) < 2\n  ^"},
        {"q_idx >= kv",
         "mask, line 1, column 1: unknown name `q_idx`; the query's index is called `q`\n"
         "  q_idx >= kv\n  ^"},
        {"frobnicate < 2",
         "mask, line 1, column 1: unknown name `frobnicate`; captured values have to be given by "
         "name, and the indices are b, h, q and kv\n  frobnicate < 2\n  ^"},
        {"foo(q) < 2",
         "mask, line 1, column 1: unknown name `foo`; captured values have to be given by "
         "name, and the indices are b, h, q and kv\n  foo(q) < 2\n  ^"},
        {"KV < 2", "mask, line 1, column 1: unknown name `KV`; did you mean `kv`?\n  KV < 2\n  ^"},
        {"let Blk = q // 2;\nblk < 3",
         "mask, line 2, column 1: unknown name `blk`; did you mean `Blk`?\n"
         "  blk < 3\n  ^"},
        {"let q = 3; q < kv",
         "mask, line 1, column 5: `q` already has a meaning; choose another name\n"
         "  let q = 3; q < kv\n      ^"},
        {"let doc = 3; q < kv",
         "mask, line 1, column 5: `doc` already has a meaning; choose another "
         "name\n  let doc = 3; q < kv\n      ^"},
        {"s < 1.0",
         "mask, line 1, column 1: `s` is the score, which a mask cannot see; use b, h, q and "
         "kv\n  s < 1.0\n  ^"},
        {"q >= kv if q > 3 else q < 2",
         "mask, line 1, column 9: unknown name `if`; write `c ? x : y`\n"
         "  q >= kv if q > 3 else q < 2\n          ^"},
        {"True", "mask, line 1, column 1: unknown name `True`; write `true`\n  True\n  ^"});
    REFUSED(
        EXPR_SCORE,
        {"S * 2.0", "score, line 1, column 1: unknown name `S`; did you mean `s`?\n  S * 2.0\n  ^"},
        {"blip * 2.0",
         "score, line 1, column 1: unknown name `blip`; captured values have to be given by name, "
         "the scaled logit is s, and the indices are b, h, q and kv\n  blip * 2.0\n  ^"});
}

static void types(void **state) {
    (void)state;
    REFUSED(
        EXPR_MASK,
        {"q / 2 < kv",
         "mask, line 1, column 3: `/` divides floats and both sides are integers; write "
         "`//` to divide and floor, or `float(a) / b`\n  q / 2 < kv\n    ^"},
        {"alpha // 2 < 1.0",
         "mask, line 1, column 7: `//` works on integers and a side is a float; "
         "write `floor(a / b)`\n  alpha // 2 < 1.0\n        ^"},
        {"q",
         "mask, line 1, column 1: a mask needs a condition and this is an integer; compare it, as "
         "in `x != 0`\n  q\n  ^"},
        {"q && kv",
         "mask, line 1, column 1: `&&` needs a condition and this is an integer; compare it, "
         "as in `x != 0`\n  q && kv\n  ^"},
        {"!q",
         "mask, line 1, column 2: `!` needs a condition and this is an integer; compare it, as in "
         "`x != 0`\n  !q\n   ^"},
        {"q + (kv > 2) < 3",
         "mask, line 1, column 5: `+` needs numbers and this is a condition; write "
         "`c ? 1 : 0` to count it\n  q + (kv > 2) < 3\n      ^"},
        {"keep[q] == 1", "mask, line 1, column 9: `==` compares a condition with a number; use the "
                         "condition `c` or `!c` itself, or count it with `c ? 1 : 0`\n"
                         "  keep[q] == 1\n          ^"},
        {"0 <= q - kv < 5",
         "mask, line 1, column 13: comparisons do not chain; write `a < b && b < c` "
         "for `a < b < c`\n  0 <= q - kv < 5\n              ^"},
        {"q < kv ? true : 3",
         "mask, line 1, column 10: the two values of `?:` differ: a condition and "
         "an integer\n  q < kv ? true : 3\n           ^"},
        {"doc == 1", "mask, line 1, column 1: `doc` is an array; read it by index, as in `doc[q]`\n"
                     "  doc == 1\n  ^"},
        {"doc[q, kv] == 1", "mask, line 1, column 8: `doc` has 1 dimension and gets more indices\n"
                            "  doc[q, kv] == 1\n         ^"},
        {"bias[q] < 1.0", "mask, line 1, column 7: `bias` has 2 dimensions and gets 1 index\n"
                          "  bias[q] < 1.0\n        ^"},
        {"ctx[1] < 2", "mask, line 1, column 4: `ctx` is a single number and takes no index\n"
                       "  ctx[1] < 2\n     ^"},
        {"doc[alpha] == 1",
         "mask, line 1, column 5: an index has to be an integer and this is a float; "
         "write `int(x)`\n  doc[alpha] == 1\n      ^"},
        {"min(q) == 1", "mask, line 1, column 1: `min` takes 2 arguments and gets 1\n"
                        "  min(q) == 1\n  ^"});
}

static void structure(void **state) {
    (void)state;
    REFUSED(
        EXPR_MASK,
        {"", "mask, line 1, column 1: the text is empty; write `true` to see everything\n  \n  ^"},
        {"q < kv and", "mask, line 1, column 11: the text ends where a value is needed\n"
                       "  q < kv and\n            ^"},
        {"(q >= kv", "mask, line 1, column 9: the text ends where `)` is needed to close `(`\n"
                     "  (q >= kv\n          ^"},
        {"q >= kv)",
         "mask, line 1, column 8: the expression is complete before `)`; an operator is "
         "missing or this is too much\n  q >= kv)\n         ^"},
        {"q >= kv;",
         "mask, line 1, column 8: `;` ends `let` lines only; the expression is last and has "
         "none\n  q >= kv;\n         ^"},
        {"let x = 3\nx < q",
         "mask, line 2, column 1: `;` is needed here to end the `let` line, not `x`\n"
         "  x < q\n  ^"},
        {"q >= kv\n&& doc[kv) == 2",
         "mask, line 2, column 10: `]` is needed here to close the index, not "
         "`)`\n  && doc[kv) == 2\n           ^"},
        {"or q < kv", "mask, line 1, column 1: a value is needed here, not `or`\n  or q < kv\n  ^"},
        {"doc[q][kv] == 2",
         "mask, line 1, column 7: an index belongs to the name of an array, all of them in one "
         "pair of brackets, as in `bias[h, q]`\n  doc[q][kv] == 2\n        ^"},
        {"q is kv", "mask, line 1, column 3: unknown name `is`; write `==`\n  q is kv\n    ^"},
        {"alpha < inf",
         "mask, line 1, column 9: unknown name `inf`; write `1.0 / 0.0`\n  alpha < inf\n          ^"},
        {"q == not keep[q]", "mask, line 1, column 6: put `not \xe2\x80\xa6` in parentheses here\n"
                             "  q == not keep[q]\n       ^"});
}

static void scores(void **state) {
    (void)state;
    expr *e;
    REFUSED(EXPR_SCORE,
            {"q >= kv",
             "score, line 1, column 1: `score` needs numbers and this is a condition; write "
             "`c ? 1 : 0` to count it\n  q >= kv\n  ^"},
            {"s * bias[h]", "score, line 1, column 11: `bias` has 2 dimensions and gets 1 index\n"
                            "  s * bias[h]\n            ^"});
    assert_int_equal(
        expr_compile(&e, EXPR_SCORE, "tanh(s / 30) * 30 + bias[h, q - kv]", decls, N_DECLS),
        ERR_OK);
    assert_int_equal(expr_uses(e), 2 | 4 | 8);
    expr_free(e);
    assert_int_equal(expr_compile(&e, EXPR_SCORE, "q - kv", decls, N_DECLS), ERR_OK);
    expr_free(e);
}

/* A long line is shown as a window around the caret. */
static void long_line(void **state) {
    (void)state;
    char text[2000], *p = text;
    expr *e;
    for (int i = 0; i < 60; i++) p += sprintf(p, "q != %d && ", i + 100);
    strcpy(p, "kv = 3 || q < 1000");
    assert_int_equal(expr_compile(&e, EXPR_MASK, text, decls, N_DECLS), ERR_SYNTAX);
    assert_non_null(strstr(err_text(), "\n  ..."));
    const char *caret = strrchr(err_text(), '\n'), *line = caret - 1;
    while (line[-1] != '\n') line--;
    assert_memory_equal(line + strlen(caret + 1) - 1, "= 3", 3);
}

static void limits(void **state) {
    (void)state;
    enum { MANY = 100000 };
    static const char openers[] = "([-!";
    char *text = malloc(MANY * 16);
    expr *e;
    assert_non_null(text);
    for (const char *c = openers; *c; c++) {
        for (int i = 0; i < MANY; i++) memcpy(text + i * 4, *c == '[' ? "doc[" : "    ", 4);
        for (int i = 0; *c != '[' && i < MANY; i++) text[i * 4] = *c;
        text[MANY * 4] = 0;
        assert_int_equal(expr_compile(&e, EXPR_MASK, text, decls, N_DECLS), ERR_SYNTAX);
        assert_non_null(strstr(err_text(), "nested deeper than 200 levels; name parts with `let`"));
    }
    for (int i = 0; i < MANY; i++) memcpy(text + i * 9, "q<1?true:", 9);
    text[MANY * 9] = 0;
    assert_int_equal(expr_compile(&e, EXPR_MASK, text, decls, N_DECLS), ERR_SYNTAX);
    assert_non_null(strstr(err_text(), "nested deeper"));
    char *p = text;
    for (int i = 0; i < 3000; i++) p += sprintf(p, "q + %d * kv + ", i);
    strcpy(p, "1 < q");
    assert_int_equal(expr_compile(&e, EXPR_MASK, text, decls, N_DECLS), ERR_SYNTAX);
    assert_non_null(strstr(err_text(), "more than 1024 operations"));
    free(text);
    text = malloc((1 << 20) + 1);
    assert_non_null(text);
    memset(text, ' ', 1 << 20);
    text[1 << 20] = 0;
    assert_int_equal(expr_compile(&e, EXPR_MASK, text, decls, N_DECLS), ERR_SYNTAX);
    assert_non_null(strstr(err_text(), "at most 1048575 characters"));
    free(text);
}

static void declarations(void **state) {
    (void)state;
    static const struct {
        expr_decl d[2];
        int n;
        const char *part;
    } bad[] = {
        {{{"q", EXPR_INT, 0}},
         1,
         "captured value `q`: the mask language gives this name a meaning"},
        {{{"exp", EXPR_INT, 0}}, 1, "captured value `exp`: the mask language gives this name"},
        {{{"a b", EXPR_INT, 0}}, 1, "captured value `a b`: a name has letters, digits"},
        {{{"", EXPR_INT, 0}}, 1, "captured value ``: a name has letters"},
        {{{"a", EXPR_INT, 5}}, 1, "captured array `a` has 5 dimensions"},
        {{{"a", EXPR_INT, 0}, {"a", EXPR_INT, 1}}, 2, "captured value `a` is given twice"},
    };
    expr *e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(expr_compile(&e, EXPR_MASK, "q >= kv", bad[i].d, bad[i].n), ERR_USAGE);
        assert_non_null(strstr(err_text(), bad[i].part));
    }
    assert_int_equal(expr_compile(&e, EXPR_MASK, "q >= kv", NULL, EXPR_MAX_CAPTURES + 1),
                     ERR_USAGE);
}

static void bindings(void **state) {
    (void)state;
    static const int64_t data[4] = {0};
    expr *e;
    expr_value v[N_DECLS] = {{.type = DT_I64, .dim = {4}, .data = data},
                             {.type = DT_F32, .dim = {2, 2}, .data = data},
                             {.scalar.i = 1},
                             {.scalar.f = 1},
                             {.type = DT_BOOL, .dim = {4}, .data = data}};
    expr_env env = {v, 0, 0};
    assert_int_equal(expr_compile(&e, EXPR_MASK, "doc[q] == ctx", decls, N_DECLS), ERR_OK);
    assert_int_equal(expr_check_env(e, &env), ERR_OK);
    assert_int_equal(expr_check_env(e, NULL), ERR_USAGE);
    v[0].type = DT_F32;
    assert_int_equal(expr_check_env(e, &env), ERR_SHAPE);
    assert_string_equal(err_text(),
                        "captured array `doc` is used as integers and is bound to values of "
                        "type F32");
    v[0] = (expr_value){.type = DT_I64, .dim = {-1}, .data = data};
    assert_int_equal(expr_check_env(e, &env), ERR_SHAPE);
    assert_string_equal(err_text(),
                        "captured array `doc` has extent -1 in dimension 0; extents are 0 or "
                        "more");
    v[0] = (expr_value){.type = DT_I64, .dim = {3}};
    assert_int_equal(expr_check_env(e, &env), ERR_SHAPE);
    assert_string_equal(err_text(), "captured array `doc` has 3 elements and no data");
    v[0] = (expr_value){.type = DT_I64, .dim = {0}};
    assert_int_equal(expr_check_env(e, &env), ERR_OK);
    v[1].dim[0] = v[1].dim[1] = INT64_MAX;
    assert_int_equal(expr_check_env(e, &env), ERR_SHAPE);
    expr_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spelling),  cmocka_unit_test(names),        cmocka_unit_test(types),
        cmocka_unit_test(structure), cmocka_unit_test(scores),       cmocka_unit_test(long_line),
        cmocka_unit_test(limits),    cmocka_unit_test(declarations), cmocka_unit_test(bindings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
