/* What stops a target from loading, and what does not: every tensor once, tied heads, shards, kinds that are not known.
 *
 * Folders are made from a fixture by renaming, dropping, adding, transposing or cutting (B38, B39) and by editing its
 * config; each failure is one sentence that names what is wrong. The same weights through a GGUF, whose rows of q and k are
 * permuted, must give the same digest. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/json.h"
#include "model/target_check.h"
#include "support/files.h"
#include "support/tiny_gguf.h"
#include <string.h>

enum { MAX_TENSORS = 64 };
static const char *const source = "tests/fixtures/target_gqa_tied";
static const char *const norm = "model.norm.weight";
static const char *const down = "model.layers.1.mlp.down_proj.weight";

/* The fixture's tensors, to be edited and written to a folder of one's own. */
typedef struct folder {
    st_file *f;
    tensor t[MAX_TENSORS];
    int n;
    json_t *config;
    files_dir dir;
    dev *d;
} folder;

static folder begin(void) {
    folder x = {.dir = files_begin(), .d = target_check_dev(2)};
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", source);
    assert_ok(safetensors_open(&x.f, path));
    x.n = safetensors_count(x.f);
    assert_true(x.n < MAX_TENSORS - 2);
    for (int i = 0; i < x.n; i++) x.t[i] = *safetensors_at(x.f, i);
    snprintf(path, sizeof path, "%s/config.json", source);
    assert_ok(json_read_file(&x.config, path));
    return x;
}
static void end(folder *x) {
    safetensors_close(x->f);
    json_decref(x->config);
    files_end(&x->dir);
    dev_close(x->d);
}
static tensor *named(folder *x, const char *name) {
    for (int i = 0; i < x->n; i++)
        if (strcmp(x->t[i].name, name) == 0) return &x->t[i];
    fail();
    return NULL;
}
static void set(folder *x, const char *key, json_t *value) {
    json_object_set_new(x->config, key, value);
}
static void write_folder(folder *x) {
    assert_ok(json_write_file(x->config, files_at(&x->dir, "config.json")));
    assert_ok(safetensors_write(files_at(&x->dir, "model.safetensors"), x->t, x->n, NULL, 0));
}
/* Writes and loads; *t is freed by the caller when the load succeeded. */
static err load(folder *x, target **t) {
    write_folder(x);
    return target_load(t, x->d, x->dir.path, NULL);
}
#define assert_refused(x, code, ...)                                                               \
    do {                                                                                           \
        target *t_;                                                                                \
        assert_says(load((x), &t_), code, __VA_ARGS__);                                            \
        assert_null(t_);                                                                           \
    } while (0)

static void the_unchanged_copy_loads(void **state) {
    (void)state;
    folder x = begin();
    target *t, *u;
    char a[33], b[33];
    assert_ok(load(&x, &t));
    assert_ok(target_load(&u, x.d, source, NULL));
    target_digest(t, a);
    target_digest(u, b);
    assert_string_equal(a, b);
    assert_string_equal(target_path(u), source);
    assert_int_equal(target_get_config(t)->n_eos, 2);
    assert_int_equal(target_get_config(t)->eos[1], 7);
    assert_true(target_head(t)->data == target_embedding(t)->data);
    assert_true(target_bytes(t) > 0);
    target_free(t), target_free(u);
    target_free(NULL);
    end(&x);
}

static void b39_each_tensor_exactly_once(void **state) {
    (void)state;
    folder x = begin();
    named(&x, down)->name = "model.layers.1.mlp.down.weight"; /* renamed */
    assert_refused(&x, ERR_FORMAT, "missing: model.layers.1.mlp.down_proj.weight",
                   "unexpected: model.layers.1.mlp.down.weight");
    end(&x);
    x = begin();
    *named(&x, norm) = x.t[x.n - 1]; /* dropped */
    x.n--;
    assert_refused(&x, ERR_FORMAT, "missing: model.norm.weight");
    end(&x);
    x = begin();
    x.t[x.n] = *named(&x, norm); /* added */
    x.t[x.n++].name = "model.layers.3.input_layernorm.weight";
    assert_refused(&x, ERR_FORMAT, "unexpected: model.layers.3.input_layernorm.weight");
    end(&x);
    x = begin();
    tensor *t = named(&x, down); /* transposed */
    int64_t rows = t->dim[0];
    t->dim[0] = t->dim[1];
    t->dim[1] = rows;
    assert_refused(&x, ERR_FORMAT, "another shape",
                   "down_proj.weight [40, 24] instead of [24, 40]");
    named(&x, norm)->name = "norm.weight"; /* and two faults in one sentence */
    assert_refused(&x, ERR_FORMAT, "missing: model.norm.weight", "unexpected: norm.weight",
                   "[40, 24]");
    end(&x);
}

