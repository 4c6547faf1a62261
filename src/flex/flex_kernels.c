/* Kernel texts: the device files of this folder, embedded, and how a text is put together from them.
 *
 * A text is one string: what the kernel is made for as #define lines, the language's operations, the arguments, the
 * hooks of mask and score, the shared pieces, and the kernel. Cells are included in both widths. */
#include "flex/flex_cuda_private.h"
#include <string.h>

#define DEVICE_TEXT(symbol, path)                                                                  \
    __asm__(".pushsection .rodata\n" #symbol ":\n\t.incbin \"src/flex/kernels/" path               \
            "\"\n\t.byte 0\n\t.popsection\n");                                                     \
    extern const char symbol[] __attribute__((visibility("hidden")))

DEVICE_TEXT(flex_kernels__args, "flex_args.h");
DEVICE_TEXT(flex_kernels__ptx, "flex_ptx.cuh");
DEVICE_TEXT(flex_kernels__common, "flex_common.cuh");
DEVICE_TEXT(flex_kernels__mma, "flex_mma.cuh");
DEVICE_TEXT(flex_kernels__cells, "flex_cells.cuh");
DEVICE_TEXT(flex_kernels__tile, "flex_tile.cuh");
DEVICE_TEXT(flex_kernels__backward, "flex_backward.cuh");
DEVICE_TEXT(flex_kernels__plain, "flex_plain.cuh");
DEVICE_TEXT(flex_kernels__forward_cu, "flex_forward.cu");
DEVICE_TEXT(flex_kernels__rows_cu, "flex_rows.cu");
DEVICE_TEXT(flex_kernels__dq_cu, "flex_dq.cu");
DEVICE_TEXT(flex_kernels__dkv_cu, "flex_dkv.cu");
DEVICE_TEXT(flex_kernels__plain_forward_cu, "flex_plain_forward.cu");
DEVICE_TEXT(flex_kernels__plain_backward_cu, "flex_plain_backward.cu");
DEVICE_TEXT(flex_kernels__captures_cu, "flex_captures.cu");
DEVICE_TEXT(flex_kernels__check_cu, "flex_check.cu");
DEVICE_TEXT(flex_kernels__paged_args, "paged_args.h");
DEVICE_TEXT(flex_kernels__paged_common, "paged_common.cuh");
DEVICE_TEXT(flex_kernels__paged_mma_cu, "paged_mma.cu");
DEVICE_TEXT(flex_kernels__paged_plain_cu, "paged_plain.cu");
DEVICE_TEXT(flex_kernels__blockmask_args, "blockmask_args.h");
DEVICE_TEXT(flex_kernels__blockmask_leaves_cu, "blockmask_leaves.cu");
DEVICE_TEXT(flex_kernels__blockmask_cells_cu, "blockmask_cells.cu");

static err put(str *out, const char *text) { return str_add(out, text, strlen(text)); }

static err put_define(str *out, const char *name, long long value) {
    return str_printf(out, "#define %s %lld\n", name, value);
}

static err put_cut(const flex_cuda__cut *c, str *out) {
    TRY(put_define(out, "WARPS", c->warps));
    TRY(put_define(out, "MT", c->mt));
    TRY(put_define(out, "BM", c->bm));
    TRY(put_define(out, "BN", c->bn));
    TRY(put_define(out, "STAGES", c->stages));
    TRY(put_define(out, "BLOCKS", c->blocks));
    return put_define(out, "PARTS", c->parts);
}

/* What every text starts with. */
static err put_head(const flex_cuda_plan *p, int slope, int turned, str *out) {
    const dtype type = p->p.type;
    TRY(put_define(out, "ELEMENT", type == DT_BF16 ? 1 : type == DT_F16 ? 2 : 0));
    TRY(put_define(out, "D", p->p.dim));
    TRY(put_define(out, "DV", p->p.v_dim));
    TRY(put_define(out, "HAS_MASK", p->p.mask != NULL));
    TRY(put_define(out, "HAS_SCORE", p->p.score != NULL));
    TRY(put_define(out, "HAS_SLOPE", p->p.score != NULL && slope));
    TRY(put_define(out, "TURNED", turned));
    TRY(expr_cuda_prelude(out));
    TRY(put(out, flex_kernels__args));
    TRY(put(out, flex_kernels__ptx));
    if (p->p.mask) TRY(expr_cuda_mask(out, p->p.mask, p->mask_types));
    if (p->p.score && slope) TRY(expr_cuda_slope(out, p->grad, p->score_types));
    if (p->p.score && !slope) TRY(expr_cuda_score(out, p->p.score, p->score_types));
    return ERR_OK;
}

