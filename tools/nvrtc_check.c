/* Compiles CUDA C files with NVRTC for a list of architectures; reports failures, registers, spills and local memory.
 *
 * Usage: nvrtc_check 'sm_80 sm_90a' ALLOWANCE FILE... . A kernel that spills, or has a stack frame, fails the check
 * beyond the bytes that the file ALLOWANCE lists for it: lines of a part of the file's name, an architecture or `*`, and
 * bytes; `#` starts a comment. NVRTC is opened at run time (PACELINE_NVRTC names it,
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

/* Bytes that the list allows a file on an architecture. */
static long allowed(const char *list, const char *path, const char *arch) {
    long most = 0, bytes;
    char part[128], target[32], line[512];
    for (const char *at = list; at && *at; at = strchr(at, '\n'), at += at != NULL) {
        size_t n = strcspn(at, "\n#");
        if (n >= sizeof line) n = sizeof line - 1;
        memcpy(line, at, n);
        line[n] = 0;
        if (sscanf(line, "%127s %31s %ld", part, target, &bytes) != 3) continue;
        if (!strstr(path, part) || (strcmp(target, "*") != 0 && strcmp(target, arch) != 0))
            continue;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The largest number in front of a word in the compiler's log. */
static long most_of(const char *log, const char *word) {
    long most = 0;
    for (const char *at = log; (at = strstr(at, word)) != NULL; at += strlen(word)) {
        const char *digits = at;
        while (digits > log && digits[-1] == ' ') digits--;
        while (digits > log && digits[-1] >= '0' && digits[-1] <= '9') digits--;
        if (atol(digits) > most) most = atol(digits);
    }
    return most;
}

/* 1 when the log shows nothing beyond what is allowed; prints the line of this file. */
static int judge(const char *log, const char *path, const char *arch, const char *list) {
    long frame = most_of(log, " bytes stack frame"), spill = most_of(log, " bytes spill stores");
    long loads = most_of(log, " bytes spill loads"), registers = 0, may = allowed(list, path, arch);
    for (const char *at = log; (at = strstr(at, "Used ")) != NULL; at++)
        if (atol(at + 5) > registers) registers = atol(at + 5);
    if (loads > spill) spill = loads;
    int ok = frame <= may && spill <= may;
    printf("%-6s %s for %s: %ld registers, %ld bytes of stack, %ld spilled%s\n", ok ? "ok" : "FAIL",
           path, arch, registers, frame, spill, ok && (frame || spill) ? " (allowed)" : "");
    return ok;
}

/* 1 when path compiles for arch within its allowance. */
static int compiles(const nvrtc *n, const char *path, const char *arch, const char *list) {
    char *text = read_file(path);
    if (!text) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 0;
    }
    char arch_option[64];
    snprintf(arch_option, sizeof arch_option, "--gpu-architecture=%s", arch);
    const char *options[] = {arch_option, "--std=c++17", "--include-path=src", "-default-device",
                             "--ptxas-options=-v"};
    program p = NULL;
    int ok = n->create(&p, text, path, 0, NULL, NULL) == 0 &&
             n->compile(p, (int)(sizeof options / sizeof *options), options) == 0;
    size_t size = 0;
    char *log = NULL;
    if (p && n->log_size(p, &size) == 0 && (log = calloc(size + 1, 1)) != NULL)
        (void)n->log(p, log);
    if (!ok) {
        fprintf(stderr, "%s", log ? log : "");
        printf("FAIL   %s for %s\n", path, arch);
    } else {
        ok = judge(log ? log : "", path, arch, list);
    }
    free(log);
    if (p) n->destroy(&p);
    free(text);
    return ok;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: nvrtc_check 'ARCH...' ALLOWANCE FILE...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* some of these share a pipe */
    nvrtc n;
    if (!load(&n)) {
        printf(
            "kernels-check: skipped, no NVRTC library was found (PACELINE_NVRTC may name one)\n");
        return 0;
    }
    int major = 0, minor = 0, bad = 0;
    char *list = read_file(argv[2]);
    n.version(&major, &minor);
    printf("NVRTC %d.%d\n", major, minor);
    for (int i = 3; i < argc; i++) {
        char *archs = strdup(argv[1]);
        for (char *a = strtok(archs, " "); a; a = strtok(NULL, " "))
            bad += !compiles(&n, argv[i], a, list ? list : "");
        free(archs);
    }
    free(list);
    return bad != 0;
}
