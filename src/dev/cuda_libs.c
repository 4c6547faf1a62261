/* The table of CUDA's libraries: see cuda_libs.h.
 *
 * Newest generation first. The minimum of each is the oldest release that knows Hopper and the calls that we
 * make: CUDA 12.0, whose drivers are 525 and later. Folders are where NVIDIA's own installer puts a toolkit, for
 * machines whose loader does not search there. */
#include "dev/cuda_libs.h"
#include <stdlib.h>

#define TOOLKIT "/usr/local/cuda/lib64/"

static const char *const driver_files[] = {"libcuda.so.1", NULL};
static const char *const nvrtc_files[] = {"libnvrtc.so.13", TOOLKIT "libnvrtc.so.13",
                                          "libnvrtc.so.12", TOOLKIT "libnvrtc.so.12", NULL};
static const char *const cublaslt_files[] = {"libcublasLt.so.13", TOOLKIT "libcublasLt.so.13",
                                             "libcublasLt.so.12", TOOLKIT "libcublasLt.so.12",
                                             NULL};
static const char *const nccl_files[] = {"libnccl.so.2", TOOLKIT "libnccl.so.2", NULL};
static const char *const nvml_files[] = {"libnvidia-ml.so.1", NULL};

static const shared_lib_spec table[CUDA_LIBS_COUNT] = {
    [CUDA_LIBS_DRIVER] = {"CUDA driver", driver_files, "cuDriverGetVersion", SHARED_LIB_CUDA,
                          "12.0", "an NVIDIA driver for CUDA 12.0 or later (525 or later)"},
    [CUDA_LIBS_NVRTC] = {"NVRTC", nvrtc_files, "nvrtcVersion", SHARED_LIB_PAIR, "12.0",
                         "NVRTC 12.0 or later, of the CUDA toolkit"},
    [CUDA_LIBS_CUBLASLT] = {"cuBLASLt", cublaslt_files, "cublasLtGetVersion", SHARED_LIB_SIZE,
                            "12.0", "cuBLAS 12.0 or later, of the CUDA toolkit"},
    [CUDA_LIBS_NCCL] = {"NCCL", nccl_files, "ncclGetVersion", SHARED_LIB_NCCL, "2.18",
                        "NCCL 2.18 or later"},
    [CUDA_LIBS_NVML] = {"NVML", nvml_files, "nvmlSystemGetNVMLVersion", SHARED_LIB_BUFFER, "12.525",
                        "an NVIDIA driver, 525 or later, which brings it"},
};

const shared_lib_spec *cuda_libs_spec(cuda_lib which) { return &table[which]; }

err cuda_libs_open(shared_lib *out, cuda_lib which) { return shared_lib_open(out, &table[which]); }

err cuda_libs_check_driver(const char *driver, const char *runtime) {
    int served = atoi(driver), wanted = atoi(runtime);
    if (!served || !wanted || wanted <= served) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "the driver serves CUDA %s, and NVRTC is %s: kernels that it compiles would not "
                   "load; install a driver for CUDA %d or the NVRTC of CUDA %d",
                   driver, runtime, wanted, served);
}
