/* Opening a run: target, tokenizer, template, drafters' shapes, the folder, data, placement, the plan; and closing it.
 *
 * Everything that the recipe, the models and the devices can be refused for is refused before the run folder is touched; then the
 * folder is owned, rows are prepared in it, and the plan is made. With plan_only nothing is written and it stops after the plan. It
 * reads the recipe and hands on numbers: later files look at the recipe only for what they alone need. */
#include "core/file.h"
#include "io/gguf.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static err open_models(train *t) {
    const recipe *r = t->r;
    const char *path = recipe_text(r, RECIPE_target_path);
    const dev_config dc = {.threads = (int)recipe_int(r, RECIPE_devices_threads)};
    TRY(dev_open_cpu(&t->loader, &dc));
    if (file_exists(path) && !file_is_dir(path)) TRY(train__check_target(t, path));
    TRY(target_load(&t->t, t->loader, path, NULL));
    gguf *g = NULL;
    err e = gguf_open(&g, path);
    if (e)
        return err_context(
            e, "training needs the tokenizer inside a GGUF target, which cannot be read: ");
    e = tokenizer_load_gguf(&t->tok, g);
    gguf_close(g);
    if (e) return e;
    const char *name =
        recipe_is_auto(r, RECIPE_data_template) ? "auto" : recipe_text(r, RECIPE_data_template);
    return chat_template_open(&t->chat, name, t->tok);
}

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The layers that any drafter taps, each once, rising; and where each drafter finds its own. */
static void unite_taps(train *t) {
    int n = 0, kept = 0;
    for (int i = 0; i < t->n_drafters; i++) {
        const drafter_config *c = &t->drafter[i].l.cfg;
        memcpy(t->taps + n, c->taps, (size_t)c->n_taps * sizeof *t->taps);
        n += c->n_taps;
    }
    qsort(t->taps, (size_t)n, sizeof *t->taps, by_value);
    for (int i = 0; i < n; i++)
        if (!kept || t->taps[kept - 1] != t->taps[i]) t->taps[kept++] = t->taps[i];
    t->n_taps = kept;
    for (int i = 0; i < t->n_drafters; i++) {
        train_drafter *d = &t->drafter[i];
        for (int k = 0; k < d->l.cfg.n_taps; k++)
            while (t->taps[d->column[k]] != d->l.cfg.taps[k]) d->column[k]++;
    }
}

static err open_drafters(train *t) {
    const int named = recipe_drafters(t->r);
    if (named > TRAIN_MAX_DRAFTERS)
        return err_set(ERR_RECIPE, "%s: %d drafters are named; %d are the most in one run",
                       recipe_path(t->r), named, TRAIN_MAX_DRAFTERS);
    const int n = named ? named : 1;
    TRY(arena_alloc(t->small, (size_t)n, sizeof *t->drafter, &t->drafter));
    for (; t->n_drafters < n; t->n_drafters++) {
        const int i = t->n_drafters;
        err e = train__open_drafter(t, &t->drafter[i], recipe_drafter(t->r, i),
                                    recipe_drafter_name(t->r, i));
        if (e && named) return err_context(e, "drafter %s: ", recipe_drafter_name(t->r, i));
        if (e) return e;
    }
    unite_taps(t);
    return ERR_OK;
}

/* What can be said of the rows before the run's folder is made. */
static err check_rows(const train *t) {
    const recipe *r = t->r;
    const char *const *paths = NULL;
    const int64_t longest = recipe_int(r, RECIPE_data_max_length);
    const int64_t context = target_get_config(t->t)->context;
    if (longest > context)
        return err_set(ERR_RECIPE,
                       "%s: data.max_length is %" PRId64 ", beyond the target's context of %" PRId64
                       " tokens; lower it",
                       recipe_where(r, RECIPE_data_max_length), longest, context);
    const char *held = recipe_text(t->r, RECIPE_data_validation);
    const int n = recipe_list(r, RECIPE_data_path, &paths);
    for (int i = 0; i <= n; i++) {
        const char *path = i < n ? paths[i] : held;
        if (path[0] && !file_exists(path))
            return err_set(ERR_IO, "%s: %s does not exist",
                           recipe_where(r, i < n ? RECIPE_data_path : RECIPE_data_validation),
                           path);
    }
    return ERR_OK;
}

