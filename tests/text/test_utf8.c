/* UTF-8: every code point, all edges of four bytes against a plain definition, streams cut at every place (B57).
 *
 * What a stream sends, joined with its flush, must equal the whole output decoded at once, and every part of it
 * must be whole characters. */
#include "core/str.h"
#include "support/numbers.h"
#include "text/utf8.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define FFFD "\xef\xbf\xbd"

static void every_code_point_and_back(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back = 0;
        int n = utf8_encode(cp, s);
        if (cp >= 0xd800 && cp < 0xe000) {
            assert_int_equal(utf8_decode(s, 3, &back), 0);
            continue;
        }
        assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_decode(s, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        for (int k = 0; k < n; k++) assert_int_equal(utf8_decode(s, (size_t)k, &back), 0);
        assert_int_equal(utf8_valid(s, (size_t)n), n);
    }
}

/* The definition by value: decode without regard to ranges, encode again, compare. */
static int plain_decode(const unsigned char *s, size_t n) {
    int want = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (want == 0 || (size_t)want > n) return 0;
    uint32_t cp = want == 1 ? s[0] : s[0] & (0x7fu >> want);
    for (int i = 1; i < want; i++) {
        if (s[i] >> 6 != 2) return 0;
        cp = cp << 6 | (s[i] & 63u);
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return 0;
    char again[4];
    return utf8_encode(cp, again) == want && memcmp(again, s, (size_t)want) == 0 ? want : 0;
}

static void every_four_bytes_as_the_definition(void **state) {
    (void)state;
    static const unsigned char edge[] = {0x00, 0x7f, 0x80, 0x8f, 0x90,
                                         0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            for (size_t c = 0; c < sizeof edge; c++)
                for (size_t d = 0; d < sizeof edge; d++) {
                    unsigned char s[4] = {(unsigned char)a, (unsigned char)b, edge[c], edge[d]};
                    uint32_t cp;
                    assert_int_equal(utf8_decode((char *)s, 4, &cp), plain_decode(s, 4));
                }
}

static void valid_finds_the_first_bad_byte(void **state) {
    (void)state;
    char text[64];
    for (size_t at = 0; at < 40; at++) { /* around the word-wise part */
        memset(text, 'a', sizeof text);
        text[at] = (char)0xff;
        assert_int_equal(utf8_valid(text, 40), at);
        memcpy(text + at, "\xe2\x82", 2); /* cut character */
        assert_int_equal(utf8_valid(text, at + 2), at);
    }
    assert_int_equal(utf8_valid("", 0), 0);
}

/* Pushes s cut into the given pieces; joined output in out. */
static void stream(const char *s, size_t n, const size_t *cuts, size_t n_cuts, str *out) {
    utf8_stream u = {0};
    size_t from = 0;
    str_clear(out);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n, before = out->n;
        assert_int_equal(utf8_push(&u, s + from, to - from, out), ERR_OK);
        /* what was sent by now is whole characters */
        assert_int_equal(utf8_valid(out->n ? out->s + before : "", out->n - before),
                         out->n - before);
        from = to;
    }
    assert_int_equal(utf8_flush(&u, out), ERR_OK);
    assert_int_equal(u.n, 0);
    size_t once = out->n;
    assert_int_equal(utf8_flush(&u, out), ERR_OK); /* the tail is flushed once */
    assert_int_equal(out->n, once);
}

static void expect(const char *s, size_t n, const char *want) {
    str out = {0};
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b++) {
            size_t cuts[2] = {a, b};
            stream(s, n, cuts, 2, &out);
            assert_string_equal(out.n ? out.s : "", want);
        }
    str_free(&out);
}

static void b57_split_characters_and_lost_tail(void **state) {
    (void)state;
    expect("", 0, "");
    expect("x", 1, "x"); /* an answer of one character */
    expect("a\xf0\x9f\x98\x80z", 6, "a\xf0\x9f\x98\x80z");
    expect("\xe4\xbd\xa0\xe5\xa5", 5, "\xe4\xbd\xa0" FFFD);     /* CJK beside an incomplete one */
    expect("\xe4\xbd\xa0\xf0\x9f\x98", 6, "\xe4\xbd\xa0" FFFD); /* end in mid-character */
    expect("\xf0\x9f\x98"
           "a",
           4, FFFD "a");
    expect("\xff\xc3", 2, FFFD FFFD);
    expect("\x80\x80", 2, FFFD FFFD);
    expect("\xf0\x9f\xf0\x9f\x98\x80", 6, FFFD "\xf0\x9f\x98\x80");
    /* the examples of the WHATWG rule in Unicode's chapter 3 */
    expect("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", 9, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    expect("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", 9, FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    expect("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 9, FFFD FFFD FFFD FFFD "A");
}

static void b57_bytes_one_by_one_equal_the_whole(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    str whole = {0}, pieces = {0};
    for (uint64_t round = 0; round < 2000; round++) {
        char text[40];
        size_t n = rng_below(seed, RNG_TEST, round, 0, sizeof text), cuts[40];
        static const unsigned char lively[] = {'a',  0x80, 0x9f, 0xa0, 0xbf, 0xc3, 0xe0, 0xe4,
                                               0xed, 0xf0, 0xf4, 0xf5, 0xff, 0x8f, 0x90};
        for (size_t i = 0; i < n; i++) {
            text[i] = (char)lively[rng_below(seed, RNG_TEST, round, i + 1, sizeof lively)];
            cuts[i] = i;
        }
        stream(text, n, NULL, 0, &whole);
        stream(text, n, cuts, n, &pieces);
        assert_int_equal(whole.n, pieces.n);
        if (whole.n) assert_memory_equal(whole.s, pieces.s, whole.n);
        if (utf8_valid(text, n) == n && n) assert_memory_equal(whole.s, text, n);
    }
    str_free(&whole);
    str_free(&pieces);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_and_back),
        cmocka_unit_test(every_four_bytes_as_the_definition),
        cmocka_unit_test(valid_finds_the_first_bad_byte),
        cmocka_unit_test(b57_split_characters_and_lost_tail),
        cmocka_unit_test(b57_bytes_one_by_one_equal_the_whole),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
