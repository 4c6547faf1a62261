/* Starting a thread whose stack is taken whole at the start, with or without signals.
 *
 * Kernels keep packed blocks on their stacks, and a small `ulimit -s`, or no memory for a stack that grows, must not end in a crash without a
 * word. Only starting is here; joining, signalling and naming are pthread's. */
#ifndef CORE_THREAD_H
#define CORE_THREAD_H
#include <pthread.h>
#include <stddef.h>

/* Whether signals of the process may be taken by the thread: the program's first threads are to see them. */
enum { THREAD_NO_SIGNALS, THREAD_SIGNALS };
/* 0, or the number of the system's error; then *out is not a thread. */
int thread_start(pthread_t *out, size_t stack_bytes, int signals, void *(*run)(void *), void *ctx);

#endif
