/* Finding a serial CBLAS at run time, and taking it only after it was checked.
 *
 * Candidates come in a fixed order: beside the program (a bundle's own), where distributions put serial builds, then
 * plain names for the loader's search, so that a folder on LD_LIBRARY_PATH is asked last. blas_check.c says what a
 * library must be and compute. Nothing is linked: without a library the plain C kernels serve. A library that was
 * named and cannot be used is an error. */
#include "dev/dev_private.h"
#include "core/env.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where distributions put serial builds, then plain names for the loader's own search. */
static const char *const system_names[] = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0",
    "/usr/lib/x86_64-linux-gnu/blis-serial/libblis.so.4",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu/openblas-serial/libopenblas.so.0",
    "/usr/lib/aarch64-linux-gnu/blis-serial/libblis.so.4",
#endif
    "libopenblas.so.0",
    "libblis.so.4",
    "libblis.so.3",
};
enum { SYSTEM_NAMES = sizeof system_names / sizeof *system_names };

/* Opens one candidate. 1: taken; 0: not there; -1: there and not taken, with the reason in err_text. */
static int consider(blas__library *l, const char *name, int named, pool *threads) {
    l->path[0] = 0;
    /* Kept for the life of the process: the Fortran runtime behind some libraries leaks at each unload. */
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *why = dlerror();
        err_set(ERR_IO, "%s", why ? why : "cannot be opened");
        return strchr(name, '/') && access(name, F_OK) == 0 ? -1 : 0;
    }
    struct link_map *map = NULL;
    char real[PATH_MAX];
    int known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, real) != NULL;
    snprintf(l->path, sizeof l->path, "%s", known ? real : name);
    if (blas__check(l, handle, map, strchr(name, '/') == NULL || named, threads) != ERR_OK) {
        l->sgemm = NULL;
        l->version[0] = 0;
        dlclose(handle);
        return -1;
    }
    char found[PATH_MAX];
    shared_lib_locate(map ? (const void *)map->l_ld : NULL, found, sizeof found, l->build,
                      sizeof l->build);
    l->handle = handle;
    return 1;
}

static void add_note(blas__library *l, const char *name) {
    size_t n = strlen(l->note);
    if (strstr(l->note, name)) return; /* a plain name may lead to a file that was seen */
    snprintf(l->note + n, sizeof l->note - n, "%s%s %s", n ? "; " : "", name, err_text());
}

/* Folder "lib" beside the program, where a bundle keeps its libraries. */
static int beside_program(char *buf, size_t n, const char *file) {
    char exe[PATH_MAX];
    ssize_t r = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (r <= 0) return 0;
    exe[r] = 0;
    char *slash = strrchr(exe, '/');
    if (!slash) return 0;
    *slash = 0;
    int length = snprintf(buf, n, "%s/lib/%s", exe, file);
    return length > 0 && (size_t)length < n;
}

err blas__open(blas__library *l, const char *name, pool *threads) {
    memset(l, 0, sizeof *l);
    const char *origin = "the configuration";
    if (!name) {
        name = env_get(ENV_PACELINE_BLAS);
        origin = env_name(ENV_PACELINE_BLAS);
    }
    if (name && strcmp(name, "none") != 0) {
        if (consider(l, name, 1, threads) == 1) return ERR_OK;
        const char *file = l->path[0] && strcmp(l->path, name) ? l->path : "";
        return err_context(
            ERR_REFUSED,
            "the matrix library %s (from %s%s%s) cannot be used; name a serial CBLAS or 'none': ",
            name, origin, *file ? ", which is " : "", file);
    }
    if (name) {
        snprintf(l->note, sizeof l->note, "none was asked for by %s", origin);
    } else {
        static const char *const own[] = {"libopenblas.so.0", "libblis.so.4"};
        for (int i = 0; i < 2 + SYSTEM_NAMES; i++) {
            char beside[PATH_MAX];
            const char *candidate = i < 2 ? beside : system_names[i - 2];
            if (i < 2 && !beside_program(beside, sizeof beside, own[i])) continue;
            int fate = consider(l, candidate, 0, threads);
            if (fate == 1) return ERR_OK;
            if (fate < 0) add_note(l, l->path[0] ? l->path : candidate);
        }
        if (!l->note[0]) snprintf(l->note, sizeof l->note, "no serial CBLAS was found");
    }
    err_clear();
    snprintf(l->path, sizeof l->path, "plain C");
    return ERR_OK;
}

void blas__close(blas__library *l) {
    if (l->handle) dlclose(l->handle);
    memset(l, 0, sizeof *l);
}
