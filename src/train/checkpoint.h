/* Checkpoints: everything a run needs to continue as if it had never stopped, published whole or not at all.
 *
 * A checkpoint is RUN/checkpoints/step-NNNNNNNN/ with state.json, masters.safetensors, moments.safetensors (both fp32), drafter/ (the
 * bf16 export) and COMPLETE, which lists each file's digest and is written last. The folder is built beside, synced
 * and renamed. Reading verifies every digest first; a part that is missing or damaged is refused by name. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H
#include "core/str.h"
#include "data/data.h"
#include "model/drafter.h"

enum { CHECKPOINT_FORMAT = 2 };

typedef struct checkpoint_state {
    int64_t update, updates; /* done; of the whole run */
    int64_t adam_steps, bad_in_row, bad_total;
    data_cursor cursor;
    data_epochs epochs; /* documents of the epochs that it began: drafters of one run share them */
    double tau, best_tau; /* of the last and the best evaluation; NaN: none yet */
    int64_t best_update;  /* -1: none */
    int finished;
    int64_t ranks;     /* of the drafter: sums are made in their order */
    int64_t data_docs; /* documents that data_digest covers: a set may have grown since */
    char target_digest[33], data_digest[33], held_digest[33];
    char blas[256]; /* what computed it: matrix library and instruction set */
    str recipe;     /* canonical text; freed by checkpoint_state_free */
} checkpoint_state;
void checkpoint_state_free(checkpoint_state *s);

/* The four buffers of a run, one layout. */
typedef struct checkpoint_buffers {
    const drafter_layout *layout;
    float *params, *m, *v;
} checkpoint_buffers;

MUST_CHECK err checkpoint_save(const char *run, const checkpoint_state *s,
                               const checkpoint_buffers *b);
/* Newest complete checkpoint of a run: its folder and update; *update -1 when there is none. Folders without their completion mark are
 * passed over with a warning. */
MUST_CHECK err checkpoint_find(const char *run, char *path, size_t n, int64_t *update);
/* state.json alone, verified; then the weights and moments. */
MUST_CHECK err checkpoint_read_state(const char *path, checkpoint_state *s);
MUST_CHECK err checkpoint_read_buffers(const char *path, const checkpoint_buffers *b);
/* What a run goes on with that is not what it began with, once that was allowed. */
typedef struct checkpoint_changes {
    int rows; /* other training data: the cursor means nothing in it */
    int held; /* other held-out data: best scores do not compare */
} checkpoint_changes;
/* ERR_REFUSED naming the target, the first recipe key, or the data, that differs and may not. now: what the run would write. allow: keys
 * that leave the drafter's shape alone, and rows, may differ; each one is logged. The first needs no rows, so it is asked before any
 * is prepared. */
MUST_CHECK err checkpoint_compare_recipe(const char *path, const checkpoint_state *saved,
                                         const checkpoint_state *now, int allow);
MUST_CHECK err checkpoint_compare_rows(const char *path, const checkpoint_state *saved,
                                       const checkpoint_state *now, int allow,
                                       checkpoint_changes *out);
/* Keeps the newest `keep` and the best; removes the others. */
MUST_CHECK err checkpoint_prune(const char *run, int64_t keep, int64_t best_update);
void checkpoint_path(const char *run, int64_t update, char *path, size_t n);

#endif
