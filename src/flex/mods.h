/* The gallery: masks and scores that people use, as expressions, one table.
 *
 * An entry is data: its text in the language of docs/LANGUAGE.md, what it captures, and the PyTorch function that it
 * equals. Tests, docs/LANGUAGE.md and `paceline mask --mod` read the same table. Nothing here runs. */
#ifndef FLEX_MODS_H
#define FLEX_MODS_H
#include "expr/expr.h"

enum { MODS_MAX_CAPTURES = 8 };
typedef struct mod {
    const char *name;
    expr_role role;
    const char *text;
    expr_decl capture[MODS_MAX_CAPTURES]; /* up to the first without a name */
    const char *
        python; /* body of f(b, h, q, kv) or f(s, b, h, q, kv); captured names are tensors or numbers */
    const char *about; /* one sentence, and what the captures hold */
} mod;

int mods_count(void);
const mod *mods_at(int i);
const mod *mods_find(const char *name); /* NULL: none */
int mods_captures(const mod *m);        /* how many capture[] are used */
/* ERR_USAGE with the nearest names' list when there is none. */
MUST_CHECK err mods_need(const mod **out, const char *name, expr_role role);

#endif
