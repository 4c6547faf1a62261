/* Stands for NVRTC: compiles a kernel's text with the host's C++ compiler into a shared object for emu_driver.c.
 *
 * The text goes behind emu_text.cuh, with a table of its __global__ functions behind it; -D options and headers are kept,
 * others mean nothing here. The image is "EMU1", its size and the shared object. EMU_CXX names the compiler; else g++,
 * clang++ or c++, the first that runs. Without one nvrtcVersion fails, so that tests skip and say so. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC visibility push(default)
extern char **environ;
enum { MOST = 64, COMPILATION = 6 };

typedef struct program {
    char *text;
    int n; /* headers */
    char *name[MOST], *body[MOST];
    char *image, *log;
    size_t size;
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
int nvrtcGetCUBIN(program *p, char *out);

/* Runs a command with its output in a file; its exit code, 127 where it cannot be run. */
static int run(const char *const *args, const char *output) {
    posix_spawn_file_actions_t a;
    pid_t pid;
    int status = 0;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&a, 1, 2);
    int rc = posix_spawnp(&pid, args[0], &a, NULL, (char *const *)(uintptr_t)args, environ);
    posix_spawn_file_actions_destroy(&a);
    if (rc) return 127;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

static const char *compiler(void) {
    static const char *const known[] = {"g++", "clang++", "c++"};
    const char *given = getenv("EMU_CXX");
    if (given) return given;
    for (int i = 0; i < 3; i++)
        if (!run((const char *const[]){known[i], "--version", NULL}, "/dev/null")) return known[i];
    return NULL;
}

const char *nvrtcGetErrorString(int rc) {
    return rc == COMPILATION ? "compilation" : rc ? "no memory or no folder" : "success";
}
int nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = 0;
    if (compiler()) return 0;
    fprintf(
        stderr,
        "emulated device: there is no C++ compiler (g++, clang++ or c++) to make kernels with\n");
    return 1;
}
int nvrtcGetNumSupportedArchs(int *n) {
    *n = 1;
    return 0;
}
int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 90;
    return 0;
}

int nvrtcCreateProgram(program **out, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    program *p = *out = calloc(1, sizeof *p);
    (void)name;
    if (!p || n > MOST) return 1;
    p->text = strdup(text);
    for (; p->n < n; p->n++)
        p->name[p->n] = strdup(names[p->n]), p->body[p->n] = strdup(headers[p->n]);
    return p->text ? 0 : 1;
}
int nvrtcDestroyProgram(program **in) {
    program *p = *in;
    for (int i = 0; i < p->n; i++) free(p->name[i]), free(p->body[i]);
    free(p->text), free(p->image), free(p->log);
    free(p);
    *in = NULL;
    return 0;
}

/* ---- the text ---- */

/* Names of functions between `extern "C" __global__ void [__launch_bounds__(...)]` and their '('. */
static void put_entries(FILE *f, const char *text) {
    static const char mark[] = "extern \"C\" __global__ void", bounds[] = "__launch_bounds__(";
    fprintf(f, "\nEMU_ENTRIES(");
    for (const char *p = text; (p = strstr(p, mark)) != NULL;) {
        p += sizeof mark - 1;
        p += strspn(p, " \n");
        if (!strncmp(p, bounds, sizeof bounds - 1)) {
            p = strchr(p, ')');
            if (!p) break;
            p += 1 + strspn(p + 1, " \n");
        }
        fprintf(f, "EMU_ENTRY(%.*s)", (int)strcspn(p, "( \n"), p);
    }
    fprintf(f, ")\n");
}

static int write_source(const program *p, const char *path) {
    static const char dynamic[] = "extern __shared__";
    FILE *f = fopen(path, "wb");
    if (!f) return 1;
    fprintf(f, "#include \"emu_text.cuh\"\n#line 1 \"kernel.cu\"\n");
    for (const char *at = p->text, *next; at; at = next) {
        next = strstr(at, dynamic);
        fwrite(at, 1, next ? (size_t)(next - at) : strlen(at), f);
        if (next) fprintf(f, "EMU_DYNAMIC"), next += sizeof dynamic - 1;
    }
    put_entries(f, p->text);
    return fclose(f) != 0;
}

