/* Opening and closing the CUDA side of a device handle: see dev_cuda.h.
 *
 * The primary context is retained and released, never reset: other users of the device in this process keep theirs.
 * Errors that a kernel causes come late, from whatever call waits next; their sentence says so. */
#include "dev/dev_cuda.h"
#include "core/arena.h"
#include "dev/dev_cuda_private.h"
#include "dev/dev_private.h"
#include <stdio.h>
#include <string.h>

err dev_cuda__check(const dev *d, int rc, const char *call, const char *what) {
    char why[160];
    const dev_cuda *c = d->cuda;
    if (!rc) return ERR_OK;
    int late = rc >= 700; /* faults of kernels that ran before */
    return err_set(rc == CUDA_OUT_OF_MEMORY ? ERR_MEMORY : ERR_REFUSED,
                   "%s%s%s%s on cuda:%d (%s): %s%s", call, what ? " of '" : "", what ? what : "",
                   what ? "'" : "", c->index, c->sys->devices[c->index].name,
                   cuda_driver_text(c->driver, rc, why),
                   late ? "; a kernel that ran before this call caused it" : "");
}

err dev_cuda__enter(const dev *d) {
    if (!d->cuda) return err_set(ERR_INTERNAL, "a CUDA device is needed here, and this is the CPU");
    cuda_context now = NULL;
    const cuda_driver *driver = d->cuda->driver;
    if (!driver->context_get(&now) && now == d->cuda->context) return ERR_OK;
    return dev_cuda__check(d, driver->context_set(d->cuda->context), "cuCtxSetCurrent", NULL);
}

static err attach(dev *d, cuda_system *sys, int index) {
    dev_cuda *c;
    TRY(mem_new(1, sizeof *c, &c));
    d->cuda = c;
    c->sys = sys;
    c->driver = &sys->driver;
    c->index = index;
    pthread_mutex_init(&c->lock, NULL);
    TRY(dev_cuda__check(d, c->driver->device_get(&c->handle, index), "cuDeviceGet", NULL));
    int rc = c->driver->context_retain(&c->context, c->handle);
    TRY(dev_cuda__check(d, rc, "cuDevicePrimaryCtxRetain", NULL));
    c->retained = 1;
    return dev_cuda__enter(d);
}

err dev_open_cuda(dev **out, cuda_system *sys, int index, const dev_config *cfg) {
    dev *d;
    int number;
    *out = NULL;
    if (index < 0 || index >= sys->n)
        return err_set(ERR_USAGE, "there is no cuda:%d; this machine has %d CUDA device%s", index,
                       sys->n, sys->n == 1 ? "" : "s");
    const cuda_device *info = &sys->devices[index];
    char arch[KERNEL_ARCH];
    err e = kernel_device_arch(info->major, info->minor, arch);
    if (!e) e = kernel_check_arch(arch, &number);
    if (!e) e = kernel_cache_check_arch(sys->cache, arch);
    if (e) return err_context(e, "cuda:%d (%s): ", index, info->name);
    TRY(dev_open_cpu(&d, cfg));
    e = attach(d, sys, index);
    if (e) {
        dev_close(d);
        return e;
    }
    *out = d;
    return ERR_OK;
}

void dev_cuda__close(dev *d) {
    dev_cuda *c = d->cuda;
    if (!c) return;
    module__unload_all(d);
    if (c->retained) c->driver->context_release(c->handle);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
    d->cuda = NULL;
}

int dev_cuda_index(const dev *d) { return d->cuda ? d->cuda->index : -1; }

const cuda_device *dev_cuda_info(const dev *d) { return &d->cuda->sys->devices[d->cuda->index]; }

kernel_cache *dev_cuda_cache(const dev *d) { return d->cuda->sys->cache; }

const char *dev_arch(const dev *d) { return dev_cuda_info(d)->arch; }

void dev_get_counters(const dev *d, dev_counters *out) {
    const dev_cuda *c = d->cuda;
    *out = (dev_counters){
        .launches = atomic_load(&c->launches),
        .modules = atomic_load(&c->loaded),
        .in_bytes = atomic_load(&c->in_bytes),
        .out_bytes = atomic_load(&c->out_bytes),
        .allocations = atomic_load(&c->allocations),
        .device_bytes = atomic_load(&c->device_bytes),
        .pinned_bytes = atomic_load(&c->pinned_bytes),
    };
}
