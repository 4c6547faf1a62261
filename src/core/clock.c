/* Clocks for people: progress lines, log stamps and benches.
 *
 * The monotonic clock measures spans, the real-time clock only prints UTC.
 * No value that a run computes may depend on either. */
#include "core/clock.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void clock_utc(char out[21]) {
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    if (strftime(out, 21, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0) memcpy(out, "?", 2);
}

const char *clock_span(double seconds, char buf[16]) {
    if (!(seconds >= 0)) seconds = 0;
    if (seconds > 3.5e9) seconds = 3.5e9; /* a century: an estimate that means "never" */
    unsigned s = (unsigned)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, 16, "%uh%02um", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(buf, 16, "%um%02us", s / 60, s % 60);
    else
        snprintf(buf, 16, "%us", s);
    return buf;
}
