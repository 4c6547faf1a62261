/* Cutting text into pre-tokens, by the pattern that a pre-tokenizer's name stands for.
 *
 * The pattern runs on classes, not on code points: every character becomes one byte, ASCII itself or a
 * stand-in of the same class (letter, number, space, other) from our table, and PCRE2 matches those bytes.
 * So the split does not depend on PCRE2's Unicode version, its idea of \s, or the text being valid UTF-8.
 * It does not merge and does not know control tokens. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_private.h"
#include "core/arena.h"
#include "text/utf8.h"
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

typedef enum char_class { OTHER, LETTER, NUMBER, SPACE, ALONE_OTHER } char_class;

typedef struct class_range {
    uint32_t first, last;
    uint8_t class;
} class_range;

static const class_range class_ranges[] = {
#define X(first, last, class) {first, last, class},
#include "text/unicode_classes.def"
#undef X
};

typedef struct pre_kind {
    const char *name;
    int digits_alone; /* every number character is a piece of its own, and ends the text around it */
    const char *pattern; /* cuts what lies between; covers every character */
} pre_kind;

static const pre_kind pre_kinds[] = {
    {"smollm", 1,
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
};
enum { PRE_KINDS = sizeof pre_kinds / sizeof pre_kinds[0] };

struct tokenizer__splitter {
    const pre_kind *kind;
    pcre2_code *code;
};

struct tokenizer__split_scratch {
    pcre2_match_data *match;
    uint8_t *image;  /* one byte per character of the segment: what the pattern sees */
    uint8_t *length; /* bytes of that character in the text */
    size_t image_cap, length_cap;
};

/* Is the code point in a class other than OTHER? Binary search over the ranges. */
static char_class class_of(uint32_t cp) {
    size_t low = 0, high = sizeof class_ranges / sizeof class_ranges[0];
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > class_ranges[mid].last)
            low = mid + 1;
        else if (cp < class_ranges[mid].first)
            high = mid;
        else
            return (char_class)class_ranges[mid].class;
    }
    return OTHER;
}

err tokenizer__splitter_open(tokenizer__splitter **out, const char *pre, size_t n,
                             const char *path) {
    *out = NULL;
    const pre_kind *kind = NULL;
    for (int i = 0; i < PRE_KINDS; i++)
        if (strlen(pre_kinds[i].name) == n && memcmp(pre_kinds[i].name, pre, n) == 0)
            kind = &pre_kinds[i];
    if (!kind)
        return err_set(
            ERR_REFUSED,
            "%s: the pre-tokenizer '%.*s' is not known (known: smollm); its ids would be "
            "guesses, so use a model whose tokenizer.ggml.pre is known",
            path, (int)(n < 64 ? n : 64), pre);
    int code = 0;
    PCRE2_SIZE at = 0;
    tokenizer__splitter *s;
    TRY(mem_new(1, sizeof *s, &s));
    s->kind = kind;
    s->code = pcre2_compile((PCRE2_SPTR)kind->pattern, PCRE2_ZERO_TERMINATED, PCRE2_UCP, &code, &at,
                            NULL);
    if (!s->code) {
        mem_free(s);
        return err_set(ERR_INTERNAL, "the split pattern of '%s' does not compile (PCRE2 %d at %zu)",
                       kind->name, code, (size_t)at);
    }
    /* Where the system forbids executable memory PCRE2 interprets: the same matches, more slowly. */
    (void)pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    *out = s;
    return ERR_OK;
}

void tokenizer__splitter_free(tokenizer__splitter *s) {
    if (!s) return;
    pcre2_code_free(s->code);
    mem_free(s);
}

const char *tokenizer__splitter_name(const tokenizer__splitter *s) { return s->kind->name; }
const char *tokenizer__splitter_pattern(const tokenizer__splitter *s) { return s->kind->pattern; }

err tokenizer__split_scratch_open(tokenizer__split_scratch **out, const tokenizer__splitter *s) {
    *out = NULL;
    tokenizer__split_scratch *c;
    TRY(mem_new(1, sizeof *c, &c));
    c->match = pcre2_match_data_create_from_pattern(s->code, NULL);
    if (!c->match) {
        mem_free(c);
        return err_set(ERR_MEMORY, "no memory for matching the tokenizer's split pattern");
    }
    *out = c;
    return ERR_OK;
}

void tokenizer__split_scratch_free(tokenizer__split_scratch *c) {
    if (!c) return;
    pcre2_match_data_free(c->match);
    mem_free(c->image);
    mem_free(c->length);
    mem_free(c);
}

/* Runs the pattern over a segment of `chars` characters that starts at text. */
static err split_segment(const tokenizer__splitter *s, tokenizer__split_scratch *c,
                         const char *text, size_t chars, tokenizer__piece_fn fn, void *ctx) {
    size_t at = 0;
    while (at < chars) {
        int rc = pcre2_match(s->code, c->image, chars, at, PCRE2_NO_UTF_CHECK, c->match, NULL);
        PCRE2_SIZE *found = pcre2_get_ovector_pointer(c->match);
        if (rc < 0 || found[0] != at || found[1] <= at)
            return err_set(ERR_INTERNAL,
                           "the split pattern of '%s' failed on a text of %zu characters at "
                           "character %zu (PCRE2 %d)",
                           s->kind->name, chars, at, rc);
        size_t bytes = 0;
        for (size_t i = at; i < found[1]; i++) bytes += c->length[i];
        TRY(fn(ctx, text, bytes));
        text += bytes;
        at = found[1];
    }
    return ERR_OK;
}

/* One character at text[i]: its byte length and its image. */
static int image_of(const char *text, size_t n, uint8_t *image, char_class *class) {
    unsigned char first = (unsigned char)text[0];
    uint32_t cp = first;
    if (first < 0x80) {
        *image = first;
        *class = first >= '0' && first <= '9' ? NUMBER : OTHER; /* the rest the pattern knows */
        return 1;
    }
    static const char stand_in[] = {
        [OTHER] = '!', [LETTER] = 'A', [NUMBER] = '0', [SPACE] = '\t', [ALONE_OTHER] = '!'};
    int k = utf8_decode(text, n, &cp);
    *class = k == 0 ? OTHER : class_of(cp);
    *image = (uint8_t)stand_in[*class];
    return k == 0 ? 1 : k;
}

err tokenizer__split(const tokenizer__splitter *s, tokenizer__split_scratch *c, const char *text,
                     size_t n, tokenizer__piece_fn fn, void *ctx) {
    TRY(mem_grow(&c->image, &c->image_cap, n + 1, 1));
    TRY(mem_grow(&c->length, &c->length_cap, n + 1, 1));
    size_t chars = 0, start = 0, i = 0;
    while (i < n) {
        char_class class;
        size_t k = (size_t)image_of(text + i, n - i, &c->image[chars], &class);
        if (s->kind->digits_alone && (class == NUMBER || class == ALONE_OTHER)) {
            TRY(split_segment(s, c, text + start, chars, fn, ctx));
            TRY(fn(ctx, text + i, k));
            chars = 0;
            start = i + k;
        } else {
            c->length[chars++] = (uint8_t)k;
        }
        i += k;
    }
    return split_segment(s, c, text + start, chars, fn, ctx);
}
