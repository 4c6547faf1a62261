/* What a recipe's `auto`s mean for a drafter: shapes, taps and mask token, from the target or from drafter.init.
 *
 * With drafter.init the drafter's own file is the source of facts, and a recipe that says otherwise is refused: a drafter is
 * continued, never reshaped. The mask token is an unused embedding row, else a reserved token of the tokenizer's
 * family, else refused; it is never the padding or an end token by accident (B35). */
#include "train/train_parts.h"
#include <inttypes.h>
#include <string.h>

/* What a drafter's shape follows from. */
typedef struct source {
    const recipe *r; /* the drafter's own */
    const target *t;
    const tokenizer *tok;
} source;

/* A reserved token per family, by the name of its pre-tokenizer: never produced, so its embedding says nothing else. */
static const struct { const char *pre, *token; } reserved[] = {{"smollm", "<empty_output>"}};

static err auto_mask(const source *t, int64_t vocab, int32_t *out) {
    const int64_t count = tokenizer_count(t->tok);
    if (count < vocab) {
        *out = (int32_t)count;
        return ERR_OK;
    }
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (strcmp(reserved[i].pre, tokenizer_pre(t->tok)) != 0) continue;
        *out = tokenizer_find(t->tok, reserved[i].token);
        if (*out >= 0) return ERR_OK;
    }
    return err_set(
        ERR_RECIPE,
        "%s: drafter.mask_token is auto, but %s has neither an unused embedding row nor a "
        "reserved token that is known here; name a token that never occurs in text",
        recipe_where(t->r, RECIPE_drafter_mask_token), target_path(t->t));
}

static err check_mask(const source *t, const drafter_config *c) {
    const int32_t *end = NULL;
    const char *where = recipe_where(t->r, RECIPE_drafter_mask_token);
    if (c->mask_token < 0 || c->mask_token >= c->vocab)
        return err_set(ERR_RECIPE,
                       "%s: mask token %" PRId32 " is outside the target's embedding of %" PRId64
                       " rows",
                       where, c->mask_token, c->vocab);
    const int n = tokenizer_end_ids(t->tok, &end);
    for (int i = 0; i < n; i++)
        if (end[i] == c->mask_token)
            return err_set(ERR_RECIPE,
                           "%s: mask token %" PRId32 " is an end token of the target; name a token "
                           "that never occurs in text, or auto",
                           where, c->mask_token);
    return ERR_OK;
}

static int64_t int_or(const source *t, recipe_field f, int64_t def) {
    return recipe_is_auto(t->r, f) ? def : recipe_int(t->r, f);
}

static err taps_of(const source *t, drafter_config *c) {
    const int64_t *taps = NULL;
    if (recipe_is_auto(t->r, RECIPE_drafter_taps)) {
        c->n_taps = (int)(c->layers < DRAFTER_MAX_TAPS ? c->layers : DRAFTER_MAX_TAPS);
        drafter_taps_auto(c->target_layers, c->n_taps, c->taps);
        return ERR_OK;
    }
    const int n = recipe_ints(t->r, RECIPE_drafter_taps, &taps);
    if (n < 1 || n > DRAFTER_MAX_TAPS)
        return err_set(ERR_RECIPE, "%s: drafter.taps lists %d layers; 1 to %d are possible",
                       recipe_where(t->r, RECIPE_drafter_taps), n, DRAFTER_MAX_TAPS);
    c->n_taps = n;
    memcpy(c->taps, taps, (size_t)n * sizeof *taps);
    return ERR_OK;
}

