/* Kernels of attention under one mask: a plan's, and those that build its block mask.
 *
 * The problem has one batch and one head, since neither is in a text. What a plan is and which kernels it takes is
 * flex's business. */
#include "model/mask_kernels.h"
#include "flex/blockmask_cuda.h"
#include "flex/flex_cuda_run.h"

err mask_kernels_visit(const mask_kernels *k, kernel_visit visit, void *ctx, arena *a) {
    const flex_problem p = {.batch = 1,
                            .q_heads = 1,
                            .kv_heads = 1,
                            .q_len = k->q_len,
                            .kv_len = k->kv_len,
                            .dim = k->head_dim,
                            .v_dim = k->head_dim,
                            .type = k->type,
                            .mask = k->mask,
                            .env = k->env};
    flex_cuda_plan *plan;
    TRY(flex_cuda_plan_create(&plan, &p, k->shared, a));
    TRY(flex_cuda_each(plan, k->backward, visit, ctx));
    return blockmask_cuda_each(k->mask, k->env, visit, ctx);
}
