/* What the machine and its containers leave to this process: memory that can still be taken.
 *
 * Read from /proc/meminfo and control groups of version 1 and 2, from the process's own group up to the root of the mount; the
 * tightest one counts. Pages of files that a group can drop are no use of memory. Absent files mean no limit. It looks, and changes
 * nothing. */
#ifndef CORE_LIMITS_H
#define CORE_LIMITS_H
#include "core/err.h"

typedef struct limits_memory {
    double available;  /* of the machine, in bytes; -1: not told */
    double group_room; /* what the tightest group still gives; -1: no limit */
    double room;       /* the smaller one; -1: nothing is known */
} limits_memory;
/* root "": this system; a test's folder holds proc/ and sys/ as the system does. */
void limits_get_memory(const char *root, limits_memory *out);

#endif
