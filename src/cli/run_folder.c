/* A run folder as status and stop see it: see run_folder.h.
 *
 * The record is read first and its process looked for; only a folder without a living process has its lock looked at, because looking takes
 * it for a moment. Checkpoints are found by their completion marks, as resume does. */
#include "cli/run_folder.h"
#include "core/file.h"
#include "train/checkpoint.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int holds(const char *dir, const char *name, char path[PATH_MAX]) {
    return file_join(path, PATH_MAX, dir, name) == ERR_OK && file_exists(path);
}

/* The newest checkpoint under dir. A living run may remove one between finding and reading: then once more. */
static void read_saved(run_saved *s, const char *dir, const char *name) {
    char path[PATH_MAX];
    checkpoint_state at;
    err e = ERR_OK;
    *s = (run_saved){.update = -1, .updates = -1, .best_update = -1, .tau = NAN, .best_tau = NAN};
    snprintf(s->name, sizeof s->name, "%s", name);
    for (int tries = 0; tries < 2; tries++) {
        e = checkpoint_find(dir, path, sizeof path, &s->update);
        if (e || s->update < 0) break;
        e = checkpoint_read_state(path, &at);
        if (!e) break;
    }
    if (e) snprintf(s->problem, sizeof s->problem, "%.500s", err_text());
    if (e || s->update < 0) return;
    struct stat st;
    if (stat(path, &st) == 0)
        s->written = (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
    s->updates = at.updates;
    s->finished = at.finished;
    s->tau = at.tau;
    s->best_tau = at.best_tau;
    s->best_update = at.best_update;
    checkpoint_state_free(&at);
}

static err read_all_saved(run_folder *f) {
    char path[PATH_MAX], one[PATH_MAX], **names;
    int n;
    if (!holds(f->path, "drafters", path)) {
        read_saved(&f->saved[f->n_saved++], f->path, "");
        return ERR_OK;
    }
    TRY(file_list(path, &names, &n));
    for (int i = 0; i < n && f->n_saved < LIVE_DRAFTERS; i++)
        if (file_join(one, sizeof one, path, names[i]) == ERR_OK && file_is_dir(one))
            read_saved(&f->saved[f->n_saved++], one, names[i]);
    file_names_free(names, n);
    return ERR_OK;
}

static err check_folder(const char *path) {
    static const char *const signs[] = {"lock", "checkpoints", "drafters", "live.json",
                                        "last_end.json"};
    char at[PATH_MAX];
    if (!file_is_dir(path))
        return err_set(ERR_IO,
                       file_exists(path)
                           ? "%s is a file; give the run folder (run.out of its recipe)"
                           : "there is no run folder %s",
                       path);
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (holds(path, signs[i], at)) return ERR_OK;
    return err_set(
        ERR_IO,
        "%s is no run folder: it holds no lock, checkpoints or live record; give run.out "
        "of the recipe",
        path);
}

/* A damaged record hides neither the lock nor the checkpoints: it is told, and counts as absent. */
static err forgive(run_folder *f, err e, int *found) {
    if (e != ERR_FORMAT) return e;
    const size_t at = strlen(f->problem);
    *found = 0;
    snprintf(f->problem + at, sizeof f->problem - at,
             "%s%.500s; it counts as absent until a run writes it anew", at ? "; " : "",
             err_text());
    return ERR_OK;
}

err run_folder_read(run_folder *f, const char *path) {
    char lock[PATH_MAX];
    *f = (run_folder){.path = path};
    TRY(check_folder(path));
    TRY(live_create(&f->live));
    TRY(forgive(f, live_read(path, f->live, &f->has_record), &f->has_record));
    if (f->has_record) f->where = live_locate(path, f->live);
    TRY(forgive(f, live_read_end(path, &f->end, &f->ended), &f->ended));
    TRY(file_join(lock, sizeof lock, path, "lock"));
    f->locked = f->where != LIVE_GONE || !file_lock_is_free(lock);
    return read_all_saved(f);
}

void run_folder_free(run_folder *f) {
    live_free(f->live);
    f->live = NULL;
}

int64_t run_folder_update(const run_folder *f) {
    int64_t least = f->n_saved ? INT64_MAX : -1;
    for (int i = 0; i < f->n_saved; i++)
        if (f->saved[i].update < least) least = f->saved[i].update;
    return least;
}
