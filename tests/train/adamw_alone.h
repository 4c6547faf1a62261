/* One whole step of AdamW by a single rank: both halves, with nothing to gather between them.
 *
 * Used by the tests of the optimizer and of learning; a run's ranks exchange sums between the halves.
 * Header only. */
#ifndef TESTS_ADAMW_ALONE_H
#define TESTS_ADAMW_ALONE_H
#include "train/adamw.h"

static inline err adamw_step(adamw *w, dev *d, double lr, double scale, float *params,
                             const float *grads, adamw_report *report) {
    TRY(adamw_norm(w, d, grads));
    return adamw_apply(w, d, lr, scale, params, grads, report);
}

#endif
