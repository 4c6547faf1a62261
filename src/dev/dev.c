/* A device handle and its CPU side: threads, instruction set, matrix library, scratch.
 *
 * Everything is decided once, when a handle is opened, and can be asked for afterwards; nothing is
 * looked up again while a computation runs. Handles share nothing, so several may live side by side.
 * Work itself is in gemm.c and packed.c; this file computes nothing. */
#include "dev/dev.h"
#include "core/arena.h"
#include "core/env.h"
#include "dev/dev_cuda_private.h"
#include "dev/dev_private.h"
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const isa_names[DEV_ISA_COUNT] = {"portable", "avx2", "avx512"};

const char *dev_isa_name(dev_isa isa) { return isa_names[isa]; }

/* The widest set that the CPU and the system offer; *fma: fused multiply-add for the portable forms. */
static dev_isa widest(int *fma) {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx = 0, edx;
    int f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    __builtin_cpu_init();
    *fma = __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
    if (!*fma || !f16c || !__builtin_cpu_supports("avx2")) return DEV_ISA_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return DEV_ISA_AVX512;
    return DEV_ISA_AVX2;
#else
    *fma = 0;
    return DEV_ISA_PORTABLE;
#endif
}

/* Whether the CPU multiplies tiles of bf16 and the system lets this process use them: their registers are 8 KiB more to save for
 * every thread, so Linux wants to be asked. */
static int amx_granted(void) {
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return 0;
    const unsigned both = 1u << 22 | 1u << 24; /* amx-bf16, amx-tile */
    return (edx & both) == both && syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return 0;
#endif
}

static int has_bf16_pairs(void) {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 5);
#else
    return 0;
#endif
}

/* Intel's cores without a free matrix unit: two multiply-adds in fp32 take no longer than one dot product of pairs, and a product of weights
 * needs two of these; on 16 cores (Sapphire Rapids) attention on pairs took 1.7 to 2.1 times as long as widened. */
static int are_pairs_slow(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return 0;
#endif
}

static err choose_isa(dev *d) {
    d->isa = widest(&d->fma);
    const char *bound = env_get(ENV_PACELINE_ISA);
    const int all = !bound || !strcmp(bound, "amx");
    if (all || !strcmp(bound, "avx512bf16")) {
        d->bf16_pairs = d->isa == DEV_ISA_AVX512 && has_bf16_pairs();
        d->bf16_pairs_pay = d->bf16_pairs && !(all && are_pairs_slow());
        d->amx = all && d->isa == DEV_ISA_AVX512 && amx_granted();
        return ERR_OK;
    }
    for (int i = 0; i < DEV_ISA_COUNT; i++) {
        if (strcmp(bound, isa_names[i]) != 0) continue;
        if ((dev_isa)i < d->isa) d->isa = (dev_isa)i;
        return ERR_OK;
    }
    return err_set(ERR_USAGE,
                   "PACELINE_ISA is '%s'; it must be portable, avx2, avx512, avx512bf16 or amx",
                   bound);
}

static err choose_threads(dev *d, int asked) {
    d->threads = asked;
    if (asked) return ERR_OK;
    const char *text = env_get(ENV_PACELINE_THREADS);
    if (!text) {
        d->threads = pool_cpus();
        return ERR_OK;
    }
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > 1024)
        return err_set(ERR_USAGE, "PACELINE_THREADS is '%s'; it must be a number from 1 to 1024",
                       text);
    d->threads = (int)n;
    return ERR_OK;
}

err dev_open_cpu(dev **out, const dev_config *cfg) {
    *out = NULL;
    dev *d;
    TRY(mem_new(1, sizeof *d, &d));
    err e;
    TRY_GOTO(choose_isa(d), failed);
    TRY_GOTO(choose_threads(d, cfg ? cfg->threads : 0), failed);
    TRY_GOTO(pool_create(&d->pool, d->threads), failed);
    TRY_GOTO(mem_new((size_t)d->threads, sizeof *d->scratch, &d->scratch), failed);
    TRY_GOTO(blas__open(&d->blas, cfg ? cfg->blas : NULL, d->pool), failed);
    *out = d;
    return ERR_OK;
failed:
    dev_close(d);
    return e;
}

void dev_close(dev *d) {
    if (!d) return;
    dev_cuda__close(d);
    blas__close(&d->blas);
    pool_destroy(d->pool);
    for (int i = 0; d->scratch && i < d->threads; i++) free(d->scratch[i]);
    mem_free(d->scratch);
    mem_free(d);
}

dev_kind dev_get_kind(const dev *d) { return d->cuda ? DEV_CUDA : DEV_CPU; }
pool *dev_pool(const dev *d) { return d->pool; }
int dev_threads(const dev *d) { return d->threads; }
dev_isa dev_get_isa(const dev *d) { return d->isa; }
int dev_has_avx512bf16(const dev *d) { return d->bf16_pairs; }
int dev_avx512bf16_pays(const dev *d) { return d->bf16_pairs_pay; }
int dev_has_amx(const dev *d) { return d->amx; }
const char *dev_blas_path(const dev *d) { return d->blas.path; }
const char *dev_blas_note(const dev *d) { return d->blas.note; }
const char *dev_blas_version(const dev *d) { return d->blas.version; }

err dev_libraries(const dev *d, library_record_list *out) {
    memset(out, 0, sizeof *out);
    TRY(library_record_add(out, "CBLAS", d->blas.path, d->blas.version, d->blas.build));
    if (!d->cuda) return ERR_OK;
    TRY(library_record_add_lib(out, &d->cuda->driver->lib));
    return library_record_add(out, "kernel compiler", "",
                              kernel_cache_compiler(d->cuda->sys->cache), "");
}

err dev_scratch_reserve(dev *d, size_t bytes_per_thread) {
    if (bytes_per_thread <= d->scratch_bytes) return ERR_OK;
    size_t bytes = (bytes_per_thread + 4095) & ~(size_t)4095;
    d->scratch_bytes = 0;
    for (int i = 0; i < d->threads; i++) {
        free(d->scratch[i]);
        d->scratch[i] = NULL;
    }
    for (int i = 0; i < d->threads; i++) {
        if (bytes >= bytes_per_thread) d->scratch[i] = aligned_alloc(64, bytes);
        if (d->scratch[i]) continue;
        return err_set(ERR_MEMORY,
                       "no memory for %d scratch blocks of %zu bytes; use fewer threads",
                       d->threads, bytes_per_thread);
    }
    d->scratch_bytes = bytes;
    return ERR_OK;
}

void *dev_scratch(const dev *d, int thread) { return d->scratch[thread]; }

size_t dev_bytes(const dev *d) {
    return sizeof *d + (size_t)d->threads * (sizeof *d->scratch + d->scratch_bytes);
}
