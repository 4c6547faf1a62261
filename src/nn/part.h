/* Fixed parts of a loop on a device's pool, or on the calling thread when the work is small.
 *
 * A part's bounds come from the extent and the part's size alone, so results do not depend on where parts run. Waking a
 * pool costs microseconds: a few rows of decoding are cheaper inline. Private to nn. */
#ifndef NN_PART_H
#define NN_PART_H
#include "dev/dev.h"

enum { PART_INLINE = 16384 }; /* elements below which the pool is not woken */

/* Runs fn for parts 0..parts-1. work: elements touched in all. */
static inline err part__run(dev *d, int64_t parts, int64_t work, pool_task fn, void *ctx) {
    if (parts > 1 && work > PART_INLINE && dev_threads(d) > 1)
        return pool_run(dev_pool(d), parts, fn, ctx);
    for (int64_t i = 0; i < parts; i++) TRY(fn(ctx, i, 0));
    return ERR_OK;
}
static inline int64_t part__count(int64_t n, int64_t size) { return (n + size - 1) / size; }
static inline int64_t part__end(int64_t i, int64_t size, int64_t n) {
    return (i + 1) * size < n ? (i + 1) * size : n;
}

#endif
