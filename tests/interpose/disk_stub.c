/* Stands for the C library's look at a disk: every one is full, to those who ask.
 *
 * Put in front by LD_PRELOAD. Writing still works, so a test sees what is left undone and what is done all the same.
 * STUB_VERSION: full (the only one). */
#include <string.h>
#include <sys/statvfs.h>

enum { full };

int statvfs(const char *path, struct statvfs *out) {
    (void)path;
    memset(out, 0, sizeof *out);
    out->f_bsize = out->f_frsize = 4096;
    out->f_blocks = 1000000;
    return STUB_VERSION;
}
