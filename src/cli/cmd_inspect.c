/* paceline inspect: what a file or folder holds: safetensors, GGUF, drafter folder, checkpoint, run.
 * Tells them apart by their content, not by their names. Every check of the readers applies, so a
 * damaged file is named as such. */
#include "cli/command.h"
#include "core/arena.h"
#include "core/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/drafter.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const arg_spec spec[] = {{NULL, ARG_FLAG, NULL, NULL}};

static err show_safetensors(const char *path) {
    st_file *f;
    char shape[128], bytes[24], n[32];
    double total = 0;
    int64_t params = 0;
    TRY(safetensors_open(&f, path));
    for (int i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        printf("  %-5s %-20s %s\n", dtype_name(t->type), tensor_shape_text(t, shape, sizeof shape),
               t->name);
        total += (double)tensor_bytes(t);
        params += tensor_count(t);
    }
    printf("%s: safetensors, %d tensors, %s elements, %s\n", path, safetensors_count(f),
           str_thousands(params, n), str_bytes(total, bytes));
    safetensors_close(f);
    return ERR_OK;
}

static void print_gguf_tensor(const gguf_tensor *t) {
    char shape[128];
    printf("  %-5s %-20s %s\n", gguf_type_name(t->ggml_type),
           gguf_shape_text(t, shape, sizeof shape), t->name);
}

static err show_gguf(const char *path) {
    gguf *g;
    char text[160];
    err e = gguf_open(&g, path);
    if (e) return e;
    for (int i = 0; i < gguf_key_count(g) && !e; i++) {
        const char *key;
        size_t len;
        e = gguf_key_at(g, i, &key, &len, text, sizeof text);
        if (!e) printf("  %-44.*s %s\n", (int)len, key, text);
    }
    for (int i = 0; i < gguf_tensor_count(g) && !e; i++) print_gguf_tensor(gguf_tensor_at(g, i));
    if (!e)
        printf("%s: GGUF, %d keys, %d tensors\n", path, gguf_key_count(g), gguf_tensor_count(g));
    gguf_close(g);
    return e;
}

static err show_drafter(const char *dir) {
    drafter_config c;
    char file[4096];
    TRY(drafter_read_config(&c, dir));
    printf("drafter    %lld layers, hidden %lld, MLP %lld, %lld/%lld heads of %lld\n",
           (long long)c.layers, (long long)c.hidden, (long long)c.intermediate, (long long)c.heads,
           (long long)c.kv_heads, (long long)c.head_dim);
    printf("block size %lld (drafts %lld tokens), mask token %d\n", (long long)c.block_size,
           (long long)c.block_size - 1, c.mask_token);
    printf("taps       ");
    for (int i = 0; i < c.n_taps; i++) printf("%s%lld", i ? ", " : "", (long long)c.taps[i]);
    printf(" of %lld target layers (outputs, counted from 0)\nwindow     ",
           (long long)c.target_layers);
    for (int i = 0; i < c.layers; i++) {
        if (c.window[i])
            printf("%s%lld", i ? ", " : "", (long long)c.window[i]);
        else
            printf("%snone", i ? ", " : "");
    }
    printf("\nvocabulary %lld, made for target %s\n", (long long)c.vocab,
           c.target_digest[0] ? c.target_digest : "(not recorded)");
    TRY(file_join(file, sizeof file, dir, "model.safetensors"));
    return show_safetensors(file);
}

/* A JSON file's top-level values, lists and long texts shortened. */
static err show_state(const char *path) {
    json_t *j;
    TRY(json_read_file(&j, path));
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        printf("  %-20s %.100s%s\n", key, text ? text : "?",
               text && strlen(text) > 100 ? "..." : "");
        free(text);
    }
    json_decref(j);
    return ERR_OK;
}

static err show_list(const char *dir, const char *title) {
    char **names;
    int n;
    TRY(file_list(dir, &names, &n));
    printf("%s: %s\n", dir, title);
    for (int i = 0; i < n; i++) printf("  %s\n", names[i]);
    file_names_free(names, n);
    return ERR_OK;
}

static int holds(const char *dir, const char *name, char *path, size_t n) {
    err e = file_join(path, n, dir, name);
    if (e) err_clear();
    return !e && file_exists(path);
}

static err show_dir(const char *dir) {
    char path[4096];
    if (holds(dir, "state.json", path, sizeof path)) {
        printf("%s: checkpoint%s\n", dir,
               holds(dir, "COMPLETE", (char[4096]){0}, 4096) ? ""
                                                             : ", INCOMPLETE (not used by resume)");
        TRY(show_state(path));
        return show_list(dir, "files");
    }
    if (holds(dir, "checkpoints", path, sizeof path))
        return show_list(path, "run with checkpoints");
    if (holds(dir, "config.json", path, sizeof path)) {
        json_t *j;
        TRY(json_read_file(&j, path));
        int is_drafter = json_object_get(j, "dflash_config") != NULL;
        json_decref(j);
        if (is_drafter) return show_drafter(dir);
        printf("%s: Hugging Face model folder\n", dir);
        TRY(show_state(path));
        if (holds(dir, "model.safetensors", path, sizeof path)) return show_safetensors(path);
        return show_list(dir, "files");
    }
    return err_set(
        ERR_FORMAT,
        "%s is a folder without config.json, state.json or checkpoints: not a model, drafter, checkpoint or run",
        dir);
}

static err run(const args *a) {
    const char *path = a->positional[0];
    file_map m;
    if (file_is_dir(path)) return show_dir(path);
    TRY(file_map_open(&m, path));
    int is_gguf = m.size >= 4 && !memcmp(m.data, "GGUF", 4),
        is_st = m.size >= 9 && m.data[8] == '{';
    size_t size = m.size;
    file_map_close(&m);
    if (is_gguf) return show_gguf(path);
    if (is_st) return show_safetensors(path);
    return err_set(
        ERR_FORMAT,
        "%s (%zu bytes) is neither GGUF nor safetensors: its first bytes are of no format that is known here",
        path, size);
}

const command command_inspect = {
    .name = "inspect",
    .usage = "inspect PATH",
    .summary = "what a safetensors or GGUF file, drafter, checkpoint or run folder holds",
    .spec = spec,
    .min_pos = 1,
    .max_pos = 1,
    .run = run,
};
