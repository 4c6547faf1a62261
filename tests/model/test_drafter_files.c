/* Drafter folders: what is written is read back, other trainers' files load, and every disagreement is told by name.
 *
 * Configs are edited as JSON, weights by rewriting the safetensors file, so each test changes one thing in a folder that
 * is otherwise good. The rules of a config and the formula behind `taps: auto` are here too. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/json.h"
#include "io/safetensors.h"
#include "model/drafter.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"

typedef struct folder {
    files_dir dir;
    arena *a;
    drafter_config cfg;
    drafter_layout l;
    float *params;
    char path[600], config[700], weights[700];
} folder;

static drafter_config small(void) {
    drafter_config c = {.layers = 2, .hidden = 16, .intermediate = 24, .heads = 4, .kv_heads = 2};
    c.head_dim = 8;
    c.block_size = 8;
    c.n_taps = 2;
    c.taps[0] = 1;
    c.taps[1] = 3;
    c.target_layers = 6;
    c.vocab = 50;
    c.mask_token = 49;
    c.window[1] = 32;
    c.rms_eps = 1e-6f;
    c.max_position = 128;
    c.rope = (rope_config){.head_dim = 8, .rotary_dim = 8, .theta = 10000, .factor = 1};
    strcpy(c.target_digest, "0123456789abcdef0123456789abcdef");
    return c;
}

static void open_folder(folder *f) {
    *f = (folder){.dir = files_begin(), .cfg = small()};
    assert_ok(arena_create(&f->a, "test", 0));
    assert_ok(drafter_layout_make(&f->l, &f->cfg, f->a));
    assert_ok(arena_alloc(f->a, (size_t)f->l.total, sizeof(float), &f->params));
    drafter_init(&f->l, 3, f->params);
    snprintf(f->path, sizeof f->path, "%s/drafter", f->dir.path);
    snprintf(f->config, sizeof f->config, "%s/config.json", f->path);
    snprintf(f->weights, sizeof f->weights, "%s/model.safetensors", f->path);
    assert_ok(drafter_save(&f->l, f->params, DT_F32, f->path));
}
static void close_folder(folder *f) {
    arena_destroy(f->a);
    files_end(&f->dir);
}

static void what_is_written_is_read_back(void **s) {
    (void)s;
    folder f;
    drafter_config c;
    dtype stored;
    open_folder(&f);
    assert_ok(drafter_read_config(&c, f.path));
    assert_memory_equal(&c, &f.cfg, sizeof c);
    float *p = numbers_poisoned(f.l.total);
    assert_ok(drafter_read_params(&f.l, f.path, p, &stored));
    assert_int_equal(stored, DT_F32);
    assert_memory_equal(p, f.params, (size_t)f.l.total * sizeof *p);
    /* Over an existing folder, in bf16: rounded once, to nearest. */
    assert_ok(drafter_save(&f.l, f.params, DT_BF16, f.path));
    assert_ok(drafter_read_params(&f.l, f.path, p, &stored));
    assert_int_equal(stored, DT_BF16);
    for (int64_t i = 0; i < f.l.total; i++)
        assert_true(p[i] == bf16_to_f32(bf16_from_f32(f.params[i])));
    free(p);
    /* Neither embedding nor head of the target is in it. */
    st_file *st = NULL;
    assert_ok(safetensors_open(&st, f.weights));
    assert_int_equal(safetensors_count(st), f.l.n);
    safetensors_close(st);
    close_folder(&f);
}

static void every_rope_kind_is_read_back(void **s) {
    (void)s;
    static const rope_config kinds[] = {
        {.kind = ROPE_LINEAR, .factor = 4},
        {.kind = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .high_freq = 4, .original_length = 64},
        {.kind = ROPE_YARN, .factor = 4, .beta_fast = 32, .beta_slow = 1, .original_length = 64}};
    folder f;
    open_folder(&f);
    for (int i = 0; i < 3; i++) {
        drafter_config c;
        f.l.cfg.rope = kinds[i];
        f.l.cfg.rope.head_dim = f.l.cfg.rope.rotary_dim = 8;
        f.l.cfg.rope.theta = 5e5;
        assert_ok(drafter_save(&f.l, f.params, DT_BF16, f.path));
        assert_ok(drafter_read_config(&c, f.path));
        assert_memory_equal(&c.rope, &f.l.cfg.rope, sizeof c.rope);
    }
    close_folder(&f);
}

