/* Log lines: formatted on the caller's stack, handed to one sink under one lock.
 *
 * The sink is the process's only shared output state; the program sets it once at start. The default
 * sink writes each line to the standard error stream with a single write, so lines of several threads
 * never mix. A line longer than the buffer is cut. Nothing here fails: a log that cannot be written is lost. */
#include "core/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

/* Allow-listed file-scope state: where lines go. */
static struct {
    pthread_mutex_t lock;
    log_sink sink;
    void *ctx;
    atomic_int level;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static void write_stderr(log_level level, const char *line) {
    static const char *const prefix[] = {"debug: ", "", "warning: ", "error: "};
    char text[LINE_MAX_BYTES + 16];
    int n = snprintf(text, sizeof text, "%s%s\n", prefix[level], line);
    if (n <= 0) return;
    size_t size = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    ssize_t done = write(STDERR_FILENO, text, size);
    (void)done;
}

void log_set_sink(log_sink sink, void *ctx) {
    pthread_mutex_lock(&state.lock);
    state.sink = sink;
    state.ctx = ctx;
    pthread_mutex_unlock(&state.lock);
}

void log_set_level(log_level level) { atomic_store(&state.level, (int)level); }

int log_parse_level(const char *name, log_level *out) {
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *out = (log_level)i;
        return 1;
    }
    return 0;
}

void log_line(log_level level, const char *fmt, ...) {
    if ((int)level < atomic_load(&state.level)) return;
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    pthread_mutex_lock(&state.lock);
    if (state.sink)
        state.sink(state.ctx, level, line);
    else
        write_stderr(level, line);
    pthread_mutex_unlock(&state.lock);
}
