/* Captured values of a mask or score given on the command line: arrays from a safetensors file, scalars from --let.
 *
 * Only names that the text mentions are taken, so a file may hold other tensors. The struct owns its tables;
 * array data stays in the file's map, which must outlive it. */
#ifndef CLI_CAPTURES_H
#define CLI_CAPTURES_H
#include "expr/expr.h"
#include "io/safetensors.h"

typedef struct captures {
    expr_decl decl[EXPR_MAX_CAPTURES];
    expr_value value[EXPR_MAX_CAPTURES];
    int n;
    expr_env env;
    expr *program;
    void *copy[EXPR_MAX_CAPTURES]; /* aligned copies of unaligned tensors */
} captures;

/* file may be NULL; let: n_let strings "name=value" (a whole number, a real, true or false). Compiles text as role says.
 * other: the other text of the command, whose --let values are no concern of this one; NULL: there is none. */
MUST_CHECK err captures_open(captures *c, expr_role role, const char *text, const char *other,
                             const st_file *file, const char *const *let, int n_let);
void captures_close(captures *c);

#endif
