/* The insides of a training run, shared by the train_*.c files only.
 *
 * One handle holds the models, the data, the two arenas (state: masters, moments, gradient; work: one micro-batch) and
 * what a checkpoint records. Not for other folders: they see train.h. */
#ifndef TRAIN_TRAIN_PARTS_H
#define TRAIN_TRAIN_PARTS_H
#include "core/row.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/train.h"

struct train {
    const recipe *r;
    train_options opt;
    const char *run; /* the run folder */
    arena *small;    /* layout, prompts */
    dev *d;
    target *t;
    tokenizer *tok;
    chat_template *chat;
    data_set *data, *held; /* held: NULL without data.validation */
    data_stream *stream;
    drafter_layout l;
    schedule rate;
    int64_t anchor_limit, tokens_per_step, tokens_per_row, seed;
    int64_t epochs; /* 0: updates decide */
    evaluate_set prompts;
    train_plan plan;
    int64_t max_row_docs;
    size_t state_bytes, work_bytes;

    arena *state, *work;
    float *params, *grads;
    bf16 *start; /* [layout.total] first weights as exported: what `unmoved` is counted against */
    int32_t *anchor; /* [plan.max_row_anchors] */
    adamw opt_state;
    step step;
    checkpoint_state at;
    row_file *rows;
    int lock; /* -1: not held */
    int64_t unmoved;
    double seconds;       /* of updates in this process */
    int64_t first_update; /* this process began after it */
};

/* train_config.c: every `auto` of the recipe resolved against target, tokenizer and drafter.init. */
MUST_CHECK err train__drafter_config(const train *t, drafter_config *c);
/* train_plan.c */
MUST_CHECK err train__make_plan(train *t);
/* train_state.c: memory, first weights or the newest checkpoint; saving. */
MUST_CHECK err train__take_memory(train *t);
MUST_CHECK err train__begin(train *t);
MUST_CHECK err train__save(train *t);
int64_t train__count_unmoved(const train *t);
/* train_update.c */
typedef struct train__update {
    step_sums sums;
    double loss, lr, grad_norm, seconds;
    int bad;
} train__update;
MUST_CHECK err train__one_update(train *t, train__update *u);
/* Whether an update that holds so many rows and context tokens is whole: another full row would not fit. */
static inline int train__update_is_whole(const train *t, int64_t rows, int64_t tokens) {
    return rows > 0 && tokens + t->tokens_per_row > t->tokens_per_step;
}
/* Whether the stream stands past the last epoch. */
static inline int train__data_spent(const train *t, data_cursor c) {
    return t->epochs > 0 && c.epoch >= t->epochs;
}

#endif
