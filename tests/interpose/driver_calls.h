/* The calls of the CUDA driver that this program makes, as the libraries that stand for it define them.
 *
 * Handles are plain pointers, addresses of the device uint64_t and results int, so that no header of the toolkit is needed.
 * Declares alone: cuda_stub.c answers by rule, tests/emu/emu_driver.c runs kernels. */
#ifndef TESTS_INTERPOSE_DRIVER_CALLS_H
#define TESTS_INTERPOSE_DRIVER_CALLS_H
#include <stddef.h>
#include <stdint.h>

int cuDriverGetVersion(int *v);
int cuGetErrorName(int rc, const char **out);
int cuGetErrorString(int rc, const char **out);
int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *d, int i);
int cuDeviceGetName(char *out, int n, int d);
int cuDeviceGetAttribute(int *out, int which, int d);
int cuDeviceTotalMem_v2(size_t *out, int d);
int cuDevicePrimaryCtxRetain(void **out, int d);
int cuDevicePrimaryCtxRelease_v2(int d);
int cuCtxSetCurrent(void *c);
int cuCtxGetCurrent(void **c);
int cuMemGetInfo_v2(size_t *f, size_t *t);
int cuMemAlloc_v2(uint64_t *out, size_t n);
int cuMemFree_v2(uint64_t p);
int cuMemHostAlloc(void **out, size_t n, unsigned flags);
int cuMemFreeHost(void *p);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s);
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s);
int cuStreamCreate(void **out, unsigned flags);
int cuStreamDestroy_v2(void *s);
int cuStreamSynchronize(void *s);
int cuStreamWaitEvent(void *s, void *e, unsigned flags);
int cuEventCreate(void **out, unsigned flags);
int cuEventDestroy_v2(void *e);
int cuEventRecord(void *e, void *s);
int cuEventSynchronize(void *e);
int cuEventElapsedTime(float *out, void *a, void *b);
int cuModuleLoadData(void **out, const void *image);
int cuModuleUnload(void *m);
int cuModuleGetFunction(void **out, void *m, const char *name);
int cuFuncGetAttribute(int *out, int which, void *f);
int cuFuncSetAttribute(void *f, int which, int value);
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *s, void **args, void **extra);

#endif
