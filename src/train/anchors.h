/* Anchors: where draft blocks start in a training row.
 *
 * A position may be an anchor when it and its successor in the same document are both supervised. Of a document's
 * candidates at most `limit` are drawn, uniformly without replacement, in ascending order. The draw depends on
 * (seed, epoch, document id) alone: not on the row, the rank or the number of devices. The budget is per
 * document, so a short document keeps all its anchors beside a long one (B13). */
#ifndef TRAIN_ANCHORS_H
#define TRAIN_ANCHORS_H
#include "data/data.h"

/* Draws of a document's candidates (data_candidates; loss [n] is its loss mask) into out [limit]; returns how many. */
int64_t anchors_draw(const uint8_t *loss, int64_t n, int64_t limit, int64_t seed, int64_t epoch,
                     int64_t document_id, int32_t *out);
/* All anchors of a row, as indices into the row, ascending. out has room for anchors_row_count. */
int64_t anchors_row(const data_row *row, int64_t limit, int64_t seed, int64_t epoch, int32_t *out);
int64_t anchors_row_count(const data_row *row, int64_t limit);

#endif
