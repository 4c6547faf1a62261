/* The libraries that a GPU needs, as specs for shared_lib: driver, NVRTC, cuBLASLt, NCCL, NVML.
 *
 * One table (cuda_libs.c) holds names, version calls and the oldest versions that serve. Nothing is opened by
 * including this, and no header of CUDA is needed: who calls a library declares what it calls. */
#ifndef DEV_CUDA_LIBS_H
#define DEV_CUDA_LIBS_H
#include "dev/shared_lib.h"

typedef enum cuda_lib {
    CUDA_LIBS_DRIVER,   /* libcuda: version = the CUDA generation that the driver serves */
    CUDA_LIBS_NVRTC,    /* compiles kernels */
    CUDA_LIBS_CUBLASLT, /* matrix products */
    CUDA_LIBS_NCCL,     /* several GPUs */
    CUDA_LIBS_NVML,     /* who holds a GPU's memory */
    CUDA_LIBS_COUNT
} cuda_lib;

const shared_lib_spec *cuda_libs_spec(cuda_lib which);
MUST_CHECK err cuda_libs_open(shared_lib *out, cuda_lib which);
/* A runtime library of a later CUDA generation than the driver serves is refused with both numbers: its kernels
 * would not load. Versions as told by driver and NVRTC; "" passes. */
MUST_CHECK err cuda_libs_check_driver(const char *driver, const char *runtime);

#endif
