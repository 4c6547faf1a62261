/* The drafter's config.json: written so that every reader of the z-lab format finds its facts, and read strictly.
 *
 * Written: both places of block_size, rope_theta and rope_parameters, explicit is_causal and layer_types, and a
 * "paceline" section with what other formats leave to convention. Read: z-lab files of other trainers too; a
 * fact that is absent is refused by name, never defaulted, unless the format itself defines it. What this
 * program cannot compute (causal blocks, extra projections, soft-capped heads) is refused by name as well. */
#include "core/file.h"
#include "model/drafter_parts.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing ---- */

/* The shortest decimal that is still this float, so 1e-6f is not written as 9.99999997e-07. */
static json_t *real_of_float(float v) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) break;
    }
    return json_real(strtod(text, NULL));
}

static const char *rope_name(rope_kind k) {
    switch (k) {
    case ROPE_DEFAULT: return "default";
    case ROPE_LINEAR: return "linear";
    case ROPE_LLAMA3: return "llama3";
    case ROPE_YARN: return "yarn";
    }
    return "default";
}

static json_t *rope_json(const rope_config *r, int with_theta) {
    json_t *o = json_object();
    json_object_set_new(o, "rope_type", json_string(rope_name(r->kind)));
    if (with_theta) json_object_set_new(o, "rope_theta", json_real(r->theta));
    if (r->kind != ROPE_DEFAULT) json_object_set_new(o, "factor", json_real(r->factor));
    if (r->kind == ROPE_LLAMA3) {
        json_object_set_new(o, "low_freq_factor", json_real(r->low_freq));
        json_object_set_new(o, "high_freq_factor", json_real(r->high_freq));
    }
    if (r->kind == ROPE_YARN) {
        json_object_set_new(o, "beta_fast", json_real(r->beta_fast));
        json_object_set_new(o, "beta_slow", json_real(r->beta_slow));
        if (r->attention_factor != 0)
            json_object_set_new(o, "attention_factor", json_real(r->attention_factor));
    }
    if (r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN)
        json_object_set_new(o, "original_max_position_embeddings",
                            json_integer(r->original_length));
    return o;
}

static void put_int(json_t *o, const char *key, int64_t v) {
    json_object_set_new(o, key, json_integer(v));
}

static void put_shapes(json_t *o, const drafter_config *c) {
    put_int(o, "block_size", c->block_size);
    put_int(o, "num_hidden_layers", c->layers);
    put_int(o, "num_target_layers", c->target_layers);
    put_int(o, "hidden_size", c->hidden);
    put_int(o, "intermediate_size", c->intermediate);
    put_int(o, "num_attention_heads", c->heads);
    put_int(o, "num_key_value_heads", c->kv_heads);
    put_int(o, "head_dim", c->head_dim);
    put_int(o, "max_position_embeddings", c->max_position);
    put_int(o, "vocab_size", c->vocab);
    put_int(o, "max_window_layers", c->layers);
}

static void put_windows(json_t *o, const drafter_config *c) {
    json_t *types = json_array();
    int64_t window = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        json_array_append_new(types,
                              json_string(c->window[i] ? "sliding_attention" : "full_attention"));
        if (c->window[i]) window = c->window[i];
    }
    json_object_set_new(o, "layer_types", types);
    json_object_set_new(o, "sliding_window", window ? json_integer(window) : json_null());
    json_object_set_new(o, "use_sliding_window", json_boolean(window != 0));
    json_object_set_new(o, "is_causal", json_false());
}

