/* Embedded kernels of this folder: see dev_kernels.h.
 *
 * The texts are in src/dev/kernels/; the Makefile makes this object anew when one of them changes. All of them serve
 * every architecture that has kernels at all. */
#include "dev/dev_kernels.h"

KERNEL_TEXT(basic_text, "dev/kernels/basic.cu");

static const kernel_spec basic = {.name = "fill and convert", .source = &basic_text};

const kernel_spec *dev_kernels_basic(void) { return &basic; }

err dev_kernels_each(const char *arch, kernel_visit visit, void *ctx) {
    int number;
    TRY(kernel_check_arch(arch, &number));
    return visit(ctx, &basic);
}
