/* A run's memory and its beginning: first weights or the newest checkpoint; and saving.
 *
 * The two arenas are taken once, capped at what the plan states. A run begins by owning its folder (lock), sweeping what a killed
 * process left, and then either continuing from the newest complete checkpoint or starting from update 0. After a
 * checkpoint is published the file `best`, the folder `drafter` and the pruning of old ones follow from it. */
#include "core/file.h"
#include "core/log.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH = 4096 };

err train__take_memory(train *t) {
    const size_t total = (size_t)t->l.total;
    const recipe *r = t->r;
    const adamw_config c = {.beta1 = recipe_real(r, RECIPE_optimizer_beta1),
                            .beta2 = recipe_real(r, RECIPE_optimizer_beta2),
                            .eps = recipe_real(r, RECIPE_optimizer_eps),
                            .weight_decay = recipe_real(r, RECIPE_optimizer_weight_decay),
                            .clip = recipe_real(r, RECIPE_optimizer_clip)};
    TRY(arena_create(&t->state, "drafter state", t->state_bytes));
    TRY(arena_alloc(t->state, total, sizeof *t->params, &t->params));
    TRY(arena_alloc(t->state, total, sizeof *t->grads, &t->grads));
    TRY(arena_alloc(t->state, total, sizeof *t->start, &t->start));
    TRY(adamw_create(&t->opt_state, &t->l, &c, t->state));
    TRY(arena_alloc(t->state, (size_t)t->plan.max_row_anchors, sizeof *t->anchor, &t->anchor));
    TRY(arena_create(&t->work, "micro-batch", t->work_bytes));
    t->step.d = t->d;
    t->step.t = t->t;
    t->step.layout = &t->l;
    t->step.work = t->work;
    return ERR_OK;
}

/* ---- beginning ---- */

static err describe(const train *t, checkpoint_state *s) {
    *s = (checkpoint_state){
        .updates = t->plan.updates, .tau = NAN, .best_tau = NAN, .best_update = -1};
    target_digest(t->t, s->target_digest);
    data_digest(t->data, s->data_digest);
    s->data_docs = data_count(t->data);
    if (t->held) data_digest(t->held, s->held_digest);
    snprintf(s->blas, sizeof s->blas, "%s, %s", dev_blas_path(t->d),
             dev_isa_name(dev_get_isa(t->d)));
    return recipe_canonical(t->r, &s->recipe);
}

static err first_weights(train *t) {
    const char *init = recipe_text(t->r, RECIPE_drafter_init);
    dtype stored;
    if (init[0])
        TRY(drafter_read_params(&t->l, init, t->params, &stored));
    else
        drafter_init(&t->l, t->seed, t->params);
    for (int64_t i = 0; i < t->l.total; i++) t->start[i] = bf16_from_f32(t->params[i]);
    return ERR_OK;
}

/* Forgets an unfinished run of the folder; a finished one is not thrown away by a flag. */
static err clear_folder(const train *t, const char *found, int64_t update) {
    static const char *const names[] = {"checkpoints", "drafter", "best", "metrics.jsonl"};
    char path[PATH];
    if (update >= 0) {
        checkpoint_state old;
        TRY(checkpoint_read_state(found, &old));
        const int finished = old.finished;
        checkpoint_state_free(&old);
        if (finished)
            return err_set(ERR_REFUSED,
                           "%s holds a finished run, which a fresh start would destroy; choose "
                           "another run.out or remove the folder",
                           t->run);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TRY(file_join(path, sizeof path, t->run, names[i]));
        TRY(file_remove_tree(path));
    }
    return ERR_OK;
}

/* A set that only grew holds the run's documents still, in front: its digest at their number is the saved one. */
static err compare_saved(const train *t, const char *found, const checkpoint_state *saved) {
    checkpoint_state now = t->at;
    if (saved->data_docs >= 0 && saved->data_docs < now.data_docs)
        TRY(data_digest_at(t->data, saved->data_docs, now.data_digest));
    return checkpoint_compare(found, saved, &now);
}

static err resume(train *t, const char *found) {
    checkpoint_state saved;
    TRY(checkpoint_read_state(found, &saved));
    err e = compare_saved(t, found, &saved);
    if (!e && saved.updates != t->at.updates)
        e = err_set(ERR_REFUSED,
                    "%s belongs to a run of %" PRId64 " updates and this one has %" PRId64
                    "; start fresh or choose another run.out",
                    found, saved.updates, t->at.updates);
    const checkpoint_buffers b = {&t->l, t->params, t->opt_state.m, t->opt_state.v};
    if (!e) e = checkpoint_read_buffers(found, &b);
    if (!e) e = data_stream_seek(t->stream, saved.cursor);
    if (!e) {
        /* Identity is this process's own; progress is the checkpoint's. */
        const checkpoint_state own = t->at;
        str_free(&saved.recipe);
        t->at = saved;
        t->at.recipe = own.recipe;
        t->at.data_docs = own.data_docs;
        memcpy(t->at.data_digest, own.data_digest, sizeof own.data_digest);
        memcpy(t->at.blas, own.blas, sizeof own.blas);
        t->opt_state.steps = t->at.adam_steps;
        if (!t->opt.quiet)
            log_info("continuing %s at update %" PRId64 " of %" PRId64, t->run, t->at.update,
                     t->at.updates);
    } else {
        checkpoint_state_free(&saved);
    }
    return e;
}