static void b39_tied_heads(void **state) {
    (void)state;
    folder x = begin();
    target *t;
    x.t[x.n] = *named(&x, "model.embed_tokens.weight"); /* tied, and an equal head is there */
    x.t[x.n].name = "lm_head.weight";
    x.n++;
    assert_ok(load(&x, &t));
    assert_true(target_head(t)->data == target_embedding(t)->data);
    target_free(t);
    size_t bytes = tensor_bytes(&x.t[x.n - 1]);
    char *other = malloc(bytes);
    memcpy(other, x.t[x.n - 1].data, bytes);
    other[bytes - 1] ^= 0x40; /* tied, and another head is there */
    x.t[x.n - 1].data = other;
    assert_refused(&x, ERR_FORMAT, "lm_head.weight", "differs", "row 60", "tie_word_embeddings");
    set(&x, "tie_word_embeddings", json_false()); /* not tied: it is the head */
    assert_ok(load(&x, &t));
    assert_true(target_head(t)->data != target_embedding(t)->data);
    target_free(t);
    x.n--; /* not tied, and none is there */
    assert_refused(&x, ERR_FORMAT, "missing: lm_head.weight");
    free(other);
    end(&x);
}

static void b38_files_that_are_short_or_missing(void **state) {
    (void)state;
    folder x = begin();
    target *t;
    char *data;
    size_t n;
    write_folder(&x);
    assert_ok(file_read(files_at(&x.dir, "model.safetensors"), &data, &n));
    files_write(&x.dir, "model.safetensors", data, n - 4096);
    assert_int_not_equal(target_load(&t, x.d, x.dir.path, NULL), ERR_OK);
    assert_non_null(strstr(err_text(), "model.safetensors"));
    mem_free(data);
    assert_ok(file_remove_tree(files_at(&x.dir, "model.safetensors")));
    assert_int_not_equal(target_load(&t, x.d, x.dir.path, NULL), ERR_OK);
    assert_int_not_equal(target_load(&t, x.d, files_at(&x.dir, "nowhere"), NULL), ERR_OK);
    assert_non_null(strstr(err_text(), "no such file or folder"));
    files_text(&x.dir, "config.json", "{\"model_type\": \"llama\",");
    assert_int_not_equal(target_load(&t, x.d, x.dir.path, NULL), ERR_OK);
    files_text(&x.dir, "x.gguf", "GGUF");
    assert_int_not_equal(target_load(&t, x.d, files_at(&x.dir, "x.gguf"), NULL), ERR_OK);
    assert_null(t);
    end(&x);
}

static void a_value_that_is_not_finite_is_named(void **state) {
    (void)state;
    folder x = begin();
    tensor *t = named(&x, down);
    bf16 *w = malloc(tensor_bytes(t));
    memcpy(w, t->data, tensor_bytes(t));
    w[5 * 40 + 3] = 0x7fc0;
    t->data = w;
    assert_refused(&x, ERR_NUMERIC, "down_proj.weight", "row 5");
    free(w);
    end(&x);
}

static void b36_a_tap_that_is_not_finite_stops_the_row(void **state) {
    (void)state;
    folder x = begin();
    tensor *t = named(&x, down);
    int64_t n = tensor_count(t);
    bf16 *w = malloc(tensor_bytes(t));
    for (int64_t i = 0; i < n; i++)
        w[i] = bf16_from_f32(3e38f); /* finite, and its products are not */
    t->data = w;
    target *m;
    arena *a;
    assert_ok(load(&x, &m));
    assert_ok(arena_create(&a, "test", 0));
    int32_t tokens[3] = {4, 5, 6}, doc[3] = {2, 2, 2}, pos[3] = {0, 1, 2};
    int64_t taps[2] = {0, 1};
    float *out = numbers_poisoned(3 * 2 * 24);
    target_row row = {.n = 3,
                      .tokens = tokens,
                      .document = doc,
                      .position = pos,
                      .taps = taps,
                      .n_taps = 2,
                      .taps_out = out};
    assert_says(target_forward(m, x.d, &row, a), ERR_NUMERIC, "tap 1 of token 0", "document 2");
    row.n_taps = 1; /* block 0 is sound, and nothing past it runs */
    assert_ok(target_forward(m, x.d, &row, a));
    free(out), free(w);
    arena_destroy(a);
    target_free(m);
    end(&x);
}

