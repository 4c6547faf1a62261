/* Shared libraries looked at without trust: the ELF header first, then opened in a child of its own.
 *
 * elf_probe_read only reads bytes. elf_probe_open runs the library's constructors, in a forked child with
 * a time limit, so that one that crashes or hangs ends there. Call it while the process has one thread. */
#ifndef CLI_ELF_PROBE_H
#define CLI_ELF_PROBE_H
#include "core/err.h"

typedef struct elf_probe {
    char soname[128]; /* "" when the file has none */
    char fault[160];  /* "" when the file is a shared library for this machine */
} elf_probe;
/* Fails only when the file cannot be read. */
MUST_CHECK err elf_probe_read(const char *path, elf_probe *out);

typedef enum elf_probe_call {
    ELF_PROBE_OPEN,   /* open, no symbol */
    ELF_PROBE_LOOKUP, /* find the symbol, do not call it */
    ELF_PROBE_CUDART, /* int f(int *): 13000 → 13.0 */
    ELF_PROBE_NCCL,   /* int f(int *): 22809 → 2.28.9 */
    ELF_PROBE_PAIR,   /* int f(int *, int *): major, minor */
    ELF_PROBE_SIZE,   /* size_t f(void): 130100 → 13.1.0 */
    ELF_PROBE_TRIPLE, /* int f(int which, int *): three calls */
} elf_probe_call;

typedef struct elf_probe_result {
    char path[512];   /* the file that was really loaded, by its symbol */
    char version[48]; /* "" when the symbol tells none */
    char fault[400];  /* "" when it opened and the symbol was there and answered */
    int resident;     /* something had loaded it before (a preloaded copy) */
    int from_env;     /* found through LD_LIBRARY_PATH */
} elf_probe_result;
/* name: a path, or a bare name that is then searched as the loader searches. symbol NULL: only opened. */
void elf_probe_open(const char *name, const char *symbol, elf_probe_call how,
                    elf_probe_result *out);

#endif
