/* Asking NVML: see nvml.h.
 *
 * NVML's structures are declared here as its ABI has them since driver 525, so that no header of CUDA is needed.
 * Each has numbered forms; the newest that the library has is used. A process on both lists (computing and
 * drawing) is counted once. */
#include "dev/nvml.h"
#include "dev/cuda_libs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct handle *device;
typedef struct memory_1 {
    unsigned long long total, free, used; /* used: with what the driver reserves */
} memory_1;
typedef struct memory_2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_2;
typedef struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process;

enum {
    MEMORY_2 = (int)(sizeof(memory_2) | 2u << 24),
    TOO_SMALL = 7,       /* NVML_ERROR_INSUFFICIENT_SIZE */
    OTHER_DRIVER = 18,   /* NVML_ERROR_LIB_RM_VERSION_MISMATCH */
    NO_DRIVER = 9,       /* NVML_ERROR_DRIVER_NOT_LOADED */
    PROCESSES = 256,     /* most that are asked for */
    CAPABLE_OF_READS = 0 /* NVML_P2P_CAPS_INDEX_READ */
};

/* What an idle device may hold unaccounted: the driver's own rest, and its reserve where that is in `used`. */
#define REST          ((uint64_t)64 << 20)
#define REST_RESERVED ((uint64_t)1 << 30)

typedef struct nvml {
    shared_lib lib;
    int (*init)(void), (*shutdown)(void);
    const char *(*error_text)(int);
    int (*count)(unsigned *), (*by_index)(unsigned, device *);
    int (*driver)(char *, unsigned), (*cuda)(int *);
    int (*name)(device, char *, unsigned), (*capability)(device, int *, int *);
    int (*memory1)(device, memory_1 *), (*memory2)(device, memory_2 *);
    int (*computing)(device, unsigned *, process *), (*drawing)(device, unsigned *, process *);
    int (*process_name)(unsigned, char *, unsigned);
    int (*peer)(device, device, int, int *);
} nvml;

static err resolve(nvml *n) {
    const shared_lib_symbol table[] = {
        {"nvmlInit_v2", &n->init, 0},
        {"nvmlShutdown", &n->shutdown, 0},
        {"nvmlErrorString", &n->error_text, 0},
        {"nvmlDeviceGetCount_v2", &n->count, 0},
        {"nvmlDeviceGetHandleByIndex_v2", &n->by_index, 0},
        {"nvmlSystemGetDriverVersion", &n->driver, 0},
        {"nvmlSystemGetCudaDriverVersion_v2", &n->cuda, 0},
        {"nvmlDeviceGetName", &n->name, 0},
        {"nvmlDeviceGetCudaComputeCapability", &n->capability, 0},
        {"nvmlDeviceGetMemoryInfo", &n->memory1, 0},
        {"nvmlDeviceGetMemoryInfo_v2", &n->memory2, 1},
        {"nvmlDeviceGetComputeRunningProcesses_v3", &n->computing, 0},
        {"nvmlDeviceGetGraphicsRunningProcesses_v3", &n->drawing, 1},
        {"nvmlSystemGetProcessName", &n->process_name, 1},
        {"nvmlDeviceGetP2PStatus", &n->peer, 1},
    };
    return shared_lib_symbols(&n->lib, table, (int)(sizeof table / sizeof table[0]));
}

static void read_memory(const nvml *n, device d, nvml_device *out) {
    memory_2 two = {.version = (unsigned)MEMORY_2};
    memory_1 one = {0};
    if (n->memory2 && !n->memory2(d, &two)) {
        out->total = two.total, out->used = two.used, out->reserved = two.reserved;
    } else if (!n->memory1(d, &one)) {
        out->total = one.total, out->used = one.used, out->reserved = NVML_UNKNOWN;
    } else {
        snprintf(out->fault, sizeof out->fault, "NVML does not tell its memory");
    }
}

static nvml_holder *holder_of(nvml_device *out, unsigned pid) {
    for (int i = 0; i < out->n_holders; i++)
        if (out->holders[i].pid == pid) return &out->holders[i];
    if (out->n_holders == NVML_HOLDERS) {
        out->more++;
        return NULL;
    }
    nvml_holder *h = &out->holders[out->n_holders++];
    *h = (nvml_holder){.pid = pid};
    return h;
}

