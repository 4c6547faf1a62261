/* Files: whole reads, read-only maps, atomic publication. All errors name the path.
 *
 * Publication is write beside (".tmp-PID-..." in the same folder), sync, rename, sync of the folder.
 * Failure injection for tests: PACELINE_FAIL_WRITE=N fails the N-th write/sync/rename of the process
 * with ENOSPC; PACELINE_KILL_AT=STAGE:N (write|sync|rename) raises SIGKILL at the N-th such stage. */
#ifndef CORE_FILE_H
#define CORE_FILE_H
#include "core/err.h"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct file_map {
    const uint8_t *data;
    size_t size;
    int fd;
} file_map;
MUST_CHECK err file_map_open(file_map *out,
                             const char *path); /* empty file: size 0, data non-NULL */
void file_map_close(file_map *m);
/* Whole file, NUL-terminated beyond its size; free with mem_free. */
MUST_CHECK err file_read(const char *path, char **data, size_t *size);

typedef struct file_writer file_writer;
/* Writes beside path, or beside the file that it links to. Only a regular file is ever replaced. */
MUST_CHECK err file_writer_open(file_writer **out, const char *path);
/* Whether a file can be written at path: long work asks before it begins. Nothing is left. */
MUST_CHECK err file_check_output(const char *path);
MUST_CHECK err file_write(file_writer *w, const void *data, size_t n); /* buffered */
MUST_CHECK err file_printf(file_writer *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
MUST_CHECK err
file_commit(file_writer **w); /* sync, rename; frees w also on failure, target untouched */
/* The same where the target must not exist: ERR_REFUSED when somebody was first. */
MUST_CHECK err file_commit_new(file_writer **w);
/* n bytes replace path as a whole, but are not synced and no part of failure injection: for what is written again and again
 * and means nothing after a crash of the machine. */
MUST_CHECK err file_put(const char *path, const void *data, size_t n);
/* The n bytes to an open descriptor: one write(2) unless the kernel takes only a part; path is for the error. */
MUST_CHECK err file_write_fd(int fd, const void *data, size_t n, const char *path);
/* The same at a byte of the file, whatever the descriptor's position: several threads may write at once. */
MUST_CHECK err file_write_at(int fd, const void *data, size_t n, uint64_t at, const char *path);
/* All n bytes; a file that ends before is ERR_FORMAT. */
MUST_CHECK err file_read_at(int fd, void *data, size_t n, uint64_t at, const char *path);
/* What was written, or a folder's names, to the disk. */
MUST_CHECK err file_sync_fd(int fd, const char *path);
void file_abort(file_writer **w); /* removes what was written; NULL inside is fine */

/* A folder built beside path and renamed into place as one: path must not exist at commit. */
MUST_CHECK err file_dir_begin(const char *path, char *tmp, size_t n); /* tmp: the folder to fill */
MUST_CHECK err file_dir_commit(const char *tmp, const char *path);
MUST_CHECK err file_remove_tree(const char *path); /* absent is fine; never follows links */
MUST_CHECK err file_make_dirs(const char *path);
/* Removes abandoned ".tmp-*" entries of dead processes in a folder. */
MUST_CHECK err file_sweep(const char *dir);
int file_exists(const char *path);
int file_is_dir(const char *path);
/* Names in a folder, sorted bytewise, without . and ..; free with file_names_free. */
MUST_CHECK err file_list(const char *dir, char ***names, int *n);
void file_names_free(char **names, int n);
MUST_CHECK err file_free_bytes(const char *dir, uint64_t *out);
/* Advisory lock on a file (created) that the kernel drops when the holder dies.
 * ERR_REFUSED with the holder's pid and host when held. */
MUST_CHECK err file_lock(const char *path, int *fd);
void file_unlock(int fd);
/* Whether the file that fd locks is not at path any more: another process could lock a new one there. */
int file_lock_is_lost(int fd, const char *path);
/* Whether nobody holds it, or there is no such file. Takes it for a moment: only for locks whose holder cannot be seen. */
int file_lock_is_free(const char *path);
/* XXH3-128 as 32 hex digits + NUL. */
void file_hash_bytes(const void *data, size_t n, char out[33]);
MUST_CHECK err file_hash(const char *path, char out[33]);
/* dir + "/" + name into buf; ERR_RANGE when it does not fit. */
MUST_CHECK err file_join(char *buf, size_t n, const char *dir, const char *name);

#endif