json_t *drafter__config_json(const drafter_config *c, dtype type) {
    json_t *o = json_object(), *d = json_object(), *taps = json_array(), *p = json_object();
    if (!o || !d || !taps || !p) return NULL;
    json_object_set_new(o, "architectures", json_pack("[s]", "DFlashDraftModel"));
    json_object_set_new(o, "model_type", json_string("qwen3"));
    put_shapes(o, c);
    put_windows(o, c);
    for (int i = 0; i < c->n_taps; i++) json_array_append_new(taps, json_integer(c->taps[i]));
    put_int(d, "block_size", c->block_size);
    put_int(d, "mask_token_id", c->mask_token);
    json_object_set_new(d, "target_layer_ids", taps);
    json_object_set_new(d, "causal", json_false());
    json_object_set_new(d, "projector_type", json_string("dflash"));
    json_object_set_new(o, "dflash_config", d);
    json_object_set_new(o, "hidden_act", json_string("silu"));
    json_object_set_new(o, "rms_norm_eps", real_of_float(c->rms_eps));
    json_object_set_new(o, "attention_bias", json_false());
    json_object_set_new(o, "attention_dropout", json_real(0));
    json_object_set_new(o, "initializer_range", json_real(0.02));
    json_object_set_new(o, "rope_theta", json_real(c->rope.theta));
    json_object_set_new(o, "rope_scaling",
                        c->rope.kind == ROPE_DEFAULT ? json_null() : rope_json(&c->rope, 0));
    json_object_set_new(o, "rope_parameters", rope_json(&c->rope, 1));
    json_object_set_new(o, "tie_word_embeddings", json_false());
    json_object_set_new(o, "dtype", json_string(type == DT_BF16 ? "bfloat16" : "float32"));
    put_int(p, "format", 1);
    json_object_set_new(p, "tap_convention", json_string("block_output_from_0"));
    json_object_set_new(p, "slot_alignment", json_string("same_position"));
    put_int(p, "drafted_tokens", c->block_size - 1);
    json_object_set_new(p, "target_digest", json_string(c->target_digest));
    json_object_set_new(o, "paceline", p);
    return o;
}

/* ---- reading ---- */

static err refuse_unknown(const json_t *j, const json_t *d, const char *where) {
    /* Each of these changes what the drafter computes; none is known here. */
    static const char *const keys[] = {
        "conv_kernel_size",        "conv_group_size",   "selector_rank",    "selector_top_k",
        "final_logit_softcapping", "output_multiplier", "draft_vocab_size", "markov_rank",
        "attention_value_scale"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int inner = 0; inner < 2; inner++) {
            const json_t *v = json_object_get(inner ? d : j, keys[i]);
            if (v && !json_is_null(v))
                return err_set(ERR_REFUSED,
                               "%s: %s belongs to a kind of drafter that this program cannot run",
                               where, keys[i]);
        }
    return ERR_OK;
}

static err check_kind(const json_t *j, const json_t *d, const char *where) {
    const char *text = NULL;
    const json_t *a = json_object_get(j, "architectures");
    const char *arch = json_string_value(json_array_get(a, 0));
    if (!arch || json_array_size(a) != 1)
        return err_set(ERR_FORMAT, "%s: \"architectures\" must name one architecture", where);
    if (strcmp(arch, "DFlashDraftModel") != 0)
        return err_set(ERR_REFUSED, "%s: architecture %s is not known here; DFlashDraftModel is",
                       where, arch);
    TRY(json_get_text_or(d, where, "projector_type", "dflash", &text));
    if (strcmp(text, "dflash") != 0)
        return err_set(ERR_REFUSED, "%s: projector_type \"%s\" is not known here; \"dflash\" is",
                       where, text);
    TRY(json_get_text_or(j, where, "hidden_act", "silu", &text));
    if (strcmp(text, "silu") != 0)
        return err_set(ERR_REFUSED, "%s: hidden_act \"%s\" is not known here; \"silu\" is", where,
                       text);
    int bias = 0;
    TRY(json_get_bool_or(j, where, "attention_bias", 0, &bias));
    if (bias)
        return err_set(ERR_REFUSED, "%s: attention_bias is true; drafters here have no biases",
                       where);
    return refuse_unknown(j, d, where);
}

