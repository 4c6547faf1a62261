/* Runs the program under test (PACELINE_PROGRAM, else build/paceline) as a child and keeps what it prints.
 *
 * Arguments are given as one list that ends with NULL; output and errors come back as one text. A child that dies by a signal
 * gives 128 + signal. */
#ifndef SUPPORT_RUN_H
#define SUPPORT_RUN_H
#include <stddef.h>
#include <sys/types.h>

typedef struct run_result {
    int code;
    char text[65536]; /* standard output and error, cut at the buffer's end */
} run_result;

/* env: NULL or "NAME=VALUE" strings ending with NULL, set for the child alone. */
void run_program(run_result *r, const char *const *env, const char *const *args);

/* Starts the program and leaves it running; what it prints goes to a file (made anew), which run_read reads. */
pid_t run_start(const char *const *env, const char *const *args, const char *output);
/* Its code as above once it has ended within ms milliseconds, else -1. */
int run_wait(pid_t pid, int ms);
void run_read(run_result *r, const char *output);

#endif
