/* One drafter of a run: its shape and numbers, where it stands, its memory, its beginning and its saves.
 *
 * Each drafter has a recipe of its own (the common one and what it says itself), a folder, checkpoints and metric rows, as a run with that
 * drafter alone would have; its checkpoints are interchangeable with that run's. After a checkpoint is published the file
 * `best`, the folder `drafter` and the pruning of old ones follow from it. Ranks keep weights and gradients of
 * their own; moments exist once and each rank works on its shard of them. */
#include "core/file.h"
#include "core/log.h"
#include "train/labels.h"
#include "train/row_buffer.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- shape and numbers ---- */

static err set_schedule(train_drafter *d) {
    const recipe *r = d->r;
    d->rate = (schedule){.peak = recipe_real(r, RECIPE_optimizer_lr),
                         .min_lr = recipe_real(r, RECIPE_optimizer_min_lr),
                         .warmup = recipe_real(r, RECIPE_optimizer_warmup)};
    const char *kind = recipe_text(r, RECIPE_optimizer_schedule);
    if (!schedule_parse(kind, &d->rate.kind))
        return err_set(ERR_RECIPE, "%s: schedule %s is not known; cosine, wsd and constant are",
                       recipe_where(r, RECIPE_optimizer_schedule), kind);
    if (d->rate.min_lr > d->rate.peak)
        return err_set(ERR_RECIPE,
                       "%s: optimizer.min_lr is %g, above optimizer.lr which is %g; lower it",
                       recipe_where(r, RECIPE_optimizer_min_lr), d->rate.min_lr, d->rate.peak);
    return ERR_OK;
}

err train__open_drafter(train *t, train_drafter *d, const recipe *r, const char *name) {
    drafter_config c;
    d->name = name;
    d->r = r;
    d->saved_update = -1;
    d->anchor_limit = recipe_int(r, RECIPE_anchors_per_document);
    const int n = name[0] ? snprintf(d->folder, sizeof d->folder, "%s/drafters/%s", t->run, name)
                          : snprintf(d->folder, sizeof d->folder, "%s", t->run);
    if (n >= (int)sizeof d->folder)
        return err_set(ERR_RANGE, "%s: run.out is too long a path",
                       recipe_where(t->r, RECIPE_run_out));
    TRY(set_schedule(d));
    TRY(train__drafter_config(t, r, &c));
    return drafter_layout_make(&d->l, &c, t->small);
}

/* ---- where it stands ---- */

/* What is known of this process before its rows are prepared. */
static err describe(const train *t, train_drafter *d) {
    d->at = (checkpoint_state){.tau = NAN, .best_tau = NAN, .best_update = -1};
    target_digest(t->t, d->at.target_digest);
    return recipe_canonical(d->r, &d->at.recipe);
}

static void describe_rows(const train *t, train_drafter *d) {
    checkpoint_state *s = &d->at;
    dev *any = t->loader ? t->loader : t->device[0].d;
    s->ranks = d->n_ranks;
    data_digest(t->data, s->data_digest);
    s->data_docs = data_count(t->data);
    if (t->held) data_digest(t->held, s->held_digest);
    snprintf(s->blas, sizeof s->blas, "%s, %s", dev_blas_path(any), dev_isa_name(dev_get_isa(any)));
}

/* A set that only grew holds the run's documents still, in front: its digest at their number is the saved one. */
static err compare_rows(const train *t, const train_drafter *d, checkpoint_changes *changes) {
    checkpoint_state now = d->at;
    if (d->saved.data_docs >= 0 && d->saved.data_docs < now.data_docs)
        TRY(data_digest_at(t->data, d->saved.data_docs, now.data_digest));
    return checkpoint_compare_rows(d->found, &d->saved, &now, t->opt.allow_change, changes);
}

/* Identity is this process's own; progress is the checkpoint's. In other rows it stands at the beginning of its epoch. */
static void take_progress(train_drafter *d, const checkpoint_changes *changes) {
    const checkpoint_state own = d->at;
    d->at = d->saved;
    if (changes->rows) d->at.cursor.next = d->at.cursor.docs = d->at.epochs.n = 0;
    if (changes->held) {
        d->at.best_tau = NAN;
        d->at.best_update = -1;
    }
    memcpy(d->at.target_digest, own.target_digest, sizeof own.target_digest);
    memcpy(d->at.held_digest, own.held_digest, sizeof own.held_digest);
    d->at.recipe = own.recipe;
    d->at.data_docs = own.data_docs;
    d->at.ranks = own.ranks;
    memcpy(d->at.data_digest, own.data_digest, sizeof own.data_digest);
    memcpy(d->at.blas, own.blas, sizeof own.blas);
}

