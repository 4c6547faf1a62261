/* What all CUDA devices of a process share: the driver, the compiler, the kernel cache, the list of devices.
 *
 * One handle, opened once and lent to every dev_open_cuda. Nothing is created on a device by opening it. Whether GPUs
 * can be used is decided here, in one sentence: no driver, a driver or NVRTC that is too old, an NVRTC of a later
 * generation than the driver serves, no devices. */
#ifndef DEV_CUDA_SYSTEM_H
#define DEV_CUDA_SYSTEM_H
#include "core/err.h"
#include "dev/kernel.h"
#include "dev/kernel_cache.h"
#include <stdint.h>

typedef struct cuda_device {
    char name[96];
    int major, minor;       /* compute capability */
    char arch[KERNEL_ARCH]; /* "" below sm_80: no kernels */
    uint64_t bytes;         /* of device memory */
    int processors;         /* multiprocessors */
    int shared_block;       /* most shared memory of a block, opted in */
    int shared_processor;
    int l2_bytes;
} cuda_device;

typedef struct cuda_system cuda_system;

typedef struct cuda_system_config {
    const kernel_cache_config *cache; /* NULL: the default folder, the real compiler */
} cuda_system_config;

MUST_CHECK err cuda_system_open(cuda_system **out, const cuda_system_config *cfg);
void cuda_system_close(cuda_system *s); /* NULL is fine; after its devices */
int cuda_system_devices(const cuda_system *s);
const cuda_device *cuda_system_device(const cuda_system *s, int index);
const char *cuda_system_driver(
    const cuda_system *s); /* "13.0": the generation that the driver serves */
kernel_cache *cuda_system_cache(cuda_system *s);
/* The devices alone, without compiler or cache: cap at most. */
MUST_CHECK err cuda_system_here(cuda_device *out, int cap, int *n);
/* "cuda:3" → 3; -1 when text is not of this form. */
int cuda_system_parse(const char *text);

#endif
