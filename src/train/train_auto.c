/* Where `auto` puts the roles of a CPU run: in turns on all threads, or side by side on a share each, by a short measurement.
 *
 * A short row goes through target and drafter with all threads and with half of them. From the two times of a role follows its share that
 * does not get faster with threads, and so its time on any share. Side by side must promise 5 % more, else turns win: they need less
 * memory. Results do not depend on the choice. Drafters are measured together: all of them share their device. */
#include "train/train_parts.h"
#include "train/train_rates.h"
#include <stdio.h>

/* Seconds a token of target and of all drafters together, with so many threads. */
static err time_with(train *t, int threads, double *by_target, double *drafters) {
    train_rates r = {0};
    TRY(train_rates_measure(t, threads, 1, &r));
    *by_target = 1 / r.row[0].target_tokens_per_second;
    *drafters = 0;
    for (int i = 0; i < t->n_drafters; i++) *drafters += 1 / r.row[0].drafter[i].tokens_per_second;
    return ERR_OK;
}

/* Seconds on `share` threads, from those on `all` and on `half`: a part that scales and a part that does not. */
static double on_share(double with_all, double with_half, int all, int half, int share) {
    const double scales =
        (with_half - with_all) / (1.0 / half - 1.0 / all); /* seconds of it on one thread */
    const double fixed = with_all - scales / all;
    if (scales <= 0) return with_all;
    return fixed > 0 ? fixed + scales / share : with_all * all / share;
}

err train__measure_split(train *t, int threads, int *target_threads) {
    double by_target[2], drafters[2], best = 0;
    const int half = (threads + 1) / 2;
    TRY(time_with(t, threads, &by_target[0], &drafters[0]));
    TRY(time_with(t, half, &by_target[1], &drafters[1]));
    const double turns = by_target[0] + drafters[0];
    *target_threads = 0;
    for (int k = 1; k < threads; k++) {
        const double a = on_share(by_target[0], by_target[1], threads, half, k);
        const double b = on_share(drafters[0], drafters[1], threads, half, threads - k);
        const double slower = a > b ? a : b;
        if (*target_threads && slower >= best) continue;
        best = slower;
        *target_threads = k;
    }
    const double gain = turns / best;
    const int split = *target_threads;
    if (gain < 1.05) *target_threads = 0;
    snprintf(
        t->plan.placement, sizeof t->plan.placement,
        *target_threads
            ? "target on cpu:0 (threads: %d), drafters on cpu:1 (%d): measured %.2f times the rate of "
              "turns on one device"
            : "turns on cpu:0: target on %d and drafters on %d threads side by side were "
              "measured at %.2f times their rate, and less than 1.05 is not worth the memory",
        split, threads - split, gain);
    return ERR_OK;
}
