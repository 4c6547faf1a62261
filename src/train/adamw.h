/* AdamW with global-norm clipping over the drafter's flat fp32 buffers: masters, moments and gradient of one layout.
 *
 * Masters and moments are fp32, so steps far below a bf16 unit add up (B21). Decay is decoupled and acts on matrices only. A
 * gradient that is not finite, or so large that its square is not, changes nothing: weights, moments and the count of
 * steps keep every bit, and the report says so (B22). All sums have an order fixed by the layout: results do not
 * depend on the number of threads. */
#ifndef TRAIN_ADAMW_H
#define TRAIN_ADAMW_H
#include "model/drafter.h"

typedef struct adamw_config {
    double beta1, beta2, eps, weight_decay;
    double clip; /* limit of the global norm; 0: none */
} adamw_config;

typedef struct adamw {
    adamw_config cfg;
    const drafter_layout *layout;
    float *m, *v;    /* [layout->total] */
    double *partial; /* one sum of squares per chunk */
    int64_t steps;   /* steps taken: bad ones are not */
} adamw;

typedef struct adamw_report {
    double grad_norm; /* before clipping */
    double clip_scale;
    int bad; /* not finite: nothing was changed */
} adamw_report;

/* Moments are zero. Memory from a: adamw_bytes. layout is borrowed. */
MUST_CHECK err adamw_create(adamw *out, const drafter_layout *layout, const adamw_config *cfg,
                            arena *a);
size_t adamw_bytes(const drafter_layout *layout);
/* One step with the gradient scale * grads. */
MUST_CHECK err adamw_step(adamw *w, dev *d, double lr, double scale, float *params,
                          const float *grads, adamw_report *report);

#endif
