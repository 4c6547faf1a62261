/* Instructions that C has no words for, one function each, and nothing else.
 *
 * Whoever compiles kernels for something that has no PTX defines PTX_IS_GIVEN and brings functions of these names: the
 * tests do (tests/emu), to run kernels on a CPU. Shared memory is named by its 32-bit address. */
#ifndef PTX_IS_GIVEN
/* Two 16-bit floats side by side, rounded to nearest even. */
PX_FN unsigned ptx_bf16_pair(float low, float high) {
    unsigned out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
PX_FN unsigned ptx_f16_pair(float low, float high) {
    unsigned out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
PX_FN float ptx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four matrices of 8 x 8; lanes 8m .. 8m + 7 bring the addresses of the rows of matrix m. */
PX_FN void ptx_ldmatrix(unsigned r[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
PX_FN void ptx_ldmatrix_turned(unsigned r[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}
/* c += a b: 16 x 8 and 16 x 16 and 16 x 8. */
PX_FN void ptx_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
PX_FN void ptx_mma_f16(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes into shared memory while the thread goes on; with `bytes`, 0 or 16, the rest are zeros. */
PX_FN void ptx_copy_16(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
PX_FN void ptx_copy(unsigned to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
PX_FN void ptx_copies_commit(void) { asm volatile("cp.async.commit_group;"); }
PX_FN void ptx_copies_wait(void) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
PX_FN void ptx_copies_wait_but_one(void) { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
PX_FN void ptx_store(unsigned to, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
#endif
