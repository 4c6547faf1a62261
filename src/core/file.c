/* Files, part one: reading, mapping, hashing, and publishing one file as a whole.
 *
 * Every write, sync and rename of this folder but file_put's passes through file__inject, which tests use to fail
 * or to kill the process at a chosen one. Its counters are the only mutable file-scope state here
 * (allow-listed, atomic). Folders, locks and listing live in file_dir.c. Nothing here retries or
 * falls back: an operation that fails leaves the target as it was and says so. */
#include "core/file.h"
#include "core/arena.h"
#include "core/env.h"
#include "core/file_private.h"
#include "core/str.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BUFFER = 256 << 10 };

/* Allow-listed: operations of this process so far, [0] all of them, [1..3] by stage. */
static atomic_llong injected[4];

static long long wanted(const char *text) { return text ? strtoll(text, NULL, 10) : 0; }

int file__inject(file__stage stage) {
    static const char *const names[] = {"", "write", "sync", "rename"};
    long long any = atomic_fetch_add(&injected[0], 1) + 1;
    long long own = atomic_fetch_add(&injected[stage], 1) + 1;
    if (wanted(env_get(ENV_PACELINE_FAIL_WRITE)) == any) {
        errno = ENOSPC;
        return FILE__FAIL;
    }
    const char *kill_at = env_get(ENV_PACELINE_KILL_AT);
    size_t n = strlen(names[stage]);
    if (!kill_at || strncmp(kill_at, names[stage], n) != 0 || kill_at[n] != ':') return FILE__PASS;
    return wanted(kill_at + n + 1) == own ? FILE__KILL : FILE__PASS;
}

err file__sync(int fd, const char *path) {
    int fate = file__inject(FILE__SYNC);
    if (fate == FILE__KILL) raise(SIGKILL);
    if (fate == FILE__FAIL || fsync(fd) != 0)
        return err_errno("%s cannot be brought to the disk", path);
    return ERR_OK;
}

err file__sync_parent(const char *path) {
    char dir[PATH_MAX];
    TRY(file__parent(dir, sizeof dir, path));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_errno("folder %s cannot be opened", dir);
    err e = file__sync(fd, dir);
    close(fd);
    return e;
}

err file_write_fd(int fd, const void *data, size_t n, const char *path) {
    int fate = file__inject(FILE__WRITE);
    if (fate == FILE__FAIL) return err_errno("%s cannot be written", path);
    if (fate == FILE__KILL) { /* in the middle of the bytes, as a crash would */
        ssize_t half = write(fd, data, n / 2);
        (void)half;
        raise(SIGKILL);
    }
    for (const char *p = data; n;) {
        ssize_t r = write(fd, p, n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return err_errno("%s cannot be written", path);
        p += r;
        n -= (size_t)r;
    }
    return ERR_OK;
}

err file_write_at(int fd, const void *data, size_t n, uint64_t at, const char *path) {
    int fate = file__inject(FILE__WRITE);
    if (fate == FILE__FAIL) return err_errno("%s cannot be written", path);
    if (fate == FILE__KILL) {
        ssize_t half = pwrite(fd, data, n / 2, (off_t)at);
        (void)half;
        raise(SIGKILL);
    }
    for (const char *p = data; n;) {
        ssize_t r = pwrite(fd, p, n, (off_t)at);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return err_errno("%s cannot be written", path);
        p += r;
        n -= (size_t)r;
        at += (uint64_t)r;
    }
    return ERR_OK;
}

err file_read_at(int fd, void *data, size_t n, uint64_t at, const char *path) {
    for (char *p = data; n;) {
        ssize_t r = pread(fd, p, n, (off_t)at);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return err_errno("%s cannot be read", path);
        if (r == 0)
            return err_set(ERR_FORMAT, "%s ends at byte %llu, %zu bytes too early", path,
                           (unsigned long long)at, n);
        p += r;
        n -= (size_t)r;
        at += (uint64_t)r;
    }
    return ERR_OK;
}

err file_sync_fd(int fd, const char *path) { return file__sync(fd, path); }

static err no_path(void) { return err_set(ERR_IO, "an empty path names no file; give one"); }

/* Opens a file for reading and gives its size. Folders are refused here, where the name is known, and
 * devices, which may never end; pipes and terminals pass. flags: O_NONBLOCK does not wait for a pipe's writer. */
static err open_read(const char *path, int flags, int *fd, struct stat *st) {
    if (!*path) return no_path();
    *fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (*fd < 0) return err_errno("%s cannot be opened", path);
    err e = ERR_OK;
    if (fstat(*fd, st) != 0)
        e = err_errno("%s cannot be examined", path);
    else if (S_ISDIR(st->st_mode))
        e = err_set(ERR_IO, "%s is a folder, a file is needed", path);
    else if (S_ISBLK(st->st_mode) || (S_ISCHR(st->st_mode) && !isatty(*fd)))
        e = err_set(ERR_IO, "%s is a device, a file is needed", path);
    if (!e) return ERR_OK;
    close(*fd);
    *fd = -1;
    return e;
}

err file_map_open(file_map *out, const char *path) {
    *out = (file_map){.fd = -1};
    struct stat st;
    int fd;
    TRY(open_read(path, O_NONBLOCK, &fd, &st));
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(ERR_IO, "%s is not a regular file and cannot be mapped", path);
    }
    const void *data = "";
    if (st.st_size > 0) {
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            err e = err_errno("%s (%lld bytes) cannot be mapped", path, (long long)st.st_size);
            close(fd);
            return e;
        }
    }
    *out = (file_map){data, (size_t)st.st_size, fd};
    return ERR_OK;
}

