/* What a run folder tells without touching it: who works in it, how it ended last, its newest checkpoints.
 *
 * Read for `status` and `stop`. A run without named drafters has one line with the name "". What is damaged is told in a
 * sentence, since status is asked when something is wrong. */
#ifndef CLI_RUN_FOLDER_H
#define CLI_RUN_FOLDER_H
#include "train/live.h"

typedef struct run_saved {
    char name[LIVE_NAME];
    int64_t update, updates; /* of the newest whole checkpoint; -1: none */
    int64_t best_update;     /* -1: none */
    double tau, best_tau;
    double written; /* the checkpoint's time by its file system, seconds since 1970 */
    int finished;
    char problem[512]; /* what is wrong with it; "" */
} run_saved;

typedef struct run_folder {
    const char *path; /* borrowed */
    live_record *live;
    int has_record, ended, locked;
    live_where where;   /* LIVE_GONE without a record */
    live_end end;       /* when ended */
    char problem[1200]; /* a record that is damaged and counts as absent; "" */
    int n_saved;
    run_saved saved[LIVE_DRAFTERS];
} run_folder;

/* ERR_IO when path is no run folder. Free with run_folder_free also on failure. */
MUST_CHECK err run_folder_read(run_folder *f, const char *path);
void run_folder_free(run_folder *f);
/* Of the drafter that is least far: its newest checkpoint, -1 when one has none. */
int64_t run_folder_update(const run_folder *f);

#endif
