/* Labels of draft blocks: the definition, in plain loops.
 *
 * A block may run past its document's end; those slots are simply not listed.
 * The list is in order of blocks and slots, so every later sum has a fixed order. */
#include "train/labels.h"
#include <math.h>

void labels_decay(double gamma, int64_t block_size, float *decay) {
    decay[0] = 0;
    for (int64_t k = 1; k < block_size; k++) decay[k] = (float)exp(-(double)(k - 1) / gamma);
}

void labels_make(labels *l, const data_row *row, const int32_t *anchor, int64_t n_anchors,
                 int64_t block_size, const float *decay) {
    int64_t n = 0;
    for (int64_t b = 0; b < n_anchors; b++) {
        if (anchor[b] < 0) continue;
        int64_t end = row->doc_start[row->document[anchor[b]] + 1];
        for (int64_t k = 1; k < block_size; k++) {
            int64_t p = anchor[b] + k;
            /* A decay that underflowed to 0 carries no loss either. */
            if (p >= end || !row->loss[p] || !(decay[k] > 0)) continue;
            l->row[n] = (int32_t)(b * block_size + k);
            l->label[n] = row->tokens[p];
            l->weight[n] = decay[k];
            n++;
        }
    }
    l->n = n;
}
