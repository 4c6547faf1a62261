/* Running attention on a CUDA device: a plan's texts become modules, the steps of a run launches.
 *
 * flex_cuda_load finds or compiles every kernel that runs of a plan need, side by side, so that runs compile nothing; any
 * number of threads may load at the same moment, and equal texts are compiled once. A run allocates nothing and does not wait. */
#ifndef FLEX_FLEX_CUDA_RUN_H
#define FLEX_FLEX_CUDA_RUN_H
#include "dev/module.h"
#include "flex/flex_cuda.h"

typedef struct flex_cuda_code flex_cuda_code;
/* backward: its kernels too. Memory from a; functions live as long as d. */
MUST_CHECK err flex_cuda_load(flex_cuda_code **out, const flex_cuda_plan *p, dev *d, int backward,
                              arena *a);
/* In order on s; arguments are copied before it returns. */
MUST_CHECK err flex_cuda_run(const flex_cuda_code *c, dev_stream *s, const flex_cuda_steps *steps);
/* Every kernel of a plan as a spec, for warmup; specs are valid during the call. */
MUST_CHECK err flex_cuda_each(const flex_cuda_plan *p, int backward, kernel_visit visit, void *ctx);

#endif
