/* Evaluation by real decoding: held-out prompts are answered with the bf16 snapshot that would be exported.
 *
 * A prompt is a held-out document up to its first supervised token. The result is the decoder's own count of rounds and committed
 * tokens, so tau means here what it means in bench. Memory is taken when an evaluation starts and given back when it ends;
 * evaluate_bytes states it. Nothing is sampled: greedy, the same prompts every time. */
#ifndef TRAIN_EVALUATE_H
#define TRAIN_EVALUATE_H
#include "data/data.h"
#include "decode/decode.h"

enum { EVALUATE_BATCH = 4 /* prompts decoded side by side */ };
typedef struct evaluate_set {
    int64_t n;              /* prompts */
    const int32_t **prompt; /* [n] its tokens */
    int64_t *length;        /* [n] how many */
    int64_t longest;        /* of these */
    int64_t max_new;        /* new tokens per prompt at most */
    const int32_t *end_ids;
    int n_end;
} evaluate_set;

/* The first `limit` documents that have a prompt which fits the target's context with room to answer. Memory, the prompts in it, from a:
 * held is not looked at afterwards. */
MUST_CHECK err evaluate_prepare(evaluate_set *out, const data_set *held, const target *t,
                                int64_t limit, int64_t max_new, arena *a);
size_t evaluate_bytes(const evaluate_set *s, const target *t, const drafter_layout *l);
/* stats: summed over all prompts. beat (NULL is fine) is called before each batch; its error ends the evaluation. */
MUST_CHECK err evaluate_run(const evaluate_set *s, dev *d, const target *t, const drafter_layout *l,
                            const float *params, err (*beat)(void *ctx), void *ctx,
                            decode_stats *stats);

#endif
