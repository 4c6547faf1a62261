/* Tiny test targets: see tiny_gguf.h.
 *
 * The tensor list is made first; then keys, table and data are written in one pass over it. */
#include "support/tiny_gguf.h"
#include "core/rng.h"
#include "support/gguf_put.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char name[48];
    int64_t rows, cols; /* cols 0: a vector of rows */
} entry;

tiny_gguf tiny_gguf_default(int64_t vocab, uint64_t seed) {
    return (tiny_gguf){.layers = 2,
                       .hidden = 32,
                       .intermediate = 48,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 8,
                       .vocab = vocab,
                       .context = 256,
                       .seed = seed,
                       .size = 0.25f};
}

static void put_tokenizer(gguf_put *w) {
    static const char *const special[] = {"th", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                          "<empty_output>"};
    gguf_put_text(w, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(w, "tokenizer.ggml.pre", "smollm");
    gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_PUT_TEXT, TINY_COUNT);
    for (int i = 0; i < 256; i++) {
        char s[4];
        gguf_put_byte_letter(i, s);
        gguf_put_item_text(w, s);
    }
    for (int i = 0; i < TINY_COUNT - 256; i++) gguf_put_item_text(w, special[i]);
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_PUT_I32, TINY_COUNT);
    for (int i = 0; i < TINY_COUNT; i++) gguf_put_item_int(w, i > TINY_TH ? 3 : 1);
    gguf_put_array(w, "tokenizer.ggml.merges", GGUF_PUT_TEXT, 1);
    gguf_put_item_text(w, "t h");
    gguf_put_int(w, "tokenizer.ggml.bos_token_id", TINY_START);
    gguf_put_int(w, "tokenizer.ggml.eos_token_id", TINY_END);
}

static void add(entry *e, int *n, const char *name, int64_t rows, int64_t cols) {
    entry *x = &e[*n];
    snprintf(x->name, sizeof x->name, "%s", name);
    x->rows = rows;
    x->cols = cols;
    (*n)++;
}

static int list(const tiny_gguf *t, entry *e) {
    const int64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    int n = 0;
    add(e, &n, "token_embd.weight", t->vocab, h);
    for (int64_t i = 0; i < t->layers; i++) {
        const struct {
            const char *name;
            int64_t rows, cols;
        } r[] = {{"attn_norm", h, 0},
                 {"attn_q", q, h},
                 {"attn_k", kv, h},
                 {"attn_v", kv, h},
                 {"attn_output", h, q},
                 {"ffn_norm", h, 0},
                 {"ffn_gate", t->intermediate, h},
                 {"ffn_up", t->intermediate, h},
                 {"ffn_down", h, t->intermediate}};
        for (size_t k = 0; k < sizeof r / sizeof *r; k++) {
            char name[48];
            snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)i, r[k].name);
            add(e, &n, name, r[k].rows, r[k].cols);
        }
    }
    add(e, &n, "output_norm.weight", h, 0);
    if (!t->tied) add(e, &n, "output.weight", t->vocab, h);
    return n;
}

static void put_header(gguf_put *w, const tiny_gguf *t, const entry *e, int n) {
    gguf_put_text(w, "general.architecture", "llama");
    gguf_put_int(w, "llama.block_count", t->layers);
    gguf_put_int(w, "llama.context_length", t->context);
    gguf_put_int(w, "llama.embedding_length", t->hidden);
    gguf_put_int(w, "llama.feed_forward_length", t->intermediate);
    gguf_put_int(w, "llama.attention.head_count", t->heads);
    gguf_put_int(w, "llama.attention.head_count_kv", t->kv_heads);
    gguf_put_real(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_put_int(w, "llama.rope.dimension_count", t->head_dim);
    gguf_put_real(w, "llama.rope.freq_base", 10000.0f);
    gguf_put_int(w, "llama.vocab_size", t->vocab);
    if (t->tokenizer) put_tokenizer(w);
    for (int i = 0; i < n; i++) gguf_put_tensor(w, e[i].name, e[i].rows, e[i].cols);
}

static void put_tensor(gguf_put *w, const tiny_gguf *t, const entry *e, int index) {
    const int64_t count = e->rows * (e->cols ? e->cols : 1);
    float *x = malloc((size_t)count * sizeof *x);
    if (!x) {
        w->e = err_set(ERR_MEMORY, "no memory for %s", e->name);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        x[i] = e->cols
                   ? t->size * (float)rng_normal(t->seed, RNG_TEST, (uint64_t)index, (uint64_t)i)
                   : 1.0f;
    if (t->fill) t->fill(t->ctx, e->name, x, e->rows, e->cols);
    gguf_put_data(w, x, count);
    free(x);
}

err tiny_gguf_write(const char *path, const tiny_gguf *t) {
    entry e[64];
    int n = list(t, e);
    gguf_put w;
    gguf_put_begin(&w, path, (uint64_t)n, t->tokenizer ? 18 : 11);
    put_header(&w, t, e, n);
    for (int i = 0; i < n; i++) put_tensor(&w, t, &e[i], i);
    return gguf_put_end(&w);
}
