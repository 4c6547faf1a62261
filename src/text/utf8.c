/* UTF-8 by the table of well-formed sequences (Unicode 3.9, table 3-7): no overlong forms, no
 * surrogates, nothing above U+10FFFF. The stream replaces by the WHATWG rule: each longest piece
 * that could have begun a character becomes one U+FFFD. It knows no normal forms, no grapheme
 * clusters and no other encodings. */
#include "text/utf8.h"
#include <string.h>

/* Range of the second byte for a lead byte, and the sequence's length; length 0 for a byte that
 * cannot lead. */
static int lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xbf;
    if (c < 0x80) return 1;
    if (c < 0xc2) return 0;
    if (c < 0xe0) return 2;
    if (c < 0xf0) {
        if (c == 0xe0) *low = 0xa0;
        if (c == 0xed) *high = 0x9f;
        return 3;
    }
    if (c > 0xf4) return 0;
    if (c == 0xf0) *low = 0x90;
    if (c == 0xf4) *high = 0x8f;
    return 4;
}

/* Bytes at s that form the beginning of a character: *want is its whole length (0: s[0] cannot lead),
 * the result how many of the n bytes agree with it (at least 1 when *want is not 0). */
static int prefix(const char *s, size_t n, int *want) {
    unsigned char low, high;
    *want = lead((unsigned char)s[0], &low, &high);
    if (*want == 0) return 0;
    int i = 1;
    for (; i < *want && (size_t)i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < low || c > high) break;
        low = 0x80;
        high = 0xbf;
    }
    return i;
}

int utf8_decode(const char *s, size_t n, uint32_t *cp) {
    if (n == 0) return 0;
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    int want, have = prefix(s, n, &want);
    if (want == 0 || have < want) return 0;
    uint32_t c = u[0] & (0x7fu >> want);
    for (int i = 1; i < want; i++) c = c << 6 | (u[i] & 0x3fu);
    *cp = c;
    return want;
}

size_t utf8_valid(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (n - i >= 8) { /* eight ASCII bytes at a time */
            memcpy(&word, s + i, 8);
            if (word & 0x8080808080808080u) break;
            i += 8;
        }
        if (i == n) break;
        uint32_t cp;
        int k = utf8_decode(s + i, n - i, &cp);
        if (k == 0) return i;
        i += (size_t)k;
    }
    return n;
}

int utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00 >> n & 0xff) | cp);
    return n;
}

static err add_replacement(str *out) { return str_add(out, "\xef\xbf\xbd", 3); }

/* Appends the characters of s[0..n): whole ones as they are, broken ones as U+FFFD, and returns in
 * *used how many bytes are dealt with: fewer than n only when the rest is the beginning of a
 * character. */
static err push_bytes(const char *s, size_t n, str *out, size_t *used) {
    size_t i = 0, sent = 0; /* s[sent..i) is well-formed and not yet appended */
    while (i < n) {
        int want, have = prefix(s + i, n - i, &want);
        if (want > 0 && have == want) {
            i += (size_t)want;
            continue;
        }
        if (want > 0 && i + (size_t)have == n) break;
        if (i > sent) TRY(str_add(out, s + sent, i - sent));
        TRY(add_replacement(out));
        i += want == 0 ? 1 : (size_t)have;
        sent = i;
    }
    if (i > sent) TRY(str_add(out, s + sent, i - sent));
    *used = i;
    return ERR_OK;
}

err utf8_push(utf8_stream *u, const char *bytes, size_t n, str *out) {
    size_t used;
    while (u->n > 0 && n > 0) { /* a character begun earlier takes bytes one by one */
        char joined[8];
        memcpy(joined, u->tail, (size_t)u->n);
        joined[u->n] = bytes[0];
        TRY(push_bytes(joined, (size_t)u->n + 1, out, &used));
        u->n = u->n + 1 - (int)used;
        memcpy(u->tail, joined + used, (size_t)u->n);
        bytes++;
        n--;
    }
    if (n == 0) return ERR_OK;
    TRY(push_bytes(bytes, n, out, &used));
    u->n = (int)(n - used);
    memcpy(u->tail, bytes + used, (size_t)u->n);
    return ERR_OK;
}

err utf8_flush(utf8_stream *u, str *out) {
    if (u->n == 0) return ERR_OK;
    u->n = 0; /* a kept tail is one unfinished character */
    return add_replacement(out);
}
