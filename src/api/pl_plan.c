/* Plans of the public library: a problem handed to flex, what flex says of it, and nothing decided here.
 *
 * A plan owns the compiled expressions and the values of scalars, so the problem may go. A mask that was built before is
 * held against the problem's extents here, where both are still known by the numbers that the caller gave. */
#include "api/api_private.h"
#include <string.h>

static err check_given(const pl_problem *p) {
    const pl_shape *s = &p->shape;
    const pl_mask *m = p->given;
    const block_mask *b = m->mask;
    if (m->batch != s->batch || m->heads != s->q_heads || b->q_len != s->q_len ||
        b->kv_len != s->kv_len)
        return err_set(
            ERR_SHAPE,
            "pl_plan_create: the mask was built for batch %lld, %lld query heads, %lld "
            "queries and %lld keys, and the problem has %lld, %lld, %lld and %lld; build "
            "a mask for the problem",
            (long long)m->batch, (long long)m->heads, (long long)b->q_len, (long long)b->kv_len,
            (long long)s->batch, (long long)s->q_heads, (long long)s->q_len, (long long)s->kv_len);
    if ((p->tile_q && p->tile_q != b->tile_q) || (p->tile_kv && p->tile_kv != b->tile_kv))
        return err_set(ERR_SHAPE,
                       "pl_plan_create: the mask has tiles of %d x %d, and the problem asks for "
                       "%d x %d",
                       b->tile_q, b->tile_kv, p->tile_q, p->tile_kv);
    if (p->q0 != m->program->env.q0 || p->kv0 != m->program->env.kv0)
        return err_set(ERR_SHAPE,
                       "pl_plan_create: the mask was built with offsets q0 %lld and kv0 %lld, and "
                       "the problem has %lld and %lld",
                       (long long)m->program->env.q0, (long long)m->program->env.kv0,
                       (long long)p->q0, (long long)p->kv0);
    return ERR_OK;
}

static flex_problem translate(const pl_problem *p, const pl__program *own) {
    const pl__program *of_mask = p->given ? p->given->program : own;
    return (flex_problem){.batch = p->shape.batch,
                          .q_heads = p->shape.q_heads,
                          .kv_heads = p->shape.kv_heads,
                          .q_len = p->shape.q_len,
                          .kv_len = p->shape.kv_len,
                          .dim = p->shape.dim,
                          .v_dim = p->shape.v_dim,
                          .type = p->type,
                          .scale = p->scale,
                          .zero_scale = p->scale_given,
                          .mask = of_mask->mask,
                          .env = &of_mask->env,
                          .score = own->score,
                          .score_env = own->score ? &own->env : NULL,
                          .score_grads = p->gradients,
                          .sinks = p->sinks,
                          .blocks = p->given ? p->given->mask : NULL,
                          .tile_q = p->tile_q,
                          .tile_kv = p->tile_kv,
                          .mask_budget = p->mask_budget};
}

static err make(pl_plan *x, const pl_problem *p, pl_device *d) {
    TRY(pl__program_make(&x->program, p));
    if (p->given) TRY(check_given(p));
    TRY(arena_create(&x->memory, "plan", 0));
    const flex_problem f = translate(p, &x->program);
    TRY(flex_plan_create(&x->plan, d->dev, &f, x->memory));
    x->mask = (pl_mask){.batch = p->shape.batch,
                        .heads = p->shape.q_heads,
                        .mask = flex_plan_mask(x->plan),
                        .program = p->given ? p->given->program : &x->program};
    return ERR_OK;
}

static err create(pl_plan **out, const pl_problem *p, pl_device *d) {
    pl_plan *x;
    TRY(pl__need(p, "pl_plan_create", "the problem"));
    TRY(pl__need(d, "pl_plan_create", "the device"));
    TRY(mem_new(1, sizeof *x, &x));
    err e = make(x, p, d);
    if (e)
        pl_plan_free(x);
    else
        *out = x;
    return e;
}

pl_error pl_plan_create(pl_plan **out, const pl_problem *p, pl_device *d) {
    err e = pl__need(out, "pl_plan_create", "out");
    if (e) return pl__result(e);
    *out = NULL;
    return pl__result(create(out, p, d));
}

void pl_plan_free(pl_plan *plan) {
    if (!plan) return;
    pl__program_free(&plan->program);
    arena_destroy(plan->memory);
    mem_free(plan);
}

const pl_mask *pl_plan_mask(const pl_plan *plan) { return plan ? &plan->mask : NULL; }

size_t pl_plan_forward_workspace(const pl_plan *plan, const pl_device *d) {
    return plan && d ? flex_forward_workspace(plan->plan, dev_threads(d->dev)) : 0;
}

size_t pl_plan_backward_workspace(const pl_plan *plan, const pl_device *d) {
    return plan && d ? flex_backward_workspace(plan->plan, dev_threads(d->dev)) : 0;
}

size_t pl_plan_bytes(const pl_plan *plan) {
    arena_stats s = {0};
    if (plan) arena_get_stats(plan->memory, &s);
    return plan ? sizeof *plan + s.reserved : 0;
}

double pl_plan_visited(const pl_plan *plan) { return plan ? flex_plan_visited(plan->plan) : 0.0; }
double pl_plan_dense_bytes(const pl_plan *plan) {
    return plan ? flex_dense_bytes(plan->plan) : 0.0;
}

static err explain(const pl_plan *plan, char *text, size_t capacity, size_t *needed) {
    str s = {0};
    TRY(pl__need(plan, "pl_plan_explain", "the plan"));
    if (capacity) TRY(pl__need(text, "pl_plan_explain", "text"));
    err e = flex_plan_explain(plan->plan, &s);
    size_t n = s.n < capacity ? s.n : capacity - (capacity > 0);
    if (!e && capacity) {
        memcpy(text, s.s, n);
        text[n] = 0;
    }
    if (!e && needed) *needed = s.n + 1;
    str_free(&s);
    return e;
}

pl_error pl_plan_explain(const pl_plan *plan, char *text, size_t capacity, size_t *needed) {
    return pl__result(explain(plan, text, capacity, needed));
}
