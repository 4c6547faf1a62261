/* Attention on a CUDA device for tensors in host memory: see flex_cuda_host.h.
 *
 * Every array has one row in a table (place): its bytes are summed first, then the arena is taken and the same table
 * hands out addresses. Copies wait, since host memory is not pinned. */
#include "flex/flex_cuda_host.h"
#include "core/dtype.h"
#include <string.h>

enum { PLACES = 16 + 3 * EXPR_MAX_CAPTURES };

typedef struct placed {
    dev_address *at;
    size_t bytes;
    const void *from; /* copied in; NULL: filled with NaN */
} placed;

struct flex_cuda_host {
    dev *d;
    flex_problem p;
    flex_io *io;
    int backward, n;
    placed table[PLACES];
    arena *a;
    flex_cuda_plan *plan;
    flex_cuda_code *code;
    flex_cuda_io gpu;
    dev_stream *s;
    dev_arena *memory;
    void *staging; /* host bytes of the largest tensor, in the problem's type */
};

static int64_t elements(const flex_cuda_host *h, int queries, int64_t dim) {
    const flex_problem *p = &h->p;
    return p->batch * (queries ? p->q_heads * p->q_len : p->kv_heads * p->kv_len) * dim;
}

static void place(flex_cuda_host *h, dev_address *at, size_t bytes, const void *from) {
    h->table[h->n++] = (placed){at, bytes + 16, from};
}

static void place_tensor(flex_cuda_host *h, flex_cuda_view *v, int queries, int64_t dim,
                         const void *from) {
    const flex_problem *p = &h->p;
    const int64_t heads = queries ? p->q_heads : p->kv_heads, rows = queries ? p->q_len : p->kv_len;
    *v = (flex_cuda_view){0, heads * rows * dim, rows * dim, dim};
    place(h, &v->data, (size_t)elements(h, queries, dim) * dtype_size(p->type), from);
}

static size_t capture_bytes(const expr_decl *d, const expr_value *v, size_t size) {
    return (size_t)expr_value_count(v, d->ndim) * size;
}

static void place_arrays(flex_cuda_host *h, const expr *e, const expr_env *env,
                         flex_cuda_address *at) {
    for (int i = 0; e && i < expr_capture_count(e); i++) {
        const expr_value *v = &env->values[i];
        const int ndim = expr_capture(e, i)->ndim;
        if (ndim) place(h, &at[i], expr_value_bytes(v, ndim), v->data);
    }
}

static void fill_table(flex_cuda_host *h) {
    const flex_problem *p = &h->p;
    flex_cuda_io *g = &h->gpu;
    const size_t rows = (size_t)elements(h, 1, 1) * sizeof(float);
    size_t bytes;
    place_tensor(h, &g->q, 1, p->dim, h->io->q.data);
    place_tensor(h, &g->k, 0, p->dim, h->io->k.data);
    place_tensor(h, &g->v, 0, p->v_dim, h->io->v.data);
    place_tensor(h, &g->o, 1, p->v_dim, NULL);
    place(h, &g->lse, rows, NULL);
    if (p->sinks) place(h, &g->sinks, (size_t)p->q_heads * sizeof(float), p->sinks);
    place_arrays(h, p->mask, p->env, g->mask_arrays);
    place_arrays(h, p->score, p->score_env, g->score_arrays);
    const void *tables = flex_cuda_tables(h->plan, &bytes);
    place(h, &g->tables, bytes, tables);
    place(h, &g->workspace, flex_cuda_workspace(h->plan), NULL);
    if (!h->backward) return;
    place_tensor(h, &g->d_o, 1, p->v_dim, NULL); /* converted and copied in later */
    place_tensor(h, &g->dq, 1, p->dim, NULL);
    place_tensor(h, &g->dk, 0, p->dim, NULL);
    place_tensor(h, &g->dv, 0, p->v_dim, NULL);
    if (h->io->d_lse) place(h, &g->d_lse, rows, h->io->d_lse);
    if (p->sinks) place(h, &g->d_sinks, (size_t)p->q_heads * sizeof(float), NULL);
    for (int i = 0; p->score && i < expr_capture_count(p->score); i++)
        if (p->score_grads >> i & 1)
            place(h, &g->d_capture[i],
                  capture_bytes(expr_capture(p->score, i), &p->score_env->values[i], sizeof(float)),
                  NULL);
}

/* Host bytes in the problem's type for the largest tensor that is converted. */
static err take_staging(flex_cuda_host *h) {
    const int64_t dim = h->p.dim > h->p.v_dim ? h->p.dim : h->p.v_dim;
    int64_t n = elements(h, 1, dim), keys = elements(h, 0, dim);
    if (keys > n) n = keys;
    return arena_alloc_raw(h->a, (size_t)n, dtype_size(h->p.type), &h->staging);
}

static err copy_inputs(flex_cuda_host *h) {
    for (int i = 0; i < h->n; i++) {
        const placed *x = &h->table[i];
        TRY(dev_arena_alloc(h->memory, x->bytes, x->at));
        if (x->from)
            TRY(dev_copy_in(h->s, *x->at, x->from, x->bytes - 16));
        else
            TRY(dev_set_bytes(h->s, *x->at, 0xff, x->bytes));
    }
    if (h->backward) {
        const size_t n = (size_t)elements(h, 1, h->p.v_dim);
        dtype_from_f32(h->p.type, h->io->d_o.data, h->staging, n);
        TRY(dev_copy_in(h->s, h->gpu.d_o.data, h->staging, n * dtype_size(h->p.type)));
    }
    return dev_stream_wait(h->s);
}

