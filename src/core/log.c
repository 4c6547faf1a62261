/* Log lines: formatted on the caller's stack, handed to one sink under one lock.
 *
 * The sink is the process's only shared output state; the program sets it once at start. The default
 * sink writes each line to the standard error stream with a single write, so lines of several threads
 * never mix. A line longer than the buffer is cut. Nothing here fails: a log that cannot be written is lost.
 * The file of a run gets the same lines under the same lock; it is turned over before a line would pass its bound. */
#include "core/log.h"
#include "core/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096, FILE_PATH = PATH_MAX, MAX_FILES = 100 };

typedef struct log_file {
    int open, fd;
    size_t size, max;
    int files;
    char path[FILE_PATH];
} log_file;

/* Allow-listed file-scope state: where lines go. */
static struct {
    pthread_mutex_t lock;
    log_sink sink;
    void *ctx;
    atomic_int level;
    log_file file;
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

/* ---- the file ---- */

/* Opens path for appending; what is there counts. 0 on failure, with errno. */
static int open_file(log_file *f) {
    struct stat st;
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    f->size = f->fd >= 0 && fstat(f->fd, &st) == 0 ? (size_t)st.st_size : 0;
    return f->fd >= 0;
}

/* path.(k-1) becomes path.k, from the last to the first, and path is begun anew. */
static void turn_over(log_file *f) {
    char from[FILE_PATH + 16], to[FILE_PATH + 16];
    if (f->fd >= 0) close(f->fd);
    for (int k = f->files - 1; k >= 1; k--) {
        snprintf(to, sizeof to, "%s.%d", f->path, k);
        if (k > 1)
            snprintf(from, sizeof from, "%s.%d", f->path, k - 1);
        else
            snprintf(from, sizeof from, "%s", f->path);
        rename(from, to); /* the oldest is overwritten; one that is missing is no loss */
    }
    if (f->files == 1) unlink(f->path);
    open_file(f);
    /* Where nothing could be moved the old file is cut: the bound holds. */
    if (f->size && f->fd >= 0 && ftruncate(f->fd, 0) == 0) f->size = 0;
}

static void write_file(log_file *f, log_level level, const char *line) {
    char text[LINE_MAX_BYTES + 64], stamp[21];
    clock_utc(stamp);
    int n = snprintf(text, sizeof text, "%s %s: %s\n", stamp, level_names[level], line);
    if (n <= 0) return;
    if (f->size + (size_t)n > f->max) turn_over(f);
    if (f->fd < 0 || f->size + (size_t)n > f->max) return;
    ssize_t done = write(f->fd, text, (size_t)n);
    if (done > 0) f->size += (size_t)done;
}

err log_file_open(const char *path, size_t max_bytes, int files) {
    if (max_bytes < 2 * LINE_MAX_BYTES || files < 1 || files > MAX_FILES)
        return err_set(ERR_RANGE, "a log of %d files of %zu bytes: 1 to %d files of at least %d",
                       files, max_bytes, MAX_FILES, 2 * LINE_MAX_BYTES);
    if (strlen(path) >= FILE_PATH)
        return err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    err e = ERR_OK;
    pthread_mutex_lock(&state.lock);
    log_file *f = &state.file;
    if (f->open) {
        e = err_set(ERR_REFUSED, "the log of this process goes to %s already, not to %s", f->path,
                    path);
    } else {
        *f = (log_file){.max = max_bytes, .files = files};
        snprintf(f->path, sizeof f->path, "%s", path);
        f->open = open_file(f);
        if (!f->open) e = err_errno("%s cannot be opened", path);
    }
    pthread_mutex_unlock(&state.lock);
    return e;
}

void log_file_close(void) {
    pthread_mutex_lock(&state.lock);
    if (state.file.open && state.file.fd >= 0) close(state.file.fd);
    state.file.open = 0;
    pthread_mutex_unlock(&state.lock);
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

static size_t format(char line[LINE_MAX_BYTES], const char *fmt, va_list ap) {
    int n = vsnprintf(line, LINE_MAX_BYTES, fmt, ap);
    return n < 0 ? 0 : (size_t)n;
}

void log_line(log_level level, const char *fmt, ...) {
    if ((int)level < atomic_load(&state.level)) return;
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    const size_t n = format(line, fmt, ap);
    va_end(ap);
    if (!n) return;
    pthread_mutex_lock(&state.lock);
    if (state.sink)
        state.sink(state.ctx, level, line);
    else
        write_stderr(level, line);
    if (state.file.open) write_file(&state.file, level, line);
    pthread_mutex_unlock(&state.lock);
}

void log_file_line(log_level level, const char *fmt, ...) {
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    const size_t n = format(line, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&state.lock);
    if (n && state.file.open) write_file(&state.file, level, line);
    pthread_mutex_unlock(&state.lock);
}

void log_lines(log_level level, const char *text) {
    while (*text) {
        const size_t n = strcspn(text, "\n");
        if (n) log_line(level, "%.*s", (int)(n < LINE_MAX_BYTES ? n : LINE_MAX_BYTES), text);
        text += n + (text[n] == '\n');
    }
}
