/* A batch and its sequences as decode.c and decode_round.c share them.
 *
 * held counts the tokens that the target's cache holds; the last token (prompt's or committed) is not among them until it
 * is fed. So prompt + new tokens = held + 1 while a sequence runs past its prefill. Private to decode. */
#ifndef DECODE_PRIVATE_H
#define DECODE_PRIVATE_H
#include "decode/decode_models.h"

struct decode_seq {
    decode_seq *next; /* of the batch, in order of adding */
    int64_t place;    /* -1: given back */
    int32_t *prompt;
    int64_t n_prompt, held;
    int32_t *out;
    int64_t n_out;
    size_t cap_out;
    int64_t max_new;
    void (*on_token)(void *ctx, int32_t token);
    void *ctx;
    int drafts; /* the drafter's context still follows */
    decode_end state;
    decode_stats stats;
};

struct decode_batch {
    decode_models m;
    int64_t max_seqs, max_tokens, context, n_open;
    int32_t *end_ids;
    int n_end;
    int failed;
    decode_seq *first;
    arena *a;
    uint8_t *taken;      /* [max_seqs] places */
    decode_seq **run;    /* [max_seqs] sequences of this round */
    decode_rows *rows;   /* [max_seqs] */
    decode_keep *keep;   /* [max_seqs] */
    decode_block *block; /* [max_seqs] */
    int32_t *tokens;     /* [max_seqs * block] fed tokens */
    int32_t *chosen;     /* [max_seqs * block] the target's */
};

/* Slots of the next block for a sequence that holds held tokens: below 2 means plain. */
int64_t decode__block(const decode_batch *b, int64_t held);
/* Gives the place back and keeps the tokens. */
void decode__close(decode_batch *b, decode_seq *s);
MUST_CHECK err decode__round(decode_batch *b, int64_t *running);

#endif
