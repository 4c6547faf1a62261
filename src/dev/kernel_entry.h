/* One entry of the kernel cache: a file with recipe, image, metadata and a digest over all of them.
 *
 * Written and read as a whole. Reading checks the digest, every length, and, when the wanted recipe is given, that it
 * is the same byte for byte. Where the file lies and who may write it is decided by others. docs/FORMATS.md has the layout. */
#ifndef DEV_KERNEL_ENTRY_H
#define DEV_KERNEL_ENTRY_H
#include "core/err.h"
#include "core/str.h"
#include "dev/kernel.h"
#include "dev/kernel_compiler.h"
#include <stddef.h>
#include <stdint.h>

typedef struct kernel_entry {
    char *bytes; /* the whole file; NULL: there was none */
    size_t size;
    uint64_t file, device; /* inode, so that it can be told from one that replaced it */
    const char *recipe, *image;
    size_t recipe_size, image_size;
    char *name; /* of the kernel, for people */
    char *arch;
    char *made;  /* UTC */
    char *usage; /* lines as kernel_product has them */
    double compile_ms;
} kernel_entry;

/* The bytes of an entry's file, appended to out. */
MUST_CHECK err kernel_entry_make(str *out, const char *name, const char *arch, const str *recipe,
                                 const kernel_product *product, double compile_ms);
/* No such file: ERR_OK and out->bytes NULL. ERR_FORMAT: damaged, with what is wrong. recipe: wanted, or NULL. The
 * file's time of use becomes now when touch is set and it can be. */
MUST_CHECK err kernel_entry_read(kernel_entry *out, const char *path, const str *recipe, int touch);
void kernel_entry_free(kernel_entry *e); /* zeroed is fine */

#endif