/* Adds one list of processes; returns the bytes of those that found no place, or NVML_UNKNOWN. */
static uint64_t read_processes(const nvml *n, device d, nvml_device *out,
                               int (*list)(device, unsigned *, process *)) {
    process found[PROCESSES];
    unsigned count = PROCESSES;
    uint64_t beyond = 0;
    int rc = list ? list(d, &count, found) : 0;
    if (!list) return 0;
    if (rc) return rc == TOO_SMALL ? NVML_UNKNOWN : 0;
    for (unsigned i = 0; i < count && i < PROCESSES; i++) {
        nvml_holder *h = holder_of(out, found[i].pid);
        if (!h) {
            beyond = found[i].bytes == NVML_UNKNOWN ? NVML_UNKNOWN : beyond + found[i].bytes;
            continue;
        }
        if (found[i].bytes > h->bytes) h->bytes = found[i].bytes;
        if (n->process_name && n->process_name(h->pid, h->name, sizeof h->name)) h->name[0] = 0;
        h->name[sizeof h->name - 1] = 0;
    }
    return beyond;
}

static int by_bytes(const void *a, const void *b) {
    const nvml_holder *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

static void account(nvml_device *out, uint64_t beyond) {
    uint64_t told = beyond, rest = out->reserved == NVML_UNKNOWN ? REST_RESERVED : REST;
    for (int i = 0; i < out->n_holders && told != NVML_UNKNOWN; i++)
        told = out->holders[i].bytes == NVML_UNKNOWN ? NVML_UNKNOWN : told + out->holders[i].bytes;
    if (told == NVML_UNKNOWN)
        out->hidden = NVML_UNKNOWN;
    else
        out->hidden = out->used > told && out->used - told > rest ? out->used - told : 0;
}

static void read_device(const nvml *n, unsigned index, nvml_device *out) {
    device d;
    int rc = n->by_index(index, &d);
    if (rc) {
        snprintf(out->fault, sizeof out->fault, "NVML says: %s", n->error_text(rc));
        return;
    }
    if (n->name(d, out->name, sizeof out->name))
        snprintf(out->name, sizeof out->name, "NVIDIA GPU");
    if (n->capability(d, &out->major, &out->minor)) out->major = out->minor = 0;
    read_memory(n, d, out);
    uint64_t a = read_processes(n, d, out, n->computing);
    uint64_t b = read_processes(n, d, out, n->drawing);
    qsort(out->holders, (size_t)out->n_holders, sizeof out->holders[0], by_bytes);
    account(out, a == NVML_UNKNOWN || b == NVML_UNKNOWN ? NVML_UNKNOWN : a + b);
}

static void read_peers(const nvml *n, nvml_report *out) {
    device a, b;
    int status;
    for (int i = 0; i < out->n_devices; i++)
        for (int j = 0; j < out->n_devices; j++)
            if (i != j && !n->by_index((unsigned)i, &a) && !n->by_index((unsigned)j, &b) &&
                !n->peer(a, b, CAPABLE_OF_READS, &status)) {
                out->knows_peers = 1;
                if (!status) out->devices[i].peers |= UINT32_C(1) << j;
            }
}

static err failed(const nvml *n, const char *call, int rc) {
    const char *fix = rc == OTHER_DRIVER ? "the driver was updated under a running kernel module: "
                                           "reboot, or reload the module"
                      : rc == NO_DRIVER  ? "load the NVIDIA kernel module, or give the container "
                                           "its GPUs (docker: --gpus all)"
                                         : "look at the kernel's log (dmesg)";
    return err_set(ERR_REFUSED, "%s of NVML %s at %s says '%s'; %s", call, n->lib.version,
                   n->lib.path, n->error_text(rc), fix);
}

static err read_all(const nvml *n, nvml_report *out) {
    unsigned count = 0;
    int cuda = 0, rc = n->count(&count);
    if (rc) return failed(n, "nvmlDeviceGetCount_v2", rc);
    if (n->driver(out->driver, sizeof out->driver)) out->driver[0] = 0;
    if (!n->cuda(&cuda))
        snprintf(out->cuda, sizeof out->cuda, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    out->n_devices = count < NVML_DEVICES ? (int)count : NVML_DEVICES;
    out->more = (int)count - out->n_devices;
    for (int i = 0; i < out->n_devices; i++) read_device(n, (unsigned)i, &out->devices[i]);
    if (n->peer) read_peers(n, out);
    return ERR_OK;
}

err nvml_read(nvml_report *out) {
    nvml n;
    memset(out, 0, sizeof *out);
    memset(&n, 0, sizeof n);
    TRY(cuda_libs_open(&n.lib, CUDA_LIBS_NVML));
    snprintf(out->path, sizeof out->path, "%.*s", (int)sizeof out->path - 1, n.lib.path);
    snprintf(out->version, sizeof out->version, "%s", n.lib.version);
    err e = resolve(&n);
    int rc = e ? 0 : n.init();
    if (rc) e = failed(&n, "nvmlInit_v2", rc);
    if (!e) {
        e = read_all(&n, out);
        n.shutdown();
    }
    shared_lib_close(&n.lib);
    return e;
}