static void other_kinds_are_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *key, *value, *says;
        err code;
    } c[] = {
        {"model_type", "\"qwen2\"", "\"qwen2\"", ERR_REFUSED},
        {"architectures", "[\"MistralForCausalLM\"]", "MistralForCausalLM", ERR_REFUSED},
        {"hidden_act", "\"gelu\"", "gelu", ERR_REFUSED},
        {"attention_bias", "true", "attention_bias", ERR_REFUSED},
        {"mlp_bias", "true", "mlp_bias", ERR_REFUSED},
        {"rope_scaling", "{\"rope_type\": \"longrope\", \"factor\": 2}", "longrope", ERR_REFUSED},
        {"rope_scaling", "{\"type\": \"dynamic\", \"factor\": 2}", "dynamic", ERR_REFUSED},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2, \"mscale\": 1}", "mscale",
         ERR_REFUSED},
        {"rope_scaling", "{\"rope_type\": \"linear\"}", "factor", ERR_FORMAT},
        {"rope_scaling", "3", "rope_scaling", ERR_FORMAT},
        {"rope_parameters", "[]", "rope_parameters", ERR_FORMAT},
        {"quantization_config", "{\"bits\": 4}", "quantization_config", ERR_REFUSED},
        {"sliding_window", "128", "sliding_window", ERR_REFUSED},
        {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 5}", "make them agree",
         ERR_FORMAT},
        {"hidden_size", "\"24\"", "hidden_size", ERR_FORMAT},
        {"num_hidden_layers", "0", "layers is 0", ERR_RANGE},
        {"num_key_value_heads", "2", "3 query heads", ERR_RANGE},
        {"head_dim", "12", "12", ERR_RANGE},
        {"eos_token_id", "61", "end token 61", ERR_RANGE},
        {"rms_norm_eps", "0", "epsilon", ERR_RANGE},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        folder x = begin();
        set(&x, c[i].key, json_loads(c[i].value, JSON_DECODE_ANY, NULL));
        assert_refused(&x, c[i].code, c[i].says,
                       strcmp(c[i].key, "rms_norm_eps") == 0 ? x.dir.path : "");
        end(&x);
    }
}

static void two_places_of_a_scaling_must_agree(void **state) {
    (void)state;
    folder x = begin();
    set(&x, "rope_scaling", json_loads("{\"rope_type\": \"linear\", \"factor\": 2.0}", 0, NULL));
    set(&x, "rope_parameters", json_loads("{\"rope_type\": \"linear\", \"factor\": 4.0}", 0, NULL));
    assert_refused(&x, ERR_FORMAT, "make them agree");
    target *t;
    set(&x, "rope_parameters", json_loads("{\"rope_type\": \"linear\", \"factor\": 2.0}", 0, NULL));
    assert_ok(load(&x, &t));
    target_free(t);
    end(&x);
}

