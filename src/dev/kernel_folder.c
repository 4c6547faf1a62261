/* The folder of the kernel cache: see kernel_folder.h.
 *
 * A lock file is removed by its holder before it lets go, so a lock counts only while its path still names the file
 * that was locked; otherwise it is taken anew. Times of use are the files' times of change, set at every reading. */
#include "dev/kernel_folder.h"
#include "core/arena.h"
#include "core/env.h"
#include "core/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char entry_suffix[] = ".kernel", lock_suffix[] = ".lock";
enum { LEAST_FREE = 16 << 20 }; /* bytes of disk below which nothing is written */

/* ---- finding and judging it ---- */

static err choose(char out[PATH_MAX], const char *asked) {
    const char *named = asked ? asked : env_get(ENV_PACELINE_CACHE);
    const char *cache = env_cache_home(), *home = env_home();
    int n = named   ? snprintf(out, PATH_MAX, "%s", named)
            : cache ? snprintf(out, PATH_MAX, "%s/paceline/kernels", cache)
            : home  ? snprintf(out, PATH_MAX, "%s/.cache/paceline/kernels", home)
                    : snprintf(out, PATH_MAX, "%s", "");
    if (n < 0 || n >= PATH_MAX - 64)
        return err_set(ERR_RANGE, "the path of the kernel cache is too long: %.60s...", named);
    return ERR_OK;
}

/* Makes the folder for this user alone; those above as others are. */
static err make_folder(const char *path) {
    char above[PATH_MAX];
    snprintf(above, sizeof above, "%s", path);
    size_t n = strlen(above);
    while (n > 1 && above[n - 1] == '/') above[--n] = 0;
    char *slash = strrchr(above, '/');
    if (slash && slash != above) {
        *slash = 0;
        TRY(file_make_dirs(above));
    }
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return ERR_OK;
    return err_errno("folder %s cannot be created", path);
}

/* Makes it; somebody may be removing it at the same moment, again and again. */
enum { ATTEMPTS = 8 };

static void judge(kernel_folder *f) {
    struct stat st;
    uint64_t free_bytes;
    const char *p = f->path;
    size_t size = sizeof f->note;
    f->note[0] = 0; /* also that of a look before this one */
    if (stat(p, &st) != 0) {
        f->made = errno != ENOENT;
        snprintf(f->note, size,
                 "the kernel cache %s cannot be examined: %s; set PACELINE_CACHE to "
                 "a folder of your own",
                 p, strerror(errno));
        return;
    }
    f->made = 1;
    if (!S_ISDIR(st.st_mode)) {
        snprintf(f->note, size,
                 "the kernel cache %s is not a folder; set PACELINE_CACHE to a folder", p);
    } else if (st.st_uid != geteuid() && st.st_uid != 0) {
        snprintf(f->note, size,
                 "the kernel cache %s belongs to user %u, not to you (%u), and is not trusted; set "
                 "PACELINE_CACHE to a folder of your own",
                 p, (unsigned)st.st_uid, (unsigned)geteuid());
    } else if (st.st_mode & 022) {
        snprintf(f->note, size,
                 "others may write to the kernel cache %s (mode %03o), so it is not trusted; run "
                 "chmod 700 on it, or set PACELINE_CACHE to a folder of your own",
                 p, (unsigned)st.st_mode & 0777);
    } else {
        f->readable = 1;
        f->writable = access(p, W_OK | X_OK) == 0;
        if (!f->writable)
            snprintf(f->note, size,
                     "the kernel cache %s is read-only; set PACELINE_CACHE to a folder that you "
                     "may write to",
                     p);
        else if (file_free_bytes(p, &free_bytes) == ERR_OK && free_bytes < LEAST_FREE) {
            f->writable = 0;
            f->full = 1;
            snprintf(f->note, size,
                     "the disk of the kernel cache %s is full (%llu KiB free); make room, or set "
                     "PACELINE_CACHE to a folder on another",
                     p, (unsigned long long)free_bytes >> 10);
        }
    }
}