static int write_header(const char *folder, const char *name, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL;
         *slash++ = '/') {
        *slash = 0;
        (void)mkdir(path, 0700);
    }
    FILE *f = fopen(path, "wb");
    if (!f) return 1;
    fputs(text, f);
    return fclose(f) != 0;
}

/* ---- compiling ---- */

static char *read_all(const char *path, size_t front, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    *n = 0;
    if (f && !fseek(f, 0, SEEK_END)) {
        const long size = ftell(f);
        rewind(f);
        text = size >= 0 ? calloc((size_t)size + front + 1, 1) : NULL;
        if (text) *n = fread(text + front, 1, (size_t)size, f);
    }
    if (f) fclose(f);
    return text;
}

static int compile_in(program *p, const char *folder, int n, const char *const *options) {
    static const char folder_of_text[] = "-I" EMU_FOLDER;
    static const char *const flags[] = {"-std=c++17",
                                        "-w",
                                        "-Og",
                                        "-g1",
                                        "-fPIC",
                                        "-shared",
                                        "-nostdlib",
                                        "-march=native",
                                        "-ffp-contract=off",
                                        "-fno-exceptions",
                                        "-fno-rtti",
                                        "-fno-strict-aliasing",
                                        "-fno-stack-protector",
                                        "-fno-math-errno",
                                        "-fsanitize=thread",
                                        "-fsanitize=bounds",
                                        folder_of_text};
    const char *args[MOST + 64];
    char source[300], object[300], log[300], here[300];
    int k = 0;
    size_t size;
    snprintf(source, sizeof source, "%s/kernel.cpp", folder);
    snprintf(object, sizeof object, "%s/kernel.so", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(here, sizeof here, "-I%s", folder);
    if (write_source(p, source)) return 1;
    for (int i = 0; i < p->n; i++)
        if (write_header(folder, p->name[i], p->body[i])) return 1;
    args[k++] = compiler();
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) args[k++] = flags[i];
    for (int i = 0; i < n && k < MOST + 50; i++)
        if (!strncmp(options[i], "-D", 2)) args[k++] = options[i];
    args[k++] = here, args[k++] = source, args[k++] = "-o", args[k++] = object;
    args[k++] = "-lm", args[k++] = "-lc", args[k] = NULL;
    const int rc = run(args, log);
    p->log = read_all(log, 0, &size);
    if (rc) return COMPILATION;
    p->image = read_all(object, 16, &size);
    if (!p->image || !size) return 1;
    const uint64_t bytes = size;
    memcpy(p->image, "EMU1", 4);
    memcpy(p->image + 8, &bytes, 8);
    p->size = size + 16;
    return 0;
}

int nvrtcCompileProgram(program *p, int n, const char *const *options) {
    char folder[] = "/tmp/emu_nvrtc_XXXXXX";
    if (!mkdtemp(folder)) return 1;
    const int rc = compile_in(p, folder, n, options);
    if (!getenv("EMU_KEEP"))
        (void)run((const char *const[]){"rm", "-rf", folder, NULL}, "/dev/null");
    return rc;
}
int nvrtcGetProgramLogSize(program *p, size_t *n) {
    *n = p->log ? strlen(p->log) + 1 : 1;
    return 0;
}
int nvrtcGetProgramLog(program *p, char *out) {
    strcpy(out, p->log ? p->log : "");
    return 0;
}
int nvrtcGetCUBINSize(program *p, size_t *n) {
    *n = p->size;
    return 0;
}
int nvrtcGetCUBIN(program *p, char *out) {
    memcpy(out, p->image, p->size);
    return 0;
}
