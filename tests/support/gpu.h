/* A GPU for tests of kernels: the driver by dlopen, memory, modules, launches, times; header only.
 *
 * gpu_open gives 0 where there is no driver or no device, and the test says "skipped". Every call is checked: a failure
 * prints call and reason and ends the program. One device, the default stream. Tests of kernels stand on this, so that
 * they judge texts and launches and nothing else. */
#ifndef SUPPORT_GPU_H
#define SUPPORT_GPU_H
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gpu {
    char name[128], arch[16];
    int major, minor, shared; /* dynamic shared memory that a block may have */
    int (*mem_alloc)(uint64_t *, size_t);
    int (*mem_free)(uint64_t);
    int (*mem_info)(size_t *, size_t *);
    int (*in)(uint64_t, const void *, size_t);
    int (*out)(void *, uint64_t, size_t);
    int (*set8)(uint64_t, unsigned char, size_t);
    int (*set8_later)(uint64_t, unsigned char, size_t, void *);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*set_attribute)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*wait)(void);
    int (*event)(void **, unsigned);
    int (*record)(void *, void *);
    int (*event_wait)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*text_of)(int, const char **);
} gpu;

static inline void gpu_must(const gpu *g, int code, const char *call) {
    const char *text = "?";
    if (code == 0) return;
    if (g->text_of) (void)g->text_of(code, &text);
    printf("GPU: %s failed with %d (%s)\n", call, code, text);
    fflush(stdout);
    abort();
}
#define GPU(g, call) gpu_must(g, (g)->call, #call)

static inline int gpu_open(gpu *g) {
    int (*init)(unsigned), (*device)(int *, int), (*name)(char *, int, int),
        (*attribute)(int *, int, int), (*retain)(void **, int), (*current)(void *);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    int d;
    memset(g, 0, sizeof *g);
    if (!lib) return 0;
    struct {
        const char *name;
        void *slot;
    } want[] = {{"cuInit", &init},
                {"cuDeviceGet", &device},
                {"cuDeviceGetName", &name},
                {"cuDeviceGetAttribute", &attribute},
                {"cuDevicePrimaryCtxRetain", &retain},
                {"cuCtxSetCurrent", &current},
                {"cuMemAlloc_v2", &g->mem_alloc},
                {"cuMemFree_v2", &g->mem_free},
                {"cuMemGetInfo_v2", &g->mem_info},
                {"cuMemcpyHtoD_v2", &g->in},
                {"cuMemcpyDtoH_v2", &g->out},
                {"cuMemsetD8_v2", &g->set8},
                {"cuMemsetD8Async", &g->set8_later},
                {"cuModuleLoadData", &g->load},
                {"cuModuleGetFunction", &g->function},
                {"cuFuncSetAttribute", &g->set_attribute},
                {"cuLaunchKernel", &g->launch},
                {"cuCtxSynchronize", &g->wait},
                {"cuEventCreate", &g->event},
                {"cuEventRecord", &g->record},
                {"cuEventSynchronize", &g->event_wait},
                {"cuEventElapsedTime", &g->elapsed},
                {"cuGetErrorString", &g->text_of}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(lib, want[i].name);
        if (!f) return 0;
        memcpy(want[i].slot, &f, sizeof f);
    }
    if (init(0) || device(&d, 0)) return 0;
    gpu_must(g, name(g->name, sizeof g->name, d), "cuDeviceGetName");
    gpu_must(g, attribute(&g->major, 75, d), "major");
    gpu_must(g, attribute(&g->minor, 76, d), "minor");
    gpu_must(g, attribute(&g->shared, 97, d), "shared memory");
    gpu_must(g, retain(&context, d), "cuDevicePrimaryCtxRetain");
    gpu_must(g, current(context), "cuCtxSetCurrent");
    snprintf(g->arch, sizeof g->arch, "sm_%d%d", g->major, g->minor);
    return 1;
}

/* At least 256 bytes, filled with a byte. */
static inline uint64_t gpu_new(const gpu *g, size_t bytes, int fill) {
    uint64_t at;
    size_t n = bytes < 256 ? 256 : bytes;
    GPU(g, mem_alloc(&at, n));
    GPU(g, set8(at, (unsigned char)fill, n));
    return at;
}
static inline uint64_t gpu_copy(const gpu *g, const void *from, size_t bytes) {
    uint64_t at = gpu_new(g, bytes, 0);
    if (bytes) GPU(g, in(at, from, bytes));
    return at;
}

#endif
