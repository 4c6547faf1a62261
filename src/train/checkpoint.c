/* Checkpoint folders: writing whole, finding, verifying, reading, pruning.
 *
 * COMPLETE is both the mark and the list of digests: a folder without it was never published by this program. Nothing here decides
 * whether a run may continue from what it finds: that is checkpoint_state.c and the run. */
#include "train/checkpoint.h"
#include "core/file.h"
#include "core/log.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "train/checkpoint_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const parts[] = {"state.json", "masters.safetensors", "moments.safetensors",
                                    "drafter/config.json", "drafter/model.safetensors"};
enum { PARTS = sizeof parts / sizeof *parts, PATH = 4096 };

void checkpoint_path(const char *run, int64_t update, char *path, size_t n) {
    snprintf(path, n, "%s/checkpoints/step-%08" PRId64, run, update);
}

/* ---- writing ---- */

/* prefix NULL: masters, under their own names; else two buffers "m." and "v.". */
static err write_tensors(const char *dir, const char *file, const drafter_layout *l,
                         const float *const *buffers, const char *const *prefix, int n) {
    char path[PATH];
    tensor *t = NULL;
    char(*name)[72] = NULL;
    TRY(file_join(path, sizeof path, dir, file));
    TRY(mem_new((size_t)(n * l->n), sizeof *t, &t));
    err e = mem_new((size_t)(n * l->n), sizeof *name, &name);
    for (int k = 0; !e && k < n; k++)
        for (int i = 0; i < l->n; i++) {
            const drafter_tensor *d = &l->t[i];
            const int at = k * l->n + i;
            snprintf(name[at], sizeof *name, "%s%s", prefix[k], d->name);
            t[at] = (tensor){.name = name[at], .type = DT_F32, .ndim = d->ndim};
            t[at].dim[0] = d->dim[0];
            t[at].dim[1] = d->dim[1];
            t[at].data = buffers[k] + d->offset;
        }
    if (!e) e = safetensors_write(path, t, n * l->n, NULL, 0);
    mem_free(name);
    mem_free(t);
    return e;
}

static err write_mark(const char *dir) {
    char path[PATH], digest[33];
    json_t *files = json_object();
    err e = files ? ERR_OK : err_set(ERR_MEMORY, "%s: no memory for its completion mark", dir);
    for (int i = 0; !e && i < PARTS; i++) {
        e = file_join(path, sizeof path, dir, parts[i]);
        if (!e) e = file_hash(path, digest);
        if (!e) json_object_set_new(files, parts[i], json_string(digest));
    }
    json_t *mark = json_object();
    json_object_set_new(mark, "format", json_integer(CHECKPOINT_FORMAT));
    json_object_set_new(mark, "files", files);
    if (!e) e = file_join(path, sizeof path, dir, "COMPLETE");
    if (!e) e = json_write_file(mark, path);
    json_decref(mark);
    return e;
}

static err fill(const char *dir, const checkpoint_state *s, const checkpoint_buffers *b) {
    char path[PATH];
    const float *masters[] = {b->params}, *moments[] = {b->m, b->v};
    const char *const none[] = {""}, *const mv[] = {"m.", "v."};
    TRY(file_join(path, sizeof path, dir, "state.json"));
    TRY(checkpoint__write_state(path, s));
    TRY(write_tensors(dir, "masters.safetensors", b->layout, masters, none, 1));
    TRY(write_tensors(dir, "moments.safetensors", b->layout, moments, mv, 2));
    TRY(file_join(path, sizeof path, dir, "drafter"));
    TRY(drafter_save(b->layout, b->params, DT_BF16, path));
    return write_mark(dir);
}

err checkpoint_save(const char *run, const checkpoint_state *s, const checkpoint_buffers *b) {
    char path[PATH], tmp[PATH], mark[PATH];
    checkpoint_path(run, s->update, path, sizeof path);
    TRY(file_join(mark, sizeof mark, path, "COMPLETE"));
    if (file_exists(path) && !file_exists(mark)) TRY(file_remove_tree(path));
    TRY(file_dir_begin(path, tmp, sizeof tmp));
    err e = fill(tmp, s, b);
    if (!e) return file_dir_commit(tmp, path);
    char why[1024];
    snprintf(why, sizeof why, "%s", err_text());
    /* The save failed for its own reason; what is left of it is swept at the next start. */
    if (file_remove_tree(tmp)) err_clear();
    return err_set(e, "saving %s: %s", path, why);
}

/* ---- finding ---- */

/* Update number of "step-NNNNNNNN", -1 for other names. */
static int64_t number_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0 || strlen(name) < 13) return -1;
    char *end = NULL;
    long long v = strtoll(name + 5, &end, 10);
    return *end || v < 0 ? -1 : (int64_t)v;
}

static err list(const char *run, char ***names, int *n) {
    char dir[PATH];
    *names = NULL;
    *n = 0;
    TRY(file_join(dir, sizeof dir, run, "checkpoints"));
    if (!file_is_dir(dir)) return ERR_OK;
    return file_list(dir, names, n);
}

