/* Stands for the CUDA driver: one device, played by emu_block.c, that runs what emu_nvrtc.c has compiled.
 *
 * Work is done when it is put on a stream, one launch at a time under one lock, blocks in random order; streams and events
 * hold nothing. A launch that fails (a race, an access outside, a deadlock) answers with its sentence from then on, as a
 * lost context does. EMU_SEED (else the clock) seeds all orders; the device's name tells it. */
#include "emu_run.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_BINARY = 209, NOT_FOUND = 500 };

typedef struct function {
    struct function *next;
    struct module *module;
    const emu_entry *entry;
    unsigned most_shared;
} function;
typedef struct module {
    void *lib;
    int file;
    char path[64];
    const emu_module_info *info;
    function *functions;
} module;

#pragma GCC visibility push(default)
#include "../interpose/driver_calls.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local void *current;
static int begun;

static int answer(int rc) {
    pthread_mutex_unlock(&lock);
    return rc;
}
/* Takes the lock; what the driver answers before it does anything. */
static int enter(void) {
    pthread_mutex_lock(&lock);
    return emu_m.fault;
}

/* ---- the device ---- */

int cuInit(unsigned flags) {
    struct timespec t;
    const char *seed = getenv("EMU_SEED");
    pthread_mutex_lock(&lock);
    if (begun) return answer(0);
    if (flags || !emu_block_open() || !emu_memory_open()) return answer(INVALID);
    clock_gettime(CLOCK_REALTIME, &t);
    emu_m.seed = seed ? strtoull(seed, NULL, 10)
                      : ((uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000) % 1000000000u;
    emu_m.random = emu_m.seed;
    begun = 1;
    return answer(0);
}
int cuDriverGetVersion(int *v) {
    *v = 13000;
    return 0;
}
int cuGetErrorName(int rc, const char **out) {
    *out = rc == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
           : rc == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                               : "CUDA_ERROR_EMULATED";
    return 0;
}
int cuGetErrorString(int rc, const char **out) {
    *out = rc == OUT_OF_MEMORY   ? "out of memory"
           : emu_m.fault_text[0] ? emu_m.fault_text
                                 : "a call that makes no sense";
    return 0;
}
int cuDeviceGetCount(int *n) {
    *n = 1;
    return 0;
}
int cuDeviceGet(int *d, int i) {
    *d = i;
    return i ? INVALID : 0;
}
int cuDeviceGetName(char *out, int n, int d) {
    snprintf(out, (size_t)n, "emulated device, seed %llu", (unsigned long long)emu_m.seed);
    return d;
}
int cuDeviceGetAttribute(int *out, int which, int d) {
    static const int known[][2] = {{1, 1024},
                                   {16, 4},
                                   {38, 1 << 20},
                                   {75, 9},
                                   {76, 0},
                                   {81, EMU_PROCESSOR_BYTES},
                                   {97, EMU_DYNAMIC_BYTES}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i][0] != which) continue;
        *out = known[i][1];
        return d;
    }
    return INVALID;
}
int cuDeviceTotalMem_v2(size_t *out, int d) {
    size_t free_bytes;
    emu_memory_room(&free_bytes, out);
    return d;
}
int cuDevicePrimaryCtxRetain(void **out, int d) {
    *out = &emu_m;
    return d;
}
int cuDevicePrimaryCtxRelease_v2(int d) { return d; }
int cuCtxSetCurrent(void *c) {
    current = c;
    return 0;
}
int cuCtxGetCurrent(void **c) {
    *c = current;
    return 0;
}

/* ---- memory ---- */

int cuMemGetInfo_v2(size_t *f, size_t *t) {
    int rc = enter();
    emu_memory_room(f, t);
    return answer(rc);
}
int cuMemAlloc_v2(uint64_t *out, size_t n) {
    int rc = enter();
    void *p = rc || !current || !n ? NULL : emu_memory_alloc(n);
    *out = (uintptr_t)p;
    return answer(rc ? rc : p ? 0 : OUT_OF_MEMORY);
}
int cuMemFree_v2(uint64_t p) {
    int rc = enter();
    return answer(rc ? rc : emu_memory_free((void *)(uintptr_t)p) ? 0 : INVALID);
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
/* Checks both ends on the device before anything is copied. */
static int may(uint64_t to, uint64_t from, size_t n, const void *s) {
    int rc = enter();
    if (rc) return rc;
    if (!s || (from && !emu_memory_host((void *)(uintptr_t)from, n, 0))) return INVALID;
    return to && !emu_memory_host((void *)(uintptr_t)to, n, 1) ? INVALID : 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) {
    int rc = may(to, 0, n, s);
    if (!rc) memcpy((void *)(uintptr_t)to, from, n);
    return answer(rc);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) {
    int rc = may(0, from, n, s);
    if (!rc) memcpy(to, (void *)(uintptr_t)from, n);
    return answer(rc);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) {
    int rc = may(to, from, n, s);
    if (!rc) memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
    return answer(rc);
}
int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *s) {
    int rc = may(to, 0, n, s);
    if (!rc) memset((void *)(uintptr_t)to, v, n);
    return answer(rc);
}

/* ---- streams and events: all work is done when it is asked for ---- */

