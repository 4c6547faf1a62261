/* What stands in front of a kernel's text when a host compiler makes it: CUDA's words for the emulated device.
 *
 * Compiled as C++17 with -fsanitize=thread, whose calls before each load and store are answered here instead of by its
 * library: that is how every access is seen. Instructions of PTX (src/flex/kernels/flex_ptx.cuh) are given as functions.
 * Near functions (ex2.approx, expf) are the host's exact ones; products are not fused where NVRTC would. No headers of the
 * C++ library: they would take longer than the text. */
#include "emu.h"
#pragma GCC visibility push(hidden)

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emu_shared"), used)) /* others read it: no store is dead */
#define __constant__ static const
#define EMU_DYNAMIC  extern /* was: extern __shared__ */

#define emu emu_get() /* a load that no instrumentation sees */
static char emu_nothing[16] __attribute__((section("emu_shared"), used));
extern "C" {
emu_api *emu_at __attribute__((used));
extern const char __ehdr_start[], _end[];
extern char __start_emu_shared[], __stop_emu_shared[];
unsigned char shared[EMU_DYNAMIC_BYTES] __attribute__((aligned(1024)));

float expf(float), exp2f(float), logf(float), log2f(float), tanhf(float), fmaxf(float, float),
    fminf(float, float), fabsf(float), floorf(float), sqrtf(float), fmaf(float, float, float);
double exp(double), exp2(double), log(double), sqrt(double), fabs(double), floor(double),
    fma(double, double, double), copysign(double, double);

static inline __attribute__((always_inline)) emu_api *emu_get() {
    emu_api *p;
    __asm__("movq emu_at(%%rip), %0" : "=r"(p));
    return p;
}

/* ---- what the sanitizer's instrumentation calls ---- */
#define EMU_PLAIN __attribute__((no_sanitize("thread"), no_sanitize("undefined"), noinline))
#define EMU_SEE(at, n, how)                                                                        \
    if ((size_t)((const char *)(at) - (const char *)emu) >= emu->quiet_bytes)                      \
        emu->access(at, n, how, __builtin_return_address(0));
#define EMU_SEES(n)                                                                                \
    EMU_PLAIN void __tsan_read##n(void *p){                                                        \
        EMU_SEE(p, n, EMU_READ)} EMU_PLAIN void __tsan_write##n(void *p){                          \
        EMU_SEE(p, n, EMU_WRITE)} EMU_PLAIN void __tsan_volatile_read##n(void *p){                 \
        EMU_SEE(p, n, EMU_READ)} EMU_PLAIN void __tsan_volatile_write##n(void *p){                 \
        EMU_SEE(p, n, EMU_WRITE)} EMU_PLAIN void __tsan_unaligned_read##n(void *p){                \
        EMU_SEE(p, n,                                                                              \
                EMU_READ | EMU_UNALIGNED)} EMU_PLAIN void __tsan_unaligned_write##n(void *p){      \
        EMU_SEE(p, n, EMU_WRITE | EMU_UNALIGNED)} EMU_PLAIN void __tsan_read_write##n(void *p){    \
        EMU_SEE(p, n, EMU_READ)                                                                    \
            EMU_SEE(p, n, EMU_WRITE)} EMU_PLAIN void __tsan_unaligned_read_write##n(void *p) {     \
        EMU_SEE(p, n, EMU_READ | EMU_UNALIGNED)                                                    \
        EMU_SEE(p, n, EMU_WRITE | EMU_UNALIGNED)                                                   \
    }
