/* Files, part two: folders, abandoned temporary entries, listing and locks.
 *
 * A temporary name carries its owner's process id, that process's start time and the host, so the sweep
 * removes only what a dead process of this host left: an id that is used again by another process does not
 * protect its leavings, and a shared disk's other hosts are not judged from here.
 * Trees are removed through directory descriptors and links are never followed. */
#include "core/arena.h"
#include "core/file.h"
#include "core/file_private.h"
#include "core/process.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

err file__parent(char *buf, size_t n, const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    while (length && path[length - 1] != '/') length--;
    while (length > 1 && path[length - 1] == '/') length--;
    if (length >= n)
        return err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    if (length)
        memcpy(buf, path, length), buf[length] = 0;
    else
        snprintf(buf, n, ".");
    return ERR_OK;
}

/* The host's name with everything but letters and digits left out. */
static void host_word(char out[33]) {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    int n = 0;
    for (int i = 0; name[i] && n < 32; i++)
        if (isalnum((unsigned char)name[i])) out[n++] = name[i];
    if (!n) out[n++] = 'x';
    out[n] = 0;
}

err file__temporary(char *buf, size_t n, const char *path) {
    char dir[PATH_MAX], host[33];
    TRY(file__parent(dir, sizeof dir, path));
    host_word(host);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long pid = (long)getpid();
    int r = snprintf(buf, n, "%s/.tmp-%ld-%llu-%s-%d-%lld%09ld", dir, pid,
                     (unsigned long long)process_start(pid), host, (int)gettid(),
                     (long long)t.tv_sec, t.tv_nsec);
    if (r < 0 || (size_t)r >= n)
        return err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    return ERR_OK;
}

err file_dir_begin(const char *path, char *tmp, size_t n) {
    for (;;) {
        TRY(file__temporary(tmp, n, path));
        if (mkdir(tmp, 0777) == 0) return ERR_OK;
        if (errno != EEXIST) return err_errno("folder %s cannot be created", path);
    }
}

/* Brings every file and folder below an open folder to the disk. Takes the descriptor over. */
static err sync_tree(int fd, const char *path) {
    DIR *d = fdopendir(fd);
    if (!d) {
        err e = err_errno("folder %s cannot be read", path);
        close(fd);
        return e;
    }
    err e = ERR_OK;
    for (struct dirent *entry; !e && (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        struct stat st;
        if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            e = err_errno("%s/%s cannot be examined", path, entry->d_name);
            break;
        }
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) continue;
        int child = openat(dirfd(d), entry->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0) {
            e = err_errno("%s/%s cannot be opened", path, entry->d_name);
        } else if (S_ISDIR(st.st_mode)) {
            e = sync_tree(child, path);
        } else {
            e = file__sync(child, path);
            close(child);
        }
    }
    if (!e) e = file__sync(dirfd(d), path);
    closedir(d);
    return e;
}

err file_dir_commit(const char *tmp, const char *path) {
    int fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_errno("folder %s cannot be opened", tmp);
    TRY(sync_tree(fd, path));
    TRY(file__rename(tmp, path, 1));
    return file__sync_parent(path);
}

/* Empties an open folder. Takes the descriptor over. */
static err empty_tree(int fd, const char *path) {
    DIR *d = fdopendir(fd);
    if (!d) {
        err e = err_errno("folder %s cannot be read", path);
        close(fd);
        return e;
    }
    err e = ERR_OK;
    for (struct dirent *entry; !e && (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (unlinkat(dirfd(d), entry->d_name, 0) == 0 || errno == ENOENT) continue;
        int child =
            errno == EISDIR || errno == EPERM
                ? openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                : -1;
        if (child >= 0) e = empty_tree(child, path);
        if (!e && (child < 0 || unlinkat(dirfd(d), entry->d_name, AT_REMOVEDIR) != 0))
            e = err_errno("%s in %s cannot be removed", entry->d_name, path);
    }
    closedir(d);
    return e;
}

err file_remove_tree(const char *path) {
    if (unlink(path) == 0 || errno == ENOENT) return ERR_OK;
    int fd = errno == EISDIR || errno == EPERM
                 ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                 : -1;
    if (fd < 0) return err_errno("%s cannot be removed", path);
    TRY(empty_tree(fd, path));
    if (rmdir(path) != 0) return err_errno("%s cannot be removed", path);
    return ERR_OK;
}

err file_make_dirs(const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part)
        return err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) == 0) continue;
        const int why = errno;
        if (file_is_dir(part)) continue;
        errno = why;
        if (why == EEXIST) return err_set(ERR_IO, "%s is needed as a folder and is a file", part);
        return err_errno("folder %s cannot be created", part);
    }
    return ERR_OK;
}

