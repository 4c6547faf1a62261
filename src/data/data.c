/* Files to documents: each line is read, rendered, tokenized, cut to length, and kept or set aside.
 *
 * Files are mapped and walked line by line; tokens and masks go into one arena. The policy for bad
 * lines lives here: strict stops at the first, lenient counts it by reason and copies it to a side
 * file that appears whole or not at all. It does not shuffle or pack (data_stream.c) and keeps
 * nothing on disk. */
#include "core/file.h"
#include "core/log.h"
#include "data/data_private.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Part of the digest: raise it when other documents or masks come from the same bytes. */
static const char rule_version[] = "paceline data 2";

enum { BLOCK_FIRST = 1 << 20, BLOCK_LAST = 64 << 20 };

struct data_set {
    arena *mem;        /* shards, paths */
    data__entry *docs; /* [counts.documents] */
    size_t docs_cap;
    uint8_t **shards; /* [n_shards] the last one has room for shard_size - shard_used more bytes */
    size_t n_shards, shards_cap, shard_size, shard_used;
    const char **paths; /* [n_paths] */
    int n_paths;
    data_counts counts;
    int64_t max_length;
    char tokenizer[33], chat[33], digest[33];
};

/* What lives only while files are read. */
typedef struct reader {
    data_set *set;
    const data_config *cfg;
    data__chat chat;
    chat_tokens tokens;
    const char *path; /* the present file, in the set's arena */
    str side_path;    /* where its bad lines go */
    file_writer *side;
    data_counts before; /* counts at the beginning of the file */
} reader;

int64_t data_candidates(const uint8_t *loss, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i + 1 < n; i++) count += loss[i] && loss[i + 1];
    return count;
}

static size_t document_bytes(size_t n) { return (n * (sizeof(int32_t) + 1) + 3) / 4 * 4; }

static err room_for(data_set *s, size_t bytes, uint8_t **out) {
    if (!s->n_shards || s->shard_size - s->shard_used < bytes) {
        size_t size = s->n_shards ? s->shard_size * 2 : BLOCK_FIRST;
        if (size > BLOCK_LAST) size = BLOCK_LAST;
        if (size < bytes) size = bytes;
        TRY(mem_grow(&s->shards, &s->shards_cap, s->n_shards + 1, sizeof *s->shards));
        TRY(arena_alloc_raw(s->mem, size, 1, &s->shards[s->n_shards]));
        s->n_shards++;
        s->shard_size = size;
        s->shard_used = 0;
    }
    *out = s->shards[s->n_shards - 1] + s->shard_used;
    return ERR_OK;
}

static err keep_document(reader *r, const data__line *l, size_t n) {
    data_set *s = r->set;
    uint8_t *at;
    const uint8_t *loss = r->tokens.loss;
    const size_t bytes = document_bytes(n);
    TRY(room_for(s, bytes, &at));
    memset(at + bytes - 4, 0, 4);
    memcpy(at, r->tokens.ids, n * sizeof *r->tokens.ids);
    memcpy(at + n * sizeof *r->tokens.ids, loss, n);
    TRY(mem_grow(&s->docs, &s->docs_cap, (size_t)s->counts.documents + 1, sizeof *s->docs));
    const XXH128_hash_t hash = XXH3_128bits(at, bytes);
    s->docs[s->counts.documents++] =
        (data__entry){.offset = s->shard_used,
                      .shard = (uint32_t)s->n_shards - 1,
                      .file = (uint32_t)s->n_paths - 1,
                      .line = l->number,
                      .n = (uint32_t)n,
                      .candidates = (uint32_t)data_candidates(loss, (int64_t)n),
                      .hash = {hash.low64, hash.high64}};
    s->shard_used += bytes;
    s->counts.tokens += (int64_t)n;
    for (size_t i = 0; i < n; i++) s->counts.supervised += loss[i];
    return ERR_OK;
}

/* One line that is not blank. ERR_FORMAT comes with a reason and may be set aside; other errors may
 * not. */
