/* Device memory in arenas, pinned host memory, copies: see dev_cuda.h.
 *
 * An arena is one allocation with a fill mark. When the device has no room the error says how much was wanted, how much is
 * free, and who holds the rest as NVML sees it. */
#include "core/arena.h"
#include "core/str.h"
#include "dev/dev_cuda.h"
#include "dev/dev_cuda_private.h"
#include "dev/dev_private.h"
#include "dev/nvml.h"
#include <string.h>

enum { ALIGNMENT = 256, HOLDERS_TOLD = 3 };

struct dev_arena {
    dev *d;
    const char *name;
    dev_address start;
    size_t cap, used, peak;
};

err dev_memory(dev *d, uint64_t *free_bytes, uint64_t *total) {
    size_t f = 0, t = 0;
    TRY(dev_cuda__enter(d));
    TRY(dev_cuda__check(d, d->cuda->driver->mem_info(&f, &t), "cuMemGetInfo", NULL));
    *free_bytes = f;
    *total = t;
    return ERR_OK;
}

/* "; process 17 (python) holds 70.1 GiB" and so on. Only where NVML counts the same devices in the same order. */
static void add_holders(const dev *d, str *out) {
    nvml_report *r;
    char bytes[24];
    if (mem_new(1, sizeof *r, &r)) return;
    int index = d->cuda->index;
    if (nvml_read(r) == ERR_OK && r->n_devices == d->cuda->sys->n &&
        !strcmp(r->devices[index].name, dev_cuda_info(d)->name)) {
        const nvml_device *v = &r->devices[index];
        for (int i = 0; i < v->n_holders && i < HOLDERS_TOLD; i++) {
            const nvml_holder *h = &v->holders[i];
            if (str_printf(out, "; process %u%s%s%s holds %s", h->pid, h->name[0] ? " (" : "",
                           h->name, h->name[0] ? ")" : "",
                           h->bytes == NVML_UNKNOWN ? "an unknown part"
                                                    : str_bytes((double)h->bytes, bytes)))
                break;
        }
        if (v->hidden && v->hidden != NVML_UNKNOWN &&
            str_printf(out, "; processes outside this container hold %s",
                       str_bytes((double)v->hidden, bytes)))
            str_clear(out);
    }
    mem_free(r);
}

static err no_room(dev *d, const char *name, size_t wanted) {
    uint64_t free_bytes = 0, total = 0;
    char a[24], b[24], c[24];
    str holders = {0};
    TRY(dev_memory(d, &free_bytes, &total));
    add_holders(d, &holders);
    err e = err_set(
        ERR_MEMORY, "cuda:%d (%s) has no room for %s (%zu bytes) of %s: %s of %s are free%s",
        d->cuda->index, dev_cuda_info(d)->name, str_bytes((double)wanted, a), wanted, name,
        str_bytes((double)free_bytes, b), str_bytes((double)total, c), holders.s ? holders.s : "");
    str_free(&holders);
    return e;
}

err dev_arena_create(dev_arena **out, dev *d, const char *name, size_t cap) {
    dev_arena *a;
    *out = NULL;
    TRY(dev_cuda__enter(d));
    TRY(mem_new(1, sizeof *a, &a));
    *a = (dev_arena){.d = d, .name = name, .cap = (cap + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1)};
    int rc = a->cap < cap ? CUDA_OUT_OF_MEMORY : 0;
    if (!rc && a->cap) rc = d->cuda->driver->mem_alloc(&a->start, a->cap);
    if (rc) {
        mem_free(a);
        return rc == CUDA_OUT_OF_MEMORY ? no_room(d, name, cap)
                                        : dev_cuda__check(d, rc, "cuMemAlloc", name);
    }
    atomic_fetch_add(&d->cuda->allocations, 1);
    atomic_fetch_add(&d->cuda->device_bytes, a->cap);
    *out = a;
    return ERR_OK;
}

