/* Prompts: JSONL lines that ask for answers, for regenerate, bench and evaluation.
 *
 * A line is {"prompt": text}, {"turns": [text, ...]} (user turns, each to be answered before the next) or {"messages": [...]}
 * ending in a user turn; "id" (text or integer) and "source" or "kind" (text) are kept when present. Other keys are ignored.
 * Any bad line stops the load with file, line and byte offset: an evaluation never runs on fewer prompts than the file holds. */
#ifndef DATA_PROMPTS_H
#define DATA_PROMPTS_H
#include "core/arena.h"
#include "text/chat.h"

typedef struct prompt {
    const char *id;     /* the file's id, or "line N" */
    const char *source; /* "" when the line names none */
    int64_t line;       /* 1-based */
    const chat_message *messages;
    int n; /* asked first: ends in a user turn */
    const char *const *turns;
    int n_turns; /* further user turns */
} prompt;

typedef struct prompt_set {
    prompt *items;
    int64_t n;
} prompt_set; /* all memory in the arena given */

/* key, value: keep only lines whose text field key equals value (NULL: all). limit > 0: the first limit of those. */
MUST_CHECK err prompts_load(prompt_set *out, const char *path, const char *key, const char *value,
                            int64_t limit, arena *a);

#endif
