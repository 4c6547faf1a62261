/* Stands for NVML where a test needs GPUs: two devices, one with holders that are told and one without.
 *
 * Device 0 has 80 GiB: process 4242 (stub_trainer) with 3 GiB on both lists, STUB_PID's own process with 512 MiB, and
 * 2 GiB more that nobody accounts for. Device 1 is idle but for 3 MiB. STUB_VERSION: two; old (a driver of 2021); less
 * (a symbol is missing); failing (nvmlInit_v2 says that driver and library differ); crash (it ends the process). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { two, old, less, failing, crash };
typedef struct memory_2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_2;
typedef struct memory_1 {
    unsigned long long total, free, used;
} memory_1;
typedef struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu, compute;
} process;
#define GIB 1073741824ull

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int rc);
int nvmlSystemGetNVMLVersion(char *out, unsigned n);
int nvmlSystemGetDriverVersion(char *out, unsigned n);
int nvmlSystemGetCudaDriverVersion_v2(int *out);
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out);
int nvmlDeviceGetName(const void *d, char *out, unsigned n);
int nvmlDeviceGetCudaComputeCapability(const void *d, int *major, int *minor);
int nvmlDeviceGetMemoryInfo(const void *d, memory_1 *out);
int nvmlDeviceGetMemoryInfo_v2(const void *d, memory_2 *out);
int nvmlDeviceGetComputeRunningProcesses_v3(const void *d, unsigned *n, process *out);
int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *d, unsigned *n, process *out);
int nvmlDeviceGetP2PStatus(const void *a, const void *b, int index, int *status);

static const char devices[2]; /* handles are their addresses */

int nvmlInit_v2(void) {
    if (STUB_VERSION == crash) raise(SIGSEGV);
    return STUB_VERSION == failing ? 18 : 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int rc) {
    return rc == 18 ? "Driver/library version mismatch" : "other";
}
int nvmlSystemGetNVMLVersion(char *out, unsigned n) {
    snprintf(out, n, STUB_VERSION == old ? "11.470.82.01" : "13.580.65.06");
    return 0;
}
int nvmlSystemGetDriverVersion(char *out, unsigned n) {
    snprintf(out, n, "580.65.06");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    *out = 13000;
    return 0;
}
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned n) {
    snprintf(out, n, pid == 4242 ? "stub_trainer" : "stub_other");
    return 0;
}
/* The variant `less` has it under another name. */
#ifdef STUB_VERSION_less
#define nvmlDeviceGetCount_v2 nvmlDeviceGetCount_of_another_name
#endif
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) {
    *out = (void *)(size_t)&devices[i];
    return i < 2 ? 0 : 2;
}
int nvmlDeviceGetName(const void *d, char *out, unsigned n) {
    (void)d;
    snprintf(out, n, "NVIDIA H200 of a stub");
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(const void *d, int *major, int *minor) {
    (void)d;
    *major = 9, *minor = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(const void *d, memory_1 *out) {
    (void)d;
    memset(out, 0, sizeof *out);
    return 3;
}
int nvmlDeviceGetMemoryInfo_v2(const void *d, memory_2 *out) {
    if (out->version != (sizeof *out | 2u << 24)) return 25;
    out->total = 80 * GIB;
    out->reserved = GIB / 2;
    out->used = d == &devices[0] ? 5 * GIB + GIB / 2 : 3 << 20;
    out->free = out->total - out->used - out->reserved;
    return 0;
}
static int list(const void *d, unsigned *n, process *out, int drawing) {
    const char *own = getenv("STUB_PID");
    unsigned wanted = d == &devices[0] ? (drawing ? 1 : 1 + (own != NULL)) : 0;
    if (*n < wanted) return 7;
    *n = wanted;
    if (wanted) out[0] = (process){4242, drawing ? GIB : 3 * GIB, 0, 0};
    if (wanted > 1) out[1] = (process){(unsigned)atoi(own), GIB / 2, 0, 0};
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(const void *d, unsigned *n, process *out) {
    return list(d, n, out, 0);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *d, unsigned *n, process *out) {
    return list(d, n, out, 1);
}
/* Reads go from 0 to 1 alone. */
int nvmlDeviceGetP2PStatus(const void *a, const void *b, int index, int *status) {
    *status = index == 0 && a == &devices[0] && b == &devices[1] ? 0 : 4;
    return 0;
}
