/* Device kernels as data: texts, and what has to be compiled together (a spec).
 *
 * A kernel is CUDA C text embedded in the program (KERNEL_TEXT), the headers that it includes by name, generated
 * text likewise (hooks), and options. Its recipe is all of that written out with compiler and target; the key of a
 * kernel is the recipe's XXH3-128 and nothing else, so a kernel that differs in anything has another key.
 * Values that change from call to call (lengths, strides, scalars, proofs) belong into arguments, never here.
 * Nothing is compiled or loaded by this file: dev/kernel_cache.h compiles, dev/module.h loads and launches. */
#ifndef DEV_KERNEL_H
#define DEV_KERNEL_H
#include "core/err.h"
#include "core/str.h"

typedef struct kernel_text {
    const char *name; /* as #include names it, and in messages: "flex/kernels/tile.cuh" */
    const char *text; /* ends with NUL */
} kernel_text;

/* At file scope, without a semicolon inside: KERNEL_TEXT(tile_text, "flex/kernels/tile.cuh"); makes a
 * `static const kernel_text tile_text` of the file src/flex/kernels/tile.cuh. Only in src/FOLDER/FOLDER_kernels.c,
 * whose object the Makefile makes anew when a file of src/FOLDER/kernels/ changes. */
#define KERNEL_TEXT(symbol, path)                                                                  \
    __asm__(".pushsection .rodata\n" #symbol "_bytes:\n\t.incbin \"src/" path                      \
            "\"\n\t.byte 0\n\t.popsection\n");                                                     \
    extern const char symbol##_bytes[] __attribute__((visibility("hidden")));                      \
    static const kernel_text symbol = {path, symbol##_bytes}

typedef struct kernel_spec {
    const char *name; /* for people: "attention forward, bf16, head size 128"; no part of the key */
    const kernel_text *source;
    const kernel_text *const *headers; /* every one that is included, also by another */
    int n_headers;
    const kernel_text *hooks; /* generated text, included by name like a header */
    int n_hooks;
    const char *const
        *options; /* "-DHEAD=128", "--fmad=false"; the house's come first (kernel.c) */
    int n_options;
} kernel_spec;

/* What a list of variants calls for each (dev_kernels_each and its like). Stops at the first failure. */
typedef err (*kernel_visit)(void *ctx, const kernel_spec *spec);

enum { KERNEL_KEY = 33, KERNEL_ARCH = 16 };

/* "sm_90a": number and suffix as NVRTC spells them, sm_80 at least; *number: 90. ERR_REFUSED in a sentence. */
MUST_CHECK err kernel_check_arch(const char *arch, int *number);
/* Most shared memory of a block, opted in, on devices of an architecture (its number as above). */
int kernel_arch_shared(int number);
/* The target for a device of this compute capability: 9.0 → "sm_90a", 8.6 → "sm_86". */
MUST_CHECK err kernel_device_arch(int major, int minor, char out[KERNEL_ARCH]);
/* All that decides a kernel's bits, written out; compiler: name, version, build. Appends to out. */
MUST_CHECK err kernel_recipe(const kernel_spec *spec, const char *arch, const char *compiler,
                             str *out);
void kernel_key(const str *recipe, char out[KERNEL_KEY]);
/* Options in the order in which the compiler gets them: the house's, then the spec's. i: 0.. until NULL. */
const char *kernel_option(const kernel_spec *spec, int i);

#endif
