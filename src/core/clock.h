/* Clocks: a monotonic one for spans, UTC for stamps, and spans as people read them.
 *
 * Nothing computed depends on them: they serve progress lines, logs and benches. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H
#include <stdint.h>

double clock_seconds(void);   /* monotonic */
void clock_utc(char out[21]); /* "2026-11-29T16:04:17Z" */
/* "1h04m", "3m20s", "12s" into buf, returned. */
const char *clock_span(double seconds, char buf[16]);

#endif
