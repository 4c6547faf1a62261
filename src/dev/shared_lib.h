/* Shared libraries opened at run time: by a list of names, with path, version and symbols, or refused in a sentence.
 *
 * A spec says what a library is called, where it is looked for, how one call tells its version, and the oldest
 * version that serves. The path is the file that the loader really took. Opened with RTLD_LOCAL and RTLD_NODELETE:
 * a library that has threads or exit handlers of its own must not vanish under them. */
#ifndef DEV_SHARED_LIB_H
#define DEV_SHARED_LIB_H
#include "core/err.h"
#include <limits.h>
#include <stddef.h>

/* How a version symbol is called. */
typedef enum shared_lib_call {
    SHARED_LIB_OPEN,   /* no symbol */
    SHARED_LIB_LOOKUP, /* it is only looked up */
    SHARED_LIB_CUDA,   /* int f(int *): 13000 → 13.0 */
    SHARED_LIB_NCCL,   /* int f(int *): 22809 → 2.28.9 */
    SHARED_LIB_PAIR,   /* int f(int *, int *): major, minor */
    SHARED_LIB_SIZE,   /* size_t f(void): 130100 → 13.1.0 */
    SHARED_LIB_TRIPLE, /* int f(int which, int *): three calls */
    SHARED_LIB_TEXT,   /* const char *f(void) */
    SHARED_LIB_BUFFER, /* int f(char *, unsigned size) */
} shared_lib_call;

enum { SHARED_LIB_VERSION = 48, SHARED_LIB_BUILD = 48 };

typedef struct shared_lib_spec {
    const char *name;         /* as people call it: "NCCL" */
    const char *const *files; /* tried in this order; ends with NULL */
    const char *symbol;       /* tells the version */
    shared_lib_call how;
    const char *minimum; /* oldest version that serves; NULL: any */
    const char *source;  /* what brings it, after "install" */
} shared_lib_spec;

typedef struct shared_lib {
    const shared_lib_spec *spec;
    void *handle;
    char path[PATH_MAX];
    char version[SHARED_LIB_VERSION]; /* "" when it tells none */
    char build[SHARED_LIB_BUILD];     /* its build id in hex, "" when it has none */
} shared_lib;

/* ERR_IO: not there (each name and why); ERR_REFUSED: there, and broken or too old (path and both numbers). */
MUST_CHECK err shared_lib_open(shared_lib *out, const shared_lib_spec *spec);
void shared_lib_close(shared_lib *l); /* zeroed is fine */

/* One function that is wanted: *into is a function pointer, set to NULL when optional and absent. */
typedef struct shared_lib_symbol {
    const char *name;
    void *into;
    int optional;
} shared_lib_symbol;
/* ERR_REFUSED with path, version and the symbol that is missing. */
MUST_CHECK err shared_lib_symbols(const shared_lib *l, const shared_lib_symbol *table, int n);

/* The parts, for looks that open a library elsewhere. */
/* Calls symbol of handle as how says, version as text; ERR_REFUSED (without the path) when it is missing or fails. */
MUST_CHECK err shared_lib_ask(void *handle, const char *symbol, shared_lib_call how, char *version,
                              size_t n);
/* Refuses a version older than spec->minimum: names both, the path, and what to do. "" passes: it is not known. */
MUST_CHECK err shared_lib_check_version(const shared_lib_spec *spec, const char *path,
                                        const char *version);
/* Dotted numbers, as far as both go: below 0, 0 or above 0. Text behind the numbers does not count. */
int shared_lib_compare(const char *a, const char *b);
/* Path and build id of the loaded file that holds an address; "" where unknown. */
void shared_lib_locate(const void *address, char *path, size_t n, char *build, size_t nb);
/* The entry of LD_LIBRARY_PATH that a file was found in, or NULL: its bytes, *n of them. */
const char *shared_lib_search_entry(const char *path, int *n);

#endif
