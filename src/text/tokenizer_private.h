/* What the tokenizer's files share: the split into pre-tokens and the byte-pair merges.
 *
 * tokenizer.c loads and answers, tokenizer_split.c cuts text into pieces, tokenizer_bpe.c turns one piece
 * into ids, tokenizer_encode.c joins them. Nobody outside src/text includes this. */
#ifndef TEXT_TOKENIZER_PRIVATE_H
#define TEXT_TOKENIZER_PRIVATE_H
#include "text/tokenizer.h"
#include <stddef.h>

/* ---- pieces -------------------------------------------------------------------------------------- */
typedef struct tokenizer__splitter tokenizer__splitter; /* immutable: any number of threads */
typedef struct tokenizer__split_scratch tokenizer__split_scratch; /* one per call of encode */
typedef err (*tokenizer__piece_fn)(void *ctx, const char *piece, size_t n);

/* Knows "smollm"; anything else is ERR_REFUSED with the list of what is known. */
MUST_CHECK err tokenizer__splitter_open(tokenizer__splitter **out, const char *pre, size_t n,
                                        const char *path);
void tokenizer__splitter_free(tokenizer__splitter *s);
const char *tokenizer__splitter_name(const tokenizer__splitter *s);
const char *tokenizer__splitter_pattern(const tokenizer__splitter *s);
MUST_CHECK err tokenizer__split_scratch_open(tokenizer__split_scratch **out,
                                             const tokenizer__splitter *s);
void tokenizer__split_scratch_free(tokenizer__split_scratch *c);
/* Calls fn for each piece in order; the pieces joined are the text. Bytes that are no UTF-8 count as
 * characters that are neither letter, number nor space. */
MUST_CHECK err tokenizer__split(const tokenizer__splitter *s, tokenizer__split_scratch *c,
                                const char *text, size_t n, tokenizer__piece_fn fn, void *ctx);

/* ---- merges -------------------------------------------------------------------------------------- */
typedef struct tokenizer__merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    int32_t rank, id;
} tokenizer__merge;

typedef struct tokenizer__bpe {
    tokenizer__merge *slot; /* [mask+1], open addressing */
    uint64_t mask;
    int32_t byte_id[256]; /* id of the token that is this one byte; -1: the vocabulary has none */
} tokenizer__bpe;

typedef struct tokenizer__bpe_scratch {
    int32_t *id, *prev, *next; /* a list of symbols */
    uint64_t *heap;            /* candidate merges: rank << 32 | index of the left symbol */
    size_t id_cap, prev_cap, next_cap, heap_cap;
} tokenizer__bpe_scratch;

MUST_CHECK err tokenizer__bpe_reserve(tokenizer__bpe *b, int64_t n_merges);
void tokenizer__bpe_add(tokenizer__bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
void tokenizer__bpe_scratch_free(tokenizer__bpe_scratch *c);
/* Appends the ids of one piece. */
MUST_CHECK err tokenizer__bpe_piece(const tokenizer__bpe *b, tokenizer__bpe_scratch *c,
                                    const char *piece, size_t n, int32_t **ids, size_t *n_ids,
                                    size_t *cap);

/* ---- the handle ---------------------------------------------------------------------------------- */
enum {
    TOKENIZER__NORMAL = 1,
    TOKENIZER__UNKNOWN = 2,
    TOKENIZER__CONTROL = 3,
    TOKENIZER__USER = 4,
    TOKENIZER__UNUSED = 5
}; /* GGUF's token types; 6 (byte fallback) belongs to other models */

struct tokenizer {
    int64_t count;
    char *blob;      /* bytes of all tokens, joined */
    uint32_t *start; /* [count+1] offsets in blob */
    uint8_t *kind;   /* [count] */
    tokenizer__splitter *splitter;
    tokenizer__bpe bpe;
    int32_t *added; /* [n_added] control and user tokens, longest spelling first */
    int32_t n_added;
    uint8_t added_first[256]; /* 1: some added token begins with this byte */
    int32_t end_ids[8];
    int n_end_ids;
    int32_t bos;
    char *chat_template; /* or NULL */
    char digest[33];
};

#endif
