/* Labels of draft blocks: the definition, in plain loops.
 *
 * A block may run past its document's end; those slots have weight 0, and label 0, which nobody reads.
 * It looks at the loss mask of the predicted position only, never at the slot's own. */
#include "train/labels.h"
#include <math.h>

void labels_decay(double gamma, int64_t block_size, float *decay) {
    decay[0] = 0;
    for (int64_t k = 1; k < block_size; k++) decay[k] = (float)exp(-(double)(k - 1) / gamma);
}

int64_t labels_make(const data_row *row, const int32_t *anchor, int64_t n_anchors,
                    int64_t block_size, const float *decay, int32_t *label, float *weight) {
    int64_t n = 0;
    for (int64_t b = 0; b < n_anchors; b++) {
        const int64_t a = anchor[b];
        const int64_t end = a < 0 ? 0 : row->doc_start[row->document[a] + 1];
        for (int64_t k = 0; k < block_size; k++) {
            int carries = a >= 0 && k > 0 && a + k < end && row->loss[a + k] && decay[k] > 0;
            label[b * block_size + k] = carries ? row->tokens[a + k] : 0;
            weight[b * block_size + k] = carries ? decay[k] : 0;
            n += carries;
        }
    }
    return n;
}
