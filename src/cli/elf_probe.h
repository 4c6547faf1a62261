/* Shared libraries looked at without trust: the ELF header first, then opened in a child of its own.
 *
 * elf_probe_read only reads bytes. elf_probe_open runs the library's constructors, in a forked child with
 * a time limit, so that one that crashes or hangs ends there. Call it while the process has one thread. */
#ifndef CLI_ELF_PROBE_H
#define CLI_ELF_PROBE_H
#include "dev/shared_lib.h"

typedef struct elf_probe {
    char soname[128]; /* "" when the file has none */
    char fault[160];  /* "" when the file is a shared library for this machine */
} elf_probe;
/* Fails only when the file cannot be read. */
MUST_CHECK err elf_probe_read(const char *path, elf_probe *out);

typedef struct elf_probe_result {
    char path[512];   /* the file that was really loaded, by its symbol */
    char version[48]; /* "" when the symbol tells none */
    char fault[400];  /* "" when it opened and the symbol was there and answered */
    int absent;       /* no file of that name is found */
    int resident;     /* something had loaded it before (a preloaded copy) */
    int from_env;     /* found through LD_LIBRARY_PATH */
} elf_probe_result;
/* name: a path, or a bare name that is then searched as the loader searches. symbol NULL: only opened. */
void elf_probe_open(const char *name, const char *symbol, shared_lib_call how,
                    elf_probe_result *out);

#endif