/* Fills a GGUF's tensors from the fixture: rows of q and k go to interleaved order. */
static void fill_from(void *ctx, const char *name, float *w, int64_t rows, int64_t cols) {
    static const char *const parts[][2] = {
        {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
        {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
        {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"}};
    folder *x = ctx;
    char want[128] = "", part[64];
    int layer, rotated = 0;
    if (strcmp(name, "token_embd.weight") == 0)
        snprintf(want, sizeof want, "model.embed_tokens.weight");
    if (strcmp(name, "output_norm.weight") == 0) snprintf(want, sizeof want, "%s", norm);
    if (sscanf(name, "blk.%d.%63[a-z_].weight", &layer, part) == 2)
        for (int i = 0; i < 9; i++)
            if (strcmp(parts[i][0], part) == 0) {
                snprintf(want, sizeof want, "model.layers.%d.%s.weight", layer, parts[i][1]);
                rotated = i == 1 || i == 2;
            }
    const tensor *t = named(x, want);
    if (cols < 1) cols = 1;
    assert_int_equal(tensor_count(t), rows * cols);
    float *all = numbers_poisoned(rows * cols);
    dtype_to_f32(t->type, t->data, all, (size_t)(rows * cols));
    for (int64_t r = 0; r < rows; r++) {
        int64_t k = r % 8, from = rotated ? r - k + (k % 2) * 4 + k / 2 : r; /* heads of 8 rows */
        memcpy(w + r * cols, all + from * cols, (size_t)cols * 4);
    }
    free(all);
}

static void gguf_rows_are_put_back(void **state) {
    (void)state;
    folder x = begin();
    target *t, *u;
    char a[33], b[33];
    tiny_gguf g = {.layers = 3,
                   .hidden = 24,
                   .intermediate = 40,
                   .heads = 3,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .vocab = 61,
                   .context = 128,
                   .tied = 1,
                   .fill = fill_from,
                   .ctx = &x};
    files_dir dir = files_begin();
    assert_ok(tiny_gguf_write(files_at(&dir, "t.gguf"), &g));
    assert_ok(target_load(&t, x.d, files_at(&dir, "t.gguf"), NULL));
    set(&x, "rope_theta", json_real(target_get_config(t)->rope.theta));
    set(&x, "rms_norm_eps", json_real((double)target_get_config(t)->rms_eps));
    assert_ok(load(&x, &u));
    target_digest(t, a);
    target_digest(u, b);
    assert_string_equal(a, b);
    target_free(t), target_free(u);
    files_end(&dir);
    end(&x);
}

static void other_architectures_in_gguf_are_refused_by_name(void **state) {
    (void)state;
    folder x = begin();
    target *t;
    char *data;
    size_t n;
    tiny_gguf g = tiny_gguf_default(61, 1);
    assert_ok(tiny_gguf_write(files_at(&x.dir, "t.gguf"), &g));
    assert_ok(file_read(x.dir.name, &data, &n));
    char *at = memmem(data, n, "general.architecture", 20);
    assert_non_null(at);
    at = memmem(at, 64, "llama", 5);
    assert_non_null(at);
    memcpy(at, "qwen2", 5);
    files_write(&x.dir, "t.gguf", data, n);
    assert_says(target_load(&t, x.d, files_at(&x.dir, "t.gguf"), NULL), ERR_REFUSED, "t.gguf",
                "'qwen2'", "known: llama");
    memcpy(at, "llama", 5);
    at = memmem(data, n, "blk.1.ffn_up", 12); /* a tensor of another name */
    assert_non_null(at);
    at[4] = '9';
    files_write(&x.dir, "t.gguf", data, n);
    assert_says(target_load(&t, x.d, files_at(&x.dir, "t.gguf"), NULL), ERR_FORMAT,
                "missing: blk.1.ffn_up.weight", "unexpected: blk.9.ffn_up.weight");
    mem_free(data);
    end(&x);
}

static void rounding_changes_the_digest(void **state) {
    (void)state;
    folder x = begin();
    target *t;
    write_folder(&x);
    char a[33], b[33];
    target_options keep = {.keep_f32 = 1};
    assert_ok(target_load(&t, x.d, x.dir.path, &keep));
    target_digest(t, a);
    target_free(t);
    assert_ok(target_load(&t, x.d, x.dir.path, NULL));
    target_digest(t, b);
    assert_string_not_equal(a, b);
    target_free(t);
    end(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_unchanged_copy_loads),
        cmocka_unit_test(b39_each_tensor_exactly_once),
        cmocka_unit_test(b39_tied_heads),
        cmocka_unit_test(b38_files_that_are_short_or_missing),
        cmocka_unit_test(a_value_that_is_not_finite_is_named),
        cmocka_unit_test(b36_a_tap_that_is_not_finite_stops_the_row),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(two_places_of_a_scaling_must_agree),
        cmocka_unit_test(gguf_rows_are_put_back),
        cmocka_unit_test(other_architectures_in_gguf_are_refused_by_name),
        cmocka_unit_test(rounding_changes_the_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