static int handle(void **out) {
    *out = calloc(1, sizeof(struct timespec));
    return *out ? 0 : OUT_OF_MEMORY;
}
static int drop(void *p) {
    free(p);
    return 0;
}
int cuStreamCreate(void **out, unsigned flags) { return flags == 1 ? handle(out) : INVALID; }
int cuStreamDestroy_v2(void *s) { return drop(s); }
int cuStreamSynchronize(void *s) {
    int rc = enter();
    return answer(s ? rc : INVALID);
}
int cuStreamWaitEvent(void *s, void *e, unsigned flags) { return !s || !e || flags ? INVALID : 0; }
int cuEventCreate(void **out, unsigned flags) {
    (void)flags;
    return handle(out);
}
int cuEventDestroy_v2(void *e) { return drop(e); }
int cuEventRecord(void *e, void *s) { return e && s ? clock_gettime(CLOCK_MONOTONIC, e) : INVALID; }
int cuEventSynchronize(void *e) { return cuStreamSynchronize(e); }
int cuEventElapsedTime(float *out, void *a, void *b) {
    const struct timespec *from = a, *to = b;
    *out = (float)((double)(to->tv_sec - from->tv_sec) * 1e3 +
                   (double)(to->tv_nsec - from->tv_nsec) / 1e6);
    return 0;
}

/* ---- modules: shared objects, in files of memory that have no name ---- */

static int open_module(module *m, const void *image) {
    const char *p = image;
    uint64_t n;
    struct rlimit files;
    if (memcmp(p, "EMU1", 4)) return NO_BINARY;
    memcpy(&n, p + 8, 8);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max; /* each module keeps one */
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    m->file = memfd_create("kernel", MFD_CLOEXEC);
    snprintf(m->path, sizeof m->path, "/proc/%d/fd/%d", (int)getpid(), m->file);
    if (m->file < 0 || write(m->file, p + 16, n) != (ssize_t)n) return OUT_OF_MEMORY;
    m->lib = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (!m->lib) fprintf(stderr, "emulated device: %s\n", dlerror());
    m->info = m->lib ? dlsym(m->lib, "emu_module") : NULL;
    return m->info ? 0 : NO_BINARY;
}

static void close_module(module *m) {
    for (function *f = m->functions, *next; f; f = next) {
        next = f->next;
        free(f);
    }
    if (m->lib) dlclose(m->lib);
    if (m->file >= 0) close(m->file);
    free(m);
}

int cuModuleLoadData(void **out, const void *image) {
    int rc = enter();
    module *m = rc ? NULL : calloc(1, sizeof *m);
    if (!m) return answer(rc ? rc : OUT_OF_MEMORY);
    rc = open_module(m, image);
    if (rc)
        close_module(m);
    else
        *out = m;
    return answer(rc);
}
int cuModuleUnload(void *m) {
    pthread_mutex_lock(&lock);
    close_module(m);
    return answer(0);
}
int cuModuleGetFunction(void **out, void *in, const char *name) {
    int rc = enter();
    module *m = in;
    const emu_entry *e = rc ? NULL : m->info->entries;
    while (e && e->name && strcmp(e->name, name)) e++;
    if (!e || !e->name) return answer(rc ? rc : NOT_FOUND);
    function *f = calloc(1, sizeof *f);
    if (!f) return answer(OUT_OF_MEMORY);
    *f = (function){m->functions, m, e, 48 << 10};
    m->functions = *out = f;
    return answer(0);
}
int cuFuncGetAttribute(int *out, int which, void *in) {
    const function *f = in;
    const emu_module_info *m = f->module->info;
    *out = which == 0   ? EMU_THREADS
           : which == 1 ? (int)(m->fixed_end - m->fixed)
           : which == 4 ? 32
                        : 0;
    return 0;
}
int cuFuncSetAttribute(void *in, int which, int value) {
    function *f = in;
    const emu_module_info *m = f->module->info;
    if (which != 8 || value < 0 || value + (m->fixed_end - m->fixed) > EMU_DYNAMIC_BYTES + 1024)
        return INVALID;
    f->most_shared = (unsigned)value;
    return 0;
}

/* ---- launches ---- */

static emu_dim place_of(uint64_t i, emu_dim d) {
    return (emu_dim){(unsigned)(i % d.x), (unsigned)(i / d.x % d.y), (unsigned)(i / d.x / d.y)};
}

/* All blocks, in an order that a random step through them gives. */
static void run_blocks(emu_dim blocks, emu_dim threads) {
    const uint64_t n = (uint64_t)blocks.x * blocks.y * blocks.z, at = emu_random(n);
    uint64_t step = 1 + emu_random(n);
    for (uint64_t a = n, b = step; b;) { /* to a step that shares no divisor with n */
        const uint64_t rest = a % b;
        a = b, b = rest;
        if (!b && a > 1) step = step % n + 1, a = n, b = step;
    }
    for (uint64_t i = 0, k = at; i < n && !emu_m.fault; i++, k = (k + step) % n)
        emu_block_run(place_of(k, blocks), threads, blocks);
}

int cuLaunchKernel(void *in, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *s, void **args, void **extra) {
    const function *f = in;
    int rc = enter();
    if (rc) return answer(rc);
    if (!f || !s || extra || !gx || !gy || !gz || gy > 65535 || gz > 65535 || gx > 0x7fffffffu ||
        !bx || !by || !bz || (uint64_t)bx * by * bz > EMU_THREADS || shared > f->most_shared)
        return answer(INVALID);
    emu_m.launch = (emu_launch){f->entry->name, f->module->path, f->module->info, f->entry->call,
                                args,           shared};
    emu_m.launch_serial = emu_m.serial + 1;
    run_blocks((emu_dim){gx, gy, gz}, (emu_dim){bx, by, bz});
    return answer(0);
}
