/* Decoding: a batch of sequences over one loaded target, plainly or with a drafter; greedy, exact mode.
 *
 * Greedy speculative text equals plain text token for token: both ways share the prefill schedule and the row-exact kernels.
 * End tokens and limits act inside accepted drafts. The last tokens of a context are decoded with shorter blocks, then plainly.
 * A round = one draft + one verify: it commits the accepted drafts and one bonus token. tau counts committed tokens before trimming
 * at an end or limit; rounds without a draft are left out. */
#ifndef DECODE_DECODE_H
#define DECODE_DECODE_H
#include "model/drafter.h"

enum { DECODE_MAX_BLOCK = 64 };
typedef enum decode_end {
    DECODE_RUNNING,
    DECODE_END_TOKEN,
    DECODE_LIMIT,
    DECODE_CONTEXT
} decode_end;

typedef struct decode_stats {
    int64_t rounds;                      /* with a draft */
    int64_t committed;                   /* by those rounds, before trimming */
    int64_t histogram[DECODE_MAX_BLOCK]; /* rounds by accepted drafts 0.. */
    int64_t plain_steps;
    double prefill_seconds, decode_seconds; /* a round's time is shared equally by its sequences */
} decode_stats;
double decode_tau(const decode_stats *s); /* committed / rounds; NaN without rounds */
void decode_stats_add(decode_stats *into, const decode_stats *s);

/* The models stand behind an interface (decode/decode_models.h), so tests can script a target or a drafter. */
typedef struct decode_batch decode_batch;
typedef struct decode_config {
    const target *t;
    const drafter *dr;            /* dr NULL: plain */
    int64_t max_seqs, max_tokens; /* room: sequences at once, tokens per sequence (prompt + new) */
    const int32_t *end_ids;
    int n_end;
    int64_t context; /* 0: the target's; prompt and new tokens together are at most this many */
} decode_config;
MUST_CHECK err decode_create(decode_batch **out, dev *d, const decode_config *cfg);
void decode_free(decode_batch *b);
size_t decode_bytes(const decode_batch *b);

typedef struct decode_seq decode_seq;
/* on_token (or NULL) is called once per committed token in order, after trimming. A prompt longer than the context, or a
 * request that needs more than max_tokens while the context has room, is a sentence. A prompt as long as the context ends at
 * once with DECODE_CONTEXT. The prompt is copied. A finished sequence gives its place back at once; its tokens stay until removed. */
typedef struct decode_request {
    const int32_t *prompt;
    int64_t n_prompt;
    int64_t max_new;
    void (*on_token)(void *ctx, int32_t token);
    void *ctx;
} decode_request;
MUST_CHECK err decode_add(decode_batch *b, const decode_request *r,
                          decode_seq **out); /* prefill happens in the next round */
/* One round over all running sequences; *running = how many still run. After an error the batch can only be freed or read. */
MUST_CHECK err decode_round(decode_batch *b, int64_t *running);
MUST_CHECK err decode_run(decode_batch *b); /* until none runs */
const int32_t *decode_tokens(const decode_seq *s,
                             int64_t *n); /* new tokens so far; an end token is included */
decode_end decode_state(const decode_seq *s);
const decode_stats *decode_get_stats(const decode_seq *s);
void decode_remove(decode_batch *b, decode_seq *s);

#endif
