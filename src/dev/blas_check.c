/* What a CBLAS must be and compute before it is trusted: serial, 32-bit integers, locked buffers, right products.
 *
 * It must say itself that it is single-threaded (threaded ones give other bits for other thread counts and would fight
 * with our pool) and guard its buffers with locks (a serial OpenBLAS is often built without, and then computes
 * wrong when two threads call it). Then all pool threads call it at once on small and odd shapes, every
 * transposition, padded leading dimensions: integer products exactly, others near the sum in double precision, each
 * twice with the same bits, nothing written outside C. A library that is no file of the distribution does this in a
 * child first, since one of another interface may end its process. It takes a few milliseconds at most; speed and
 * accuracy beyond this are not judged. */
#include "dev/dev_private.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112, CHILD_SECONDS = 20 };

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

/* What a library says of itself; NULL functions where it does not. */
typedef struct answers {
    int (*parallel)(void);
    char *(*config)(void);
    long (*blis_threading)(void), (*blis_integers)(void);
    const char *(*blis_version)(void);
} answers;

static void ask(void *handle, answers *a) {
    /* POSIX allows the conversion of an object pointer to a function's; ISO C does not spell it. */
    *(void **)&a->parallel = dlsym(handle, "openblas_get_parallel");
    *(void **)&a->config = dlsym(handle, "openblas_get_config");
    *(void **)&a->blis_threading = dlsym(handle, "bli_info_get_enable_threading");
    *(void **)&a->blis_integers = dlsym(handle, "bli_info_get_blas_int_type_size");
    *(void **)&a->blis_version = dlsym(handle, "bli_info_get_version_str");
}

