/* The board of a run's roles: what it shows, the first failure, and stacks of threads that stand still.
 *
 * Threads are started here and meet at flags of their own; no test depends on how long anything takes, but for the
 * two seconds that a thread which cannot answer is waited for. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "dist/heart.h"
#include "support/says.h"

static void pause_ms(int ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static void the_board_shows_what_roles_do(void **state) {
    (void)state;
    heart *h;
    heart_role *a, *b;
    heart_view v[4];
    assert_ok(heart_create(&h, 2));
    assert_int_equal(heart_snapshot(h, v, 4), 0);
    assert_ok(heart_join(h, "target 0 on cpu:0", &a));
    assert_ok(heart_join(h, "drafter 0 on cpu:1", &b));
    heart_beat(a, "forward", 7);
    heart_wait(b, "features", 3);
    pause_ms(30);
    assert_int_equal(heart_snapshot(h, v, 4), 2);
    assert_string_equal(v[0].name, "target 0 on cpu:0");
    assert_string_equal(v[0].phase, "forward");
    assert_int_equal(v[0].step, 7);
    assert_false(v[0].waiting);
    assert_true(v[0].waited == 0);
    assert_true(v[0].age >= 0.03 && v[0].lived >= v[0].age);
    assert_true(v[1].waiting);
    assert_true(v[1].waited >= 0.03);
    /* Waiting on in a loop keeps the beginning; another wait or a beat sums. */
    heart_wait(b, v[1].phase, 3);
    pause_ms(10);
    assert_int_equal(heart_snapshot(h, v, 4), 2);
    assert_true(v[1].age >= 0.04);
    heart_wait(b, "gradients", 3);
    heart_beat(b, "backward", 4);
    heart_wait(b, "features", 5);
    pause_ms(10);
    heart_leave(b);
    assert_int_equal(heart_snapshot(h, v, 1), 1);
    assert_int_equal(heart_snapshot(h, v, 4), 2);
    assert_true(v[1].left && !v[1].waiting && v[1].waited >= 0.05 && v[1].lived >= v[1].waited);
    assert_string_equal(v[1].phase, "features");
    str text = {0};
    assert_ok(heart_text(h, &text));
    assert_non_null(strstr(text.s, "target 0 on cpu:0: works at 'forward', step 7, for "));
    assert_non_null(strstr(text.s, "drafter 0 on cpu:1: left after 'features', step 5"));
    str_free(&text);
    assert_says(heart_join(h, "third", &b), ERR_RANGE, "third", "2");
    assert_says(heart_join_all(h, 0.02), ERR_INTERNAL, "target 0 on cpu:0", "forward", "step 7");
    assert_null(strstr(err_text(), "drafter"));
    heart_leave(a);
    assert_ok(heart_join_all(h, 0));
    heart_destroy(h);
}

static void bounds_are_refused(void **state) {
    (void)state;
    heart *h;
    heart_role *r;
    char name[HEART_NAME + 1];
    memset(name, 'n', HEART_NAME);
    name[HEART_NAME] = 0;
    assert_says(heart_create(&h, 0), ERR_RANGE, "0");
    assert_says(heart_create(&h, HEART_MAX_ROLES + 1), ERR_RANGE, "1024");
    assert_ok(heart_create(&h, 1));
    assert_says(heart_join(h, name, &r), ERR_RANGE, "nnnn", "63");
    heart_destroy(h);
    heart_destroy(NULL);
}

/* ---- many threads ---- */

enum { THREADS = 8 };
typedef struct player {
    heart *h;
    int id, won;
    atomic_int *go;
    pthread_t thread;
} player;

static void *fails(void *ctx) {
    player *p = ctx;
    heart_role *r;
    char name[32];
    snprintf(name, sizeof name, "role %d", p->id);
    err e = heart_join(p->h, name, &r);
    while (!atomic_load(p->go)) sched_yield();
    e = err_set(ERR_NUMERIC, "value %d is bad", p->id);
    p->won = heart_fail(p->h, r, e);
    err_clear();
    e = heart_failure(p->h); /* everyone reads the one failure */
    if (e != ERR_NUMERIC || !strstr(err_text(), " is bad")) p->won = -1;
    heart_leave(r);
    return NULL;
}

