/* Forecast of a run's speed: tokens a second and the share of time that each role works, for any split of devices.
 *
 * A model of few terms (docs/NUMERICS.md), from measured rates and a stated link speed: targets work on rows of their own, an
 * update waits for its busiest rank, features and gradients take the links' time, evaluations and checkpoints hold the
 * drafter up. The slowest side decides. It knows nothing of jitter, of rows that differ, or of what else a machine does. */
#ifndef TRAIN_TRAIN_FORECAST_H
#define TRAIN_TRAIN_FORECAST_H
#include "train/train_rates.h"

enum { TRAIN_FORECAST_MOST = 1024 /* devices */ };

typedef struct train_forecast_drafter {
    const char *name;         /* "" without names */
    double seconds_per_token; /* forward and backward on one device */
    double update_seconds;    /* optimizer, on one device */
    double pause_seconds;     /* evaluation and checkpoints, per update */
    double params;            /* 4 bytes of gradient and of weights each travel at an update */
    double bytes_per_token;   /* of features that it receives */
} train_forecast_drafter;
typedef struct train_forecast_model {
    double target_seconds_per_token;
    double tokens_per_update, rows_per_update;
    double link_bytes_per_second; /* of a device, each way */
    /* CPU devices of one machine share its cores: a device works on `threads` of them, and no more than `cores` work at a time.
     * cores 0: every device has its own. */
    int threads, cores;
    int n_drafters;
    train_forecast_drafter drafter[TRAIN_RATES_DRAFTERS];
} train_forecast_model;

typedef enum train_forecast_bound {
    TRAIN_FORECAST_TARGET,
    TRAIN_FORECAST_DRAFTER,
    TRAIN_FORECAST_LINK,
    TRAIN_FORECAST_CORES,
    TRAIN_FORECAST_TURNS
} train_forecast_bound;
typedef struct train_forecast_split {
    int targets;                     /* devices of the target */
    int ranks[TRAIN_RATES_DRAFTERS]; /* devices of each drafter */
    int turns; /* every device is the target's and each drafter's, in turns: targets and ranks are all devices */
    double tokens_per_second;
    double target_share; /* of the time in which target devices work */
    double drafter_share
        [TRAIN_RATES_DRAFTERS]; /* the same of a drafter's devices; its busiest one where they differ */
    double link_share;          /* of the busiest link */
    double update_seconds;
    int spare; /* devices without which not a hundredth of the speed would be lost; of train_forecast_best */
    train_forecast_bound bound;
    int bound_drafter; /* which one, where a drafter or its link is the slowest */
} train_forecast_split;

/* Rows of the busiest of b ranks, as a share of an update's rows. An average between whole numbers stands for a mix of both. */
double train_forecast_busiest(double rows, int b);
/* From devices to figures: targets, ranks and turns are given, the rest is filled in. */
void train_forecast_at(const train_forecast_model *m, train_forecast_split *s);
/* Deals b devices out to the drafters, always to the slowest one; with fewer devices than drafters ERR_RANGE. */
MUST_CHECK err train_forecast_deal(const train_forecast_model *m, int b, train_forecast_split *s);
/* The fastest split of n devices, and its neighbours: up to `around` with fewer and with more target devices, and the one in turns.
 * By rising target devices, turns last; returns how many, *best is the fastest one's place. out [2 * around + 2]. */
int train_forecast_best(const train_forecast_model *m, int n, int around, train_forecast_split *out,
                        int *best);

/* The model of a plan: rates of one kind of device with so many threads (0: as the
 * target's first device). ERR_REFUSED when the table has no such row. link 0: the rate
 * of memory, as between CPU devices. */
MUST_CHECK err train_forecast_make(const train *t, const train_rates *r, const char *kind,
                                   int threads, double link, train_forecast_model *out);
/* The run as it is placed: roles that share a device take turns, CPU devices share the cores. seconds: until its end. */
typedef struct train_forecast_run {
    double tokens_per_second, seconds;
    double target_share;
    double drafter_share[TRAIN_RATES_DRAFTERS];
} train_forecast_run;
MUST_CHECK err train_forecast_placed(const train *t, const train_rates *r, train_forecast_run *out);

#endif
