/* The compiler behind the kernel cache: a few function pointers, so that tests put a stand-in before the real one.
 *
 * The real one is NVRTC, opened at run time. A compiler may be called by several threads at once; its identity is part
 * of every key, since another release, or another build of one, makes other code. */
#ifndef DEV_KERNEL_COMPILER_H
#define DEV_KERNEL_COMPILER_H
#include "dev/kernel.h"
#include <stddef.h>

typedef struct kernel_product {
    void *image; /* a cubin; mem_free */
    size_t size;
    /* A line per function: "NAME registers N stack N spilled N shared N" (bytes; spilled: stores and loads), "" when the
     * compiler does not tell; mem_free. */
    char *usage;
} kernel_product;

typedef struct kernel_compiler {
    void *ctx;
    char identity[160]; /* "NVRTC 13.0 build 5f0c…" */
    /* Fills out, or says in the compiler's words what is wrong, with the kernel's name. */
    err (*compile)(void *ctx, const kernel_spec *spec, const char *arch, kernel_product *out);
    /* Whether it knows this target; ERR_REFUSED names what it knows. */
    err (*check_arch)(void *ctx, const char *arch);
    void (*close)(void *ctx);
} kernel_compiler;

/* NVRTC: ERR_IO when it is not here, ERR_REFUSED when it is too old or broken (path, both numbers, what to install). */
MUST_CHECK err kernel_compiler_open(kernel_compiler *out);
void kernel_compiler_close(kernel_compiler *c); /* zeroed is fine */

#endif
