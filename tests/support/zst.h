/* Compressed fixtures: whole reads, and temporary files for code that wants a path.
 *
 * Temporary files lie in a folder of the test's own under TMPDIR; zst_temp_remove takes it away.
 * Failures are the test's failures: these print and abort, as no test can go on. */
#ifndef SUPPORT_ZST_H
#define SUPPORT_ZST_H
#include <stddef.h>

/* Decompressed contents of a .zst file, NUL-terminated beyond its size; free with free. */
char *zst_read(const char *path, size_t *n);
/* A fresh folder; dir holds at least 256 bytes. */
void zst_temp_dir(char *dir);
void zst_temp_remove(const char *dir);
/* Writes n bytes to dir/name and gives the path (at least 512 bytes), also as result. */
const char *zst_write_temp(const char *dir, const char *name, const void *data, size_t n,
                           char *path);

#endif
