/* Stands for NVRTC in front of the real one, or alone: counts compiles of all processes, can be slow, old or incomplete.
 *
 * Each compile appends "began" and then "ended" to the file STUB_NVRTC_LOG; between them it sleeps STUB_NVRTC_MS, and waits
 * until STUB_NVRTC_MEET compiles have begun; one that nobody joins within two minutes appends "alone" and goes on. With
 * STUB_NVRTC_REAL (a path) the real library compiles; without, the image is the source's text with this process's number
 * behind it, so that two compiles never agree. STUB_VERSION: 13; old (11.8); less (a symbol is missing). */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { old = 11, less = 12 };
typedef struct program {
    void *real; /* the real library's program */
    char *text;
} program;

const char *nvrtcGetErrorString(int rc);
int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *n);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(program **out, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names);
int nvrtcDestroyProgram(program **p);
int nvrtcCompileProgram(program *p, int n, const char *const *options);
int nvrtcGetProgramLogSize(program *p, size_t *n);
int nvrtcGetProgramLog(program *p, char *out);
int nvrtcGetCUBINSize(program *p, size_t *n);

static void *real(const char *symbol) {
    const char *path = getenv("STUB_NVRTC_REAL");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (path && !lib) fprintf(stderr, "%s\n", dlerror());
    return lib ? dlsym(lib, symbol) : NULL;
}

static void tell(const char *line) {
    const char *path = getenv("STUB_NVRTC_LOG");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (fd >= 0 && write(fd, line, strlen(line)) < 0) perror(path);
    if (fd >= 0) close(fd);
}

static int told(const char *line) {
    const char *path = getenv("STUB_NVRTC_LOG");
    FILE *f = path ? fopen(path, "r") : NULL;
    char text[64];
    int n = 0;
    while (f && fgets(text, sizeof text, f)) n += !strcmp(text, line);
    if (f) fclose(f);
    return n;
}

static void meet(void) {
    const char *text = getenv("STUB_NVRTC_MEET");
    const struct timespec t = {0, 1000000};
    int wanted = text ? atoi(text) : 0;
    for (int i = 0; i < 120000 && told("began\n") < wanted; i++) nanosleep(&t, NULL);
    if (told("began\n") < wanted) tell("alone\n");
}

const char *nvrtcGetErrorString(int rc) { return rc ? "an error of the stub" : "success"; }

int nvrtcVersion(int *major, int *minor) {
    *major = STUB_VERSION == old ? 11 : 13;
    *minor = STUB_VERSION == old ? 8 : 0;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *n) {
    *n = 2;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 80, archs[1] = 90;
    return 0;
}

int nvrtcCreateProgram(program **out, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    void *f = real("nvrtcCreateProgram");
    program *p = *out = calloc(1, sizeof *p);
    if (!p) return 1;
    p->text = malloc(strlen(text) + 40);
    if (!p->text) return 1;
    sprintf(p->text, "%s\nprocess %d", text, (int)getpid());
    memcpy(&create, &f, sizeof f);
    return f ? create(&p->real, text, name, n, headers, names) : 0;
}

int nvrtcDestroyProgram(program **p) {
    int (*destroy)(void **);
    void *f = real("nvrtcDestroyProgram");
    memcpy(&destroy, &f, sizeof f);
    if (f) destroy(&(*p)->real);
    free((*p)->text);
    free(*p);
    *p = NULL;
    return 0;
}

int nvrtcCompileProgram(program *p, int n, const char *const *options) {
    int (*compile)(void *, int, const char *const *);
    void *f = real("nvrtcCompileProgram");
    const char *text = getenv("STUB_NVRTC_MS");
    long ms = text ? atol(text) : 0;
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    memcpy(&compile, &f, sizeof f);
    tell("began\n");
    nanosleep(&t, NULL);
    meet();
    int rc = f ? compile(p->real, n, options) : 0;
    tell("ended\n");
    return rc;
}

static int size_of(program *p, const char *symbol, size_t *n, size_t otherwise) {
    int (*get)(void *, size_t *);
    void *f = real(symbol);
    memcpy(&get, &f, sizeof f);
    *n = otherwise;
    return f ? get(p->real, n) : 0;
}

static int bytes_of(program *p, const char *symbol, char *out, const char *otherwise) {
    int (*get)(void *, char *);
    void *f = real(symbol);
    memcpy(&get, &f, sizeof f);
    if (!f) memcpy(out, otherwise, strlen(otherwise) + 1);
    return f ? get(p->real, out) : 0;
}

int nvrtcGetProgramLogSize(program *p, size_t *n) {
    return size_of(p, "nvrtcGetProgramLogSize", n, 1);
}
int nvrtcGetProgramLog(program *p, char *out) { return bytes_of(p, "nvrtcGetProgramLog", out, ""); }
int nvrtcGetCUBINSize(program *p, size_t *n) {
    return size_of(p, "nvrtcGetCUBINSize", n, strlen(p->text) + 1);
}
/* The variant `less` has it under another name. */
#ifdef STUB_VERSION_less
#define nvrtcGetCUBIN nvrtcGetCUBIN_of_another_name
#endif
int nvrtcGetCUBIN(program *p, char *out);
int nvrtcGetCUBIN(program *p, char *out) { return bytes_of(p, "nvrtcGetCUBIN", out, p->text); }
