/* UTF-8: validation, decoding, and a stream that never sends half a character.
 *
 * Broken sequences become U+FFFD, one per longest piece that could have begun a character (the
 * WHATWG rule); an incomplete tail is flushed once, by utf8_flush. */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H
#include "core/str.h"
#include <stdint.h>

/* Offset of the first invalid byte, or n when all is valid (strict: no surrogates, no overlong
 * forms). */
size_t utf8_valid(const char *s, size_t n);
/* Decodes one code point at s (n > 0 bytes left): length 1..4, or 0 when invalid/incomplete. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]);

typedef struct utf8_stream {
    char tail[4];
    int n;
} utf8_stream; /* zero to start */
/* Appends to out the characters that became complete; keeps the incomplete tail. Invalid sequences
 * become U+FFFD. */
MUST_CHECK err utf8_push(utf8_stream *u, const char *bytes, size_t n, str *out);
MUST_CHECK err utf8_flush(utf8_stream *u, str *out);

#endif
