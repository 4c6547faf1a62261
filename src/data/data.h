/* Training rows: JSONL → tokens and loss masks → flattened rows under a token budget.
 *
 * A line is {"messages":[{"role","content"}...]} or {"prompt","response"}; other top-level keys
 * ("id", "kind", ...) are allowed and ignored, other keys of a message are not: they would be lost.
 * "cut": true beside the last answer's content, or at the top, says that a limit stopped it (no end
 * of turn follows). Windows line ends and a last line without one are fine; blank lines are skipped
 * and counted.
 * Strict by default: the first bad line stops preparation with file, line number and byte offset of
 * the line. Lenient: bad lines are counted by reason and copied as they are to a side file, and a
 * summary is logged. A document longer than max_length is cut at its end and counted; one that loses
 * all supervised tokens by that is refused/set aside by the same policy. Two consecutive supervised
 * tokens are needed for a document to hold an anchor; documents without any are counted and left
 * out. A file that gives no document at all is an error in either mode.
 * Prepared documents live in memory, or with a store in shards on disk that are mapped: what a run
 * holds then follows what it touches. A store is prepared once; a file that grew is prepared from
 * where it ended before, and its new documents come after all old ones (docs/FORMATS.md). A set that is
 * only to be counted lets tokens go: 48 bytes a document stay, and one that is asked for is made again
 * from its line. */
#ifndef DATA_DATA_H
#define DATA_DATA_H
#include "core/arena.h"
#include "core/str.h"
#include "text/chat.h"

typedef struct data_config {
    const tokenizer *tok;
    const chat_template *chat;
    int64_t max_length;
    int lenient;
    /* lenient: bad lines are copied here; NULL: beside the input, as "X.rejected.jsonl" */
    const char *side_path;
    /* Folder of token shards, made when it is missing; holds one data set. NULL: documents live in
     * memory and nothing is left behind. */
    const char *store;
    /* Tokens that no store holds are let go when they are counted. tok and chat must outlive the set. */
    int let_go;
    /* let_go, and nothing is written: a store is used as far as it goes, no line is copied to a side file. */
    int read_only;
    /* Files that were cut or changed since the store was prepared: 0 refuses them by line, 1 prepares
     * everything anew. */
    int allow_changed;
    const char *allow_by; /* what a refusal tells the user to say; NULL: data.allow_changed: true */
    int64_t shard_bytes;  /* a shard of the store is at most this or one document; 0: 256 MiB */
    /* Threads that read and tokenize; 0 is 1. Documents do not depend on it. */
    int threads;
    /* Called at least once a second while files are hashed and prepared and while another process is
     * waited for, always from the thread that called data_open. NULL: not wanted. */
    void (*beat)(void *ctx, int64_t lines, int64_t bytes_done, int64_t bytes_all);
    void *beat_ctx;
    /* When it becomes non-zero, preparation ends with ERR_STOPPED and the store stays as it was. */
    const _Atomic int *stop;
} data_config;

/* lines = blank + rejected + without_anchor + documents */
typedef struct data_counts {
    int64_t lines, documents, tokens, supervised, cut, without_anchor, rejected;
    int64_t rejected_by_reason[16]; /* data_reason_name */
    int64_t blank;
    /* bytes of accepted messages that the vocabulary cannot spell: they are lost */
    int64_t unspellable;
} data_counts;
const char *data_reason_name(int reason); /* NULL past the last */

typedef struct data_doc {
    int64_t id;   /* 0-based, in order of preparation: never changes while a set grows */
    int64_t line; /* 1-based line of its file */
    const char *path;
    int64_t n;
    int64_t candidates;    /* data_candidates of its loss mask */
    const int32_t *tokens; /* [n] NULL: let go */
    const uint8_t *loss;   /* [n] likewise */
} data_doc;

/* What opening a set read and tokenized: nothing when a store held all of it. */
typedef struct data_work {
    int64_t lines, documents;
    int64_t bytes;
} data_work;

typedef struct data_set data_set;
MUST_CHECK err data_open(data_set **out, const char *const *paths, int n_paths,
                         const data_config *cfg);
void data_close(data_set *s);
const data_counts *data_get_counts(const data_set *s);
const data_work *data_get_work(const data_set *s);
int64_t data_count(const data_set *s);
/* Points into the set, reads no token. i from 0 to count - 1. */
data_doc data_at(const data_set *s, int64_t i);
/* Document i with its tokens and mask, which are those that were prepared: ERR_FORMAT names the damaged file. One that was let go is made again
 * from its line, ERR_IO when the line is no longer the same; it is valid until the next such call, and one thread
 * at a time may ask. */
