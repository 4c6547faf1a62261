/* Sub-commands: one table row each. A command gets its parsed arguments and returns err; main prints
 * the sentence and maps it to an exit code (0 done, 1 failed, 2 usage or recipe, 3 stopped by request
 * with state saved). */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include "cli/args.h"

typedef struct command {
    const char *name;
    const char *usage;   /* after "paceline " */
    const char *summary; /* one line */
    const char *details; /* more help, or NULL */
    const arg_spec *spec;
    int min_pos, max_pos;
    err (*run)(const args *a);
} command;

extern const command command_train, command_plan, command_status, command_stop, command_generate,
    command_regenerate, command_bench, command_attend, command_probe, command_mask, command_inspect,
    command_doctor, command_warmup, command_cache;

#endif