/* A start that is refused here has changed nothing of the run, nor of its prepared rows. */
err train__find_checkpoint(train *t, train_drafter *d) {
    int64_t update = -1;
    TRY(describe(t, d));
    if (!t->opt.plan_only) TRY(train__sweep_folder(d->folder));
    TRY(checkpoint_find(d->folder, d->found, sizeof d->found, &update));
    if (update < 0) d->found[0] = 0;
    if (!d->found[0]) return ERR_OK;
    TRY(checkpoint_read_state(d->found, &d->saved));
    if (!t->opt.fresh)
        return checkpoint_compare_recipe(d->found, &d->saved, &d->at, t->opt.allow_change);
    if (d->saved.finished)
        return err_set(ERR_REFUSED,
                       "%s holds a finished run, which a fresh start would destroy; choose "
                       "another run.out or remove the folder",
                       d->folder);
    d->found[0] = 0;
    return ERR_OK;
}

err train__take_checkpoint(train *t, train_drafter *d) {
    checkpoint_changes changes;
    describe_rows(t, d);
    if (!d->found[0]) return ERR_OK;
    TRY(compare_rows(t, d, &changes));
    take_progress(d, &changes);
    return ERR_OK;
}

/* ---- memory ---- */

static err rank_memory(train *t, train_rank *k) {
    train_drafter *d = k->of;
    const size_t total = (size_t)d->l.total;
    const int64_t width = d->l.cfg.n_taps * d->l.cfg.hidden;
    TRY(arena_create(&k->state, "drafter state", k->state_bytes));
    TRY(arena_alloc(k->state, total, sizeof *k->params, &k->params));
    TRY(arena_alloc(k->state, total, sizeof *k->grads, &k->grads));
    TRY(adamw_share(&k->opt, &d->whole, d->n_ranks, k->rank, k->state));
    TRY(arena_alloc(k->state, (size_t)d->max_row_anchors, sizeof *k->anchor, &k->anchor));
    TRY(arena_alloc(k->state, (size_t)d->ring_capacity, sizeof *k->slots, &k->slots));
    for (int i = 0; i < d->ring_capacity; i++) {
        train_slot *s = &k->slots[i];
        TRY(row_buffer_make(&s->row, t->plan.max_row_tokens, t->plan.max_row_docs, k->state));
        TRY(arena_alloc_raw(k->state, (size_t)t->plan.max_row_tokens,
                            (size_t)width * sizeof *s->taps, &s->taps));
    }
    TRY(arena_create(&k->work, "micro-batch", k->work_bytes));
    TRY(ring_create(&k->in, d->ring_capacity));
    k->step = (step){.d = k->on->d, .t = t->t, .layout = &d->l, .work = k->work};
    labels_decay(recipe_real(d->r, RECIPE_loss_gamma), d->l.cfg.block_size, k->step.decay);
    train__count_rank_memory(t, k);
    return ERR_OK;
}

err train__drafter_memory(train *t, train_drafter *d) {
    const recipe *r = d->r;
    const adamw_config c = {.beta1 = recipe_real(r, RECIPE_optimizer_beta1),
                            .beta2 = recipe_real(r, RECIPE_optimizer_beta2),
                            .eps = recipe_real(r, RECIPE_optimizer_eps),
                            .weight_decay = recipe_real(r, RECIPE_optimizer_weight_decay),
                            .clip = recipe_real(r, RECIPE_optimizer_clip)};
    TRY(arena_create(&d->state, "drafter moments", d->state_bytes));
    TRY(arena_alloc(d->state, (size_t)d->l.total, sizeof *d->start, &d->start));
    TRY(adamw_create(&d->whole, &d->l, &c, d->state));
    TRY(group_create(&d->group, d->n_ranks));
    for (int i = 0; i < d->n_ranks; i++) TRY(rank_memory(t, &d->rank[i]));
    return ERR_OK;
}

/* ---- beginning ---- */

static err first_weights(const train *t, train_drafter *d) {
    const char *init = recipe_text(d->r, RECIPE_drafter_init);
    float *params = d->rank[0].params;
    dtype stored;
    if (init[0])
        TRY(drafter_read_params(&d->l, init, params, &stored));
    else
        drafter_init(&d->l, t->seed, params);
    for (int64_t i = 0; i < d->l.total; i++) d->start[i] = bf16_from_f32(params[i]);
    return ERR_OK;
}

static checkpoint_buffers buffers_of(const train_drafter *d) {
    return (checkpoint_buffers){&d->l, d->rank[0].params, d->whole.m, d->whole.v};
}

/* What follows from the checkpoint just written or read: the best one's name, the export, and room. */
static err publish(const train_drafter *d) {
    char path[TRAIN_PATH], name[64];
    if (d->at.best_update >= 0) {
        const int n =
            snprintf(name, sizeof name, "checkpoints/step-%08" PRId64 "\n", d->at.best_update);
        TRY(train__write_text(d->folder, "best", name, (size_t)n));
    }
    TRY(file_join(path, sizeof path, d->folder, "drafter"));
    TRY(drafter_save(&d->l, d->rank[0].params, DT_BF16, path));
    return checkpoint_prune(d->folder, recipe_int(d->r, RECIPE_run_keep), d->at.best_update);
}

