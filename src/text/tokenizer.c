/* Loading a tokenizer out of a GGUF, and what can be asked of it.
 *
 * The file spells tokens in the byte-level alphabet (each byte a printable character); they are turned into
 * bytes once, into one block. Merges are resolved to ids through a hash of the spellings that lives only
 * while loading. Everything in the file is checked here, so encoding cannot meet a bad id. */
#include "text/tokenizer_private.h"
#include "core/arena.h"
#include "core/file.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Part of the digest: raise it when ids change for the same file (split rule, classes, merge order). */
static const char rule_version[] = "paceline tokenizer 1";

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES  "tokenizer.ggml.token_type"
#define KEY_MERGES "tokenizer.ggml.merges"

typedef struct spelling {
    const char *s; /* borrowed from the GGUF */
    uint32_t n;
    int32_t id; /* -1: free */
} spelling;

/* What lives only while loading. */
typedef struct loader {
    const gguf *g;
    tokenizer *t;
    spelling *slot; /* [mask+1] */
    uint64_t mask;
    int16_t byte_of[512]; /* code point of the byte-level alphabet to byte; -1: not in it */
    char *joined;         /* spelling of a merge's product */
    size_t joined_cap;
    XXH3_state_t *hash;
} loader;

/* The alphabet of byte-level BPE: printable Latin-1 bytes stand for themselves, the others, in order, for the
 * code points from 256 on. */
static void fill_alphabet(int16_t byte_of[512]) {
    int next = 256;
    for (int i = 0; i < 512; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        int same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[same ? b : next++] = (int16_t)b;
    }
}

static uint64_t slot_of(const loader *l, const char *s, size_t n) {
    return XXH3_64bits(s, n) & l->mask;
}

static int32_t look_up(const loader *l, const char *s, size_t n) {
    for (uint64_t i = slot_of(l, s, n); l->slot[i].id >= 0; i = (i + 1) & l->mask)
        if (l->slot[i].n == n && memcmp(l->slot[i].s, s, n) == 0) return l->slot[i].id;
    return -1;
}

static void hash_text(loader *l, const char *s, size_t n) {
    uint64_t length = n; /* lengths keep "ab"+"c" and "a"+"bc" apart */
    XXH3_128bits_update(l->hash, &length, sizeof length);
    XXH3_128bits_update(l->hash, s, n);
}

/* Appends the bytes that a token of the byte-level alphabet stands for; 0 when it leaves the alphabet. */
static int add_bytes(loader *l, const char *s, size_t n, size_t *blob_n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int k = utf8_decode(s + i, n - i, &cp);
        if (k == 0 || cp >= 512 || l->byte_of[cp] < 0) return 0;
        l->t->blob[(*blob_n)++] = (char)l->byte_of[cp];
        i += (size_t)k;
    }
    return 1;
}

static err load_token(loader *l, int64_t i, const char *s, size_t n, size_t *blob_n) {
    tokenizer *t = l->t;
    int64_t kind;
    TRY(gguf_array_int(l->g, KEY_TYPES, i, &kind));
    if (kind < TOKENIZER__NORMAL || kind > TOKENIZER__UNUSED)
        return err_set(ERR_REFUSED,
                       "%s: token %" PRId64 " has type %" PRId64
                       ", which byte-level BPE does not have (known: 1 to 5)",
                       gguf_path(l->g), i, kind);
    t->kind[i] = (uint8_t)kind;
    t->start[i] = (uint32_t)*blob_n;
    if (kind != TOKENIZER__NORMAL) {
        memcpy(t->blob + *blob_n, s, n);
        *blob_n += n;
        t->n_added += kind == TOKENIZER__CONTROL || kind == TOKENIZER__USER;
    } else if (!add_bytes(l, s, n, blob_n)) {
        return err_set(ERR_FORMAT,
                       "%s: token %" PRId64 " ('%.*s') is not spelled in the byte-level alphabet",
                       gguf_path(l->g), i, (int)(n < 64 ? n : 64), s);
    }
    uint64_t at = slot_of(l, s, n);
    for (; l->slot[at].id >= 0; at = (at + 1) & l->mask)
        if (l->slot[at].n == n && memcmp(l->slot[at].s, s, n) == 0)
            return err_set(ERR_FORMAT,
                           "%s: tokens %d and %" PRId64 " have the same spelling '%.*s'",
                           gguf_path(l->g), l->slot[at].id, i, (int)(n < 64 ? n : 64), s);
    l->slot[at] = (spelling){s, (uint32_t)n, (int32_t)i};
    size_t bytes = *blob_n - t->start[i];
    if (kind == TOKENIZER__NORMAL && bytes == 1)
        t->bpe.byte_id[(unsigned char)t->blob[t->start[i]]] = (int32_t)i;
    return ERR_OK;
}

