/* Builds of block masks over arrays on a CUDA device: see blockmask_cuda.h.
 *
 * Answers the questions of blockmask__far by launches over bounded buffers, taken when the handle is opened. A question
 * costs two copies and a launch, and the host waits for its answer; there are few, since each asks of thousands of boxes.
 * An array's leaves take 24 bytes each, so an array that is not much larger than they are is better copied itself. */
#include "flex/blockmask_cuda.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "expr/expr_cuda.h"
#include "flex/blockmask_private.h"
#include "flex/flex_cuda_private.h"
#include "flex/kernels/blockmask_args.h"
#include <string.h>

_Static_assert((int)BLOCKMASK_ROWS == (int)BLOCKMASK__ROWS, "slots are alike on both sides");
_Static_assert(sizeof(interval_leaf) == sizeof(blockmask_gpu_leaf),
               "leaves are copied as they are");

struct blockmask_cuda {
    dev *d;
    const expr *mask;
    int has_arrays;
    size_t near;
    dtype type[EXPR_MAX_CAPTURES];
    module_function *leaves, *count, *rows;
    dev_arena *memory;
    dev_address leaf, box, answer, seen;
    blockmask_gpu_box *boxes; /* [BLOCKMASK__MANY], as are the counts; on the way in and out */
    blockmask_gpu_count *counts;
    /* of the build that runs: */
    const expr_env *env;
    dev_stream *s;
    blockmask_gpu_args args;
};

static int has_arrays(const expr *mask) {
    for (int i = 0; mask && i < expr_capture_count(mask); i++)
        if (expr_capture(mask, i)->ndim) return 1;
    return 0;
}

/* ---- kernels ---- */

static err visit_text(const char *name, const str *text, kernel_visit visit, void *ctx) {
    const kernel_text source = {"blockmask.cu", text->s};
    const kernel_spec spec = {.name = name, .source = &source};
    return visit(ctx, &spec);
}

err blockmask_cuda_each(const expr *mask, const expr_env *env, kernel_visit visit, void *ctx) {
    dtype type[EXPR_MAX_CAPTURES];
    str leaves = {0}, cells = {0};
    if (!has_arrays(mask)) return ERR_OK;
    expr_cuda_types(mask, env, type);
    err e = flex_kernels__put_leaves(&leaves);
    if (!e) e = flex_kernels__put_cells(mask, type, &cells);
    if (!e) e = visit_text("block masks, leaves of arrays", &leaves, visit, ctx);
    if (!e) e = visit_text("block masks, cells of a mask", &cells, visit, ctx);
    str_free(&leaves);
    str_free(&cells);
    return e;
}

static err load(blockmask_cuda *c, const expr_env *env) {
    enum { TEXTS = 2 };
    module *m[TEXTS];
    kernel_list l;
    TRY(kernel_list_create(&l));
    err e = blockmask_cuda_each(c->mask, env, kernel_list_add, &l);
    if (!e) e = module_get_all(m, c->d, &l);
    if (!e) e = module_get_function(&c->leaves, m[0], "blockmask_leaves", 0);
    if (!e) e = module_get_function(&c->count, m[1], "blockmask_count", 0);
    if (!e) e = module_get_function(&c->rows, m[1], "blockmask_rows", 0);
    kernel_list_destroy(&l);
    return e;
}

static err prepare(blockmask_cuda *c, const expr_env *env, arena *a) {
    const struct {
        dev_address *at;
        size_t bytes;
    } table[] = {
        {&c->leaf, INTERVAL_LEAVES_MOST * sizeof(blockmask_gpu_leaf)},
        {&c->box, BLOCKMASK__MANY * sizeof(blockmask_gpu_box)},
        {&c->answer, BLOCKMASK__MANY * sizeof(blockmask_gpu_count)},
        {&c->seen, BLOCKMASK__MANY * BLOCKMASK__WORDS * sizeof(uint32_t)},
    };
    size_t bytes = 0;
    TRY(load(c, env));
    TRY(arena_alloc(a, BLOCKMASK__MANY, sizeof *c->boxes, &c->boxes));
    TRY(arena_alloc(a, BLOCKMASK__MANY, sizeof *c->counts, &c->counts));
    for (int i = 0; i < 4; i++) bytes += (table[i].bytes + 255) & ~(size_t)255;
    TRY(dev_arena_create(&c->memory, c->d, "block masks", bytes));
    for (int i = 0; i < 4; i++) TRY(dev_arena_alloc(c->memory, table[i].bytes, table[i].at));
    return ERR_OK;
}