err kernel_folder_open(kernel_folder *out, const char *asked, int make) {
    memset(out, 0, sizeof *out);
    TRY(choose(out->path, asked));
    if (!out->path[0]) {
        snprintf(out->note, sizeof out->note,
                 "there is no folder for the kernel cache: PACELINE_CACHE and HOME are not set; "
                 "set one of them");
        return ERR_OK;
    }
    err e = ERR_OK;
    for (int i = 0; !e && !out->made && i < ATTEMPTS; i++) {
        if (make) e = make_folder(out->path);
        if (!e) judge(out);
        if (!make) break;
    }
    if (e == ERR_MEMORY) return e;
    if (e)
        snprintf(out->note, sizeof out->note,
                 "the kernel cache cannot be used: %s; set PACELINE_CACHE to a folder of your own",
                 err_text());
    return ERR_OK;
}

/* ---- one entry ---- */

static err path_of(const kernel_folder *f, const char *key, const char *suffix,
                   char out[PATH_MAX]) {
    int n = snprintf(out, PATH_MAX, "%s/%s%s", f->path, key, suffix);
    if (n >= 0 && n < PATH_MAX) return ERR_OK;
    return err_set(ERR_RANGE, "the path of the kernel cache is too long: %.60s...", f->path);
}

err kernel_folder_path(const kernel_folder *f, const char *key, char out[PATH_MAX]) {
    return path_of(f, key, entry_suffix, out);
}

err kernel_folder_read(const kernel_folder *f, const char *key, const str *recipe,
                       kernel_entry *out) {
    char path[PATH_MAX];
    memset(out, 0, sizeof *out);
    if (!f->readable) return ERR_OK;
    TRY(path_of(f, key, entry_suffix, path));
    return kernel_entry_read(out, path, recipe, f->writable);
}

static err write_entry(const char *path, const str *bytes) {
    file_writer *w;
    TRY(file_writer_open(&w, path));
    err e = file_write(w, bytes->s, bytes->n);
    if (!e) return file_commit_new(&w);
    file_abort(&w);
    return e;
}

/* The folder, and with it what is being written, may be removed at any moment: a write that failed is done again, from
 * the folder on. Where something else is wrong it fails each time. */
err kernel_folder_publish(const kernel_folder *f, const char *key, const str *bytes) {
    char path[PATH_MAX];
    TRY(path_of(f, key, entry_suffix, path));
    err e = write_entry(path, bytes);
    for (int i = 1; e == ERR_IO && i < ATTEMPTS; i++) {
        TRY(make_folder(f->path));
        e = write_entry(path, bytes);
    }
    return e;
}

void kernel_folder_drop(const kernel_folder *f, const char *key, const kernel_entry *damaged) {
    char path[PATH_MAX];
    struct stat st;
    if (path_of(f, key, entry_suffix, path) || lstat(path, &st) != 0) return;
    if (damaged->file && (st.st_ino != damaged->file || st.st_dev != damaged->device)) return;
    (void)remove(
        path); /* also an empty folder; what stays is told when the entry cannot be written */
}

/* ---- locks ---- */

