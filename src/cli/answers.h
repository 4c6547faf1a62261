/* The answers file of regenerate: JSONL rows {"id", "source", "messages", "target", "max_new"}, one
 * prompt a row in the order of the prompts. Rows are appended whole; on a restart the rows that are
 * there are kept and checked against the prompts, and a file of other prompts is refused. */
#ifndef CLI_ANSWERS_H
#define CLI_ANSWERS_H
#include "data/prompts.h"

typedef struct answers answers;
/* Opens or creates path, for this process alone; a cut last line of ours is removed. ERR_REFUSED naming the row when existing rows are not the
 * first answers to these prompts by this target with this limit. done: how many are there. */
MUST_CHECK err answers_open(answers **out, const char *path, const prompt_set *prompts,
                            const char *target, int64_t max_new, int64_t *done);
void answers_close(answers *w);
/* m: the whole conversation, answers included; cut: the last answer stopped at a limit. */
MUST_CHECK err answers_write(answers *w, const prompt *p, const chat_message *m, int n, int cut);

#endif
