/* What the files of this folder share about a handle: its fields and the CBLAS it may hold.
 *
 * dev.c opens and closes handles, blas.c finds a library, blas_check.c judges it, gemm.c and packed.c read the fields.
 * Not for other folders. */
#ifndef DEV_DEV_PRIVATE_H
#define DEV_DEV_PRIVATE_H
#include "dev/dev.h"
#include "dev/gemm.h"
#include "dev/shared_lib.h"
#include <limits.h>
#include <stddef.h>

/* cblas_sgemm of a library with 32-bit integers; enums are passed as their int values. */
typedef void (*blas__sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta,
                               float *c, int ldc);

typedef struct blas__library {
    void *handle;                     /* of dlopen; NULL: plain C */
    blas__sgemm_fn sgemm;             /* NULL: plain C */
    char path[PATH_MAX];              /* file it came from, or "plain C" */
    char version[SHARED_LIB_VERSION]; /* "OpenBLAS 0.3.21", "" for plain C */
    char build[SHARED_LIB_BUILD];
    char note[2 * PATH_MAX]; /* why libraries that were found were not taken */
} blas__library;

struct dev {
    pool *pool;
    int threads;
    dev_isa isa;
    int bf16_pairs, bf16_pairs_pay, amx;
    int fma; /* the portable forms may use fused multiply-add instructions */
    blas__library blas;
    unsigned char **scratch; /* [threads] */
    size_t scratch_bytes;    /* of each */
    struct dev_cuda *cuda;   /* NULL: the CPU alone */
};

/* name: a path that must work, "none", or NULL to look for one. The pool serves the check. */
MUST_CHECK err blas__open(blas__library *out, const char *name, pool *threads);
void blas__close(blas__library *l);
/* Whether an opened library may be used; sets sgemm and version. ERR_REFUSED or ERR_NUMERIC without the path.
 * unknown: it is no file of the distribution, so its first products are computed in a child. */
struct link_map;
MUST_CHECK err blas__check(blas__library *l, void *handle, const struct link_map *map, int unknown,
                           pool *threads);

#endif
