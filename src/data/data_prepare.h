/* Preparing documents, from inside: what the files between JSONL and a data set share.
 *
 * data_open (data_prepare.c) opens the store (data_store.c), compares files with what was prepared of them before
 * (data_growth.c), reads the rest in batches (data_lines.c) into memory or new shards (data_out.c), and publishes a manifest
 * (data_manifest.c). Only those files include this, and their tests. */
#ifndef DATA_DATA_PREPARE_H
#define DATA_DATA_PREPARE_H
#include "core/pool.h"
#include "data/data_private.h"

/* ---- heartbeat ---- */

typedef struct data__pulse {
    const data_config *cfg;
    double last; /* clock_seconds of the last beat */
    int64_t lines, bytes_done, bytes_all;
} data__pulse;
/* Beats when it is time; ERR_STOPPED once the caller asked to stop. */
MUST_CHECK err data__pulse_beat(data__pulse *p);

/* ---- what a store says of itself ---- */

typedef struct data__file { /* one input, as far as it is prepared */
    char path[512];         /* where it was then: for sentences only */
    int64_t bytes;          /* from its beginning */
    char digest[33];        /* of those bytes */
    int open_line;          /* the last line had no line end */
    data_counts counts;
} data__file;
typedef struct data__segment { /* lines of one file that were prepared in one go */
    int64_t file, lines;
} data__segment;
typedef struct data__shard {
    int64_t number, bytes;
} data__shard;
typedef struct data__part { /* documents-, lines- or rejected-GENERATION.bin */
    int64_t bytes;
    char digest[33];
} data__part;
typedef struct data__rejected { /* a line set aside */
    uint64_t offset, bytes;     /* in its file */
    uint64_t file;
} data__rejected;

enum { DATA__DOCUMENTS, DATA__LINES, DATA__REJECTED_LINES, DATA__PARTS };
enum { DATA__STORE_FORMAT = 1 };

typedef struct data__manifest {
    int64_t generation; /* 0: nothing is prepared */
    int64_t next_shard; /* number of the next shard: none is used twice */
    char rule[32], tokenizer[33], chat[33];
    int64_t max_length;
    int lenient;
    data__part part[DATA__PARTS];
    data__file *files;
    data__segment *segments;
    data__shard *shards;
    size_t n_files, n_segments, n_shards, files_cap, segments_cap, shards_cap;
} data__manifest;
void data__manifest_free(data__manifest *m);
MUST_CHECK err data__manifest_copy(data__manifest *out, const data__manifest *m);
/* ERR_REFUSED for a manifest of another format or without a key, ERR_FORMAT for a damaged one. */
MUST_CHECK err data__manifest_read(data__manifest *out, const char *path);
MUST_CHECK err data__manifest_write(const data__manifest *m, const char *path);
/* Adds what `more` counts. */
void data__counts_add(data_counts *sum, const data_counts *more);

/* ---- the folder ---- */

typedef struct data__store {
    const char *dir; /* NULL: no store */
    int lock;        /* -1: not held */
    data__manifest m;
} data__store;
/* Makes the folder, waits for its lock, reads the manifest, removes what killed processes left. */
MUST_CHECK err data__store_open(data__store *st, const char *dir, data__pulse *p);
void data__store_close(data__store *st);
/* Path of a part (number: the generation) or, with what DATA__PARTS, of a shard. */
MUST_CHECK err data__store_path(char *out, size_t n, const char *dir, int what, int64_t number);
/* Writes m as the store's manifest and takes its place in st; then removes what it no longer names. */
MUST_CHECK err data__store_publish(data__store *st, const data__manifest *m);
/* Removes shards and parts that the manifest does not name. */
MUST_CHECK err data__store_sweep(const data__store *st);
/* One part, checked by size and digest. */
MUST_CHECK err data__store_map_part(const data__store *st, int what, file_map *out);
/* Shard i of the manifest, checked by size. */
MUST_CHECK err data__store_map_shard(const data__store *st, size_t i, file_map *out);
/* Whether an entry of the index points into a shard and a file that the manifest names. */
int data__store_holds(const data__manifest *m, const data__entry *e);
err data__store_lost(const data__store *st, int64_t id); /* the sentence for one that does not */
/* Index and shards of the store become the set's. */
MUST_CHECK err data__store_map(const data__store *st, data_set *s);
/* ERR_REFUSED when the folder's disk has fewer than need bytes free; path: what is being prepared. */
MUST_CHECK err data__store_room(const char *dir, double need, const char *path);

