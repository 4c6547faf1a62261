/* Asserting on failures: the code, and what the sentence must name.
 *
 * assert_says(call, ERR_FORMAT, "file.x", "tensor 'a'") runs the call once, wants that code, and wants every
 * text in err_text(). Include after cmocka.h; use in the main thread only. */
#ifndef SUPPORT_SAYS_H
#define SUPPORT_SAYS_H
#include "core/err.h"
#include <stdio.h>
#include <string.h>

static inline void says_check(err got, err wanted, const char *const *parts, const char *file,
                              int line) {
    if (got != wanted) printf("got '%s': %s\n", err_name(got), err_text());
    _assert_int_equal((unsigned long)got, (unsigned long)wanted, file, line);
    for (; *parts; parts++) {
        if (!strstr(err_text(), *parts)) printf("'%s' is not in: %s\n", *parts, err_text());
        _assert_true((unsigned long)(strstr(err_text(), *parts) != NULL), *parts, file, line);
    }
}

#define assert_says(call, code, ...)                                                               \
    says_check((call), (code), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

/* The call succeeds; its sentence is shown when it does not. */
#define assert_ok(call) says_check((call), ERR_OK, (const char *const[]){NULL}, __FILE__, __LINE__)

#endif
