/* Progress on standard error: one line rewritten in place on a terminal, a plain line now and then
 * elsewhere. A finished line stays. It never writes to standard output, which belongs to results, and
 * it keeps no thread: a line is drawn when the caller passes by. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H
#include "core/err.h"

typedef struct progress {
    int terminal;
    int open;
    double last;
    double every;
} progress;
void progress_start(progress *p); /* looks at standard error once */
/* Draws when due (10 a second on a terminal, every 10 s elsewhere) or when force is 1. */
void progress_line(progress *p, int force, const char *fmt, ...) PRINTF_LIKE(3, 4);
void progress_end(progress *p); /* closes an open line */

#endif
