/* A plan, its rates and its forecast as one JSON object with stable keys (docs/FORMATS.md), for `paceline plan --json`.
 *
 * It prints nothing. Keys that mean nothing for a recipe (no rates, no splits asked for) are left out, not null. */
#ifndef CLI_PLAN_JSON_H
#define CLI_PLAN_JSON_H
#include "io/json.h"
#include "train/train_forecast.h"

typedef struct plan_json_splits {
    int devices, n, best;
    double link; /* bytes/s */
    double rows; /* of an update */
    int stated;  /* the link's speed was given, not measured */
    const train_forecast_split *split;
    int n_scale; /* best splits of fewer devices: 1, 2, 4 … */
    const train_forecast_split *scale;
    const int *scale_devices;
} plan_json_splits;

/* rates, run and splits may be NULL. */
json_t *plan_json(const train_plan *p, const train_rates *rates, const train_forecast_run *run,
                  const plan_json_splits *splits);

#endif
