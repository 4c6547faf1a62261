/* Launches of paged decode attention: see paged_cuda.h.
 *
 * Grids follow the bounds of the shape; blocks beyond a sequence's rows or keys find nothing to do. Splits start at
 * multiples of a fixed length, so what a row computes does not depend on the bounds. */
#include "flex/paged_cuda.h"
#include "expr/expr_cuda.h"
#include "flex/flex_cuda_private.h"
#include "flex/paged.h"
#include <stdio.h>

/* Blocks that share the rows of a split. In fp32 they do so from the second step on, since they only compute; on tensor cores
 * each of them reads all keys, so one makes some steps first. */
enum { MOST_PARTS = 4, MMA_STEPS = 4 };

struct paged_cuda {
    paged_cuda_shape shape;
    int splits, extra_splits;
    size_t part; /* bytes of partial outputs */
    int resident;
    unsigned shared; /* bytes of a split's block */
    module_function *split, *join;
};

static err check(const paged_cuda_shape *s) {
    if (s->kv_heads < 1 || s->q_heads < 1 || s->q_heads % s->kv_heads)
        return err_set(ERR_SHAPE,
                       "paged attention: %lld query heads cannot share %lld key/value heads evenly",
                       (long long)s->q_heads, (long long)s->kv_heads);
    if (s->dim < 8 || s->dim > 256 || s->dim % 8)
        return err_set(
            ERR_SHAPE,
            "paged attention: head dimension is %lld; it must be a multiple of 8 from 8 to 256",
            (long long)s->dim);
    if (s->type != DT_BF16 && s->type != DT_F16 && s->type != DT_F32)
        return err_set(ERR_SHAPE, "paged attention: keys are %s; BF16, F16 and F32 are supported",
                       dtype_name(s->type));
    if (s->seqs < 1 || s->rows < 1 || s->seq_rows < 1 || s->keys < 0 || s->extra < 0 ||
        s->keys + s->extra > INT64_C(1) << 38 || s->seqs > 65535)
        return err_set(
            ERR_RANGE,
            "paged attention: %lld sequences with %lld rows and %lld + %lld keys are out "
            "of range; one call takes 1 to 65535 sequences",
            (long long)s->seqs, (long long)s->rows, (long long)s->keys, (long long)s->extra);
    if (s->kv_heads > 16383 || s->rows > INT32_MAX / s->q_heads)
        return err_set(
            ERR_RANGE,
            "paged attention: %lld rows of %lld query heads on %lld key/value heads are "
            "out of range; one call takes up to 16383 key/value heads, and 2^31 - 1 rows "
            "times query heads",
            (long long)s->rows, (long long)s->q_heads, (long long)s->kv_heads);
    return ERR_OK;
}

err paged_cuda_visit(dtype type, int64_t dim, kernel_visit visit, void *ctx) {
    char name[96];
    str text = {0};
    snprintf(name, sizeof name, "paged attention, %s, head size %lld", dtype_name(type),
             (long long)dim);
    err e = flex_kernels__put_paged(type, dim, &text);
    const kernel_text source = {type == DT_F32 ? "paged_plain.cu" : "paged_mma.cu", text.s};
    const kernel_spec spec = {.name = name, .source = &source};
    if (!e) e = visit(ctx, &spec);
    str_free(&text);
    return e;
}

typedef struct loading {
    dev *d;
    module *m;
} loading;

static err load(void *ctx, const kernel_spec *spec) {
    loading *l = ctx;
    return module_get(&l->m, l->d, spec);
}

/* Shared memory of paged_mma.cu: queries and in their place weights, then keys and values, or either in one place. */
static size_t split_bytes(int64_t dim, int resident) {
    const size_t stride = (size_t)(dim + 63) / 64 * 64, keys = PAGED_GPU_MMA_SPLIT,
                 first = stride > 2 * keys ? stride : 2 * keys;
    return PAGED_GPU_MMA_ROWS * first * 2 + (size_t)(resident ? 2 : 1) * keys * stride * 2;
}

err paged_cuda_create(paged_cuda **out, dev *d, const paged_cuda_shape *shape, arena *a) {
    paged_cuda *p;
    loading l = {d, NULL};
    TRY(check(shape));
    TRY(arena_alloc(a, 1, sizeof *p, &p));
    p->shape = *shape;
    const int64_t split = shape->type == DT_F32 ? PAGED_GPU_PLAIN_SPLIT : PAGED_GPU_MMA_SPLIT;
    p->splits = (int)((shape->keys + split - 1) / split);
    p->extra_splits = (int)((shape->extra + split - 1) / split);
    p->part = (size_t)(shape->rows * shape->q_heads * (p->splits + p->extra_splits) * shape->dim) *
              sizeof(float);
    TRY(paged_cuda_visit(shape->type, shape->dim, load, &l));
    if (shape->type != DT_F32) {
        const size_t most = (size_t)dev_cuda_info(d)->shared_block;
        p->resident = split_bytes(shape->dim, 1) <= most;
        p->shared = (unsigned)split_bytes(shape->dim, p->resident);
    }
    TRY(module_get_function(&p->split, l.m, "paged_split", p->shared));
    TRY(module_get_function(&p->join, l.m, "paged_join", 0));
    *out = p;
    return ERR_OK;
}

size_t paged_cuda_workspace(const paged_cuda *p) {
    return p->part + (size_t)(p->shape.rows * p->shape.q_heads * (p->splits + p->extra_splits)) * 8;
}

err paged_cuda_run(const paged_cuda *p, dev_stream *s, dev_address seqs, int64_t n,
                   dev_address k_pool, dev_address v_pool, dev_address workspace) {
    const paged_cuda_shape *x = &p->shape;
    if (n < 0 || n > x->seqs)
        return err_set(ERR_RANGE,
                       "paged attention: %lld sequences are given, and %lld were planned",
                       (long long)n, (long long)x->seqs);
    if (n == 0) return ERR_OK;
    paged_gpu_args g = {.seqs = (void *)(uintptr_t)seqs,
                        .k_pool = (void *)(uintptr_t)k_pool,
                        .v_pool = (void *)(uintptr_t)v_pool,
                        .q_heads = (int)x->q_heads,
                        .kv_heads = (int)x->kv_heads,
                        .scale = x->scale,
                        .splits = p->splits,
                        .extra_splits = p->extra_splits,
                        .resident = p->resident,
                        .part = (void *)(uintptr_t)workspace,
                        .stats = (void *)(uintptr_t)(workspace + p->part)};
    void *const args[] = {&g};
    const unsigned splits = (unsigned)(p->splits + p->extra_splits), rows = (unsigned)x->seq_rows;
    const int64_t pairs = x->seq_rows * (x->q_heads / x->kv_heads),
                  share = x->type == DT_F32 ? PAGED_GPU_PLAIN_ROWS : PAGED_GPU_MMA_ROWS * MMA_STEPS,
                  steps = (pairs + share - 1) / share;
    const unsigned parts = steps < MOST_PARTS ? (unsigned)steps : MOST_PARTS;
    const module_grid split = {{splits, (unsigned)n, (unsigned)x->kv_heads * parts},
                               {32 * PAGED_GPU_WARPS},
                               p->shared},
                      join = {{(rows * (unsigned)x->q_heads + 3) / 4, (unsigned)n}, {128}, 0};
    if (splits) TRY(module_launch(p->split, s, &split, args));
    return module_launch(p->join, s, &join, args);
}
