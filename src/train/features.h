/* The feature store: taps of documents kept on disk, so that later epochs need no target.
 *
 * A folder holds, for each document of a data set, its taps [n, width] as bf16, in the order of writing: the store
 * takes what was written and nothing is reserved. A document is found by its number and by its very tokens: one
 * whose tokens changed is absent and may be written anew, and documents may be appended to the data at any time.
 * Values pass through bf16 always: whoever writes a document goes on with features_round of its taps, so that
 * results do not depend on whether a document was computed or read.
 * Taps depend in their last bits on where in a row a document stood: for equal bits with a store that another run
 * filled, taps must be computed with each document at the start of its row, or the key must name what orders rows.
 * What features_sync has returned for survives a crash of machine or process; what was written after it is absent
 * afterwards and computed again. Each document has a digest: damage is an error that names file and document.
 * One process at a time holds a store (a lock in the folder). It computes no taps and decides nothing about them. */
#ifndef TRAIN_FEATURES_H
#define TRAIN_FEATURES_H
#include "core/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct features features;
typedef struct features_shape {
    const char *
        key; /* what taps depend on besides tokens: target and tap list. A store with another key is
                            refused with both */
    int64_t docs, width; /* documents of the data set; values of a token: taps * hidden */
    uint64_t file_bytes; /* a new store begins another file beyond so many; 0: 1 TiB */
} features_shape;

/* Bytes that `tokens` tokens take on disk, 2 a value: 5 taps of width 2560 take 25,600 bytes a token, a million
 * documents of 2,000 tokens 51.2 TB. UINT64_MAX when they are too many to count. */
uint64_t features_bytes(int64_t tokens, int64_t width);
/* Bytes of memory that an open store of so many documents holds, whatever their length. */
size_t features_memory(int64_t docs);
/* Bytes of the documents that the store at dir holds already; 0 when there is none. Makes nothing; refuses what
 * features_open refuses of the folder. */
MUST_CHECK err features_stored(const char *dir, const features_shape *shape, uint64_t *bytes);
/* ERR_REFUSED with both figures when the file system of dir has less room than the bytes still to be written. */
MUST_CHECK err features_check_room(const char *dir, uint64_t bytes);

/* dir is made when it is missing; a folder that holds other things is refused. */
MUST_CHECK err features_open(features **out, const char *dir, const features_shape *shape);
void features_close(features *f); /* does not sync; NULL is fine */

/* All from any thread, for different documents at the same time. tokens [n], taps and out [n, width]. */
int features_has(features *f, int64_t doc, const int32_t *tokens, int64_t n);
/* Only what features_has says is there. */
MUST_CHECK err features_read(features *f, int64_t doc, const int32_t *tokens, int64_t n,
                             float *out);
/* A document that is there already stays as it is. */
MUST_CHECK err features_write(features *f, int64_t doc, const int32_t *tokens, int64_t n,
                              const float *taps);
/* Brings the data of all that was written to the disk and then the marks that make it valid. What could not be
 * brought there is absent again. */
MUST_CHECK err features_sync(features *f);
/* n values to the nearest bf16, in place: what features_read gives back for them. */
void features_round(float *values, size_t n);

#endif
