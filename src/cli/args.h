/* Command-line options, table driven: one table per command serves parsing, checking and --help.
 * Values are strings of argv, borrowed. Nothing here prints; every complaint is ERR_USAGE in one
 * sentence that names the option and what it takes. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H
#include "core/err.h"
#include "core/str.h"
#include <stdint.h>

typedef enum arg_kind {
    ARG_FLAG,
    ARG_TEXT,
    ARG_INT,
    ARG_REAL,
    ARG_MANY
} arg_kind; /* MANY: repeatable text */
typedef struct arg_spec {
    const char *name; /* "--max-new" */
    arg_kind kind;
    const char *meta; /* "N", shown in help; NULL for flags */
    const char *help;
} arg_spec;

enum { ARGS_MAX_POSITIONAL = 256, ARGS_MAX_MANY = 64, ARGS_MAX_SPECS = 32 };
typedef struct args {
    const arg_spec *spec; /* ends with name NULL */
    const char *value[ARGS_MAX_SPECS];
    const char *many[ARGS_MAX_MANY];
    int many_spec[ARGS_MAX_MANY];
    int n_many;
    const char *positional[ARGS_MAX_POSITIONAL];
    int n_positional;
    int help; /* --help was given */
} args;

/* min..max positional arguments; `--` ends options; "--name=value" and "--name value" both work. */
MUST_CHECK err args_parse(args *a, const arg_spec *spec, int argc, char *const *argv, int min_pos,
                          int max_pos);
int args_has(const args *a, const char *name);
const char *args_text(const args *a, const char *name, const char *def);
MUST_CHECK err args_int(const args *a, const char *name, int64_t def, int64_t min, int64_t max,
                        int64_t *out);
MUST_CHECK err args_real(const args *a, const char *name, double def, double *out);
/* ERR_USAGE naming the option when it was not given. */
MUST_CHECK err args_need(const args *a, const char *name, const char **out);
int args_many(const args *a, const char *name, const char **out, int cap);
/* The option list for --help. */
MUST_CHECK err args_help(const arg_spec *spec, str *out);
/* A whole integer, or 0 returned when text is not one. */
int args_parse_int(const char *text, int64_t *out);
int args_parse_real(const char *text, double *out);

#endif
