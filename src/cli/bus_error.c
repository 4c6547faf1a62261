/* The handler of SIGBUS: see bus_error.h.
 *
 * The address leads to the file through /proc/self/maps, read piece by piece with calls that a handler may make: no memory is taken,
 * no lock waited for. A line is "from-to flags offset device inode   path". */
#include "cli/bus_error.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 4600 };

static void say(const char *text, size_t n) {
    ssize_t written = write(STDERR_FILENO, text, n);
    (void)written;
}

static const char *hex(const char *at, uintptr_t *out) {
    for (*out = 0;; at++) {
        const int digit = *at >= '0' && *at <= '9'   ? *at - '0'
                          : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                                                     : -1;
        if (digit < 0) return at;
        *out = *out * 16 + (uintptr_t)digit;
    }
}

/* The path of a line of maps that holds the address; NULL: it does not, or is no file. */
static const char *path_of(const char *line, uintptr_t address) {
    uintptr_t from, to;
    const char *at = hex(line, &from);
    if (*at != '-') return NULL;
    (void)hex(at + 1, &to);
    return address >= from && address < to ? strchr(line, '/') : NULL;
}

static void name_file(uintptr_t address) {
    static const char before[] = "paceline: ", after[] =
                                                   " was cut, or its disk failed, while it "
                                                   "was read; bring it back and start again\n";
    char line[LINE], c;
    size_t n = 0;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && read(fd, &c, 1) == 1) {
        if (c != '\n') {
            if (n + 1 < sizeof line) line[n++] = c;
            continue;
        }
        line[n] = 0;
        n = 0;
        const char *path = path_of(line, address);
        if (!path) continue;
        say(before, sizeof before - 1);
        say(path, strlen(path));
        say(after, sizeof after - 1);
        break;
    }
    if (fd >= 0) close(fd);
}

static void on_bus_error(int sig, siginfo_t *info, void *context) {
    (void)context;
    name_file((uintptr_t)info->si_addr);
    signal(sig, SIG_DFL);
    raise(sig);
}

void bus_error_listen(void) {
    struct sigaction sa = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}
