/* A Hugging Face folder (config.json and safetensors) as a source of a Llama target.
 *
 * Read: model_type llama without biases, RoPE default, linear, llama3 or yarn in either spelling of config files. Refused by
 * name: everything else. End tokens are those of config.json and of generation_config.json together. The folder's flag
 * for tied heads is honoured, and a file that contradicts it stops the load (target_weights.c). */
#include "core/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/target_parts.h"
#include <stdio.h>
#include <string.h>

enum { PATH_LENGTH = 4096 };

static err flag_off(const json_t *j, const char *where, const char *key) {
    int on;
    TRY(json_get_bool_or(j, where, key, 0, &on));
    if (on) return err_set(ERR_REFUSED, "%s: \"%s\" is true, which is not known here", where, key);
    return ERR_OK;
}

/* Keys of which any value but null would change the numbers. */
static err absent(const json_t *j, const char *where, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!v || json_is_null(v)) return ERR_OK;
    return err_set(ERR_REFUSED, "%s: \"%s\" is given, which is not known here", where, key);
}

static err refuse_kinds(const json_t *j, const char *where) {
    const char *type, *act;
    TRY(json_get_text(j, where, "model_type", &type));
    if (strcmp(type, "llama") != 0)
        return err_set(ERR_REFUSED, "%s: model_type \"%s\" is not known here; known: llama", where,
                       type);
    const json_t *names = json_object_get(j, "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    if (name && strcmp(name, "LlamaForCausalLM") != 0)
        return err_set(ERR_REFUSED,
                       "%s: architecture \"%s\" is not known here; known: LlamaForCausalLM", where,
                       name);
    TRY(json_get_text_or(j, where, "hidden_act", "silu", &act));
    if (strcmp(act, "silu") != 0)
        return err_set(ERR_REFUSED, "%s: hidden_act \"%s\" is not known here; known: silu", where,
                       act);
    TRY(absent(j, where, "quantization_config"));
    TRY(absent(j, where, "sliding_window"));
    TRY(flag_off(j, where, "attention_bias"));
    return flag_off(j, where, "mlp_bias");
}

static err rope_kind_of(const json_t *o, const char *where, rope_kind *out) {
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};
    const char *name;
    TRY(json_get_text_or(o, where, "rope_type", NULL, &name));
    if (!name) TRY(json_get_text_or(o, where, "type", "default", &name));
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (rope_kind)i;
            return ERR_OK;
        }
    return err_set(ERR_REFUSED,
                   "%s: RoPE kind \"%s\" is unknown; known are default, linear, llama3 and yarn",
                   where, name);
}

/* Keys of a scaling object: the same in rope_scaling and in rope_parameters. */
static err read_scaling(const json_t *o, const char *where, int64_t context, rope_config *r) {
    TRY(rope_kind_of(o, where, &r->kind));
    if (r->kind == ROPE_DEFAULT) return ERR_OK;
    TRY(json_get_real(o, where, "factor", &r->factor));
    if (r->kind == ROPE_LINEAR) return ERR_OK;
    if (r->kind == ROPE_LLAMA3) {
        TRY(json_get_real(o, where, "low_freq_factor", &r->low_freq));
        TRY(json_get_real(o, where, "high_freq_factor", &r->high_freq));
        return json_get_int(o, where, "original_max_position_embeddings", &r->original_length);
    }
    static const char *const unknown[] = {"mscale", "mscale_all_dim"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(o, unknown[i]))
            return err_set(ERR_REFUSED, "%s: yarn with \"%s\" is not known here", where,
                           unknown[i]);
    int truncate;
    TRY(json_get_bool_or(o, where, "truncate", 1, &truncate));
    if (!truncate)
        return err_set(ERR_REFUSED, "%s: yarn with \"truncate\" false is not known here", where);
    TRY(json_get_real_or(o, where, "beta_fast", 32, &r->beta_fast));
    TRY(json_get_real_or(o, where, "beta_slow", 1, &r->beta_slow));
    TRY(json_get_real_or(o, where, "attention_factor", 0, &r->attention_factor));
    return json_get_int_or(o, where, "original_max_position_embeddings", context,
                           &r->original_length);
}

/* The object under key, NULL for none; anything else is not passed over. */
static err object_or_none(const json_t *j, const char *where, const char *key, const json_t **out) {
    *out = json_object_get(j, key);
    if (json_is_null(*out)) *out = NULL;
    if (!*out || json_is_object(*out)) return ERR_OK;
    return err_set(ERR_FORMAT, "%s: \"%s\" must be an object or null", where, key);
}

static err same_scaling(const json_t *p, const json_t *old, const char *where, int64_t context) {
    rope_config a = {0}, b = {0};
    TRY(read_scaling(p, where, context, &a));
    TRY(read_scaling(old, where, context, &b));
    if (a.kind == b.kind && a.factor == b.factor && a.low_freq == b.low_freq &&
        a.high_freq == b.high_freq && a.original_length == b.original_length &&
        a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow &&
        a.attention_factor == b.attention_factor)
        return ERR_OK;
    return err_set(ERR_FORMAT, "%s: rope_scaling and rope_parameters differ; make them agree",
                   where);
}

