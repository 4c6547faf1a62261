/* What a plan does about a score: checks, its program with derivatives, what can be proven of its loads, words.
 *
 * A load is proven to leave its array by a visible cell in which it does, whatever the logits are: the corners of the
 * first and last runs of every row of tiles are tried, which finds every fault of an index that is monotone along rows
 * and columns. What is not found here is guarded in the run. Knows no values of tensors. */
#include "flex/flex_private.h"
#include <math.h>

err flex__check_score(const flex_problem *p) {
    if (!p->score) {
        if (!p->score_grads) return ERR_OK;
        return err_set(ERR_USAGE, "attention: gradients of captures are asked for without a score");
    }
    if (!p->score_env)
        return err_set(ERR_USAGE, "attention: a score is given without the values of its captures");
    return expr_check_env(p->score, p->score_env);
}

err flex__plan_score(flex_plan *p, arena *a) {
    const flex_problem *q = &p->p;
    if (!q->score) return ERR_OK;
    TRY(err_context(expr_grad_create(&p->grad, q->score, q->score_grads, a), "attention: "));
    size_t by_row = expr_score_scratch(p->grad, q->tile_q, q->tile_kv),
           by_column = expr_score_scratch(p->grad, q->tile_kv, q->tile_q);
    p->score_scratch = by_row > by_column ? by_row : by_column;
    return ERR_OK;
}

err flex__check_sinks(const flex_problem *p) {
    for (int64_t h = 0; p->sinks && h < p->q_heads; h++) {
        if (p->sinks[h] < INFINITY) continue;
        return err_set(ERR_NUMERIC,
                       "attention: the sink of head %lld is %g; a sink is a finite logit, or -inf "
                       "for none",
                       (long long)h, (double)p->sinks[h]);
    }
    return ERR_OK;
}

/* ---- loads that leave for certain ---- */

static err leaves(const flex_plan *p, const int64_t cell[4], const expr_grad_fault *f) {
    const expr_decl *d = expr_capture(p->p.score, f->capture);
    const expr_value *v = &p->p.score_env->values[f->capture];
    const block_mask *m = &p->mask;
    int64_t q0 = cell[2] / m->tile_q * m->tile_q, k0 = cell[3] / m->tile_kv * m->tile_kv;
    str at = {0};
    err e = ERR_OK;
    for (int i = 0; !e && i < d->ndim; i++)
        e = str_printf(&at, "%s%lld", i ? ", " : "", (long long)f->index[i]);
    if (!e) e = str_printf(&at, "] of [");
    for (int i = 0; !e && i < d->ndim; i++)
        e = str_printf(&at, "%s%lld", i ? ", " : "", (long long)v->dim[i]);
    if (!e)
        e = err_set(ERR_RANGE,
                    "attention: the score reads `%s` outside it, at [%s], in the visible cell b "
                    "%lld, h %lld, q %lld, kv %lld (tile q %lld..%lld, kv %lld..%lld); guard the "
                    "load, clamp the index or make the array larger",
                    d->name, at.s, (long long)cell[0], (long long)cell[1], (long long)cell[2],
                    (long long)cell[3], (long long)q0,
                    (long long)flex__min(q0 + m->tile_q, m->q_len) - 1, (long long)k0,
                    (long long)flex__min(k0 + m->tile_kv, m->kv_len) - 1);
    str_free(&at);
    return e;
}

static int is_visible(const flex_plan *p, const int64_t cell[4], int full) {
    int flag = 0;
    return full || expr_eval_mask(p->p.mask, p->p.env, cell[0], cell[1], cell[2], cell[3], &flag);
}

/* The four corners of one run of tiles in a row of tiles. */
static err try_run(const flex_plan *p, int64_t b, int64_t h, int64_t tile, const block_run *run) {
    const block_mask *m = &p->mask;
    int64_t q0 = tile * m->tile_q, q1 = flex__min(q0 + m->tile_q, m->q_len) - 1;
    int64_t k0 = (int64_t)run->start * m->tile_kv,
            k1 = flex__min(k0 + (int64_t)run->length * m->tile_kv, m->kv_len) - 1;
    for (int i = 0; i < 4; i++) {
        const int64_t cell[4] = {b, h, i & 2 ? q1 : q0, i & 1 ? k1 : k0};
        expr_grad_fault f;
        if (!is_visible(p, cell, run->full)) continue;
        if (expr_grad_leaves(p->grad, p->p.score_env, cell[0], cell[1], cell[2], cell[3], &f))
            return leaves(p, cell, &f);
    }
    return ERR_OK;
}

static err try_head(const flex_plan *p, int64_t b, int64_t h) {
    const block_mask *m = &p->mask;
    for (int64_t tile = 0; tile < m->q_tiles; tile++) {
        int64_t line = flex__line(m, b, h) * m->q_tiles + tile, first = m->row_start[line],
                last = m->row_start[line + 1] - 1;
        if (first <= last) TRY(try_run(p, b, h, tile, &m->row_run[first]));
        if (first < last) TRY(try_run(p, b, h, tile, &m->row_run[last]));
    }
    return ERR_OK;
}

err flex__plan_leaves(const flex_plan *p) {
    const flex_problem *q = &p->p;
    int64_t more_b = q->batch > 1, more_h = q->q_heads > 1;
    if (!p->grad || !expr_grad_has_loads(p->grad) || q->batch == 0) return ERR_OK;
    for (int64_t i = 0; i <= more_b;
         i++) { /* the ends of b and h, where an index is largest or least */
        for (int64_t j = 0; j <= more_h; j++)
            TRY(try_head(p, i ? q->batch - 1 : 0, j ? q->q_heads - 1 : 0));
    }
    return ERR_OK;
}

/* ---- words ---- */

static err explain_capture(const flex_plan *p, int c, str *out) {
    const flex__sums *s = &p->sums;
    char n[32];
    TRY(str_printf(out, "  gradient of `%s`, %s elements: ", expr_capture(p->p.score, c)->name,
                   str_thousands(s->elements[c], n)));
    if (s->direct[c])
        return str_printf(out, "added in place, tasks that could meet run in order\n");
    return str_printf(out, "summed in double in each of %lld slots of tasks, then slot by slot\n",
                      (long long)s->slots);
}

err flex__explain_score(const flex_plan *p, str *out) {
    int score, all;
    if (p->p.sinks) TRY(str_printf(out, "sinks: one logit a head in the denominator\n"));
    if (!p->grad) return ERR_OK;
    expr_grad_count(p->grad, &score, &all);
    TRY(str_printf(out,
                   "score: %d operations, %d with derivatives, work hoisted per tile, row, "
                   "column and diagonal\n",
                   score, all));
    for (int i = 0; i < p->sums.n_wanted; i++) TRY(explain_capture(p, p->sums.wanted[i], out));
    return ERR_OK;
}