EMU_SEES(1)
EMU_SEES(2) EMU_SEES(4) EMU_SEES(8) EMU_SEES(16) EMU_PLAIN
    void __tsan_read_range(void *p, size_t n){EMU_SEE(p, n, EMU_READ | EMU_UNALIGNED)} EMU_PLAIN
    void __tsan_write_range(void *p, size_t n){EMU_SEE(p, n, EMU_WRITE | EMU_UNALIGNED)} EMU_PLAIN
    void *__tsan_memcpy(void *to, const void *from, size_t n) {
    EMU_SEE(from, n, EMU_READ | EMU_UNALIGNED)
    EMU_SEE(to, n, EMU_WRITE | EMU_UNALIGNED)
    return __builtin_memcpy(to, from, n);
}
EMU_PLAIN void *__tsan_memset(void *to, int value, size_t n) {
    EMU_SEE(to, n, EMU_WRITE | EMU_UNALIGNED)
    return __builtin_memset(to, value, n);
}
EMU_PLAIN void __tsan_init(void) {}
EMU_PLAIN void __tsan_func_entry(void *) {}
EMU_PLAIN void __tsan_func_exit(void) {}
/* An index beyond its array, by -fsanitize=bounds: where in the text. */
EMU_PLAIN void __ubsan_handle_out_of_bounds(void *data, void *) {
    const struct {
        const char *file;
        unsigned line, column;
    } *at = (decltype(at))data;
    emu->leaves(__builtin_return_address(0), at->file, at->line);
}
} /* extern "C" */

/* ---- places ---- */
typedef emu_dim dim3;
#define threadIdx (emu->place.thread)
#define blockIdx  (emu->place.block)
#define blockDim  (emu->place.threads)
#define gridDim   (emu->place.blocks)
enum { warpSize = 32 };

/* ---- values and arithmetic ---- */
#define EMU_FN static inline __attribute__((always_inline, unused))
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(16) int4 {
    int x, y, z, w;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(8) int2 {
    int x, y;
};
struct __align__(8) float2 {
    float x, y;
};
template <class To, class From> EMU_FN To emu_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "sizes");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
EMU_FN float __int_as_float(int x) { return emu_bits<float>(x); }
EMU_FN float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
EMU_FN int __float_as_int(float x) { return emu_bits<int>(x); }
EMU_FN unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
EMU_FN long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
EMU_FN double __longlong_as_double(long long x) { return emu_bits<double>(x); }
EMU_FN float __fadd_rn(float x, float y) { return x + y; }
EMU_FN float __fsub_rn(float x, float y) { return x - y; }
EMU_FN float __fmul_rn(float x, float y) { return x * y; }
EMU_FN float __fdiv_rn(float x, float y) { return x / y; }
EMU_FN float __fdividef(float x, float y) { return x / y; }
EMU_FN float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
EMU_FN float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
EMU_FN double __dadd_rn(double x, double y) { return x + y; }
EMU_FN double __dsub_rn(double x, double y) { return x - y; }
EMU_FN double __dmul_rn(double x, double y) { return x * y; }
EMU_FN double __ddiv_rn(double x, double y) { return x / y; }
EMU_FN double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
EMU_FN double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
EMU_FN float __ll2float_rn(long long x) { return (float)x; }
EMU_FN float __int2float_rn(int x) { return (float)x; }
EMU_FN int __ffs(int x) { return __builtin_ffs(x); }
EMU_FN int __popc(unsigned x) { return __builtin_popcount(x); }
EMU_FN int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU_FN int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
EMU_FN int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
template <class T> EMU_FN T __ldg(const T *p) { return *p; }
template <class T, class U> EMU_FN auto min(T x, U y) -> decltype(x + y) { return x < y ? x : y; }
template <class T, class U> EMU_FN auto max(T x, U y) -> decltype(x + y) { return x > y ? x : y; }

