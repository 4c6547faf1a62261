/* A bigram table as drafter: see bigram.h. Pairs are kept as 64-bit keys and sorted once; memory is
 * 8 bytes a pair. It is a measure, not a product: nothing here is tuned, and no command decodes with
 * it. */
#include "decode/bigram.h"
#include "core/arena.h"
#include <stdlib.h>

struct bigram {
    int64_t vocab;
    uint64_t *pairs; /* first << 32 | second */
    size_t n, cap;
    int32_t *next; /* [vocab] most frequent successor, -1 when none */
};

err bigram_create(bigram **out, int64_t vocab) {
    bigram *b;
    TRY(mem_new(1, sizeof *b, &b));
    b->vocab = vocab;
    err e = mem_new((size_t)vocab, sizeof *b->next, &b->next);
    if (e) {
        mem_free(b);
        return e;
    }
    for (int64_t i = 0; i < vocab; i++) b->next[i] = -1;
    *out = b;
    return ERR_OK;
}

void bigram_free(bigram *b) {
    if (!b) return;
    mem_free(b->pairs);
    mem_free(b->next);
    mem_free(b);
}

err bigram_add(bigram *b, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= b->vocab)
            return err_set(ERR_RANGE, "token %d is outside the vocabulary of %lld", ids[i],
                           (long long)b->vocab);
    if (n < 2) return ERR_OK;
    TRY(mem_grow(&b->pairs, &b->cap, b->n + (size_t)n - 1, sizeof *b->pairs));
    for (int64_t i = 0; i + 1 < n; i++)
        b->pairs[b->n++] = (uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1];
    return ERR_OK;
}

static int compare(const void *x, const void *y) {
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

err bigram_finish(bigram *b) {
    int64_t best = 0;
    uint32_t token = UINT32_MAX;
    if (b->n) qsort(b->pairs, b->n, sizeof *b->pairs, compare);
    for (size_t i = 0; i < b->n;) {
        size_t j = i;
        while (j < b->n && b->pairs[j] == b->pairs[i]) j++;
        uint32_t first = (uint32_t)(b->pairs[i] >> 32);
        if (first != token) best = 0;
        token = first;
        if ((int64_t)(j - i) > best) { /* ascending second: the lowest id keeps a tie */
            best = (int64_t)(j - i);
            b->next[first] = (int32_t)(uint32_t)b->pairs[i];
        }
        i = j;
    }
    mem_free(b->pairs);
    b->pairs = NULL;
    b->n = b->cap = 0;
    return ERR_OK;
}

int32_t bigram_next(const bigram *b, int32_t id) {
    return id >= 0 && id < b->vocab ? b->next[id] : -1;
}

void bigram_walk(const bigram *b, int64_t block_size, const int32_t *text, int64_t n,
                 int64_t *rounds, int64_t *committed) {
    int64_t at = 0; /* text[at] is the last committed token */
    while (at + 1 < n) {
        int64_t accepted = 0;
        int32_t draft = text[at];
        while (accepted < block_size - 1 && at + 1 + accepted < n) {
            draft = bigram_next(b, draft);
            if (draft < 0 || draft != text[at + 1 + accepted]) break;
            accepted++;
        }
        if (at + 1 + accepted >= n)
            break; /* ran into the end: what would have followed is unknown */
        *rounds += 1;
        *committed += accepted + 1;
        at += accepted + 1;
    }
}