static int still_named(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

err kernel_folder_lock(const kernel_folder *f, const char *key, int *fd) {
    char path[PATH_MAX];
    *fd = -1;
    TRY(path_of(f, key, lock_suffix, path));
    for (int made = 0;;) {
        err e = file_lock(path, fd);
        if (e == ERR_IO && made++ < ATTEMPTS && !file_is_dir(path)) { /* removed under us */
            TRY(make_folder(f->path));
            continue;
        }
        if (e) return e;
        if (still_named(*fd, path)) return ERR_OK;
        file_unlock(*fd); /* its former holder removed it: another file has the name, or none */
    }
}

void kernel_folder_unlock(const kernel_folder *f, const char *key, int fd) {
    char path[PATH_MAX];
    if (fd < 0) return;
    if (!path_of(f, key, lock_suffix, path) && still_named(fd, path)) unlink(path);
    file_unlock(fd);
}

/* ---- the whole ---- */

/* Whether name is 32 hex digits and suffix. */
static int is_named(const char *name, const char *suffix) {
    return strlen(name) == KERNEL_KEY - 1 + strlen(suffix) &&
           strspn(name, "0123456789abcdef") == KERNEL_KEY - 1 &&
           !strcmp(name + KERNEL_KEY - 1, suffix);
}

static int by_use(const void *a, const void *b) {
    const kernel_folder_item *x = a, *y = b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return strcmp(x->key, y->key);
}

err kernel_folder_list(const kernel_folder *f, kernel_folder_item **items, int *n) {
    char **names, path[PATH_MAX];
    int count;
    *items = NULL;
    *n = 0;
    if (!f->path[0] || !file_exists(f->path)) return ERR_OK;
    err e = file_list(f->path, &names, &count);
    if (e) return file_exists(f->path) ? e : ERR_OK; /* gone meanwhile */
    e = mem_new((size_t)count + 1, sizeof **items, items);
    for (int i = 0; i < count && !e; i++) {
        struct stat st;
        if (!is_named(names[i], entry_suffix)) continue;
        e = file_join(path, sizeof path, f->path, names[i]);
        if (e || lstat(path, &st) != 0) continue; /* gone meanwhile */
        kernel_folder_item *item = &(*items)[(*n)++];
        memcpy(item->key, names[i], KERNEL_KEY - 1);
        item->bytes = (uint64_t)st.st_size;
        item->used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    }
    file_names_free(names, count);
    if (*n) qsort(*items, (size_t)*n, sizeof **items, by_use);
    if (!e) return ERR_OK;
    mem_free(*items);
    *items = NULL;
    return e;
}

err kernel_folder_trim(const kernel_folder *f, uint64_t max_bytes, const char *keep) {
    kernel_folder_item *items;
    char path[PATH_MAX];
    uint64_t all = 0;
    int n;
    TRY(kernel_folder_list(f, &items, &n));
    for (int i = 0; i < n; i++) all += items[i].bytes;
    err e = ERR_OK;
    for (int i = 0; i < n && all > max_bytes && !e; i++) {
        if (keep && !strcmp(keep, items[i].key)) continue;
        e = path_of(f, items[i].key, entry_suffix, path);
        if (!e && unlink(path) == 0) all -= items[i].bytes;
    }
    mem_free(items);
    return e;
}

/* One file of the folder, when it is the cache's. What is gone already is no failure. */
static err clear_one(const kernel_folder *f, const char *name, int *entries, uint64_t *bytes) {
    char path[PATH_MAX];
    struct stat st;
    const int lock = is_named(name, lock_suffix);
    if (!lock && !is_named(name, entry_suffix)) return ERR_OK;
    TRY(file_join(path, sizeof path, f->path, name));
    if (lstat(path, &st) != 0 || (lock && !file_lock_is_free(path))) return ERR_OK;
    if (remove(path) != 0)
        return errno == ENOENT ? ERR_OK : err_errno("%s cannot be removed", path);
    if (lock) return ERR_OK;
    ++*entries;
    *bytes += (uint64_t)st.st_size;
    return ERR_OK;
}

err kernel_folder_clear(const kernel_folder *f, int *entries, uint64_t *bytes) {
    char **names, why[PATH_MAX + 256] = "";
    int count;
    err failed = ERR_OK;
    *entries = 0;
    *bytes = 0;
    if (!f->path[0] || !file_exists(f->path)) return ERR_OK;
    TRY(file_sweep(f->path));
    TRY(file_list(f->path, &names, &count));
    for (int i = 0; i < count; i++) {
        err e = clear_one(f, names[i], entries, bytes);
        if (!e || failed) continue;
        failed = e;
        snprintf(why, sizeof why, "%s", err_text());
    }
    file_names_free(names, count);
    return failed ? err_set(failed, "%s; all other entries (%d) are removed", why, *entries)
                  : ERR_OK;
}