/* The folder of prepared rows. A plan uses one that is there, changes nothing in it and makes none. */
static err store_of(const train *t, char *path, size_t n, const char **store) {
    *store = path;
    if (recipe_is_auto(t->r, RECIPE_data_store))
        TRY(file_join(path, n, t->run, "tokens"));
    else {
        const char *dir = recipe_text(t->r, RECIPE_data_store);
        if (snprintf(path, n, "%s", dir) >= (int)n)
            return err_set(ERR_RANGE, "%s: data.store is too long a path",
                           recipe_where(t->r, RECIPE_data_store));
    }
    if (t->opt.plan_only && !file_is_dir(path)) *store = NULL;
    return ERR_OK;
}

static int goes_on(const train *t) {
    int yes = 0;
    for (int i = 0; i < t->n_drafters; i++) yes |= t->drafter[i].found[0] != 0;
    return yes;
}

/* Changed rows are prepared anew, over the old ones, only when the run would then take them. */
static err open_data(train *t) {
    const recipe *r = t->r;
    const char *const *paths = NULL, *store = NULL;
    char path[TRAIN_PATH];
    TRY(store_of(t, path, sizeof path, &store));
    const int own = recipe_is_auto(r, RECIPE_data_store), allow = t->opt.allow_change;
    const int said = recipe_bool(r, RECIPE_data_allow_changed);
    data_config cfg = {.tok = t->tok,
                       .chat = t->chat,
                       .max_length = recipe_int(r, RECIPE_data_max_length),
                       .lenient = recipe_bool(r, RECIPE_data_lenient),
                       .store = store,
                       .let_go = t->opt.plan_only,
                       .read_only = t->opt.plan_only,
                       .allow_changed = said || (own && (t->opt.fresh || allow)),
                       .threads = dev_threads(t->loader),
                       .beat = train__data_beat,
                       .beat_ctx = t,
                       .stop = t->opt.stop};
    if (goes_on(t) && !allow) {
        cfg.allow_changed = 0;
        cfg.allow_by = own ? "continue with --allow-change"
                           : "continue with --allow-change and data.allow_changed: true";
    }
    const int n = recipe_list(r, RECIPE_data_path, &paths);
    TRY(data_open(&t->data, paths, n, &cfg));
    if (data_count(t->data) < 1)
        return err_set(ERR_FORMAT,
                       "%s: data.path holds no document with two supervised tokens in a row, so "
                       "there is nothing to train on",
                       recipe_where(r, RECIPE_data_path));
    const char *held = recipe_text(r, RECIPE_data_validation);
    if (!held[0]) return ERR_OK;
    /* Its prompts are copied and the rest is only counted. */
    cfg.store = NULL;
    cfg.let_go = 1;
    return data_open(&t->held, &held, 1, &cfg);
}

static void set_numbers(train *t) {
    const recipe *r = t->r;
    t->run = recipe_text(r, RECIPE_run_out);
    t->seed = recipe_int(r, RECIPE_run_seed);
    t->tokens_per_row = recipe_int(r, RECIPE_run_tokens_per_row);
    t->tokens_per_step = recipe_int(r, RECIPE_run_tokens_per_step);
    t->epochs = recipe_int(r, RECIPE_run_max_updates) ? 0 : recipe_int(r, RECIPE_run_epochs);
}

static err find_checkpoints(train *t) {
    for (int i = 0; i < t->n_drafters; i++) TRY(train__find_checkpoint(t, &t->drafter[i]));
    return ERR_OK;
}

/* Where each drafter stands; the run begins where the one that is least far does. Epochs that any drafter began keep their
 * documents for all of them, whatever was added since. */
static err find_beginning(train *t) {
    int64_t begun = 0;
    for (int i = 0; i < t->n_drafters; i++) {
        train_drafter *d = &t->drafter[i];
        TRY(train__take_checkpoint(t, d));
        if (train__epochs_begun(d->at.cursor) > begun) {
            begun = train__epochs_begun(d->at.cursor);
            t->epoch_docs = d->at.epochs;
        }
        if (i && d->at.update >= t->from_update) continue;
        t->from_update = d->at.update;
        t->from = d->at.cursor;
    }
    data_epochs_add(&t->epoch_docs, begun, data_count(t->data));
    return ERR_OK;
}

