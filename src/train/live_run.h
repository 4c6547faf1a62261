/* A running run's side of its live record: kept by the process that holds the folder's lock, from then until its end.
 *
 * Any thread may fill the record in between live_run_begin and live_run_end; it is written at most twice a second unless asked for at once.
 * The run's log lines go to RUN/log.txt meanwhile. A record that cannot be written is a warning, once: the run goes on. */
#ifndef TRAIN_LIVE_RUN_H
#define TRAIN_LIVE_RUN_H
#include "train/live.h"

typedef struct live_run live_run;
/* Writes the first record, "preparing", and opens RUN/log.txt. supervisor: process id, 0: none. */
MUST_CHECK err live_run_open(live_run **out, const char *run, int64_t supervisor);
/* The record, for the calling thread alone until live_run_end. */
live_record *live_run_begin(live_run *x);
void live_run_end(live_run *x, int at_once);
/* The folder is not the run's any more: from here on nothing is written there. */
void live_run_leave(live_run *x);
/* The run's last word (live_finish) and the end of its log file; frees x. Returns e with its text; NULL is fine. */
err live_run_close(live_run *x, err e);
/* The same for a run that was opened and never run; err_text() stays as it is. */
void live_run_drop(live_run *x);

#endif