err blockmask_cuda_open(blockmask_cuda **out, dev *d, const expr *mask, const expr_env *env,
                        size_t near, arena *a) {
    blockmask_cuda *c;
    *out = NULL;
    TRY(arena_alloc(a, 1, sizeof *c, &c));
    c->d = d, c->mask = mask, c->has_arrays = has_arrays(mask), c->near = near;
    if (c->has_arrays) {
        if (!env || !env->values)
            return err_set(ERR_USAGE, "mask '%s': element types of its arrays are not given",
                           expr_source(mask));
        expr_cuda_types(mask, env, c->type);
        err e = prepare(c, env, a);
        if (e) {
            blockmask_cuda_close(c);
            return e;
        }
    }
    *out = c;
    return ERR_OK;
}

void blockmask_cuda_close(blockmask_cuda *c) {
    if (c) dev_arena_destroy(c->memory);
}

size_t blockmask_cuda_bytes(const blockmask_cuda *c) {
    return c->memory ? dev_arena_cap(c->memory) : 0;
}

/* ---- answers ---- */

static void *pointer(dev_address at) {
    return (void *)(uintptr_t)at; /* means something on the device alone */
}

static int type_of(dtype t) {
    static const int types[DT_COUNT] = {
        [DT_I64] = BLOCKMASK_I64, [DT_I32] = BLOCKMASK_I32, [DT_I16] = BLOCKMASK_I16,
        [DT_I8] = BLOCKMASK_I8,   [DT_U8] = BLOCKMASK_U8,   [DT_BOOL] = BLOCKMASK_BOOL,
        [DT_F32] = BLOCKMASK_F32, [DT_F64] = BLOCKMASK_F64, [DT_BF16] = BLOCKMASK_BF16,
        [DT_F16] = BLOCKMASK_F16,
    };
    return types[t];
}

static err launch(blockmask_cuda *c, const module_function *f, int64_t blocks, unsigned threads,
                  void *arg) {
    void *const args[] = {arg};
    return module_launch(f, c->s, &(module_grid){{(unsigned)blocks}, {threads}, 0}, args);
}

static err take(blockmask_cuda *c, void *to, dev_address from, size_t bytes) {
    TRY(dev_copy_out(c->s, to, from, bytes));
    return dev_stream_wait(c->s);
}

static err leaves(void *ctx, int capture, int64_t elements, int64_t block, interval_leaf *out) {
    blockmask_cuda *c = ctx;
    const int64_t n = (elements + block - 1) / block;
    blockmask_gpu_leaves a = {.array = {.data = c->env->values[capture].data},
                              .elements = elements,
                              .block = block,
                              .leaves = n,
                              .type = type_of(c->type[capture]),
                              .condition = expr_capture(c->mask, capture)->type == EXPR_BOOL,
                              .out = pointer(c->leaf)};
    TRY(launch(c, c->leaves, (n + 7) / 8, 256, &a));
    return take(c, out, c->leaf, (size_t)n * sizeof *out);
}

static err send_boxes(blockmask_cuda *c, const interval_box *box, const uint8_t *loads,
                      const int *slot, int n) {
    for (int i = 0; i < n; i++) {
        const interval_box *x = &box[i];
        c->boxes[i] = (blockmask_gpu_box){.b = x->b0,
                                          .h = x->h0,
                                          .q = x->q0,
                                          .kv = x->kv0,
                                          .keys = x->kv1 - x->kv0 + 1,
                                          .rows = (int)(x->q1 - x->q0 + 1),
                                          .slot = slot ? slot[i] : 0,
                                          .loads = loads ? loads[i] : 0};
    }
    return dev_copy_in(c->s, c->box, c->boxes, (size_t)n * sizeof *c->boxes);
}

static err count(void *ctx, const interval_box *box, const uint8_t *loads, int n,
                 blockmask__count *out) {
    blockmask_cuda *c = ctx;
    TRY(send_boxes(c, box, loads, NULL, n));
    TRY(launch(c, c->count, n, 128, &c->args));
    TRY(take(c, c->counts, c->answer, (size_t)n * sizeof *c->counts));
    for (int i = 0; i < n; i++) {
        const blockmask_gpu_count *x = &c->counts[i];
        out[i] = (blockmask__count){x->some, x->all, x->reaches,
                                    x->left == UINT64_MAX ? -1 : (int64_t)x->left};
    }
    return ERR_OK;
}

