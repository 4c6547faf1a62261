/* What a container or the system takes away: CPU quota, memory, shared memory, other processes, the clock.
 *
 * Control groups are read by core/limits. Looks only. */
#ifndef CLI_DOCTOR_LIMITS_H
#define CLI_DOCTOR_LIMITS_H
#include "io/json.h"

/* Findings "quota", "shared memory", "processes", "clock". */
void doctor_limits_look(json_t *list);

#endif