/* ---- threads together ---- */
#define __syncthreads() emu->barrier(__LINE__)
#define __threadfence()
#define __threadfence_block()
EMU_FN unsigned long long emu_meet(emu_op op, unsigned mask, unsigned long long x, int by = 0,
                                   int width = 32) {
    emu_lane lane = {op, mask, by, width, x, 0, 0, 0, {0, 0}, 0};
    emu->meet(&lane);
    return lane.out;
}
template <class T> EMU_FN T emu_shuffle(emu_op op, unsigned mask, T x, int by, int width) {
    static_assert(sizeof x <= 8, "size");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &x, sizeof x);
    bits = emu_meet(op, mask, bits, by, width);
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
EMU_FN void __syncwarp(unsigned mask = 0xffffffffu) { emu_meet(EMU_SYNC, mask, 0); }
template <class T> EMU_FN T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
    return emu_shuffle(EMU_SHUFFLE, mask, x, lane, width);
}
template <class T> EMU_FN T __shfl_xor_sync(unsigned mask, T x, int by, int width = 32) {
    return emu_shuffle(EMU_SHUFFLE_XOR, mask, x, by, width);
}
template <class T> EMU_FN T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
    return emu_shuffle(EMU_SHUFFLE_UP, mask, x, (int)by, width);
}
template <class T> EMU_FN T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
    return emu_shuffle(EMU_SHUFFLE_DOWN, mask, x, (int)by, width);
}
EMU_FN unsigned __ballot_sync(unsigned mask, int x) {
    return (unsigned)emu_meet(EMU_BALLOT, mask, x != 0);
}
EMU_FN int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
EMU_FN int __all_sync(unsigned mask, int x) { return __ballot_sync(mask, x) == mask; }
EMU_FN unsigned __activemask(void) = delete; /* what it gives is up to the schedule */
template <class T> EMU_FN unsigned __match_any_sync(unsigned mask, T x) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &x, sizeof x);
    return (unsigned)emu_meet(EMU_MATCH, mask, bits);
}
EMU_FN unsigned __reduce_or_sync(unsigned mask, unsigned x) {
    return (unsigned)emu_meet(EMU_OR, mask, x);
}
EMU_FN unsigned __reduce_and_sync(unsigned mask, unsigned x) {
    return (unsigned)emu_meet(EMU_AND, mask, x);
}
EMU_FN unsigned __reduce_add_sync(unsigned mask, unsigned x) {
    return (unsigned)emu_meet(EMU_ADD, mask, x);
}
EMU_FN unsigned __reduce_min_sync(unsigned mask, unsigned x) {
    return (unsigned)emu_meet(EMU_MIN, mask, x);
}
EMU_FN unsigned __reduce_max_sync(unsigned mask, unsigned x) {
    return (unsigned)emu_meet(EMU_MAX, mask, x);
}

/* Fibers change at meetings alone, so plain steps are atomic. */
#define EMU_ATOMIC_FN(name, value)                                                                 \
    template <class T, class U> EMU_PLAIN inline T name(T *p, U with) {                            \
        emu->access(p, sizeof *p, EMU_ATOMIC, __builtin_return_address(0));                        \
        const T old = *p, x = (T)with;                                                             \
        *p = value;                                                                                \
        return old;                                                                                \
    }
EMU_ATOMIC_FN(atomicAdd, (T)(old + x))
EMU_ATOMIC_FN(atomicSub, (T)(old - x))
EMU_ATOMIC_FN(atomicMin, old < x ? old : x)
EMU_ATOMIC_FN(atomicMax, old > x ? old : x)
EMU_ATOMIC_FN(atomicOr, old | x)
EMU_ATOMIC_FN(atomicAnd, old &x)
EMU_ATOMIC_FN(atomicExch, x)
template <class T, class U, class V> EMU_PLAIN inline T atomicCAS(T *p, U is, V then) {
    emu->access(p, sizeof *p, EMU_ATOMIC, __builtin_return_address(0));
    const T old = *p;
    if (old == (T)is) *p = (T)then;
    return old;
}

