/* What a container or the system takes away: CPU quota, memory, shared memory, other processes, the clock.
 *
 * Read from cgroups of version 1 and 2 and from /proc; absent files mean no limit. Looks only. */
#ifndef CLI_DOCTOR_LIMITS_H
#define CLI_DOCTOR_LIMITS_H
#include "io/json.h"

/* The least memory limit of this process's control groups in bytes, or -1. */
double doctor_limits_memory(void);
/* Findings "quota", "shared memory", "processes", "clock". */
void doctor_limits_look(json_t *list);

#endif
