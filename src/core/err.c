/* Errors: the thread's last sentence.
 *
 * Each thread owns one fixed buffer; setting formats into a second buffer first, so that the arguments
 * may include err_text() itself. A sentence longer than the buffer is cut at its end.
 * Nothing here allocates, prints or ends the process. */
#include "core/err.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 2048 };

static _Thread_local char last_text[TEXT_MAX];

/* vsnprintf's length, held inside a buffer of n bytes. */
static size_t written(int r, size_t n) {
    if (r < 0) return 0;
    return (size_t)r < n ? (size_t)r : n - 1;
}

err err_set(err code, const char *fmt, ...) {
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    size_t n = written(vsnprintf(text, sizeof text, fmt, ap), sizeof text);
    va_end(ap);
    text[n] = 0;
    memcpy(last_text, text, n + 1);
    return code;
}

err err_context(err code, const char *fmt, ...) {
    if (code == ERR_OK) return code;
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    size_t n = written(vsnprintf(text, sizeof text, fmt, ap), sizeof text);
    va_end(ap);
    size_t rest = strlen(last_text);
    if (rest > sizeof text - 1 - n) rest = sizeof text - 1 - n;
    memcpy(text + n, last_text, rest);
    text[n + rest] = 0;
    memcpy(last_text, text, n + rest + 1);
    return code;
}

err err_errno(const char *fmt, ...) {
    int number = errno;
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    size_t n = written(vsnprintf(text, sizeof text, fmt, ap), sizeof text);
    va_end(ap);
    char reason[128];
    /* The GNU form: it may answer with a constant string of its own instead of the buffer. */
    const char *why = strerror_r(number, reason, sizeof reason);
    text[n] = 0;
    errno = number;
    return err_set(number == ENOMEM ? ERR_MEMORY : ERR_IO, "%s: %s", text, why);
}

const char *err_text(void) { return last_text; }

const char *err_name(err code) {
    switch (code) {
    case ERR_OK: return "ok";
#define X(name, text)                                                                              \
    case name:                                                                                     \
        return text;
#include "core/err.def"
#undef X
    case ERR_COUNT: break;
    }
    return "unknown error";
}

void err_clear(void) { last_text[0] = 0; }