static err load_tokens(loader *l) {
    tokenizer *t = l->t;
    int64_t n_types;
    TRY(gguf_array_count(l->g, KEY_TOKENS, &t->count));
    TRY(gguf_array_count(l->g, KEY_TYPES, &n_types));
    if (t->count < 1 || t->count > INT32_MAX / 4 || n_types != t->count)
        return err_set(ERR_FORMAT,
                       "%s: %" PRId64 " tokens and %" PRId64
                       " token types; the two lists must have one equal length",
                       gguf_path(l->g), t->count, n_types);
    size_t total = 0, n;
    const char *s;
    for (int64_t i = 0; i < t->count; i++) {
        TRY(gguf_array_text(l->g, KEY_TOKENS, i, &s, &n));
        if (n == 0)
            return err_set(ERR_FORMAT, "%s: token %" PRId64 " is empty", gguf_path(l->g), i);
        total += n;
    }
    if (total > UINT32_MAX)
        return err_set(ERR_FORMAT,
                       "%s: the tokens' spellings take %zu bytes, which is no vocabulary",
                       gguf_path(l->g), total);
    TRY(mem_new(total, 1, &t->blob));
    TRY(mem_new((size_t)t->count + 1, sizeof *t->start, &t->start));
    TRY(mem_new((size_t)t->count, 1, &t->kind));
    for (l->mask = 15; l->mask < (uint64_t)t->count * 2;) l->mask = l->mask * 2 + 1;
    TRY(mem_new(l->mask + 1, sizeof *l->slot, &l->slot));
    for (uint64_t i = 0; i <= l->mask; i++) l->slot[i].id = -1;
    size_t blob_n = 0;
    for (int64_t i = 0; i < t->count; i++) {
        TRY(gguf_array_text(l->g, KEY_TOKENS, i, &s, &n));
        TRY(load_token(l, i, s, n, &blob_n));
        hash_text(l, s, n);
    }
    t->start[t->count] = (uint32_t)blob_n;
    XXH3_128bits_update(l->hash, t->kind, (size_t)t->count);
    return ERR_OK;
}

static err load_merge(loader *l, int64_t i, const char *s, size_t n) {
    const char *gap = memchr(s, ' ', n);
    int32_t left = -1, right = -1, id = -1;
    if (gap) {
        size_t n_left = (size_t)(gap - s), n_right = n - n_left - 1;
        TRY(mem_grow(&l->joined, &l->joined_cap, n, 1));
        memcpy(l->joined, s, n_left);
        memcpy(l->joined + n_left, gap + 1, n_right);
        left = look_up(l, s, n_left);
        right = look_up(l, gap + 1, n_right);
        id = look_up(l, l->joined, n - 1);
    }
    if (left < 0 || right < 0 || id < 0)
        return err_set(ERR_FORMAT,
                       "%s: merge %" PRId64
                       " ('%.*s') does not join two tokens into a third one of the vocabulary",
                       gguf_path(l->g), i, (int)(n < 64 ? n : 64), s);
    tokenizer__bpe_add(&l->t->bpe, left, right, (int32_t)i, id);
    return ERR_OK;
}

