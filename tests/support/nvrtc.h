/* NVRTC for tests: opened where it is found, one program at a time, to cubin; header only.
 *
 * nvrtc_open gives 0 where there is none, and the test says "skipped". PACELINE_NVRTC names another library. The log of
 * a failed compilation goes to the test's output. Needs no GPU. */
#ifndef SUPPORT_NVRTC_H
#define SUPPORT_NVRTC_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc {
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
    int (*cubin_size)(void *, size_t *);
    int (*cubin)(void *, char *);
    int (*destroy)(void **);
} nvrtc;

static inline int nvrtc_open(nvrtc *n) {
    const char *names[] = {getenv("PACELINE_NVRTC"),
                           "libnvrtc.so.13",
                           "/usr/local/cuda/lib64/libnvrtc.so.13",
                           "/usr/local/cuda/lib64/libnvrtc.so",
                           "libnvrtc.so.12",
                           "libnvrtc.so"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
        if (names[i]) lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) return 0;
    struct {
        const char *name;
        void *slot;
    } want[] = {
        {"nvrtcCreateProgram", &n->create},       {"nvrtcCompileProgram", &n->compile},
        {"nvrtcGetProgramLogSize", &n->log_size}, {"nvrtcGetProgramLog", &n->log},
        {"nvrtcGetCUBINSize", &n->cubin_size},    {"nvrtcGetCUBIN", &n->cubin},
        {"nvrtcDestroyProgram", &n->destroy},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(lib, want[i].name);
        if (!f) return 0;
        memcpy(want[i].slot, &f, sizeof f);
    }
    return 1;
}

/* A cubin (free it) with its size, or NULL. *log: what the compiler said, free it; may be NULL. */
static inline char *nvrtc_cubin(const nvrtc *n, const char *text, const char *name,
                                const char *arch, size_t *size, char **log) {
    char option[64];
    snprintf(option, sizeof option, "--gpu-architecture=%s", arch);
    const char *options[] = {option, "--std=c++17", "-default-device", "--ptxas-options=-v"};
    void *p = NULL;
    char *cubin = NULL, *said = NULL;
    size_t length = 0;
    *size = 0;
    int ok = n->create(&p, text, name, 0, NULL, NULL) == 0 && n->compile(p, 4, options) == 0;
    if (p && n->log_size(p, &length) == 0 && (said = calloc(length + 1, 1)) != NULL)
        (void)n->log(p, said);
    if (!ok && said) printf("%.6000s\n", said);
    if (ok && n->cubin_size(p, size) == 0 && (cubin = malloc(*size + 1)) != NULL)
        (void)n->cubin(p, cubin);
    if (p) (void)n->destroy(&p);
    if (log)
        *log = said;
    else
        free(said);
    return cubin;
}

#endif
