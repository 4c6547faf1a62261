/* A tiny Llama target as a GGUF file: see chat_gguf.h.
 *
 * Its keys and tensors as gguf_put writes them; rows of q and k are random, so their permutation does not matter. */
#include "support/chat_gguf.h"
#include "core/rng.h"
#include "support/gguf_put.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MERGES = 12, SPECIALS = 17, VOCAB = SPECIALS + 256 + MERGES };

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

static void tokenizer_keys(gguf_put *f, const chat_gguf *t) {
    gguf_put_text(f, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(f, "tokenizer.ggml.pre", t->pre ? t->pre : "smollm");
    gguf_put_array(f, "tokenizer.ggml.tokens", GGUF_PUT_TEXT, VOCAB);
    for (int i = 0; i < SPECIALS; i++) gguf_put_item_text(f, specials[i]);
    for (int i = 0; i < 256; i++) {
        char s[4];
        gguf_put_byte_letter(i, s);
        gguf_put_item_text(f, s);
    }
    for (int i = 0; i < MERGES; i++) { /* a merged token is its pair without the blank */
        char s[16];
        const char *blank = strchr(merges[i], ' ');
        snprintf(s, sizeof s, "%.*s%s", (int)(blank - merges[i]), merges[i], blank + 1);
        gguf_put_item_text(f, s);
    }
    gguf_put_array(f, "tokenizer.ggml.token_type", GGUF_PUT_I32, VOCAB);
    for (int i = 0; i < VOCAB; i++) gguf_put_item_int(f, i < SPECIALS ? 3 : 1);
    gguf_put_array(f, "tokenizer.ggml.merges", GGUF_PUT_TEXT, MERGES);
    for (int i = 0; i < MERGES; i++) gguf_put_item_text(f, merges[i]);
    gguf_put_int(f, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_int(f, "tokenizer.ggml.eos_token_id", 2);
    gguf_put_int(f, "tokenizer.ggml.padding_token_id", 2);
    gguf_put_bool(f, "tokenizer.ggml.add_bos_token", 0);
    gguf_put_text(f, "tokenizer.chat_template", template);
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

static void put_data(gguf_put *f, const shape *s, int tensor, uint64_t seed) {
    const float scale =
        s->out ? 1.5f / (float)s->in * 4 : 1; /* lively enough for varied greedy text */
    float *x = malloc((size_t)count(s) * sizeof *x);
    if (!x) abort();
    for (int64_t k = 0; k < count(s); k++)
        x[k] =
            s->out ? scale * (float)rng_normal(seed, RNG_TEST, (uint64_t)tensor, (uint64_t)k) : 1;
    gguf_put_data(f, x, count(s));
    free(x);
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
    gguf_put g, *f = &g;
    char key[96];
    if (!s) abort();
    int n = shapes(&t, s);
    gguf_put_begin(f, path, (uint64_t)n, 1 + 8 + 2 + 10 + (t.rope_scaling != NULL));
    gguf_put_text(f, "general.architecture", arch);
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, names[i]);
        gguf_put_int(f, key, values[i]);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gguf_put_real(f, key, 10000);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_put_real(f, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if (t.rope_scaling) gguf_put_text(f, key, t.rope_scaling);
    tokenizer_keys(f, &t);
    for (int i = 0; i < n; i++)
        gguf_put_tensor(f, s[i].name, s[i].out ? s[i].out : s[i].in, s[i].out ? s[i].in : 0);
    for (int i = 0; i < n; i++) put_data(f, &s[i], i, t.seed);
    if (gguf_put_end(f)) abort();
    free(s);
}
