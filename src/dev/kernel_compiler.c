/* NVRTC as the compiler of kernels: see kernel_compiler.h.
 *
 * NVRTC's calls are declared here as its ABI has them, so no header of CUDA is needed, and kernels include nothing from
 * the machine. The resource report of the assembler comes in the log; what is not understood there is left out. */
#include "dev/kernel_compiler.h"
#include "core/arena.h"
#include "core/log.h"
#include "dev/cuda_libs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program *program;

enum { OPTIONS = 64, HEADERS = 128, ARCHS = 64 };

typedef struct nvrtc {
    shared_lib lib;
    const char *(*error_text)(int);
    int (*create)(program *, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(program, int, const char *const *);
    int (*destroy)(program *);
    int (*log_size)(program, size_t *), (*log)(program, char *);
    int (*image_size)(program, size_t *), (*image)(program, char *);
    int (*count_archs)(int *), (*archs)(int *);
} nvrtc;

static err resolve(nvrtc *n) {
    const shared_lib_symbol table[] = {
        {"nvrtcGetErrorString", &n->error_text, 0},        {"nvrtcCreateProgram", &n->create, 0},
        {"nvrtcCompileProgram", &n->compile, 0},           {"nvrtcDestroyProgram", &n->destroy, 0},
        {"nvrtcGetProgramLogSize", &n->log_size, 0},       {"nvrtcGetProgramLog", &n->log, 0},
        {"nvrtcGetCUBINSize", &n->image_size, 0},          {"nvrtcGetCUBIN", &n->image, 0},
        {"nvrtcGetNumSupportedArchs", &n->count_archs, 0}, {"nvrtcGetSupportedArchs", &n->archs, 0},
    };
    return shared_lib_symbols(&n->lib, table, (int)(sizeof table / sizeof table[0]));
}

static err check_arch(void *ctx, const char *arch) {
    nvrtc *n = ctx;
    int number, count = 0, known[ARCHS], newest = 0;
    TRY(kernel_check_arch(arch, &number));
    if (n->count_archs(&count) || count > ARCHS || count < 1 || n->archs(known))
        return err_set(ERR_REFUSED, "NVRTC %s at %s does not tell its architectures",
                       n->lib.version, n->lib.path);
    for (int i = 0; i < count; i++) {
        if (known[i] == number) return ERR_OK;
        if (known[i] > newest) newest = known[i];
    }
    return err_set(ERR_REFUSED,
                   "NVRTC %s at %s does not know %s (its newest is sm_%d); install %s that does",
                   n->lib.version, n->lib.path, arch, newest, "an NVRTC");
}

/* ---- the report ---- */

typedef struct usage {
    char name[200]; /* "" outside a function */
    long stack, spilled;
} usage;

/* The number in front of what, when line has it, else 0. */
static long number_before(const char *line, const char *what) {
    const char *p = strstr(line, what);
    while (p && p > line && (p[-1] == ' ')) p--;
    while (p && p > line && p[-1] >= '0' && p[-1] <= '9') p--;
    return p ? strtol(p, NULL, 10) : 0;
}

static err read_line(const char *line, usage *u, str *out) {
    static const char begin[] = "Compiling entry function '";
    const char *p = strstr(line, begin);
    if (p) {
        p += sizeof begin - 1;
        *u = (usage){{0}, 0, 0};
        snprintf(u->name, sizeof u->name, "%.*s", (int)strcspn(p, "' \n"), p);
    } else if (strstr(line, "bytes stack frame")) { /* also of functions that it calls */
        long frame = number_before(line, "bytes stack frame");
        if (frame > u->stack) u->stack = frame;
        u->spilled +=
            number_before(line, "bytes spill stores") + number_before(line, "bytes spill loads");
    } else if (u->name[0] && (p = strstr(line, "Used ")) != NULL) {
        long deep = number_before(line, "bytes cumulative stack size");
        TRY(str_printf(out, "%s registers %ld stack %ld spilled %ld shared %ld\n", u->name,
                       strtol(p + 5, NULL, 10), deep > u->stack ? deep : u->stack, u->spilled,
                       number_before(line, "bytes smem")));
        u->name[0] = 0;
    }
    return ERR_OK;
}

static err read_report(const char *log, char **out) {
    str text = {0};
    usage u = {{0}, 0, 0};
    err e = str_add(&text, "", 0);
    for (const char *p = log; *p && !e;) {
        char line[1024];
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), p);
        e = read_line(line, &u, &text);
        p += n + (p[n] == '\n');
    }
    if (!e) e = mem_new(text.n + 1, 1, out);
    if (!e && text.n) memcpy(*out, text.s, text.n);
    str_free(&text);
    return e;
}

