/* The device text that hooks stand on, kept in the program as it lies in kernels/.
 *
 * The assembler reads the files when this one is compiled (the Makefile knows that it depends on them), so there is one
 * copy of the text and no file to find at run time. */
#include "expr/expr_cuda.h"

__asm__(".section .rodata\n"
        "expr_cuda__begin:\n"
        ".incbin \"src/expr/kernels/expr_env.h\"\n"
        ".incbin \"src/expr/kernels/expr_ops.cuh\"\n"
        "expr_cuda__end:\n"
        ".byte 0\n"
        ".text\n");
extern const char expr_cuda__begin[] __attribute__((visibility("hidden")));
extern const char expr_cuda__end[] __attribute__((visibility("hidden")));

err expr_cuda_prelude(str *out) {
    return str_add(out, expr_cuda__begin, (size_t)(expr_cuda__end - expr_cuda__begin));
}
