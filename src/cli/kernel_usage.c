/* Lines about what kernels use, read and shown: see kernel_usage.h.
 *
 * Nothing is judged here; tools/kernels_check.sh holds the numbers to its list. */
#include "cli/kernel_usage.h"
#include <stdio.h>
#include <string.h>

typedef struct line {
    char name[200];
    long registers, stack, spilled, shared;
} line;

/* Reads the next line; NULL after the last. */
static const char *next_line(const char *p, line *out) {
    while (*p) {
        int n = sscanf(p, "%199s registers %ld stack %ld spilled %ld shared %ld", out->name,
                       &out->registers, &out->stack, &out->spilled, &out->shared);
        p += strcspn(p, "\n");
        p += *p == '\n';
        if (n == 5) return p;
    }
    return NULL;
}

json_t *kernel_usage_json(const char *usage) {
    json_t *all = json_array();
    line l;
    for (const char *p = usage; (p = next_line(p, &l)) != NULL;)
        json_array_append_new(all, json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", l.name,
                                             "registers", (json_int_t)l.registers, "stack",
                                             (json_int_t)l.stack, "spilled", (json_int_t)l.spilled,
                                             "shared", (json_int_t)l.shared));
    return all;
}

void kernel_usage_print(const char *usage) {
    line l;
    for (const char *p = usage; (p = next_line(p, &l)) != NULL;)
        printf("  %-66s %4ld %6ld %6ld %7ld\n", l.name, l.registers, l.stack, l.spilled, l.shared);
}
