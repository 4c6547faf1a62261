/* Labels and weights of draft blocks, as a compact list: only slots that carry loss are in it.
 *
 * Slot k of the block at anchor a predicts the token at a + k (same position, no shift). Its weight is decay(k) exactly
 * when k > 0, a + k is inside the anchor's document and that position is supervised, else the slot is absent (B20). Slot 0,
 * the anchor itself, never carries loss. Rows without weight never reach the head. */
#ifndef TRAIN_LABELS_H
#define TRAIN_LABELS_H
#include "data/data.h"

typedef struct labels {
    int64_t n;
    int32_t *row;   /* [n] noise row: block * block_size + slot, ascending */
    int32_t *label; /* [n] token */
    float *weight;  /* [n] > 0 */
} labels;

/* decay [block_size]: exp(-(k-1)/gamma) for slot k, 0 for slot 0. */
void labels_decay(double gamma, int64_t block_size, float *decay);
/* Fills l, whose arrays have room for n_anchors * (block_size - 1). anchor -1 is an unused block. */
void labels_make(labels *l, const data_row *row, const int32_t *anchor, int64_t n_anchors,
                 int64_t block_size, const float *decay);

#endif