static err write_text(const char *dir, const char *name, const char *text, size_t n) {
    char path[PATH];
    file_writer *w = NULL;
    TRY(file_join(path, sizeof path, dir, name));
    TRY(file_writer_open(&w, path));
    err e = file_write(w, text, n);
    if (e) {
        file_abort(&w);
        return e;
    }
    return file_commit(&w);
}

/* Whether the folder is a run's or empty: files of others (a recipe.yaml above all) are not overwritten. */
static err check_folder(const train *t) {
    char **names = NULL, other[256] = "";
    int n = 0, ours = 0;
    TRY(file_list(t->run, &names, &n));
    for (int i = 0; i < n; i++) {
        ours |= !strcmp(names[i], "lock") || !strcmp(names[i], "checkpoints");
        if (strncmp(names[i], ".tmp-", 5)) snprintf(other, sizeof other, "%.200s", names[i]);
    }
    file_names_free(names, n);
    if (ours || !other[0]) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "%s is no run folder and holds other files (%s); choose a new run.out", t->run,
                   other);
}

static err own_folder(train *t) {
    char path[PATH];
    TRY(file_make_dirs(t->run));
    TRY(check_folder(t));
    TRY(file_join(path, sizeof path, t->run, "lock"));
    err e = file_lock(path, &t->lock);
    if (e) {
        t->lock = -1;
        return err_context(e, "run folder %s is in use: ", t->run);
    }
    TRY(file_sweep(t->run));
    for (int i = 0; i < 2; i++) {
        TRY(file_join(path, sizeof path, t->run, i ? "drafter" : "checkpoints"));
        if (file_is_dir(path)) TRY(file_sweep(path));
    }
    return ERR_OK;
}

/* What follows from the checkpoint just written or read: the best one's name, the export, and room. */
static err publish(const train *t) {
    char path[PATH], name[64];
    if (t->at.best_update >= 0) {
        const int n =
            snprintf(name, sizeof name, "checkpoints/step-%08" PRId64 "\n", t->at.best_update);
        TRY(write_text(t->run, "best", name, (size_t)n));
    }
    TRY(file_join(path, sizeof path, t->run, "drafter"));
    TRY(drafter_save(&t->l, t->params, DT_BF16, path));
    return checkpoint_prune(t->run, recipe_int(t->r, RECIPE_run_keep), t->at.best_update);
}

err train__begin(train *t) {
    char found[PATH], path[PATH];
    int64_t update = -1;
    TRY(own_folder(t));
    TRY(checkpoint_find(t->run, found, sizeof found, &update));
    TRY(describe(t, &t->at));
    if (t->opt.fresh) {
        TRY(clear_folder(t, found, update));
        update = -1;
    }
    TRY(first_weights(t));
    if (update >= 0) TRY(resume(t, found));
    TRY(write_text(t->run, "recipe.yaml", t->at.recipe.s, t->at.recipe.n));
    TRY(file_join(path, sizeof path, t->run, "checkpoints"));
    TRY(file_make_dirs(path));
    TRY(file_join(path, sizeof path, t->run, "metrics.jsonl"));
    TRY(row_trim(path, "update", t->at.update));
    TRY(row_open(&t->rows, path));
    t->first_update = t->at.update;
    t->unmoved = train__count_unmoved(t);
    /* The run may have ended between its last checkpoint and what follows from it. */
    return update >= 0 ? publish(t) : ERR_OK;
}

/* ---- saving ---- */

int64_t train__count_unmoved(const train *t) {
    int64_t n = 0;
    for (int k = 0; k < t->l.n; k++) {
        const int64_t at = t->l.t[k].offset;
        for (int64_t i = 0; i < t->l.t[k].count; i++)
            n += bf16_from_f32(t->params[at + i]) == t->start[at + i];
    }
    return n;
}

err train__save(train *t) {
    const checkpoint_buffers b = {&t->l, t->params, t->opt_state.m, t->opt_state.v};
    t->at.adam_steps = t->opt_state.steps;
    t->at.cursor = data_stream_tell(t->stream);
    TRY(checkpoint_save(t->run, &t->at, &b));
    return publish(t);
}
