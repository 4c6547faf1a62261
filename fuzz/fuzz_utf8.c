/* Fuzzes the UTF-8 stream: any bytes cut anywhere must send valid text, and the same text as in one piece.
 *
 * The first byte of the input chooses the length of the pieces. The decoder and the validator must agree on
 * where the first bad byte stands. */
#include "core/str.h"
#include "text/utf8.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void stream(const char *s, size_t n, size_t step, str *out) {
    utf8_stream u = {0};
    for (size_t at = 0; at < n; at += step)
        if (utf8_push(&u, s + at, n - at < step ? n - at : step, out)) abort();
    if (utf8_flush(&u, out) || u.n != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    const char *s = (const char *)data + 1;
    n--;
    str whole = {0}, pieces = {0};
    stream(s, n, n, &whole);
    stream(s, n, data[0] % 7 + 1u, &pieces);
    if (whole.n != pieces.n || memcmp(whole.s, pieces.s, whole.n) != 0) abort();
    if (utf8_valid(whole.s, whole.n) != whole.n) abort();
    size_t valid = utf8_valid(s, n), at = 0;
    uint32_t cp;
    for (int k; at < n && (k = utf8_decode(s + at, n - at, &cp)) > 0;) {
        char again[4];
        if (utf8_encode(cp, again) != k || memcmp(again, s + at, (size_t)k) != 0) abort();
        at += (size_t)k;
    }
    if (at != valid) abort();
    if (valid == n && (whole.n != n || memcmp(whole.s, s, n) != 0)) abort();
    str_free(&whole);
    str_free(&pieces);
    return 0;
}
