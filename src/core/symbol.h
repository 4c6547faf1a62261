/* Names of code addresses: which function of which file, for stack traces.
 *
 * The program's own functions are looked up in its symbol table on disk, static ones included, so nothing has to be exported for
 * it; those of shared libraries by the loader's tables. Where no name is known, file and offset remain, which addr2line takes. */
#ifndef CORE_SYMBOL_H
#define CORE_SYMBOL_H
#include "core/err.h"
#include <stdint.h>

enum { SYMBOL_TEXT = 320 };
typedef struct symbol_table symbol_table;
MUST_CHECK err symbol_open(symbol_table **out); /* a program without symbols is no error */
void symbol_close(symbol_table *t);
/* "train_run+0x1f (paceline+0x4a1b2f)" into buf, returned. */
const char *symbol_text(const symbol_table *t, uintptr_t address, char buf[SYMBOL_TEXT]);

#endif
