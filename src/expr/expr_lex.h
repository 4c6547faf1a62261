/* Words of the mask and score language, and errors that point into its text. Private to this folder.
 *
 * The lexer turns text into tokens one at a time and keeps no copy. It knows no names and no types;
 * `#` starts a comment up to the end of the line. */
#ifndef EXPR_EXPR_LEX_H
#define EXPR_EXPR_LEX_H
#include "expr/expr.h"

typedef enum token_kind { TOKEN_END, TOKEN_INT, TOKEN_FLOAT, TOKEN_NAME, TOKEN_SIGN } token_kind;
typedef struct token {
    token_kind kind;
    const char *at; /* in the text */
    int n;          /* bytes */
    int64_t i;
    float f;
} token;

typedef struct lexer {
    const char *what; /* "mask" or "score", for messages */
    const char *text;
    const char *at; /* next byte */
} lexer;

MUST_CHECK err expr_lex__next(lexer *x, token *out);
int expr_lex__is(const token *t, const char *spelling); /* a name or sign with this spelling */
/* ERR_SYNTAX: "mask, line 1, column 3: SENTENCE", the line and a caret below `at`. */
MUST_CHECK err expr_lex__fail(const lexer *x, const char *at, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

#endif
