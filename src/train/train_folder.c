/* The run folder: owned by one process at a time, swept of what a killed one left, and cleared for a fresh start.
 *
 * A folder that holds other people's files is refused before anything is written. A finished run is not thrown away by a
 * flag. What a checkpoint is and when one is written is not decided here. */
#include "core/file.h"
#include "train/train_parts.h"
#include <stdio.h>
#include <string.h>

err train__write_text(const char *dir, const char *name, const char *text, size_t n) {
    char path[TRAIN_PATH];
    file_writer *w = NULL;
    TRY(file_join(path, sizeof path, dir, name));
    TRY(file_writer_open(&w, path));
    err e = file_write(w, text, n);
    if (e) {
        file_abort(&w);
        return e;
    }
    return file_commit(&w);
}

/* Forgets the run of the folder. That it is not finished was made sure of: a flag does not throw that away. */
err train__clear_folder(const train_drafter *d) {
    static const char *const names[] = {"checkpoints", "drafter", "best", "metrics.jsonl"};
    char path[TRAIN_PATH];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TRY(file_join(path, sizeof path, d->folder, names[i]));
        TRY(file_remove_tree(path));
    }
    return ERR_OK;
}

/* Whether the folder is a run's or empty: files of others (a recipe.yaml above all) are not overwritten. */
static err check_folder(const train *t) {
    char **names = NULL, other[256] = "";
    int n = 0, ours = 0;
    TRY(file_list(t->run, &names, &n));
    for (int i = 0; i < n; i++) {
        ours |= !strcmp(names[i], "lock") || !strcmp(names[i], "checkpoints") ||
                !strcmp(names[i], "drafters");
        if (strncmp(names[i], ".tmp-", 5)) snprintf(other, sizeof other, "%.200s", names[i]);
    }
    file_names_free(names, n);
    if (ours || !other[0]) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "%s is no run folder and holds other files (%s); choose a new run.out", t->run,
                   other);
}

err train__own_folder(train *t) {
    char path[TRAIN_PATH];
    TRY(file_make_dirs(t->run));
    TRY(check_folder(t));
    TRY(file_join(path, sizeof path, t->run, "lock"));
    err e = file_lock(path, &t->lock);
    if (e) {
        t->lock = -1;
        return e == ERR_REFUSED ? err_context(e, "run folder %s is in use: ", t->run) : e;
    }
    return train__sweep_folder(t->run);
}

err train__check_folder_is_held(const train *t) {
    char path[TRAIN_PATH];
    TRY(file_join(path, sizeof path, t->run, "lock"));
    if (!file_lock_is_lost(t->lock, path)) return ERR_OK;
    return err_set(
        ERR_IO,
        "run folder %s was removed or moved while the run used it, and another could begin "
        "there; the run ends and writes nothing more",
        t->run);
}

err train__sweep_folder(const char *dir) {
    static const char *const names[] = {".", "checkpoints", "drafter"};
    char path[TRAIN_PATH];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TRY(file_join(path, sizeof path, dir, names[i]));
        if (file_is_dir(path)) TRY(file_sweep(path));
    }
    return ERR_OK;
}
