/* A GGUF file as a source of a Llama target: metadata to config, tensors to a list of rows.
 *
 * Read: architecture llama in types that io/gguf reads. Refused by name: other architectures, mixtures of experts, other
 * RoPE scaling, key and value lengths that differ. Llama files carry rows of q and k ordered for interleaved pairing; that
 * is noted here and undone while loading. The head is tied when the file has no output.weight. */
#include "io/gguf.h"
#include "model/target_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static err int_or(const gguf *g, const char *key, int64_t def, int64_t *out) {
    *out = def;
    return gguf_has(g, key) ? gguf_get_int(g, key, out) : ERR_OK;
}
static err real_or(const gguf *g, const char *key, double def, double *out) {
    *out = def;
    return gguf_has(g, key) ? gguf_get_real(g, key, out) : ERR_OK;
}
static int same(const char *s, size_t n, const char *word) {
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

static err read_scaling(const gguf *g, rope_config *r) {
    const char *kind;
    size_t n;
    double legacy = 0, attn = 0;
    TRY(real_or(g, "llama.rope.scale_linear", 0, &legacy));
    if (legacy != 0 && legacy != 1) {
        r->kind = ROPE_LINEAR;
        r->factor = legacy;
    }
    if (!gguf_has(g, "llama.rope.scaling.type")) return ERR_OK;
    TRY(gguf_get_text(g, "llama.rope.scaling.type", &kind, &n));
    if (same(kind, n, "none")) return ERR_OK;
    if (same(kind, n, "linear"))
        r->kind = ROPE_LINEAR;
    else if (same(kind, n, "yarn"))
        r->kind = ROPE_YARN;
    else
        return err_set(ERR_REFUSED,
                       "%s: RoPE scaling '%.*s' (llama.rope.scaling.type) is unknown; known in "
                       "GGUF files are none, linear and yarn",
                       gguf_path(g), (int)n, kind);
    TRY(gguf_get_real(g, "llama.rope.scaling.factor", &r->factor));
    if (r->kind == ROPE_LINEAR) return ERR_OK;
    TRY(gguf_get_int(g, "llama.rope.scaling.original_context_length", &r->original_length));
    TRY(real_or(g, "llama.rope.scaling.yarn_beta_fast", 32, &r->beta_fast));
    TRY(real_or(g, "llama.rope.scaling.yarn_beta_slow", 1, &r->beta_slow));
    /* This key multiplies the usual magnitude factor, which a config gives whole. */
    TRY(real_or(g, "llama.rope.scaling.attn_factor", 1, &attn));
    r->attention_factor = attn * (0.1 * log(r->factor) + 1);
    return ERR_OK;
}

static err read_ends(const gguf *g, target_config *c) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    int64_t id;
    TRY(int_or(g, "tokenizer.ggml.bos_token_id", -1, &id));
    c->bos = (int32_t)id;
    for (int i = 0; i < 2; i++) {
        TRY(int_or(g, keys[i], -1, &id));
        if (id >= 0 && !(c->n_eos && c->eos[0] == id)) c->eos[c->n_eos++] = (int32_t)id;
    }
    return ERR_OK;
}

static err refuse_kinds(const gguf *g) {
    const char *s;
    size_t n;
    int64_t experts;
    TRY(gguf_get_text(g, "general.architecture", &s, &n));
    if (!same(s, n, "llama"))
        return err_set(ERR_REFUSED,
                       "%s: architecture '%.*s' (general.architecture) is not known here; known: "
                       "llama",
                       gguf_path(g), (int)n, s);
    TRY(int_or(g, "llama.expert_count", 0, &experts));
    if (experts > 0)
        return err_set(ERR_REFUSED,
                       "%s: a mixture of %lld experts (llama.expert_count) is not known here; only "
                       "dense llama models are",
                       gguf_path(g), (long long)experts);
    return ERR_OK;
}

static err read_config(const gguf *g, target_config *c) {
    TRY(refuse_kinds(g));
    const gguf_tensor *embed = gguf_tensor_find(g, "token_embd.weight");
    int64_t value_length;
    double eps;
    memset(c, 0, sizeof *c);
    TRY(gguf_get_int(g, "llama.block_count", &c->layers));
    TRY(gguf_get_int(g, "llama.embedding_length", &c->hidden));
    TRY(gguf_get_int(g, "llama.feed_forward_length", &c->intermediate));
    TRY(gguf_get_int(g, "llama.attention.head_count", &c->heads));
    TRY(gguf_get_int(g, "llama.context_length", &c->context));
    TRY(gguf_get_real(g, "llama.attention.layer_norm_rms_epsilon", &eps));
    c->rms_eps = (float)eps;
    TRY(int_or(g, "llama.attention.head_count_kv", c->heads, &c->kv_heads));
    int64_t usual = c->heads > 0 ? c->hidden / c->heads : 0;
    TRY(int_or(g, "llama.attention.key_length", usual, &c->head_dim));
    TRY(int_or(g, "llama.attention.value_length", c->head_dim, &value_length));
    if (value_length != c->head_dim)
        return err_set(ERR_REFUSED,
                       "%s: keys of %lld and values of %lld elements a head are not known here; "
                       "they must be equal",
                       gguf_path(g), (long long)c->head_dim, (long long)value_length);
    TRY(int_or(g, "llama.vocab_size", embed && embed->ndim == 2 ? embed->dim[0] : 0, &c->vocab));
    c->tied = !gguf_tensor_find(g, "output.weight");
    rope_config *r = &c->rope;
    r->head_dim = c->head_dim;
    TRY(int_or(g, "llama.rope.dimension_count", c->head_dim, &r->rotary_dim));
    TRY(real_or(g, "llama.rope.freq_base", 10000, &r->theta));
    TRY(read_scaling(g, r));
    return read_ends(g, c);
}

static err read_row(const target__source *s, const target__tensor *t, int64_t r, float *dst) {
    return gguf_row(s->file, t->handle, r, dst);
}
static void close_source(target__source *s) { gguf_close(s->file); }

static err list_tensors(target__source *s, const gguf *g, arena *a) {
    s->n = gguf_tensor_count(g);
    TRY(arena_alloc(a, (size_t)s->n, sizeof *s->t, &s->t));
    for (int64_t i = 0; i < s->n; i++) {
        const gguf_tensor *t = gguf_tensor_at(g, (int)i);
        s->t[i] = (target__tensor){.name = t->name, .ndim = t->ndim, .handle = t};
        memcpy(s->t[i].dim, t->dim, sizeof t->dim);
    }
    return ERR_OK;
}

err target__open_gguf(target__source *s, target_config *c, const char *path, arena *a) {
    gguf *g;
    TRY(gguf_open(&g, path));
    *s = (target__source){.path = path, .naming = TARGET__GGUF, .interleaved = 1, .file = g};
    s->row = read_row;
    s->close = close_source;
    err e = read_config(g, c);
    if (!e) e = list_tensors(s, g, a);
    if (e) gguf_close(g);
    return e;
}