/* ---- compiling ---- */

/* The log's first line that tells an error, else its first. */
static void first_complaint(const char *log, char *out, size_t n) {
    const char *p = strstr(log, "error");
    while (p && p > log && p[-1] != '\n') p--;
    if (!p) p = log;
    snprintf(out, n, "%.*s", (int)strcspn(p, "\n"), p);
}

static err take_image(nvrtc *n, program p, const kernel_spec *spec, kernel_product *out) {
    int rc = n->image_size(p, &out->size);
    if (!rc) {
        TRY(mem_new(out->size, 1, &out->image));
        rc = n->image(p, out->image);
    }
    if (!rc && out->size) return ERR_OK;
    return err_set(ERR_REFUSED, "NVRTC %s at %s gave no image of the kernel '%s': %s",
                   n->lib.version, n->lib.path, spec->name, n->error_text(rc));
}

static err judge(nvrtc *n, program p, int rc, const kernel_spec *spec, const char *arch,
                 kernel_product *out) {
    size_t size = 0;
    char *log, what[512];
    if (n->log_size(p, &size)) size = 0;
    TRY(mem_new(size + 1, 1, &log));
    if (size && n->log(p, log)) log[0] = 0;
    err e = ERR_OK;
    if (rc) {
        first_complaint(log, what, sizeof what);
        log_lines(LOG_DEBUG, log);
        e = err_set(ERR_REFUSED, "the kernel '%s' does not compile for %s by NVRTC %s (%s): %s",
                    spec->name, arch, n->lib.version, n->error_text(rc), what);
    }
    if (!e) e = take_image(n, p, spec, out);
    if (!e) e = read_report(log, &out->usage);
    mem_free(log);
    return e;
}

static err compile(void *ctx, const kernel_spec *spec, const char *arch, kernel_product *out) {
    nvrtc *n = ctx;
    const char *options[OPTIONS + 1], *names[HEADERS], *texts[HEADERS];
    char target[64];
    int n_options = 0, n_texts = 0;
    memset(out, 0, sizeof *out);
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    options[n_options++] = target;
    /* Images come from our cache alone: the driver's, which NVRTC asks since 12.9, brings none of the report. */
    if (shared_lib_compare(n->lib.version, "12.9") >= 0) options[n_options++] = "--no-cache";
    for (int i = 0; kernel_option(spec, i) && n_options <= OPTIONS; i++)
        options[n_options++] = kernel_option(spec, i);
    if (n_options > OPTIONS || spec->n_hooks + spec->n_headers > HEADERS)
        return err_set(ERR_INTERNAL, "the kernel '%s' has more than %d options or %d headers",
                       spec->name, OPTIONS - 1, HEADERS);
    for (int i = 0; i < spec->n_hooks; i++, n_texts++)
        names[n_texts] = spec->hooks[i].name, texts[n_texts] = spec->hooks[i].text;
    for (int i = 0; i < spec->n_headers; i++, n_texts++)
        names[n_texts] = spec->headers[i]->name, texts[n_texts] = spec->headers[i]->text;
    program p = NULL;
    int rc = n->create(&p, spec->source->text, spec->source->name, n_texts, texts, names);
    if (rc)
        return err_set(ERR_REFUSED, "NVRTC %s at %s does not take the kernel '%s': %s",
                       n->lib.version, n->lib.path, spec->name, n->error_text(rc));
    rc = n->compile(p, n_options, options);
    err e = judge(n, p, rc, spec, arch, out);
    n->destroy(&p);
    if (!e) return ERR_OK;
    mem_free(out->image);
    mem_free(out->usage);
    memset(out, 0, sizeof *out);
    return e;
}

static void close_nvrtc(void *ctx) {
    nvrtc *n = ctx;
    shared_lib_close(&n->lib);
    mem_free(n);
}

err kernel_compiler_open(kernel_compiler *out) {
    memset(out, 0, sizeof *out);
    nvrtc *n;
    TRY(mem_new(1, sizeof *n, &n));
    err e = cuda_libs_open(&n->lib, CUDA_LIBS_NVRTC);
    if (!e) e = resolve(n);
    if (e) {
        close_nvrtc(n);
        return e;
    }
    *out = (kernel_compiler){
        .ctx = n, .compile = compile, .check_arch = check_arch, .close = close_nvrtc};
    snprintf(out->identity, sizeof out->identity, "NVRTC %s build %s", n->lib.version,
             n->lib.build[0] ? n->lib.build : "unknown");
    return ERR_OK;
}

void kernel_compiler_close(kernel_compiler *c) {
    if (c->close) c->close(c->ctx);
    memset(c, 0, sizeof *c);
}