static err fresh_config(const source *t, drafter_config *c) {
    const target_config *k = target_get_config(t->t);
    const recipe *r = t->r;
    *c = (drafter_config){.layers = recipe_int(r, RECIPE_drafter_layers),
                          .hidden = k->hidden,
                          .intermediate =
                              int_or(t, RECIPE_drafter_intermediate_size, k->intermediate),
                          .heads = int_or(t, RECIPE_drafter_heads, k->heads),
                          .kv_heads = int_or(t, RECIPE_drafter_kv_heads, k->kv_heads),
                          .head_dim = int_or(t, RECIPE_drafter_head_dim, k->head_dim),
                          .block_size = recipe_int(r, RECIPE_drafter_block_size),
                          .target_layers = k->layers,
                          .vocab = k->vocab,
                          .rms_eps = k->rms_eps,
                          .max_position = k->context};
    TRY(taps_of(t, c));
    for (int64_t i = 0; i < c->layers && !recipe_is_auto(r, RECIPE_drafter_sliding_window); i++)
        c->window[i] = recipe_int(r, RECIPE_drafter_sliding_window);
    /* The target's base frequency, unscaled and over the whole head: drafters inherit nothing else. */
    c->rope = (rope_config){.kind = ROPE_DEFAULT, .pairing = ROPE_HALF, .head_dim = c->head_dim};
    c->rope.rotary_dim = c->head_dim;
    c->rope.theta = k->rope.theta;
    c->rope.factor = 1;
    target_digest(t->t, c->target_digest);
    if (recipe_is_auto(r, RECIPE_drafter_mask_token)) return auto_mask(t, c->vocab, &c->mask_token);
    const int64_t mask = recipe_int(r, RECIPE_drafter_mask_token);
    c->mask_token = mask < c->vocab ? (int32_t)mask : (int32_t)c->vocab;
    return ERR_OK;
}

static err differs(const source *t, recipe_field f, int64_t file, int64_t says) {
    if (file == says) return ERR_OK;
    return err_set(ERR_RECIPE,
                   "%s: %s is %" PRId64 ", but the drafter in %s has %" PRId64
                   "; a drafter is continued with its own shape",
                   recipe_where(t->r, f), recipe_field_name(f), says,
                   recipe_text(t->r, RECIPE_drafter_init), file);
}

static err differs_unless_auto(const source *t, recipe_field f, int64_t file) {
    return recipe_is_auto(t->r, f) ? ERR_OK : differs(t, f, file, recipe_int(t->r, f));
}

static err init_config(const source *t, const char *dir, drafter_config *c) {
    TRY(drafter_read_config(c, dir));
    TRY(drafter_check_target(c, t->t));
    TRY(differs(t, RECIPE_drafter_layers, c->layers, recipe_int(t->r, RECIPE_drafter_layers)));
    TRY(differs(t, RECIPE_drafter_block_size, c->block_size,
                recipe_int(t->r, RECIPE_drafter_block_size)));
    TRY(differs_unless_auto(t, RECIPE_drafter_mask_token, c->mask_token));
    TRY(differs_unless_auto(t, RECIPE_drafter_intermediate_size, c->intermediate));
    TRY(differs_unless_auto(t, RECIPE_drafter_heads, c->heads));
    TRY(differs_unless_auto(t, RECIPE_drafter_kv_heads, c->kv_heads));
    TRY(differs_unless_auto(t, RECIPE_drafter_head_dim, c->head_dim));
    for (int64_t i = 0; i < c->layers; i++)
        TRY(differs_unless_auto(t, RECIPE_drafter_sliding_window, c->window[i]));
    if (!recipe_is_auto(t->r, RECIPE_drafter_taps)) {
        const int64_t *taps = NULL;
        const int n = recipe_ints(t->r, RECIPE_drafter_taps, &taps);
        if (n != c->n_taps || memcmp(taps, c->taps, (size_t)n * sizeof *taps) != 0)
            return err_set(ERR_RECIPE,
                           "%s: drafter.taps differ from those of the drafter in %s; write auto",
                           recipe_where(t->r, RECIPE_drafter_taps), dir);
    }
    target_digest(t->t, c->target_digest);
    return ERR_OK;
}

err train__drafter_config(const train *run, const recipe *r, drafter_config *c) {
    const source own = {r, run->t, run->tok}, *t = &own;
    const char *init = recipe_text(t->r, RECIPE_drafter_init);
    if (init[0])
        TRY(init_config(t, init, c));
    else
        TRY(fresh_config(t, c));
    TRY(check_mask(t, c));
    err e = drafter_config_check(c);
    return e ? err_context(ERR_RECIPE, "%s: ", recipe_path(t->r)) : ERR_OK;
}
