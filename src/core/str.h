/* Growing byte string, and the few text helpers that sentences need.
 *
 * A zeroed str is empty and valid; str_free makes it that again. Bytes in, bytes out: UTF-8 is
 * the business of text/. */
#ifndef CORE_STR_H
#define CORE_STR_H
#include "core/err.h"
#include <stddef.h>

typedef struct str {
    char *s;
    size_t n, cap;
} str; /* s is NUL-terminated once anything was added */
MUST_CHECK err str_add(str *b, const void *bytes, size_t n);
/* Numbers are written as in C, whatever the program's locale. */
MUST_CHECK err str_printf(str *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_clear(str *b); /* keeps the buffer */
void str_free(str *b);
/* strtof with a decimal point, whatever the program's locale. */
float str_to_float(const char *text, char **end);
/* The candidate nearest to word by edit distance, one that differs in case alone first, or NULL when none is near enough to
 * suggest. */
const char *str_nearest(const char *word, const char *const *candidates, int n);
/* "1.5 GiB", "312 KiB" into buf, returned. */
const char *str_bytes(double bytes, char buf[24]);
/* "1,234,567" into buf, returned. */
const char *str_thousands(long long v, char buf[32]);

#endif
