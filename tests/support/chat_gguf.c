/* A tiny Llama target as a GGUF file: see chat_gguf.h. Written by hand, byte by byte, so that the
 * reader under test meets a writer that shares no code with it. Tensor data is aligned to 32 bytes,
 * the format's default. */
#include "support/chat_gguf.h"
#include "core/rng.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    U32 = 4,
    F32 = 6,
    I32 = 5,
    BOOL = 7,
    STRING = 8,
    ARRAY = 9,
    MERGES = 12,
    SPECIALS = 17,
    VOCAB = SPECIALS + 256 + MERGES
};

static const char *const specials[SPECIALS] = {
    "<|endoftext|>",    "<|im_start|>",    "<|im_end|>",     "<repo_name>",    "<reponame>",
    "<file_sep>",       "<filename>",      "<gh_stars>",     "<issue_start>",  "<issue_comment>",
    "<issue_closed>",   "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>",
    "<jupyter_script>", "<empty_output>"};
static const char *const merges[MERGES] = {"t h",          "th e", "i n", "a n",
                                           "an d",         "e r",  "o n", "\xc4\xa0 t",
                                           "\xc4\xa0t he", "h e",  "r e", "l l"};
static const char *const template =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI "
    "assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void put(FILE *f, const void *p, size_t n) {
    if (fwrite(p, 1, n, f) != n) abort();
}
static void u32(FILE *f, uint32_t v) { put(f, &v, 4); }
static void u64(FILE *f, uint64_t v) { put(f, &v, 8); }
static void text(FILE *f, const char *s) {
    u64(f, strlen(s));
    put(f, s, strlen(s));
}
static void key_u32(FILE *f, const char *key, int64_t v) {
    text(f, key);
    u32(f, U32);
    u32(f, (uint32_t)v);
}
static void key_f32(FILE *f, const char *key, float v) {
    text(f, key);
    u32(f, F32);
    put(f, &v, 4);
}
static void key_text(FILE *f, const char *key, const char *v) {
    text(f, key);
    u32(f, STRING);
    text(f, v);
}
static void key_array(FILE *f, const char *key, uint32_t type, uint64_t n) {
    text(f, key);
    u32(f, ARRAY);
    u32(f, type);
    u64(f, n);
}

/* The letter that GPT-2's table uses for a byte, as UTF-8. */
static void byte_letter(int byte, char out[4]) {
    int cp = byte, next = 256;
    for (int i = 0; i <= byte; i++) {
        int plain = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || (i >= 0xae && i <= 0xff);
        if (i == byte) cp = plain ? i : next;
        if (!plain) next++;
    }
    if (cp < 128)
        snprintf(out, 4, "%c", cp);
    else
        snprintf(out, 4, "%c%c", 0xc0 | cp >> 6, 0x80 | (cp & 63));
}

static void tokenizer_keys(FILE *f, const chat_gguf *t) {
    key_text(f, "tokenizer.ggml.model", "gpt2");
    key_text(f, "tokenizer.ggml.pre", t->pre ? t->pre : "smollm");
    key_array(f, "tokenizer.ggml.tokens", STRING, VOCAB);
    for (int i = 0; i < SPECIALS; i++) text(f, specials[i]);
    for (int i = 0; i < 256; i++) {
        char s[4];
        byte_letter(i, s);
        text(f, s);
    }
    for (int i = 0; i < MERGES; i++) { /* a merged token is its pair without the blank */
        char s[16];
        const char *blank = strchr(merges[i], ' ');
        snprintf(s, sizeof s, "%.*s%s", (int)(blank - merges[i]), merges[i], blank + 1);
        text(f, s);
    }
    key_array(f, "tokenizer.ggml.token_type", I32, VOCAB);
    for (int i = 0; i < VOCAB; i++) u32(f, i < SPECIALS ? 3 : 1);
    key_array(f, "tokenizer.ggml.merges", STRING, MERGES);
    for (int i = 0; i < MERGES; i++) text(f, merges[i]);
    key_u32(f, "tokenizer.ggml.bos_token_id", 1);
    key_u32(f, "tokenizer.ggml.eos_token_id", 2);
    key_u32(f, "tokenizer.ggml.padding_token_id", 2);
    text(f, "tokenizer.ggml.add_bos_token");
    u32(f, BOOL);
    put(f, "", 1);
    key_text(f, "tokenizer.chat_template", template);
}

