/* The live record of a run, RUN/live.json: which process works here and what it does, for `status`, `stop` and anyone who looks.
 *
 * A struct of plain fields that the run fills in and writes at every tick as a whole file (renamed into place, not synced). It names its
 * process by id, start time, boot, namespace and host, so a recycled id or a foreign process of a similar name is never taken for
 * it. A clean end removes it and leaves RUN/last_end.json; a record whose process is gone tells of a run that was killed. */
#ifndef TRAIN_LIVE_H
#define TRAIN_LIVE_H
#include "core/process.h"
#include "dist/heart.h"
#include "io/json.h"

enum {
    LIVE_NAME = 64,
    LIVE_DRAFTERS = 32,
    LIVE_ROLES = 256,
    LIVE_RINGS = 128,
    LIVE_ARENAS = 256,
    LIVE_DEVICES = 64
};

typedef struct live_drafter {
    char name[LIVE_NAME]; /* "" without names */
    char state[16];       /* "training", "saving", "evaluating", "finished", "failed" ... */
    int64_t update, updates, epoch;
    int64_t saved; /* update of the newest checkpoint, -1: none yet */
    double loss, tau, tokens_per_second, seconds_left; /* NaN: not known */
} live_drafter;

typedef struct live_role {
    char name[LIVE_NAME]; /* "target 0 on cpu:0" */
    char phase[LIVE_NAME];
    int waiting, left;
    int64_t step;
    double age, waited, lived; /* seconds, as in heart_view */
} live_role;

typedef struct live_ring {
    char name[LIVE_NAME];
    int64_t fill, capacity, passed;
    double producer_wait, consumer_wait; /* seconds in all */
} live_ring;

typedef struct live_arena {
    char name[LIVE_NAME];
    int64_t bytes;
} live_arena;

typedef struct live_device {
    char name[LIVE_NAME]; /* "cpu:0", "cuda:3" */
    char roles[LIVE_NAME];
    int64_t threads, bytes; /* bytes that this run holds there */
} live_device;

typedef struct live_record {
    process_id process, supervisor; /* supervisor.pid 0: none */
    char version[32];
    char state[16];  /* "preparing", "training", "saving", "evaluating", "stopping" */
    char doing[160]; /* more of it in words: "tokens of 310,000 of 902,000 rows"; may be "" */
    char started[24], written[24]; /* UTC; live_begin and live_write set them */
    double stamp;                  /* `written` as seconds since 1970 */
    double uptime;                 /* seconds since live_begin, at the last live_write */
    int n_drafters, n_roles, n_rings, n_arenas, n_devices;
    live_drafter drafters[LIVE_DRAFTERS];
    live_role roles[LIVE_ROLES];
    live_ring rings[LIVE_RINGS];
    live_arena arenas[LIVE_ARENAS];
    live_device devices[LIVE_DEVICES];
    double begun; /* clock_seconds of live_begin; not in the file */
} live_record;

/* On the heap, since it is large; zeroed. */
MUST_CHECK err live_create(live_record **out);
void live_free(live_record *r);
/* Who this process is, and when it began. supervisor: the process that restarts it, 0: none. */
MUST_CHECK err live_begin(live_record *r, const char *version, int64_t supervisor);
void live_set_roles(live_record *r, const heart *h);
MUST_CHECK err live_write(const char *run, live_record *r);
json_t *live_json(const live_record *r); /* what live_write writes; to be freed by json_decref */
/* *found 0: no record. The folder need not exist. */
MUST_CHECK err live_read(const char *run, live_record *r, int *found);

typedef enum live_where {
    LIVE_GONE,  /* its process has ended */
    LIVE_RUNS,  /* here, and may be signalled */
    LIVE_UNSEEN /* on another host or in another container: only its lock could tell */
} live_where;
/* Where the record's process is. One that cannot be seen but is of this machine is gone when the run's lock is free. */
live_where live_locate(const char *run, const live_record *r);
int live_is_running(
    const live_record *r); /* seen from here: the same host, boot, process id and start time */

/* How a run of the folder ended last. */
typedef struct live_end {
    char how[16];    /* "finished", "stopped", "refused", "failed", "killed" */
    char text[2048]; /* what it said; "" when finished */
    char at[24];     /* UTC */
    int64_t pid;
    char host[256];
    int64_t update, updates; /* of the drafter that was least far; -1: unknown */
} live_end;
/* The run's last word: last_end.json after e and err_text(), the record removed; "refused" is what the same start would meet again. Returns e, with err_text() as it was; what cannot be
 * written is a warning, since the run has ended anyway. */
err live_finish(const char *run, live_record *r, err e);
/* The same for a process that could not speak (killed by a signal) and is gone: how "killed", text says by whom. Does nothing when the
 * folder's record names another process by now. */
MUST_CHECK err live_bury(const char *run, const process_id *dead, const char *text);
MUST_CHECK err live_read_end(const char *run, live_end *end, int *found);

#endif
