/* The fields behind the CUDA side of a device handle, for the CUDA files of this folder.
 *
 * dev_cuda.c opens and closes it, dev_cuda_memory.c and dev_cuda_stream.c take memory and order work, module.c loads and
 * launches. Counters are atomic: any thread may call. Not for other folders. */
#ifndef DEV_DEV_CUDA_PRIVATE_H
#define DEV_DEV_CUDA_PRIVATE_H
#include "dev/cuda_system_private.h"
#include "dev/dev_cuda.h"
#include <pthread.h>
#include <stdatomic.h>

struct module;

typedef struct dev_cuda {
    cuda_system *sys;
    const cuda_driver *driver; /* of sys */
    int index, handle;         /* as the driver numbers it, and its CUdevice */
    int retained;
    cuda_context context; /* the device's primary one */
    pthread_mutex_t lock; /* over modules */
    struct module *modules;
    atomic_ullong launches, loaded, in_bytes, out_bytes, allocations, device_bytes, pinned_bytes;
} dev_cuda;

struct dev_stream {
    dev *d;
    cuda_stream stream;
};

void dev_cuda__close(dev *d); /* no CUDA side: nothing */
/* Makes the device's context this thread's. ERR_REFUSED on a handle without CUDA. */
MUST_CHECK err dev_cuda__enter(const dev *d);
/* ERR_OK for 0; else one sentence: "CALL on cuda:0 (NVIDIA H200): out of memory (...)". what: the kernel, or NULL. */
MUST_CHECK err dev_cuda__check(const dev *d, int rc, const char *call, const char *what);
void module__unload_all(dev *d);

#endif