static err load_merges(loader *l) {
    int64_t n_merges;
    TRY(gguf_array_count(l->g, KEY_MERGES, &n_merges));
    if (n_merges > INT32_MAX / 4)
        return err_set(ERR_FORMAT, "%s: %" PRId64 " merges is beyond any vocabulary",
                       gguf_path(l->g), n_merges);
    TRY(tokenizer__bpe_reserve(&l->t->bpe, n_merges));
    for (int64_t i = 0; i < n_merges; i++) {
        const char *s;
        size_t n;
        TRY(gguf_array_text(l->g, KEY_MERGES, i, &s, &n));
        TRY(load_merge(l, i, s, n));
        hash_text(l, s, n);
    }
    return ERR_OK;
}

/* An id that a key names; -1 when the key is absent. */
static err load_id(const loader *l, const char *key, int32_t *out) {
    int64_t v;
    *out = -1;
    if (!gguf_has(l->g, key)) return ERR_OK;
    TRY(gguf_get_int(l->g, key, &v));
    if (v < 0 || v >= l->t->count)
        return err_set(ERR_FORMAT, "%s: %s is %" PRId64 ", outside the vocabulary of %" PRId64,
                       gguf_path(l->g), key, v, l->t->count);
    *out = (int32_t)v;
    return ERR_OK;
}

static err load_flag(const loader *l, const char *key, int *out) {
    *out = 0;
    return gguf_has(l->g, key) ? gguf_get_bool(l->g, key, out) : ERR_OK;
}

static err load_ends(loader *l) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    tokenizer *t = l->t;
    for (int i = 0; i < 3; i++) {
        int32_t id;
        TRY(load_id(l, keys[i], &id));
        int known = id < 0;
        for (int j = 0; j < t->n_end_ids; j++) known |= t->end_ids[j] == id;
        if (!known) t->end_ids[t->n_end_ids++] = id;
    }
    int add_bos, add_eos;
    TRY(load_flag(l, "tokenizer.ggml.add_bos_token", &add_bos));
    TRY(load_flag(l, "tokenizer.ggml.add_eos_token", &add_eos));
    TRY(load_id(l, "tokenizer.ggml.bos_token_id", &t->bos));
    if (add_bos && t->bos < 0)
        return err_set(ERR_FORMAT, "%s: add_bos_token is set and bos_token_id is missing",
                       gguf_path(l->g));
    if (add_eos)
        return err_set(ERR_REFUSED,
                       "%s: tokenizers that close every text by themselves "
                       "(add_eos_token) are not supported",
                       gguf_path(l->g));
    if (!add_bos) t->bos = -1;
    return ERR_OK;
}

static err load_chat_template(loader *l) {
    const char *s;
    size_t n;
    if (!gguf_has(l->g, "tokenizer.chat_template")) return ERR_OK;
    TRY(gguf_get_text(l->g, "tokenizer.chat_template", &s, &n));
    TRY(mem_new(n + 1, 1, &l->t->chat_template));
    memcpy(l->t->chat_template, s, n);
    return ERR_OK;
}

/* Longest spelling first, so that the first that fits is the longest; equal lengths by id. */
static void sort_added(tokenizer *t) {
    int32_t n = 0;
    for (int64_t i = 0; i < t->count; i++) {
        if (t->kind[i] != TOKENIZER__CONTROL && t->kind[i] != TOKENIZER__USER) continue;
        uint32_t length = t->start[i + 1] - t->start[i];
        int32_t at = n++;
        for (; at > 0; at--) {
            int32_t before = t->added[at - 1];
            if (t->start[before + 1] - t->start[before] >= length) break;
            t->added[at] = before;
        }
        t->added[at] = (int32_t)i;
        t->added_first[(unsigned char)t->blob[t->start[i]]] = 1;
    }
}

static err check_model(const loader *l) {
    const char *s;
    size_t n;
    TRY(gguf_get_text(l->g, "tokenizer.ggml.model", &s, &n));
    if (n != 4 || memcmp(s, "gpt2", 4) != 0)
        return err_set(ERR_REFUSED,
                       "%s: the tokenizer model '%.*s' is not known (known: gpt2, which "
                       "is byte-level BPE)",
                       gguf_path(l->g), (int)(n < 64 ? n : 64), s);
    return ERR_OK;
}