err checkpoint_find(const char *run, char *path, size_t n, int64_t *update) {
    char **names = NULL, at[PATH], mark[PATH];
    int count = 0;
    *update = -1;
    TRY(list(run, &names, &count));
    err e = ERR_OK;
    for (int i = 0; !e && i < count; i++) {
        const int64_t u = number_of(names[i]);
        if (u < 0) continue;
        snprintf(at, sizeof at, "%s/checkpoints/%s", run, names[i]);
        e = file_join(mark, sizeof mark, at, "COMPLETE");
        if (!e && !file_exists(mark))
            log_warn("%s lacks its completion mark and is passed over", at);
        else if (!e && u > *update) {
            *update = u;
            snprintf(path, n, "%s", at);
        }
    }
    file_names_free(names, count);
    return e;
}

err checkpoint_prune(const char *run, int64_t keep, int64_t best_update) {
    char **names = NULL, at[PATH];
    int count = 0;
    TRY(list(run, &names, &count));
    err e = ERR_OK;
    for (int i = count - 1; !e && i >= 0; i--) { /* names sort by number: newest first */
        const int64_t u = number_of(names[i]);
        if (u < 0 || keep-- > 0 || u == best_update) continue;
        snprintf(at, sizeof at, "%s/checkpoints/%s", run, names[i]);
        e = file_remove_tree(at);
    }
    file_names_free(names, count);
    return e;
}

/* ---- reading ---- */

static err verify(const char *path) {
    char at[PATH], digest[33];
    json_t *mark = NULL;
    TRY(file_join(at, sizeof at, path, "COMPLETE"));
    TRY(json_read_file(&mark, at));
    const json_t *files = json_object_get(mark, "files");
    int64_t format = 0;
    err e = json_get_int(mark, at, "format", &format);
    if (!e && format != CHECKPOINT_FORMAT)
        e = err_set(ERR_REFUSED,
                    "%s: format %" PRId64 " is not known to this program, which knows %d", at,
                    format, CHECKPOINT_FORMAT);
    for (int i = 0; !e && i < PARTS; i++) {
        const char *want = NULL;
        char part[PATH];
        e = json_get_text(files, at, parts[i], &want);
        if (!e) e = file_join(part, sizeof part, path, parts[i]);
        if (!e && !file_exists(part))
            e = err_set(ERR_FORMAT,
                        "%s is missing, so this checkpoint cannot be continued from; remove its "
                        "folder to use an earlier one, or start fresh",
                        part);
        if (!e) e = file_hash(part, digest);
        if (!e && strcmp(want, digest) != 0)
            e = err_set(ERR_FORMAT,
                        "%s is damaged: its digest is %s and COMPLETE says %s; remove the "
                        "checkpoint's folder to use an earlier one, or start fresh",
                        part, digest, want);
    }
    json_decref(mark);
    return e;
}

err checkpoint_read_state(const char *path, checkpoint_state *s) {
    char at[PATH];
    TRY(verify(path));
    TRY(file_join(at, sizeof at, path, "state.json"));
    return checkpoint__read_state(at, s);
}

static err read_one(const st_file *f, const drafter_tensor *d, const char *prefix, float *buffer) {
    char name[72];
    snprintf(name, sizeof name, "%s%s", prefix, d->name);
    const tensor *t = safetensors_find(f, name);
    if (!t) return err_set(ERR_FORMAT, "%s: tensor %s is missing", safetensors_path(f), name);
    TRY(err_context(tensor_expect(t, d->ndim, d->dim), "%s: ", safetensors_path(f)));
    if (t->type != DT_F32)
        return err_set(ERR_FORMAT, "%s: tensor %s is of type %s and must be F32",
                       safetensors_path(f), name, dtype_name(t->type));
    memcpy(buffer + d->offset, t->data, (size_t)d->count * sizeof(float));
    return ERR_OK;
}

static err read_tensors(const char *dir, const char *file, const drafter_layout *l,
                        float *const *buffers, const char *const *prefix, int n) {
    char path[PATH];
    st_file *f = NULL;
    TRY(file_join(path, sizeof path, dir, file));
    TRY(safetensors_open(&f, path));
    err e = ERR_OK;
    if (safetensors_count(f) != n * l->n)
        e = err_set(ERR_FORMAT, "%s holds %d tensors where %d are expected", path,
                    safetensors_count(f), n * l->n);
    for (int k = 0; !e && k < n; k++)
        for (int i = 0; !e && i < l->n; i++) e = read_one(f, &l->t[i], prefix[k], buffers[k]);
    safetensors_close(f);
    return e;
}

err checkpoint_read_buffers(const char *path, const checkpoint_buffers *b) {
    float *masters[] = {b->params}, *moments[] = {b->m, b->v};
    const char *const none[] = {""}, *const mv[] = {"m.", "v."};
    TRY(read_tensors(path, "masters.safetensors", b->layout, masters, none, 1));
    return read_tensors(path, "moments.safetensors", b->layout, moments, mv, 2);
}
