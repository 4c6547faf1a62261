/* The model of a run's speed in closed form: see train_forecast.h and docs/NUMERICS.md.
 *
 * Everything is the time of one update. Links carry features and exchanges while devices compute, so a link is a side of its own that may
 * be the slowest; the sender's copy is part of no device's work. Splits are tried one after the other: there are at
 * most a thousand. No clock is read here. */
#include "train/train_forecast.h"
#include <math.h>
#include <string.h>

static double larger(double a, double b) { return a > b ? a : b; }

double train_forecast_busiest(double rows, int b) {
    const double low = floor(rows), mix = rows - low;
    const double few = ceil(low / b), many = ceil((low + 1) / b);
    const double busiest = (1 - mix) * few + mix * many;
    return rows > 0 ? busiest / rows : 1;
}

/* Bytes that each of b ranks sends, and receives, for its gradient's sum and the new weights. */
static double exchange_bytes(const train_forecast_drafter *d, int b) {
    return 2.0 * (b - 1) / b * 4 * d->params;
}

/* Seconds that the busiest rank of a drafter works for an update. */
static double drafter_seconds(const train_forecast_model *m, const train_forecast_drafter *d,
                              int b) {
    const double tokens = m->tokens_per_update * train_forecast_busiest(m->rows_per_update, b);
    return tokens * d->seconds_per_token + d->update_seconds / b + d->pause_seconds;
}

/* Its ranks wait for the exchange: it is part of the update's time, and no work of the device. */
static double exchange_seconds(const train_forecast_model *m, const train_forecast_drafter *d,
                               int b) {
    return exchange_bytes(d, b) / m->link_bytes_per_second;
}

static double feature_bytes(const train_forecast_model *m) {
    double sum = 0;
    for (int i = 0; i < m->n_drafters; i++) sum += m->drafter[i].bytes_per_token;
    return sum;
}

/* Seconds of all cores together, as if one did everything. */
static double core_seconds(const train_forecast_model *m) {
    double sum = m->tokens_per_update * m->target_seconds_per_token;
    for (int i = 0; i < m->n_drafters; i++) {
        const train_forecast_drafter *d = &m->drafter[i];
        sum += m->tokens_per_update * d->seconds_per_token + d->update_seconds + d->pause_seconds;
    }
    return sum * m->threads / m->cores;
}

static void limit(train_forecast_split *s, double seconds, train_forecast_bound bound, int which) {
    if (seconds <= s->update_seconds) return;
    s->update_seconds = seconds;
    s->bound = bound;
    s->bound_drafter = which;
}

/* Roles of one device after one another; features of other devices' rows cross the links. */
static void in_turns(const train_forecast_model *m, train_forecast_split *s, double forward,
                     double *link) {
    const int n = s->targets;
    double sum = forward, exchange = 0;
    for (int i = 0; i < m->n_drafters; i++) {
        sum += drafter_seconds(m, &m->drafter[i], n);
        exchange += exchange_seconds(m, &m->drafter[i], n);
    }
    *link = m->tokens_per_update / n * feature_bytes(m) * (n - 1) / n / m->link_bytes_per_second +
            exchange;
    limit(s, sum + exchange, TRAIN_FORECAST_TURNS, 0);
    limit(s, *link, TRAIN_FORECAST_LINK, 0);
}

static void side_by_side(const train_forecast_model *m, train_forecast_split *s, double forward,
                         double *link) {
    const double tokens = m->tokens_per_update, speed = m->link_bytes_per_second;
    limit(s, forward, TRAIN_FORECAST_TARGET, 0);
    *link = tokens / s->targets * feature_bytes(m) / speed; /* out of a target device */
    limit(s, *link, TRAIN_FORECAST_LINK, 0);
    for (int i = 0; i < m->n_drafters; i++) {
        const train_forecast_drafter *d = &m->drafter[i];
        const int b = s->ranks[i];
        const double exchange = exchange_seconds(m, d, b);
        const double in = tokens / b * d->bytes_per_token / speed + exchange;
        limit(s, drafter_seconds(m, d, b) + exchange, TRAIN_FORECAST_DRAFTER, i);
        limit(s, in, TRAIN_FORECAST_LINK, i);
        *link = larger(*link, in);
    }
}