/* A file as z-lab's trainer writes it: no section of ours, block_size at the top only, rope_theta only, "model." names. */
static void another_trainers_file_loads(void **s) {
    (void)s;
    folder f;
    drafter_config c;
    dtype stored;
    open_folder(&f);
    json_t *j = NULL;
    assert_ok(json_read_file(&j, f.config));
    json_object_del(j, "paceline");
    json_object_del(j, "rope_parameters");
    json_object_del(json_object_get(j, "dflash_config"), "block_size");
    json_object_del(json_object_get(j, "dflash_config"), "projector_type");
    json_object_set_new(j, "auto_map", json_pack("{s:s}", "AutoModel", "dflash.DFlashDraftModel"));
    json_object_set_new(j, "bos_token_id", json_integer(1));
    assert_ok(json_write_file(j, f.config));
    json_decref(j);
    tensor t[64];
    char name[64][80];
    for (int i = 0; i < f.l.n; i++) {
        snprintf(name[i], sizeof name[i], "model.%s", f.l.t[i].name);
        t[i] = (tensor){.name = name[i], .type = DT_F32, .ndim = f.l.t[i].ndim};
        t[i].dim[0] = f.l.t[i].dim[0];
        t[i].dim[1] = f.l.t[i].dim[1];
        t[i].data = f.params + f.l.t[i].offset;
    }
    assert_ok(safetensors_write(f.weights, t, f.l.n, NULL, 0));
    assert_ok(drafter_read_config(&c, f.path));
    assert_string_equal(c.target_digest, "");
    assert_int_equal(c.block_size, 8);
    assert_int_equal(c.window[1], 32);
    float *p = numbers_poisoned(f.l.total);
    assert_ok(drafter_read_params(&f.l, f.path, p, &stored));
    assert_memory_equal(p, f.params, (size_t)f.l.total * sizeof *p);
    free(p);
    close_folder(&f);
}

/* Sets (or with v NULL deletes) a key, wants the sentence, puts the file back. */
static void edited(folder *f, const char *inner, const char *key, json_t *v, err code,
                   const char *says) {
    json_t *j = NULL, *o;
    char *whole = NULL;
    size_t n = 0;
    drafter_config c;
    assert_ok(file_read(f->config, &whole, &n));
    assert_ok(json_read_file(&j, f->config));
    o = inner ? json_object_get(j, inner) : j;
    if (v)
        json_object_set_new(o, key, v);
    else
        json_object_del(o, key);
    assert_ok(json_write_file(j, f->config));
    assert_says(drafter_read_config(&c, f->path), code, "config.json", says);
    files_write(&f->dir, "drafter/config.json", whole, n);
    mem_free(whole);
    json_decref(j);
}