static err take_line(reader *r, const data__line *l, data__reason *reason) {
    TRY(data__parse_line(l, &r->chat, reason));
    err e = chat_encode(r->cfg->chat, r->chat.m, r->chat.n, &r->tokens);
    if (e == ERR_FORMAT) return data__bad(l, DATA__NO_ANSWER, reason, "%s", err_text());
    TRY(e);
    size_t n = r->tokens.n, kept = 0;
    if (n > (size_t)r->cfg->max_length) n = (size_t)r->cfg->max_length;
    for (size_t i = 0; i < n; i++) kept += r->tokens.loss[i];
    if (kept == 0)
        return data__bad(l, DATA__CUT_AWAY, reason,
                         "has %zu tokens and its first answer begins beyond max_length %" PRId64
                         "; raise data.max_length or drop the row",
                         r->tokens.n, r->cfg->max_length);
    if (data_candidates(r->tokens.loss, (int64_t)n) == 0) {
        r->set->counts.without_anchor++;
        return ERR_OK;
    }
    r->set->counts.cut += n < r->tokens.n;
    for (int i = 0; i < r->chat.n; i++)
        r->set->counts.unspellable += (int64_t)tokenizer_unspellable(
            r->cfg->tok, r->chat.m[i].content, r->chat.m[i].content_len);
    return keep_document(r, l, n);
}

static err set_aside(reader *r, const data__line *l, data__reason reason) {
    r->set->counts.rejected++;
    r->set->counts.rejected_by_reason[reason]++;
    if (!r->side) TRY(file_writer_open(&r->side, r->side_path.s));
    TRY(file_write(r->side, l->s, l->n));
    return file_write(r->side, "\n", 1);
}

static err read_lines(reader *r, const file_map *map) {
    const char *data = (const char *)map->data;
    data__line l = {.path = r->path};
    for (size_t at = 0; at < map->size; at += l.n + 1) {
        const char *newline = memchr(data + at, '\n', map->size - at);
        l.s = data + at;
        l.n = newline ? (size_t)(newline - l.s) : map->size - at;
        l.offset = at;
        l.number++;
        r->set->counts.lines++;
        if (data__blank(&l)) {
            r->set->counts.blank++;
            continue;
        }
        data__reason reason = DATA__REASONS;
        err e = take_line(r, &l, &reason);
        if (e == ERR_FORMAT && r->cfg->lenient) e = set_aside(r, &l, reason);
        TRY(e);
    }
    return ERR_OK;
}

/* "2 malformed JSON, 1 unknown role" of what came since `before`. */
static err list_reasons(const data_counts *now, const data_counts *before, str *out) {
    for (int i = 0; i < DATA__REASONS; i++) {
        int64_t n = now->rejected_by_reason[i] - before->rejected_by_reason[i];
        if (n > 0)
            TRY(str_printf(out, "%s%" PRId64 " %s", out->n ? ", " : "", n, data_reason_name(i)));
    }
    return ERR_OK;
}

/* The sentence for a file that gave nothing. */
static err refuse_empty(const reader *r, const char *reasons) {
    const data_counts *c = &r->set->counts, *b = &r->before;
    int64_t lines = c->lines - b->lines, short_answers = c->without_anchor - b->without_anchor;
    if (lines == 0) return err_set(ERR_FORMAT, "%s: the file is empty; it holds no rows", r->path);
    if (c->blank - b->blank == lines)
        return err_set(ERR_FORMAT, "%s: all %" PRId64 " lines are blank; it holds no rows", r->path,
                       lines);
    return err_set(ERR_FORMAT,
                   "%s: none of its %" PRId64 " lines gives a document to train on (%s%s%" PRId64
                   " without two answer tokens in a row)",
                   r->path, lines, reasons, reasons[0] ? ", " : "", short_answers);
}

/* After a file: its side file appears, its summary is logged. */
static err finish_file(reader *r) {
    data_set *s = r->set;
    str reasons = {0};
    err e = list_reasons(&s->counts, &r->before, &reasons);
    const char *text = reasons.n ? reasons.s : "";
    int64_t rejected = s->counts.rejected - r->before.rejected;
    if (!e && s->counts.documents == r->before.documents) e = refuse_empty(r, text);
    if (!e && rejected > 0)
        log_warn("%s: %" PRId64 " of %" PRId64 " lines set aside (%s); they are in %s", r->path,
                 rejected, s->counts.lines - r->before.lines, text, r->side_path.s);
    str_free(&reasons);
    return e;
}

/* A side file of an earlier run would speak of lines that are no longer bad: it becomes empty. */
static err publish_side(reader *r) {
    if (!r->cfg->lenient) return ERR_OK;
    if (!r->side && file_exists(r->side_path.s)) TRY(file_writer_open(&r->side, r->side_path.s));
    return r->side ? file_commit(&r->side) : ERR_OK;
}

static err read_file(reader *r, const char *path) {
    file_map map;
    char *own;
    TRY(arena_strdup(r->set->mem, path, &own));
    r->path = own;
    r->set->paths[r->set->n_paths++] = own;
    r->before = r->set->counts;
    if (!r->cfg->side_path) {
        str_clear(&r->side_path);
        TRY(str_printf(&r->side_path, "%s.rejected.jsonl", path));
    }
    TRY(file_map_open(&map, path));
    err e = read_lines(r, &map);
    file_map_close(&map);
    TRY(e);
    TRY(finish_file(r));
    return r->cfg->side_path ? ERR_OK : publish_side(r);
}

