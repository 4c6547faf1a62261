/* The folder of the kernel cache: where it is, whether it may be used, locks, publication, size, listing.
 *
 * Entries are KEY.kernel, locks KEY.lock. A folder that others could write to is never read: its images would run with
 * this user's rights. A folder that cannot be used is no failure here: it says why, once, and the cache compiles into
 * memory. Several processes may use one folder at any moment, and it may vanish under them. */
#ifndef DEV_KERNEL_FOLDER_H
#define DEV_KERNEL_FOLDER_H
#include "core/err.h"
#include "dev/kernel_entry.h"
#include <limits.h>
#include <stdint.h>

typedef struct kernel_folder {
    char path[PATH_MAX]; /* "" when there is none */
    int readable, writable;
    int full; /* not writable for lack of room alone: what is there may be removed */
    int made; /* it is there, whatever it is */
    char note[PATH_MAX + 256]; /* why it is not both and what to do, one sentence; "" when it is */
} kernel_folder;

/* asked: a folder, or NULL for PACELINE_CACHE and then the user's cache folder. make: creates it (mode 0700). */
MUST_CHECK err kernel_folder_open(kernel_folder *out, const char *asked, int make);
/* The entry of key: as kernel_entry_read. */
MUST_CHECK err kernel_folder_read(const kernel_folder *f, const char *key, const str *recipe,
                                  kernel_entry *out);
/* An entry's bytes become KEY.kernel unless one is there. ERR_REFUSED: there is one, to be read instead. */
MUST_CHECK err kernel_folder_publish(const kernel_folder *f, const char *key, const str *bytes);
/* Removes a damaged entry, unless it was replaced since it was read. */
void kernel_folder_drop(const kernel_folder *f, const char *key, const kernel_entry *damaged);

/* The lock of a key, which dies with its holder. ERR_REFUSED: held (err_text says by whom). */
MUST_CHECK err kernel_folder_lock(const kernel_folder *f, const char *key, int *fd);
void kernel_folder_unlock(const kernel_folder *f, const char *key, int fd);

typedef struct kernel_folder_item {
    char key[KERNEL_KEY];
    uint64_t bytes;
    int64_t used_ns; /* time of last use */
} kernel_folder_item;
/* Least recently used first; mem_free(*items). A folder that is gone has none. */
MUST_CHECK err kernel_folder_list(const kernel_folder *f, kernel_folder_item **items, int *n);
/* Removes least recently used entries until the rest takes max_bytes at most; keep (or NULL) stays. */
MUST_CHECK err kernel_folder_trim(const kernel_folder *f, uint64_t max_bytes, const char *keep);
/* Removes all entries, free locks and what dead processes left; other files stay. What cannot be removed is told at the end. */
MUST_CHECK err kernel_folder_clear(const kernel_folder *f, int *entries, uint64_t *bytes);
MUST_CHECK err kernel_folder_path(const kernel_folder *f, const char *key, char out[PATH_MAX]);

#endif