/* Why a library is not known to be serial with 32-bit integers; NULL when it is. */
static const char *objection(void *handle, const struct link_map *map, const answers *a) {
    if (!dlsym(handle, "cblas_sgemm")) return "has no cblas_sgemm";
    const char *text = a->parallel && a->config ? a->config() : "";
    if (!a->parallel && !a->blis_threading)
        return "does not say whether it is threaded (OpenBLAS and BLIS do)";
    if (a->parallel ? a->parallel() != 0 : a->blis_threading() != 0)
        return "is a threaded build (results would depend on its threads)";
    if (strstr(text, "USE64BITINT") ||
        (!a->parallel && a->blis_integers && a->blis_integers() == 64))
        return "has 64-bit integers";
    /* Without locks two callers may be given the same buffer; nothing else tells such a build. */
    if (!strstr(text, "USE_TLS") && !(map && imports(map, "pthread_mutex_lock")))
        return "was built without locks around its buffers (concurrent calls compute wrong results)";
    return NULL;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." → its first two words. */
static void read_version(const answers *a, char *out, size_t n) {
    const char *text = a->parallel && a->config ? a->config() : NULL;
    size_t words = 0;
    if (text) {
        words = strcspn(text, " ");
        words += text[words] ? 1 + strcspn(text + words + 1, " ") : 0;
        snprintf(out, n, "%.*s", (int)words, text);
    } else if (a->blis_version && a->blis_version()) {
        snprintf(out, n, "BLIS %s", a->blis_version());
    }
}

/* pad is added to every leading dimension. Integers: exact in fp32, whatever the order of sums. */
static const struct check_case {
    int m, n, k, ta, tb, pad, integers;
    float alpha, beta;
} cases[] = {
    {37, 53, 70, 0, 0, 0, 1, 2.0f, -1.0f}, {37, 53, 70, 1, 0, 3, 1, 1.0f, 0.0f},
    {37, 53, 70, 0, 1, 1, 0, 1.0f, 1.0f},  {37, 53, 70, 1, 1, 2, 1, -1.0f, 2.0f},
    {1, 1, 1, 0, 0, 0, 1, 1.0f, 0.0f},     {1, 17, 33, 0, 1, 5, 0, 1.0f, 0.0f},
    {19, 1, 64, 1, 0, 1, 0, 0.5f, 1.0f},   {5, 9, 257, 0, 0, 2, 0, 1.0f, 0.0f},
};
enum { CASES = sizeof cases / sizeof cases[0], MOST_AB = 56 * 80, MOST_C = 37 * 60 };

static float entry(int i, int j, int salt, int integers) {
    if (integers) return (float)((i * 5 + j * 13 + i * j % 11 + salt) % 7 - 3);
    return (float)((i * 1009 + j * 613 + i * j % 97 + salt * 31) % 2003 - 1001) / 777.0f;
}

typedef struct operands {
    float a[MOST_AB], b[MOST_AB], c[MOST_C], again[MOST_C];
    int lda, ldb, ldc;
} operands;

static void fill(const struct check_case *s, operands *x) {
    x->lda = (s->ta ? s->m : s->k) + s->pad;
    x->ldb = (s->tb ? s->k : s->n) + s->pad;
    x->ldc = s->n + s->pad;
    for (int i = 0; i < MOST_AB; i++) x->a[i] = x->b[i] = NAN; /* padding that must not be read */
    for (int i = 0; i < s->m; i++)
        for (int k = 0; k < s->k; k++)
            x->a[s->ta ? k * x->lda + i : i * x->lda + k] = entry(i, k, s->ta, s->integers);
    for (int k = 0; k < s->k; k++)
        for (int j = 0; j < s->n; j++)
            x->b[s->tb ? j * x->ldb + k : k * x->ldb + j] = entry(k, j, 2 + s->tb, s->integers);
    for (int i = 0; i < MOST_C; i++) {
        int inside = i / x->ldc < s->m && i % x->ldc < s->n;
        x->c[i] = inside ? (s->beta == 0.0f ? NAN : (float)(i % 3)) : 77.0f;
    }
    memcpy(x->again, x->c, sizeof x->c);
}

/* One cell of C against its sum in double precision; cells outside C keep what they held. */
static int cell_is_right(const struct check_case *s, const operands *x, int at) {
    int i = at / x->ldc, j = at % x->ldc;
    double sum = 0, size = 0;
    if (i >= s->m || j >= s->n) return x->c[at] == 77.0f;
    int step_a = s->ta ? x->lda : 1, step_b = s->tb ? 1 : x->ldb;
    const float *a = x->a + (s->ta ? i : i * x->lda), *b = x->b + (s->tb ? j * x->ldb : j);
    for (int k = 0; k < s->k; k++) {
        double p = (double)a[k * step_a] * b[k * step_b];
        sum += p;
        size += fabs(p);
    }
    double want = s->alpha * sum + (s->beta == 0.0f ? 0.0 : s->beta * (double)(at % 3));
    double allowed = s->integers ? 0 : (s->k + 4) * 0x1p-24 * (size + fabs(want) + 2);
    return fabs(x->c[at] - want) <= allowed;
}

static const char *fault_of(blas__sgemm_fn sgemm, const struct check_case *s) {
    operands x;
    fill(s, &x);
    for (int twice = 0; twice < 2; twice++)
        sgemm(ROW_MAJOR, s->ta ? TRANS : NO_TRANS, s->tb ? TRANS : NO_TRANS, s->m, s->n, s->k,
              s->alpha, x.a, x.lda, x.b, x.ldb, s->beta, twice ? x.again : x.c, x.ldc);
    if (memcmp(x.c, x.again, sizeof x.c))
        return "computes one matrix product twice with different bits";
    for (int at = 0; at < MOST_C; at++)
        if (!cell_is_right(s, &x, at)) return "computes a wrong matrix product on this machine";
    return NULL;
}

static err check_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    const blas__library *l = ctx;
    const char *fault = fault_of(l->sgemm, &cases[task % CASES]);
    return fault ? err_set(ERR_NUMERIC, "%s", fault) : ERR_OK;
}

static void child(blas__sgemm_fn sgemm) {
    int null = open("/dev/null", O_RDWR);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
    alarm(CHILD_SECONDS);
    if (null >= 0) dup2(null, 0), dup2(null, 1), dup2(null, 2);
    for (int i = 0; i < CASES; i++) (void)fault_of(sgemm, &cases[i]);
    _exit(0);
}

/* Whether a process survives the products; what they are is judged afterwards, here. */
static err survive(blas__sgemm_fn sgemm) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) child(sgemm);
    if (pid < 0) return err_errno("cannot be tried in a child process");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ERR_OK;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return err_set(ERR_REFUSED, "does not finish a small matrix product in %d s",
                       CHILD_SECONDS);
    return err_set(
        ERR_REFUSED,
        "ends a process that multiplies with it (%s %d): a broken build, or one of another "
        "interface",
        WIFSIGNALED(status) ? "signal" : "code",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

err blas__check(blas__library *l, void *handle, const struct link_map *map, int unknown,
                pool *threads) {
    answers a;
    ask(handle, &a);
    const char *why = objection(handle, map, &a);
    if (why) return err_set(ERR_REFUSED, "%s", why);
    *(void **)&l->sgemm = dlsym(handle, "cblas_sgemm");
    read_version(&a, l->version, sizeof l->version);
    if (unknown) TRY(survive(l->sgemm));
    int64_t rounds = pool_threads(threads) > 1 ? 2 : 1;
    return pool_run(threads, CASES * rounds * (int64_t)pool_threads(threads), check_task, l);
}
