/* Processes by identity: a recycled number, another boot, host or namespace are never taken for the process that was meant.
 *
 * The processes are children of the test. Since a number cannot be made to come back on demand, identities are forged instead: the number of a
 * living process with another start time is what a recycled number looks like. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/process.h"
#include "support/says.h"

/* A child that sleeps until a signal ends it. */
static pid_t sleeper(void) {
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGTERM, SIG_DFL);
        for (;;) pause();
    }
    return pid;
}

static void oneself(void **state) {
    (void)state;
    process_id me;
    assert_ok(process_self(&me));
    assert_int_equal(me.pid, getpid());
    assert_true(me.start > 0 && me.start == process_start(getpid()));
    assert_true(strlen(me.boot) > 10 && me.host[0]);
    assert_memory_equal(me.space, "pid:[", 5);
    assert_int_equal(process_look(&me), PROCESS_RUNS);
    assert_true(process_resident(me.pid) > 100000);
    assert_int_equal(process_resident(0x3fffffff), 0);
    assert_int_equal(process_start(0x3fffffff), 0);
    assert_says(process_identify(0x3fffffff, &me), ERR_REFUSED, "1073741823");
}

static void what_is_not_the_same_process(void **state) {
    (void)state;
    process_id p, other;
    process_handle h;
    const pid_t pid = sleeper();
    assert_ok(process_identify(pid, &p));
    assert_int_equal(process_look(&p), PROCESS_RUNS);
    other = p;
    other.start++; /* the number was used again */
    assert_int_equal(process_look(&other), PROCESS_GONE);
    assert_says(process_open(&h, &other), ERR_REFUSED, "does not run");
    assert_int_equal(h.fd, -1);
    other = p;
    other.boot[3] ^= 1;
    assert_int_equal(process_look(&other), PROCESS_GONE);
    other = p;
    snprintf(other.host, sizeof other.host, "elsewhere");
    assert_int_equal(process_look(&other), PROCESS_UNSEEN);
    assert_says(process_open(&h, &other), ERR_REFUSED, "elsewhere");
    other = p;
    snprintf(other.space, sizeof other.space, "pid:[1]");
    assert_int_equal(process_look(&other), PROCESS_UNSEEN);
    other = (process_id){0};
    assert_int_equal(process_look(&other), PROCESS_GONE);
    assert_says(process_open(&h, &other), ERR_REFUSED, "no process");
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(process_look(&p), PROCESS_GONE);
}

/* without: as on a kernel that has no descriptors of processes. */
static void signal_and_wait(int without) {
    process_id p;
    process_handle h;
    int sent, status;
    const pid_t pid = sleeper();
    assert_ok(process_identify(pid, &p));
    assert_ok(process_open(&h, &p));
    if (without) process_close(&h);
    assert_int_equal(process_wait(&h, 0), 0);
    assert_int_equal(process_wait(&h, 0.02), 0);
    assert_ok(process_signal(&h, SIGTERM, &sent));
    assert_int_equal(sent, 1);
    assert_int_equal(process_wait(&h, 30), 1); /* a zombie of ours from here on */
    assert_int_equal(process_look(&p), PROCESS_GONE);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WTERMSIG(status), SIGTERM);
    assert_ok(process_signal(&h, SIGTERM, &sent));
    assert_int_equal(sent, 0);
    process_close(&h);
}

static void signals_reach_the_one_that_was_opened(void **state) {
    (void)state;
    signal_and_wait(0);
    signal_and_wait(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oneself),
        cmocka_unit_test(what_is_not_the_same_process),
        cmocka_unit_test(signals_reach_the_one_that_was_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
