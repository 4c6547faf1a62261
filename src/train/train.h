/* Training run: recipe → plan → roles on devices → run folder with checkpoints, metric rows and exported drafters.
 *
 * The frozen target runs on one device or several, each working on its own rows; every drafter of the recipe trains on one device or
 * several (ranks, data parallel); features travel from the ones to the others through bounded rings. One process, one thread per role;
 * roles that share a device take turns on it. Results depend on recipe, data, target and each drafter's number of ranks alone:
 * not on placement, threads, timing or being stopped and resumed. All memory is taken from arenas sized by the plan.
 *
 * Run folder: recipe.yaml (canonical), lock, live.json while a process works here, last_end.json after, log.txt, tokens/ (prepared rows), and for the drafter metrics.jsonl, checkpoints/step-NNNNNNNN/
 * {state.json, masters.safetensors, moments.safetensors, drafter/ (z-lab export, bf16), COMPLETE}, best (a text file naming the best
 * checkpoint), drafter/ (the latest export); with named drafters each has these in drafters/NAME/. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H
#include "core/str.h"
#include "data/data.h"
#include "decode/decode.h"
#include "io/recipe.h"

/* What a run will take and do, before it starts (plan command; train refuses what plan refuses). */
typedef struct train_plan_line {
    char device[16]; /* "" for the host as a whole */
    char role[64];   /* "target", "drafter", "drafter NAME, rank 1 of 3", or "" */
    char name[64];   /* what the bytes hold */
    size_t bytes;
} train_plan_line;
/* What is written to one folder of the run. */
typedef struct train_plan_file {
    char name[64];
    const char *folder;
    uint64_t bytes, there; /* in the end; of these on the disk already */
    uint64_t room;         /* free on the folder's file system */
    uint64_t system;       /* which file system: folders of one share its room */
} train_plan_file;
/* A change with which the run would fit: verified by making the plan with it. */
typedef struct train_plan_fit {
    char set[512]; /* settings as on the command line, or words */
    uint64_t bytes;
} train_plan_fit;
typedef struct train_plan_drafter {
    const char *name;                /* "" without names */
    int64_t params, anchors_per_row; /* most */
    int64_t anchors_per_epoch;
    double flops_per_epoch;
    int ranks;
} train_plan_drafter;
enum { TRAIN_PLAN_FILES = 5, TRAIN_PLAN_FITS = 4 };
typedef struct train_plan {
    int64_t documents, tokens, supervised, rows_per_epoch, tokens_per_epoch, updates;
    int64_t from_update;            /* updates done before */
    int64_t rows_left, tokens_left; /* of the updates that are not */
    int64_t drafter_params;         /* of all drafters */
    int64_t target_params;
    int64_t max_row_tokens, max_row_docs;
    int64_t max_row_anchors; /* of all drafters */
    int n_drafters;
    train_plan_drafter *drafters;
    int n_lines;
    train_plan_line *lines;
    size_t total_bytes,
        allowance; /* allowance: what libraries and handles may take beside the arenas */
    size_t
        memory_room; /* what the machine and its containers left when the run was opened; 0: not told */
    int n_files;
    train_plan_file files[TRAIN_PLAN_FILES];
    char refused[1536]; /* why the run does not fit, and what would; "": it fits */
    int n_fits;
    train_plan_fit fits[TRAIN_PLAN_FITS];
    double flops_per_epoch, target_flops_per_epoch;
    char placement[512]; /* which roles run where, and why */
    char preview[4096];  /* first row with supervised text marked */
} train_plan;

typedef struct train train;
/* Loads target, tokenizer, data; resolves autos; refuses with sentences. The recipe is borrowed for the run's life. fresh 1: start
 * over, removing what an unfinished run left in the folder (refused when it holds a finished or a running one).
 * plan_only 1: stop at the plan; nothing is written and train_run must not be called. */
typedef struct train_options {
    int fresh;
    int plan_only;
    int quiet;
    int allow_change; /* a resumed run may go on with another recipe or other rows, as far as its drafters keep their shape */
    int64_t supervisor; /* process that starts this one again after a crash; 0: none */
    /* Called by every role at each phase it begins, on the role's thread; an error it returns is that role's failure. For
     * watching a run from outside and for tests that slow, stop or break a role; NULL: nobody watches. */
    err (*on_phase)(void *ctx, const char *role, const char *phase, int64_t step);
    void *on_phase_ctx;
    /* A plan is made for so much instead of what the machine has; a run takes no more than that. 0: what the machine has. */
    size_t memory_limit;
    uint64_t disk_limit; /* of each file system */
    /* What is read of the rows, as a line for people, at least once a second while they are prepared; NULL: nobody watches. */
    void (*on_rows)(void *ctx, const char *line);
    void *on_rows_ctx;
    /* Non-zero ends preparation of rows before the run has begun (ERR_STOPPED); train_run has its own. */
    const _Atomic int *stop;
} train_options;
MUST_CHECK err train_open(train **out, const recipe *r, const train_options *opt);
/* Does nothing to a run that was abandoned: its threads may still be using everything. */
void train_close(train *t);
const train_plan *train_get_plan(const train *t);
/* ERR_REFUSED with plan->refused. Only a plan can be opened that this refuses; train_open of a run does the same itself. */
MUST_CHECK err train_check_plan(const train *t);
MUST_CHECK err train_plan_text(const train *t, str *out); /* the table that `plan` prints */

/* Progress for the caller to draw; called after every update and evaluation. */
typedef struct train_progress {
    const char *drafter; /* "" without names */
    int64_t update, updates, epoch;
    double loss, lr, grad_norm, tokens_per_second, seconds_left;
    double slot_accuracy[DECODE_MAX_BLOCK];
    int slots;  /* index = slot 1.. */
    double tau; /* last evaluation by real decoding; NaN before the first */
    int64_t bad_steps;
    int64_t unmoved; /* trained tensors' entries bit-equal (bf16) to their start */
} train_progress;
/* Calls come from the drafters' threads, one at a time. */
typedef void (*train_watch)(void *ctx, const train_progress *p);
/* Runs to the end, or until *stop becomes non-zero (saved, ERR_STOPPED). The first failure ends the run, except one of a single
 * drafter among several with run.on_drafter_error: continue, which is returned when the others are done. */
MUST_CHECK err train_run(train *t, train_watch watch, void *ctx, const _Atomic int *stop);
/* Whether roles still run although train_run has returned, because they did not end within run.end_seconds. The process must end then. */
int train_is_abandoned(const train *t);

/* What the run's arenas took: reserved and system_calls stay as they are from the first update on. */
typedef struct train_memory_counts {
    size_t reserved, peak;
    uint64_t system_calls;
} train_memory_counts;
void train_memory(const train *t, train_memory_counts *out);
/* Rows that went through the target so far in this process: one pass feeds all drafters. */
int64_t train_target_rows(const train *t);

#endif
