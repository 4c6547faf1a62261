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
 * Prepared documents live in memory here (tokens 4 B, mask 1 B each); shards on disk come with a
 * later part. */
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
    int64_t id;   /* 0-based index over accepted documents of all files in order */
    int64_t line; /* 1-based line of its file */
    const char *path;
    int64_t n;
    const int32_t *tokens; /* [n] */
    const uint8_t *loss;   /* [n] */
} data_doc;

typedef struct data_set data_set;
MUST_CHECK err data_open(data_set **out, const char *const *paths, int n_paths,
                         const data_config *cfg);
void data_close(data_set *s);
const data_counts *data_get_counts(const data_set *s);
int64_t data_count(const data_set *s);
const data_doc *data_at(const data_set *s, int64_t i);
/* Digest of the files' bytes, documents, tokenizer, template, max_length, rule version: what a
 * checkpoint records. */
void data_digest(const data_set *s, char out[33]);
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

/* The cursor walks epochs: documents in a keyed shuffle of (seed, epoch), packed greedily in order
 * into rows of at most tokens_per_row; a document longer than that is a row of its own. State is
 * four integers: save and restore exactly. */
typedef struct data_cursor {
    int64_t epoch, next;
    int64_t rows, tokens;
} data_cursor;
typedef struct data_stream data_stream;
MUST_CHECK err data_stream_open(data_stream **out, const data_set *s, int64_t seed,
                                int64_t tokens_per_row);
void data_stream_close(data_stream *st);
data_cursor data_stream_tell(const data_stream *st);
/* ERR_RANGE for a cursor that does not fit the data set. */
MUST_CHECK err data_stream_seek(data_stream *st, data_cursor c);
/* Next row; memory belongs to the stream until the next call. A row never mixes epochs: an epoch's
 * last row moves the cursor to (epoch + 1, 0), so epochs are done when tell says so. */
MUST_CHECK err data_stream_next(data_stream *st, const data_row **out);
/* Packs that epoch on paper; uses the stream's scratch, so not beside other calls on the same
 * stream. */
int64_t data_stream_rows_per_epoch(const data_stream *st, int64_t epoch);
/* Largest row any epoch can give, in tokens and documents. */
void data_stream_limits(const data_stream *st, int64_t *max_tokens, int64_t *max_docs);

#endif
