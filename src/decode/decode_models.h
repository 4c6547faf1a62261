/* What decoding needs of its two models: a small table of functions over numbered places.
 *
 * A place (0..max_seqs-1) holds one sequence's caches. verify feeds rows to the target and names the greedy token after each;
 * keep says how many of those rows stay (the rest are taken back) and whether the drafter's context follows; draft
 * proposes. decode_models_open makes the table over a loaded target and drafter; tests fill it with scripts. The batch
 * (decode.c) owns what it is given and calls free once. */
#ifndef DECODE_MODELS_H
#define DECODE_MODELS_H
#include "decode/decode.h"

typedef struct decode_rows {
    int64_t place;
    const int32_t *tokens;
    int64_t rows;
} decode_rows;
typedef struct decode_keep {
    int64_t place;
    int64_t rows;
    int extend;
} decode_keep; /* rows kept of the last verify */
typedef struct decode_block {
    int64_t place;
    int32_t token;
    int64_t size;
    int32_t *drafts;
} decode_block; /* size-1 drafts */

typedef struct decode_models {
    void *ctx;
    int64_t vocab, context;                /* of the target */
    int64_t block_size;                    /* of the drafter; 0: none, and draft is never called */
    int64_t draft_positions;               /* positions that the drafter knows */
    err (*open)(void *ctx, int64_t place); /* empty caches */
    void (*close)(void *ctx, int64_t place);
    /* argmax: one token per row in order; with last_only one per sequence; NULL: not wanted. taps 0: no keep will extend. */
    err (*verify)(void *ctx, const decode_rows *seqs, int64_t n, int last_only, int taps,
                  int32_t *argmax);
    err (*keep)(void *ctx, const decode_keep *seqs,
                int64_t n); /* same sequences in the same order as verify */
    err (*draft)(void *ctx, const decode_block *seqs, int64_t n);
    size_t (*bytes)(void *ctx);
    void (*free)(void *ctx);
} decode_models;

enum { DECODE_PREFILL_ROWS = 256 }; /* rows of one prefill call at most */

/* Over cfg->t and cfg->dr: caches for max_seqs sequences, workspace. */
MUST_CHECK err decode_models_open(decode_models *out, dev *d, const decode_config *cfg);
/* A batch over any models; takes them over, also when it fails. cfg->t and cfg->dr are not looked at. */
MUST_CHECK err decode_models_batch(decode_batch **out, const decode_models *m,
                                   const decode_config *cfg);

#endif
