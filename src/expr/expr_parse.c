/* Text → typed program: precedence climbing, types checked while nodes are made.
 *
 * Levels, loosest first: ?:, or, and, not, comparisons (which do not chain), + -, * / // %, prefix - + !,
 * index and call. Integers meet floats as floats; conditions are no numbers and numbers no conditions.
 * A `let` names a node, so it costs nothing and is evaluated where it is used. Nesting is bounded, so no
 * text can exhaust the stack. Errors stop at the first and say what to write instead. */
#include "expr/expr_lex.h"
#include "expr/ir.h"
#include <string.h>
#include <strings.h>

enum { MAX_NESTING = 200 };
enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_SUM, LEVEL_PRODUCT, LEVEL_PREFIX };

typedef struct let_name {
    const char *at;
    int n;
    int node;
} let_name;

typedef struct parser {
    lexer lex;
    token tok;
    ir_build *b;
    expr_role role;
    const expr_decl *decls;
    int n_decls, n_lets, depth;
    let_name lets[IR_MAX_NODES];
} parser;

typedef struct part { /* a parsed expression and where it begins */
    int node;
    const char *at;
} part;

static const struct infix {
    const char *spelling, *word;
    int level;
    const char *swapped; /* a > b is kept as b < a */
} infixes[] = {
    {"||", "or", LEVEL_OR, NULL},      {"&&", "and", LEVEL_AND, NULL},
    {"==", NULL, LEVEL_COMPARE, NULL}, {"!=", NULL, LEVEL_COMPARE, NULL},
    {"<=", NULL, LEVEL_COMPARE, NULL}, {">=", NULL, LEVEL_COMPARE, "<="},
    {"<", NULL, LEVEL_COMPARE, NULL},  {">", NULL, LEVEL_COMPARE, "<"},
    {"+", NULL, LEVEL_SUM, NULL},      {"-", NULL, LEVEL_SUM, NULL},
    {"*", NULL, LEVEL_PRODUCT, NULL},  {"//", NULL, LEVEL_PRODUCT, NULL},
    {"/", NULL, LEVEL_PRODUCT, NULL},  {"%", NULL, LEVEL_PRODUCT, NULL},
};

static const char *const reserved[] = {"b",   "h",   "q",    "kv",    "s",     "and", "or",
                                       "not", "let", "true", "false", "float", "int", "clamp"};

static err parse_whole(parser *p, part *out);
static err parse_level(parser *p, int level, part *out);

static expr_type type_of(const parser *p, part x) { return (expr_type)p->b->node[x.node].type; }
static const char *type_name(expr_type t) {
    return t == EXPR_BOOL ? "a condition" : t == EXPR_INT ? "an integer" : "a float";
}
static int is(const parser *p, const char *spelling) { return expr_lex__is(&p->tok, spelling); }
static err advance(parser *p) { return expr_lex__next(&p->lex, &p->tok); }

static err expect(parser *p, const char *sign, const char *why) {
    if (is(p, sign)) return advance(p);
    if (p->tok.kind == TOKEN_END)
        return expr_lex__fail(&p->lex, p->tok.at, "the text ends where `%s` is needed %s", sign,
                              why);
    return expr_lex__fail(&p->lex, p->tok.at, "`%s` is needed here %s, not `%.*s`", sign, why,
                          p->tok.n, p->tok.at);
}

/* Called after each node is made: the builder's own slack covers what one step adds. */
static err keep(parser *p, const char *at, int node, part *out) {
    *out = (part){node, at};
    if (p->b->n <= IR_MAX_NODES) return ERR_OK;
    return expr_lex__fail(&p->lex, at,
                          "the expression needs more than %d operations; compute part "
                          "of it into a captured array",
                          IR_MAX_NODES);
}

static err enter(parser *p) {
    if (++p->depth <= MAX_NESTING) return ERR_OK;
    return expr_lex__fail(&p->lex, p->tok.at,
                          "the expression is nested deeper than %d levels; name parts with `let`",
                          MAX_NESTING);
}

static part to_float(parser *p, part x) {
    if (type_of(p, x) == EXPR_INT) x.node = ir__op(p->b, IR_TO_F, x.node, x.node);
    return x;
}

static err want_condition(parser *p, part x, const char *where) {
    if (type_of(p, x) == EXPR_BOOL) return ERR_OK;
    return expr_lex__fail(&p->lex, x.at,
                          "%s needs a condition and this is %s; compare it, as in `x != 0`", where,
                          type_name(type_of(p, x)));
}

