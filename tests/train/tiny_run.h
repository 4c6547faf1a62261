/* A whole training run in a temporary folder, small enough for a test: tiny GGUF with a byte tokenizer, JSONL rows, a recipe.
 *
 * Any recipe key can be set per use. tiny_run_digest names a checkpoint's weights and moments, so two runs can be compared bit for bit.
 * Used by the training tests only. */
#ifndef TINY_RUN_H
#define TINY_RUN_H
#include "core/log.h"
#include "support/files.h"
#include "support/tiny_gguf.h"
#include "train/train.h"
#include <unistd.h>

/* A sink for runs whose warnings are expected. */
static inline void tiny_run_quiet(void *ctx, log_level level, const char *line) {
    (void)ctx;
    (void)level;
    (void)line;
}
/* A group's set-up: no log lines, and folders in memory where that is possible, since checkpoints sync often. */
static inline int tiny_run_silence(void **state) {
    (void)state;
    log_set_sink(tiny_run_quiet, NULL);
    files_in_memory();
    return 0;
}

static inline void tiny_run_rows(files_dir *d, const char *name, int first, int n) {
    static const char *const words[] = {"red",  "blue",    "this",   "that",
                                        "moon", "the sea", "a path", "nine"};
    char text[16384];
    int at = 0;
    for (int i = first; i < first + n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "{\"prompt\": \"say %s %d\", \"response\": \"%s and %s, %s%s\"}\n",
                       words[i % 8], i, words[(i * 3 + 1) % 8], words[(i * 5 + 2) % 8],
                       words[(i + 4) % 8], i % 3 ? "." : ", then rest a while.");
    files_text(d, name, text);
}

static inline void tiny_run_make(files_dir *d, uint64_t seed) {
    *d = files_begin();
    /* Paths on the command line are relative to the working folder. */
    files_must(chdir(d->path) == 0, d->path);
    tiny_gguf g = tiny_gguf_default(TINY_COUNT + 3, seed);
    g.tokenizer = 1;
    g.layers = 4;
    files_must(!tiny_gguf_write(files_at(d, "t.gguf"), &g), err_text());
    tiny_run_rows(d, "train.jsonl", 0, 24);
    tiny_run_rows(d, "held.jsonl", 100, 3);
    files_text(
        d, "recipe.yaml",
        "target: {path: t.gguf}\n"
        "data: {path: train.jsonl, validation: held.jsonl, max_length: 96, template: chatml}\n"
        "drafter: {layers: 2, block_size: 4, taps: [0, 2]}\n"
        "anchors: {per_document: 6}\n"
        "optimizer: {lr: 3.0e-3}\n"
        "run: {max_updates: 12, tokens_per_step: 200, tokens_per_row: 96, checkpoint_every: 4,\n"
        "      evaluate_every: 6, evaluate_prompts: 2, evaluate_tokens: 8, keep: 2, out: out}\n"
        "devices: {threads: 2, target: cpu:0, drafter: cpu:0}\n");
}

/* extra: "section.key=value" texts, ended by NULL. */
static inline err tiny_run_open(files_dir *d, const char *const *extra, const train_options *opt,
                                recipe **r, train **t) {
    int n = 0;
    while (extra && extra[n]) n++;
    *t = NULL;
    TRY(recipe_load(r, files_at(d, "recipe.yaml"), extra, n));
    err e = train_open(t, *r, opt);
    if (e) {
        recipe_free(*r);
        *r = NULL;
    }
    return e;
}

/* Opens, runs, closes. */
static inline err tiny_run(files_dir *d, const char *const *extra, train_watch watch, void *ctx,
                           const _Atomic int *stop) {
    recipe *r;
    train *t;
    TRY(tiny_run_open(d, extra, NULL, &r, &t));
    err e = train_run(t, watch, ctx, stop);
    train_close(t);
    recipe_free(r);
    return e;
}

/* For train_options.on_phase: targets take rows as they come, so one that is to meet something at `step` or later might get none on a busy
 * machine. The others wait there until it has met it. wanted: the beginning of its role's name. */
static inline void tiny_run_give_way(const char *wanted, int64_t from, const _Atomic int *met,
                                     const char *role, const char *phase, int64_t step) {
    if (strncmp(wanted, "target", 6) != 0 || strcmp(phase, "target forward") != 0) return;
    if (strncmp(role, wanted, strlen(wanted)) == 0 || step < from) return;
    for (int ms = 0; ms < 60000 && !*met; ms++) usleep(1000);
}

/* Digests of masters, moments and export of a checkpoint under OUT. */
static inline void tiny_run_digest(files_dir *d, const char *out, int update, char text[128]) {
    static const char *const parts[] = {"masters.safetensors", "moments.safetensors",
                                        "drafter/model.safetensors"};
    char path[900];
    text[0] = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d/%s", d->path, out, update,
                 parts[i]);
        files_must(!file_hash(path, text + strlen(text)), err_text());
    }
}

#endif
