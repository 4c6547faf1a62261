/* Plans of host tensors run on a CUDA device: rows are packed, go there, and come back, at every call.
 *
 * So whoever computes with flex on the CPU computes the same on a device, by its kernels, when it is given one: a check of
 * kernels inside a model, not a way to be fast. Kernels come from the cache, device memory is taken and given back, backward
 * runs forward again for what it needs. Programs that live on a device keep their tensors there (flex_cuda.h). */
#include "flex/flex_cuda_host.h"
#include "flex/flex_private.h"
#include <string.h>

typedef struct job {
    const flex_plan *p;
    flex_io *io, there; /* the caller's, and contiguous tensors */
    arena *a;
} job;

static int64_t heads_of(const flex_problem *q, int queries) {
    return queries ? q->q_heads : q->kv_heads;
}
static int64_t rows_of(const flex_problem *q, int queries) {
    return queries ? q->q_len : q->kv_len;
}

/* A contiguous copy of a view, [B, H, L, dim]. */
static err pack(const job *j, const flex_view *v, int queries, int64_t dim, flex_view *out) {
    const flex_problem *q = &j->p->p;
    const int64_t heads = heads_of(q, queries), rows = rows_of(q, queries);
    const size_t row = (size_t)dim * dtype_size(v->type);
    char *to;
    TRY(arena_alloc_raw(j->a, (size_t)(q->batch * heads * rows), row, &to));
    *out = (flex_view){v->type, to, heads * rows * dim, rows * dim, dim};
    for (int64_t i = 0; i < q->batch * heads * rows; i++, to += row)
        memcpy(to, flex__at(v, i / rows / heads, i / rows % heads, i % rows), row);
    return ERR_OK;
}

static err room(const job *j, int queries, int64_t dim, flex_out *out) {
    const flex_problem *q = &j->p->p;
    const int64_t heads = heads_of(q, queries), rows = rows_of(q, queries);
    out->sb = heads * rows * dim, out->sh = rows * dim, out->sl = dim;
    return arena_alloc(j->a, (size_t)(q->batch * out->sb), sizeof *out->data, &out->data);
}

static void unpack(const job *j, const flex_out *from, int queries, int64_t dim,
                   const flex_out *to) {
    const flex_problem *q = &j->p->p;
    const int64_t heads = heads_of(q, queries), rows = rows_of(q, queries);
    for (int64_t i = 0; i < q->batch * heads * rows; i++)
        memcpy(flex__out_at(to, i / rows / heads, i / rows % heads, i % rows), from->data + i * dim,
               (size_t)dim * sizeof *from->data);
}

static err prepare(job *j, int backward) {
    const flex_problem *q = &j->p->p;
    flex_io *t = &j->there;
    const flex_io *io = j->io;
    TRY(pack(j, &io->q, 1, q->dim, &t->q));
    TRY(pack(j, &io->k, 0, q->dim, &t->k));
    TRY(pack(j, &io->v, 0, q->v_dim, &t->v));
    TRY(room(j, 1, q->v_dim, &t->o));
    TRY(arena_alloc(j->a, (size_t)(q->batch * q->q_heads * q->q_len), sizeof *t->lse, &t->lse));
    t->left = io->left;
    if (!backward) return ERR_OK;
    TRY(pack(j, &io->d_o, 1, q->v_dim, &t->d_o));
    TRY(room(j, 1, q->dim, &t->dq));
    TRY(room(j, 0, q->dim, &t->dk));
    TRY(room(j, 0, q->v_dim, &t->dv));
    t->d_lse = io->d_lse, t->d_sinks = io->d_sinks;
    memcpy(t->d_capture, io->d_capture, sizeof t->d_capture);
    return ERR_OK;
}

static void finish(job *j, int backward) {
    const flex_problem *q = &j->p->p;
    const size_t rows = (size_t)(q->batch * q->q_heads * q->q_len);
    flex_io *io = j->io;
    memcpy(io->left_cell, j->there.left_cell, sizeof io->left_cell);
    if (backward) {
        unpack(j, &j->there.dq, 1, q->dim, &io->dq);
        unpack(j, &j->there.dk, 0, q->dim, &io->dk);
        unpack(j, &j->there.dv, 0, q->v_dim, &io->dv);
    } else {
        unpack(j, &j->there.o, 1, q->v_dim, &io->o);
        if (io->lse) memcpy(io->lse, j->there.lse, rows * sizeof *io->lse);
    }
}

static err run(job *j, dev *d, int backward) {
    flex_problem q = j->p->p;
    flex_cuda_host *h;
    if (!q.blocks) q.tile_q = q.tile_kv = 0; /* kernels have their own */
    TRY(prepare(j, backward));
    TRY(flex_cuda_host_open(&h, d, &q, &j->there, backward, j->a));
    err e = flex_cuda_host_forward(h);
    if (!e && backward) e = flex_cuda_host_backward(h);
    flex_cuda_host_close(h);
    if (!e) finish(j, backward);
    return e;
}

err flex__on_device(const flex_plan *p, dev *d, flex_io *io, int backward) {
    job j = {.p = p, .io = io};
    TRY(flex__check_io(&p->p, io, backward));
    TRY(arena_create(&j.a, "attention on a device", 0));
    err e = run(&j, d, backward);
    arena_destroy(j.a);
    return e;
}
