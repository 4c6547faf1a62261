/* One micro-batch of a drafter: a row with its taps through the drafter, the head and back.
 *
 * The gradient of the sum of weight * nll is added to the caller's buffer, and numerator and denominator of the loss are summed in
 * double: the caller divides once, after all micro-batches of an update. All memory comes from one work arena that is
 * reset before returning. With grads NULL a row is only measured (held-out loss). It updates no weights, and runs no target: taps are
 * the outputs of the drafter's tapped layers, side by side, wherever they were made. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H
#include "data/data.h"
#include "model/drafter.h"

enum { STEP_MAX_BLOCK = 64 };

typedef struct step {
    dev *d;
    const target *t; /* its embedding and head */
    const drafter_layout *layout;
    float decay[STEP_MAX_BLOCK]; /* loss weight by slot */
    arena *work;                 /* step_bytes at least */
} step;

typedef struct step_sums {
    double loss, weight; /* Σ weight * nll, Σ weight */
    int64_t rows, tokens, anchors;
    int64_t slots[STEP_MAX_BLOCK],
        correct[STEP_MAX_BLOCK]; /* by slot: with loss; of these, argmax right */
} step_sums;

/* What step_row takes of the work arena at most. */
size_t step_bytes(dev *d, const target *t, const drafter_layout *l, int64_t tokens,
                  int64_t anchors);
/* taps [row->n, n_taps*H]. anchor [n_anchors] ascending indices into the row, -1: unused block.
 * nll_out [n_anchors*block_size] or NULL. A row without anchors costs nothing but the count of its tokens. */
MUST_CHECK err step_row(const step *s, const data_row *row, const float *taps,
                        const int32_t *anchor, int64_t n_anchors, const float *params, float *grads,
                        step_sums *sums, float *nll_out);

#endif
