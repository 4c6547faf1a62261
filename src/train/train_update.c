/* One update: as many rows as fit the token budget, one division by the sum of weights, one step of AdamW.
 *
 * The gradient of every row adds to one buffer, in row order; numerator and denominator of the loss are summed likewise, so an
 * update does not care how its tokens were cut into rows' workspaces. An update whose loss or gradient is not finite
 * changes no weight, no moment and no step count; it is counted, and a number of them in a row ends the run. */
#include "core/clock.h"
#include "train/anchors.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static err gather(train *t, step_sums *sums) {
    const data_row *row = NULL;
    memset(t->grads, 0, (size_t)t->l.total * sizeof *t->grads);
    while (!train__update_is_whole(t, sums->rows, sums->tokens)) {
        const data_cursor c = data_stream_tell(t->stream);
        if (train__data_spent(t, c)) break;
        TRY(data_stream_next(t->stream, &row));
        const int64_t n = anchors_row(row, t->anchor_limit, t->seed, c.epoch, t->anchor);
        TRY(step_row(&t->step, row, t->anchor, n, t->params, t->grads, sums, NULL));
    }
    return ERR_OK;
}

static err count_bad(train *t, const train__update *u) {
    const int64_t most = recipe_int(t->r, RECIPE_optimizer_max_bad_steps);
    if (!u->bad) {
        t->at.bad_in_row = 0;
        return ERR_OK;
    }
    t->at.bad_total++;
    if (++t->at.bad_in_row < most) return ERR_OK;
    return err_set(
        ERR_NUMERIC,
        "%" PRId64 " updates in a row, up to update %" PRId64
        ", had a loss or gradient that is not finite, so the run stops; lower optimizer.lr "
        "or set optimizer.clip, and continue from an earlier checkpoint",
        t->at.bad_in_row, t->at.update + 1);
}

err train__one_update(train *t, train__update *u) {
    const double start = clock_seconds();
    *u = (train__update){.lr = schedule_rate(&t->rate, t->at.update), .grad_norm = NAN};
    TRY(gather(t, &u->sums));
    if (!(u->sums.weight > 0))
        return err_set(ERR_INTERNAL,
                       "update %" PRId64 " found no supervised slot in %" PRId64 " tokens",
                       t->at.update + 1, u->sums.tokens);
    u->loss = u->sums.loss / u->sums.weight;
    u->bad = !isfinite(u->loss);
    if (!u->bad) {
        adamw_report report;
        TRY(adamw_step(&t->opt_state, t->d, u->lr, 1 / u->sums.weight, t->params, t->grads,
                       &report));
        u->bad = report.bad;
        u->grad_norm = report.grad_norm;
    }
    TRY(count_bad(t, u));
    t->at.update++;
    t->at.cursor = data_stream_tell(t->stream);
    u->seconds = clock_seconds() - start;
    t->seconds += u->seconds;
    return ERR_OK;
}
