/* The watchdog: ticks, a stall found and told once, and what is no stall.
 *
 * Limits are about a second, and grow where the machine is too busy for them. Nothing asserts how fast a stall is found, only that it is, and that none is
 * told where every role goes on. The stopped process is a child of the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "dist/watchdog.h"
#include "support/says.h"

static void pause_ms(int ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

typedef struct seen {
    atomic_int ticks, stalls;
    char report[16384]; /* written before stalls is raised */
} seen;

static void on_tick(void *ctx) { atomic_fetch_add(&((seen *)ctx)->ticks, 1); }

static void on_stall(void *ctx, const char *report) {
    seen *s = ctx;
    snprintf(s->report, sizeof s->report, "%s", report);
    atomic_fetch_add(&s->stalls, 1);
}

static watchdog_options options(seen *s, double stall) {
    return (watchdog_options){.tick_seconds = 0.01,
                              .stall_seconds = stall,
                              .on_tick = on_tick,
                              .on_stall = on_stall,
                              .ctx = s};
}

/* ---- a role that works in a thread of its own, or stands still there ---- */

typedef struct worker {
    heart *h;
    const char *name;
    int waits;
    atomic_int there, go, beating;
    pthread_t thread;
} worker;

static __attribute__((noinline)) void stand_still(worker *w) {
    while (!atomic_load(&w->go)) {
        pause_ms(2);
        if (atomic_load(&w->beating)) return;
    }
}

static void *work(void *ctx) {
    worker *w = ctx;
    heart_role *r;
    if (heart_join(w->h, w->name, &r)) return NULL;
    for (int64_t i = 1; !atomic_load(&w->go); i++) {
        if (w->waits)
            heart_wait(r, "features", 9);
        else
            heart_beat(r, "backward", i);
        atomic_store(&w->there, 1);
        if (!atomic_load(&w->beating))
            stand_still(w);
        else
            pause_ms(1);
    }
    heart_leave(r);
    return NULL;
}

static void start(worker *w, heart *h, const char *name, int waits, int beating) {
    *w = (worker){.h = h, .name = name, .waits = waits, .beating = beating};
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    while (!atomic_load(&w->there)) pause_ms(1);
}

static void stop(worker *w) {
    atomic_store(&w->go, 1);
    pthread_join(w->thread, NULL);
}

static void await(atomic_int *what, int n) {
    while (atomic_load(what) < n) pause_ms(1);
}

/* One stall under a limit; 0: the machine was so busy that the other role did not beat within it either. */
static int a_stall_is_told(double limit) {
    heart *h;
    watchdog *dog;
    worker still, lively;
    seen s = {0};
    const watchdog_options o = options(&s, limit);
    assert_ok(heart_create(&h, 2));
    start(&lively, h, "target 0 on cpu:0", 0, 1);
    start(&still, h, "drafter 0 on cpu:1", 0, 0);
    assert_ok(watchdog_start(&dog, h, &o));
    await(&s.stalls, 1);
    const int ticks = atomic_load(&s.ticks);
    await(&s.ticks, ticks + 30); /* it goes on ticking, and tells the stall once */
    assert_int_equal(atomic_load(&s.stalls), 1);
    const int told =
        strstr(s.report, "drafter 0 on cpu:1 gives no sign of life since ") == s.report;
    if (told) assert_non_null(strstr(s.report, "in 'backward' of step 1\n"));
    assert_non_null(strstr(s.report, "target 0 on cpu:0: works at 'backward', step "));
    assert_non_null(strstr(strstr(s.report, "stack of drafter 0"), "stand_still+0x"));
    assert_non_null(strstr(s.report, "stack of target 0"));
    watchdog_stop(dog);
    assert_true(atomic_load(&s.ticks) > ticks);
    stop(&still);
    stop(&lively);
    heart_destroy(h);
    return told;
}

static void a_role_that_works_and_does_not_beat_is_a_stall(void **state) {
    (void)state;
    double limit = 0.6;
    while (limit < 20 && !a_stall_is_told(limit)) limit *= 2;
    assert_true(limit < 20);
}

