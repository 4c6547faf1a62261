/* The store's folder: its lock, its manifest, its parts and shards, and what killed processes left in it.
 *
 * A generation is published by renaming the manifest; until then nothing of it is named anywhere, so a process killed at
 * any moment leaves the generation before. Every opening holds the lock: a second process waits, with heartbeats, until the
 * first is done. Sizes of all files and the digests of manifest and index are checked when a store is opened; a shard's bytes
 * are checked document by document when they are read (data_fetch). It decides nothing about the content of documents. */
#include "core/log.h"
#include "data/data_prepare.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"documents", "lines", "rejected", "tokens"};

err data__store_path(char *out, size_t n, const char *dir, int what, int64_t number) {
    char name[64];
    snprintf(name, sizeof name, "%s-%08" PRId64 ".bin", names[what], number);
    return file_join(out, n, dir, name);
}

/* ---- opening ---- */

static err take_lock(data__store *st, data__pulse *p) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, st->dir, "lock"));
    for (int64_t tries = 0;; tries++) {
        err e = file_lock(path, &st->lock);
        if (e != ERR_REFUSED) return e;
        if (tries == 0) log_info("waiting for a store of training rows: %s", err_text());
        TRY(data__pulse_beat(p));
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* A text that is no whole manifest, and says so itself, or says only where it breaks. */
static err read_manifest(data__store *st, const char *path) {
    char why[1024];
    err e = data__manifest_read(&st->m, path);
    if (e != ERR_FORMAT || strstr(err_text(), "; remove")) return e;
    snprintf(why, sizeof why, "%s", err_text());
    return err_set(e, "%s; bring it back, or remove %s to prepare anew", why, st->dir);
}

/* What a name of the folder is, and its number; -1 for names that are not ours. */
static int kind_of(const char *name, int64_t *number) {
    for (int what = 0; what <= DATA__PARTS; what++) {
        const size_t n = strlen(names[what]);
        if (strncmp(name, names[what], n) != 0 || name[n] != '-') continue;
        const char *digits = name + n + 1;
        const size_t count = strspn(digits, "0123456789");
        if (count < 8 || count > 18 || strcmp(digits + count, ".bin") != 0) return -1;
        *number = strtoll(digits, NULL, 10);
        return what;
    }
    return -1;
}

/* Whether the folder is a store or empty: a folder of other things is not swept, whatever its files are called. Without a
 * manifest a store holds its lock, and what a killed process left. */
static err check_folder(const char *dir) {
    char **list, other[256] = "";
    int n, manifest = 0, lock = 0;
    TRY(file_list(dir, &list, &n));
    for (int i = 0; i < n; i++) {
        manifest |= !strcmp(list[i], "manifest.json");
        lock |= !strcmp(list[i], "lock");
    }
    for (int i = 0; i < n && !manifest; i++) {
        int64_t number;
        const int ours = !strcmp(list[i], "lock") || !strncmp(list[i], ".tmp-", 5) ||
                         (lock && kind_of(list[i], &number) >= 0);
        if (!ours) snprintf(other, sizeof other, "%.200s", list[i]);
    }
    file_names_free(list, n);
    if (!other[0]) return ERR_OK;
    return err_set(
        ERR_REFUSED,
        "data.store %s is no store of training rows and holds %s; choose a folder of its "
        "own",
        dir, other);
}

err data__store_open(data__store *st, const char *dir, data__pulse *p) {
    char path[PATH_MAX];
    *st = (data__store){.dir = dir, .lock = -1};
    TRY(file_make_dirs(dir));
    TRY(check_folder(dir));
    TRY(take_lock(st, p));
    TRY(file_join(path, sizeof path, dir, "manifest.json"));
    if (file_exists(path)) TRY(read_manifest(st, path));
    TRY(file_sweep(dir));
    return data__store_sweep(st);
}

void data__store_close(data__store *st) {
    if (!st->dir) return;
    data__manifest_free(&st->m);
    file_unlock(st->lock);
    st->lock = -1;
}

/* ---- sweeping ---- */

static int is_named(const data__manifest *m, int what, int64_t number) {
    if (what < DATA__PARTS) return m->generation > 0 && number == m->generation;
    for (size_t i = 0; i < m->n_shards; i++)
        if (m->shards[i].number == number) return 1;
    return 0;
}

err data__store_sweep(const data__store *st) {
    char **list, path[PATH_MAX];
    int n;
    TRY(file_list(st->dir, &list, &n));
    err e = ERR_OK;
    for (int i = 0; i < n && !e; i++) {
        int64_t number = 0;
        const int what = kind_of(list[i], &number);
        if (what < 0 || is_named(&st->m, what, number)) continue;
        e = file_join(path, sizeof path, st->dir, list[i]);
        if (!e) e = file_remove_tree(path);
    }
    file_names_free(list, n);
    return e;
}

err data__store_publish(data__store *st, const data__manifest *m) {
    char path[PATH_MAX];
    data__manifest copy;
    TRY(data__manifest_copy(&copy, m));
    err e = file_join(path, sizeof path, st->dir, "manifest.json");
    if (!e) e = data__manifest_write(m, path);
    if (e) {
        data__manifest_free(&copy);
        return e;
    }
    data__manifest_free(&st->m);
    st->m = copy;
    return data__store_sweep(st);
}

/* ---- mapping ---- */

static err wrong_size(const char *path, int64_t want, size_t is, const char *dir) {
    return err_set(ERR_FORMAT,
                   "%s is damaged: it has %zu bytes and its manifest says %" PRId64
                   "; bring it back, or remove %s to prepare anew",
                   path, is, want, dir);
}

/* Mapped, without its descriptor: a store has many shards. */
static err map_file(const char *path, int64_t want, const char *dir, file_map *out) {
    if (!file_exists(path))
        return err_set(ERR_FORMAT,
                       "%s is missing and its manifest names it; bring it back, or remove %s to "
                       "prepare anew",
                       path, dir);
    TRY(file_map_open(out, path));
    close(out->fd);
    out->fd = -1;
    if ((int64_t)out->size == want) return ERR_OK;
    err e = wrong_size(path, want, out->size, dir);
    file_map_close(out);
    return e;
}

err data__store_map_part(const data__store *st, int what, file_map *out) {
    char path[PATH_MAX], digest[33];
    const data__part *part = &st->m.part[what];
    TRY(data__store_path(path, sizeof path, st->dir, what, st->m.generation));
    TRY(map_file(path, part->bytes, st->dir, out));
    file_hash_bytes(out->data, out->size, digest);
    if (strcmp(digest, part->digest) == 0) return ERR_OK;
    file_map_close(out);
    return err_set(
        ERR_FORMAT,
        "%s is damaged: its digest is not the manifest's; bring it back, or remove %s to "
        "prepare anew",
        path, st->dir);
}

err data__store_map_shard(const data__store *st, size_t i, file_map *out) {
    char path[PATH_MAX];
    const data__shard *shard = &st->m.shards[i];
    TRY(data__store_path(path, sizeof path, st->dir, DATA__PARTS, shard->number));
    return map_file(path, shard->bytes, st->dir, out);
}

int data__store_holds(const data__manifest *m, const data__entry *e) {
    return e->shard < m->n_shards && e->file < m->n_files && e->offset % 4 == 0 &&
           e->offset <= INT64_MAX / 2 &&
           (int64_t)(e->offset + data__document_bytes(e->n)) <= m->shards[e->shard].bytes;
}

err data__store_lost(const data__store *st, int64_t id) {
    return err_set(ERR_FORMAT, "%s: document %" PRId64 " of its index lies in no shard", st->dir,
                   id);
}

/* Entries come from a file: none may point outside of what it names. */
static err check_entries(const data__store *st, const data_set *s, size_t bytes) {
    if (bytes != (size_t)s->counts.documents * sizeof *s->docs)
        return err_set(ERR_FORMAT, "%s: its index does not hold the documents its manifest counts",
                       st->dir);
    for (int64_t i = 0; i < s->counts.documents; i++)
        if (!data__store_holds(&st->m, &s->docs[i])) return data__store_lost(st, i);
    return ERR_OK;
}

err data__store_map(const data__store *st, data_set *s) {
    const data__manifest *m = &st->m;
    s->store = st->dir;
    s->n_shards = m->n_shards;
    TRY(arena_alloc(s->mem, m->n_shards, sizeof *s->shard_numbers, &s->shard_numbers));
    TRY(arena_alloc(s->mem, m->n_shards + 1, sizeof *s->maps, &s->maps));
    TRY(mem_grow(&s->shards, &s->shards_cap, m->n_shards + 1, sizeof *s->shards));
    s->counts = (data_counts){0};
    for (size_t i = 0; i < m->n_files; i++) data__counts_add(&s->counts, &m->files[i].counts);
    for (size_t i = 0; i < m->n_shards; i++) {
        s->shard_numbers[i] = m->shards[i].number;
        TRY(data__store_map_shard(st, i, &s->maps[i]));
        s->shards[i] = s->maps[i].data;
    }
    TRY(data__store_map_part(st, DATA__DOCUMENTS, &s->maps[m->n_shards]));
    s->docs = (const data__entry *)(const void *)s->maps[m->n_shards].data;
    return check_entries(st, s, s->maps[m->n_shards].size);
}

err data__store_room(const char *dir, double need, const char *path) {
    char a[24], b[24];
    uint64_t free_bytes;
    TRY(file_free_bytes(dir, &free_bytes));
    if (need <= (double)free_bytes) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "%s: preparing %s needs about %s more on disk and %s are free; make room or "
                   "choose another store",
                   dir, path, str_bytes(need, a), str_bytes((double)free_bytes, b));
}
