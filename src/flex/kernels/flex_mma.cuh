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
PX_FN void load_fragments(unsigned r[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
PX_FN void load_fragments_t(unsigned r[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
/* 16 rows x 16 columns of the left operand. */
PX_FN void load_left(unsigned r[4], unsigned tile, int stride, int row, int k, int lane) {
    load_fragments(r, tile_at(tile, stride, row + (lane & 15), 2 * k + (lane >> 4)));
}
/* The right operand out of rows of its columns: 16 rows (columns of the result) x 16. */
PX_FN void load_right(unsigned r[4], unsigned tile, int stride, int row, int k, int lane) {
    load_fragments(r, tile_at(tile, stride, row + (lane >> 4) * 8 + (lane & 7), 2 * k + (lane >> 3 & 1)));
}
/* The right operand out of rows of its rows: 16 rows x 16 columns from chunk c. */
PX_FN void load_right_t(unsigned r[4], unsigned tile, int stride, int row, int c, int lane) {
    load_fragments_t(r, tile_at(tile, stride, row + (lane >> 3 & 1) * 8 + (lane & 7), c + (lane >> 4)));
}
PX_FN void multiply(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
#if ELEMENT == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

PX_FN void copies_commit(void) { asm volatile("cp.async.commit_group;"); }
PX_FN void copies_wait(void) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
PX_FN void copies_wait_but_one(void) { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

PX_FN void store_zeros(unsigned at) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(at), "r"(0) : "memory");
}
/* A chunk of eight elements that may lie anywhere. */
PX_FN void copy_chunk_slowly(unsigned to, const element *from) {
    unsigned x[4];
    for (int i = 0; i < 4; i++) x[i] = from[2 * i] | (unsigned)from[2 * i + 1] << 16;
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
PX_FN void copy_chunk(unsigned to, const element *from, int there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
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
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * step * stride * 2), "l"(from) : "memory");
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
