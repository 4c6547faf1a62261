/* Memory for one flattened row and copies into it: rows travel between roles, a stream's own row lives only until its next one.
 *
 * Sizes come from data_stream_limits, so no row of any epoch is too large. It knows nothing of taps or rings. */
#ifndef TRAIN_ROW_BUFFER_H
#define TRAIN_ROW_BUFFER_H
#include "data/data.h"

MUST_CHECK err row_buffer_make(data_row *out, int64_t max_tokens, int64_t max_docs, arena *a);
size_t row_buffer_bytes(int64_t max_tokens, int64_t max_docs);
void row_buffer_copy(data_row *to, const data_row *from);

#endif