/* A number that may stand in two places: both must agree, one must be there. */
static err int_of_two(const json_t *a, const json_t *b, const char *where, const char *key,
                      int64_t *out) {
    int64_t x = 0, y = 0;
    int in_a = json_object_get(a, key) && !json_is_null(json_object_get(a, key));
    int in_b = json_object_get(b, key) && !json_is_null(json_object_get(b, key));
    if (in_a) TRY(json_get_int(a, where, key, &x));
    if (in_b) TRY(json_get_int(b, where, key, &y));
    if (!in_a && !in_b)
        return err_set(ERR_FORMAT, "%s: \"%s\" is missing, at the top and in dflash_config", where,
                       key);
    if (in_a && in_b && x != y)
        return err_set(ERR_FORMAT,
                       "%s: \"%s\" is %" PRId64 " at the top and %" PRId64
                       " in dflash_config; make them agree",
                       where, key, x, y);
    *out = in_a ? x : y;
    return ERR_OK;
}

static err parse_rope_kind(const json_t *o, const char *where, rope_config *r) {
    const char *kind = NULL;
    TRY(json_get_text_or(o, where, "rope_type", "", &kind));
    if (!kind[0]) TRY(json_get_text_or(o, where, "type", "default", &kind));
    static const rope_kind kinds[] = {ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN};
    size_t i = 0;
    while (i < 4 && strcmp(kind, rope_name(kinds[i])) != 0) i++;
    if (i == 4)
        return err_set(
            ERR_REFUSED,
            "%s: rope kind \"%s\" is not known here; default, linear, llama3 and yarn are", where,
            kind);
    r->kind = kinds[i];
    if (r->kind == ROPE_DEFAULT) return ERR_OK;
    TRY(json_get_real(o, where, "factor", &r->factor));
    if (r->kind == ROPE_LLAMA3) {
        TRY(json_get_real(o, where, "low_freq_factor", &r->low_freq));
        TRY(json_get_real(o, where, "high_freq_factor", &r->high_freq));
    }
    if (r->kind == ROPE_YARN) {
        TRY(json_get_real_or(o, where, "beta_fast", 32, &r->beta_fast));
        TRY(json_get_real_or(o, where, "beta_slow", 1, &r->beta_slow));
        TRY(json_get_real_or(o, where, "attention_factor", 0, &r->attention_factor));
    }
    if (r->kind != ROPE_LINEAR)
        TRY(json_get_int(o, where, "original_max_position_embeddings", &r->original_length));
    return ERR_OK;
}

static err parse_rope(const json_t *j, const char *where, int64_t head_dim, rope_config *r) {
    *r = (rope_config){.kind = ROPE_DEFAULT,
                       .pairing = ROPE_HALF,
                       .head_dim = head_dim,
                       .rotary_dim = head_dim,
                       .factor = 1};
    const json_t *p = json_object_get(j, "rope_parameters"),
                 *s = json_object_get(j, "rope_scaling");
    double top = 0, inner = 0, partial = 1;
    if ((p && !json_is_null(p) && !json_is_object(p)) ||
        (s && !json_is_null(s) && !json_is_object(s)))
        return err_set(ERR_FORMAT, "%s: \"%s\" must be an object or null", where,
                       p && !json_is_null(p) && !json_is_object(p) ? "rope_parameters"
                                                                   : "rope_scaling");
    TRY(json_get_real_or(j, where, "rope_theta", 0, &top));
    if (json_is_object(p)) {
        TRY(json_get_real_or(p, where, "rope_theta", 0, &inner));
        TRY(json_get_real_or(p, where, "partial_rotary_factor", 1, &partial));
    }
    if (partial == 1) TRY(json_get_real_or(j, where, "partial_rotary_factor", 1, &partial));
    if (partial != 1)
        return err_set(
            ERR_REFUSED,
            "%s: partial_rotary_factor %g is not known here; drafters rotate the whole head", where,
            partial);
    if (top == 0 && inner == 0)
        return err_set(ERR_FORMAT,
                       "%s: \"rope_theta\" is missing, at the top and in rope_parameters", where);
    if (top != 0 && inner != 0 && top != inner)
        return err_set(ERR_FORMAT,
                       "%s: rope_theta is %g at the top and %g in rope_parameters; make them agree",
                       where, top, inner);
    r->theta = top != 0 ? top : inner;
    rope_config scaling = *r;
    if (json_is_object(s)) TRY(parse_rope_kind(s, where, &scaling));
    if (json_is_object(p)) {
        TRY(parse_rope_kind(p, where, r));
        if (json_is_object(s) && r->kind != scaling.kind)
            return err_set(
                ERR_FORMAT,
                "%s: rope_scaling says \"%s\" and rope_parameters \"%s\"; make them agree", where,
                rope_name(scaling.kind), rope_name(r->kind));
        return ERR_OK;
    }
    *r = scaling;
    return ERR_OK;
}

