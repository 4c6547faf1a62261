/* The insides of a heart, shared by heart.c and heart_stacks.c only.
 *
 * A role's board is written by its own thread alone and read by anyone: a version number, odd while it changes, tells a reader that
 * it read two states. A role's stack slot is a small state machine between the one who asks and the handler that answers. */
#ifndef DIST_HEART_PRIVATE_H
#define DIST_HEART_PRIVATE_H
#include "dist/heart.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { HEART__FRAMES = 64, HEART__TEXT = 2048 };
/* A stack slot: the asker moves IDLE → ASKED and READY → IDLE, the handler ASKED → WRITING → READY. */
enum { HEART__IDLE, HEART__ASKED, HEART__WRITING, HEART__READY };

struct heart_role {
    heart *h;
    char name[HEART_NAME];
    pthread_t thread;
    sigset_t mask_before; /* the thread's signals as they were before it joined */
    _Atomic uint64_t version;
    _Atomic(const char *) phase;
    _Atomic int64_t step, joined_at, beat_at, left_at, waited; /* nanoseconds */
    atomic_int waiting, left;
    atomic_int slot;
    void *interrupted; /* where the thread was, NULL where the machine's context is not known */
    void *frames[HEART__FRAMES];
    int n_frames;
};

struct heart {
    int max_roles;
    atomic_int n_roles;
    heart_role *roles; /* [max_roles] */
    int signal;
    pthread_mutex_t lock; /* joining, leaving, signalling, the failure */
    pthread_cond_t someone_left;
    pthread_mutex_t asking; /* one heart_stacks at a time */
    atomic_int failed;      /* the code, published after the text */
    char failure[HEART__TEXT];
};

/* heart_stacks.c: the signal and the two ends of a role's readiness to answer it. */
MUST_CHECK err heart__take_signal(int *out);
void heart__give_signal(int sig);
void heart__open_to_signal(heart_role *r);
void heart__close_to_signal(heart_role *r);

#endif
