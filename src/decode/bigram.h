/* A bigram table as drafter: the yardstick that a trained drafter is measured against.
 *
 * Counted over token sequences: for each token the most frequent successor (lowest id on ties). As a drafter it
 * proposes block_size - 1 tokens by following the table from the last committed token. Since greedy speculative text equals
 * plain text, its acceptance is computed exactly by walking a plain answer; no model runs. */
#ifndef DECODE_BIGRAM_H
#define DECODE_BIGRAM_H
#include "core/err.h"
#include <stdint.h>

typedef struct bigram bigram;
MUST_CHECK err bigram_create(bigram **out, int64_t vocab);
void bigram_free(bigram *b);
/* Counts the pairs of a sequence; ids outside the vocabulary are ERR_RANGE. */
MUST_CHECK err bigram_add(bigram *b, const int32_t *ids, int64_t n);
/* Fixes the successors; call once after the last bigram_add. */
MUST_CHECK err bigram_finish(bigram *b);
int32_t bigram_next(const bigram *b, int32_t id); /* -1: never seen */
/* Walks a plain answer: last is the token before it. Adds rounds and committed tokens (drafts accepted + bonus, not trimmed by
 * what follows the text: a round that would need tokens past its end is left out). */
void bigram_walk(const bigram *b, int64_t block_size, const int32_t *text, int64_t n,
                 int64_t *rounds, int64_t *committed);

#endif
