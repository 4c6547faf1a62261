/* A data set that was made: documents in place, their checks and digests, a preview.
 *
 * Tokens lie in blocks of memory or in mapped shards, and the index says where; nothing here cares which. Making a set is
 * data_prepare.c's. A document's digest is kept with it, so the digest of any number of them reads no token. */
#include "data/data_private.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

void data_close(data_set *s) {
    if (!s) return;
    for (size_t i = 0; s->maps && i <= s->n_shards; i++) file_map_close(&s->maps[i]);
    mem_free(s->own_docs);
    data__again_close(s->again);
    mem_free(s->shards);
    arena_destroy(s->mem);
    mem_free(s);
}

const data_counts *data_get_counts(const data_set *s) { return &s->counts; }
const data_work *data_get_work(const data_set *s) { return &s->work; }
int64_t data_count(const data_set *s) { return s->counts.documents; }

static void point_into(data_doc *d, const uint8_t *bytes) {
    d->tokens = (const int32_t *)(const void *)bytes;
    d->loss = bytes + (size_t)d->n * sizeof(int32_t);
}

data_doc data_at(const data_set *s, int64_t i) {
    const data__entry *e = &s->docs[i];
    data_doc d = {.id = i,
                  .line = e->line,
                  .path = s->paths[e->file],
                  .n = e->n,
                  .candidates = e->candidates};
    if (e->shard != DATA__LET_GO) point_into(&d, s->shards[e->shard] + e->offset);
    return d;
}

int data__is_whole(const data__entry *e, const uint8_t *bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes, data__document_bytes(e->n));
    return hash.low64 == e->hash[0] && hash.high64 == e->hash[1];
}

err data__damaged(const char *store, int64_t shard, int64_t id, const char *path, int64_t line) {
    return err_set(ERR_FORMAT,
                   "%s/tokens-%08" PRId64 ".bin is damaged: document %" PRId64 " (%s, line %" PRId64
                   ") is not what was prepared; bring the file back, or remove %s to prepare anew",
                   store, shard, id, path, line, store);
}

err data_fetch(const data_set *s, int64_t i, data_doc *out) {
    const data__entry *e = &s->docs[i];
    *out = data_at(s, i);
    if (!out->tokens) {
        const uint8_t *bytes;
        TRY(data__again_read(s->again, out->path, e, &bytes));
        point_into(out, bytes);
        return ERR_OK;
    }
    if (data__is_whole(e, s->shards[e->shard] + e->offset)) return ERR_OK;
    if (!s->store)
        return err_set(ERR_INTERNAL,
                       "document %" PRId64 " (%s, line %" PRId64
                       ") changed in memory after it was read",
                       i, s->paths[e->file], e->line);
    return data__damaged(s->store, s->shard_numbers[e->shard], i, s->paths[e->file], e->line);
}

err data_digest_at(const data_set *s, int64_t docs, char out[33]) {
    if (docs < 0 || docs > data_count(s))
        return err_set(ERR_RANGE,
                       "the data set holds %" PRId64 " documents, not the %" PRId64
                       " whose digest is asked for",
                       data_count(s), docs);
    str text = {0};
    err e = str_printf(&text, DATA__RULE " %s %s %" PRId64 " %" PRId64, s->tokenizer, s->chat,
                       s->max_length, docs);
    XXH3_state_t *state = e ? NULL : XXH3_createState();
    if (!e && !state) e = err_set(ERR_MEMORY, "no memory for the digest of the training rows");
    if (!e) {
        XXH3_128bits_reset(state);
        XXH3_128bits_update(state, text.s, text.n);
        for (int64_t i = 0; i < docs; i++) {
            const uint64_t own[3] = {s->docs[i].n, s->docs[i].hash[0], s->docs[i].hash[1]};
            XXH3_128bits_update(state, own, sizeof own);
        }
        const XXH128_hash_t h = XXH3_128bits_digest(state);
        snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.high64, h.low64);
    }
    XXH3_freeState(state);
    str_free(&text);
    return e;
}

void data_digest(const data_set *s, char out[33]) { memcpy(out, s->digest, 33); }

size_t data_memory(const data_set *s) {
    arena_stats a;
    arena_get_stats(s->mem, &a);
    return a.reserved + s->docs_cap * sizeof *s->docs;
}

static err add_mark(utf8_stream *u, const char *mark, str *out) {
    TRY(utf8_flush(u, out)); /* no half character stands across a mark */
    return str_add(out, mark, 3);
}

err data_preview(const data_set *s, const tokenizer *tok, int64_t i, str *out) {
    if (i < 0 || i >= data_count(s))
        return err_set(ERR_RANGE,
                       "document %" PRId64 " does not exist; the data set holds %" PRId64, i,
                       data_count(s));
    data_doc d;
    TRY(data_fetch(s, i, &d));
    utf8_stream u = {0};
    int open = 0;
    for (int64_t k = 0; k < d.n; k++) {
        const char *bytes;
        size_t n;
        if (d.loss[k] != open) TRY(add_mark(&u, open ? "\xe2\x9f\xa7" : "\xe2\x9f\xa6", out));
        open = d.loss[k];
        TRY(tokenizer_bytes(tok, d.tokens[k], &bytes, &n));
        TRY(utf8_push(&u, bytes, n, out));
    }
    return open ? add_mark(&u, "\xe2\x9f\xa7", out) : utf8_flush(&u, out);
}