void file_map_close(file_map *m) {
    if (m->data && m->size) munmap((void *)(uintptr_t)m->data, m->size);
    if (m->data && m->fd >= 0) close(m->fd);
    *m = (file_map){.fd = -1};
}

err file_read(const char *path, char **data, size_t *size) {
    *data = NULL;
    *size = 0;
    struct stat st;
    int fd;
    TRY(open_read(path, 0, &fd, &st));
    char *buf = NULL;
    size_t cap = 0, n = 0;
    err e = mem_grow(&buf, &cap, (size_t)(st.st_size > 0 ? st.st_size : 0) + 2, 1);
    while (!e) {
        ssize_t r = read(fd, buf + n, cap - n - 1);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) e = err_errno("%s cannot be read", path);
        if (r <= 0) break;
        n += (size_t)r;
        if (n + 1 == cap) e = mem_grow(&buf, &cap, cap + 1, 1);
    }
    close(fd);
    if (e) {
        mem_free(buf);
        return e;
    }
    buf[n] = 0;
    *data = buf;
    *size = n;
    return ERR_OK;
}

struct file_writer {
    int fd;
    size_t fill;
    char path[PATH_MAX], tmp[PATH_MAX];
    char buffer[BUFFER];
};

/* Where the bytes are to stand at last: path, or the file that it links to, which the rename must not
 * cut off from its link. What is no regular file (a device, a pipe, a folder) would be replaced by one. */
static err destination(const char *path, char out[PATH_MAX]) {
    struct stat st;
    if (!*path) return no_path();
    if (strlen(path) >= PATH_MAX)
        return err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", path);
    memcpy(out, path, strlen(path) + 1);
    if (lstat(path, &st) != 0) return ERR_OK; /* not there; creating it will tell of other causes */
    if (S_ISLNK(st.st_mode) && !realpath(path, out))
        return err_errno("%s is a link that cannot be followed", path);
    if (S_ISLNK(st.st_mode) && stat(out, &st) != 0) return err_errno("%s cannot be examined", path);
    if (S_ISREG(st.st_mode)) return ERR_OK;
    return err_set(ERR_IO, "%s is %s; a file is to be written there", path,
                   S_ISDIR(st.st_mode) ? "a folder" : "no regular file and would be replaced");
}

