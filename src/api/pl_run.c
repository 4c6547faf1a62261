/* Runs of the public library: strides and workspace checked, tensors handed to flex, flags handed back.
 *
 * flex takes the last stride as 1 and a workspace of the right size on trust; a caller from outside is told in a sentence.
 * Types and missing tensors are flex's own checks. Allocates nothing. */
#include "api/api_private.h"
#include <string.h>

typedef struct extents {
    int64_t batch, heads, length;
} extents;

static err check_strides(const char *what, const int64_t stride[4]) {
    if (stride[3] == 1) return ERR_OK;
    return err_set(ERR_SHAPE,
                   "attention: the last stride of %s is %lld; it must be 1 (copy the tensor, or "
                   "exchange its dimensions)",
                   what, (long long)stride[3]);
}

static err check_aligned(const char *what, const void *data, dtype type) {
    if ((unsigned)type >= DT_COUNT || (uintptr_t)data % dtype_size(type) == 0) return ERR_OK;
    return err_set(ERR_USAGE, "attention: %s is not aligned to the %zu bytes of its elements", what,
                   dtype_size(type));
}

static err view(const char *what, const pl_view *v, flex_view *out) {
    TRY(check_strides(what, v->stride));
    if ((unsigned)v->type >= DT_COUNT)
        return err_set(ERR_SHAPE, "attention: %s is of type %d, which is none", what, (int)v->type);
    *out = (flex_view){.type = (dtype)v->type,
                       .data = v->data,
                       .sb = v->stride[0],
                       .sh = v->stride[1],
                       .sl = v->stride[2]};
    return check_aligned(what, v->data, out->type);
}

/* Rows that lie on each other would be written by two threads. */
static err check_apart(const char *what, const pl_out *o, const extents *x) {
    const int64_t n[3] = {x->batch, x->heads, x->length};
    static const char *const names[] = {"batch", "heads", "length"};
    if (n[0] == 0 || n[1] == 0 || n[2] == 0) return ERR_OK;
    for (int i = 0; i < 3; i++) {
        if (o->stride[i] != 0 || n[i] < 2) continue;
        return err_set(ERR_SHAPE,
                       "attention: the stride of %s over its %s is 0 and there are %lld: rows that "
                       "are written need places of their own",
                       what, names[i], (long long)n[i]);
    }
    return ERR_OK;
}

static err result(const char *what, const pl_out *o, const extents *x, flex_out *out) {
    TRY(check_strides(what, o->stride));
    TRY(check_apart(what, o, x));
    *out = (flex_out){.data = o->data, .sb = o->stride[0], .sh = o->stride[1], .sl = o->stride[2]};
    return check_aligned(what, o->data, DT_F32);
}

static err check_workspace(const pl_io *io, size_t need, const char *direction) {
    if (need == 0) return ERR_OK;
    if (!io->workspace)
        return err_set(ERR_USAGE,
                       "attention: %s needs a workspace of %zu bytes, aligned to 64, and got none",
                       direction, need);
    if (io->workspace_bytes < need)
        return err_set(ERR_USAGE,
                       "attention: %s needs a workspace of %zu bytes on this device, and this one "
                       "has %zu",
                       direction, need, io->workspace_bytes);
    if ((uintptr_t)io->workspace % 64)
        return err_set(ERR_USAGE, "attention: the workspace is not aligned to 64 bytes");
    return ERR_OK;
}

static err check_call(const char *function, const pl_plan *plan, const pl_device *d,
                      const pl_io *io) {
    TRY(pl__need(plan, function, "the plan"));
    TRY(pl__need(d, function, "the device"));
    TRY(pl__need(io, function, "io"));
    return pl__check_size("pl_io", io->size, sizeof *io, sizeof *io);
}

static err translate(const pl_plan *plan, const pl_io *io, flex_io *out) {
    const flex_problem *p = flex_plan_problem(plan->plan);
    const extents rows = {p->batch, p->q_heads, p->q_len};
    TRY(view("q", &io->q, &out->q));
    TRY(view("k", &io->k, &out->k));
    TRY(view("v", &io->v, &out->v));
    out->lse = io->lse;
    out->workspace = io->workspace;
    return result("o", &io->o, &rows, &out->o);
}