static err want_number(parser *p, part x, const char *spelling) {
    if (type_of(p, x) != EXPR_BOOL) return ERR_OK;
    return expr_lex__fail(
        &p->lex, x.at, "`%s` needs numbers and this is a condition; write `c ? 1 : 0` to count it",
        spelling);
}

/* An element-wise operation on two operands, after making integers floats beside floats. */
static err combine(parser *p, const char *sign_at, const char *spelling, part x, part y,
                   part *out) {
    int equality = strcmp(spelling, "==") == 0 || strcmp(spelling, "!=") == 0;
    int conditions = type_of(p, x) == EXPR_BOOL && type_of(p, y) == EXPR_BOOL;
    if (equality && type_of(p, x) != type_of(p, y) &&
        (type_of(p, x) == EXPR_BOOL || type_of(p, y) == EXPR_BOOL))
        return expr_lex__fail(
            &p->lex, sign_at,
            "`%s` compares a condition with a number; use the condition `c` or `!c` "
            "itself, or count it with `c ? 1 : 0`",
            spelling);
    if (!(equality && conditions)) {
        TRY(want_number(p, x, spelling));
        TRY(want_number(p, y, spelling));
    }
    if (type_of(p, x) == EXPR_FLOAT || type_of(p, y) == EXPR_FLOAT) {
        x = to_float(p, x);
        y = to_float(p, y);
    }
    ir_op op = ir__find(IR_INFIX, spelling, strlen(spelling), type_of(p, x));
    if (op == IR_OP_COUNT && strcmp(spelling, "/") == 0)
        return expr_lex__fail(&p->lex, sign_at,
                              "`/` divides floats and both sides are integers; "
                              "write `//` to divide and floor, or `float(a) / b`");
    if (op == IR_OP_COUNT)
        return expr_lex__fail(&p->lex, sign_at,
                              "`%s` works on integers and a side is a float; write "
                              "`floor(a / b)`%s",
                              spelling,
                              *spelling == '%' ? " for the quotient and `a - b * floor(a / b)` for "
                                                 "the rest"
                                               : "");
    return keep(p, x.at, ir__op(p->b, op, x.node, y.node), out);
}