/* First row of each rank's ring, and its weights: those of rank 0. */
static void start_ranks(train *t, train_drafter *d) {
    d->first_row = train__mark(t, d->at.update)->rows;
    for (int i = 0; i < d->n_ranks; i++) {
        train_rank *k = &d->rank[i];
        k->update = d->at.update;
        k->opt.steps = d->at.adam_steps;
        k->first = d->first_row;
        while (!train__has_row(k, k->first)) k->first++;
        if (i) memcpy(k->params, d->rank[0].params, (size_t)d->l.total * sizeof *k->params);
    }
}

/* Drafters that stand at different updates share one order of rows. Where that order was changed, which must have been allowed, each
 * goes on with the rows that its number of updates leads to now. */
static err meet_mark(const train *t, train_drafter *d) {
    const data_cursor m = *train__mark(t, d->at.update), c = d->at.cursor;
    if (d->at.update > t->plan.updates) return ERR_OK; /* it has nothing to do any more */
    const int same_docs = c.next == 0 || m.docs == c.docs;
    if (m.epoch == c.epoch && m.next == c.next && m.rows == c.rows && same_docs) return ERR_OK;
    if (!t->opt.allow_change)
        return err_set(ERR_REFUSED,
                       "%s stands at update %" PRId64
                       ", after other rows than those to which that many updates lead from where "
                       "another drafter of the run stands; put its folder back as it was, go on "
                       "with the rows that come there by --allow-change, or start fresh",
                       d->folder, d->at.update);
    log_warn("%s goes on at update %" PRId64 " with the rows that come there in the changed order",
             d->folder, d->at.update);
    d->at.cursor = m;
    return ERR_OK;
}

static err open_rows(train_drafter *d) {
    char path[TRAIN_PATH];
    TRY(file_join(path, sizeof path, d->folder, "checkpoints"));
    TRY(file_make_dirs(path));
    TRY(file_join(path, sizeof path, d->folder, "metrics.jsonl"));
    TRY(row_trim(path, "update", d->at.update));
    return row_open(&d->rows, path);
}

err train__begin_drafter(train *t, train_drafter *d) {
    const checkpoint_buffers b = buffers_of(d);
    d->at.updates = d->rate.updates = t->plan.updates;
    if (d->at.updates < d->at.update) d->at.updates = d->at.update;
    d->at.finished = d->at.finished && d->at.update == d->at.updates;
    TRY(first_weights(t, d));
    if (d->found[0]) {
        TRY(checkpoint_read_buffers(d->found, &b));
        d->saved_update = d->at.update;
        if (!t->opt.quiet)
            log_info("continuing %s at update %" PRId64 " of %" PRId64, d->folder, d->at.update,
                     d->at.updates);
    }
    TRY(meet_mark(t, d));
    start_ranks(t, d);
    if (t->opt.fresh) TRY(train__clear_folder(d));
    TRY(open_rows(d));
    d->first_update = d->at.update;
    d->unmoved = train__count_unmoved(d);
    d->shown = (train_progress){.drafter = d->name,
                                .update = d->at.update,
                                .updates = d->at.updates,
                                .loss = NAN,
                                .tokens_per_second = NAN,
                                .seconds_left = NAN,
                                .tau = d->at.tau};
    /* The run may have ended between its last checkpoint and what follows from it. */
    return d->found[0] ? publish(d) : ERR_OK;
}

/* ---- saving ---- */

int64_t train__count_unmoved(const train_drafter *d) {
    const float *params = d->rank[0].params;
    int64_t n = 0;
    for (int k = 0; k < d->l.n; k++) {
        const int64_t at = d->l.t[k].offset;
        for (int64_t i = 0; i < d->l.t[k].count; i++)
            n += bf16_from_f32(params[at + i]) == d->start[at + i];
    }
    return n;
}

err train__save(train *t, train_drafter *d) {
    const checkpoint_buffers b = buffers_of(d);
    d->at.adam_steps = d->rank[0].opt.steps;
    d->at.cursor = *train__mark(t, d->at.update);
    d->at.epochs = t->epoch_docs;
    data_epochs_cut(&d->at.epochs, train__epochs_begun(d->at.cursor));
    /* Features of rows before the cursor must be there afterwards: made again in a later epoch they would have other bits. */
    if (t->store) TRY(features_sync(t->store));
    TRY(checkpoint_save(d->folder, &d->at, &b));
    pthread_mutex_lock(&t->guard);
    d->saved_update = d->at.update;
    pthread_mutex_unlock(&t->guard);
    return publish(d);
}

void train__close_drafter(train_drafter *d) {
    row_close(d->rows);
    checkpoint_state_free(&d->at);
    checkpoint_state_free(&d->saved);
    for (int i = 0; i < d->n_ranks; i++) {
        train_rank *k = &d->rank[i];
        ring_destroy(k->in);
        arena_destroy(k->work);
        arena_destroy(k->state);
    }
    group_destroy(d->group);
    arena_destroy(d->state);
}
