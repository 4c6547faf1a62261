/* A GGUF writer for tiny test targets: metadata, tensor table, aligned F32 data.
 *
 * Sizes are known before anything is written, so the file is made in one pass over the tensor list.
 * It writes only what the loader of this project reads. */
#include "support/tiny_gguf.h"
#include "core/file.h"
#include "core/rng.h"
#include "core/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { U32 = 4, F32 = 6, TEXT = 8, ARRAY = 9, I32 = 5, ALIGN = 32 };

typedef struct entry {
    char name[48];
    int64_t rows, cols; /* cols 0: a vector of rows */
    uint64_t offset;
} entry;

typedef struct writer {
    file_writer *w;
    uint64_t at;
    err e;
} writer;

static void put(writer *w, const void *p, size_t n) {
    if (!w->e) w->e = file_write(w->w, p, n);
    w->at += n;
}
static void put32(writer *w, uint32_t v) { put(w, &v, 4); }
static void put64(writer *w, uint64_t v) { put(w, &v, 8); }
static void put_text(writer *w, const char *s) {
    put64(w, strlen(s));
    put(w, s, strlen(s));
}
static void key_int(writer *w, const char *key, int64_t v) {
    put_text(w, key);
    put32(w, U32);
    put32(w, (uint32_t)v);
}
static void key_real(writer *w, const char *key, float v) {
    put_text(w, key);
    put32(w, F32);
    put(w, &v, 4);
}
static void key_text(writer *w, const char *key, const char *v) {
    put_text(w, key);
    put32(w, TEXT);
    put_text(w, v);
}
static void key_array(writer *w, const char *key, uint32_t type, uint64_t n) {
    put_text(w, key);
    put32(w, ARRAY);
    put32(w, type);
    put64(w, n);
}

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

/* The byte-level alphabet: printable bytes stand for themselves, the rest for U+0100 and up. */
static void byte_spelling(int byte, char out[3]) {
    int code = byte, shifted = 0;
    for (int b = 0; b <= byte; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) code = printable ? b : 256 + shifted;
        shifted += !printable;
    }
    memset(out, 0, 3);
    if (code < 128) {
        out[0] = (char)code;
    } else {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
    }
}

static void put_tokenizer(writer *w) {
    static const char *const special[] = {"th", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                          "<empty_output>"};
    key_text(w, "tokenizer.ggml.model", "gpt2");
    key_text(w, "tokenizer.ggml.pre", "smollm");
    key_array(w, "tokenizer.ggml.tokens", TEXT, TINY_COUNT);
    for (int i = 0; i < 256; i++) {
        char s[3];
        byte_spelling(i, s);
        put_text(w, s);
    }
    for (int i = 0; i < TINY_COUNT - 256; i++) put_text(w, special[i]);
    key_array(w, "tokenizer.ggml.token_type", I32, TINY_COUNT);
    for (int i = 0; i < TINY_COUNT; i++) put32(w, i > TINY_TH ? 3 : 1);
    key_array(w, "tokenizer.ggml.merges", TEXT, 1);
    put_text(w, "t h");
    key_int(w, "tokenizer.ggml.bos_token_id", TINY_START);
    key_int(w, "tokenizer.ggml.eos_token_id", TINY_END);
}

static void add(entry *e, int *n, const char *name, int64_t rows, int64_t cols) {
    entry *x = &e[*n];
    snprintf(x->name, sizeof x->name, "%s", name);
    x->rows = rows;
    x->cols = cols;
    uint64_t before =
        *n ? e[*n - 1].offset +
                 (uint64_t)(e[*n - 1].rows * (e[*n - 1].cols ? e[*n - 1].cols : 1)) * 4
           : 0;
    x->offset = (before + ALIGN - 1) / ALIGN * ALIGN;
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

static void put_header(writer *w, const tiny_gguf *t, const entry *e, int n) {
    put(w, "GGUF", 4);
    put32(w, 3);
    put64(w, (uint64_t)n);
    put64(w, t->tokenizer ? 18 : 11);
    key_text(w, "general.architecture", "llama");
    key_int(w, "llama.block_count", t->layers);
    key_int(w, "llama.context_length", t->context);
    key_int(w, "llama.embedding_length", t->hidden);
    key_int(w, "llama.feed_forward_length", t->intermediate);
    key_int(w, "llama.attention.head_count", t->heads);
    key_int(w, "llama.attention.head_count_kv", t->kv_heads);
    key_real(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_int(w, "llama.rope.dimension_count", t->head_dim);
    key_real(w, "llama.rope.freq_base", 10000.0f);
    key_int(w, "llama.vocab_size", t->vocab);
    if (t->tokenizer) put_tokenizer(w);
    for (int i = 0; i < n; i++) {
        put_text(w, e[i].name);
        put32(w, e[i].cols ? 2 : 1);
        if (e[i].cols) put64(w, (uint64_t)e[i].cols);
        put64(w, (uint64_t)e[i].rows);
        put32(w, 0);
        put64(w, e[i].offset);
    }
}

static void put_tensor(writer *w, const tiny_gguf *t, const entry *e, int index, uint64_t base) {
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
    const char zero[ALIGN] = {0};
    put(w, zero, (size_t)(base + e->offset - w->at));
    put(w, x, (size_t)count * sizeof *x);
    free(x);
}

err tiny_gguf_write(const char *path, const tiny_gguf *t) {
    entry e[64];
    int n = list(t, e);
    writer w = {0};
    TRY(file_writer_open(&w.w, path));
    put_header(&w, t, e, n);
    const uint64_t base = (w.at + ALIGN - 1) / ALIGN * ALIGN;
    for (int i = 0; i < n; i++) put_tensor(&w, t, &e[i], i, base);
    if (w.e) {
        file_abort(&w.w);
        return w.e;
    }
    return file_commit(&w.w);
}