/* What other languages call things that exist here under another name, or not at all. */
static err foreign_name(parser *p, const token *t) {
    static const char *const table[][2] = {
        {"q_idx", "the query's index is called `q`"},
        {"kv_idx", "the key's index is called `kv`"},
        {"k_idx", "the key's index is called `kv`"},
        {"k", "the key's index is called `kv`"},
        {"batch", "the batch index is called `b`"},
        {"head", "the head index is called `h`"},
        {"score", "the score is called `s`"},
        {"True", "write `true`"},
        {"False", "write `false`"},
        {"if", "write `c ? x : y`"},
        {"else", "write `c ? x : y`"},
        {"return", "the last line is the result; leave `return` out"},
        {"xor", "write `!=` between two conditions"},
        {"is", "write `==`"},
        {"lambda", "the text is what it would return; leave `lambda` and its names out"},
        {"inf", "write `1.0 / 0.0`"},
        {"nan", "write `0.0 / 0.0`"},
        {"where", "write `c ? x : y`"},
        {"pow", "write a product, or `exp2(y * log(x) / log(2.0))`"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (expr_lex__is(t, table[i][0]))
            return expr_lex__fail(&p->lex, t->at, "unknown name `%.*s`; %s", t->n, t->at,
                                  table[i][1]);
    return ERR_OK;
}

static err unknown_name(parser *p, const token *t) {
    static const char *const builtin[] = {"q",     "kv",    "b",   "h",     "true",
                                          "false", "float", "int", "clamp", "s"};
    const int builtins = (int)(sizeof builtin / sizeof *builtin) - (p->role == EXPR_MASK);
    const char *known[sizeof builtin / sizeof *builtin + IR_OP_COUNT + EXPR_MAX_CAPTURES];
    char word[64];
    int n = 0;
    for (int i = 0; i < p->n_decls && n < EXPR_MAX_CAPTURES; i++) known[n++] = p->decls[i].name;
    TRY(foreign_name(p, t));
    for (int i = 0; i < builtins; i++) known[n++] = builtin[i]; /* s, the last, in scores only */
    for (int i = 0; i < IR_OP_COUNT; i++)
        if (ir__ops[i].form == IR_CALL) known[n++] = ir__ops[i].spelling;
    int length = t->n < (int)sizeof word - 1 ? t->n : (int)sizeof word - 1;
    memcpy(word, t->at, (size_t)length);
    word[length] = 0;
    for (int i = 0; i < p->n_lets; i++) { /* lets are not terminated: compared for case only */
        const let_name *l = &p->lets[i];
        if (l->n == t->n && strncasecmp(l->at, t->at, (size_t)l->n) == 0)
            return expr_lex__fail(&p->lex, t->at, "unknown name `%s`; did you mean `%.*s`?", word,
                                  l->n, l->at);
    }
    const char *near = str_nearest(word, known, n);
    if (near)
        return expr_lex__fail(&p->lex, t->at, "unknown name `%s`; did you mean `%s`?", word, near);
    return expr_lex__fail(&p->lex, t->at,
                          "unknown name `%s`; captured values have to be given by name, %sthe "
                          "indices are b, h, q and kv",
                          word, p->role == EXPR_MASK ? "and " : "the scaled logit is s, and ");
}

static int find_capture(const parser *p, const token *t) {
    for (int i = 0; i < p->n_decls; i++)
        if (expr_lex__is(t, p->decls[i].name)) return i;
    return -1;
}

static int find_let(const parser *p, const token *t) {
    for (int i = p->n_lets - 1; i >= 0; i--)
        if (p->lets[i].n == t->n && memcmp(p->lets[i].at, t->at, (size_t)t->n) == 0) return i;
    return -1;
}

static err parse_capture(parser *p, const token *name, int slot, part *out) {
    const expr_decl *d = &p->decls[slot];
    int index[EXPR_MAX_NDIM], n = 0;
    if (d->ndim == 0) {
        if (is(p, "["))
            return expr_lex__fail(&p->lex, p->tok.at, "`%s` is a single number and takes no index",
                                  d->name);
        return keep(p, name->at, ir__scalar(p->b, slot, d->type), out);
    }
    if (!is(p, "["))
        return expr_lex__fail(&p->lex, name->at,
                              "`%s` is an array; read it by index, as in `%s[%s]`", d->name,
                              d->name, d->ndim == 1 ? "q" : "q, kv");
    do {
        TRY(advance(p));
        part x;
        TRY(parse_whole(p, &x));
        if (type_of(p, x) != EXPR_INT)
            return expr_lex__fail(
                &p->lex, x.at, "an index has to be an integer and this is %s; write `%s`",
                type_name(type_of(p, x)), type_of(p, x) == EXPR_FLOAT ? "int(x)" : "c ? 1 : 0");
        if (n == d->ndim)
            return expr_lex__fail(&p->lex, x.at, "`%s` has %d dimension%s and gets more indices",
                                  d->name, d->ndim, d->ndim == 1 ? "" : "s");
        index[n++] = x.node;
    } while (is(p, ","));
    if (n < d->ndim)
        return expr_lex__fail(&p->lex, p->tok.at, "`%s` has %d dimensions and gets %d ind%s",
                              d->name, d->ndim, n, n == 1 ? "ex" : "ices");
    TRY(expect(p, "]", "to close the index"));
    return keep(p, name->at, ir__load(p->b, slot, d->type, index, n), out);
}

static err parse_arguments(parser *p, const token *name, part *args, int most, int *n) {
    *n = 0;
    TRY(expect(p, "(", "after the name of a function"));
    while (!is(p, ")")) {
        if (*n) TRY(expect(p, ",", "between arguments"));
        if (*n == most)
            return expr_lex__fail(&p->lex, p->tok.at, "`%.*s` takes %d argument%s", name->n,
                                  name->at, most, most == 1 ? "" : "s");
        part *x = &args[(*n)++];
        TRY(parse_whole(p, x));
        if (type_of(p, *x) == EXPR_BOOL) {
            char word[32];
            int length = name->n < 31 ? name->n : 31;
            memcpy(word, name->at, (size_t)length);
            word[length] = 0;
            TRY(want_number(p, *x, word));
        }
    }
    TRY(advance(p));
    if (*n != most)
        return expr_lex__fail(&p->lex, name->at, "`%.*s` takes %d argument%s and gets %d", name->n,
                              name->at, most, most == 1 ? "" : "s", *n);
    return ERR_OK;
}

static err parse_clamp(parser *p, const token *name, part *out) {
    part a[3];
    int n, real = 0;
    TRY(parse_arguments(p, name, a, 3, &n));
    for (int i = 0; i < 3; i++) real |= type_of(p, a[i]) == EXPR_FLOAT;
    for (int i = 0; real && i < 3; i++) a[i] = to_float(p, a[i]);
    int low = ir__op(p->b, real ? IR_MAX_F : IR_MAX_I, a[0].node, a[1].node);
    return keep(p, name->at, ir__op(p->b, real ? IR_MIN_F : IR_MIN_I, low, a[2].node), out);
}

static err parse_call(parser *p, const token *name, part *out) {
    part a[2];
    int n;
    int cast = expr_lex__is(name, "float") || expr_lex__is(name, "int");
    ir_op f = ir__find(IR_CALL, name->at, (size_t)name->n, EXPR_FLOAT);
    TRY(parse_arguments(p, name, a, cast ? 1 : ir__ops[f].arity, &n));
    if (cast) {
        expr_type want = expr_lex__is(name, "float") ? EXPR_FLOAT : EXPR_INT;
        ir_op op = want == EXPR_FLOAT ? IR_TO_F : IR_TO_I;
        int node = type_of(p, a[0]) == want ? a[0].node : ir__op(p->b, op, a[0].node, a[0].node);
        return keep(p, name->at, node, out);
    }
    int whole = type_of(p, a[0]) == EXPR_INT && (n < 2 || type_of(p, a[1]) == EXPR_INT);
    ir_op g = whole ? ir__find(IR_CALL, name->at, (size_t)name->n, EXPR_INT) : IR_OP_COUNT;
    if (g != IR_OP_COUNT) f = g;
    for (int i = 0; g == IR_OP_COUNT && i < n; i++) a[i] = to_float(p, a[i]);
    return keep(p, name->at, ir__op(p->b, f, a[0].node, a[n - 1].node), out);
}

static err parse_name(parser *p, part *out) {
    token name = p->tok;
    TRY(advance(p));
    for (int i = 0; i < IR_VAR_COUNT; i++) {
        if (!expr_lex__is(&name, ir__var_names[i])) continue;
        if (i == IR_S && p->role == EXPR_MASK)
            return expr_lex__fail(&p->lex, name.at,
                                  "`s` is the score, which a mask cannot see; use b, h, q and kv");
        if (is(p, "["))
            return expr_lex__fail(&p->lex, p->tok.at,
                                  "`%.*s` is a single number and takes no index", name.n, name.at);
        return keep(p, name.at, ir__var(p->b, i), out);
    }
    if (expr_lex__is(&name, "true")) return keep(p, name.at, ir__bool(p->b, 1), out);
    if (expr_lex__is(&name, "false")) return keep(p, name.at, ir__bool(p->b, 0), out);
    int let = find_let(p, &name), capture = find_capture(p, &name);
    if (let >= 0) return keep(p, name.at, p->lets[let].node, out);
    if (capture >= 0) return parse_capture(p, &name, capture, out);
    int function = expr_lex__is(&name, "float") || expr_lex__is(&name, "int") ||
                   ir__find(IR_CALL, name.at, (size_t)name.n, EXPR_FLOAT) != IR_OP_COUNT;
    if (expr_lex__is(&name, "clamp")) return parse_clamp(p, &name, out);
    if (function) return parse_call(p, &name, out);
    if (expr_lex__is(&name, "not"))
        return expr_lex__fail(&p->lex, name.at, "put `not …` in parentheses here");
    if (expr_lex__is(&name, "let"))
        return expr_lex__fail(&p->lex, name.at, "`let` lines come before the expression");
    if (expr_lex__is(&name, "and") || expr_lex__is(&name, "or"))
        return expr_lex__fail(&p->lex, name.at, "a value is needed here, not `%.*s`", name.n,
                              name.at);
    return unknown_name(p, &name);
}

static err parse_primary(parser *p, part *out) {
    token t = p->tok;
    switch (t.kind) {
    case TOKEN_NAME: return parse_name(p, out);
    case TOKEN_INT: TRY(advance(p)); return keep(p, t.at, ir__int(p->b, t.i), out);
    case TOKEN_FLOAT: TRY(advance(p)); return keep(p, t.at, ir__float(p->b, t.f), out);
    case TOKEN_END: return expr_lex__fail(&p->lex, t.at, "the text ends where a value is needed");
    default: break;
    }
    if (is(p, "(")) {
        TRY(advance(p));
        TRY(parse_whole(p, out));
        TRY(expect(p, ")", "to close `(`"));
        out->at = t.at;
        return ERR_OK;
    }
    return expr_lex__fail(&p->lex, t.at, "a value is needed here, not `%.*s`", t.n, t.at);
}

static err refuse_assignment(parser *p) {
    if (!is(p, "=")) return ERR_OK;
    return expr_lex__fail(&p->lex, p->tok.at,
                          "`=` names a value in a `let` line only; write `==` to compare");
}

static err parse_prefix(parser *p, part *out) {
    token t = p->tok;
    int minus = is(p, "-"), plus = is(p, "+"), bang = is(p, "!");
    if (!minus && !plus && !bang) {
        TRY(refuse_assignment(p));
        TRY(parse_primary(p, out));
        return refuse_assignment(p); /* before types are looked at: it is the likelier fault */
    }
    part x;
    TRY(enter(p));
    TRY(advance(p));
    TRY(parse_prefix(p, &x));
    p->depth--;
    if (bang) {
        TRY(want_condition(p, x, "`!`"));
        return keep(p, t.at, ir__op(p->b, IR_NOT, x.node, x.node), out);
    }
    TRY(want_number(p, x, minus ? "-" : "+"));
    if (plus) return keep(p, t.at, x.node, out);
    ir_op op = type_of(p, x) == EXPR_INT ? IR_NEG_I : IR_NEG_F;
    return keep(p, t.at, ir__op(p->b, op, x.node, x.node), out);
}

static const struct infix *infix_at(const parser *p) {
    for (size_t i = 0; i < sizeof infixes / sizeof *infixes; i++)
        if (is(p, infixes[i].spelling) || (infixes[i].word && is(p, infixes[i].word)))
            return &infixes[i];
    return NULL;
}

static err parse_right(parser *p, const struct infix *f, part x, part *out) {
    const char *at = p->tok.at;
    part y;
    TRY(advance(p));
    TRY(parse_level(p, f->level + 1, &y));
    if (f->level <= LEVEL_AND) {
        const char *name = f->level == LEVEL_OR ? "`||`" : "`&&`";
        TRY(want_condition(p, x, name));
        TRY(want_condition(p, y, name));
        int node =
            f->level == LEVEL_OR ? ir__or(p->b, x.node, y.node) : ir__and(p->b, x.node, y.node);
        return keep(p, x.at, node, out);
    }
    if (f->swapped) {
        TRY(combine(p, at, f->swapped, y, x, out));
        out->at = x.at;
        return ERR_OK;
    }
    return combine(p, at, f->spelling, x, y, out);
}

static err parse_level(parser *p, int level, part *out) {
    int present = 0; /* the level of what stands in *out */
    if (level <= LEVEL_NOT && is(p, "not")) {
        const char *at = p->tok.at;
        part x;
        TRY(enter(p));
        TRY(advance(p));
        TRY(parse_level(p, LEVEL_NOT, &x));
        p->depth--;
        TRY(want_condition(p, x, "`not`"));
        TRY(keep(p, at, ir__op(p->b, IR_NOT, x.node, x.node), out));
    } else {
        TRY(parse_prefix(p, out));
    }
    for (const struct infix *f; (f = infix_at(p)) && f->level >= level;) {
        if (f->level == LEVEL_COMPARE && present == LEVEL_COMPARE)
            return expr_lex__fail(&p->lex, p->tok.at,
                                  "comparisons do not chain; write `a < b && b < "
                                  "c` for `a < b < c`");
        present = f->level;
        TRY(parse_right(p, f, *out, out));
    }
    return ERR_OK;
}

/* c ? x : y, or just an expression. */
static err parse_whole(parser *p, part *out) {
    TRY(enter(p));
    TRY(parse_level(p, LEVEL_OR, out));
    if (is(p, "?")) {
        part c = *out, x, y;
        TRY(want_condition(p, c, "`?`"));
        TRY(advance(p));
        TRY(parse_whole(p, &x));
        TRY(expect(p, ":", "between the two values of `?`"));
        TRY(parse_whole(p, &y));
        if ((type_of(p, x) == EXPR_BOOL) != (type_of(p, y) == EXPR_BOOL))
            return expr_lex__fail(&p->lex, x.at, "the two values of `?:` differ: %s and %s",
                                  type_name(type_of(p, x)), type_name(type_of(p, y)));
        if (type_of(p, x) != type_of(p, y)) {
            x = to_float(p, x);
            y = to_float(p, y);
        }
        TRY(keep(p, c.at, ir__select(p->b, c.node, x.node, y.node), out));
    }
    p->depth--;
    return ERR_OK;
}

static int is_reserved(const token *t) {
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (expr_lex__is(t, reserved[i])) return 1;
    return ir__find(IR_CALL, t->at, (size_t)t->n, EXPR_FLOAT) != IR_OP_COUNT;
}

static err parse_let(parser *p) {
    TRY(advance(p));
    token name = p->tok;
    part x;
    if (name.kind != TOKEN_NAME)
        return expr_lex__fail(&p->lex, name.at, "`let` needs a name, as in `let d = q - kv;`");
    if (is_reserved(&name) || find_capture(p, &name) >= 0 || find_let(p, &name) >= 0)
        return expr_lex__fail(&p->lex, name.at, "`%.*s` already has a meaning; choose another name",
                              name.n, name.at);
    if (p->n_lets == IR_MAX_NODES)
        return expr_lex__fail(&p->lex, name.at, "there are more than %d `let` lines", IR_MAX_NODES);
    TRY(advance(p));
    if (is(p, "=="))
        return expr_lex__fail(&p->lex, p->tok.at, "`let` names a value with a single `=`");
    TRY(expect(p, "=", "after the name"));
    TRY(parse_whole(p, &x));
    TRY(expect(p, ";", "to end the `let` line"));
    p->lets[p->n_lets++] = (let_name){name.at, name.n, x.node};
    return ERR_OK;
}

static err check_decls(const parser *p) {
    for (int i = 0; i < p->n_decls; i++) {
        const expr_decl *d = &p->decls[i];
        lexer x = {p->lex.what, d->name, d->name};
        token t;
        err e = expr_lex__next(&x, &t);
        if (e || t.kind != TOKEN_NAME || d->name[t.n])
            return err_set(ERR_USAGE,
                           "captured value `%.60s`: a name has letters, digits and `_` "
                           "only and begins with no digit",
                           d->name);
        if (is_reserved(&t))
            return err_set(ERR_USAGE,
                           "captured value `%s`: the %s language gives this name a meaning "
                           "of its own; rename the value",
                           d->name, p->lex.what);
        if (d->ndim < 0 || d->ndim > EXPR_MAX_NDIM)
            return err_set(ERR_USAGE,
                           "captured array `%s` has %d dimensions and 0 to %d can be read", d->name,
                           d->ndim, EXPR_MAX_NDIM);
        if (find_capture(p, &t) != i)
            return err_set(ERR_USAGE, "captured value `%s` is given twice", d->name);
    }
    return ERR_OK;
}

static err parse_program(parser *p, int *root) {
    part x;
    TRY(check_decls(p));
    TRY(advance(p));
    if (p->tok.kind == TOKEN_END)
        return expr_lex__fail(&p->lex, p->tok.at,
                              "the text is empty; write `true` to see everything");
    while (is(p, "let")) TRY(parse_let(p));
    TRY(parse_whole(p, &x));
    if (p->tok.kind == TOKEN_NAME) TRY(foreign_name(p, &p->tok));
    if (is(p, ";"))
        return expr_lex__fail(&p->lex, p->tok.at,
                              "`;` ends `let` lines only; the expression is last "
                              "and has none");
    if (is(p, "["))
        return expr_lex__fail(
            &p->lex, p->tok.at,
            "an index belongs to the name of an array, all of them in one pair of "
            "brackets, as in `bias[h, q]`");
    if (p->tok.kind != TOKEN_END)
        return expr_lex__fail(&p->lex, p->tok.at,
                              "the expression is complete before `%.*s`; an "
                              "operator is missing or this is too much",
                              p->tok.n, p->tok.at);
    if (p->role == EXPR_MASK) TRY(want_condition(p, x, "a mask"));
    if (p->role == EXPR_SCORE) {
        TRY(want_number(p, x, "score"));
        x = to_float(p, x);
    }
    *root = x.node;
    return ERR_OK;
}

err ir__parse(ir_build *b, expr_role role, const char *text, const expr_decl *decls, int n_decls,
              int *root) {
    parser *p;
    TRY(mem_new(1, sizeof *p, &p));
    p->lex = (lexer){role == EXPR_MASK ? "mask" : "score", text, text};
    p->b = b;
    p->role = role;
    p->decls = decls;
    p->n_decls = n_decls;
    err e = parse_program(p, root);
    mem_free(p);
    return e;
}
