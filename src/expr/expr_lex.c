/* The lexer: longest sign first, numbers checked against their range, errors with line and caret.
 *
 * Columns count characters, not bytes. A long line is shown as a window around the caret. Signs of
 * other languages (=, &, **, ≤ …) are recognised only to say what to write instead. */
#include "expr/expr_lex.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 96 };

static int is_tail(char c) { return ((unsigned char)c & 0xc0) == 0x80; } /* inside a character */
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The line around `at` cut to WINDOW bytes, then spaces up to the caret. */
static void show_line(const char *line, const char *at, char *out, size_t size) {
    const char *end = line + strcspn(line, "\n");
    const char *from = at - line > WINDOW / 2 ? at - WINDOW / 2 : line;
    while (from > line && is_tail(*from)) from--;
    const char *to = end - from > WINDOW ? from + WINDOW : end;
    while (to < end && is_tail(*to)) to++;
    size_t n = (size_t)snprintf(out, size, "\n  %s", from > line ? "..." : "");
    for (const char *c = from; c < to && n + 8 < size; c++)
        out[n++] = (char)(((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f ? '?' : *c);
    n += (size_t)snprintf(out + n, size - n, "%s\n  %s", to < end ? "..." : "",
                          from > line ? "   " : "");
    for (const char *c = from; c < at && n + 2 < size; c++)
        if (!is_tail(*c)) out[n++] = *c == '\t' ? '\t' : ' ';
    out[n++] = '^';
    out[n] = 0;
}

err expr_lex__fail(const lexer *x, const char *at, const char *fmt, ...) {
    const char *line = x->text;
    int row = 1, column = 1;
    for (const char *c = x->text; c < at; c++)
        if (*c == '\n') {
            row++;
            line = c + 1;
        }
    for (const char *c = line; c < at; c++) column += !is_tail(*c);
    char sentence[512], shown[512];
    va_list list;
    va_start(list, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, list);
    va_end(list);
    show_line(line, at, shown, sizeof shown);
    return err_set(ERR_SYNTAX, "%s, line %d, column %d: %s%s", x->what, row, column, sentence,
                   shown);
}

int expr_lex__is(const token *t, const char *spelling) {
    return (t->kind == TOKEN_NAME || t->kind == TOKEN_SIGN) && strlen(spelling) == (size_t)t->n &&
           memcmp(t->at, spelling, (size_t)t->n) == 0;
}

/* Copies a literal's bytes, so that strto* cannot run on. 0 when it is too long. */
static int copy_literal(const token *t, char *buf, int size) {
    if (t->n >= size) return 0;
    memcpy(buf, t->at, (size_t)t->n);
    buf[t->n] = 0;
    return 1;
}

static err read_number(lexer *x, token *t) {
    const char *c = t->at;
    int hex = c[0] == '0' && (c[1] == 'x' || c[1] == 'X');
    int real = 0;
    if (hex) {
        c += 2;
        while (is_digit(*c) || is_letter(*c)) c++;
    } else {
        while (is_digit(*c)) c++;
        if (*c == '.') real = 1, c++;
        while (real && is_digit(*c)) c++;
        if (*c == 'e' || *c == 'E') {
            const char *d = c + 1 + (c[1] == '+' || c[1] == '-');
            if (is_digit(*d)) {
                real = 1;
                for (c = d; is_digit(*c); c++) continue;
            }
        }
    }
    if (!hex && is_letter(*c))
        return expr_lex__fail(x, c,
                              "a name cannot follow a number directly; put an operator such "
                              "as `*` between them");
    t->n = (int)(c - t->at);
    t->kind = real ? TOKEN_FLOAT : TOKEN_INT;
    x->at = c;
    char buf[400], *end;
    if (!copy_literal(t, buf, sizeof buf))
        return expr_lex__fail(x, t->at, "this number has more than %d characters",
                              (int)sizeof buf - 1);
    errno = 0;
    if (real) {
        t->f = str_to_float(buf, &end);
        if (t->f > 3.4028234664e38f)
            return expr_lex__fail(x, t->at, "this number is too large for a 32-bit float");
    } else {
        t->i = strtoll(buf, &end, hex ? 16 : 10);
        if (errno == ERANGE)
            return expr_lex__fail(x, t->at,
                                  "this integer does not fit in 64 bits; the largest is "
                                  "9223372036854775807");
    }
    if (*end || end == buf) return expr_lex__fail(x, t->at, "this is not a number");
    return ERR_OK;
}

static err foreign_sign(lexer *x, const char *at) {
    static const char *const table[][2] = {
        {"===", "write `==`"},
        {"=>", "write `>=`"},
        {"=<", "write `<=`"},
        {"!==", "write `!=`"},
        {"<>", "write `!=`"},
        {"/*", "a comment begins with `#` and ends with its line"},
        {"=", "`=` names a value in a `let` line only; write `==` to compare"},
        {"&", "write `&&` or `and`; there are no operations on bits"},
        {"|", "write `||` or `or`; there are no operations on bits"},
        {"^", "there are no operations on bits; for exclusive or of conditions write `!=`"},
        {"~", "there are no operations on bits; write `!` or `not` for a condition"},
        {"\xe2\x89\xa4", "write `<=`"},
        {"\xe2\x89\xa5", "write `>=`"},
        {"\xe2\x89\xa0", "write `!=`"},
        {"\xc3\x97", "write `*`"},
        {"\xe2\x88\x92", "write `-` (this is another character that looks like it)"},
        {".", "there are no attributes; captured values are named directly"},
        {"**", "there is no power; write a product, or `exp2(y * log(x) / log(2.0))`"},
        {"<<", "there are no operations on bits; multiply by a power of two"},
        {">>", "there are no operations on bits; divide with `//` by a power of two"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncmp(at, table[i][0], strlen(table[i][0])) == 0)
            return expr_lex__fail(x, at, "%s", table[i][1]);
    if ((unsigned char)*at < 0x20 || *at == 0x7f)
        return expr_lex__fail(x, at, "a control character (byte %d) is not part of the language",
                              (unsigned char)*at);
    int n = 1;
    while (is_tail(at[n])) n++;
    return expr_lex__fail(x, at, "`%.*s` is not part of the language", n, at);
}

err expr_lex__next(lexer *x, token *out) {
    static const char *const signs[] = {"&&", "||", "==", "!=", "<=", ">=", "//", "<",
                                        ">",  "!",  "+",  "-",  "*",  "/",  "%",  "?",
                                        ":",  "(",  ")",  "[",  "]",  ",",  ";",  NULL};
    static const char *const foreign[] = {"===", "=>", "=<", "!==", "<>",
                                          "/*",  "**", "<<", ">>",  NULL};
    const char *c = x->at;
    while (*c == ' ' || *c == '\t' || *c == '\n' || *c == '\r' || *c == '#')
        c += *c == '#' ? (int)strcspn(c, "\n") : 1;
    *out = (token){.kind = TOKEN_END, .at = c};
    x->at = c;
    if (!*c) return ERR_OK;
    if (is_digit(*c) || (*c == '.' && is_digit(c[1]))) return read_number(x, out);
    if (is_letter(*c)) {
        out->kind = TOKEN_NAME;
        while (is_letter(c[out->n]) || is_digit(c[out->n])) out->n++;
        x->at = c + out->n;
        return ERR_OK;
    }
    for (int i = 0; foreign[i]; i++) /* before the signs that they begin with */
        if (strncmp(c, foreign[i], strlen(foreign[i])) == 0) return foreign_sign(x, c);
    if (c[0] == '=' && c[1] != '=') { /* needed by let; the parser refuses it elsewhere */
        *out = (token){.kind = TOKEN_SIGN, .at = c, .n = 1};
        x->at = c + 1;
        return ERR_OK;
    }
    for (int i = 0; signs[i]; i++) {
        size_t n = strlen(signs[i]);
        if (strncmp(c, signs[i], n) != 0) continue;
        *out = (token){.kind = TOKEN_SIGN, .at = c, .n = (int)n};
        x->at = c + n;
        return ERR_OK;
    }
    return foreign_sign(x, c);
}