/* ---- shards that grow together ---- */

int64_t data__shard_most(
    const data_config *cfg); /* bytes of a shard, unless one document has more */
/* The first shard that is written again when about `coming` bytes of documents are added to m: it and all behind it; m->n_shards:
 * none is. */
size_t data__merge_from(const data__manifest *m, double coming, int64_t most);
int64_t data__merge_bytes(const data__manifest *m, size_t from); /* of those shards */

/* ---- files against what was prepared ---- */

typedef struct data__source {
    const char *path;
    int64_t bytes; /* of the file when preparation began */
    int64_t from;  /* prepared before, with that line's end */
    int64_t lines; /* likewise */
    void *hash;    /* XXH3_state_t over the bytes before `from` */
} data__source;
/* Whether `src` begins with what was prepared of file `i`; sets from, lines and hash. A file that was cut or
 * changed is ERR_REFUSED by line, with *changed set. */
MUST_CHECK err data__growth_check(const data__store *st, size_t i, data__source *src,
                                  data__pulse *p, int *changed);
/* Hash of one line's bytes, as the store's lines hold it. */
uint64_t data__growth_line(const char *s, size_t n);

/* ---- lines to documents ---- */

typedef enum data__kind { DATA__BLANK, DATA__DOCUMENT, DATA__SHORT, DATA__SET_ASIDE } data__kind;
typedef struct data__result { /* of one line */
    data__kind kind;
    data__reason reason;
    uint64_t offset, bytes, hash; /* the line in its file, without its end */
    int cut;
    int64_t supervised, unspellable;
    size_t at;         /* a document's bytes, in its task's buffer */
    data__entry entry; /* without its place */
} data__result;
typedef struct data__task { /* neighbouring lines */
    uint64_t from, end;     /* bytes of the file */
    int64_t line;           /* number of the first */
    data__result *results;  /* [n] */
    uint8_t *bytes;
    size_t n, results_cap, used, bytes_cap;
} data__task;
typedef struct data__lines data__lines;
MUST_CHECK err data__lines_open(data__lines **out, const data_config *cfg, data__pulse *p);
void data__lines_close(data__lines *b);
/* Reads and tokenizes the next lines of a map from byte `from`, which begins line `line`; tasks come in
 * order and are valid until the next call. The first bad line is the error unless cfg is lenient. */
MUST_CHECK err data__lines_read(data__lines *b, const char *path, const file_map *map,
                                uint64_t from, int64_t line, const data__task **tasks, int *n);

/* ---- where documents go ---- */

typedef struct data__out data__out;
/* Into memory of s (its index alone where s lets tokens go: e says where the line begins), or with a store into new files beside those of m, which it amends: its first `keep` shards stay, the
 * documents of the others are copied into new ones, each checked. */
MUST_CHECK err data__out_open(data__out **out, data_set *s, const data__store *st,
                              data__manifest *m, size_t keep, data__pulse *p);
MUST_CHECK err data__out_line(data__out *o, uint64_t hash);
MUST_CHECK err data__out_document(data__out *o, data__entry e, const uint8_t *bytes);
MUST_CHECK err data__out_rejected(data__out *o, const data__rejected *r);
/* Everything on disk, under its name, and in m. */
MUST_CHECK err data__out_finish(data__out *o);
void data__out_close(data__out *o); /* NULL is fine; what is unfinished goes */

#endif
