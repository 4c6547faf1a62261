/* Processes by identity, over /proc and process descriptors: see process.h.
 *
 * /proc/PID/stat gives state and start time; the name in it may hold anything, so fields count from its last parenthesis. Opening a
 * descriptor comes before the identity is checked: from then on the descriptor means that process whatever becomes of its
 * number. Without descriptors the check comes right before the signal, which leaves a gap of microseconds. */
#include "core/process.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

/* A small file's first bytes, terminated; the number of bytes, 0 when it cannot be read. */
static size_t read_small(const char *path, char *text, size_t n) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, n - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

/* State letter and start time; 0 returned when the process is not visible. */
static int read_stat(int64_t pid, char *state, uint64_t *start) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    if (!read_small(path, text, sizeof text)) return 0;
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ') return 0;
    *state = p[2];
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    *start = p ? strtoull(p, NULL, 10) : 0;
    return p != NULL;
}

uint64_t process_start(int64_t pid) {
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) ? start : 0;
}

/* What is common to all processes that are seen from here. */
static void identify_here(process_id *out) {
    *out = (process_id){0};
    if (read_small("/proc/sys/kernel/random/boot_id", out->boot, sizeof out->boot))
        out->boot[strcspn(out->boot, "\n")] = 0;
    ssize_t n = readlink("/proc/self/ns/pid", out->space, sizeof out->space - 1);
    out->space[n > 0 ? n : 0] = 0;
    if (gethostname(out->host, sizeof out->host - 1) != 0) out->host[0] = 0;
}

err process_identify(int64_t pid, process_id *out) {
    identify_here(out);
    out->pid = pid;
    out->start = process_start(pid);
    if (out->start) return ERR_OK;
    return err_set(ERR_REFUSED, "process %lld is not visible here: /proc does not show it",
                   (long long)pid);
}

err process_self(process_id *out) { return process_identify(getpid(), out); }

process_state process_look(const process_id *p) {
    process_id here;
    char state;
    uint64_t start;
    if (p->pid <= 0) return PROCESS_GONE;
    identify_here(&here);
    if (strcmp(p->host, here.host) != 0) return PROCESS_UNSEEN;
    if (strcmp(p->boot, here.boot) != 0) return PROCESS_GONE; /* this machine has restarted */
    if (strcmp(p->space, here.space) != 0) return PROCESS_UNSEEN;
    if (!read_stat(p->pid, &state, &start))
        return kill((pid_t)p->pid, 0) != 0 && errno == ESRCH ? PROCESS_GONE : PROCESS_UNSEEN;
    if (start != p->start || state == 'Z' || state == 'X') return PROCESS_GONE;
    return PROCESS_RUNS;
}

err process_open(process_handle *out, const process_id *p) {
    *out = (process_handle){.id = *p, .fd = -1};
    if (p->pid <= 0) return err_set(ERR_REFUSED, "no process is named");
    out->fd = pidfd_open((pid_t)p->pid, 0);
    if (process_look(p) == PROCESS_RUNS && kill((pid_t)p->pid, 0) == 0) return ERR_OK;
    const int denied = process_look(p) == PROCESS_RUNS;
    process_close(out);
    return err_set(ERR_REFUSED,
                   denied ? "process %lld on %s belongs to another user; ask its owner"
                          : "process %lld on %s does not run here",
                   (long long)p->pid, p->host);
}

void process_close(process_handle *h) {
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
}

err process_signal(const process_handle *h, int sig, int *sent) {
    *sent = 0;
    int r;
    if (h->fd >= 0)
        r = pidfd_send_signal(h->fd, sig, NULL, 0);
    else if (process_look(&h->id) == PROCESS_RUNS)
        r = kill((pid_t)h->id.pid, sig);
    else
        return ERR_OK;
    if (r != 0 && errno == ESRCH) return ERR_OK;
    if (r != 0) return err_errno("process %lld cannot be signalled", (long long)h->id.pid);
    *sent = 1;
    return ERR_OK;
}

int process_wait(const process_handle *h, double seconds) {
    const double end = clock_seconds() + seconds;
    for (;;) {
        const double left = end - clock_seconds();
        const int ms = left > 0.05 ? 50 : left > 0 ? (int)(left * 1000) + 1 : 0;
        struct pollfd p = {.fd = h->fd, .events = POLLIN};
        /* A descriptor is ready when the last thread has ended, and its memory with it. */
        const int ready = poll(&p, h->fd >= 0, ms) > 0;
        if (ready || (h->fd < 0 && process_look(&h->id) != PROCESS_RUNS)) return 1;
        if (left <= 0) return 0;
    }
}

uint64_t process_resident(int64_t pid) {
    char path[64], text[256];
    unsigned long long pages;
    snprintf(path, sizeof path, "/proc/%lld/statm", (long long)pid);
    if (!read_small(path, text, sizeof text) || sscanf(text, "%*u %llu", &pages) != 1) return 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