void train_forecast_at(const train_forecast_model *m, train_forecast_split *s) {
    const double forward = m->tokens_per_update / s->targets * m->target_seconds_per_token;
    double link = 0;
    s->update_seconds = 0;
    s->bound = TRAIN_FORECAST_TARGET;
    s->bound_drafter = 0;
    if (s->turns)
        in_turns(m, s, forward, &link);
    else
        side_by_side(m, s, forward, &link);
    if (m->cores) limit(s, core_seconds(m), TRAIN_FORECAST_CORES, 0);
    s->tokens_per_second = m->tokens_per_update / s->update_seconds;
    s->target_share = forward / s->update_seconds;
    s->link_share = link / s->update_seconds;
    for (int i = 0; i < m->n_drafters; i++)
        s->drafter_share[i] =
            drafter_seconds(m, &m->drafter[i], s->turns ? s->targets : s->ranks[i]) /
            s->update_seconds;
}

err train_forecast_deal(const train_forecast_model *m, int b, train_forecast_split *s) {
    if (b < m->n_drafters)
        return err_set(ERR_RANGE, "%d drafters do not go on %d devices of their own", m->n_drafters,
                       b);
    for (int i = 0; i < m->n_drafters; i++) s->ranks[i] = 1;
    for (int left = b - m->n_drafters; left > 0; left--) {
        int slowest = 0;
        double most = -1;
        for (int i = 0; i < m->n_drafters; i++) {
            const train_forecast_drafter *d = &m->drafter[i];
            const double now =
                drafter_seconds(m, d, s->ranks[i]) + exchange_seconds(m, d, s->ranks[i]);
            if (now <= most) continue;
            most = now;
            slowest = i;
        }
        s->ranks[slowest]++;
    }
    return ERR_OK;
}

/* How few of n devices a side needs to take no longer than so. */
static int needed_ranks(const train_forecast_model *m, const train_forecast_drafter *d, int n,
                        double seconds) {
    int b = 1;
    while (b < n && drafter_seconds(m, d, b) + exchange_seconds(m, d, b) > seconds) b++;
    return b;
}

static int spare_devices(const train_forecast_model *m, const train_forecast_split *s) {
    const double seconds = s->update_seconds / 0.99;
    const double forward = m->tokens_per_update * m->target_seconds_per_token;
    int spare = 0;
    if (s->turns) {
        train_forecast_split less = *s;
        for (less.targets = 1; less.targets < s->targets; less.targets++) {
            train_forecast_at(m, &less);
            if (less.update_seconds <= seconds) break;
        }
        return s->targets - less.targets;
    }
    const double targets = ceil(forward / seconds - 1e-9);
    if (targets < s->targets) spare = s->targets - (targets > 1 ? (int)targets : 1);
    for (int i = 0; i < m->n_drafters; i++)
        spare += s->ranks[i] - needed_ranks(m, &m->drafter[i], s->ranks[i], seconds);
    return spare;
}

/* So many target devices of n; turns when a is n. 0: no such split. */
static int split_at(const train_forecast_model *m, int n, int a, train_forecast_split *s) {
    memset(s, 0, sizeof *s);
    s->targets = a;
    s->turns = a == n;
    if (s->turns)
        for (int i = 0; i < m->n_drafters; i++) s->ranks[i] = n;
    else if (a < 1 || n - a < m->n_drafters || train_forecast_deal(m, n - a, s))
        return 0;
    train_forecast_at(m, s);
    return 1;
}

int train_forecast_best(const train_forecast_model *m, int n, int around, train_forecast_split *out,
                        int *best) {
    int best_a = 0, count = 0;
    double most = 0;
    train_forecast_split s;
    for (int a = 1; a < n; a++) {
        if (!split_at(m, n, a, &s) || s.tokens_per_second <= most) continue;
        most = s.tokens_per_second;
        best_a = a;
    }
    for (int a = best_a - around; best_a && a <= best_a + around; a++)
        if (a < n && split_at(m, n, a, &out[count])) count++;
    if (split_at(m, n, n, &out[count])) count++;
    *best = 0;
    for (int i = 0; i < count; i++) out[i].spare = spare_devices(m, &out[i]);
    for (int i = 1; i < count; i++)
        if (out[i].tokens_per_second > out[*best].tokens_per_second) *best = i;
    return count;
}
