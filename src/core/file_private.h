/* Shared by file.c and file_dir.c only: the stages that tests may fail, and names beside a path.
 *
 * Every write, sync and rename asks file__inject first and obeys its answer.
 * Not for other folders or files. */
#ifndef CORE_FILE_PRIVATE_H
#define CORE_FILE_PRIVATE_H
#include "core/err.h"
#include <stddef.h>

typedef enum file__stage { FILE__WRITE = 1, FILE__SYNC, FILE__RENAME } file__stage;
enum { FILE__PASS, FILE__FAIL /* errno is set */, FILE__KILL };

int file__inject(file__stage stage);
MUST_CHECK err file__sync(int fd, const char *path);
MUST_CHECK err file__sync_parent(const char *path);
/* fresh: `to` must not exist (ERR_REFUSED). */
MUST_CHECK err file__rename(const char *from, const char *to, int fresh);
/* Folder that holds path ("." when it names none). */
MUST_CHECK err file__parent(char *buf, size_t n, const char *path);
/* A fresh ".tmp-PID-START-HOST-..." name in path's folder; not created yet. */
MUST_CHECK err file__temporary(char *buf, size_t n, const char *path);

#endif