static void log_losses(const data_counts *c, const data_config *cfg) {
    if (c->cut)
        log_warn("%" PRId64 " of %" PRId64 " documents are longer than max_length %" PRId64
                 " and were cut at their end",
                 c->cut, c->documents, cfg->max_length);
    if (c->without_anchor)
        log_warn("%" PRId64 " conversations have no two answer tokens in a row and were left out",
                 c->without_anchor);
    if (c->unspellable)
        log_warn("%" PRId64 " bytes of text have no token in the model's vocabulary and are lost",
                 c->unspellable);
}

static err read_all(reader *r, const char *const *paths, int n_paths) {
    const data_config *cfg = r->cfg;
    if (cfg->store)
        return err_set(ERR_REFUSED, "%s: token shards on disk are not in this build", cfg->store);
    if (n_paths < 1) return err_set(ERR_USAGE, "no file of training rows was named");
    if (cfg->max_length < 1)
        return err_set(ERR_RANGE, "max_length is %" PRId64 "; it must be 1 or more",
                       cfg->max_length);
    if (cfg->side_path) TRY(str_printf(&r->side_path, "%s", cfg->side_path));
    for (int i = 0; i < n_paths; i++)
        if (cfg->side_path && strcmp(cfg->side_path, paths[i]) == 0)
            return err_set(ERR_USAGE, "%s: bad lines cannot be copied over the file they come from",
                           paths[i]);
    TRY(arena_create(&r->set->mem, "documents", 0));
    TRY(arena_alloc(r->set->mem, (size_t)n_paths, sizeof *r->set->paths, &r->set->paths));
    tokenizer_digest(cfg->tok, r->set->tokenizer);
    chat_template_digest(cfg->chat, r->set->chat);
    r->set->max_length = cfg->max_length;
    for (int i = 0; i < n_paths; i++) TRY(read_file(r, paths[i]));
    if (cfg->side_path) TRY(publish_side(r));
    TRY(data_digest_at(r->set, r->set->counts.documents, r->set->digest));
    log_losses(&r->set->counts, cfg);
    return ERR_OK;
}

err data_open(data_set **out, const char *const *paths, int n_paths, const data_config *cfg) {
    *out = NULL;
    reader r = {.cfg = cfg};
    TRY(mem_new(1, sizeof *r.set, &r.set));
    err e = read_all(&r, paths, n_paths);
    file_abort(&r.side);
    str_free(&r.side_path);
    data__chat_free(&r.chat);
    chat_tokens_free(&r.tokens);
    if (e) {
        data_close(r.set);
        return e;
    }
    *out = r.set;
    return ERR_OK;
}

void data_close(data_set *s) {
    if (!s) return;
    arena_destroy(s->mem);
    mem_free(s->docs);
    mem_free(s->shards);
    mem_free(s);
}

const data_counts *data_get_counts(const data_set *s) { return &s->counts; }
int64_t data_count(const data_set *s) { return s->counts.documents; }
data_doc data_at(const data_set *s, int64_t i) {
    const data__entry *e = &s->docs[i];
    const uint8_t *at = s->shards[e->shard] + e->offset;
    return (data_doc){.id = i,
                      .line = e->line,
                      .path = s->paths[e->file],
                      .n = e->n,
                      .candidates = e->candidates,
                      .tokens = (const int32_t *)(const void *)at,
                      .loss = at + (size_t)e->n * sizeof(int32_t)};
}

err data_check(const data_set *s, int64_t i) {
    const data__entry *e = &s->docs[i];
    const XXH128_hash_t hash = XXH3_128bits(s->shards[e->shard] + e->offset, document_bytes(e->n));
    if (hash.low64 == e->hash[0] && hash.high64 == e->hash[1]) return ERR_OK;
    return err_set(ERR_INTERNAL,
                   "document %" PRId64 " (%s, line %" PRId64
                   ") changed in memory after it was read",
                   i, s->paths[e->file], e->line);
}

err data_digest_at(const data_set *s, int64_t docs, char out[33]) {
    if (docs < 0 || docs > data_count(s))
        return err_set(ERR_RANGE,
                       "the data set holds %" PRId64 " documents, not the %" PRId64
                       " whose digest is asked for",
                       data_count(s), docs);
    str text = {0};
    err e = str_printf(&text, "%s %s %s %" PRId64 " %" PRId64, rule_version, s->tokenizer, s->chat,
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
    const data_doc d = data_at(s, i);
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