typedef struct shape {
    char name[48];
    int64_t out, in; /* out 0: a vector of in */
} shape;

static int shapes(const chat_gguf *t, shape *s) {
    int64_t kv = t->hidden / t->heads * t->kv_heads;
    int n = 0;
    s[n++] = (shape){"token_embd.weight", VOCAB, t->hidden};
    s[n++] = (shape){"output_norm.weight", 0, t->hidden};
    for (int64_t i = 0; i < t->layers; i++) {
        const struct {
            const char *name;
            int64_t out, in;
        } part[] = {{"attn_norm", 0, t->hidden},
                    {"ffn_norm", 0, t->hidden},
                    {"attn_q", t->hidden, t->hidden},
                    {"attn_k", kv, t->hidden},
                    {"attn_v", kv, t->hidden},
                    {"attn_output", t->hidden, t->hidden},
                    {"ffn_gate", t->intermediate, t->hidden},
                    {"ffn_up", t->intermediate, t->hidden},
                    {"ffn_down", t->hidden, t->intermediate}};
        for (size_t k = 0; k < sizeof part / sizeof part[0]; k++) {
            snprintf(s[n].name, sizeof s[n].name, "blk.%lld.%s.weight", (long long)i, part[k].name);
            s[n].out = part[k].out;
            s[n++].in = part[k].in;
        }
    }
    return n;
}

static int64_t count(const shape *s) { return s->out ? s->out * s->in : s->in; }
static int64_t padded(int64_t bytes) { return (bytes + 31) / 32 * 32; }

static void write_shapes(FILE *f, const shape *s, int n) {
    int64_t offset = 0;
    for (int i = 0; i < n; i++) {
        text(f, s[i].name);
        u32(f, s[i].out ? 2 : 1);
        u64(f, (uint64_t)s[i].in); /* innermost first */
        if (s[i].out) u64(f, (uint64_t)s[i].out);
        u32(f, 0); /* F32 */
        u64(f, (uint64_t)offset);
        offset += padded(4 * count(&s[i]));
    }
}

static void write_data(FILE *f, const shape *s, int n, uint64_t seed) {
    while (ftell(f) % 32) put(f, "", 1);
    for (int i = 0; i < n; i++) {
        float scale =
            s[i].out ? 1.5f / (float)s[i].in * 4 : 1; /* lively enough for varied greedy text */
        for (int64_t k = 0; k < count(&s[i]); k++) {
            float v =
                s[i].out ? scale * (float)rng_normal(seed, RNG_TEST, (uint64_t)i, (uint64_t)k) : 1;
            put(f, &v, 4);
        }
        for (int64_t k = 4 * count(&s[i]); k < padded(4 * count(&s[i])); k++) put(f, "", 1);
    }
}

void chat_gguf_write(const char *path, const chat_gguf *given) {
    static const char *const names[] = {"block_count",          "context_length",
                                        "embedding_length",     "feed_forward_length",
                                        "attention.head_count", "attention.head_count_kv",
                                        "vocab_size",           "rope.dimension_count"};
    chat_gguf t = *given;
    if (!t.layers) t.layers = 8;
    if (!t.hidden) t.hidden = 32;
    if (!t.intermediate) t.intermediate = 64;
    if (!t.heads) t.heads = 4;
    if (!t.kv_heads) t.kv_heads = 2;
    if (!t.context) t.context = 512;
    const char *arch = t.architecture ? t.architecture : "llama";
    const int64_t values[] = {t.layers, t.context,  t.hidden, t.intermediate,
                              t.heads,  t.kv_heads, VOCAB,    t.hidden / t.heads};
    shape *s = calloc((size_t)(2 + 9 * t.layers), sizeof *s);
    FILE *f = fopen(path, "wb");
    char key[96];
    if (!s || !f) abort();
    int n = shapes(&t, s);
    put(f, "GGUF", 4);
    u32(f, 3);
    u64(f, (uint64_t)n);
    u64(f, 1 + 8 + 2 + 10 + (t.rope_scaling != NULL));
    key_text(f, "general.architecture", arch);
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, names[i]);
        key_u32(f, key, values[i]);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    key_f32(f, key, 10000);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    key_f32(f, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if (t.rope_scaling) key_text(f, key, t.rope_scaling);
    tokenizer_keys(f, &t);
    write_shapes(f, s, n);
    write_data(f, s, n, t.seed);
    if (fclose(f)) abort();
    free(s);
}
