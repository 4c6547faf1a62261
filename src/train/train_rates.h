/* Measured rates of a run's roles: what one device of a kind does a second, by its number of threads.
 *
 * Rows of the recipe's own data go through target and drafters as in a run; the optimizer steps all parameters; memory and disk
 * are copied and written. A few seconds in all, or less where a choice needs only ratios. Rates are kept per FLOP, since rows
 * differ in anchors and the plan knows the FLOP of an epoch. A table is kept in a file (docs/FORMATS.md) with machine, program
 * and shapes; one of other shapes is refused. It predicts nothing: that is train_forecast. */
#ifndef TRAIN_TRAIN_RATES_H
#define TRAIN_TRAIN_RATES_H
#include "train/train.h"

enum { TRAIN_RATES_DRAFTERS = 16, TRAIN_RATES_ROWS = 8 };

typedef struct train_rates_drafter {
    double flops_per_second;   /* forward and backward of rows with their anchors */
    double tokens_per_second;  /* context tokens of the rows that were measured */
    double update_seconds;     /* gradient norm and optimizer step of all parameters */
    double evaluation_seconds; /* 0: nothing is held out */
} train_rates_drafter;
typedef struct train_rates_row {
    char kind[8]; /* of device: "cpu" */
    int threads;
    double target_flops_per_second, target_tokens_per_second;
    double copy_bytes_per_second;                      /* one thread, memory to memory */
    train_rates_drafter drafter[TRAIN_RATES_DRAFTERS]; /* in the recipe's order */
} train_rates_row;
typedef struct train_rates {
    char machine[256], program[64], measured[24]; /* where, by which version, when (UTC) */
    double disk_bytes_per_second;                 /* written and synced; 0: not measured */
    int n_drafters, n;
    train_rates_row row[TRAIN_RATES_ROWS];
} train_rates;

/* Rows of data_open's set go through roles on a handle of so many threads; nothing of the run changes. brief 1: one short row, target
 * and drafters alone. Adds a row to the table, or replaces the one with these threads. */
MUST_CHECK err train_rates_measure(train *t, int threads, int brief, train_rates *out);
/* Everything that a forecast of the run as placed asks for: each number of threads that a device of it has. */
MUST_CHECK err train_rates_measure_run(train *t, train_rates *out);
/* NULL when there is none. */
const train_rates_row *train_rates_find(const train_rates *r, const char *kind, int threads);

MUST_CHECK err train_rates_write(const train *t, const train_rates *r, const char *path);
/* ERR_REFUSED naming what differs when the table is of other shapes than t's. */
MUST_CHECK err train_rates_read(const train *t, train_rates *r, const char *path);

#endif
