/* Filling and converting arrays on a device: what every part of the program may need.
 *
 * One thread per element in strides of the grid, 64-bit offsets. Conversions are spelled in PTX or in integers, so that
 * no header of the machine is needed; bf16 rounds to nearest even and keeps NaN. */
typedef unsigned short bits16;
typedef unsigned int bits32;
typedef long long index;

static __device__ index first() { return (index)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ index stride() { return (index)gridDim.x * blockDim.x; }

static __device__ bits16 round_bf16(float x) {
    bits32 b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (bits16)(b >> 16 | 0x40u);
    return (bits16)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

#ifndef PTX_IS_GIVEN /* by tests, for a CPU */
static __device__ float ptx_f16_float(bits16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

static __device__ bits16 ptx_float_f16(float x) {
    bits16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#endif

/* to[0..n) = value */
extern "C" __global__ void basic_fill_f32(float *to, float value, index n) {
    for (index i = first(); i < n; i += stride()) to[i] = value;
}

extern "C" __global__ void basic_f32_to_bf16(bits16 *to, const float *from, index n) {
    for (index i = first(); i < n; i += stride()) to[i] = round_bf16(from[i]);
}

extern "C" __global__ void basic_bf16_to_f32(float *to, const bits16 *from, index n) {
    for (index i = first(); i < n; i += stride()) to[i] = __uint_as_float((bits32)from[i] << 16);
}

extern "C" __global__ void basic_f32_to_f16(bits16 *to, const float *from, index n) {
    for (index i = first(); i < n; i += stride()) to[i] = ptx_float_f16(from[i]);
}

extern "C" __global__ void basic_f16_to_f32(float *to, const bits16 *from, index n) {
    for (index i = first(); i < n; i += stride()) to[i] = ptx_f16_float(from[i]);
}