static err parse_windows(const json_t *j, const json_t *d, const char *where, drafter_config *c) {
    const json_t *types = json_object_get(j, "layer_types");
    int64_t window = 0, sliding = 0;
    int causal = 0, inner = 0, use = 0;
    int says = json_object_get(j, "is_causal") || json_object_get(d, "causal");
    TRY(json_get_bool_or(j, where, "is_causal", 0, &causal));
    TRY(json_get_bool_or(d, where, "causal", 0, &inner));
    TRY(json_get_bool_or(j, where, "use_sliding_window", 0, &use));
    TRY(json_get_int_or(j, where, "sliding_window", 0, &window));
    if (causal || inner)
        return err_set(ERR_REFUSED, "%s: causal draft blocks are not known here", where);
    if (types && !json_is_null(types) && (int64_t)json_array_size(types) != c->layers)
        return err_set(ERR_FORMAT, "%s: layer_types has %zu entries for %" PRId64 " layers", where,
                       json_array_size(types), c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type && json_is_array(types))
            return err_set(ERR_FORMAT, "%s: layer_types holds something that is no text", where);
        if (!type) type = use && window ? "sliding_attention" : "full_attention";
        int slides = strcmp(type, "sliding_attention") == 0;
        if (!slides && strcmp(type, "full_attention") != 0)
            return err_set(ERR_REFUSED, "%s: layer type \"%s\" is not known here", where, type);
        c->window[i] = slides ? window : 0;
        sliding += slides;
    }
    if (sliding && window < 1)
        return err_set(ERR_FORMAT, "%s: layers slide but \"sliding_window\" is missing", where);
    if (sliding && !says)
        return err_set(ERR_REFUSED,
                       "%s: layers slide and is_causal is absent, which by the format's rule means "
                       "causal draft blocks; these are not known here",
                       where);
    return ERR_OK;
}

