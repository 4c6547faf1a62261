/* Compiles CUDA C files with NVRTC for a list of architectures and reports each failure.
 *
 * Usage: nvrtc_check 'sm_80 sm_90a' FILE... . NVRTC is opened at run time (PACELINE_NVRTC names it,
 * else the usual names and CUDA's own folder), so this builds anywhere. Exit code 0 also where no
 * NVRTC is found, after saying so. It does not run kernels and needs no GPU. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program *program; /* nvrtcProgram */
typedef struct nvrtc {
    int (*create)(program *, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(program, int, const char *const *);
    int (*log_size)(program, size_t *);
    int (*log)(program, char *);
    int (*destroy)(program *);
    int (*version)(int *, int *);
} nvrtc;

static int load(nvrtc *n) {
    const char *names[] = {getenv("PACELINE_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12",
                           "/usr/local/cuda/lib64/libnvrtc.so"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++) {
        if (names[i]) lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (!lib) return 0;
    struct {
        const char *name;
        void *slot;
    } want[] = {
        {"nvrtcCreateProgram", &n->create},       {"nvrtcCompileProgram", &n->compile},
        {"nvrtcGetProgramLogSize", &n->log_size}, {"nvrtcGetProgramLog", &n->log},
        {"nvrtcDestroyProgram", &n->destroy},     {"nvrtcVersion", &n->version},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(lib, want[i].name);
        if (!f) return 0;
        memcpy(want[i].slot, &f, sizeof f);
    }
    return 1;
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    size_t n = 0, cap = 1 << 20;
    char *text = malloc(cap + 1);
    while (text && (n += fread(text + n, 1, cap - n, f)) == cap) {
        char *more = realloc(text, 2 * cap + 1);
        if (!more) break;
        text = more;
        cap *= 2;
    }
    fclose(f);
    if (text) text[n] = 0;
    return text;
}

/* 1 when path compiles for arch. */
static int compiles(const nvrtc *n, const char *path, const char *arch) {
    char *text = read_file(path);
    if (!text) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 0;
    }
    char arch_option[64];
    snprintf(arch_option, sizeof arch_option, "--gpu-architecture=%s", arch);
    const char *options[] = {arch_option, "--std=c++17", "--include-path=src", "-default-device",
                             "--include-path=/usr/local/cuda/include"};
    program p = NULL;
    int ok = n->create(&p, text, path, 0, NULL, NULL) == 0 &&
             n->compile(p, (int)(sizeof options / sizeof *options), options) == 0;
    size_t size = 0;
    if (p && !ok && n->log_size(p, &size) == 0 && size > 1) {
        char *log = calloc(size + 1, 1);
        if (log && n->log(p, log) == 0) fprintf(stderr, "%s", log);
        free(log);
    }
    if (p) n->destroy(&p);
    free(text);
    printf("%-6s %s for %s\n", ok ? "ok" : "FAIL", path, arch);
    return ok;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: nvrtc_check 'ARCH...' FILE...\n");
        return 2;
    }
    nvrtc n;
    if (!load(&n)) {
        printf(
            "kernels-check: skipped, no NVRTC library was found (PACELINE_NVRTC may name one)\n");
        return 0;
    }
    int major = 0, minor = 0, bad = 0;
    n.version(&major, &minor);
    printf("NVRTC %d.%d\n", major, minor);
    for (int i = 2; i < argc; i++) {
        char *archs = strdup(argv[1]);
        for (char *a = strtok(archs, " "); a; a = strtok(NULL, " "))
            bad += !compiles(&n, argv[i], a);
        free(archs);
    }
    return bad != 0;
}
