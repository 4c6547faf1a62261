/* Training run: recipe → plan → run folder with checkpoints, metric rows and the exported drafter.
 *
 * One device, roles in turn (more devices come later behind the same calls). Deterministic: results depend on recipe, data and target
 * alone; not on threads, timing or being stopped and resumed. All memory is taken from arenas sized by train_plan.
 *
 * Run folder: recipe.yaml (canonical), metrics.jsonl, lock, checkpoints/step-NNNNNNNN/ {state.json, masters.safetensors, moments.safetensors,
 * drafter/ (z-lab export, bf16), COMPLETE}, best (link-free: a text file naming the best checkpoint), drafter/ (the latest export). */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H
#include "core/str.h"
#include "data/data.h"
#include "decode/decode.h"
#include "io/recipe.h"

/* What a run will take and do, before it starts (plan command; train refuses what plan refuses). */
typedef struct train_arena_line {
    char name[48];
    size_t bytes;
} train_arena_line;
typedef struct train_plan {
    int64_t documents, tokens, supervised, rows_per_epoch, tokens_per_epoch, updates;
    int64_t drafter_params, target_params;
    int64_t max_row_tokens, max_row_anchors;
    train_arena_line arenas[16];
    int n_arenas;
    size_t total_bytes,
        allowance; /* allowance: what libraries and handles may take beside the arenas */
    double flops_per_epoch;
    double seconds_estimate; /* from a rate measured in a moment; 0: not measured */
    char preview[4096];      /* first row with supervised text marked */
} train_plan;

typedef struct train train;
/* Loads target, tokenizer, data; resolves autos; refuses with sentences. The recipe is borrowed for the run's life. fresh 1: start
 * over, removing what an unfinished run left in the folder (refused when it holds a finished or a running one).
 * plan_only 1: stop at the plan; nothing is written and train_run must not be called. */
typedef struct train_options {
    int fresh;
    int plan_only;
    int quiet;
} train_options;
MUST_CHECK err train_open(train **out, const recipe *r, const train_options *opt);
void train_close(train *t);
const train_plan *train_get_plan(const train *t);
MUST_CHECK err train_plan_text(const train *t, str *out); /* the table that `plan` prints */

/* Progress for the caller to draw; called after every update and evaluation. */
typedef struct train_progress {
    int64_t update, updates, epoch;
    double loss, lr, grad_norm, tokens_per_second, seconds_left;
    double slot_accuracy[DECODE_MAX_BLOCK];
    int slots;  /* index = slot 1.. */
    double tau; /* last evaluation by real decoding; NaN before the first */
    int64_t bad_steps;
    int64_t unmoved; /* trained tensors' entries bit-equal (bf16) to their start */
} train_progress;
typedef void (*train_watch)(void *ctx, const train_progress *p);
/* Runs to the end, or until *stop becomes non-zero (saved, ERR_STOPPED). */
MUST_CHECK err train_run(train *t, train_watch watch, void *ctx, const volatile int *stop);

/* What the run's two arenas took: reserved and system_calls stay as they are from the first update on. */
typedef struct train_memory_counts {
    size_t reserved, peak;
    uint64_t system_calls;
} train_memory_counts;
void train_memory(const train *t, train_memory_counts *out);

#endif
