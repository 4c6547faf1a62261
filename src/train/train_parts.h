/* The insides of a training run, shared by the train_*.c files only.
 *
 * One handle holds models, data, devices and roles: targets that make features, and drafters with one rank or several that use them.
 * What belongs to one thread is in that role's struct; what several roles touch says so and by which lock. Not for other
 * folders: they see train.h. */
#ifndef TRAIN_TRAIN_PARTS_H
#define TRAIN_TRAIN_PARTS_H
#include "core/row.h"
#include "dist/group.h"
#include "dist/heart.h"
#include "dist/ring.h"
#include "dist/watchdog.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/features.h"
#include "train/feed.h"
#include "train/live_run.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/train.h"
#include <pthread.h>

enum {
    TRAIN_PATH = 4096,
    TRAIN_MAX_CPUS = 64,
    TRAIN_MAX_DEVICES = 64,
    TRAIN_MAX_DRAFTERS = LIVE_DRAFTERS
};

typedef struct train_device {
    char name[16];
    int index, threads; /* of cpu:index; its share of threads */
    dev *d;
    pthread_mutex_t
        turn; /* held by the role that computes; never while it waits for another role */
} train_device;

/* A role's face: its name and its place on the board, NULL before its thread has begun. */
typedef struct train_role {
    char name[HEART_NAME];
    heart_role *heart;
    train_memory_counts memory; /* of its arenas; under train.guard */
} train_role;

/* One row with its features, in a ring. */
typedef struct train_slot {
    data_row row;
    int64_t index, epoch;
    float *taps; /* [max_row_tokens, n_taps*H] */
} train_slot;

typedef struct train_target {
    train_device *on;
    int index;
    arena *work;
    data_row row; /* own buffer */
    float *taps;  /* [max_row_tokens, n_taps of the union * H] */
    uint8_t *
        stored; /* [max_row_docs] whether a document's taps are in the store, before the row's forward */
    train_role role;
    size_t work_bytes;
} train_target;

typedef struct train_drafter train_drafter;
typedef struct train_rank {
    train_drafter *of;
    int rank;
    train_device *on;
    arena *state, *work;
    size_t state_bytes, work_bytes;
    float *params, *grads; /* [layout.total] */
    int32_t *anchor;       /* [max_row_anchors] */
    adamw opt;             /* this rank's shard */
    step step;
    int64_t update; /* done */
    int whole;      /* weights and moments are those of `update`, on every rank */
    int64_t first;  /* row of this rank that is entry 0 of its ring */
    ring *in;
    train_slot *slots; /* [ring capacity] */
    train_role role;
} train_rank;

struct train_drafter {
    const char *name; /* "" without names */
    const recipe *r;  /* its own view */
    char folder[TRAIN_PATH];
    drafter_layout l;
    int column[DRAFTER_MAX_TAPS]; /* of each tap in the union of all drafters' taps */
    schedule rate;
    int64_t anchor_limit, max_row_anchors;
    double epoch_flops;
    char
        found[TRAIN_PATH]; /* newest checkpoint; "" when there is none, or it is not gone on with */
    checkpoint_state saved; /* its state */
    int n_ranks;
    train_rank *rank;
    group *group;
    int ring_capacity;
    int64_t first_row; /* rows before it are of updates done already */
    /* Rank 0's, between threads only at the group's meetings. */
    arena *state; /* moments and first weights */
    size_t state_bytes;
    adamw whole;
    bf16 *start; /* [layout.total] first weights as exported: what `unmoved` is counted against */
    checkpoint_state at;
    row_file *rows;
    int64_t unmoved, first_update;
    double seconds; /* of updates in this process */
    /* Under train.guard. */
    int64_t saved_update; /* of the newest checkpoint; -1: none. Only rank 0 writes it */
    train_progress shown;
    err failed;
    char failure[1024];
    int stopped; /* it ended at a request */
    int ended;   /* ranks that have ended */
};

