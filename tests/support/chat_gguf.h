/* A tiny chat model as a GGUF file for end-to-end tests of the program: random F32 weights, byte-level tokenizer, SmolLM2's chat template.
 *
 * Vocabulary: 17 control tokens (SmolLM2's names), the 256 byte tokens, and a few merges. The weights are keyed by seed, so the
 * same call gives the same file on every machine. A failed write aborts the test program. */
#ifndef SUPPORT_CHAT_GGUF_H
#define SUPPORT_CHAT_GGUF_H
#include <stdint.h>

typedef struct chat_gguf {
    int64_t layers, hidden, intermediate, heads, kv_heads, context;
    uint64_t seed;
    const char *architecture; /* NULL: "llama" */
    const char *pre;          /* NULL: "smollm" */
    const char *rope_scaling; /* NULL: none; else a rope.scaling.type */
} chat_gguf;

/* Zero fields get defaults: 8 layers, hidden 32, MLP 64, 4/2 heads of 8, context 512. */
void chat_gguf_write(const char *path, const chat_gguf *t);

#endif
