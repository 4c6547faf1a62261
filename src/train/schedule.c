/* Learning rate schedules in double precision.
 *
 * The share of what is left is counted from the end of the warm-up, so the update after the last would
 * have exactly min_lr; no update is wasted on a rate of 0.
 * It keeps no state: a resumed run asks with the number it continues at. */
#include "train/schedule.h"
#include <math.h>
#include <string.h>

int schedule_parse(const char *name, schedule_kind *out) {
    static const char *const names[] = {"cosine", "wsd", "constant"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (schedule_kind)i;
            return 1;
        }
    return 0;
}

double schedule_rate(const schedule *s, int64_t u) {
    double total = (double)s->updates, warm = ceil(s->warmup * total), at = (double)u;
    if (at < warm) return s->peak * (at + 1) / warm;
    if (s->kind == SCHEDULE_CONSTANT || total <= warm) return s->peak;
    if (s->kind == SCHEDULE_COSINE) {
        double share = (at - warm) / (total - warm);
        if (share > 1) share = 1;
        return s->min_lr + (s->peak - s->min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * share));
    }
    double fall = ceil(0.2 * total), start = total - fall;
    if (start < warm) start = warm;
    if (at < start) return s->peak;
    double share = (at - start) / (total - start);
    return s->peak + (s->min_lr - s->peak) * (share > 1 ? 1 : share);
}