static void facts_that_are_missing_or_unknown_are_named(void **s) {
    (void)s;
    folder f;
    open_folder(&f);
    const char *const must[] = {"num_hidden_layers",   "hidden_size",  "intermediate_size",
                                "num_attention_heads", "head_dim",     "num_key_value_heads",
                                "num_target_layers",   "rms_norm_eps", "max_position_embeddings",
                                "vocab_size"};
    for (size_t i = 0; i < sizeof must / sizeof *must; i++)
        edited(&f, NULL, must[i], NULL, ERR_FORMAT, must[i]);
    edited(&f, "dflash_config", "mask_token_id", NULL, ERR_FORMAT, "mask_token_id");
    edited(&f, "dflash_config", "target_layer_ids", NULL, ERR_FORMAT, "target_layer_ids");
    edited(&f, "dflash_config", "block_size", json_integer(7), ERR_FORMAT, "8 at the top and 7");
    edited(&f, "paceline", "drafted_tokens", json_integer(8), ERR_FORMAT, "7 are drafted");
    edited(&f, NULL, "architectures", json_pack("[s]", "DFlash2DraftModel"), ERR_REFUSED,
           "DFlash2DraftModel");
    edited(&f, "dflash_config", "projector_type", json_string("domino"), ERR_REFUSED, "domino");
    edited(&f, NULL, "is_causal", json_true(), ERR_REFUSED, "causal");
    edited(&f, NULL, "selector_rank", json_integer(4), ERR_REFUSED, "selector_rank");
    edited(&f, NULL, "rope_theta", json_real(5), ERR_FORMAT, "rope_theta");
    edited(&f, NULL, "rope_parameters",
           json_pack("{s:s, s:f}", "rope_type", "ntk", "rope_theta", 1e4), ERR_REFUSED, "ntk");
    edited(&f, NULL, "rope_scaling", json_integer(3), ERR_FORMAT, "rope_scaling");
    edited(&f, NULL, "rope_parameters", json_array(), ERR_FORMAT, "rope_parameters");
    edited(&f, NULL, "partial_rotary_factor", json_real(0.5), ERR_REFUSED, "partial_rotary");
    edited(&f, NULL, "layer_types", json_pack("[s]", "full_attention"), ERR_FORMAT,
           "1 entries for 2");
    edited(&f, NULL, "sliding_window", json_integer(4), ERR_RANGE, "window of 4");
    edited(&f, "dflash_config", "mask_token_id", json_integer(50), ERR_RANGE, "50");
    edited(&f, "dflash_config", "target_layer_ids", json_pack("[ii]", 3, 3), ERR_RANGE,
           "rise strictly");
    edited(&f, "dflash_config", "target_layer_ids", json_pack("[ii]", 3, 6), ERR_RANGE, "tap 6");
    edited(&f, NULL, "speculators_model_type", json_string("dflash"), ERR_REFUSED, "speculators");
    edited(&f, "paceline", "format", json_integer(2), ERR_REFUSED, "format is 2");
    close_folder(&f);
}

static void rewrite(folder *f, const char *rename, const char *drop, const char *add,
                    const char *transpose) {
    tensor t[64];
    int n = 0;
    static const float extra[4] = {0};
    for (int i = 0; i < f->l.n; i++) {
        const drafter_tensor *d = &f->l.t[i];
        if (drop && strcmp(drop, d->name) == 0) continue;
        t[n] = (tensor){.name = rename && strcmp(rename, d->name) == 0 ? "layers.0.odd.weight"
                                                                       : d->name};
        t[n].type = DT_F32;
        t[n].ndim = d->ndim;
        const int turn = transpose && strcmp(transpose, d->name) == 0;
        t[n].dim[0] = d->dim[turn];
        t[n].dim[1] = d->dim[!turn];
        t[n++].data = f->params + d->offset;
    }
    if (add) t[n++] = (tensor){.name = add, .type = DT_F32, .ndim = 1, .dim = {4}, .data = extra};
    assert_ok(safetensors_write(f->weights, t, n, NULL, 0));
}

static void b39_every_tensor_is_accounted_for(void **s) {
    (void)s;
    folder f;
    dtype stored;
    open_folder(&f);
    float *p = numbers_poisoned(f.l.total);
    rewrite(&f, "layers.0.mlp.up_proj.weight", NULL, NULL, NULL);
    assert_says(drafter_read_params(&f.l, f.path, p, &stored), ERR_FORMAT, f.path,
                "layers.0.mlp.up_proj.weight is missing", "layers.0.odd.weight is not part");
    assert_true(isnan(p[0])); /* nothing was loaded */
    rewrite(&f, NULL, "fc.weight", NULL, NULL);
    assert_says(drafter_read_params(&f.l, f.path, p, &stored), ERR_FORMAT, "fc.weight is missing");
    rewrite(&f, NULL, NULL, "lm_head.weight", NULL);
    assert_says(drafter_read_params(&f.l, f.path, p, &stored), ERR_FORMAT,
                "lm_head.weight is not part");
    rewrite(&f, NULL, NULL, NULL, "layers.1.mlp.down_proj.weight");
    assert_says(drafter_read_params(&f.l, f.path, p, &stored), ERR_FORMAT,
                "layers.1.mlp.down_proj.weight is [24, 16] and must be [16, 24]");
    f.params[drafter_find(&f.l, "norm.weight")->offset + 2] = INFINITY;
    rewrite(&f, NULL, NULL, NULL, NULL);
    assert_says(drafter_read_params(&f.l, f.path, p, &stored), ERR_NUMERIC,
                "element 2 of norm.weight");
    free(p);
    close_folder(&f);
}

