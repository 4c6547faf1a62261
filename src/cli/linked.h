/* The libraries that the program is linked with: which file serves each, its version now and when it was built.
 *
 * The loader takes the first file of the right name that a search path leads to and checks little else. So the program
 * looks itself, before it does anything: a library that is too old, of another generation than its headers, or that
 * lacks a function is refused by name, path and both numbers. */
#ifndef CLI_LINKED_H
#define CLI_LINKED_H
#include "dev/dev.h"
#include "dev/shared_lib.h"
#include <stdio.h>

typedef struct linked_lib {
    const char *name;
    char path[512];
    char version[SHARED_LIB_VERSION]; /* of the file in use */
    const char *built;                /* of the headers; NULL where they do not tell */
    const char *minimum;
    int from_env; /* 1: through LD_LIBRARY_PATH, or preloaded */
} linked_lib;

enum { LINKED_MAX = 12 };
/* Those in use by this build, in a fixed order; returns how many. */
int linked_list(linked_lib out[LINKED_MAX]);
/* ERR_REFUSED when one cannot serve. Cheap enough for every start. */
MUST_CHECK err linked_check(void);
/* The verdict on one: ERR_REFUSED with path, both numbers and the fix. */
MUST_CHECK err linked_judge(const linked_lib *l);
/* The file would do, and is older than the headers: a sentence for a report; "" otherwise. */
void linked_note(const linked_lib *l, char *out, size_t n);
/* One line per library, "NAME VERSION PATH", the matrix library of d among them; d NULL: the one that a device opened now
 * would use. For the start of work whose results depend on them. */
MUST_CHECK err linked_print(FILE *f, const dev *d);

#endif
