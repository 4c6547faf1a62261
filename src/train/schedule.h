/* Learning rates as functions of the update number alone: not of time, of data, or of being resumed.
 *
 * The first ceil(warmup * updates) updates rise linearly to the peak, which the last of them has. Then: constant;
 * cosine, falling to min_lr at the end; or wsd, which holds the peak and falls linearly to min_lr over the
 * last fifth of the updates. */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H
#include <stdint.h>

typedef enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_CONSTANT } schedule_kind;
typedef struct schedule {
    schedule_kind kind;
    double peak, min_lr;
    double warmup;   /* share of updates */
    int64_t updates; /* of the whole run */
} schedule;

int schedule_parse(const char *name, schedule_kind *out); /* 1 if known */
/* Rate of update u, 0-based. */
double schedule_rate(const schedule *s, int64_t u);

#endif
