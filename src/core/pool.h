/* Thread pool: runs n independent tasks on a fixed number of threads and waits for all of them.
 *
 * Tasks are numbered 0..n-1; which thread runs which task is not defined, so a task's result must
 * depend on its number alone (fixed tiles, fixed reduction order): then results do not depend on the
 * number of threads. The first error by task number wins and is returned with its text; later tasks
 * that have not started are skipped. The calling thread works too: a pool of 1 starts no thread.
 * One pool_run at a time per pool; calls from several threads queue. Not to be called from a task. */
#ifndef CORE_POOL_H
#define CORE_POOL_H
#include "core/err.h"
#include <stdint.h>

enum { POOL_STACK = 2 << 20 }; /* bytes of a worker's stack; kernels need a fourth of it */
typedef struct pool pool;
/* thread is 0..pool_threads-1: an index for per-thread scratch, never for a decision about values. */
typedef err (*pool_task)(void *ctx, int64_t task, int thread);

MUST_CHECK err pool_create(pool **out, int threads); /* 1..1024 */
void pool_destroy(pool *p);
int pool_threads(const pool *p);
MUST_CHECK err pool_run(pool *p, int64_t n, pool_task fn, void *ctx);
/* What a thread of the pool does now: 0 is whoever called pool_run. */
typedef struct pool_view {
    int64_t
        system_id; /* of the thread, as /proc and debuggers name it; 0: the caller's, or not started yet */
    uintptr_t fn;    /* the task's function; 0: it has no task */
    int64_t task, n; /* which of how many */
    double seconds;  /* since it took the task */
} pool_view;
/* All threads' views, cap at most; returns how many. Any thread may look at any time and waits for nothing; a thread that changes its
 * task meanwhile may be shown with parts of both. */
int pool_look(const pool *p, pool_view *out, int cap);
/* Usable CPUs by affinity mask and cgroup quota, at least 1. */
int pool_cpus(void);

#endif
