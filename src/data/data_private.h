/* What the data folder's files share: one JSONL line, the reasons for which it may be turned away, and a
 * data set from inside.
 *
 * jsonl.c reads a line, data_lines.c makes documents of many, data_prepare.c leads the way, data.c is the set that comes
 * of it, data_stream.c packs rows. Nobody outside src/data includes this, except the fuzzer of the line reader. */
#ifndef DATA_DATA_PRIVATE_H
#define DATA_DATA_PRIVATE_H
#include "core/file.h"
#include "data/data.h"
#include "io/json.h"

enum {
    DATA__LINE_MAX = 16 << 20
}; /* bytes: a longer line is no conversation that any max_length could use */

typedef enum data__reason {
    DATA__TOO_LONG,
    DATA__NUL,
    DATA__BOM,
    DATA__UTF8,
    DATA__JSON,
    DATA__DUPLICATE,
    DATA__SHAPE,
    DATA__NAMING,
    DATA__ROLE,
    DATA__NO_ANSWER,
    DATA__CUT_AWAY,
    DATA__REASONS
} data__reason;

typedef struct data__line {
    const char *path, *s; /* s[0..n): without its newline */
    size_t n;
    int64_t number;  /* 1-based */
    uint64_t offset; /* of s in the file */
} data__line;

typedef struct data__chat {
    json_t *root;    /* owns the texts */
    chat_message *m; /* [n] borrowed from root */
    int n;
    size_t cap;
} data__chat;

/* One document in the index. Its bytes in the shard: tokens [n] as int32, then the loss mask [n]. Of one that was let go the index
 * keeps where its line begins. */
#define DATA__LET_GO UINT32_MAX
typedef struct data__entry {
    uint64_t offset; /* in its shard, a multiple of 4; let go: of its line in the file */
    uint32_t shard, file;
    int64_t line;
    uint32_t n, candidates;
    uint64_t hash[2]; /* XXH3-128 of its bytes, low half first */
} data__entry;

/* Bytes of a document in its shard: tokens, mask, and zeros up to a multiple of 4. */
static inline size_t data__document_bytes(size_t n) {
    return (n * (sizeof(int32_t) + 1) + 3) / 4 * 4;
}

/* Part of every digest and of a store's key: raise it when other documents or masks come from the
 * same bytes. */
#define DATA__RULE "paceline data 2"

typedef struct data__again data__again; /* makes documents from their lines (data_lines.c) */
MUST_CHECK err data__again_open(data__again **out, const data_config *cfg);
void data__again_close(data__again *a); /* NULL is fine */
/* The bytes of a document that was let go, valid until the next call. ERR_IO: its line in the file is not what it was. */
MUST_CHECK err data__again_read(data__again *a, const char *path, const data__entry *e,
                                const uint8_t **bytes);

struct data_set {
    arena *mem;              /* shards in memory, paths, names */
    const data__entry *docs; /* [counts.documents] own_docs, or mapped */
    const uint8_t **shards;  /* [n_shards] */
    size_t n_shards, shards_cap;
    const char **paths; /* [n_paths] */
    int n_paths;
    data_counts counts;
    data_work work;
    int64_t max_length;
    char tokenizer[33], chat[33], digest[33];
    /* in memory */
    data__entry *own_docs;
    size_t docs_cap;
    data__again *again; /* NULL: no document is let go */
    /* in a store; maps: [n_shards], then the index */
    const char *store;
    int64_t *shard_numbers; /* [n_shards] */
    file_map *maps;
};

/* Whether a document's bytes are those that were prepared. */
int data__is_whole(const data__entry *e, const uint8_t *bytes);
/* The sentence for one of a store that is not: document `id` of `path`, in the shard of this number. */
err data__damaged(const char *store, int64_t shard, int64_t id, const char *path, int64_t line);

/* Sets the error text "PATH: line N (at byte B): ..." and the reason; returns ERR_FORMAT. */
err data__bad(const data__line *l, data__reason why, data__reason *reason, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
int data__blank(const data__line *l);
/* The line's conversation; memory of out is reused from line to line. ERR_FORMAT comes with its reason. */
MUST_CHECK err data__parse_line(const data__line *l, data__chat *out, data__reason *reason);
void data__chat_free(data__chat *c);

#endif