static err put_matrix(const flex_cuda_plan *p, const flex_cuda__cut *c, int slope, int turned,
                      str *out) {
    TRY(put_cut(c, out));
    TRY(put_head(p, slope, turned, out));
    TRY(put(out, flex_kernels__common));
    TRY(put(out, flex_kernels__mma));
    TRY(put(out, "#define W 64\n"));
    TRY(put(out, flex_kernels__cells));
    TRY(put(out, "#undef W\n#define W 32\n"));
    TRY(put(out, flex_kernels__cells));
    TRY(put(out, "#undef W\n"));
    TRY(put(out, flex_kernels__tile));
    return slope ? put(out, flex_kernels__backward) : ERR_OK;
}

static err put_plain(const flex_cuda_plan *p, int slope, str *out) {
    TRY(put_head(p, slope, 0, out));
    TRY(put(out, flex_kernels__common));
    return put(out, flex_kernels__plain);
}

err flex_cuda_put_text(const flex_cuda_plan *p, flex_cuda_text which, str *out) {
    flex_cuda_plan bare = *p;
    switch (which) {
    case FLEX_CUDA_FORWARD:
        if (p->plain) {
            TRY(put_plain(p, 0, out));
            return put(out, flex_kernels__plain_forward_cu);
        }
        TRY(put_matrix(p, &p->forward, 0, 0, out));
        return put(out, flex_kernels__forward_cu);
    case FLEX_CUDA_ROWS: /* the same for every mask and score */
        bare.p.mask = NULL, bare.p.score = NULL;
        TRY(put_head(&bare, 0, 0, out));
        TRY(put(out, flex_kernels__common));
        return put(out, flex_kernels__rows_cu);
    case FLEX_CUDA_DQ:
        if (p->plain) {
            TRY(put_plain(p, 1, out));
            return put(out, flex_kernels__plain_backward_cu);
        }
        TRY(put_matrix(p, &p->dq, 1, 0, out));
        return put(out, flex_kernels__dq_cu);
    case FLEX_CUDA_DKV:
        TRY(put_matrix(p, &p->dkv, 1, 1, out));
        return put(out, flex_kernels__dkv_cu);
    case FLEX_CUDA_CAPTURES:
        TRY(put_plain(p, 1, out));
        TRY(expr_cuda_sites(out, p->grad, p->score_types));
        return put(out, flex_kernels__captures_cu);
    default: TRY(put_plain(p, 0, out)); return put(out, flex_kernels__check_cu);
    }
}

err flex_kernels__put_paged(dtype type, int64_t dim, str *out) {
    flex_cuda_plan like = {.p = {.type = type, .dim = dim, .v_dim = dim}};
    TRY(put_head(&like, 0, 0, out));
    TRY(put(out, flex_kernels__common));
    TRY(put(out, flex_kernels__paged_args));
    TRY(put(out, flex_kernels__paged_common));
    if (type == DT_F32) return put(out, flex_kernels__paged_plain_cu);
    TRY(put(out, flex_kernels__mma));
    return put(out, flex_kernels__paged_mma_cu);
}

err flex_kernels__put_leaves(str *out) {
    TRY(expr_cuda_prelude(out));
    TRY(put(out, flex_kernels__blockmask_args));
    return put(out, flex_kernels__blockmask_leaves_cu);
}

err flex_kernels__put_cells(const expr *mask, const dtype *type, str *out) {
    TRY(expr_cuda_prelude(out));
    TRY(put(out, flex_kernels__blockmask_args));
    TRY(expr_cuda_mask(out, mask, type));
    return put(out, flex_kernels__blockmask_cells_cu);
}
