/* Text to ids: added tokens first, then pre-tokens, then merges.
 *
 * Added tokens are found leftmost, and of those beginning at one place the longest wins. Each encode call
 * has its own scratch memory, so one tokenizer serves any number of threads. No normalisation happens:
 * none of the known pre-tokenizers has one. */
#include "text/tokenizer_private.h"
#include "core/arena.h"
#include <string.h>

typedef struct encode_call {
    const tokenizer *t;
    tokenizer__split_scratch *split;
    tokenizer__bpe_scratch bpe;
    int32_t **ids;
    size_t *n_ids, *cap;
} encode_call;

static err add_piece(void *ctx, const char *piece, size_t n) {
    encode_call *c = ctx;
    return tokenizer__bpe_piece(&c->t->bpe, &c->bpe, piece, n, c->ids, c->n_ids, c->cap);
}

/* The added token at the beginning of text, or -1. User tokens count always, control tokens if special. */
static int32_t added_at(const tokenizer *t, const char *text, size_t n, int special) {
    if (!t->added_first[(unsigned char)text[0]]) return -1;
    for (int32_t i = 0; i < t->n_added; i++) {
        int32_t id = t->added[i];
        size_t k = t->start[id + 1] - t->start[id];
        if (!special && t->kind[id] != TOKENIZER__USER) continue;
        if (k <= n && memcmp(text, t->blob + t->start[id], k) == 0) return id;
    }
    return -1;
}

static err encode_text(encode_call *c, const char *text, size_t n, int special) {
    const tokenizer *t = c->t;
    size_t from = 0, i = 0; /* text[from..i) holds no added token */
    while (i < n) {
        int32_t id = added_at(t, text + i, n - i, special);
        if (id < 0) {
            i++;
            continue;
        }
        TRY(tokenizer__split(t->splitter, c->split, text + from, i - from, add_piece, c));
        TRY(mem_grow(c->ids, c->cap, *c->n_ids + 1, sizeof **c->ids));
        (*c->ids)[(*c->n_ids)++] = id;
        i += t->start[id + 1] - t->start[id];
        from = i;
    }
    return tokenizer__split(t->splitter, c->split, text + from, n - from, add_piece, c);
}

err tokenizer_encode(const tokenizer *t, const char *text, size_t n, int special, int32_t **ids,
                     size_t *n_ids, size_t *cap) {
    if (n == 0) return ERR_OK;
    encode_call c = {.t = t, .ids = ids, .n_ids = n_ids, .cap = cap};
    size_t before = *n_ids;
    TRY(tokenizer__split_scratch_open(&c.split, t->splitter));
    err e = encode_text(&c, text, n, special);
    tokenizer__split_scratch_free(c.split);
    tokenizer__bpe_scratch_free(&c.bpe);
    if (e) *n_ids = before;
    return e;
}

size_t tokenizer_unspellable(const tokenizer *t, const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += t->bpe.byte_id[(unsigned char)text[i]] < 0;
    return count;
}