/* The gradients' places, by name; those that are wanted, each once. */
static err translate_gradients(const flex_problem *p, const pl_io *io, flex_io *out) {
    if (io->n_gradients > 0) TRY(pl__need(io->gradients, "pl_backward", "the list of gradients"));
    for (int64_t i = 0; i < io->n_gradients; i++) {
        const pl_gradient *g = &io->gradients[i];
        int c = 0, n = p->score ? expr_capture_count(p->score) : 0;
        TRY(pl__need(g->name, "pl_backward", "the name of a gradient"));
        while (c < n && strcmp(expr_capture(p->score, c)->name, g->name) != 0) c++;
        if (c == n || !(p->score_grads >> c & 1))
            return err_set(ERR_USAGE,
                           "pl_backward: the plan makes no gradient of `%.60s`; ask for it with "
                           "pl_problem_gradient",
                           g->name);
        if (out->d_capture[c])
            return err_set(ERR_USAGE, "pl_backward: the gradient of `%.60s` is given twice",
                           g->name);
        TRY(pl__need(g->data, "pl_backward", "the data of a gradient"));
        TRY(check_aligned("a captured value's gradient", g->data, DT_F32));
        out->d_capture[c] = g->data;
    }
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) {
        if (!(p->score_grads >> c & 1) || out->d_capture[c]) continue;
        return err_set(ERR_USAGE,
                       "pl_backward: the gradient of `%.60s` was asked for and has no place in io",
                       expr_capture(p->score, c)->name);
    }
    return ERR_OK;
}

static err translate_backward(const pl_plan *plan, const pl_io *io, flex_io *out) {
    const flex_problem *p = flex_plan_problem(plan->plan);
    const extents rows = {p->batch, p->q_heads, p->q_len},
                  keys = {p->batch, p->kv_heads, p->kv_len};
    TRY(view("the gradient of o", &io->d_o, &out->d_o));
    out->d_lse = io->d_lse;
    out->d_sinks = io->d_sinks;
    TRY(translate_gradients(p, io, out));
    TRY(result("dq", &io->dq, &rows, &out->dq));
    TRY(result("dk", &io->dk, &keys, &out->dk));
    return result("dv", &io->dv, &keys, &out->dv);
}

/* What flex found of loads that left, for the caller. */
static void tell_left(pl_io *io, const flex_io *f, int left) {
    io->left = left;
    for (int i = 0; left && i < 4; i++) io->left_cell[i] = f->left_cell[i];
}

static err forward(const pl_plan *plan, pl_device *d, pl_io *io) {
    flex_io f = {0};
    int left = 0;
    TRY(check_call("pl_forward", plan, d, io));
    TRY(translate(plan, io, &f));
    TRY(check_workspace(io, pl_plan_forward_workspace(plan, d), "forward"));
    f.left = &left;
    TRY(flex_forward(plan->plan, d->dev, &f));
    tell_left(io, &f, left);
    return ERR_OK;
}

static err backward(const pl_plan *plan, pl_device *d, pl_io *io) {
    flex_io f = {0};
    int left = 0;
    TRY(check_call("pl_backward", plan, d, io));
    TRY(translate(plan, io, &f));
    TRY(translate_backward(plan, io, &f));
    TRY(check_workspace(io, pl_plan_backward_workspace(plan, d), "backward"));
    f.left = &left;
    TRY(flex_backward(plan->plan, d->dev, &f));
    tell_left(io, &f, left);
    return ERR_OK;
}

pl_error pl_forward(const pl_plan *plan, pl_device *d, pl_io *io) {
    return pl__result(forward(plan, d, io));
}
pl_error pl_backward(const pl_plan *plan, pl_device *d, pl_io *io) {
    return pl__result(backward(plan, d, io));
}

pl_view pl_view_dense(const void *data, pl_type type, int64_t heads, int64_t length, int64_t dim) {
    return (pl_view){data, type, {heads * length * dim, length * dim, dim, 1}};
}
pl_out pl_out_dense(float *data, int64_t heads, int64_t length, int64_t dim) {
    return (pl_out){data, {heads * length * dim, length * dim, dim, 1}};
}
