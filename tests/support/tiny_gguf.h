/* Tiny Llama targets for tests: one GGUF of F32 tensors, random or filled by the test, made where it runs.
 *
 * Weights are keyed by (seed, tensor name, element): the same file on every machine. With tokenizer 1 the file also holds a
 * byte-level vocabulary: ids 0..255 are the bytes, then TINY_* below; more embedding rows than that stay unused.
 * Llama rows of q and k are permuted in a GGUF; random rows do not mind. */
#ifndef SUPPORT_TINY_GGUF_H
#define SUPPORT_TINY_GGUF_H
#include "core/err.h"
#include <stdint.h>

enum { TINY_TH = 256, TINY_START, TINY_END, TINY_TEXT_END, TINY_EMPTY, TINY_COUNT };

typedef struct tiny_gguf {
    int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context;
    int tied, tokenizer;
    uint64_t seed;
    float size; /* of matrix entries; norms are 1 */
    /* Called after a tensor [rows, cols] was filled by default; may overwrite it. NULL: not wanted. */
    void (*fill)(void *ctx, const char *name, float *w, int64_t rows, int64_t cols);
    void *ctx;
} tiny_gguf;

/* hidden 32, two layers, four heads of 8, two kv heads: small enough for a training test. */
tiny_gguf tiny_gguf_default(int64_t vocab, uint64_t seed);
MUST_CHECK err tiny_gguf_write(const char *path, const tiny_gguf *t);

#endif
