/* A stand-in for NVRTC: counts compiles, can sleep, fail, stop until it is let go or others began too, and make every image another one.
 *
 * Counts are lines of a file, so that processes can be added up; a compile that began and did not end leaves a line in
 * another. Images begin with the kernel's source; with `differ` they go on with process and number, so that two compiles
 * of one kernel never give the same bytes and an equal image proves that it was taken over. Header only. */
#ifndef TESTS_DEV_KERNEL_STANDIN_H
#define TESTS_DEV_KERNEL_STANDIN_H
#include "core/arena.h"
#include "core/log.h"
#include "dev/kernel_cache.h"
#include "dev/kernel_folder.h"
#include "support/files.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STANDIN_KERNELS = 6 };

typedef struct standin {
    kernel_compiler c;
    char began[600], ended[600]; /* files of lines */
    int differ;
    atomic_int sleep_ms;
    _Atomic(const char *) hang_at; /* the kernel at which it stops as long as this says so */
    int together;                  /* a compile waits until as many of its kernel began */
    atomic_int failures;           /* the next ones that fail */
    atomic_int compiles;
    int meet; /* a compile goes on once so many are running, or after a minute */
    atomic_int running, most, lonely; /* now; the most at once; those that waited in vain */
} standin;

static inline void standin_line(const char *path, const char *text) {
    char line[200];
    int n = snprintf(line, sizeof line, "%s\n", text);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    files_must(fd >= 0 && write(fd, line, (size_t)n) == n, path);
    close(fd);
}

static inline int standin_count(const char *path, const char *name) {
    char line[200];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        n += !name || !strcmp(line, name);
    }
    if (f) fclose(f);
    return n;
}

static inline void standin_sleep(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Waits until a line is there; a minute without it is a failure of what should have written it. */
static inline void standin_await(const char *path, const char *name) {
    for (int i = 0; i < 60000 && !standin_count(path, name); i++) {
        struct timespec t = {0, 1000000};
        nanosleep(&t, NULL);
    }
    files_must(standin_count(path, name), name);
}

/* Waits for the others of a meeting; what one of them has seen, all have. */
static inline void standin_meet(standin *s) {
    int now = atomic_fetch_add(&s->running, 1) + 1, most = atomic_load(&s->most);
    while (now > most && !atomic_compare_exchange_weak(&s->most, &most, now)) {
    }
    for (int i = 0; i < 60000 && atomic_load(&s->most) < s->meet; i++) standin_sleep(1);
    if (atomic_load(&s->most) < s->meet) atomic_fetch_add(&s->lonely, 1);
}

static inline err standin_compile(void *ctx, const kernel_spec *spec, const char *arch,
                                  kernel_product *out) {
    standin *s = ctx;
    str image = {0};
    memset(out, 0, sizeof *out);
    standin_line(s->began, spec->name);
    for (const char *at; (at = atomic_load(&s->hang_at)) && !strcmp(at, spec->name);)
        standin_sleep(1);
    while (standin_count(s->began, spec->name) < s->together) standin_sleep(1);
    standin_meet(s);
    standin_sleep(atomic_load(&s->sleep_ms));
    atomic_fetch_sub(&s->running, 1);
    int number = atomic_fetch_add(&s->compiles, 1);
    int left = atomic_load(&s->failures);
    while (left > 0 && !atomic_compare_exchange_weak(&s->failures, &left, left - 1)) {
    }
    if (left > 0) return err_set(ERR_REFUSED, "'%s' is refused by the stand-in", spec->name);
    TRY(str_printf(&image, "%s for %s", spec->source->text, arch));
    if (s->differ) TRY(str_printf(&image, " by %d as number %d", (int)getpid(), number));
    TRY(mem_new(100, 1, &out->usage));
    snprintf(out->usage, 100, "f registers 8 stack 0 spilled 0 shared 0\n");
    out->image = image.s, out->size = image.n;
    standin_line(s->ended, spec->name);
    return ERR_OK;
}

static inline err standin_arch(void *ctx, const char *arch) {
    int number;
    (void)ctx;
    return kernel_check_arch(arch, &number);
}

static inline void standin_begin(standin *s, files_dir *d) {
    memset(s, 0, sizeof *s);
    s->c = (kernel_compiler){.ctx = s, .compile = standin_compile, .check_arch = standin_arch};
    snprintf(s->c.identity, sizeof s->c.identity, "stand-in 1");
    snprintf(s->began, sizeof s->began, "%s", files_at(d, "began"));
    snprintf(s->ended, sizeof s->ended, "%s", files_at(d, "ended"));
}

/* Kernel i of STANDIN_KERNELS; spec points into text. */
typedef struct standin_kernel {
    char name[32], source[64];
    kernel_text text;
    kernel_spec spec;
} standin_kernel;

static inline const kernel_spec *standin_spec(standin_kernel *k, int i) {
    snprintf(k->name, sizeof k->name, "kernel %d", i);
    snprintf(k->source, sizeof k->source, "source of kernel %d", i);
    k->text = (kernel_text){"kernel.cu", k->source};
    k->spec = (kernel_spec){.name = k->name, .source = &k->text};
    return &k->spec;
}

/* Log lines, kept: log_set_sink(standin_keep, &lines). */
typedef struct standin_lines {
    char text[16384];
} standin_lines;

static inline void standin_keep(void *ctx, log_level level, const char *line) {
    standin_lines *l = ctx;
    size_t n = strlen(l->text);
    (void)level;
    snprintf(l->text + n, sizeof l->text - n, "%s\n", line);
}

#endif
