/* Paged decode attention on a CUDA device: the text of its kernels, workspace, and the launches of a call.
 *
 * The same meaning as paged_attention (paged.h) on elements of bf16, fp16 or fp32. Pages, lengths and queries are in
 * device memory; the host states only bounds, which size grids and workspace and change no bit of any row. */
#ifndef FLEX_PAGED_CUDA_H
#define FLEX_PAGED_CUDA_H
#include "core/arena.h"
#include "core/dtype.h"
#include "core/str.h"
#include "dev/module.h"
#include "flex/kernels/paged_args.h"

typedef struct paged_cuda_shape {
    dtype type; /* of queries, keys, values and outputs: BF16, F16, F32 */
    int64_t q_heads, kv_heads, dim;
    float scale;
    /* The most that calls bring: sequences, rows of all together and of one, keys and extra keys of one. */
    int64_t seqs, rows, seq_rows, keys, extra;
} paged_cuda_shape;

typedef struct paged_cuda paged_cuda;
/* Checks the shape in sentences and loads the kernels (compiled once per type and head size). Memory from a. */
MUST_CHECK err paged_cuda_create(paged_cuda **out, dev *d, const paged_cuda_shape *shape, arena *a);
size_t paged_cuda_workspace(const paged_cuda *p);
/* For warmup: the kernel of a type and head size. */
MUST_CHECK err paged_cuda_visit(dtype type, int64_t dim, kernel_visit visit, void *ctx);
/* seqs: n of paged_gpu_seq in device memory; pools as paged.h lays them out. */
MUST_CHECK err paged_cuda_run(const paged_cuda *p, dev_stream *s, dev_address seqs, int64_t n,
                              dev_address k_pool, dev_address v_pool, dev_address workspace);

#endif
