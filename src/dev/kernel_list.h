/* A list of kernels to be made ready: collected by visits, compiled by several threads, summed up.
 *
 * What warmup runs. Specs are copied whole as they come, so a text may end with the visit that brought it; a kernel that
 * comes twice counts once. Nothing is loaded onto a device. */
#ifndef DEV_KERNEL_LIST_H
#define DEV_KERNEL_LIST_H
#include "core/arena.h"
#include "dev/kernel_cache.h"

typedef struct kernel_list {
    arena *mem;
    kernel_spec *specs;
    const kernel_image **images; /* [n] after kernel_list_compile; of equal kernels the same */
    int n;
    size_t cap;
} kernel_list;

MUST_CHECK err kernel_list_create(kernel_list *out);
void kernel_list_destroy(kernel_list *l); /* zeroed is fine */
/* A kernel_visit; ctx is the list. */
err kernel_list_add(void *ctx, const kernel_spec *spec);
/* Every kernel of the list, by threads at once. Stops at the first that fails. */
MUST_CHECK err kernel_list_compile(kernel_list *l, kernel_cache *c, const char *arch, int threads);
/* One number for all images with their keys, whatever their order: equal lists of equal images have equal digests. */
MUST_CHECK err kernel_list_digest(const kernel_list *l, char out[KERNEL_KEY]);

#endif
