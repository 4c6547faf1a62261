/* A mask of `paceline mask` built on a GPU: captured arrays are copied there once, and cells that stay undecided are evaluated there.
 *
 * For looking at what a device's builds cost and give; the mask is the one that the CPU builds. Device memory is taken for
 * one build and given back. */
#ifndef CLI_MASK_DEVICE_H
#define CLI_MASK_DEVICE_H
#include "dev/dev.h"
#include "flex/blockmask.h"

typedef struct mask_device {
    char name[128]; /* "cuda:0, NVIDIA H200, sm_90a"; "cpu" */
    size_t arrays;  /* bytes of captured arrays on the device; 0: it was not asked */
    size_t work;    /* bytes that questions and answers take there */
} mask_device;

/* Builds on d, a CUDA device or the CPU. */
MUST_CHECK err mask_device_build(block_mask *m, const block_mask_args *args, dev *d, arena *mem,
                                 mask_device *out);

#endif