static err read_rope(const json_t *j, const char *where, target_config *c) {
    rope_config *r = &c->rope;
    const json_t *p, *old;
    double part, theta;
    TRY(object_or_none(j, where, "rope_parameters", &p));
    TRY(object_or_none(j, where, "rope_scaling", &old));
    if (p && old) TRY(same_scaling(p, old, where, c->context));
    *r = (rope_config){.head_dim = c->head_dim, .theta = 10000};
    TRY(json_get_real_or(j, where, "rope_theta", 10000, &r->theta));
    TRY(json_get_real_or(j, where, "partial_rotary_factor", 1, &part));
    if (p) {
        TRY(json_get_real_or(p, where, "rope_theta", r->theta, &theta));
        if (json_object_get(j, "rope_theta") && theta != r->theta)
            return err_set(ERR_FORMAT,
                           "%s: rope_theta is %g, and %g in rope_parameters; make them agree",
                           where, r->theta, theta);
        r->theta = theta;
        TRY(json_get_real_or(p, where, "partial_rotary_factor", part, &part));
    }
    r->rotary_dim = (int64_t)((double)c->head_dim * part);
    if (p) return read_scaling(p, where, c->context, r);
    return old ? read_scaling(old, where, c->context, r) : ERR_OK;
}

/* One id or a list; ids already known are not added twice. */
static err add_ends(const json_t *j, const char *where, target_config *c) {
    const json_t *e = json_object_get(j, "eos_token_id");
    int64_t ids[8];
    int n = 1;
    if (!e || json_is_null(e)) return ERR_OK;
    if (json_is_array(e))
        TRY(json_get_ints(j, where, "eos_token_id", ids, 8, &n));
    else
        TRY(json_get_int(j, where, "eos_token_id", ids));
    for (int i = 0; i < n; i++) {
        int known = 0;
        for (int k = 0; k < c->n_eos; k++) known |= c->eos[k] == ids[i];
        if (known) continue;
        if (c->n_eos == 8)
            return err_set(ERR_REFUSED, "%s: more than 8 end tokens are not known here", where);
        c->eos[c->n_eos++] = (int32_t)ids[i];
    }
    return ERR_OK;
}

static err read_config(const char *dir, const json_t *j, const char *where, target_config *c) {
    int64_t bos;
    double eps;
    char path[PATH_LENGTH];
    memset(c, 0, sizeof *c);
    TRY(refuse_kinds(j, where));
    TRY(json_get_int(j, where, "num_hidden_layers", &c->layers));
    TRY(json_get_int(j, where, "hidden_size", &c->hidden));
    TRY(json_get_int(j, where, "intermediate_size", &c->intermediate));
    TRY(json_get_int(j, where, "num_attention_heads", &c->heads));
    TRY(json_get_int_or(j, where, "num_key_value_heads", c->heads, &c->kv_heads));
    TRY(json_get_int_or(j, where, "head_dim", c->heads > 0 ? c->hidden / c->heads : 0,
                        &c->head_dim));
    TRY(json_get_int(j, where, "vocab_size", &c->vocab));
    TRY(json_get_int(j, where, "max_position_embeddings", &c->context));
    TRY(json_get_real(j, where, "rms_norm_eps", &eps));
    c->rms_eps = (float)eps;
    TRY(json_get_bool_or(j, where, "tie_word_embeddings", 0, &c->tied));
    TRY(json_get_int_or(j, where, "bos_token_id", -1, &bos));
    c->bos = (int32_t)bos;
    TRY(read_rope(j, where, c));
    TRY(add_ends(j, where, c));
    TRY(file_join(path, sizeof path, dir, "generation_config.json"));
    if (!file_exists(path)) return ERR_OK;
    json_t *more;
    TRY(json_read_file(&more, path));
    err e = add_ends(more, path, c);
    json_decref(more);
    return e;
}

static err read_row(const target__source *s, const target__tensor *t, int64_t r, float *dst) {
    const tensor *w = t->handle;
    (void)s;
    int64_t cols = t->ndim ? t->dim[t->ndim - 1] : 1;
    dtype_to_f32(w->type, (const char *)w->data + (size_t)(r * cols) * dtype_size(w->type), dst,
                 (size_t)cols);
    return ERR_OK;
}
static void close_source(target__source *s) { safetensors_set_close(s->file); }

static err list_tensors(target__source *s, const st_set *set, arena *a) {
    s->n = safetensors_set_count(set);
    TRY(arena_alloc(a, (size_t)s->n, sizeof *s->t, &s->t));
    for (int64_t i = 0; i < s->n; i++) {
        const tensor *t = safetensors_set_at(set, (int)i);
        if (!dtype_is_float(t->type) || t->ndim > 4)
            return err_set(ERR_REFUSED,
                           "%s: tensor '%s' of type %s and %d dimensions is no weight of a Llama "
                           "model",
                           s->path, t->name, dtype_name(t->type), t->ndim);
        s->t[i] = (target__tensor){.name = t->name, .ndim = t->ndim, .handle = t};
        for (int k = 0; k < t->ndim; k++) s->t[i].dim[k] = t->dim[k];
    }
    return ERR_OK;
}

err target__open_hf(target__source *s, target_config *c, const char *path, arena *a) {
    char where[PATH_LENGTH];
    json_t *j;
    st_set *set;
    TRY(file_join(where, sizeof where, path, "config.json"));
    TRY(json_read_file(&j, where));
    err e = read_config(path, j, where, c);
    json_decref(j);
    if (e) return e;
    TRY(safetensors_set_open(&set, path));
    *s = (target__source){.path = path, .naming = TARGET__HF, .file = set};
    s->row = read_row;
    s->close = close_source;
    e = list_tensors(s, set, a);
    if (e) safetensors_set_close(set);
    return e;
}
