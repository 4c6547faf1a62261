/* One attention problem whose tensors are in host memory, on a CUDA device: in, forward, backward, out.
 *
 * For commands and checks; training keeps its tensors on the device. Contiguous tensors as flex_io has them: q, k, v of the
 * problem's type, fp32 for the rest. On the device o and all gradients of tensors have the problem's type, so do is
 * rounded to it, and what comes back is widened. Device memory is one arena of the bytes that are needed. */
#ifndef FLEX_FLEX_CUDA_HOST_H
#define FLEX_FLEX_CUDA_HOST_H
#include "flex/flex_cuda_run.h"

typedef struct flex_cuda_host flex_cuda_host;
/* Plans, loads the kernels, takes device memory, copies inputs in. io is borrowed, and read and written by what follows
 * (its workspace is not used). Memory from a. ERR_MEMORY says needed and free bytes and who holds the rest. */
MUST_CHECK err flex_cuda_host_open(flex_cuda_host **out, dev *d, const flex_problem *p, flex_io *io,
                                   int backward, arena *a);
void flex_cuda_host_close(flex_cuda_host *h); /* NULL is fine */
/* o and lse, and left as flex_forward has it. ERR_NUMERIC names the first row with a score that is NaN or +inf. */
MUST_CHECK err flex_cuda_host_forward(flex_cuda_host *h);
/* After forward: gradients. */
MUST_CHECK err flex_cuda_host_backward(flex_cuda_host *h);
/* Device, kernels, tiles by kind, bytes, what was compiled. */
MUST_CHECK err flex_cuda_host_explain(const flex_cuda_host *h, str *out);

#endif
