/* Matrix pieces: 16-bit tiles in shared memory, fragments, products of 16 x 8 x 16, copies that run beside.
 *
 * A tile's row takes a multiple of 64 elements; the 16-byte chunk c of row r lies at c ^ (r & 7), so that ldmatrix meets
 * every bank once. Thread lane holds of a 16 x 8 result rows lane/4 and lane/4 + 8, columns lane%4*2 and the next. */
#define PAD16(n) (((n) + 15) / 16 * 16)
#define STRIDE(n) (((n) + 63) / 64 * 64)

PX_FN unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
PX_FN unsigned tile_at(unsigned tile, int stride, int row, int chunk) {
    return tile + (unsigned)((row * stride + ((chunk ^ (row & 7)) << 3)) * 2);
}
/* 16 rows x 16 columns of the left operand. */
PX_FN void load_left(unsigned r[4], unsigned tile, int stride, int row, int k, int lane) {
    ptx_ldmatrix(r, tile_at(tile, stride, row + (lane & 15), 2 * k + (lane >> 4)));
}
/* The right operand out of rows of its columns: 16 rows (columns of the result) x 16. */
PX_FN void load_right(unsigned r[4], unsigned tile, int stride, int row, int k, int lane) {
    ptx_ldmatrix(r, tile_at(tile, stride, row + (lane >> 4) * 8 + (lane & 7), 2 * k + (lane >> 3 & 1)));
}
/* The right operand out of rows of its rows: 16 rows x 16 columns from chunk c. */
PX_FN void load_right_t(unsigned r[4], unsigned tile, int stride, int row, int c, int lane) {
    ptx_ldmatrix_turned(r, tile_at(tile, stride, row + (lane >> 3 & 1) * 8 + (lane & 7), c + (lane >> 4)));
}
PX_FN void multiply(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
#if ELEMENT == 1
    ptx_mma_bf16(c, a, b0, b1);
#else
    ptx_mma_f16(c, a, b0, b1);
#endif
}

PX_FN void store_zeros(unsigned at) { ptx_store(at, 0, 0, 0, 0); }
/* A chunk of eight elements that may lie anywhere. */
PX_FN void copy_chunk_slowly(unsigned to, const element *from) {
    unsigned x[4];
    for (int i = 0; i < 4; i++) x[i] = from[2 * i] | (unsigned)from[2 * i + 1] << 16;
    ptx_store(to, x[0], x[1], x[2], x[3]);
}
PX_FN void copy_chunk(unsigned to, const element *from, int there) { ptx_copy(to, from, there ? 16 : 0); }
/* Rows at.. of (b, h) into a tile: rows x PAD16(dim), zeros past the length and past dim. Where threads divide into whole
 * groups of eight rows, a thread keeps its chunk and its place in the swizzle, and only adds. */
PX_FN void load_tile(unsigned tile, const flex_gpu_view *v, px_i64 b, px_i64 h, px_i64 at, px_i64 length, int rows, int dim, int threads) {
    const int chunks = PAD16(dim) / 8, stride = STRIDE(dim), step = threads / chunks;
    const element *base = view_row(v, b, h, at);
    const px_i64 sl = v->sl;
    const int last = length - at < rows ? (int)(length - at) : rows;
    if (threads % chunks == 0 && step % 8 == 0 && rows % step == 0 && dim % 16 == 0 && v->whole) {
        const int row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
        const unsigned to = tile_at(tile, stride, row, chunk);
        const element *from = base + row * sl + chunk * 8;
        const px_i64 further = sl * step;
        if (last == rows) {
#pragma unroll
            for (int i = 0; i < rows / step; i++) {
                ptx_copy_16(to + i * step * stride * 2, from);
                from += further;
            }
        } else {
#pragma unroll
            for (int i = 0; i < rows / step; i++) {
                const int there = row + i * step < last;
                copy_chunk(to + i * step * stride * 2, there ? from : base, there);
                from += further;
            }
        }
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * chunks; i += threads) {
        const int row = i / chunks, chunk = i % chunks, there = row < last && chunk * 8 < dim;
        const unsigned to = tile_at(tile, stride, row, chunk);
        const element *from = base + (there ? row * sl + chunk * 8 : 0);
        if (v->whole)
            copy_chunk(to, from, there);
        else if (there)
            copy_chunk_slowly(to, from);
        else
            store_zeros(to);
    }
}

/* Rows of a tile whose bit is not set become zeros: nothing of them may be multiplied. */
PX_FN void clear_rows(unsigned tile, int dim, int rows, const unsigned *seen, int threads) {
    const int chunks = PAD16(dim) / 8, stride = STRIDE(dim);
    for (int i = threadIdx.x; i < rows * chunks; i += threads) {
        int row = i / chunks;
        if (!(seen[row >> 5] >> (row & 31) & 1)) store_zeros(tile_at(tile, stride, row, i % chunks));
    }
}

/* Two neighbouring results of row l. */
PX_FN void store_pair(const flex_gpu_view *v, element *row, int column, float x, float y) {
    unsigned pair = element_pair(x, y);
    if (v->whole) {
        *(unsigned *)(row + column) = pair;
    } else {
        row[column] = (element)pair;
        row[column + 1] = (element)(pair >> 16);
    }
}