static void the_first_failure_wins(void **state) {
    (void)state;
    heart *h;
    player p[THREADS];
    atomic_int go = 0;
    int winners = 0, winner = -1;
    char want[64];
    assert_ok(heart_create(&h, THREADS));
    assert_ok(heart_failure(h));
    assert_false(heart_ending(h));
    for (int i = 0; i < THREADS; i++) {
        p[i] = (player){.h = h, .id = i, .go = &go};
        assert_int_equal(pthread_create(&p[i].thread, NULL, fails, &p[i]), 0);
    }
    atomic_store(&go, 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(p[i].thread, NULL);
        assert_true(p[i].won >= 0);
        winners += p[i].won;
        if (p[i].won) winner = i;
    }
    assert_int_equal(winners, 1);
    assert_true(heart_ending(h));
    snprintf(want, sizeof want, "role %d: value %d is bad", winner, winner);
    assert_says(heart_failure(h), ERR_NUMERIC, want);
    assert_int_equal(heart_fail(h, NULL, err_set(ERR_IO, "later")), 0);
    assert_says(heart_failure(h), ERR_NUMERIC, want);
    assert_ok(heart_join_all(h, 1));
    heart_destroy(h);
    assert_ok(heart_create(&h, 1));
    assert_int_equal(heart_fail(h, NULL, ERR_OK), 0);
    assert_false(heart_ending(h));
    assert_int_equal(heart_fail(h, NULL, err_set(ERR_IO, "the disk")), 1);
    assert_says(heart_failure(h), ERR_IO, "the disk");
    heart_destroy(h);
}

static const char even[] = "even", odd[] = "odd";

static void *beats(void *ctx) {
    player *p = ctx;
    heart_role *r;
    if (heart_join(p->h, "beater", &r)) return NULL;
    for (int64_t i = 0; i < 20000; i++) {
        if (i % 3)
            heart_beat(r, i % 2 ? odd : even, i);
        else
            heart_wait(r, i % 2 ? odd : even, i);
        if (i % 64 == 0) sched_yield();
    }
    heart_leave(r);
    return NULL;
}

/* Phase and step of a snapshot belong together, and sums of waiting never fall. One of a role that lost its processor in the
 * middle of a beat says so; the last one is whole. */
static void snapshots_are_of_one_moment(void **state) {
    (void)state;
    heart *h;
    heart_view v;
    player p = {0};
    double waited = 0;
    int seen = 0;
    assert_ok(heart_create(&h, 1));
    p.h = h;
    assert_int_equal(pthread_create(&p.thread, NULL, beats, &p), 0);
    do {
        v.left = 0;
        if (!heart_snapshot(h, &v, 1) || v.torn || !strcmp(v.phase, "joined")) continue;
        assert_ptr_equal(v.phase, v.step % 2 ? odd : even);
        assert_true(v.left || v.waiting == (v.step % 3 == 0));
        assert_true(v.waited >= waited);
        waited = v.waited;
        seen++;
    } while (!v.left);
    assert_true(seen > 0);
    assert_int_equal(v.step, 19999);
    pthread_join(p.thread, NULL);
    heart_destroy(h);
}

/* ---- stacks ---- */

typedef struct stander {
    heart *h;
    const char *name;
    int deaf, spin;
    atomic_int there, go;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
} stander;

static __attribute__((noinline)) void stand_in_a_wait(stander *s) {
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->there, 1);
    while (!atomic_load(&s->go)) pthread_cond_wait(&s->wake, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static __attribute__((noinline)) void stand_in_a_loop(stander *s) {
    atomic_store(&s->there, 1);
    while (!atomic_load(&s->go)) sched_yield();
    atomic_store(&s->there, 2); /* no tail call: the frame stays */
}

static void *stands(void *ctx) {
    stander *s = ctx;
    heart_role *r;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL); /* as threads of a pool are */
    if (heart_join(s->h, s->name, &r)) return NULL;
    if (s->deaf) pthread_sigmask(SIG_SETMASK, &all, NULL);
    heart_beat(r, "standing", 1);
    (s->spin ? stand_in_a_loop : stand_in_a_wait)(s);
    heart_leave(r);
    atomic_store(&s->there, 3);
    return NULL;
}

static void start(stander *s, heart *h, const char *name, int deaf, int spin) {
    *s = (stander){.h = h, .name = name, .deaf = deaf, .spin = spin};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    assert_int_equal(pthread_create(&s->thread, NULL, stands, s), 0);
    while (!atomic_load(&s->there)) sched_yield();
}

static void release(stander *s) {
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->go, 1);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    assert_int_equal(atomic_load(&s->there), 3);
}

/* From the role's headline to the next one. */
static const char *section(const char *text, const char *role, char out[4096]) {
    const char *at = strstr(text, role);
    assert_non_null(at);
    const char *end = strstr(at, "\nstack of ");
    snprintf(out, 4096, "%.*s", (int)(end ? end - at : (long)strlen(at)), at);
    return out;
}

