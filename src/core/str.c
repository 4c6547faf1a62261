/* Growing byte strings and the few text helpers that sentences need.
 *
 * The buffer grows geometrically and stays terminated. Formatting measures first and then writes in place.
 * Nothing here knows about UTF-8: bytes in, bytes out. */
#include "core/str.h"
#include "core/arena.h"
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The C locale for this thread until it is given back: a program that uses the library may have set one with a decimal comma. */
static locale_t enter_c(void) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a constant of the C library */
    return c ? uselocale(c) : (locale_t)0;
}
static void leave_c(locale_t before) {
    if (!before) return;
    locale_t c = uselocale(before);
    if (c != before) freelocale(c);
}

err str_add(str *b, const void *bytes, size_t n) {
    if (n >= SIZE_MAX - b->n)
        return err_set(ERR_MEMORY, "a text of %zu and %zu more bytes cannot be addressed", b->n, n);
    TRY(mem_grow(&b->s, &b->cap, b->n + n + 1, 1));
    if (n) memcpy(b->s + b->n, bytes, n);
    b->n += n;
    b->s[b->n] = 0;
    return ERR_OK;
}

float str_to_float(const char *text, char **end) {
    locale_t before = enter_c();
    float f = strtof(text, end);
    leave_c(before);
    return f;
}

err str_printf(str *b, const char *fmt, ...) {
    va_list ap, again;
    locale_t before = enter_c();
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    err e = n < 0 ? err_set(ERR_INTERNAL, "a text could not be formatted ('%s')", fmt)
                  : mem_grow(&b->s, &b->cap, b->n + (size_t)n + 1, 1);
    if (!e) {
        vsnprintf(b->s + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    leave_c(before);
    return e;
}

void str_clear(str *b) {
    b->n = 0;
    if (b->s) b->s[0] = 0;
}

void str_free(str *b) {
    mem_free(b->s);
    *b = (str){0};
}

enum { WORD_MAX = 63 };

/* Edit distance with swaps of neighbours (optimal string alignment); words are short. */
static int distance(const char *a, size_t na, const char *b, size_t nb) {
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++) last[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        int *spare = before;
        before = last, last = now, now = spare;
    }
    return last[nb];
}

const char *str_nearest(const char *word, const char *const *candidates, int n) {
    size_t length = strlen(word);
    if (!length || length > WORD_MAX) return NULL;
    int best = (int)(length + 2) / 3 + 1; /* a third of the word, rounded up, may be wrong */
    const char *found = NULL;
    for (int i = 0; i < n; i++)
        if (strcasecmp(word, candidates[i]) == 0) return candidates[i];
    for (int i = 0; i < n; i++) {
        size_t other = strlen(candidates[i]);
        if (!other || other > WORD_MAX) continue;
        int d = distance(word, length, candidates[i], other);
        if (d >= best || d >= (int)other) continue;
        best = d;
        found = candidates[i];
    }
    return found;
}

const char *str_bytes(double bytes, char buf[24]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    while (bytes >= 1023.5 && u < 5) bytes /= 1024, u++;
    snprintf(buf, 24, bytes < 9.95 && u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

const char *str_thousands(long long v, char buf[32]) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", v), at = 0;
    int start = digits[0] == '-';
    for (int i = 0; i < n; i++) {
        if (i > start && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}
