/* Starting a thread: see thread.h.
 *
 * A new thread has the signal mask of the one that starts it, so that mask is filled for a moment; signals that come then wait. Attributes
 * are set and thrown away here, and nothing is kept. */
#include "core/thread.h"
#include <signal.h>

int thread_start(pthread_t *out, size_t stack_bytes, int signals, void *(*run)(void *), void *ctx) {
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    if (signals == THREAD_NO_SIGNALS) pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    int failed = pthread_attr_setstacksize(&attr, stack_bytes);
    if (!failed) failed = pthread_create(out, &attr, run, ctx);
    pthread_attr_destroy(&attr);
    if (signals == THREAD_NO_SIGNALS) pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