MUST_CHECK err data_fetch(const data_set *s, int64_t i, data_doc *out);
/* How many positions of a document may be anchors: those that are supervised and whose successor is
 * too. loss [n]. */
int64_t data_candidates(const uint8_t *loss, int64_t n);
/* Digest of the first `docs` documents (tokens, masks, in order of id), tokenizer, template,
 * max_length and rule version: what a checkpoint records. ERR_RANGE when the set holds fewer. */
MUST_CHECK err data_digest_at(const data_set *s, int64_t docs, char out[33]);
void data_digest(const data_set *s, char out[33]); /* of all documents */
/* Bytes of memory that the documents take; those of a store are mapped and not counted, nor is the one made again last. */
size_t data_memory(const data_set *s);
/* Document i's text with supervised parts between \u27e6 and \u27e7, control tokens spelled, for
 * plan and the start of a run. */
MUST_CHECK err data_preview(const data_set *s, const tokenizer *tok, int64_t i, str *out);

/* A flattened row: documents one after another. */
typedef struct data_row {
    int64_t n, docs;
    int32_t *tokens;    /* [n] */
    uint8_t *loss;      /* [n] */
    int32_t *document;  /* [n] 0.. within the row, non-decreasing */
    int32_t *position;  /* [n] restarts at 0 per document */
    int64_t *doc_start; /* [docs+1] */
    int64_t *doc_id;    /* [docs] ids in the set */
} data_row;

/* The cursor walks epochs: documents in a keyed shuffle of (seed, epoch, docs), packed greedily in
 * order into rows of at most tokens_per_row; a document longer than that is a row of its own. `docs`
 * is how many documents, from the first, the running epoch walks: all of the set when it began. It is
 * 0 in a cursor that stands at the beginning of an epoch, so documents that were added meanwhile join
 * there. State is five integers: save and restore exactly. */
typedef struct data_cursor {
    int64_t epoch, next;
    int64_t rows, tokens;
    int64_t docs;
} data_cursor;
/* How many documents epochs walk, as far as it is told: entry i holds from epoch first[i] up to the next entry's. The
 * oldest of more than DATA_EPOCHS changes are forgotten. */
enum { DATA_EPOCHS = 64 };
typedef struct data_epochs {
    int64_t n;
    int64_t first[DATA_EPOCHS], docs[DATA_EPOCHS]; /* first rises */
} data_epochs;
/* From epoch `first` on, docs documents; what was told of that epoch and later ones is replaced. */
void data_epochs_add(data_epochs *e, int64_t first, int64_t docs);
/* Forgets epochs from `end` on. */
void data_epochs_cut(data_epochs *e, int64_t end);
/* Documents of an epoch; 0: not told. */
int64_t data_epochs_at(const data_epochs *e, int64_t epoch);
/* What a row is, without its tokens. anchors: sum of min(candidates, limit) over its documents. */
typedef struct data_row_size {
    int64_t epoch, n, docs, anchors;
} data_row_size;
typedef struct data_stream data_stream;
MUST_CHECK err data_stream_open(data_stream **out, const data_set *s, int64_t seed,
                                int64_t tokens_per_row);
void data_stream_close(data_stream *st);
data_cursor data_stream_tell(const data_stream *st);
/* ERR_RANGE for a cursor that does not fit the data set. */
MUST_CHECK err data_stream_seek(data_stream *st, data_cursor c);
/* Epochs that begin from here on walk as many documents as e tells, all of the set where it tells nothing. The stream keeps a
 * copy. ERR_RANGE when an epoch's are more than the set holds. */
MUST_CHECK err data_stream_walk(data_stream *st, const data_epochs *e);
/* Next row; memory belongs to the stream until the next call. A row never mixes epochs: an epoch's
 * last row moves the cursor to (epoch + 1, 0), so epochs are done when tell says so. */
MUST_CHECK err data_stream_next(data_stream *st, const data_row **out);
/* Moves on by one row as data_stream_next does, and reads no token: a plan walks whole epochs. */
void data_stream_skip(data_stream *st, int64_t limit, data_row_size *out);
/* Packs that epoch on paper: the documents that the running epoch walks, all of the set for another;
 * uses the stream's scratch, so not beside other calls on the same
 * stream. */
int64_t data_stream_rows_per_epoch(const data_stream *st, int64_t epoch);
/* Largest row any epoch can give, in tokens and documents. */
void data_stream_limits(const data_stream *st, int64_t *max_tokens, int64_t *max_docs);

#endif
