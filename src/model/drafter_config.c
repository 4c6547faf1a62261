/* The drafter's description: its rules, the formula behind `taps: auto`, and whether it fits a target.
 *
 * Every rule is one sentence that names the field as the recipe and config.json know it. Rules are checked
 * before any weight is read or made. Reading and writing config.json is drafter_json.c's work. */
#include "model/drafter.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static err check_shape(const drafter_config *c) {
    if (c->layers < 1 || c->layers > DRAFTER_MAX_LAYERS)
        return err_set(ERR_RANGE, "the drafter has %" PRId64 " layers; 1 to %d are possible",
                       c->layers, DRAFTER_MAX_LAYERS);
    if (c->hidden < 1 || c->intermediate < 1)
        return err_set(ERR_RANGE,
                       "the drafter's hidden_size %" PRId64 " and intermediate_size %" PRId64
                       " must be at least 1",
                       c->hidden, c->intermediate);
    if (c->head_dim < 8 || c->head_dim > 256 || c->head_dim % 8)
        return err_set(ERR_RANGE,
                       "the drafter's head_dim is %" PRId64 "; a multiple of 8 up to 256 is needed",
                       c->head_dim);
    if (c->kv_heads < 1 || c->heads < 1 || c->heads % c->kv_heads)
        return err_set(ERR_RANGE,
                       "the drafter's %" PRId64 " query heads are no multiple of its %" PRId64
                       " key/value heads",
                       c->heads, c->kv_heads);
    if (c->block_size < 2 || c->block_size > 64)
        return err_set(ERR_RANGE, "the drafter's block_size is %" PRId64 "; 2 to 64 are possible",
                       c->block_size);
    if (!(c->rms_eps > 0) || !isfinite(c->rms_eps))
        return err_set(ERR_RANGE, "the drafter's rms_norm_eps must be a number above 0");
    if (c->max_position < 1)
        return err_set(ERR_RANGE, "the drafter's max_position_embeddings must be at least 1");
    return ERR_OK;
}

static err check_taps(const drafter_config *c) {
    if (c->n_taps < 1 || c->n_taps > DRAFTER_MAX_TAPS)
        return err_set(ERR_RANGE, "the drafter has %d taps; 1 to %d are possible", c->n_taps,
                       DRAFTER_MAX_TAPS);
    if (c->n_taps > c->target_layers)
        return err_set(ERR_RANGE,
                       "the drafter wants %d taps but its target has %" PRId64
                       " layers; ask for fewer taps",
                       c->n_taps, c->target_layers);
    for (int i = 0; i < c->n_taps; i++) {
        if (c->taps[i] < 0 || c->taps[i] >= c->target_layers)
            return err_set(ERR_RANGE,
                           "tap %" PRId64
                           " names no layer of the target, which has layers 0 to %" PRId64,
                           c->taps[i], c->target_layers - 1);
        if (i && c->taps[i] <= c->taps[i - 1])
            return err_set(ERR_RANGE,
                           "the taps must rise strictly, but %" PRId64 " follows %" PRId64
                           "; list them in drafter.taps (a target of %" PRId64
                           " layers may be too small for `auto`)",
                           c->taps[i], c->taps[i - 1], c->target_layers);
    }
    return ERR_OK;
}

static err check_windows(const drafter_config *c) {
    int64_t window = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t w = c->window[i];
        if (w == 0) continue;
        if (w < c->block_size)
            return err_set(ERR_RANGE,
                           "layer %" PRId64 " of the drafter has a window of %" PRId64
                           " keys, less than its block of %" PRId64
                           " slots; use at least that many",
                           i, w, c->block_size);
        if (window && w != window)
            return err_set(ERR_RANGE,
                           "the drafter's layers have windows of %" PRId64 " and %" PRId64
                           " keys; its format holds one window for all layers that slide",
                           window, w);
        window = w;
    }
    return ERR_OK;
}

err drafter_config_check(const drafter_config *c) {
    TRY(check_shape(c));
    TRY(check_taps(c));
    if (c->vocab < 1) return err_set(ERR_RANGE, "the drafter's vocab_size must be at least 1");
    if (c->mask_token < 0 || c->mask_token >= c->vocab)
        return err_set(ERR_RANGE,
                       "the mask token %" PRId32
                       " is outside the embedding, whose rows are 0 to %" PRId64
                       "; set drafter.mask_token to a row that exists",
                       c->mask_token, c->vocab - 1);
    TRY(check_windows(c));
    if (c->rope.head_dim != c->head_dim || c->rope.rotary_dim != c->head_dim ||
        c->rope.pairing != ROPE_HALF)
        return err_set(ERR_RANGE,
                       "the drafter rotates the whole head of %" PRId64
                       " in halves; partial or interleaved rotation is not possible",
                       c->head_dim);
    return nn_rope_check(&c->rope);
}

/* Spread evenly from the second layer to the third from the end, rounded half to even. */
void drafter_taps_auto(int64_t target_layers, int n, int64_t *taps) {
    if (n == 1) {
        taps[0] = target_layers / 2;
        return;
    }
    for (int i = 0; i < n; i++)
        taps[i] =
            (int64_t)nearbyint(1.0 + (double)i * (double)(target_layers - 4) / (double)(n - 1));
}

err drafter_check_target(const drafter_config *c, const target *t) {
    const target_config *tc = target_get_config(t);
    if (c->hidden != tc->hidden)
        return err_set(ERR_REFUSED,
                       "this drafter was made for a target of hidden width %" PRId64
                       ", and %s has %" PRId64 "; use the target it was trained with",
                       c->hidden, target_path(t), tc->hidden);
    if (c->target_layers != tc->layers)
        return err_set(ERR_REFUSED,
                       "this drafter was made for a target of %" PRId64
                       " layers, and %s has %" PRId64 "; use the target it was trained with",
                       c->target_layers, target_path(t), tc->layers);
    if (c->vocab != tc->vocab)
        return err_set(ERR_REFUSED,
                       "this drafter was made for a vocabulary of %" PRId64
                       " rows, and %s has %" PRId64 "; use the target it was trained with",
                       c->vocab, target_path(t), tc->vocab);
    char digest[33];
    target_digest(t, digest);
    if (c->target_digest[0] && strcmp(c->target_digest, digest) != 0)
        return err_set(ERR_REFUSED,
                       "this drafter was made for the target with digest %s, and %s has digest %s; "
                       "use the target it was trained with",
                       c->target_digest, target_path(t), digest);
    return ERR_OK;
}