static err prepare(flex_cuda_host *h) {
    size_t all = 0;
    TRY(flex_cuda_plan_create(&h->plan, &h->p, (size_t)dev_cuda_info(h->d)->shared_block, h->a));
    TRY(flex_cuda_load(&h->code, h->plan, h->d, h->backward, h->a));
    fill_table(h);
    for (int i = 0; i < h->n; i++) all += (h->table[i].bytes + 255) & ~(size_t)255;
    TRY(dev_stream_create(&h->s, h->d));
    TRY(dev_arena_create(&h->memory, h->d, "tensors and workspace of attention", all));
    TRY(take_staging(h));
    return copy_inputs(h);
}

err flex_cuda_host_open(flex_cuda_host **out, dev *d, const flex_problem *p, flex_io *io,
                        int backward, arena *a) {
    flex_cuda_host *h;
    *out = NULL;
    TRY(arena_alloc(a, 1, sizeof *h, &h));
    h->d = d, h->p = *p, h->io = io, h->backward = backward, h->a = a;
    err e = prepare(h);
    if (e)
        flex_cuda_host_close(h);
    else
        *out = h;
    return e;
}

void flex_cuda_host_close(flex_cuda_host *h) {
    if (!h) return;
    dev_arena_destroy(h->memory);
    dev_stream_destroy(h->s);
}

/* ---- runs ---- */

static err take_back(flex_cuda_host *h, float *to, const flex_cuda_view *v, int64_t n) {
    TRY(dev_copy_out(h->s, h->staging, v->data, (size_t)n * dtype_size(h->p.type)));
    TRY(dev_stream_wait(h->s));
    dtype_to_f32(h->p.type, h->staging, to, (size_t)n);
    return ERR_OK;
}

err flex_cuda_host_forward(flex_cuda_host *h) {
    flex_cuda_steps steps;
    uint64_t words[FLEX_CUDA_WORDS];
    int left = 0;
    int64_t cell[4] = {0};
    TRY(flex_cuda_forward(h->plan, &h->gpu, h->a, &steps));
    TRY(flex_cuda_run(h->code, h->s, &steps));
    TRY(dev_copy_out(h->s, words, h->gpu.workspace, sizeof words));
    TRY(dev_copy_out(h->s, h->io->lse, h->gpu.lse, (size_t)elements(h, 1, 1) * sizeof(float)));
    TRY(take_back(h, h->io->o.data, &h->gpu.o, elements(h, 1, h->p.v_dim)));
    TRY(flex_cuda_judge(h->plan, words, &left, cell));
    if (left && h->io->left) {
        *h->io->left = 1;
        memcpy(h->io->left_cell, cell, sizeof cell);
    }
    return ERR_OK;
}

err flex_cuda_host_backward(flex_cuda_host *h) {
    const flex_problem *p = &h->p;
    flex_cuda_steps steps;
    TRY(flex_cuda_backward(h->plan, &h->gpu, h->a, &steps));
    TRY(flex_cuda_run(h->code, h->s, &steps));
    TRY(take_back(h, h->io->dq.data, &h->gpu.dq, elements(h, 1, p->dim)));
    TRY(take_back(h, h->io->dk.data, &h->gpu.dk, elements(h, 0, p->dim)));
    TRY(take_back(h, h->io->dv.data, &h->gpu.dv, elements(h, 0, p->v_dim)));
    if (p->sinks)
        TRY(dev_copy_out(h->s, h->io->d_sinks, h->gpu.d_sinks, (size_t)p->q_heads * sizeof(float)));
    for (int i = 0; p->score && i < expr_capture_count(p->score); i++) {
        if (!(p->score_grads >> i & 1)) continue;
        TRY(dev_copy_out(
            h->s, h->io->d_capture[i], h->gpu.d_capture[i],
            capture_bytes(expr_capture(p->score, i), &p->score_env->values[i], sizeof(float))));
    }
    return dev_stream_wait(h->s);
}

err flex_cuda_host_explain(const flex_cuda_host *h, str *out) {
    const flex_problem *p = &h->p;
    const cuda_device *info = dev_cuda_info(h->d);
    kernel_cache_stats s;
    char a[24], b[24], c[24];
    kernel_cache_get_stats(dev_cuda_cache(h->d), &s);
    TRY(str_printf(out, "device: cuda:%d, %s, %s\n", dev_cuda_index(h->d), info->name,
                   dev_arch(h->d)));
    TRY(str_printf(out, "kernel: %s, since tensors are %s; outputs are %s\n",
                   p->type == DT_F32 ? "plain, sums in fp32"
                                     : "tensor cores (mma.sync), sums in fp32",
                   dtype_name(p->type), dtype_name(p->type)));
    TRY(blockmask_explain(flex_cuda_plan_mask(h->plan), out));
    TRY(str_printf(out, "device memory: %s for tensors, mask and workspace (%s)\n",
                   str_bytes((double)dev_arena_cap(h->memory), a),
                   str_bytes((double)flex_cuda_workspace(h->plan), b)));
    TRY(str_printf(out, "a dense fp32 score matrix would take %s\n",
                   str_bytes(4.0 * (double)p->batch * (double)p->q_heads * (double)p->q_len *
                                 (double)p->kv_len,
                             c)));
    return str_printf(out, "compiles: %d (%d more kernels came from the cache)\n",
                      s.compiled + s.rebuilt, s.adopted);
}
