/* NVIDIA GPUs as NVML sees them: names, driver, memory and the processes that hold it.
 *
 * One report of plain bytes, so that a look can be taken in a child process. NVML is opened for the look and
 * shut down after it; nothing of a GPU is changed and no context is made on it. */
#ifndef DEV_NVML_H
#define DEV_NVML_H
#include "dev/shared_lib.h"
#include <stdint.h>

enum { NVML_DEVICES = 32, NVML_HOLDERS = 64 };
#define NVML_UNKNOWN UINT64_MAX /* bytes that NVML does not tell */

typedef struct nvml_holder {
    unsigned pid; /* as NVML counts: the host's number where containers are not told apart */
    char name[64];
    uint64_t bytes; /* or NVML_UNKNOWN */
} nvml_holder;

typedef struct nvml_device {
    char name[96];
    char fault[160];                   /* not "": this device gave no answer, the rest is 0 */
    int major, minor;                  /* compute capability, 0.0 when not told */
    uint64_t total, used, reserved;    /* used without reserved, unless reserved is NVML_UNKNOWN */
    int n_holders, more;               /* more: holders beyond NVML_HOLDERS */
    nvml_holder holders[NVML_HOLDERS]; /* most bytes first */
    /* Bytes in use that no holder accounts for, 0 when few (the driver's own), NVML_UNKNOWN when a holder's
     * bytes are not told. */
    uint64_t hidden;
    uint32_t peers; /* bit i: this device reaches device i's memory */
} nvml_device;

typedef struct nvml_report {
    char path[512], version[SHARED_LIB_VERSION];
    char driver[80];     /* "580.65.06" */
    char cuda[16];       /* generation that the driver serves: "13.0" */
    int n_devices, more; /* more: devices beyond NVML_DEVICES */
    int knows_peers;
    nvml_device devices[NVML_DEVICES];
} nvml_report;

/* ERR_IO: no NVML here. ERR_REFUSED: there, and too old, incomplete, or failing (what NVML says, and the fix). */
MUST_CHECK err nvml_read(nvml_report *out);

#endif
