/* Input of `paceline probe`: tokens [n], document [n], loss_mask [n], anchors [N], all int64, as one
 * training row. The arrays are narrowed to the types that models take; the file may be closed
 * afterwards. */
#ifndef CLI_PROBE_IN_H
#define CLI_PROBE_IN_H
#include "core/arena.h"
#include "data/data.h"
#include "io/safetensors.h"

typedef struct probe_in {
    data_row row;
    int32_t *anchor;
    int64_t n_anchors;
} probe_in;
/* document, loss_mask and anchors may be absent: one document, nothing supervised, no blocks. Positions restart at each change
 * of document. vocab bounds the tokens. Anchors must ascend; -1 marks an unused block. Memory from a. */
MUST_CHECK err probe_in_load(probe_in *in, const st_file *f, int64_t vocab, arena *a);

#endif
