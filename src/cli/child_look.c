/* Looks in a child process: see child_look.h.
 *
 * The bytes come through a pipe; a pipe that ends early means that the look ended the child. The time limit is an
 * alarm in the child, so a child that outlives a crashed parent ends, too. */
#include "cli/child_look.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 30 };

static int send_all(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        bytes += done;
        n -= (size_t)done;
    }
    return 1;
}

static void child(int fd, void (*look)(void *, void *), void *ctx, void *out, size_t n) {
    int null = open("/dev/null", O_RDWR);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    alarm(SECONDS);
    if (null >= 0) dup2(null, 0), dup2(null, 1), dup2(null, 2);
    look(ctx, out);
    _exit(send_all(fd, out, n) ? 0 : 1);
}

static void tell_end(int status, char fault[160]) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(fault, 160, "takes more than %d s", SECONDS);
    else if (WIFSIGNALED(status))
        snprintf(fault, 160, "ends the process (signal %d)", WTERMSIG(status));
    else
        snprintf(fault, 160, "ends the process (code %d)", WEXITSTATUS(status));
}

void child_look(void (*look)(void *ctx, void *out), void *ctx, void *out, size_t n,
                char fault[160]) {
    int ends[2], status = 0;
    size_t got = 0;
    memset(out, 0, n);
    fault[0] = 0;
    if (pipe2(ends, O_CLOEXEC)) {
        snprintf(fault, 160, "is not possible: there is no pipe for a child");
        return;
    }
    pid_t pid = fork();
    if (pid == 0) child(ends[1], look, ctx, out, n);
    close(ends[1]);
    while (pid > 0 && got < n) {
        ssize_t part = read(ends[0], (char *)out + got, n - got);
        if (part < 0 && errno == EINTR) continue;
        if (part <= 0) break;
        got += (size_t)part;
    }
    close(ends[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (got == n) return;
    memset(out, 0, n);
    if (pid < 0)
        snprintf(fault, 160, "is not possible: no child could be started");
    else
        tell_end(status, fault);
}
