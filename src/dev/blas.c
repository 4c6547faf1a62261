/* Finding a serial CBLAS at run time, and trusting it only after it computed right.
 *
 * A library is taken when it says itself that it is single-threaded (threaded ones give other bits for other
 * thread counts and would fight with our pool), has 32-bit integers, guards its buffers with locks (a serial
 * OpenBLAS is often built without, and then computes wrong when two threads call it), and computes exact integer
 * products in all four transpositions while all pool threads call it at once. Nothing is linked: without
 * a library the plain C kernels serve. A library that was named and cannot be used is an error. */
#include "dev/dev_private.h"
#include "core/env.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

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

/* Whether the library itself imports a symbol. Imports lie in front of the hashed symbols. */
static int imports(const struct link_map *map, const char *name) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *gnu_hash = NULL, *hash = NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        /* glibc has made these absolute on the machines we build for. */
        if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) strings = (const char *)d->d_un.d_ptr;
        if (d->d_tag == DT_GNU_HASH) gnu_hash = (const uint32_t *)d->d_un.d_ptr;
        if (d->d_tag == DT_HASH) hash = (const uint32_t *)d->d_un.d_ptr;
    }
    if (!symbols || !strings || !(gnu_hash || hash)) return 0;
    uint32_t count = gnu_hash ? gnu_hash[1] : hash[1];
    for (uint32_t i = 1; i < count; i++)
        if (symbols[i].st_shndx == SHN_UNDEF && strcmp(strings + symbols[i].st_name, name) == 0)
            return 1;
    return 0;
}

/* Why a library is not known to be serial with 32-bit integers; NULL when it is. */
static const char *objection(void *handle, const struct link_map *map) {
    int (*parallel)(void);
    char *(*config)(void);
    long (*blis_threading)(void);
    /* POSIX allows the conversion of an object pointer to a function's; ISO C does not spell it. */
    *(void **)&parallel = dlsym(handle, "openblas_get_parallel");
    *(void **)&config = dlsym(handle, "openblas_get_config");
    *(void **)&blis_threading = dlsym(handle, "bli_info_get_enable_threading");
    if (!dlsym(handle, "cblas_sgemm")) return "has no cblas_sgemm";
    const char *text = parallel && config ? config() : "";
    if (!parallel && !blis_threading)
        return "does not say whether it is threaded (OpenBLAS and BLIS do)";
    if (parallel ? parallel() != 0 : blis_threading() != 0)
        return "is a threaded build (results would depend on its threads)";
    if (strstr(text, "USE64BITINT")) return "has 64-bit integers";
    /* Without locks two callers may be given the same buffer; nothing else tells such a build. */
    if (!strstr(text, "USE_TLS") && !(map && imports(map, "pthread_mutex_lock")))
        return "was built without locks around its buffers (concurrent calls compute wrong results)";
    return NULL;
}

enum { CHECK_M = 37, CHECK_N = 53, CHECK_K = 70 };

/* Small integers: every product and sum is exact in fp32, whatever the order. */
static int check_value(int i, int j, int salt) {
    return (i * 7 + j * 13 + i * j % 5 + salt) % 7 - 3;
}

static int product_is_right(blas__sgemm_fn sgemm, int ta, int tb) {
    float a[CHECK_M * CHECK_K], b[CHECK_K * CHECK_N], c[CHECK_M * CHECK_N];
    for (int i = 0; i < CHECK_M; i++)
        for (int k = 0; k < CHECK_K; k++)
            a[ta ? k * CHECK_M + i : i * CHECK_K + k] = (float)check_value(i, k, ta);
    for (int k = 0; k < CHECK_K; k++)
        for (int j = 0; j < CHECK_N; j++)
            b[tb ? j * CHECK_K + k : k * CHECK_N + j] = (float)check_value(k, j, 2 + tb);
    for (int i = 0; i < CHECK_M * CHECK_N; i++) c[i] = (float)(i % 3);
    sgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, CHECK_M, CHECK_N, CHECK_K, 2.0f,
          a, ta ? CHECK_M : CHECK_K, b, tb ? CHECK_K : CHECK_N, -1.0f, c, CHECK_N);
    for (int i = 0; i < CHECK_M; i++)
        for (int j = 0; j < CHECK_N; j++) {
            int sum = 0;
            for (int k = 0; k < CHECK_K; k++)
                sum += check_value(i, k, ta) * check_value(k, j, 2 + tb);
            if (c[i * CHECK_N + j] != (float)(2 * sum - (i * CHECK_N + j) % 3)) return 0;
        }
    return 1;
}

static err check_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    const blas__library *l = ctx;
    if (product_is_right(l->sgemm, (int)(task & 1), (int)(task >> 1 & 1))) return ERR_OK;
    return err_set(ERR_NUMERIC, "computes a wrong matrix product on this machine");
}

/* Opens one candidate. 1: taken; 0: not there; -1: there and not taken, with the reason in err_text. */
static int consider(blas__library *l, const char *name, pool *threads) {
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
    const char *why = objection(handle, map);
    if (why) {
        err_set(ERR_REFUSED, "%s", why);
        dlclose(handle);
        return -1;
    }
    *(void **)&l->sgemm = dlsym(handle, "cblas_sgemm");
    if (pool_run(threads, 8 * (int64_t)pool_threads(threads), check_task, l) != ERR_OK) {
        l->sgemm = NULL;
        dlclose(handle);
        return -1;
    }
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
        if (consider(l, name, threads) == 1) return ERR_OK;
        return err_context(
            ERR_REFUSED,
            "the matrix library %s (from %s) cannot be used; name a serial CBLAS or 'none': ", name,
            origin);
    }
    if (name) {
        snprintf(l->note, sizeof l->note, "none was asked for by %s", origin);
    } else {
        static const char *const own[] = {"libopenblas.so.0", "libblis.so.4"};
        for (int i = 0; i < 2 + SYSTEM_NAMES; i++) {
            char beside[PATH_MAX];
            const char *candidate = i < 2 ? beside : system_names[i - 2];
            if (i < 2 && !beside_program(beside, sizeof beside, own[i])) continue;
            int fate = consider(l, candidate, threads);
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