/* The plan asked for room already; preparing rows may have taken of it since. */
static err open_store(train *t) {
    const char *dir = recipe_text(t->r, RECIPE_features_store);
    features_shape shape = {0};
    str key = {0};
    uint64_t stored = 0;
    if (!dir[0]) return ERR_OK;
    err e = train__features_shape(t, &key, &shape);
    const uint64_t all = features_bytes(t->plan.tokens, shape.width);
    if (!e) e = features_stored(dir, &shape, &stored);
    if (!e) e = features_check_room(dir, all > stored ? all - stored : 0);
    if (!e) e = features_open(&t->store, dir, &shape);
    str_free(&key);
    return e;
}

static err take_memory_and_begin(train *t) {
    for (int i = 0; i < t->n_targets; i++) TRY(train__target_memory(t, &t->target[i]));
    for (int i = 0; i < t->n_drafters; i++) {
        TRY(train__drafter_memory(t, &t->drafter[i]));
        TRY(train__begin_drafter(t, &t->drafter[i]));
    }
    TRY(data_stream_open(&t->stream, t->data, t->seed, t->tokens_per_row));
    TRY(data_stream_walk(t->stream, &t->epoch_docs));
    TRY(data_stream_seek(t->stream, t->from));
    TRY(open_store(t));
    TRY(feed_open(&t->feed, t->stream, train__mark(t, t->plan.updates)->rows, t->store != NULL));
    return heart_create(&t->heart, LIVE_ROLES);
}

static err write_recipe(train *t) {
    str text = {0};
    err e = recipe_canonical(t->r, &text);
    if (!e) e = train__write_text(t->run, "recipe.yaml", text.s, text.n);
    str_free(&text);
    return e;
}

static err open_run(train *t) {
    TRY(arena_create(&t->small, "run", 0));
    set_numbers(t);
    train__look_at_room(t);
    TRY(open_models(t));
    TRY(open_drafters(t));
    TRY(train__check_weights(t));
    TRY(train__place(t));
    TRY(check_rows(t));
    if (!t->opt.plan_only) {
        TRY(train__own_folder(t));
        TRY(live_run_open(&t->live, t->run, t->opt.supervisor));
    }
    TRY(find_checkpoints(t));
    train__tell(t, "preparing", "rows");
    TRY(open_data(t));
    train__tell(t, "preparing", "placement, plan and memory");
    TRY(train__place_auto(t));
    if (t->held)
        TRY(evaluate_prepare(&t->prompts, t->held, t->t,
                             recipe_int(t->r, RECIPE_run_evaluate_prompts),
                             recipe_int(t->r, RECIPE_run_evaluate_tokens), t->small));
    TRY(find_beginning(t));
    TRY(train__open_devices(t));
    TRY(train__make_plan(t));
    if (t->opt.plan_only) return ERR_OK;
    TRY(train_check_plan(t));
    TRY(write_recipe(t));
    return take_memory_and_begin(t);
}

err train_open(train **out, const recipe *r, const train_options *opt) {
    train *t = NULL;
    *out = NULL;
    TRY(mem_new(1, sizeof *t, &t));
    t->r = r;
    t->lock = -1;
    if (opt) t->opt = *opt;
    pthread_mutex_init(&t->guard, NULL);
    pthread_mutex_init(&t->watching, NULL);
    pthread_cond_init(&t->changed, NULL);
    err e = open_run(t);
    if (e) {
        e = live_run_close(t->live, e);
        t->live = NULL;
        train_close(t);
    } else {
        *out = t;
    }
    return e;
}

void train_close(train *t) {
    if (!t || t->abandoned) return;
    live_run_drop(t->live);
    heart_destroy(t->heart);
    feed_free(t->feed);
    features_close(t->store);
    for (int i = 0; i < t->n_drafters; i++) train__close_drafter(&t->drafter[i]);
    for (int i = 0; i < t->n_targets; i++) arena_destroy(t->target[i].work);
    data_stream_close(t->stream);
    data_close(t->held);
    data_close(t->data);
    chat_template_free(t->chat);
    tokenizer_free(t->tok);
    target_free(t->t);
    train__close_devices(t);
    arena_destroy(t->small);
    if (t->lock >= 0) file_unlock(t->lock);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->watching);
    pthread_mutex_destroy(&t->guard);
    mem_free(t->mark);
    mem_free(t);
}
