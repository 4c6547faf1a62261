/* The kernel cache: a kernel's image by its whole recipe, compiled at most once by whoever needs it first.
 *
 * One handle per process (more are fine: they meet at the folder). Within a handle the first caller compiles and
 * others wait for that kernel alone; other processes are kept off by an advisory lock that dies with its holder.
 * An entry is one file, written beside, synced, renamed, with a digest that is checked whenever it is read; one that is
 * damaged is rebuilt with a warning. Where the folder cannot be used (read-only, full, someone else's) one warning says
 * why, and kernels are compiled into memory. Removing the folder changes nothing but time.
 * Images live as long as the handle. Nothing here touches a device. docs/FORMATS.md describes the file. */
#ifndef DEV_KERNEL_CACHE_H
#define DEV_KERNEL_CACHE_H
#include "dev/kernel.h"
#include "dev/kernel_compiler.h"
#include <stddef.h>
#include <stdint.h>

typedef struct kernel_cache kernel_cache;

typedef struct kernel_cache_config {
    const char *folder; /* NULL: PACELINE_CACHE, else paceline/kernels in XDG's cache folder */
    uint64_t max_bytes; /* of the folder; 0: 1 GiB */
    const kernel_compiler *compiler; /* NULL: NVRTC, opened with the handle; borrowed */
    double patience;                 /* seconds to wait for another process that compiles; 0: 120 */
    int no_compile; /* 1, or PACELINE_NO_COMPILE=1: a compile is an error that names the kernel */
} kernel_cache_config;

typedef enum kernel_origin {
    KERNEL_COMPILED, /* here, now */
    KERNEL_ADOPTED,  /* from the folder: made earlier, or by another process meanwhile */
    KERNEL_REBUILT,  /* compiled here, since the entry was damaged */
} kernel_origin;

typedef struct kernel_image {
    const char *key;
    const char *name; /* of the spec that came first */
    const char *arch;
    const void *data; /* the cubin */
    size_t size;
    const char
        *usage; /* a line per function: "NAME registers R stack B spilled B shared B", or "" */
    kernel_origin origin;
    double ms; /* that it took to compile or to read */
} kernel_image;

typedef struct kernel_cache_stats {
    int entries, compiled, adopted, rebuilt;
    size_t bytes;      /* of images in memory */
    double compile_ms; /* summed over threads */
} kernel_cache_stats;

MUST_CHECK err kernel_cache_open(kernel_cache **out, const kernel_cache_config *cfg);
void kernel_cache_close(kernel_cache *c); /* NULL is fine */
/* Any thread. The image is borrowed until the handle is closed. */
MUST_CHECK err kernel_cache_get(kernel_cache *c, const kernel_spec *spec, const char *arch,
                                const kernel_image **out);
/* Whether the compiler knows this target: asked before long work. */
MUST_CHECK err kernel_cache_check_arch(const kernel_cache *c, const char *arch);
void kernel_cache_get_stats(kernel_cache *c, kernel_cache_stats *out);
const char *kernel_cache_folder(const kernel_cache *c); /* "" when none is used */
/* Whether what is compiled goes to the folder. */
int kernel_cache_keeps(kernel_cache *c);
const char *kernel_cache_compiler(const kernel_cache *c); /* "NVRTC 13.0 (build …)" */

#endif