void dev_arena_destroy(dev_arena *a) {
    if (!a) return;
    if (a->start && !dev_cuda__enter(a->d)) a->d->cuda->driver->mem_free(a->start);
    atomic_fetch_sub(&a->d->cuda->device_bytes, a->cap);
    mem_free(a);
}

err dev_arena_alloc(dev_arena *a, size_t bytes, dev_address *out) {
    size_t n = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    *out = 0;
    if (n < bytes || n > a->cap - a->used)
        return err_set(ERR_MEMORY,
                       "the arena %s on cuda:%d has %zu of %zu bytes left, and %zu are needed",
                       a->name, a->d->cuda->index, a->cap - a->used, a->cap, bytes);
    *out = a->start + a->used;
    a->used += n;
    if (a->used > a->peak) a->peak = a->used;
    return ERR_OK;
}

size_t dev_arena_mark(const dev_arena *a) { return a->used; }
void dev_arena_reset(dev_arena *a, size_t mark) { a->used = mark; }
size_t dev_arena_peak(const dev_arena *a) { return a->peak; }
size_t dev_arena_cap(const dev_arena *a) { return a->cap; }

/* The size stands in front of what is handed out. */
enum { PINNED_HEAD = 256 };

err dev_pinned_create(void **out, dev *d, size_t bytes) {
    void *p = NULL;
    *out = NULL;
    TRY(dev_cuda__enter(d));
    if (bytes > SIZE_MAX - PINNED_HEAD)
        return err_set(ERR_MEMORY, "no memory for %zu pinned bytes", bytes);
    int rc = d->cuda->driver->host_alloc(&p, bytes + PINNED_HEAD, 0);
    TRY(dev_cuda__check(d, rc, "cuMemHostAlloc", NULL));
    memcpy(p, &bytes, sizeof bytes);
    atomic_fetch_add(&d->cuda->allocations, 1);
    atomic_fetch_add(&d->cuda->pinned_bytes, bytes);
    *out = (char *)p + PINNED_HEAD;
    return ERR_OK;
}

void dev_pinned_destroy(dev *d, void *p) {
    size_t bytes;
    if (!p || dev_cuda__enter(d)) return;
    p = (char *)p - PINNED_HEAD;
    memcpy(&bytes, p, sizeof bytes);
    atomic_fetch_sub(&d->cuda->pinned_bytes, bytes);
    d->cuda->driver->host_free(p);
}

err dev_copy_in(dev_stream *s, dev_address to, const void *from, size_t bytes) {
    TRY(dev_cuda__enter(s->d));
    if (!bytes) return ERR_OK;
    atomic_fetch_add(&s->d->cuda->in_bytes, bytes);
    return dev_cuda__check(s->d, s->d->cuda->driver->copy_in(to, from, bytes, s->stream),
                           "cuMemcpyHtoDAsync", NULL);
}

err dev_copy_out(dev_stream *s, void *to, dev_address from, size_t bytes) {
    TRY(dev_cuda__enter(s->d));
    if (!bytes) return ERR_OK;
    atomic_fetch_add(&s->d->cuda->out_bytes, bytes);
    return dev_cuda__check(s->d, s->d->cuda->driver->copy_out(to, from, bytes, s->stream),
                           "cuMemcpyDtoHAsync", NULL);
}

err dev_copy_within(dev_stream *s, dev_address to, dev_address from, size_t bytes) {
    TRY(dev_cuda__enter(s->d));
    if (!bytes) return ERR_OK;
    return dev_cuda__check(s->d, s->d->cuda->driver->copy_within(to, from, bytes, s->stream),
                           "cuMemcpyDtoDAsync", NULL);
}

err dev_set_bytes(dev_stream *s, dev_address to, int value, size_t bytes) {
    TRY(dev_cuda__enter(s->d));
    if (!bytes) return ERR_OK;
    return dev_cuda__check(
        s->d, s->d->cuda->driver->set_bytes(to, (unsigned char)value, bytes, s->stream),
        "cuMemsetD8Async", NULL);
}
