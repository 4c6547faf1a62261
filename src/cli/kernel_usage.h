/* What kernels use (registers, stack, spilled bytes, shared memory), from the cache's lines to a table or to JSON.
 *
 * A line is "NAME registers N stack N spilled N shared N". Lines of another form are left out: a compiler that does not tell
 * leaves none. */
#ifndef CLI_KERNEL_USAGE_H
#define CLI_KERNEL_USAGE_H
#include <jansson.h>

/* A new array of {"name", "registers", "stack", "spilled", "shared"}. */
json_t *kernel_usage_json(const char *usage);
void kernel_usage_print(const char *usage); /* a line per function, indented */

#endif
