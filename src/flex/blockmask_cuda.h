/* Block masks whose captured arrays live on a CUDA device.
 *
 * The host analyses intervals as ever; cells of tiles that stay undecided and rows without a proof are computed by kernels,
 * many at a time, and only their answers are copied. Arrays of a few MiB are copied to the host for the analysis: that is
 * less than what it would otherwise be told of them. Larger ones stay where they are, and the extremes of their leaves are
 * computed by kernels; proofs may then be weaker where a slice begins inside a leaf, which no array of up to 32,768 elements
 * has. The tiles are in both cases those that blockmask_build finds in a host copy of the arrays, run for run. The mask's
 * runs are host memory: give them to a plan (flex_problem's blocks), whose tables carry them to the device. One build at a
 * time per handle; any number of handles. */
#ifndef FLEX_BLOCKMASK_CUDA_H
#define FLEX_BLOCKMASK_CUDA_H
#include "dev/module.h"
#include "flex/blockmask.h"

typedef struct blockmask_cuda blockmask_cuda;
enum { BLOCKMASK_CUDA_NEAR = 16 << 20 };
/* Kernels and device memory for builds of one mask. Of env only the element types of arrays are read. Arrays of at most
 * `near` bytes together are copied to the host (BLOCKMASK_CUDA_NEAR, if nothing speaks for another). Memory from a, which
 * outlives the handle; mask and d are borrowed. */
MUST_CHECK err blockmask_cuda_open(blockmask_cuda **out, dev *d, const expr *mask,
                                   const expr_env *env, size_t near, arena *a);
void blockmask_cuda_close(blockmask_cuda *c); /* NULL is fine */
/* As blockmask_build for args->mask, the handle's mask; `data` of every captured array in args->env is its address in device
 * memory. Arrays are read in the order of s, and the host waits for it. */
MUST_CHECK err blockmask_cuda_build(block_mask *out, blockmask_cuda *c, const block_mask_args *args,
                                    dev_stream *s, arena *a);
size_t blockmask_cuda_bytes(const blockmask_cuda *c); /* of device memory that builds use */
/* Its kernels as specs, for warmup; none for a mask without arrays. */
MUST_CHECK err blockmask_cuda_each(const expr *mask, const expr_env *env, kernel_visit visit,
                                   void *ctx);

#endif