static void stacks_name_where_threads_stand(void **state) {
    (void)state;
    heart *h;
    heart_role *own;
    stander waits, spins, deaf, gone;
    char part[4096];
    str text = {0};
    assert_ok(heart_create(&h, 5));
    start(&waits, h, "the waiter", 0, 0);
    start(&spins, h, "the spinner", 0, 1);
    start(&gone, h, "the gone one", 0, 0);
    release(&gone);
    assert_ok(heart_join(h, "the asker", &own));
    for (int again = 0; again < 3; again++) {
        str_clear(&text);
        assert_ok(heart_stacks(h, &text));
        assert_non_null(strstr(section(text.s, "stack of the waiter", part), "stand_in_a_wait+0x"));
        assert_non_null(
            strstr(section(text.s, "stack of the spinner", part), "stand_in_a_loop+0x"));
        assert_non_null(strstr(section(text.s, "stack of the asker", part), "heart_stacks+0x"));
        assert_null(strstr(text.s, "gone"));
        assert_null(strstr(text.s, "does not answer"));
    }
    start(&deaf, h, "the deaf one", 1, 1);
    str_clear(&text);
    assert_ok(heart_stacks(h, &text));
    assert_non_null(
        strstr(section(text.s, "stack of the deaf one", part), "does not answer within 2 s"));
    assert_non_null(strstr(section(text.s, "stack of the waiter", part), "stand_in_a_wait+0x"));
    str_free(&text);
    release(&deaf); /* its late answer finds nobody asking */
    release(&waits);
    release(&spins);
    heart_leave(own);
    assert_ok(heart_join_all(h, 0));
    heart_destroy(h);
}

/* The signal that a heart took: the one whose action differs from the default. */
static int taken(void) {
    for (int sig = SIGRTMAX; sig >= SIGRTMIN; sig--) {
        struct sigaction a;
        if (sigaction(sig, NULL, &a) == 0 && (a.sa_flags & SA_SIGINFO)) return sig;
    }
    return 0;
}

static void on_other(int sig) { (void)sig; }

static void signals_of_others_are_left_alone(void **state) {
    (void)state;
    heart *h, *second;
    heart_role *r;
    struct sigaction a;
    str text = {0};
    assert_int_equal(taken(), 0);
    signal(SIGRTMAX, on_other);
    assert_ok(heart_create(&h, 1));
    assert_ok(heart_create(&second, 1));
    const int sig = taken();
    assert_true(sig && sig < SIGRTMAX);
    assert_ok(heart_join(h, "main", &r));
    /* From this process without a slot, and from another process with a wild address. */
    kill(getpid(), sig);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        sigqueue(parent, sig, (union sigval){.sival_ptr = (void *)16});
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_ok(heart_stacks(h, &text));
    assert_non_null(strstr(text.s, "signals_of_others_are_left_alone+0x"));
    str_free(&text);
    heart_leave(r);
    heart_destroy(h);
    heart_destroy(second);
    assert_int_equal(taken(), 0);
    assert_int_equal(sigaction(SIGRTMAX, NULL, &a), 0);
    assert_ptr_equal(a.sa_handler, on_other);
    signal(SIGRTMAX, SIG_DFL);
}

static atomic_int ending;

/* Roles come and go while stacks are asked for: nobody is signalled after leaving. */
static void *comes_and_goes(void *ctx) {
    player *p = ctx;
    heart_role *r;
    if (heart_join(p->h, "short-lived", &r)) return NULL;
    for (int i = 0; i < 50; i++) {
        heart_beat(r, "short", i);
        sched_yield();
    }
    heart_leave(r);
    return NULL;
}

static void *asks(void *ctx) {
    while (!atomic_load(&ending)) {
        str text = {0};
        if (heart_stacks(ctx, &text)) return ctx;
        str_free(&text);
    }
    return NULL;
}

static void roles_may_leave_while_stacks_are_read(void **state) {
    (void)state;
    heart *h;
    pthread_t reader;
    void *answer;
    assert_ok(heart_create(&h, 400));
    atomic_store(&ending, 0);
    assert_int_equal(pthread_create(&reader, NULL, asks, h), 0);
    for (int round = 0; round < 100; round++) {
        player p[4];
        for (int i = 0; i < 4; i++) {
            p[i] = (player){.h = h};
            assert_int_equal(pthread_create(&p[i].thread, NULL, comes_and_goes, &p[i]), 0);
        }
        for (int i = 0; i < 4; i++) pthread_join(p[i].thread, NULL);
    }
    atomic_store(&ending, 1);
    pthread_join(reader, &answer);
    assert_null(answer);
    assert_ok(heart_join_all(h, 0));
    heart_destroy(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_board_shows_what_roles_do),
        cmocka_unit_test(bounds_are_refused),
        cmocka_unit_test(the_first_failure_wins),
        cmocka_unit_test(snapshots_are_of_one_moment),
        cmocka_unit_test(stacks_name_where_threads_stand),
        cmocka_unit_test(signals_of_others_are_left_alone),
        cmocka_unit_test(roles_may_leave_while_stacks_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