static err parse_shapes(const json_t *j, const json_t *d, const char *where, drafter_config *c) {
    const struct {
        const char *key;
        int64_t *to;
    } ints[] = {{"num_hidden_layers", &c->layers},
                {"hidden_size", &c->hidden},
                {"intermediate_size", &c->intermediate},
                {"num_attention_heads", &c->heads},
                {"num_key_value_heads", &c->kv_heads},
                {"head_dim", &c->head_dim},
                {"num_target_layers", &c->target_layers},
                {"vocab_size", &c->vocab},
                {"max_position_embeddings", &c->max_position}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        TRY(json_get_int(j, where, ints[i].key, ints[i].to));
    if (c->layers < 1 || c->layers > DRAFTER_MAX_LAYERS)
        return err_set(ERR_RANGE, "%s: num_hidden_layers is %" PRId64 "; 1 to %d are possible",
                       where, c->layers, DRAFTER_MAX_LAYERS);
    TRY(int_of_two(j, d, where, "block_size", &c->block_size));
    double eps = 0;
    TRY(json_get_real(j, where, "rms_norm_eps", &eps));
    c->rms_eps = (float)eps;
    TRY(json_get_ints(d, where, "target_layer_ids", c->taps, DRAFTER_MAX_TAPS, &c->n_taps));
    int64_t mask = 0;
    if (!json_object_get(d, "mask_token_id") && json_object_get(d, "mask_token"))
        return err_set(ERR_REFUSED,
                       "%s: the mask token is given as text; write its id as mask_token_id", where);
    TRY(json_get_int(d, where, "mask_token_id", &mask));
    if (mask < 0 || mask >= c->vocab)
        return err_set(ERR_RANGE,
                       "%s: mask_token_id %" PRId64 " is outside the embedding of %" PRId64 " rows",
                       where, mask, c->vocab);
    c->mask_token = (int32_t)mask;
    return ERR_OK;
}

/* Facts that files of ours carry; absent in files of other trainers. */
static err parse_own(const json_t *j, const char *where, drafter_config *c) {
    const json_t *p = json_object_get(j, "paceline");
    if (!p) return ERR_OK;
    int64_t format = 0, drafted = 0;
    const char *taps = NULL, *slots = NULL, *digest = NULL;
    TRY(json_get_int(p, where, "format", &format));
    if (format != 1)
        return err_set(ERR_REFUSED, "%s: paceline.format is %" PRId64 "; this program knows 1",
                       where, format);
    TRY(json_get_text(p, where, "tap_convention", &taps));
    TRY(json_get_text(p, where, "slot_alignment", &slots));
    TRY(json_get_int(p, where, "drafted_tokens", &drafted));
    TRY(json_get_text(p, where, "target_digest", &digest));
    if (strcmp(taps, "block_output_from_0") != 0 || strcmp(slots, "same_position") != 0)
        return err_set(ERR_REFUSED,
                       "%s: tap_convention \"%s\" with slot_alignment \"%s\" is not known here",
                       where, taps, slots);
    if (drafted != c->block_size - 1)
        return err_set(ERR_FORMAT,
                       "%s: drafted_tokens is %" PRId64 " for a block of %" PRId64
                       " slots; %" PRId64 " are drafted",
                       where, drafted, c->block_size, c->block_size - 1);
    if (strlen(digest) != 0 && strlen(digest) != 32)
        return err_set(ERR_FORMAT, "%s: target_digest must have 32 digits or none", where);
    snprintf(c->target_digest, sizeof c->target_digest, "%s", digest);
    return ERR_OK;
}

err drafter__config_parse(drafter_config *c, const json_t *j, const char *where) {
    *c = (drafter_config){0};
    if (!json_is_object(j)) return err_set(ERR_FORMAT, "%s: must hold one object", where);
    const json_t *d = json_object_get(j, "dflash_config");
    if (json_object_get(j, "speculators_model_type"))
        return err_set(ERR_REFUSED,
                       "%s: this is a speculators file; convert it to the z-lab layout first",
                       where);
    if (!json_is_object(d))
        return err_set(ERR_FORMAT, "%s: \"dflash_config\" is missing; is this a DFlash drafter?",
                       where);
    TRY(check_kind(j, d, where));
    TRY(parse_shapes(j, d, where, c));
    TRY(parse_rope(j, where, c->head_dim, &c->rope));
    TRY(parse_windows(j, d, where, c));
    return parse_own(j, where, c);
}

err drafter_read_config(drafter_config *out, const char *dir) {
    char path[4096];
    json_t *j = NULL;
    TRY(file_join(path, sizeof path, dir, "config.json"));
    TRY(json_read_file(&j, path));
    err e = drafter__config_parse(out, j, path);
    json_decref(j);
    if (!e && (e = drafter_config_check(out))) e = err_context(e, "%s: ", path);
    return e;
}
