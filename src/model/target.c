/* A loaded target: opening a source, checking its config, the digest, and what others may ask of it.
 *
 * The model is immutable after target_load and may be shared; everything it holds lives in its own arena. The digest covers
 * the config and every weight as held, so the same model from a GGUF file and from a folder has one digest, and rounding
 * in another way has another. */
#include "core/file.h"
#include "flex/paged_cuda.h"
#include "model/mask_kernels.h"
#include "model/target_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

err target__check_config(const target_config *c, const char *path) {
    const struct {
        const char *what;
        int64_t v, min, max;
    } rule[] = {
        {"layers", c->layers, 1, 1000},
        {"hidden width", c->hidden, 1, 1 << 20},
        {"MLP width", c->intermediate, 1, 1 << 22},
        {"query heads", c->heads, 1, 4096},
        {"key heads", c->kv_heads, 1, 4096},
        {"head dimension", c->head_dim, 8, 256},
        {"vocabulary", c->vocab, 1, 1 << 24},
        {"context length", c->context, 1, 1 << 24},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].v < rule[i].min || rule[i].v > rule[i].max)
            return err_set(ERR_RANGE, "%s: %s is %lld; from %lld to %lld can be held", path,
                           rule[i].what, (long long)rule[i].v, (long long)rule[i].min,
                           (long long)rule[i].max);
    if (c->heads % c->kv_heads)
        return err_set(ERR_RANGE, "%s: %lld query heads do not divide among %lld key heads", path,
                       (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim % 8)
        return err_set(ERR_RANGE, "%s: head dimension %lld is not a multiple of 8", path,
                       (long long)c->head_dim);
    if (!(c->rms_eps > 0))
        return err_set(ERR_RANGE, "%s: the norm's epsilon %g is not positive", path,
                       (double)c->rms_eps);
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] < 0 || c->eos[i] >= c->vocab)
            return err_set(ERR_RANGE, "%s: end token %d is outside the vocabulary of %lld", path,
                           (int)c->eos[i], (long long)c->vocab);
    err e = nn_rope_check(&c->rope);
    return e ? err_context(e, "%s: ", path) : ERR_OK;
}

/* Hashes of the parts, hashed. */
static err make_digest(target *t) {
    const target_config *c = &t->cfg;
    const rope_config *r = &c->rope;
    str s = {0};
    char h[33];
    err e = str_printf(
        &s, "%lld %lld %lld %lld %lld %lld %lld %a %d|%d %d %lld %a %a %a %a %a %a %a %lld|",
        (long long)c->layers, (long long)c->hidden, (long long)c->intermediate, (long long)c->heads,
        (long long)c->kv_heads, (long long)c->head_dim, (long long)c->vocab, (double)c->rms_eps,
        c->tied, (int)r->kind, (int)r->pairing, (long long)r->rotary_dim, r->theta, r->factor,
        r->low_freq, r->high_freq, r->beta_fast, r->beta_slow, r->attention_factor,
        (long long)r->original_length);
    for (int64_t i = -1; !e && i < c->layers; i++) {
        const target__layer *l = i < 0 ? NULL : &t->layer[i];
        const packed *w[4] = {&t->embed, &t->head};
        const float *v[2] = {t->norm};
        if (l) {
            w[0] = &l->qkv, w[1] = &l->o, w[2] = &l->gate_up, w[3] = &l->down;
            v[0] = l->attn_norm, v[1] = l->mlp_norm;
        }
        for (int k = 0; !e && k < 4 && w[k]; k++) {
            file_hash_bytes(w[k]->data, packed_bytes(w[k]->type, w[k]->n, w[k]->k), h);
            e = str_printf(&s, "%s", h);
        }
        for (int k = 0; !e && k < 2 && v[k]; k++) {
            file_hash_bytes(v[k], (size_t)c->hidden * sizeof(float), h);
            e = str_printf(&s, "%s", h);
        }
    }
    if (!e) file_hash_bytes(s.s, s.n, t->digest);
    str_free(&s);
    return e;
}

