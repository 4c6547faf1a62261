/* Paths of the stub libraries that the Makefile builds from tests/interpose, found beside the running test program.
 *
 * BUILD/tests/FOLDER/test_x → BUILD/tests/interpose/NAME.so. stubs_link puts one under the name that a loader looks
 * for into a folder, which then serves as LD_LIBRARY_PATH. Header only. */
#ifndef SUPPORT_STUBS_H
#define SUPPORT_STUBS_H
#include "support/files.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Path of stub NAME ("nvml_two"), whole, into buf; returned. */
static inline const char *stubs_path(const char *name, char buf[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", buf, PATH_MAX - 200);
    files_must(n > 0, "/proc/self/exe");
    buf[n] = 0;
    for (int i = 0; i < 2; i++) *strrchr(buf, '/') = 0;
    snprintf(buf + strlen(buf), 200, "/interpose/%s.so", name);
    return buf;
}

/* folder/file becomes a link to the stub; folder is made. */
static inline void stubs_link(files_dir *d, const char *folder, const char *file,
                              const char *name) {
    char path[PATH_MAX], at[700];
    files_must(!file_make_dirs(files_at(d, folder)), folder);
    snprintf(at, sizeof at, "%s/%s", folder, file);
    files_must(!symlink(stubs_path(name, path), files_at(d, at)), at);
}

#endif
