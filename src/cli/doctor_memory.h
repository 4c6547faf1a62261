/* The machine's processor and memory, and the processes that hold most of the memory.
 *
 * Processes are shown by pid, user and command, and never touched. Resident bytes count shared pages in every process
 * that maps them, so the holders may add up to more than is in use. */
#ifndef CLI_DOCTOR_MEMORY_H
#define CLI_DOCTOR_MEMORY_H
#include "cli/doctor_roots.h"
#include "io/json.h"

enum { DOCTOR_MEMORY_HOLDERS = 5 };
/* Findings "processor", "memory", "holder"; the device object cpu:0 goes to devices. */
void doctor_memory_look(json_t *list, json_t *devices, const doctor_roots *roots, int usable_cpus);
/* Command line of a process as printable ASCII, cut, or "" when it cannot be read. */
void doctor_memory_command(const doctor_roots *roots, unsigned pid, char *out, size_t n);
/* Name of the user who owns a process, or the number; "" when it cannot be seen. */
void doctor_memory_user(const doctor_roots *roots, unsigned pid, char *out, size_t n);

#endif
