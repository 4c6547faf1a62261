/* One update of a drafter: its rows by rank, sums in rank order, one division by the sum of weights, one step of AdamW in shards.
 *
 * Row i is rank i mod n's. The gradient of every row adds to the rank's own buffer, in row order; then buffers and loss sums are added in
 * rank order, so an update depends on neither timing nor placement. An update whose loss or gradient is not finite
 * changes no weight, no moment and no step count, on any rank. No collective depends on what a rank's own rows hold: a
 * rank without a row takes part like the others. */
#include "core/clock.h"
#include "train/anchors.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static err one_row(train *t, train_rank *k, int64_t index, step_sums *sums) {
    train__wait(&k->role, "features", index);
    const int at = ring_take(k->in);
    if (at < 0) return err_set(ERR_STOPPED, "the run is ending");
    const train_slot *s = &k->slots[at];
    if (s->index != index)
        return err_set(ERR_INTERNAL, "row %" PRId64 " came where row %" PRId64 " was due", s->index,
                       index);
    train__begin_turn(k->on, &k->role, index);
    err e = train__phase(t, &k->role, "forward and backward", index);
    if (!e) {
        const int64_t n = anchors_row(&s->row, k->of->anchor_limit, t->seed, s->epoch, k->anchor);
        e = step_row(&k->step, &s->row, s->taps, k->anchor, n, k->params, k->grads, sums, NULL);
    }
    train__end_turn(k->on);
    ring_release(k->in);
    return e;
}

static err gather_rows(train *t, train_rank *k, step_sums *sums) {
    const int64_t from = train__mark(t, k->update)->rows, to = train__mark(t, k->update + 1)->rows;
    memset(k->grads, 0, (size_t)k->of->l.total * sizeof *k->grads);
    for (int64_t i = from; i < to; i++)
        if (train__has_row(k, i)) TRY(one_row(t, k, i, sums));
    return ERR_OK;
}

/* What the ranks tell each other after their rows. Counts are whole numbers far below 2^53. */
enum { LOSS, WEIGHT, ROWS, TOKENS, ANCHORS, STOP, SLOTS };

static err add_ranks(train *t, train_rank *k, train__update *u) {
    const int block = (int)k->of->l.cfg.block_size;
    step_sums *s = &u->sums;
    double v[SLOTS + 2 * STEP_MAX_BLOCK] = {s->loss,           s->weight,          (double)s->rows,
                                            (double)s->tokens, (double)s->anchors, u->stop};
    for (int i = 0; i < block; i++) {
        v[SLOTS + i] = (double)s->slots[i];
        v[SLOTS + block + i] = (double)s->correct[i];
    }
    if (k->of->n_ranks > 1) train__wait(&k->role, "the other ranks' rows", k->update);
    TRY(group_sum(k->of->group, k->rank, v, SLOTS + 2 * block));
    TRY(train__phase(t, &k->role, "sums", k->update));
    *s = (step_sums){.loss = v[LOSS], .weight = v[WEIGHT], .rows = (int64_t)v[ROWS]};
    s->tokens = (int64_t)v[TOKENS];
    s->anchors = (int64_t)v[ANCHORS];
    u->stop = v[STOP] > 0;
    for (int i = 0; i < block; i++) {
        s->slots[i] = (int64_t)v[SLOTS + i];
        s->correct[i] = (int64_t)v[SLOTS + block + i];
    }
    return ERR_OK;
}

static err norm(train *t, train_rank *k) {
    train__begin_turn(k->on, &k->role, k->update);
    err e = train__phase(t, &k->role, "gradient norm", k->update);
    if (!e) e = adamw_norm(&k->opt, k->on->d, k->grads);
    train__end_turn(k->on);
    return e;
}

static err apply(train *t, train_rank *k, train__update *u) {
    adamw_report report = {0};
    train__begin_turn(k->on, &k->role, k->update);
    err e = train__phase(t, &k->role, "optimizer", k->update);
    if (!e)
        e = adamw_apply(&k->opt, k->on->d, u->lr, 1 / u->sums.weight, k->params, k->grads, &report);
    train__end_turn(k->on);
    u->bad = report.bad;
    u->grad_norm = report.grad_norm;
    return e;
}

/* Weights and moments change from here on; only when all ranks have each other's shards are they whole again. */
static err step_optimizer(train *t, train_rank *k, train__update *u) {
    const drafter_layout *l = &k->of->l;
    group *g = k->of->group;
    TRY(group_reduce(g, k->rank, k->grads, l->total, ADAMW_CHUNK));
    TRY(norm(t, k));
    k->whole = 0;
    TRY(group_gather(g, k->rank, k->opt.partial, adamw_chunks(l), 1, sizeof *k->opt.partial));
    TRY(apply(t, k, u));
    TRY(group_gather(g, k->rank, k->params, l->total, ADAMW_CHUNK, sizeof *k->params));
    k->whole = 1;
    return ERR_OK;
}

err train__one_update(train *t, train_rank *k, train__update *u) {
    const double start = clock_seconds();
    *u = (train__update){.lr = schedule_rate(&k->of->rate, k->update), .grad_norm = NAN};
    TRY(gather_rows(t, k, &u->sums));
    u->stop = k->rank == 0 && t->stop && *t->stop;
    TRY(add_ranks(t, k, u));
    if (!(u->sums.weight > 0))
        return err_set(ERR_INTERNAL,
                       "update %" PRId64 " found no supervised slot in %" PRId64 " tokens",
                       k->update + 1, u->sums.tokens);
    u->loss = u->sums.loss / u->sums.weight;
    u->bad = !isfinite(u->loss);
    if (!u->bad) TRY(step_optimizer(t, k, u));
    k->update++;
    u->seconds = clock_seconds() - start;
    return ERR_OK;
}