struct train {
    const recipe *r;
    train_options opt;
    const char *run; /* the run folder */
    arena *small;    /* layouts, prompts, tables */
    dev *loader; /* all threads: loads, prepares, measures; NULL once devices have their shares */
    train_device *device; /* [n_devices] */
    int n_devices;
    int threads; /* of all devices together */
    target *t;
    tokenizer *tok;
    chat_template *chat;
    data_set *data, *held; /* held: NULL without data.validation */
    data_stream *stream;
    feed *feed;
    features *store; /* of taps; NULL: computed again in each epoch */
    int64_t tokens_per_step, tokens_per_row, seed;
    int64_t epochs; /* 0: updates decide */
    evaluate_set prompts;
    train_plan plan;
    int64_t taps[TRAIN_MAX_DRAFTERS * DRAFTER_MAX_TAPS]; /* the union, rising */
    int n_taps;
    int n_targets;
    train_target *target;
    int n_drafters;
    train_drafter *drafter;
    data_cursor from;       /* where this process begins: of the drafter that is least far */
    int64_t from_update;    /* updates done there */
    data_epochs epoch_docs; /* documents that epochs walk: those begun by any drafter, then all */
    data_cursor *mark;      /* [updates - from_update + 1] the cursor after each update */
    size_t mark_cap;
    struct {
        double since; /* clock_seconds of the first beat; 0: none */
        int64_t from; /* bytes done then */
    } reading;        /* of rows that are being prepared */
    int lock;         /* -1: not held */
    live_run *live;   /* NULL while the folder is not owned */

    heart *heart;
    pthread_mutex_t guard; /* of shown, failed, stopped, ended, lost, running, forwards */
    pthread_cond_t changed;
    int lost;         /* the run folder is not this run's any more: nothing is written there */
    int running;      /* role threads that have not ended */
    int64_t forwards; /* rows that went through the target */
    int abandoned;
    pthread_mutex_t watching; /* held while the watcher is called */
    train_watch watch;
    void *watch_ctx;
    const _Atomic int *stop;
};

/* train_config.c: every `auto` of a drafter's recipe resolved against target, tokenizer and drafter.init. */
MUST_CHECK err train__drafter_config(const train *t, const recipe *r, drafter_config *c);
/* train_devices.c: which roles run where, by the recipe's lists, or where everything is auto; then the handles. */
MUST_CHECK err train__place(train *t);
MUST_CHECK err train__place_auto(train *t);
MUST_CHECK err train__open_devices(train *t);
/* Threads of device `at` of n that share `threads`. */
static inline int train__share(int threads, int n, int at) {
    const int share = threads / n + (at < threads % n);
    return share ? share : 1;
}
void train__close_devices(train *t);
/* train_auto.c: the split of CPU threads that a short measurement (train_rates) favours; 0: one device in turns. */
MUST_CHECK err train__measure_split(train *t, int threads, int *target_threads);
/* train_drafter.c: a drafter's shape and numbers; where it stands; its memory; its beginning and its saves. */
MUST_CHECK err train__open_drafter(train *t, train_drafter *d, const recipe *r, const char *name);
MUST_CHECK err train__find_checkpoint(train *t, train_drafter *d); /* before rows are prepared */
MUST_CHECK err train__take_checkpoint(train *t, train_drafter *d); /* when they are */
MUST_CHECK err train__drafter_memory(train *t, train_drafter *d);
MUST_CHECK err train__begin_drafter(train *t, train_drafter *d);
MUST_CHECK err train__save(train *t, train_drafter *d);
int64_t train__count_unmoved(const train_drafter *d);
void train__close_drafter(train_drafter *d);
/* train_folder.c */
MUST_CHECK err train__own_folder(train *t);
MUST_CHECK err train__sweep_folder(const char *dir);
MUST_CHECK err train__check_folder_is_held(const train *t); /* ERR_IO: it is another's or gone */
MUST_CHECK err train__clear_folder(const train_drafter *d);
MUST_CHECK err train__write_text(const char *dir, const char *name, const char *text, size_t n);
/* train_plan.c: the plan, and rows counted on paper. */
MUST_CHECK err train__make_plan(train *t);
/* FLOP of a row with so many tokens: the target's part, the same for all drafters, and a drafter's. */
double train__target_flops(const train *t, double n);
double train__drafter_flops(const train_drafter *d, double n, double anchors);
/* What memory and disk follow from: the recipe's own settings, or others that are tried on paper. */
typedef struct train__sizes {
    int64_t tokens_per_row;
    int64_t anchor_limit; /* no drafter draws more of a document */
    int64_t keep;         /* checkpoints kept */
    int ring;             /* rows that wait per drafter device; 0: chosen */
    int targets, ranks;   /* so many target devices, and ranks of each drafter, at most */
    int without;          /* this drafter is left out; -1: none */
    int features;         /* taps are kept on disk */
} train__sizes;
typedef struct train__rows {
    int64_t max_tokens, max_docs, updates; /* updates: from where the run stands */
    int64_t max_anchors[TRAIN_MAX_DRAFTERS];
} train__rows;
MUST_CHECK err train__count_rows(train *t, const train__sizes *z, train__rows *out);
/* train_bytes.c: memory with such settings. lines [train__line_count] or NULL; with lines the roles' caps are noted too. */
typedef struct train__bytes {
    size_t total, allowance;
    int devices, n_lines;
} train__bytes;
void train__own_sizes(const train *t, train__sizes *z);
int train__line_count(const train *t);
MUST_CHECK err train__count_bytes(train *t, const train__sizes *z, const train__rows *rows,
                                  train_plan_line *lines, train__bytes *out);
