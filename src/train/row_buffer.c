/* Row buffers: the arrays of a data_row, taken once and filled again and again.
 *
 * Only the first n tokens and docs entries of a buffer mean anything. Buffers belong to one thread at a time; a ring
 * or a lock hands them on. Nothing is freed here: the arena is the owner. */
#include "train/row_buffer.h"
#include <string.h>

err row_buffer_make(data_row *out, int64_t max_tokens, int64_t max_docs, arena *a) {
    const size_t n = (size_t)max_tokens, docs = (size_t)max_docs;
    *out = (data_row){0};
    TRY(arena_alloc(a, n, sizeof *out->tokens, &out->tokens));
    TRY(arena_alloc(a, n, sizeof *out->loss, &out->loss));
    TRY(arena_alloc(a, n, sizeof *out->document, &out->document));
    TRY(arena_alloc(a, n, sizeof *out->position, &out->position));
    TRY(arena_alloc(a, docs + 1, sizeof *out->doc_start, &out->doc_start));
    return arena_alloc(a, docs, sizeof *out->doc_id, &out->doc_id);
}

size_t row_buffer_bytes(int64_t max_tokens, int64_t max_docs) {
    return (size_t)max_tokens * (3 * sizeof(int32_t) + 1) +
           (size_t)(2 * max_docs + 1) * sizeof(int64_t) + (size_t)6 * 64;
}

void row_buffer_copy(data_row *to, const data_row *from) {
    const size_t n = (size_t)from->n, docs = (size_t)from->docs;
    to->n = from->n;
    to->docs = from->docs;
    memcpy(to->tokens, from->tokens, n * sizeof *to->tokens);
    memcpy(to->loss, from->loss, n);
    memcpy(to->document, from->document, n * sizeof *to->document);
    memcpy(to->position, from->position, n * sizeof *to->position);
    memcpy(to->doc_start, from->doc_start, (docs + 1) * sizeof *to->doc_start);
    memcpy(to->doc_id, from->doc_id, docs * sizeof *to->doc_id);
}
