/* What a container or the system takes away: CPU time, memory, swap, shared memory, processes, open files, the clock.
 *
 * Every look takes the folders that it reads, so tests hand it others than the machine's own. Findings go to list,
 * figures under stable names to facts (bytes or counts; null where there is no limit or none is told). */
#ifndef CLI_DOCTOR_LIMITS_H
#define CLI_DOCTOR_LIMITS_H
#include "cli/doctor_roots.h"
#include "io/json.h"
#include <time.h>

/* All of the below, of the machine or of roots. */
void doctor_limits_look(json_t *list, json_t *facts, const doctor_roots *roots, int usable_cpus);
/* Bytes and files that a folder for runs can still take; dir need not exist yet: its nearest parent counts. */
void doctor_limits_disk(json_t *list, json_t *facts, const char *dir);
/* now against the time of the program's own file and the bounds of sense. ticking: the monotonic clock went on. */
void doctor_limits_clock(json_t *list, const doctor_roots *roots, time_t now, time_t program,
                         int ticking);
/* The same, measured. */
void doctor_limits_clock_now(json_t *list, const doctor_roots *roots);

#endif
