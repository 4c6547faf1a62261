/* Progress on standard error: see progress.h. Lines are cut to the terminal's width so that rewriting
 * works; nothing is drawn faster than an eye can follow. Numbers are printed as they are given; no
 * estimate is made here. */
#include "cli/progress.h"
#include "core/clock.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void progress_start(progress *p) {
    *p = (progress){.terminal = isatty(STDERR_FILENO)};
    p->every = p->terminal ? 0.1 : 10.0;
    p->last = p->terminal ? 0 : clock_seconds();
}

static int width(void) {
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || w.ws_col < 20) return 79;
    return w.ws_col - 1;
}

void progress_line(progress *p, int force, const char *fmt, ...) {
    char text[512];
    va_list ap;
    double now = clock_seconds();
    if (!force && now - p->last < p->every) return;
    p->last = now;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (p->terminal) {
        fprintf(stderr, "\r%.*s\033[K", width(), text);
        p->open = 1;
    } else {
        fprintf(stderr, "%s\n", text);
    }
    fflush(stderr);
}

void progress_end(progress *p) {
    if (p->open) fputc('\n', stderr);
    p->open = 0;
}
