/* Before backward: delta = sum(dO * O) - dLSE of every row, and the gradient of the sinks.
 *
 * A warp sums a row; a block sums the rows of one head for its sink, in an order that shapes fix. Rows that see nothing
 * have an LSE of -inf (or the sink alone) and outputs of 0. Any type of elements. */
extern "C" __global__ void __launch_bounds__(256)
    flex_delta(const __grid_constant__ flex_gpu_args a) {
    const int lane = threadIdx.x & 31;
    const px_i64 row = (px_i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= a.batch * a.q_heads * a.q_len) return;
    const px_i64 b = row / a.q_len / a.q_heads, h = row / a.q_len % a.q_heads, l = row % a.q_len;
    const element *o = view_row(&a.o, b, h, l), *d_o = view_row(&a.d_o, b, h, l);
    float sum = 0.0f;
    for (int i = lane; i < DV; i += 32)
        sum = __fmaf_rn(element_float(o[i]), element_float(d_o[i]), sum);
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(ALL, sum, by);
    if (lane == 0) a.delta[row] = sum - (a.d_lse ? a.d_lse[row] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(256)
    flex_sinks(const __grid_constant__ flex_gpu_args a) {
    __shared__ double part[256];
    const px_i64 h = blockIdx.x;
    const float sink = a.sinks[h];
    double sum = 0.0;
    for (px_i64 i = threadIdx.x; i < a.batch * a.q_len; i += 256) {
        const px_i64 row = (i / a.q_len * a.q_heads + h) * a.q_len + i % a.q_len;
        if (a.lse[row] > -INFINITE)
            sum -= exp((double)sink - (double)a.lse[row]) * (double)a.delta[row];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int by = 128; by; by /= 2) {
        if (threadIdx.x < by) part[threadIdx.x] += part[threadIdx.x + by];
        __syncthreads();
    }
    if (threadIdx.x == 0) a.d_sinks[h] = (float)part[0];
}
