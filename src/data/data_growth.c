/* Files against what a store holds of them: unchanged, grown, or cut and changed.
 *
 * The bytes that were prepared are hashed again each time, whatever size and time stamp say. When they differ, the kept hash
 * of each line finds the first line that does. A last line without an end that goes on later is a changed line. It reads
 * and refuses; what to do about it is the caller's. */
#include "core/log.h"
#include "data/data_prepare.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { STEP = 4 << 20 };

/* The first line of a file that is not as prepared, 1-based; lines + 1 when all are. */
static err first_difference(const data__store *st, size_t file, const file_map *map,
                            int64_t *line) {
    file_map part;
    uint64_t at = 0;
    size_t known = 0; /* lines of all files before this place of the part */
    TRY(data__store_map_part(st, DATA__LINES, &part));
    *line = 1;
    for (size_t s = 0; s < st->m.n_segments; s++) {
        const data__segment *seg = &st->m.segments[s];
        for (int64_t k = 0; seg->file == (int64_t)file && k < seg->lines; k++, ++*line) {
            uint64_t want;
            if (at >= map->size || (known + (size_t)k + 1) * sizeof want > part.size) goto found;
            memcpy(&want, part.data + (known + (size_t)k) * sizeof want, sizeof want);
            const char *text = (const char *)map->data + at;
            const char *newline = memchr(text, '\n', map->size - at);
            const size_t n = newline ? (size_t)(newline - text) : map->size - at;
            if (data__growth_line(text, n) != want) goto found;
            at += n + 1;
        }
        known += (size_t)seg->lines;
    }
found:
    file_map_close(&part);
    return ERR_OK;
}

static err refuse(const data__store *st, size_t i, const data__source *src, const file_map *map,
                  int *changed) {
    const int64_t lines = st->m.files[i].counts.lines;
    int64_t line;
    TRY(first_difference(st, i, map, &line));
    *changed = 1;
    if (line > lines) /* every line is the same: only the end of the last is not */
        return err_set(ERR_REFUSED,
                       "%s: line %" PRId64 " lost its line end since it was prepared in %s",
                       src->path, lines, st->dir);
    return err_set(ERR_REFUSED,
                   "%s: line %" PRId64 " of %" PRId64
                   " prepared ones is not what was prepared in %s",
                   src->path, line, lines, st->dir);
}

static err hash_prefix(data__source *src, const file_map *map, uint64_t bytes, data__pulse *p) {
    XXH3_state_t *state = src->hash;
    const int64_t before = p->bytes_done;
    for (uint64_t at = 0; at < bytes; at += STEP) {
        const size_t n = bytes - at < STEP ? (size_t)(bytes - at) : STEP;
        XXH3_128bits_update(state, map->data + at, n);
        madvise((void *)(uintptr_t)(map->data + at), n / 4096 * 4096, MADV_DONTNEED);
        p->bytes_done = before + (int64_t)(at + n);
        TRY(data__pulse_beat(p));
    }
    return ERR_OK;
}

static err check(const data__store *st, size_t i, data__source *src, const file_map *map,
                 data__pulse *p, int *changed) {
    const data__file *f = &st->m.files[i];
    char digest[33];
    if (f->bytes > (int64_t)map->size) return refuse(st, i, src, map, changed);
    TRY(hash_prefix(src, map, (uint64_t)f->bytes, p));
    const XXH128_hash_t h = XXH3_128bits_digest(src->hash);
    snprintf(digest, sizeof digest, "%016" PRIx64 "%016" PRIx64, h.high64, h.low64);
    if (strcmp(digest, f->digest) != 0) return refuse(st, i, src, map, changed);
    src->from = f->bytes;
    src->lines = f->counts.lines;
    if (!f->open_line || (int64_t)map->size == f->bytes) return ERR_OK;
    if (map->data[f->bytes] != '\n') {
        *changed = 1;
        return err_set(ERR_REFUSED,
                       "%s: line %" PRId64 " was prepared in %s without a line end and goes on now",
                       src->path, src->lines, st->dir);
    }
    XXH3_128bits_update(src->hash, "\n", 1);
    src->from++;
    return ERR_OK;
}

err data__growth_check(const data__store *st, size_t i, data__source *src, data__pulse *p,
                       int *changed) {
    file_map map;
    TRY(file_map_open(&map, src->path));
    err e = check(st, i, src, &map, p, changed);
    file_map_close(&map);
    return e;
}
