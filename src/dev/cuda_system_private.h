/* The fields behind a cuda_system, for the CUDA files of this folder.
 *
 * The driver's table is read-only once it is open and serves all threads. Not for other folders. */
#ifndef DEV_CUDA_SYSTEM_PRIVATE_H
#define DEV_CUDA_SYSTEM_PRIVATE_H
#include "dev/cuda_driver.h"
#include "dev/cuda_libs.h"
#include "dev/cuda_system.h"

struct cuda_system {
    cuda_driver driver;
    cuda_device *devices; /* [n] */
    int n;
    kernel_cache *cache;
};

#endif