static void taps_follow_the_formula(void **s) {
    (void)s;
    /* Configs of published drafters. */
    static const struct {
        int64_t layers;
        int n;
        int64_t taps[5];
    } known[] = {{36, 5, {1, 9, 17, 25, 33}},  {24, 5, {1, 6, 11, 16, 21}},
                 {16, 5, {1, 4, 7, 10, 13}},   {28, 5, {1, 7, 13, 19, 25}},
                 {32, 5, {1, 8, 15, 22, 29}},  {40, 5, {1, 10, 19, 28, 37}},
                 {64, 5, {1, 16, 31, 46, 61}}, {30, 1, {15}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int64_t taps[5];
        drafter_taps_auto(known[i].layers, known[i].n, taps);
        assert_memory_equal(taps, known[i].taps, (size_t)known[i].n * sizeof *taps);
    }
}

static void broken(void (*change)(drafter_config *c), const char *says) {
    drafter_config c = small();
    assert_ok(drafter_config_check(&c));
    change(&c);
    assert_says(drafter_config_check(&c), ERR_RANGE, says);
}
static void no_layers(drafter_config *c) { c->layers = 0; }
static void odd_heads(drafter_config *c) { c->kv_heads = 3; }
static void odd_dim(drafter_config *c) { c->head_dim = 12; }
static void one_slot(drafter_config *c) { c->block_size = 1; }
static void many_taps(drafter_config *c) { c->target_layers = 1; }
static void mask_outside(drafter_config *c) { c->mask_token = 50; }
static void two_windows(drafter_config *c) { c->window[0] = 16; }
static void part_rotated(drafter_config *c) { c->rope.rotary_dim = 4; }
static void rules_of_a_config(void **s) {
    (void)s;
    broken(no_layers, "0 layers");
    broken(odd_heads, "4 query heads are no multiple of its 3");
    broken(odd_dim, "head_dim is 12");
    broken(one_slot, "block_size is 1");
    broken(many_taps, "2 taps but its target has 1");
    broken(mask_outside, "mask token 50 is outside");
    broken(two_windows, "windows of 16 and 32");
    broken(part_rotated, "whole head of 8");
}

static void first_weights_depend_on_the_seed_alone(void **s) {
    (void)s;
    folder f;
    open_folder(&f);
    float *p = numbers_poisoned(f.l.total);
    drafter_init(&f.l, 3, p);
    assert_memory_equal(p, f.params, (size_t)f.l.total * sizeof *p);
    const drafter_tensor *fc = drafter_find(&f.l, "fc.weight");
    const int64_t hidden = fc->dim[0], in = fc->dim[1];
    double sum = 0, square = 0;
    for (int64_t i = 0; i < fc->count;
         i++) { /* 1 on the last tap's diagonal beside the random part */
        const double pass = i % in == in - hidden + i / in ? 1 : 0,
                     x = (double)p[fc->offset + i] - pass;
        sum += x;
        square += x * x;
    }
    assert_true(fabs(sum / (double)fc->count) < 4 * 0.02 / sqrt((double)fc->count));
    assert_true(fabs(sqrt(square / (double)fc->count) / 0.02 - 1) < 0.15);
    const drafter_tensor *last = drafter_find(&f.l, "norm.weight");
    for (int64_t i = 0; i < last->count; i++) assert_true(p[last->offset + i] == 0.4f);
    const drafter_tensor *norm = drafter_find(&f.l, "layers.1.self_attn.k_norm.weight");
    for (int64_t i = 0; i < norm->count; i++) assert_true(p[norm->offset + i] == 1.0f);
    drafter_init(&f.l, 4, p);
    assert_memory_not_equal(p + fc->offset, f.params + fc->offset, 64);
    assert_null(drafter_find(&f.l, "lm_head.weight"));
    free(p);
    close_folder(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(every_rope_kind_is_read_back),
        cmocka_unit_test(another_trainers_file_loads),
        cmocka_unit_test(facts_that_are_missing_or_unknown_are_named),
        cmocka_unit_test(b39_every_tensor_is_accounted_for),
        cmocka_unit_test(taps_follow_the_formula),
        cmocka_unit_test(rules_of_a_config),
        cmocka_unit_test(first_weights_depend_on_the_seed_alone),
    };
    return cmocka_run_group_tests_name("drafter files", tests, NULL, NULL);
}
