/* Kernels on a device: found in the cache or compiled, loaded once, looked up by name, launched.
 *
 * module_get may be called by any number of threads at the same moment with nothing cached: each kernel is compiled
 * once, and a thread waits only for the kernel that it asked for. A module stays loaded until its device is closed,
 * so functions may be kept by plans. A launch allocates nothing. */
#ifndef DEV_MODULE_H
#define DEV_MODULE_H
#include "dev/dev_cuda.h"
#include "dev/kernel.h"
#include "dev/kernel_list.h"

typedef struct module module;
typedef struct module_function module_function;

/* The kernel of spec for this device's architecture. Asked for again it is a look-up by key (the recipe is
 * written out for it: keep what you got). */
MUST_CHECK err module_get(module **out, dev *d, const kernel_spec *spec);
/* All kernels of a list, out[i] of spec i. What the cache does not have is compiled side by side, by as many threads as there
 * are kernels and usable CPUs; the first that fails, in the list's order, is told. */
MUST_CHECK err module_get_all(module **out, dev *d, kernel_list *l);
/* An extern "C" __global__ function. shared: the most dynamic shared memory that launches will ask for; more
 * than the device gives a block is ERR_REFUSED with both numbers. */
MUST_CHECK err module_get_function(module_function **out, module *m, const char *name,
                                   unsigned shared);

typedef struct module_usage {
    int registers;    /* a thread */
    int local_bytes;  /* a thread: stack and spills */
    int shared_bytes; /* a block, static */
    int max_threads;  /* a block */
} module_usage;
module_usage module_function_usage(const module_function *f);

typedef struct module_grid {
    unsigned grid[3], block[3]; /* 0 counts as 1 */
    unsigned shared;            /* dynamic bytes, at most what module_get_function was told */
} module_grid;
/* args: addresses of the arguments in the kernel's order, copied before it returns. Errors name kernel and device;
 * a fault of the kernel itself is told by the next call that waits for the stream. */
MUST_CHECK err module_launch(const module_function *f, dev_stream *s, const module_grid *g,
                             void *const *args);

#endif
