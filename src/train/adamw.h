/* AdamW with global-norm clipping over the drafter's flat fp32 buffers: masters, moments and gradient of one layout.
 *
 * Masters and moments are fp32, so steps far below a bf16 unit add up (B21). Decay is decoupled and acts on matrices only. A
 * gradient that is not finite, or so large that its square is not, changes nothing: weights, moments and the count of
 * steps keep every bit, and the report says so (B22). All sums have an order fixed by the layout: results depend
 * on the number of threads no more than on the number of ranks, each of which steps its own shard of the buffers. */
#ifndef TRAIN_ADAMW_H
#define TRAIN_ADAMW_H
#include "model/drafter.h"

typedef struct adamw_config {
    double beta1, beta2, eps, weight_decay;
    double clip; /* limit of the global norm; 0: none */
} adamw_config;

enum { ADAMW_CHUNK = 16384 }; /* elements; shards are whole chunks */

typedef struct adamw {
    adamw_config cfg;
    const drafter_layout *layout;
    float *m, *v;       /* [layout->total], shared by the ranks: each works on its shard */
    double *partial;    /* [adamw_chunks] one sum of squares per chunk */
    int64_t first, end; /* chunks of this rank's shard */
    int64_t steps;      /* steps taken: bad ones are not */
} adamw;

typedef struct adamw_report {
    double grad_norm; /* before clipping */
    double clip_scale;
    int bad; /* not finite: nothing was changed */
} adamw_report;

/* Moments are zero. Memory from a: adamw_bytes. layout is borrowed. The shard is everything. */
MUST_CHECK err adamw_create(adamw *out, const drafter_layout *layout, const adamw_config *cfg,
                            arena *a);
/* The rank's part of a whole one: its moments, a shard of its chunks (group_shard's cut). Memory from a: adamw_share_bytes. */
MUST_CHECK err adamw_share(adamw *out, const adamw *whole, int ranks, int rank, arena *a);
size_t adamw_bytes(const drafter_layout *layout);
size_t adamw_share_bytes(const drafter_layout *layout);
int64_t adamw_chunks(const drafter_layout *layout);
/* A step is two halves. adamw_norm fills partial for the shard; when all ranks' partial sums are gathered, adamw_apply updates
 * the shard of params with the gradient scale * grads. The report is the same on every rank. */
MUST_CHECK err adamw_norm(adamw *w, dev *d, const float *grads);
MUST_CHECK err adamw_apply(adamw *w, dev *d, double lr, double scale, float *params,
                           const float *grads, adamw_report *report);

#endif