static err load_all(loader *l) {
    tokenizer *t = l->t;
    const char *pre;
    size_t n;
    TRY(check_model(l));
    TRY(gguf_get_text(l->g, "tokenizer.ggml.pre", &pre, &n));
    TRY(tokenizer__splitter_open(&t->splitter, pre, n, gguf_path(l->g)));
    const char *pattern = tokenizer__splitter_pattern(t->splitter);
    hash_text(l, rule_version, sizeof rule_version);
    hash_text(l, pre, n);
    hash_text(l, pattern, strlen(pattern));
    fill_alphabet(l->byte_of);
    for (int b = 0; b < 256; b++) t->bpe.byte_id[b] = -1;
    TRY(load_tokens(l));
    TRY(load_merges(l));
    TRY(load_ends(l));
    TRY(load_chat_template(l));
    TRY(mem_new((size_t)t->n_added, sizeof *t->added, &t->added));
    sort_added(t);
    XXH3_128bits_update(l->hash, &t->bos, sizeof t->bos);
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(l->hash));
    for (int i = 0; i < 16; i++) {
        static const char hex[] = "0123456789abcdef";
        t->digest[2 * i] = hex[digest.digest[i] >> 4];
        t->digest[2 * i + 1] = hex[digest.digest[i] & 15];
    }
    return ERR_OK;
}

err tokenizer_load_gguf(tokenizer **out, const gguf *g) {
    *out = NULL;
    loader l = {.g = g};
    TRY(mem_new(1, sizeof *l.t, &l.t));
    l.hash = XXH3_createState();
    err e = l.hash ? ERR_OK : err_set(ERR_MEMORY, "no memory to load a tokenizer");
    if (!e) {
        XXH3_128bits_reset(l.hash);
        e = load_all(&l);
    }
    XXH3_freeState(l.hash);
    mem_free(l.slot);
    mem_free(l.joined);
    if (e) {
        tokenizer_free(l.t);
        return e;
    }
    *out = l.t;
    return ERR_OK;
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    tokenizer__splitter_free(t->splitter);
    mem_free(t->bpe.slot);
    mem_free(t->blob);
    mem_free(t->start);
    mem_free(t->kind);
    mem_free(t->added);
    mem_free(t->chat_template);
    mem_free(t);
}

int64_t tokenizer_count(const tokenizer *t) { return t->count; }

err tokenizer_bytes(const tokenizer *t, int32_t id, const char **s, size_t *n) {
    if (id < 0 || id >= t->count)
        return err_set(ERR_RANGE, "token id %d is outside the vocabulary of %" PRId64, id,
                       t->count);
    *s = t->blob + t->start[id];
    *n = t->start[id + 1] - t->start[id];
    return ERR_OK;
}

int tokenizer_is_control(const tokenizer *t, int32_t id) {
    return id >= 0 && id < t->count && t->kind[id] == TOKENIZER__CONTROL;
}

int32_t tokenizer_find(const tokenizer *t, const char *spelled) {
    size_t n = strlen(spelled);
    for (int32_t i = 0; i < t->n_added; i++) {
        int32_t id = t->added[i];
        if (t->kind[id] == TOKENIZER__CONTROL && t->start[id + 1] - t->start[id] == n &&
            memcmp(t->blob + t->start[id], spelled, n) == 0)
            return id;
    }
    return -1;
}

int tokenizer_end_ids(const tokenizer *t, const int32_t **ids) {
    *ids = t->end_ids;
    return t->n_end_ids;
}

int32_t tokenizer_bos(const tokenizer *t) { return t->bos; }
void tokenizer_digest(const tokenizer *t, char out[33]) { memcpy(out, t->digest, 33); }
const char *tokenizer_pre(const tokenizer *t) { return tokenizer__splitter_name(t->splitter); }
const char *tokenizer_chat_template(const tokenizer *t) { return t->chat_template; }
