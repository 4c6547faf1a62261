/* The kernels of this folder: filling and converting arrays, as specs for module_get and for warmup.
 *
 * One list (dev_kernels.c) embeds the texts; adding a kernel there makes warmup compile it. */
#ifndef DEV_DEV_KERNELS_H
#define DEV_DEV_KERNELS_H
#include "dev/kernel.h"

/* src/dev/kernels/basic.cu: basic_fill_f32, basic_f32_to_bf16 and so on. */
const kernel_spec *dev_kernels_basic(void);
/* Every kernel of this folder that serves the architecture, once each. */
MUST_CHECK err dev_kernels_each(const char *arch, kernel_visit visit, void *ctx);

#endif
