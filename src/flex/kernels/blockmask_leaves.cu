/* Leaves of a captured array: extremes and classes of values of each `block` elements, for interval analysis on the host.
 *
 * A warp is a leaf. Least, largest and the union of bits are the same in any order, so equal arrays give equal leaves. */
PX_FN px_i64 integer_at(const blockmask_gpu_leaves *a, px_i64 at) {
    switch (a->type) {
    case BLOCKMASK_I64: return px_load_i64(&a->array, at);
    case BLOCKMASK_I32: return px_load_i32(&a->array, at);
    case BLOCKMASK_I16: return px_load_i16(&a->array, at);
    case BLOCKMASK_I8: return px_load_i8(&a->array, at);
    case BLOCKMASK_U8: return px_load_u8(&a->array, at);
    default: return px_load_bool(&a->array, at);
    }
}

PX_FN float float_at(const blockmask_gpu_leaves *a, px_i64 at) {
    switch (a->type) {
    case BLOCKMASK_F32: return px_load_f32(&a->array, at);
    case BLOCKMASK_F64: return px_load_f64(&a->array, at);
    case BLOCKMASK_BF16: return px_load_bf16(&a->array, at);
    default: return px_load_f16(&a->array, at);
    }
}

PX_FN void leaf_of_integers(const blockmask_gpu_leaves *a, px_i64 from, px_i64 to, int lane,
                            blockmask_gpu_leaf *out) {
    px_i64 lo = 0x7fffffffffffffffLL, hi = -lo - 1;
    unsigned long long set = 0;
    for (px_i64 at = from + lane; at < to; at += 32) {
        px_i64 x = integer_at(a, at);
        if (a->condition) x = x != 0;
        if (x < lo) lo = x;
        if (x > hi) hi = x;
        set |= 1ULL << ((unsigned long long)x * 0x9e3779b97f4a7c15ULL >> 58);
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        const px_i64 other_lo = __shfl_xor_sync(0xffffffffu, lo, far),
                     other_hi = __shfl_xor_sync(0xffffffffu, hi, far);
        if (other_lo < lo) lo = other_lo;
        if (other_hi > hi) hi = other_hi;
        set |= __shfl_xor_sync(0xffffffffu, set, far);
    }
    out->lo = lo, out->hi = hi, out->set = set;
}

PX_FN void leaf_of_floats(const blockmask_gpu_leaves *a, px_i64 from, px_i64 to, int lane,
                          blockmask_gpu_leaf *out) {
    const float most = px_float_of_bits(0x7f800000u);
    float lo = most, hi = -most;
    int nan = 0;
    for (px_i64 at = from + lane; at < to; at += 32) {
        const float x = float_at(a, at);
        nan |= x != x;
        if (x < lo) lo = x;
        if (x > hi) hi = x;
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        const float other_lo = __shfl_xor_sync(0xffffffffu, lo, far),
                    other_hi = __shfl_xor_sync(0xffffffffu, hi, far);
        if (other_lo < lo) lo = other_lo;
        if (other_hi > hi) hi = other_hi;
        nan |= __shfl_xor_sync(0xffffffffu, nan, far);
    }
    if (nan) lo = -most, hi = most;
    out->lo = (px_i64)(unsigned)__float_as_uint(lo);
    out->hi = (px_i64)(unsigned)__float_as_uint(hi);
    out->set = 0;
}

extern "C" __global__ void __launch_bounds__(256)
    blockmask_leaves(const __grid_constant__ blockmask_gpu_leaves a) {
    const int lane = threadIdx.x & 31;
    const px_i64 leaf = (px_i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (leaf >= a.leaves) return;
    const px_i64 from = leaf * a.block;
    const px_i64 to = from + a.block < a.elements ? from + a.block : a.elements;
    blockmask_gpu_leaf out;
    if (a.type < BLOCKMASK_FLOATS)
        leaf_of_integers(&a, from, to, lane, &out);
    else
        leaf_of_floats(&a, from, to, lane, &out);
    if (lane == 0) a.out[leaf] = out;
}
