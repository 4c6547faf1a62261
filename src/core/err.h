/* Errors: every fallible function returns err (0 = ok) and is marked MUST_CHECK.
 *
 * The sentence is made once, where the failure happens, by err_set; callers forward the code with TRY
 * and may put context in front with err_context ("FILE: "). The text lives in thread-local storage;
 * a thread pool copies it from the worker to the caller. Nothing here prints, exits or allocates. */
#ifndef CORE_ERR_H
#define CORE_ERR_H

typedef enum err {
    ERR_OK = 0,
#define X(name, text) name,
#include "core/err.def"
#undef X
    ERR_COUNT
} err;

#define MUST_CHECK             __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Sets this thread's text and returns code, so that `return err_set(ERR_IO, "...")` is the idiom.
 * One sentence: what is wrong, where (file, line, tensor, column), what to do. No trailing newline. */
err err_set(err code, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Puts a prefix in front of the present text and returns code unchanged (no-op for ERR_OK). */
err err_context(err code, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* errno's text joined: "fmt...: No space left on device". Code is ERR_MEMORY for ENOMEM, else ERR_IO. */
err err_errno(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Text of this thread's last error, "" when none. Valid until the next err_* call of this thread. */
const char *err_text(void);
/* Short name of a code ("malformed file"). */
const char *err_name(err code);
void err_clear(void);

/* Forward a failure unchanged. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        err try_code_ = (call);                                                                    \
        if (try_code_) return try_code_;                                                           \
    } while (0)
/* Forward a failure to the one cleanup label of the function; needs `err e` in scope. */
#define TRY_GOTO(call, label)                                                                      \
    do {                                                                                           \
        e = (call);                                                                                \
        if (e) goto label;                                                                         \
    } while (0)

#endif
