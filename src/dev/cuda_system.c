/* Opening what CUDA devices share: see cuda_system.h.
 *
 * Order: driver, devices, compiler and cache, and last whether the two generations go together, so that the first
 * thing that is missing is the one that is told. */
#include "dev/cuda_system.h"
#include "core/arena.h"
#include "dev/cuda_driver.h"
#include "dev/cuda_system_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static err read_device(const cuda_driver *d, int index, cuda_device *out) {
    char why[160];
    int handle = 0;
    size_t bytes = 0;
    int rc = d->device_get(&handle, index);
    if (!rc) rc = d->device_name(out->name, sizeof out->name, handle);
    if (!rc) rc = d->device_total_mem(&bytes, handle);
    const struct {
        int which, *into;
    } table[] = {
        {CUDA_CAPABILITY_MAJOR, &out->major},
        {CUDA_CAPABILITY_MINOR, &out->minor},
        {CUDA_PROCESSORS, &out->processors},
        {CUDA_SHARED_BLOCK_OPTIN, &out->shared_block},
        {CUDA_SHARED_PROCESSOR, &out->shared_processor},
        {CUDA_L2_BYTES, &out->l2_bytes},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = d->device_attribute(table[i].into, table[i].which, handle);
    if (rc)
        return err_set(ERR_REFUSED, "cuda:%d cannot be examined: %s; ask 'paceline doctor'", index,
                       cuda_driver_text(d, rc, why));
    out->bytes = bytes;
    if (kernel_device_arch(out->major, out->minor, out->arch)) out->arch[0] = 0;
    return ERR_OK;
}

static err read_devices(cuda_system *s) {
    char why[160];
    int rc = s->driver.device_count(&s->n);
    if (rc)
        return err_set(ERR_REFUSED, "cuDeviceGetCount says: %s",
                       cuda_driver_text(&s->driver, rc, why));
    TRY(mem_new((size_t)s->n + 1, sizeof *s->devices, &s->devices));
    for (int i = 0; i < s->n; i++) TRY(read_device(&s->driver, i, &s->devices[i]));
    return ERR_OK;
}

/* The compiler's version is the second word of its identity, as far as it is NVRTC. */
static err check_generations(const cuda_system *s) {
    const char *identity = kernel_cache_compiler(s->cache);
    char version[32] = "";
    if (!strncmp(identity, "NVRTC ", 6))
        snprintf(version, sizeof version, "%.*s", (int)strcspn(identity + 6, " "), identity + 6);
    return cuda_libs_check_driver(s->driver.lib.version, version);
}

err cuda_system_open(cuda_system **out, const cuda_system_config *cfg) {
    cuda_system *s;
    *out = NULL;
    TRY(mem_new(1, sizeof *s, &s));
    err e = cuda_driver_open(&s->driver);
    if (!e) e = read_devices(s);
    if (!e) e = kernel_cache_open(&s->cache, cfg ? cfg->cache : NULL);
    if (!e) e = check_generations(s);
    if (e) {
        cuda_system_close(s);
        return e;
    }
    *out = s;
    return ERR_OK;
}

void cuda_system_close(cuda_system *s) {
    if (!s) return;
    kernel_cache_close(s->cache);
    mem_free(s->devices);
    cuda_driver_close(&s->driver);
    mem_free(s);
}

err cuda_system_here(cuda_device *out, int cap, int *n) {
    cuda_system s = {0};
    TRY(cuda_driver_open(&s.driver));
    err e = read_devices(&s);
    *n = 0;
    for (int i = 0; !e && i < s.n && i < cap; i++) out[(*n)++] = s.devices[i];
    mem_free(s.devices);
    cuda_driver_close(&s.driver);
    return e;
}

int cuda_system_devices(const cuda_system *s) { return s->n; }
const cuda_device *cuda_system_device(const cuda_system *s, int index) {
    return &s->devices[index];
}
const char *cuda_system_driver(const cuda_system *s) { return s->driver.lib.version; }
kernel_cache *cuda_system_cache(cuda_system *s) { return s->cache; }

int cuda_system_parse(const char *text) {
    if (strncmp(text, "cuda:", 5) || text[5] < '0' || text[5] > '9') return -1;
    char *end;
    long n = strtol(text + 5, &end, 10);
    return *end || n > 1023 ? -1 : (int)n;
}
