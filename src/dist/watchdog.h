/* Watchdog: a thread that looks at a heart now and then, and says once when a run stands still.
 *
 * A stall is a role that works and has not beaten for stall_seconds, or all living roles waiting for longer than that.
 * Time in which the whole process was stopped (job control, a frozen container) does not count. It decides nothing and ends nothing:
 * the run does, in on_stall. Both calls come from the watchdog's thread and must not wait for a role without a limit. */
#ifndef DIST_WATCHDOG_H
#define DIST_WATCHDOG_H
#include "dist/heart.h"

typedef struct watchdog watchdog;
typedef struct watchdog_options {
    double tick_seconds;  /* 0: half a second */
    double stall_seconds; /* 0: never a stall */
    /* At every tick, and once more when the watchdog stops: the run's live record is written here. May be NULL. */
    void (*on_tick)(void *ctx);
    /* At most once, may be NULL. report: one line of cause, then each role's last phase, step and age, then stacks. */
    void (*on_stall)(void *ctx, const char *report);
    void *ctx;
} watchdog_options;

MUST_CHECK err watchdog_start(watchdog **out, heart *h, const watchdog_options *o);
void watchdog_stop(watchdog *w); /* waits for its thread; NULL is fine */

#endif