static err rows(void *ctx, const interval_box *box, const int *slot, int n, int slots,
                uint32_t *seen) {
    blockmask_cuda *c = ctx;
    const size_t bytes = (size_t)slots * BLOCKMASK__WORDS * sizeof *seen;
    TRY(dev_set_bytes(c->s, c->seen, 0, bytes));
    TRY(send_boxes(c, box, NULL, slot, n));
    TRY(launch(c, c->rows, n, 128, &c->args));
    return take(c, seen, c->seen, bytes);
}

/* ---- builds ---- */

static err check(const blockmask_cuda *c, const block_mask_args *args) {
    dtype type[EXPR_MAX_CAPTURES];
    if (args->mask != c->mask)
        return err_set(ERR_USAGE,
                       "mask: kernels were made for '%s' and a build of '%s' is asked for",
                       c->mask ? expr_source(c->mask) : "everything",
                       args->mask ? expr_source(args->mask) : "everything");
    if (!c->has_arrays) return ERR_OK;
    TRY(expr_check_env(args->mask, args->env));
    expr_cuda_types(args->mask, args->env, type);
    for (int i = 0; i < expr_capture_count(c->mask); i++) {
        const expr_decl *x = expr_capture(c->mask, i);
        if (!x->ndim || type[i] == c->type[i]) continue;
        return err_set(ERR_SHAPE,
                       "captured array `%s` is bound to values of type %s, and the kernels of mask "
                       "'%s' were made for %s",
                       x->name, dtype_name(type[i]), expr_source(c->mask), dtype_name(c->type[i]));
    }
    return ERR_OK;
}

static size_t array_bytes(const blockmask_cuda *c, const expr_env *env, int i) {
    return expr_value_bytes(&env->values[i], expr_capture(c->mask, i)->ndim);
}

/* A copy of env whose arrays the host can read, in memory of its own. */
static err bring_near(expr_env *near, expr_value *value, const blockmask_cuda *c,
                      const expr_env *env, arena *a) {
    const int n = expr_capture_count(c->mask);
    memcpy(value, env->values, (size_t)n * sizeof *value);
    for (int i = 0; i < n; i++) {
        const size_t bytes = array_bytes(c, env, i);
        void *here;
        if (bytes == 0) continue;
        TRY(arena_alloc_raw(a, bytes, 1, &here));
        TRY(dev_copy_out(c->s, here, (dev_address)(uintptr_t)value[i].data, bytes));
        value[i].data = here;
    }
    *near = (expr_env){value, env->q0, env->kv0};
    return dev_stream_wait(c->s);
}

static err build(block_mask *out, blockmask_cuda *c, const block_mask_args *args, int near,
                 arena *a, arena *temp) {
    blockmask__far far = {.ctx = c, .count = count, .rows = rows};
    block_mask_args here = *args;
    expr_value value[EXPR_MAX_CAPTURES];
    expr_env env;
    const double start = clock_seconds();
    if (near) {
        TRY(bring_near(&env, value, c, args->env, temp));
        here.env = &env;
    } else {
        far.arrays = (interval_source){c, leaves};
    }
    TRY(blockmask__build(out, &here, &far, a));
    out->build_ms = (clock_seconds() - start) * 1e3;
    return ERR_OK;
}

err blockmask_cuda_build(block_mask *out, blockmask_cuda *c, const block_mask_args *args,
                         dev_stream *s, arena *a) {
    const void *at[EXPR_MAX_CAPTURES] = {0};
    size_t bytes = 0;
    arena *temp;
    TRY(check(c, args));
    if (!c->has_arrays) return blockmask_build(out, args, a, NULL);
    c->env = args->env, c->s = s;
    for (int i = 0; i < expr_capture_count(c->mask); i++) {
        at[i] = args->env->values[i].data;
        bytes += array_bytes(c, args->env, i);
    }
    c->args = (blockmask_gpu_args){
        .box = pointer(c->box), .count = pointer(c->answer), .seen = pointer(c->seen)};
    expr_cuda_fill(&c->args.env, args->mask, args->env, at);
    TRY(arena_create(&temp, "arrays of a block mask", 0));
    err e = build(out, c, args, bytes <= c->near, a, temp);
    if (!e && bytes <= c->near) out->peak_bytes += bytes;
    arena_destroy(temp);
    return e;
}