static err compile_mask(expr **out) {
    static const expr_decl doc = {.name = "doc", .type = EXPR_INT, .ndim = 1};
    return expr_compile(out, EXPR_MASK, "q >= kv && doc[q] == doc[kv]", &doc, 1);
}

static err open_source(target__source *s, target_config *c, const char *path, arena *tmp) {
    if (!file_exists(path))
        return err_set(ERR_IO,
                       "%s: there is no such file or folder; a target is a GGUF file or a folder "
                       "with config.json and safetensors",
                       path);
    return file_is_dir(path) ? target__open_hf(s, c, path, tmp)
                             : target__open_gguf(s, c, path, tmp);
}

static err fill(target *t, dev *d, const char *path, arena *tmp) {
    target__source s;
    TRY(arena_create(&t->a, "target", 0));
    TRY(arena_strdup(t->a, path, &t->path));
    TRY(open_source(&s, &t->cfg, path, tmp));
    err e = target__check_config(&t->cfg, path);
    if (!e) e = target__load_weights(t, &s, d, tmp);
    s.close(&s);
    TRY(e);
    TRY(nn_rope_table(&t->rope, &t->cfg.rope, t->cfg.context, t->a));
    TRY(compile_mask(&t->mask));
    return make_digest(t);
}

err target_load(target **out, dev *d, const char *path, const target_options *opt) {
    target *t;
    arena *tmp;
    *out = NULL;
    TRY(arena_create(&tmp, "target tables", 0));
    err e = mem_new(1, sizeof *t, &t);
    if (!e) {
        t->held = opt && opt->keep_f32 ? DT_F32 : DT_BF16;
        e = fill(t, d, path, tmp);
        if (e)
            target_free(t);
        else
            *out = t;
    }
    arena_destroy(tmp);
    return e;
}

err target_read_config(target_config *out, const char *path) {
    arena *tmp;
    target__source s;
    memset(out, 0, sizeof *out);
    TRY(arena_create(&tmp, "target config", 0));
    err e = open_source(&s, out, path, tmp);
    if (!e) {
        e = target__check_config(out, path);
        s.close(&s);
    }
    arena_destroy(tmp);
    return e;
}

/* Rows of one token. */
static err visit_rows(const target_config *c, dtype type, size_t shared, kernel_visit visit,
                      void *ctx, arena *a) {
    static const int32_t zero[1] = {0};
    const expr_value value = {.type = DT_I32, .dim = {1}, .data = zero};
    const expr_env env = {.values = &value};
    expr *mask;
    TRY(compile_mask(&mask));
    const mask_kernels k = {.mask = mask,
                            .env = &env,
                            .q_len = 1,
                            .kv_len = 1,
                            .head_dim = c->head_dim,
                            .type = type,
                            .shared = shared};
    err e = mask_kernels_visit(&k, visit, ctx, a);
    expr_free(mask);
    return e;
}

err target_kernels(const target_config *c, dtype type, size_t shared, kernel_visit visit,
                   void *ctx) {
    arena *a;
    TRY(arena_create(&a, "kernels of a target", 0));
    err e = visit_rows(c, type, shared, visit, ctx, a);
    if (!e) e = paged_cuda_visit(type, c->head_dim, visit, ctx);
    arena_destroy(a);
    return e;
}

void target_free(target *t) {
    if (!t) return;
    if (t->mask) expr_free(t->mask);
    arena_destroy(t->a);
    mem_free(t);
}

const target_config *target_get_config(const target *t) { return &t->cfg; }
const packed *target_embedding(const target *t) { return &t->embed; }
const packed *target_head(const target *t) { return &t->head; }
const char *target_path(const target *t) { return t->path; }
void target_digest(const target *t, char out[33]) { memcpy(out, t->digest, 33); }

size_t target_bytes(const target *t) {
    arena_stats s;
    arena_get_stats(t->a, &s);
    return s.reserved;
}