err file_writer_open(file_writer **out, const char *path) {
    *out = NULL;
    file_writer *w;
    TRY(mem_new(1, sizeof *w, &w));
    err e;
    TRY_GOTO(destination(path, w->path), failed);
    do {
        TRY_GOTO(file__temporary(w->tmp, sizeof w->tmp, w->path), failed);
        w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (w->fd < 0 && errno == EEXIST);
    if (w->fd < 0) {
        e = err_errno("%s cannot be created", path);
        goto failed;
    }
    *out = w;
    return ERR_OK;
failed:
    mem_free(w);
    return e;
}

err file_check_output(const char *path) {
    file_writer *w;
    TRY(file_writer_open(&w, path));
    file_abort(&w);
    return ERR_OK;
}

static err flush(file_writer *w) {
    size_t n = w->fill;
    w->fill = 0;
    return n ? file_write_fd(w->fd, w->buffer, n, w->path) : ERR_OK;
}

err file_write(file_writer *w, const void *data, size_t n) {
    if (n >= BUFFER - w->fill) TRY(flush(w));
    if (n >= BUFFER) return file_write_fd(w->fd, data, n, w->path);
    if (n) memcpy(w->buffer + w->fill, data, n);
    w->fill += n;
    return ERR_OK;
}

err file_printf(file_writer *w, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *text = NULL;
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) return err_set(ERR_MEMORY, "%s: no memory to format a line", w->path);
    err e = file_write(w, text, (size_t)n);
    free(text);
    return e;
}

err file__rename(const char *from, const char *to, int fresh) {
    int fate = file__inject(FILE__RENAME);
    if (fate == FILE__KILL) raise(SIGKILL);
    if (fate == FILE__FAIL) return err_errno("%s cannot be moved into place", to);
    int r = fresh ? renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) : rename(from, to);
    if (r != 0 && fresh &&
        (errno == EINVAL || errno == ENOSYS)) { /* a file system without the flag */
        struct stat st;
        errno = EEXIST;
        r = lstat(to, &st) == 0 ? -1 : rename(from, to);
    }
    if (r == 0) return ERR_OK;
    if (errno == EEXIST)
        return err_set(ERR_REFUSED,
                       "%s exists already and is not overwritten; remove it or choose another", to);
    return err_errno("%s cannot be moved into place", to);
}

static err commit(file_writer **pw, int fresh) {
    file_writer *w = *pw;
    err e = flush(w);
    if (!e) e = file__sync(w->fd, w->path);
    int closed = close(w->fd);
    w->fd = -1;
    if (!e && closed != 0) e = err_errno("%s cannot be written", w->path);
    if (!e) e = file__rename(w->tmp, w->path, fresh);
    if (e)
        unlink(w->tmp);
    else
        e = file__sync_parent(w->path);
    mem_free(w);
    *pw = NULL;
    return e;
}

err file_commit(file_writer **pw) { return commit(pw, 0); }
err file_commit_new(file_writer **pw) { return commit(pw, 1); }

err file_put(const char *path, const void *data, size_t n) {
    char tmp[PATH_MAX];
    TRY(file__temporary(tmp, sizeof tmp, path));
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return err_errno("%s cannot be created", path);
    err e = ERR_OK;
    for (const char *p = data; n && !e;) {
        ssize_t r = write(fd, p, n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) e = err_errno("%s cannot be written", path);
        p += r > 0 ? r : 0;
        n -= (size_t)(r > 0 ? r : 0);
    }
    if (close(fd) != 0 && !e) e = err_errno("%s cannot be written", path);
    if (!e && rename(tmp, path) != 0) e = err_errno("%s cannot be moved into place", path);
    if (e) unlink(tmp);
    return e;
}

void file_abort(file_writer **pw) {
    file_writer *w = *pw;
    if (!w) return;
    close(w->fd);
    unlink(w->tmp);
    mem_free(w);
    *pw = NULL;
}

static void hash_text(XXH128_hash_t h, char out[33]) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

void file_hash_bytes(const void *data, size_t n, char out[33]) {
    hash_text(XXH3_128bits(data, n), out);
}

err file_hash(const char *path, char out[33]) {
    struct stat st;
    int fd;
    TRY(open_read(path, O_NONBLOCK, &fd, &st));
    XXH3_state_t *state = XXH3_createState();
    char *buf = NULL;
    err e = mem_new(BUFFER, 1, &buf);
    if (!e && !state) e = err_set(ERR_MEMORY, "%s: no memory for its checksum", path);
    if (!e) XXH3_128bits_reset(state);
    while (!e) {
        ssize_t r = read(fd, buf, BUFFER);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) e = err_errno("%s cannot be read", path);
        if (r <= 0) break;
        XXH3_128bits_update(state, buf, (size_t)r);
    }
    if (!e) hash_text(XXH3_128bits_digest(state), out);
    mem_free(buf);
    XXH3_freeState(state);
    close(fd);
    return e;
}
