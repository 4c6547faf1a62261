/* Bytes on disk: checkpoints, exports, metric rows, prepared tokens, the feature store; and what of them is there already.
 *
 * A checkpoint holds masters, two moments and the bf16 export. As many stand side by side as are kept, the best one and the one
 * being written, but never more than the run saves. Folders of one file system share its room. Nothing is written here, and
 * nothing that is there is trusted for more than its size. */
#include "core/file.h"
#include "train/train_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Bytes of the files below a folder; what cannot be read counts as nothing. */
static uint64_t tree_bytes(const char *path, int depth) {
    struct stat st;
    char **names = NULL, below[TRAIN_PATH];
    int n = 0;
    uint64_t sum = 0;
    if (lstat(path, &st) != 0) return 0;
    if (S_ISREG(st.st_mode)) return (uint64_t)st.st_size;
    if (!S_ISDIR(st.st_mode) || depth > 8) return 0;
    if (file_list(path, &names, &n)) {
        err_clear();
        return 0;
    }
    for (int i = 0; i < n; i++)
        if (snprintf(below, sizeof below, "%s/%s", path, names[i]) < (int)sizeof below)
            sum += tree_bytes(below, depth + 1);
    file_names_free(names, n);
    return sum;
}

static uint64_t bytes_there(const char *folder, const char *name) {
    char path[TRAIN_PATH];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
    return tree_bytes(path, 0);
}

err train__nearest_folder(const char *path, char *out, size_t n) {
    if (snprintf(out, n, "%s", path) >= (int)n)
        return err_set(ERR_RANGE, "the path %.60s... is too long", path);
    while (!file_is_dir(out)) {
        char *slash = strrchr(out, '/');
        if (!slash || !out[1]) return err_set(ERR_IO, "%s: no folder above it is there", path);
        slash[slash == out] = 0;
    }
    return ERR_OK;
}

/* The file system that the folder is or will be on, and its free bytes. */
static err look(const train *t, train_plan_file *f) {
    char place[TRAIN_PATH];
    struct stat st;
    TRY(train__nearest_folder(f->folder, place, sizeof place));
    if (stat(place, &st) != 0) return err_errno("%s cannot be examined", place);
    f->system = (uint64_t)st.st_dev;
    TRY(file_free_bytes(place, &f->room));
    const uint64_t most = t->opt.disk_limit;
    if (most && (t->opt.plan_only || most < f->room)) f->room = most;
    return ERR_OK;
}

static uint64_t header_bytes(const train_drafter *d, int buffers) {
    return 4096 + (uint64_t)(buffers * d->l.n) * 192;
}

static uint64_t params_of(const train_drafter *d) {
    uint64_t n = 0;
    for (int i = 0; i < d->l.n; i++) n += (uint64_t)d->l.t[i].count;
    return n;
}

/* state.json holds the recipe's text, COMPLETE a line for each file. */
static uint64_t checkpoint_bytes(const train_drafter *d) {
    return 14 * params_of(d) + header_bytes(d, 4) + 2 * d->at.recipe.n + 8192;
}

/* At each multiple, at the end, when an evaluation was the best so far, and when the run is stopped. */
static uint64_t saves(const train *t, const train_drafter *d, int64_t updates) {
    const int64_t every = recipe_int(d->r, RECIPE_run_checkpoint_every);
    const int64_t judged = t->held ? updates / recipe_int(d->r, RECIPE_run_evaluate_every) + 1 : 0;
    return (uint64_t)(updates / every + judged + 2);
}

static void add(train_plan_file *f, int *n, const char *name, const char *folder, uint64_t bytes,
                uint64_t there) {
    train_plan_file *o = &f[(*n)++];
    *o = (train_plan_file){.folder = folder, .bytes = bytes, .there = there};
    snprintf(o->name, sizeof o->name, "%s", name);
}

static void count_drafters(const train *t, const train__sizes *z, const train__rows *rows,
                           train_plan_file *f, int *n) {
    uint64_t checkpoints = 0, exports = 0, metrics = 1 << 20, there[3] = {0};
    char name[64];
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        if (i == z->without) continue;
        const int64_t updates = t->from_update + rows->updates;
        const uint64_t kept = (uint64_t)z->keep + 2, made = saves(t, d, updates);
        checkpoints += checkpoint_bytes(d) * (kept < made ? kept : made);
        exports += 2 * (2 * params_of(d) + header_bytes(d, 1)); /* the next one is written beside */
        metrics += (uint64_t)updates * (512 + 32 * (uint64_t)d->l.cfg.block_size);
        there[0] += bytes_there(d->folder, "checkpoints");
        there[1] += bytes_there(d->folder, "drafter");
        there[2] += bytes_there(d->folder, "metrics.jsonl");
    }
    snprintf(name, sizeof name, "checkpoints: %" PRId64 " kept, the best, one being written",
             z->keep);
    add(f, n, name, t->run, checkpoints, there[0]);
    add(f, n, "exported drafters", t->run, exports, there[1]);
    add(f, n, "metric rows", t->run, metrics, there[2]);
}

static void count_tokens(const train *t, train_plan_file *f, int *n) {
    const uint64_t tokens = (uint64_t)t->plan.tokens, docs = (uint64_t)t->plan.documents;
    /* A token and its mask are 5 bytes; the index, which is written anew as rows are added, 48 a document. */
    const uint64_t bytes = 5 * tokens + 100 * docs + (1 << 20);
    if (recipe_is_auto(t->r, RECIPE_data_store)) {
        add(f, n, "prepared tokens", t->run, bytes, bytes_there(t->run, "tokens"));
        return;
    }
    const char *dir = recipe_text(t->r, RECIPE_data_store);
    add(f, n, "prepared tokens", dir, bytes, tree_bytes(dir, 0));
}

err train__features_shape(const train *t, str *key, features_shape *out) {
    char digest[33];
    target_digest(t->t, digest);
    str_clear(key);
    TRY(str_printf(key, "target %s, taps", digest));
    for (int i = 0; i < t->n_taps; i++) TRY(str_printf(key, " %" PRId64, t->taps[i]));
    *out = (features_shape){.key = key->s,
                            .docs = data_count(t->data),
                            .width = t->n_taps * target_get_config(t->t)->hidden};
    return ERR_OK;
}

static err count_features(const train *t, train_plan_file *f, int *n) {
    const char *dir = recipe_text(t->r, RECIPE_features_store);
    features_shape shape;
    str key = {0};
    uint64_t stored = 0;
    err e = train__features_shape(t, &key, &shape);
    if (!e) e = features_stored(dir, &shape, &stored);
    str_free(&key);
    TRY(e);
    add(f, n, "taps of the feature store", dir, features_bytes(t->plan.tokens, shape.width),
        stored);
    return ERR_OK;
}

err train__count_files(const train *t, const train__sizes *z, const train__rows *rows,
                       train_plan_file files[TRAIN_PLAN_FILES], int *n) {
    *n = 0;
    count_drafters(t, z, rows, files, n);
    count_tokens(t, files, n);
    if (z->features) TRY(count_features(t, files, n));
    for (int i = 0; i < *n; i++) TRY(look(t, &files[i]));
    return ERR_OK;
}
