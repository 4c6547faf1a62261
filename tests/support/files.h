/* Files for tests: a temporary folder of one's own, whole files from bytes.
 *
 * The folder lies under TMPDIR (or /tmp) and is removed by files_end; a failed step aborts the test program,
 * since nothing that follows would mean anything. Header only: a test program includes what it needs. */
#ifndef SUPPORT_FILES_H
#define SUPPORT_FILES_H
#include "core/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct files_dir {
    char path[512];
    char name[600]; /* of the last files_at */
} files_dir;

static inline void files_must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "test set-up failed: %s\n", what);
    abort();
}

/* Folders in memory from here on, where there is room for them and nobody said where they are to be: for what syncs often. */
static inline void files_in_memory(void) {
    struct statvfs v;
    const char *shm = "/dev/shm";
    if (access(shm, W_OK | X_OK) != 0 || statvfs(shm, &v) != 0) return;
    if ((uint64_t)v.f_bavail * v.f_frsize >= (uint64_t)512 << 20) setenv("TMPDIR", shm, 0);
}

static inline files_dir files_begin(void) {
    files_dir d = {{0}, {0}};
    const char *tmp = getenv("TMPDIR");
    snprintf(d.path, sizeof d.path, "%s/paceline-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    files_must(mkdtemp(d.path) != NULL, d.path);
    return d;
}

static inline void files_end(files_dir *d) { files_must(!file_remove_tree(d->path), d->path); }

/* Path of name inside the folder, valid until the next call. */
static inline const char *files_at(files_dir *d, const char *name) {
    files_must(snprintf(d->name, sizeof d->name, "%s/%s", d->path, name) < (int)sizeof d->name,
               name);
    return d->name;
}

static inline const char *files_write(files_dir *d, const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(files_at(d, name), "wb");
    files_must(f != NULL, d->name);
    files_must(fwrite(bytes, 1, n, f) == n, d->name);
    files_must(fclose(f) == 0, d->name);
    return d->name;
}

static inline const char *files_text(files_dir *d, const char *name, const char *text) {
    return files_write(d, name, text, strlen(text));
}

#endif