/* ---- PTX ---- */
#define PTX_IS_GIVEN
EMU_FN size_t __cvta_generic_to_shared(const void *p) {
    return (size_t)((const char *)p - __ehdr_start);
}
EMU_FN unsigned short emu_bf16(float x) {
    const unsigned b = __float_as_uint(x);
    return (unsigned short)(x != x ? 0x7fff : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}
EMU_FN unsigned short emu_f16(float x) {
    return x != x ? 0x7fff : emu_bits<unsigned short>((_Float16)x);
}
EMU_FN unsigned ptx_bf16_pair(float low, float high) {
    return emu_bf16(low) | (unsigned)emu_bf16(high) << 16;
}
EMU_FN unsigned ptx_f16_pair(float low, float high) {
    return emu_f16(low) | (unsigned)emu_f16(high) << 16;
}
EMU_FN float ptx_f16_float(unsigned short x) { return (float)emu_bits<_Float16>(x); }
EMU_FN unsigned short ptx_float_f16(float x) { return emu_f16(x); }
EMU_FN float emu_flush(float x) {
    return fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x;
}
EMU_FN float ptx_exp2(float x) { return emu_flush(exp2f(emu_flush(x))); }
EMU_FN void emu_ldmatrix(emu_op op, unsigned r[4], unsigned at) {
    emu_lane lane = {op, 0xffffffffu, 0, 32, at, 0, r, 0, {0, 0}, 0};
    emu->meet(&lane);
}
EMU_FN void ptx_ldmatrix(unsigned r[4], unsigned at) { emu_ldmatrix(EMU_LDMATRIX, r, at); }
EMU_FN void ptx_ldmatrix_turned(unsigned r[4], unsigned at) {
    emu_ldmatrix(EMU_LDMATRIX_TURNED, r, at);
}
EMU_FN void emu_mma(emu_op op, float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    emu_lane lane = {op, 0xffffffffu, 0, 32, 0, 0, 0, a, {b0, b1}, c};
    emu->meet(&lane);
}
EMU_FN void ptx_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    emu_mma(EMU_MMA_BF16, c, a, b0, b1);
}
EMU_FN void ptx_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    emu_mma(EMU_MMA_F16, c, a, b0, b1);
}
EMU_PLAIN static __attribute__((unused)) void ptx_copy(unsigned to, const void *from, int bytes) {
    emu->copy(to, from, (unsigned)bytes, __builtin_return_address(0));
}
EMU_PLAIN static __attribute__((unused)) void ptx_copy_16(unsigned to, const void *from) {
    emu->copy(to, from, 16, __builtin_return_address(0));
}
EMU_FN void ptx_copies_commit(void) { emu->commit(); }
EMU_FN void ptx_copies_wait(void) { emu->wait(0); }
EMU_FN void ptx_copies_wait_but_one(void) { emu->wait(1); }
EMU_PLAIN static __attribute__((unused)) void ptx_store(unsigned to, unsigned x, unsigned y,
                                                        unsigned z, unsigned w) {
    const unsigned words[4] = {x, y, z, w};
    emu->store(to, words, __builtin_return_address(0));
}

/* ---- entries: functions are called with the driver's array of pointers to values ---- */
template <int N, int... I> struct emu_call : emu_call<N - 1, N - 1, I...> {};
template <int... I> struct emu_call<0, I...> {
    template <class... A> EMU_PLAIN static void go(void (*f)(A...), void **v) { f(*(A *)v[I]...); }
};
template <class... A> constexpr int emu_count(void (*)(A...)) { return sizeof...(A); }
#define EMU_ENTRY(f) {#f, [](void **v) { emu_call<emu_count(f)>::go(f, v); }},
#define EMU_ENTRIES(...)                                                                           \
    static const emu_entry emu_entries[] = {__VA_ARGS__{0, 0}};                                    \
    extern "C" __attribute__((visibility("default"))) const emu_module_info emu_module;            \
    const emu_module_info emu_module = {                                                           \
        &emu_at,           __ehdr_start,   _end,       __start_emu_shared,                         \
        __stop_emu_shared, (char *)shared, emu_entries};
