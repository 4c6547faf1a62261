/* The CUDA side of a device handle: memory, streams, events, copies, counters.
 *
 * A dev of this kind holds the device's primary context and, for host work, what a CPU handle holds. Functions set the
 * context of the calling thread themselves, so any thread may call; a stream, an event or an arena belongs to one
 * thread of control at a time. Driver API only, opened at run time. Errors name the call, the device and the kernel.
 * Memory is taken in arenas, at the start, by one allocation each: nothing here grows. */
#ifndef DEV_DEV_CUDA_H
#define DEV_DEV_CUDA_H
#include "dev/cuda_system.h"
#include "dev/dev.h"
#include <stddef.h>
#include <stdint.h>

typedef struct dev_stream dev_stream;
typedef struct dev_event dev_event;
typedef struct dev_arena dev_arena;
typedef uint64_t dev_address; /* in device memory; 0: none */

/* sys is borrowed and outlives d. index: as the driver counts (CUDA_VISIBLE_DEVICES acts). cfg: the host side, or NULL. */
MUST_CHECK err dev_open_cuda(dev **out, cuda_system *sys, int index, const dev_config *cfg);
int dev_cuda_index(const dev *d);
const char *dev_arch(const dev *d); /* "sm_90a": what kernels are compiled for */
const cuda_device *dev_cuda_info(const dev *d);
kernel_cache *dev_cuda_cache(const dev *d);
/* Free and all bytes of the device as the driver sees them now. */
MUST_CHECK err dev_memory(dev *d, uint64_t *free_bytes, uint64_t *total);

/* cap bytes of device memory, by one allocation. ERR_MEMORY: needed and free bytes, and who holds the rest. name is borrowed. */
MUST_CHECK err dev_arena_create(dev_arena **out, dev *d, const char *name, size_t cap);
void dev_arena_destroy(dev_arena *a); /* NULL is fine */
/* Aligned to 256, contents undefined. ERR_MEMORY with the bytes needed when the arena is too small. */
MUST_CHECK err dev_arena_alloc(dev_arena *a, size_t bytes, dev_address *out);
size_t dev_arena_mark(const dev_arena *a);
void dev_arena_reset(dev_arena *a, size_t mark);
size_t dev_arena_peak(const dev_arena *a);
size_t dev_arena_cap(const dev_arena *a);

/* Host memory that the device copies from and to while the host goes on. */
MUST_CHECK err dev_pinned_create(void **out, dev *d, size_t bytes);
void dev_pinned_destroy(dev *d, void *p); /* NULL is fine */

MUST_CHECK err dev_stream_create(dev_stream **out, dev *d);
void dev_stream_destroy(dev_stream *s);        /* NULL is fine; waits for its work */
MUST_CHECK err dev_stream_wait(dev_stream *s); /* the host waits; tells a fault of what ran */
dev *dev_stream_device(const dev_stream *s);
/* In stream order. Host memory that is not pinned makes the host wait. */
MUST_CHECK err dev_copy_in(dev_stream *s, dev_address to, const void *from, size_t bytes);
MUST_CHECK err dev_copy_out(dev_stream *s, void *to, dev_address from, size_t bytes);
MUST_CHECK err dev_copy_within(dev_stream *s, dev_address to, dev_address from, size_t bytes);
MUST_CHECK err dev_set_bytes(dev_stream *s, dev_address to, int value, size_t bytes);

MUST_CHECK err dev_event_create(dev_event **out, dev *d);
void dev_event_destroy(dev_event *e); /* NULL is fine */
MUST_CHECK err dev_event_record(dev_event *e, dev_stream *s);
MUST_CHECK err dev_event_hold(dev_stream *s, const dev_event *e); /* later work of s waits for e */
MUST_CHECK err dev_event_wait(dev_event *e);                      /* the host waits */
MUST_CHECK err dev_event_ms(const dev_event *from, const dev_event *to, double *out);

typedef struct dev_counters {
    uint64_t launches, modules; /* modules: loaded on this device */
    uint64_t in_bytes, out_bytes;
    uint64_t allocations;  /* of device and pinned memory: constant in a steady step */
    uint64_t device_bytes; /* in arenas now */
    uint64_t pinned_bytes;
} dev_counters;
void dev_get_counters(const dev *d, dev_counters *out);

#endif
