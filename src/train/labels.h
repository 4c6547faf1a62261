/* Labels and weights of draft blocks: one of each per slot, weight 0 where a slot carries no loss.
 *
 * Slot k of the block at anchor a predicts the token at a + k (same position, no shift). Its weight is decay(k) exactly
 * when k > 0, a + k is inside the anchor's document and that position is supervised, else 0 (B20). Slot 0, the anchor
 * itself, never carries loss. Rows of weight 0 never reach the head. */
#ifndef TRAIN_LABELS_H
#define TRAIN_LABELS_H
#include "data/data.h"

/* decay [block_size]: exp(-(k-1)/gamma) for slot k, 0 for slot 0. */
void labels_decay(double gamma, int64_t block_size, float *decay);
/* label, weight [n_anchors * block_size]; anchor -1 is an unused block. Returns how many slots carry loss. */
int64_t labels_make(const data_row *row, const int32_t *anchor, int64_t n_anchors,
                    int64_t block_size, const float *decay, int32_t *label, float *weight);

#endif