/* train_disk.c: what the run will write, and what taps in a store depend on besides tokens. */
MUST_CHECK err train__count_files(const train *t, const train__sizes *z, const train__rows *rows,
                                  train_plan_file files[TRAIN_PLAN_FILES], int *n);
/* The folder itself, or the nearest one above it that is there. path is absolute. */
MUST_CHECK err train__nearest_folder(const char *path, char *out, size_t n);
MUST_CHECK err train__features_shape(const train *t, str *key, features_shape *out);
/* train_fit.c: whether it fits, why not, and what would. */
void train__look_at_room(train *t);
MUST_CHECK err train__check_weights(const train *t);
MUST_CHECK err train__check_target(const train *t, const char *path);
MUST_CHECK err train__judge(train *t);
/* train_targets.c, train_ranks.c, train_update.c: what a role's thread does. */
MUST_CHECK err train__target_memory(train *t, train_target *g);
MUST_CHECK err train__target_role(train *t, train_target *g);
MUST_CHECK err train__rank_role(train *t, train_rank *k);
void train__count_rank_memory(train *t, train_rank *k);
typedef struct train__update {
    step_sums sums; /* of all ranks */
    double loss, lr, grad_norm, seconds;
    int bad;
    int stop; /* rank 0 saw a request: every rank ends after this update */
} train__update;
MUST_CHECK err train__one_update(train *t, train_rank *k, train__update *u);
/* train_report.c: what follows an update on rank 0. */
MUST_CHECK err train__follow(train *t, train_rank *k, train__update *u);

/* train_live.c: the live record, and the thread that fills it in and looks for a stall. */
void train__tell(train *t, const char *state, const char *doing);
void train__data_beat(void *ctx, int64_t lines, int64_t bytes_done, int64_t bytes_all);
MUST_CHECK err train__start_watchdog(train *t, watchdog **out);
/* train_role.c: a phase of a role begins. An error: the run is ending, or a watcher broke the role. */
MUST_CHECK err train__phase(train *t, const train_role *role, const char *phase, int64_t at);
/* A role's turn on its device; it may wait for the others there. */
void train__begin_turn(train_device *on, const train_role *role, int64_t at);
void train__end_turn(train_device *on);
/* It waits for another role from now on, until its next phase. */
void train__wait(const train_role *role, const char *what, int64_t at);
/* The role's arenas (n, NULL among them is fine) as they are now, for train_memory. */
void train__count_memory(train *t, train_role *role, arena *const *a, int n);
/* A role's failure. Of a drafter (d) among several it ends that drafter alone, unless the recipe says stop; else the run. */
void train__fail(train *t, train_drafter *d, const train_role *role, err e);
int train__is_over(train *t, train_drafter *d); /* it takes no more rows */

/* The cursor after `update` updates; after the run's last for those beyond it, where a drafter may stand when its run was made
 * shorter. */
static inline const data_cursor *train__mark(const train *t, int64_t update) {
    const int64_t last = t->plan.updates;
    return &t->mark[(update < last ? update : last) - t->from_update];
}
/* Epochs of which a cursor has seen a document. */
static inline int64_t train__epochs_begun(data_cursor c) { return c.epoch + (c.docs > 0); }
/* Whether rank k of n has row i. */
static inline int train__has_row(const train_rank *k, int64_t i) {
    return i % k->of->n_ranks == k->rank;
}

#endif
