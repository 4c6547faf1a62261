/* The kernels that attention under one mask needs, as specs for module_get and for warmup.
 *
 * Texts of kernels do not depend on lengths, heads or values, so the mask is shown with a few positions. For target and drafter
 * alike; nothing is compiled or run here. */
#ifndef MODEL_MASK_KERNELS_H
#define MODEL_MASK_KERNELS_H
#include "dev/kernel.h"
#include "flex/flex.h"

typedef struct mask_kernels {
    const expr *mask;
    const expr_env *env; /* captures that fit the positions */
    int64_t q_len, kv_len, head_dim;
    dtype type;
    size_t shared; /* bytes of shared memory that a block of the device may have */
    int backward;  /* those of backward too */
} mask_kernels;
MUST_CHECK err mask_kernels_visit(const mask_kernels *k, kernel_visit visit, void *ctx, arena *a);

#endif
