/* The heart of a run: the board on which its roles (threads) show what they do, and the first failure.
 *
 * Each role joins with its own thread, beats when it begins a phase, says when it waits for another role, and leaves. Beating is lock-free
 * and cheap; reading never stops a role. The first failure is kept with its sentence and ends the run: everyone asks heart_ending
 * at least as often as it waits. Nothing here decides how long is too long: that is dist/watchdog. */
#ifndef DIST_HEART_H
#define DIST_HEART_H
#include "core/str.h"
#include <stdint.h>

enum { HEART_NAME = 64, HEART_MAX_ROLES = 1024 };
typedef struct heart heart;
typedef struct heart_role heart_role;

/* max_roles: how many may join in the heart's life. Takes a real-time signal that nobody handles, for heart_stacks. */
MUST_CHECK err heart_create(heart **out, int max_roles);
void heart_destroy(heart *h); /* after every role left; NULL is fine */

/* By the role's own thread, as are the next four. name is copied: "target 0 on cpu:0". */
MUST_CHECK err heart_join(heart *h, const char *name, heart_role **out);
void heart_leave(heart_role *r);
/* It works from now on. phase is a literal. */
void heart_beat(heart_role *r, const char *phase, int64_t step);
/* It waits for another role from now on; seconds waited are summed and the next heart_beat ends it. Said again with the same what and
 * step, it goes on waiting: a loop may call it at every turn. */
void heart_wait(heart_role *r, const char *what, int64_t step);

/* Any thread. Keeps e and a copy of err_text() of the calling thread; r NULL: no role of its own. 1: this was the first failure. */
int heart_fail(heart *h, heart_role *r, err e);
/* ERR_OK, or the first failure: sets err_text to "ROLE: sentence" and returns its code. */
MUST_CHECK err heart_failure(const heart *h);
int heart_ending(const heart *h); /* a failure happened */

/* Waits until all roles that joined have left, or ERR_INTERNAL naming those that have not, with what they did last. */
MUST_CHECK err heart_join_all(heart *h, double seconds);

typedef struct heart_view {
    char name[HEART_NAME];
    const char *phase; /* of the last heart_beat or heart_wait; "joined" before the first */
    int64_t step;
    double age;    /* seconds since then; since leaving for one that left */
    double waited; /* seconds of waiting in all */
    double lived;  /* seconds since it joined, until it left */
    int waiting, left;
    int torn; /* it was stopped in the middle of a beat: what stands above may be of two moments */
} heart_view;
/* The roles in the order of joining, cap at most; returns how many there are in out. */
int heart_snapshot(const heart *h, heart_view *out, int cap);
/* One line a role: name, phase, step, age. Appended. */
MUST_CHECK err heart_text(const heart *h, str *out);
/* The stack of each living role's thread, appended, innermost call first. Threads that do not answer within 2 s are named so.
 * One caller at a time works, others wait for it. */
MUST_CHECK err heart_stacks(heart *h, str *out);

#endif
