/* Masks of `paceline mask` on a GPU: see mask_device.h.
 *
 * The arrays' sizes are summed, one arena is taken, and their addresses take the place of the host's in a copy of the
 * captured values. */
#include "cli/mask_device.h"
#include "flex/blockmask_cuda.h"
#include <stdio.h>
#include <string.h>

typedef struct job {
    dev *d;
    dev_stream *s;
    dev_arena *memory;
    blockmask_cuda *builder;
    expr_value value[EXPR_MAX_CAPTURES];
    expr_env env;
} job;

/* The arrays go to the device; a copy of their values has the addresses there. */
static err send(job *j, const block_mask_args *args, mask_device *out) {
    const int n = expr_capture_count(args->mask);
    size_t all = 0;
    for (int i = 0; i < n; i++) {
        const size_t bytes =
            expr_value_bytes(&args->env->values[i], expr_capture(args->mask, i)->ndim);
        out->arrays += bytes;
        all += (bytes + 256) & ~(size_t)255;
    }
    TRY(dev_arena_create(&j->memory, j->d, "captured arrays of a mask", all));
    for (int i = 0; i < n; i++) {
        const size_t bytes =
            expr_value_bytes(&args->env->values[i], expr_capture(args->mask, i)->ndim);
        dev_address at;
        j->value[i] = args->env->values[i];
        if (!expr_capture(args->mask, i)->ndim) continue;
        TRY(dev_arena_alloc(j->memory, bytes ? bytes : 1, &at));
        if (bytes) TRY(dev_copy_in(j->s, at, j->value[i].data, bytes));
        j->value[i].data = (const void *)(uintptr_t)at;
    }
    j->env = (expr_env){j->value, args->env->q0, args->env->kv0};
    return ERR_OK;
}

static err build(job *j, block_mask *m, const block_mask_args *args, arena *mem, mask_device *out) {
    block_mask_args there = *args;
    TRY(expr_check_env(args->mask, args->env));
    TRY(dev_stream_create(&j->s, j->d));
    TRY(blockmask_cuda_open(&j->builder, j->d, args->mask, args->env, BLOCKMASK_CUDA_NEAR, mem));
    TRY(send(j, args, out));
    there.env = &j->env;
    TRY(blockmask_cuda_build(m, j->builder, &there, j->s, mem));
    out->work = blockmask_cuda_bytes(j->builder);
    return ERR_OK;
}

err mask_device_build(block_mask *m, const block_mask_args *args, dev *d, arena *mem,
                      mask_device *out) {
    job j = {.d = d};
    *out = (mask_device){.name = "cpu"};
    if (dev_get_kind(d) == DEV_CPU) return blockmask_build(m, args, mem, d);
    snprintf(out->name, sizeof out->name, "cuda:%d, %s, %s", dev_cuda_index(d),
             dev_cuda_info(d)->name, dev_arch(d));
    err e = build(&j, m, args, mem, out);
    blockmask_cuda_close(j.builder);
    dev_arena_destroy(j.memory);
    dev_stream_destroy(j.s);
    return e;
}
