/* One device handle: what a computation runs on. The CPU side: a thread pool, a matrix backend, counters.
 *
 * Several handles may live in one process (cpu:0, cpu:1 … each with its share of threads). Functions of
 * flex, nn and model take a dev and run on its pool; a handle is used by one thread of control at a time.
 * A CUDA device is such a handle with a second side, which dev/dev_cuda.h opens. */
#ifndef DEV_DEV_H
#define DEV_DEV_H
#include "core/err.h"
#include "core/pool.h"
#include "dev/library_record.h"
#include <stddef.h>
#include <stdint.h>

typedef struct dev dev;
typedef enum dev_isa { DEV_ISA_PORTABLE, DEV_ISA_AVX2, DEV_ISA_AVX512, DEV_ISA_COUNT } dev_isa;

typedef enum dev_kind { DEV_CPU, DEV_CUDA } dev_kind;

typedef struct dev_config {
    int threads;      /* 0: PACELINE_THREADS, else usable CPUs */
    const char *blas; /* NULL: PACELINE_BLAS, else the first serial CBLAS found; "none": plain C */
} dev_config;

MUST_CHECK err dev_open_cpu(dev **out, const dev_config *cfg);
void dev_close(dev *d);
dev_kind dev_get_kind(const dev *d);
pool *dev_pool(const dev *d);
int dev_threads(const dev *d);
dev_isa dev_get_isa(const dev *d); /* widest usable here, bounded by PACELINE_ISA */
const char *dev_isa_name(dev_isa isa);
/* Beside AVX-512: dot products of bf16, not with PACELINE_ISA below avx512bf16; tiles of bf16, not below amx. */
int dev_has_avx512bf16(const dev *d);
int dev_avx512bf16_pays(
    const dev *d); /* they are there and faster than fp32, or PACELINE_ISA asks for them */
int dev_has_amx(const dev *d);
/* Path of the CBLAS in use, or "plain C"; and why, when a library was found and not taken. */
const char *dev_blas_path(const dev *d);
const char *dev_blas_note(const dev *d);
const char *dev_blas_version(const dev *d); /* "OpenBLAS 0.3.21"; "" for plain C */
/* The libraries whose build decides this handle's bits, for ranks to compare. */
MUST_CHECK err dev_libraries(const dev *d, library_record_list *out);
/* A scratch block for pool thread t: at least n bytes, 64-aligned, kept and reused; contents undefined.
 * Grown only outside tasks: call dev_scratch_reserve before pool_run. */
MUST_CHECK err dev_scratch_reserve(dev *d, size_t bytes_per_thread);
void *dev_scratch(const dev *d, int thread);
size_t dev_bytes(const dev *d); /* all memory this handle holds */

#endif
