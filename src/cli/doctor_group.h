/* What this process's control groups allow: CPU time, memory, swap, processes. Versions 1 and 2.
 *
 * A limit holds for every group below it, so the least one from this process's group up to the root of the mount
 * counts. Inside a container the path of the group may not exist under the mount; its root is the container's. */
#ifndef CLI_DOCTOR_GROUP_H
#define CLI_DOCTOR_GROUP_H
#include "cli/doctor_roots.h"

typedef struct doctor_group {   /* -1: no limit, or not told */
    double cpus;                /* that the quota is worth */
    double throttled;           /* share of periods in which it was used up: 0..1 */
    double memory, memory_used; /* bytes; used without what the page cache can give back */
    double swap;
    double killed; /* processes that were ended for want of memory */
    double pids, pids_used;
} doctor_group;

void doctor_group_read(const doctor_roots *roots, doctor_group *out);

#endif
