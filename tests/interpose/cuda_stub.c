/* Stands for the CUDA driver: two devices whose memory is this process's, with one kernel that it can run.
 *
 * Device 0 is a Hopper with 64 MiB, device 1 a Volta. Copies are real, streams and events do nothing, and a launch of
 * basic_fill_f32 fills. Numbers of the environment: STUB_CUDA_VERSION (else 13000), STUB_CUDA_INIT (what cuInit answers),
 * STUB_CUDA_FAULT (what waiting for a stream answers), STUB_CUDA_ANY (functions of any name are found; launching them does
 * nothing). STUB_CUDA_LOG names a file to which each launch adds a line. Not for several threads at once. */
#include "driver_calls.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, NOT_FOUND = 500, DEVICE_BYTES = 64 << 20 };

typedef struct block {
    struct block *next;
    void *p;
    size_t n;
} block;
static block *blocks;
static size_t used;
static _Thread_local void *current;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *v) {
    *v = number("STUB_CUDA_VERSION", 13000);
    return 0;
}
int cuGetErrorName(int rc, const char **out) {
    *out = rc == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
           : rc == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                               : "CUDA_ERROR_OF_THE_STUB";
    return 0;
}
int cuGetErrorString(int rc, const char **out) {
    *out = rc == OUT_OF_MEMORY ? "out of memory" : "an error of the stub";
    return 0;
}
int cuInit(unsigned flags) {
    (void)flags;
    return number("STUB_CUDA_INIT", 0);
}
int cuDeviceGetCount(int *n) {
    *n = 2;
    return 0;
}
int cuDeviceGet(int *d, int i) {
    *d = i;
    return 0;
}
int cuDeviceGetName(char *out, int n, int d) {
    snprintf(out, (size_t)n, d ? "NVIDIA V100 of a stub" : "NVIDIA H200 of a stub");
    return 0;
}
int cuDeviceGetAttribute(int *out, int which, int d) {
    *out = which == 75 ? (d ? 7 : 9) : which == 76 ? 0 : which == 97 ? 100000 : 132;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *out, int d) {
    (void)d;
    *out = DEVICE_BYTES;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int d) {
    *out = (void *)(uintptr_t)(1 + d);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int d) {
    (void)d;
    return blocks != NULL;
}
int cuCtxSetCurrent(void *c) {
    current = c;
    return 0;
}
int cuCtxGetCurrent(void **c) {
    *c = current;
    return 0;
}
int cuMemGetInfo_v2(size_t *f, size_t *t) {
    *f = DEVICE_BYTES - used;
    *t = DEVICE_BYTES;
    return current ? 0 : 201;
}
int cuMemAlloc_v2(uint64_t *out, size_t n) {
    block *b = current && n <= DEVICE_BYTES - used ? malloc(sizeof *b) : NULL;
    if (!b) return OUT_OF_MEMORY;
    *b = (block){blocks, aligned_alloc(256, n), n};
    *out = (uintptr_t)b->p;
    blocks = b;
    used += n;
    return 0;
}
int cuMemFree_v2(uint64_t p) {
    for (block **at = &blocks; *at; at = &(*at)->next) {
        block *b = *at;
        if ((uintptr_t)b->p != p) continue;
        *at = b->next;
        used -= b->n;
        free(b->p);
        free(b);
        return 0;
    }
    return 1;
}
int cuMemHostAlloc(void **out, size_t n, unsigned flags) {
    (void)flags;
    *out = malloc(n);
    return *out ? 0 : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *p) {
    free(p);
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
    memcpy((void *)(uintptr_t)to, from, n);
    return !s;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    memcpy(to, (void *)(uintptr_t)from, n);
    return !s;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
    return !s;
}
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s) {
    memset((void *)(uintptr_t)to, v, n);
    return !s;
}
static int handle(void **out) {
    *out = malloc(200);
    return *out ? 0 : OUT_OF_MEMORY;
}
static int drop(void *p) {
    free(p);
    return 0;
}
int cuStreamCreate(void **out, unsigned flags) { return flags == 1 ? handle(out) : 1; }
int cuStreamDestroy_v2(void *s) { return drop(s); }
int cuStreamSynchronize(void *s) {
    (void)s;
    return number("STUB_CUDA_FAULT", 0);
}
int cuStreamWaitEvent(void *s, void *e, unsigned flags) { return !s || !e || flags; }
int cuEventCreate(void **out, unsigned flags) {
    (void)flags;
    return handle(out);
}
int cuEventDestroy_v2(void *e) { return drop(e); }
int cuEventRecord(void *e, void *s) { return !e || !s; }
int cuEventSynchronize(void *e) { return !e; }
int cuEventElapsedTime(float *out, void *a, void *b) {
    *out = 0.5f;
    return !a || !b;
}
int cuModuleLoadData(void **out, const void *image) {
    (void)image;
    return handle(out);
}
int cuModuleUnload(void *m) { return drop(m); }
static const char fill[] = "basic_fill_f32", any[] = "a function of another name";
int cuModuleGetFunction(void **out, void *m, const char *name) {
    (void)m;
    if (strcmp(name, fill) != 0 && !number("STUB_CUDA_ANY", 0)) return NOT_FOUND;
    *out = (void *)(uintptr_t)(strcmp(name, fill) ? any : fill);
    return 0;
}
int cuFuncGetAttribute(int *out, int which, void *f) {
    *out = which == 4 ? 24 : which == 1 ? 1000 : which == 0 ? 1024 : 0;
    return !f;
}
int cuFuncSetAttribute(void *f, int which, int value) { return !f || which != 8 || value < 1; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *s, void **args, void **extra) {
    const char *path = getenv("STUB_CUDA_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) fputs("launch\n", log), fclose(log);
    if (f == (const void *)any) return !s || extra || !gx || !bx || !args;
    float *to = *(float **)args[0], value = *(float *)args[1];
    long long n = *(long long *)args[2];
    if (!f || !s || extra || shared || !gx || !bx || gy != 1 || gz != 1 || by != 1 || bz != 1)
        return 1;
    for (long long i = 0; i < n; i++) to[i] = value;
    return 0;
}