/* Whether a ".tmp-PID-START-HOST-" name belongs to a process of this host that is gone. */
static int abandoned(const char *name) {
    char host[33], own[33];
    long pid;
    unsigned long long start;
    if (sscanf(name, ".tmp-%ld-%llu-%32[A-Za-z0-9]-", &pid, &start, host) != 3 || pid <= 0)
        return 0;
    host_word(own);
    if (strcmp(host, own) != 0) return 0;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return 1;
    unsigned long long now = process_start(pid);
    return now && start && now != start;
}

err file_sweep(const char *dir) {
    char **names, path[PATH_MAX];
    int n;
    TRY(file_list(dir, &names, &n));
    err e = ERR_OK;
    for (int i = 0; i < n && !e; i++) {
        if (!abandoned(names[i])) continue;
        e = file_join(path, sizeof path, dir, names[i]);
        if (!e) e = file_remove_tree(path);
    }
    file_names_free(names, n);
    return e;
}

int file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

int file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

err file_list(const char *dir, char ***names, int *n) {
    *names = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d) return err_errno("folder %s cannot be read", dir);
    err e = ERR_OK;
    char **list = NULL;
    size_t cap = 0;
    int count = 0;
    for (struct dirent *entry; !e && (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        e = mem_grow(&list, &cap, (size_t)count + 1, sizeof *list);
        if (!e) e = mem_new(strlen(entry->d_name) + 1, 1, &list[count]);
        if (!e) strcpy(list[count++], entry->d_name);
    }
    closedir(d);
    if (e) {
        file_names_free(list, count);
        return e;
    }
    if (count) qsort(list, (size_t)count, sizeof *list, compare_names);
    *names = list;
    *n = count;
    return ERR_OK;
}

void file_names_free(char **names, int n) {
    for (int i = 0; i < n; i++) mem_free(names[i]);
    mem_free(names);
}

err file_free_bytes(const char *dir, uint64_t *out) {
    struct statvfs s;
    if (statvfs(dir, &s) != 0) return err_errno("the free space of %s cannot be told", dir);
    *out = (uint64_t)s.f_bavail * s.f_frsize;
    return ERR_OK;
}

int file_lock_is_lost(int fd, const char *path) {
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_nlink == 0) return 1;
    return stat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* Whether those who keep fd from being locked only look (file_lock_is_free): a shared lock goes beside theirs. */
static int is_looked_at(int fd) {
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) return 0;
    flock(fd, LOCK_UN);
    return 1;
}

/* A look lasts an instant, but for one whose process is not given the processor: no number of looks is a holder. */
static int try_lock(int fd) {
    enum { HELD = 10, LOOKED_AT = 10000 };
    for (int held = 0, looked_at = 0; held < HELD && looked_at < LOOKED_AT;) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
        if (errno != EWOULDBLOCK) return -1;
        const int looked = is_looked_at(fd);
        looked_at += looked;
        held += !looked;
        nanosleep(&(struct timespec){0, looked ? 1000000 : 5000000}, NULL);
    }
    errno = EWOULDBLOCK;
    return -1;
}

static err sign_lock(int fd, const char *path) {
    char host[256] = "", text[320];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) == n) return ERR_OK;
    return err_errno("lock file %s cannot be written", path);
}

static err refuse_lock(int fd, const char *path) {
    char text[320] = "";
    if (errno != EWOULDBLOCK) return err_errno("%s cannot be locked", path);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    return err_set(ERR_REFUSED, "%s is held by %s; wait for it or stop it first", path,
                   text[0] ? text : "another process");
}

err file_lock(const char *path, int *fd) {
    for (;;) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) return err_errno("lock file %s cannot be opened", path);
        err e = try_lock(*fd) == 0 ? ERR_OK : refuse_lock(*fd, path);
        const int lost = !e && file_lock_is_lost(*fd, path); /* removed before it was locked */
        if (!e && !lost) e = sign_lock(*fd, path);
        if (!e && !lost) return ERR_OK;
        file_unlock(*fd);
        *fd = -1;
        if (e) return e;
    }
}

int file_lock_is_free(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT;
    const int free_now = flock(fd, LOCK_SH | LOCK_NB) == 0;
    file_unlock(fd);
    return free_now;
}

void file_unlock(int fd) {
    if (fd < 0) return;
    /* Closing alone would leave the lock with a child that was forked while it was held. */
    flock(fd, LOCK_UN);
    close(fd);
}

err file_join(char *buf, size_t n, const char *dir, const char *name) {
    size_t length = strlen(dir);
    const char *between = length && dir[length - 1] == '/' ? "" : "/";
    int r = snprintf(buf, n, "%s%s%s", dir, between, name);
    if (r < 0 || (size_t)r >= n)
        return err_set(ERR_RANGE, "the path %.60s.../%.60s is too long (%zu bytes at most)", dir,
                       name, n - 1);
    return ERR_OK;
}
