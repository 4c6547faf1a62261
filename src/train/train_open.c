/* Opening a run: devices, target, tokenizer, template, data, the drafter's shape, the plan; and closing it.
 *
 * Everything that can be refused is refused here, before the run folder is touched. With plan_only it stops after the plan. It
 * reads the recipe and hands on numbers: later files look at the recipe only for what they alone need. */
#include "core/file.h"
#include "io/gguf.h"
#include "train/train_parts.h"
#include "train/labels.h"
#include <inttypes.h>
#include <string.h>

static err check_devices(const recipe *r, recipe_field f) {
    const char *const *items = NULL;
    if (recipe_is_auto(r, f)) return ERR_OK;
    const int n = recipe_list(r, f, &items);
    for (int i = 0; i < n; i++)
        if (strcmp(items[i], "auto") != 0 && strcmp(items[i], "cpu") != 0 &&
            strcmp(items[i], "cpu:0") != 0)
            return err_set(ERR_RECIPE, "%s: device %s is not known to this build, which has cpu:0",
                           recipe_where(r, f), items[i]);
    if (n > 1)
        return err_set(ERR_RECIPE, "%s: %s names %d devices; this build runs a role on one",
                       recipe_where(r, f), recipe_field_name(f), n);
    return ERR_OK;
}

static err open_models(train *t) {
    const recipe *r = t->r;
    const char *path = recipe_text(r, RECIPE_target_path);
    const dev_config dc = {.threads = (int)recipe_int(r, RECIPE_devices_threads)};
    TRY(check_devices(r, RECIPE_devices_target));
    TRY(check_devices(r, RECIPE_devices_drafter));
    TRY(dev_open_cpu(&t->d, &dc));
    TRY(target_load(&t->t, t->d, path, NULL));
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

static err open_data(train *t) {
    const recipe *r = t->r;
    const char *const *paths = NULL;
    const int64_t longest = recipe_int(r, RECIPE_data_max_length);
    const int64_t context = target_get_config(t->t)->context;
    if (longest > context)
        return err_set(ERR_RECIPE,
                       "%s: data.max_length is %" PRId64 ", beyond the target's context of %" PRId64
                       " tokens; lower it",
                       recipe_where(r, RECIPE_data_max_length), longest, context);
    const data_config cfg = {.tok = t->tok,
                             .chat = t->chat,
                             .max_length = longest,
                             .lenient = recipe_bool(r, RECIPE_data_lenient)};
    const int n = recipe_list(r, RECIPE_data_path, &paths);
    TRY(data_open(&t->data, paths, n, &cfg));
    if (data_count(t->data) < 1)
        return err_set(ERR_FORMAT,
                       "%s: data.path holds no document with two supervised tokens in a row, so "
                       "there is nothing to train on",
                       recipe_where(r, RECIPE_data_path));
    const char *held = recipe_text(r, RECIPE_data_validation);
    if (!held[0]) return ERR_OK;
    return data_open(&t->held, &held, 1, &cfg);
}

static err set_numbers(train *t) {
    const recipe *r = t->r;
    t->run = recipe_text(r, RECIPE_run_out);
    t->seed = recipe_int(r, RECIPE_run_seed);
    t->anchor_limit = recipe_int(r, RECIPE_anchors_per_document);
    t->tokens_per_row = recipe_int(r, RECIPE_run_tokens_per_row);
    t->tokens_per_step = recipe_int(r, RECIPE_run_tokens_per_step);
    t->epochs = recipe_int(r, RECIPE_run_max_updates) ? 0 : recipe_int(r, RECIPE_run_epochs);
    t->rate = (schedule){.peak = recipe_real(r, RECIPE_optimizer_lr),
                         .min_lr = recipe_real(r, RECIPE_optimizer_min_lr),
                         .warmup = recipe_real(r, RECIPE_optimizer_warmup)};
    const char *kind = recipe_text(r, RECIPE_optimizer_schedule);
    if (!schedule_parse(kind, &t->rate.kind))
        return err_set(ERR_RECIPE, "%s: schedule %s is not known; cosine, wsd and constant are",
                       recipe_where(r, RECIPE_optimizer_schedule), kind);
    if (t->rate.min_lr > t->rate.peak)
        return err_set(ERR_RECIPE,
                       "%s: optimizer.min_lr is %g, above optimizer.lr which is %g; lower it",
                       recipe_where(r, RECIPE_optimizer_min_lr), t->rate.min_lr, t->rate.peak);
    return ERR_OK;
}

static err open_run(train *t) {
    drafter_config c;
    TRY(arena_create(&t->small, "run", 0));
    TRY(set_numbers(t));
    TRY(open_models(t));
    TRY(train__drafter_config(t, &c));
    TRY(drafter_layout_make(&t->l, &c, t->small));
    TRY(open_data(t));
    if (t->held)
        TRY(evaluate_prepare(&t->prompts, t->held, t->t,
                             recipe_int(t->r, RECIPE_run_evaluate_prompts),
                             recipe_int(t->r, RECIPE_run_evaluate_tokens), t->small));
    TRY(train__make_plan(t));
    t->rate.updates = t->plan.updates;
    if (t->opt.plan_only) return ERR_OK;
    TRY(data_stream_open(&t->stream, t->data, t->seed, t->tokens_per_row));
    TRY(train__take_memory(t));
    labels_decay(recipe_real(t->r, RECIPE_loss_gamma), c.block_size, t->step.decay);
    return train__begin(t);
}

err train_open(train **out, const recipe *r, const train_options *opt) {
    train *t = NULL;
    *out = NULL;
    TRY(mem_new(1, sizeof *t, &t));
    t->r = r;
    t->lock = -1;
    if (opt) t->opt = *opt;
    err e = open_run(t);
    if (e)
        train_close(t);
    else
        *out = t;
    return e;
}

void train_close(train *t) {
    if (!t) return;
    row_close(t->rows);
    if (t->lock >= 0) file_unlock(t->lock);
    checkpoint_state_free(&t->at);
    arena_destroy(t->work);
    arena_destroy(t->state);
    data_stream_close(t->stream);
    data_close(t->held);
    data_close(t->data);
    chat_template_free(t->chat);
    tokenizer_free(t->tok);
    target_free(t->t);
    if (t->d) dev_close(t->d);
    arena_destroy(t->small);
    mem_free(t);
}
