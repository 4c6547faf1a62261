/* Block masks in safetensors files: the arrays of PyTorch's BlockMask under their own names.
 *
 * kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices and the four q_* ones, I32; metadata q_len, kv_len,
 * block_q, block_kv. What the lists mean, and what is refused in them, is flex/blockmask_lists.h. */
#ifndef CLI_MASK_LISTS_H
#define CLI_MASK_LISTS_H
#include "flex/blockmask_lists.h"
#include "io/safetensors.h"

MUST_CHECK err mask_lists_write(const block_mask *m, const char *path, arena *a);
MUST_CHECK err mask_lists_read(block_mask *out, const st_file *file, size_t budget, arena *a);

#endif
