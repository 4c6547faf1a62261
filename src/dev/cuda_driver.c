/* Opening the CUDA driver and resolving its calls: see cuda_driver.h.
 *
 * The symbols are those of CUDA 12.0 and later. That a driver is there and of the right age is told by its spec in
 * cuda_libs.c; what cuInit says is told here. */
#include "dev/cuda_driver.h"
#include "dev/cuda_libs.h"
#include <stdio.h>
#include <string.h>

static err resolve(cuda_driver *d) {
    const shared_lib_symbol table[] = {
        {"cuGetErrorName", &d->error_name, 0},
        {"cuGetErrorString", &d->error_string, 0},
        {"cuInit", &d->init, 0},
        {"cuDeviceGetCount", &d->device_count, 0},
        {"cuDeviceGet", &d->device_get, 0},
        {"cuDeviceGetName", &d->device_name, 0},
        {"cuDeviceGetAttribute", &d->device_attribute, 0},
        {"cuDeviceTotalMem_v2", &d->device_total_mem, 0},
        {"cuDevicePrimaryCtxRetain", &d->context_retain, 0},
        {"cuDevicePrimaryCtxRelease_v2", &d->context_release, 0},
        {"cuCtxSetCurrent", &d->context_set, 0},
        {"cuCtxGetCurrent", &d->context_get, 0},
        {"cuMemGetInfo_v2", &d->mem_info, 0},
        {"cuMemAlloc_v2", &d->mem_alloc, 0},
        {"cuMemFree_v2", &d->mem_free, 0},
        {"cuMemHostAlloc", &d->host_alloc, 0},
        {"cuMemFreeHost", &d->host_free, 0},
        {"cuMemcpyHtoDAsync_v2", &d->copy_in, 0},
        {"cuMemcpyDtoHAsync_v2", &d->copy_out, 0},
        {"cuMemcpyDtoDAsync_v2", &d->copy_within, 0},
        {"cuMemsetD8Async", &d->set_bytes, 0},
        {"cuStreamCreate", &d->stream_create, 0},
        {"cuStreamDestroy_v2", &d->stream_destroy, 0},
        {"cuStreamSynchronize", &d->stream_wait, 0},
        {"cuStreamWaitEvent", &d->stream_hold, 0},
        {"cuEventCreate", &d->event_create, 0},
        {"cuEventDestroy_v2", &d->event_destroy, 0},
        {"cuEventRecord", &d->event_record, 0},
        {"cuEventSynchronize", &d->event_wait, 0},
        {"cuEventElapsedTime", &d->event_ms, 0},
        {"cuModuleLoadData", &d->module_load, 0},
        {"cuModuleUnload", &d->module_unload, 0},
        {"cuModuleGetFunction", &d->module_function, 0},
        {"cuFuncGetAttribute", &d->function_get, 0},
        {"cuFuncSetAttribute", &d->function_set, 0},
        {"cuLaunchKernel", &d->launch, 0},
    };
    return shared_lib_symbols(&d->lib, table, (int)(sizeof table / sizeof table[0]));
}

const char *cuda_driver_text(const cuda_driver *d, int rc, char buf[160]) {
    const char *name = NULL, *text = NULL;
    if (d->error_name(rc, &name) || !name) name = "unknown";
    if (d->error_string(rc, &text) || !text) text = "an error that the driver does not name";
    snprintf(buf, 160, "%s (%s, %d)", text, name, rc);
    return buf;
}

err cuda_driver_open(cuda_driver *out) {
    char why[160];
    memset(out, 0, sizeof *out);
    TRY(cuda_libs_open(&out->lib, CUDA_LIBS_DRIVER));
    err e = resolve(out);
    int rc = e ? 0 : out->init(0);
    if (rc == CUDA_NO_DEVICE)
        e = err_set(ERR_REFUSED,
                    "the CUDA driver %s at %s sees no GPU; look at CUDA_VISIBLE_DEVICES, give the "
                    "container its GPUs, or ask 'paceline doctor'",
                    out->lib.version, out->lib.path);
    else if (rc)
        e = err_set(ERR_REFUSED,
                    "cuInit of the CUDA driver %s at %s says: %s; ask 'paceline doctor'",
                    out->lib.version, out->lib.path, cuda_driver_text(out, rc, why));
    if (e) cuda_driver_close(out);
    return e;
}

void cuda_driver_close(cuda_driver *d) {
    shared_lib_close(&d->lib);
    memset(d, 0, sizeof *d);
}