static void roles_that_all_wait_are_a_stall(void **state) {
    (void)state;
    heart *h;
    watchdog *dog;
    worker a, b, gone;
    seen s = {0};
    const watchdog_options o = options(&s, 0.15);
    assert_ok(heart_create(&h, 3));
    start(&gone, h, "one that left", 0, 1);
    stop(&gone);
    start(&a, h, "a", 1, 0);
    start(&b, h, "b", 1, 0);
    assert_ok(watchdog_start(&dog, h, &o));
    await(&s.stalls, 1);
    assert_ptr_equal(strstr(s.report, "all roles wait for each other since "), s.report);
    assert_non_null(strstr(s.report, "b: waits for 'features', step 9, for "));
    assert_non_null(strstr(s.report, "one that left: left after 'backward'"));
    watchdog_stop(dog);
    stop(&a);
    stop(&b);
    heart_destroy(h);
}

/* Waiting for one that works is no stall, however long; no limit, no roles and roles that have left neither. */
static void who_goes_on_is_left_alone(void **state) {
    (void)state;
    heart *h;
    watchdog *dog;
    worker waits, lively;
    seen s = {0};
    watchdog_options o = options(&s, 2.0);
    assert_ok(heart_create(&h, 3));
    assert_ok(watchdog_start(&dog, h, &o));
    await(&s.ticks, 5);
    start(&lively, h, "lively", 0, 1);
    start(&waits, h, "waits", 1, 0);
    pause_ms(2500);
    assert_int_equal(atomic_load(&s.stalls), 0);
    watchdog_stop(dog);
    stop(&lively); /* from here on the other one waits alone */
    o.stall_seconds = 0;
    assert_ok(watchdog_start(&dog, h, &o));
    pause_ms(200);
    watchdog_stop(dog);
    assert_int_equal(atomic_load(&s.stalls), 0);
    o.on_tick = NULL;
    o.stall_seconds = 0.1;
    assert_ok(watchdog_start(&dog, h, &o));
    await(&s.stalls, 1);
    watchdog_stop(dog);
    stop(&waits);
    heart_destroy(h);
}

/* The role of the child: it beats at every second tick of the watchdog itself, so none is missed where threads wait for a processor. */
typedef struct child_state {
    seen s; /* first: on_stall takes it */
    heart_role *role;
} child_state;

static void on_tick_of_child(void *ctx) {
    child_state *c = ctx;
    const int ticks = atomic_fetch_add(&c->s.ticks, 1) + 1;
    if (ticks % 2 == 0) heart_beat(c->role, "work", ticks);
}

/* A process that was stopped and goes on has no stall; exits with the number of stalls told. At the tick between two beats an age is
 * one tick, a second that the watchdog may be late without taking the process for stopped, and half the limit for its look: less than the
 * limit. */
static void child(int ready) {
    heart *h;
    watchdog *dog;
    static child_state c;
    const watchdog_options o = {.tick_seconds = 0.1,
                                .stall_seconds = 2.3,
                                .on_tick = on_tick_of_child,
                                .on_stall = on_stall,
                                .ctx = &c};
    if (heart_create(&h, 1) || heart_join(h, "main", &c.role)) _exit(99);
    heart_beat(c.role, "work", 0);
    if (watchdog_start(&dog, h, &o)) _exit(99);
    if (write(ready, "x", 1) != 1) _exit(98);
    await(&c.s.ticks, 12);
    watchdog_stop(dog);
    _exit(atomic_load(&c.s.stalls));
}

static void a_stopped_process_is_no_stall(void **state) {
    (void)state;
    int ready[2], status;
    char x;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) child(ready[1]);
    assert_int_equal(read(ready[0], &x, 1), 1);
    kill(pid, SIGSTOP);
    pause_ms(3000); /* longer than the limit */
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(ready[0]);
    close(ready[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_stopped_process_is_no_stall), /* first: it forks before there are threads */
        cmocka_unit_test(a_role_that_works_and_does_not_beat_is_a_stall),
        cmocka_unit_test(roles_that_all_wait_are_a_stall),
        cmocka_unit_test(who_goes_on_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
