/* What a run does, as a table for people and as one JSON object for programs.
 *
 * Drawn from a run_folder; nothing is looked up here but the memory that the run's process holds now. */
#ifndef CLI_STATUS_TEXT_H
#define CLI_STATUS_TEXT_H
#include "cli/run_folder.h"
#include "core/str.h"
#include "io/json.h"

MUST_CHECK err status_text(const run_folder *f, str *out);
json_t *status_text_json(const run_folder *f); /* free by json_decref */
/* "a", "b/c" ...: the last word on a run that has ended, in one line. */
MUST_CHECK err status_text_end(const run_folder *f, str *out);

#endif
