/* The feature store: an append-only log of taps beside a table of marks, one for each document.
 *
 * taps-NNNNN.bin: documents one after another, none across two files. marks.bin: 32 bytes a document, by number:
 * digest of the stored bytes, digest of the tokens, place, length, and a check of these. A mark never crosses a
 * page or sector, and one whose check fails is none, so a torn mark is an absent document. Offsets count over all
 * files. Marks are written only after the data that they speak of was synced; on opening, the log goes on behind
 * the last marked byte, so what a crash left without a mark is overwritten. A log needs no plan of places: nothing
 * is preallocated, files are not sparse, writes are sequential though documents come in a shuffled order, and a
 * document that changed its length moves nothing. Its old bytes stay until the folder is removed.
 * Memory is the table, taken on opening; a document passes through the caller's buffer or 64 KiB of stack. */
#include "train/features.h"
#include "core/arena.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/log.h"
#include "core/str.h"
#include "io/json.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { FORMAT = 1, FILE_LIMIT = 4096, CHUNK = 32 << 10 /* values */ };
static const uint64_t file_bytes_default = 1ull << 40; /* below what ext4 takes, few open files */
static const uint64_t file_bytes_most = 1ull << 43;

typedef struct mark {
    uint64_t digest;   /* of the stored bytes, seeded by the document's number */
    uint64_t identity; /* digest of its tokens */
    uint64_t offset;
    uint32_t tokens; /* 0: no mark */
    uint32_t check;  /* of the fields above, seeded by the document's number */
} mark;
_Static_assert(sizeof(mark) == 32, "marks lie side by side in a file");

/* SYNCING: its data is being brought to the disk, its mark follows. */
typedef enum doc_state { ABSENT, WRITTEN, SYNCING, KEPT } doc_state;

typedef struct log_file {
    int fd; /* -1: not open */
    int dirty;
} log_file;

struct features {
    char dir[PATH_MAX - 64];
    int64_t docs, width;
    uint64_t file_bytes;
    int dir_fd, lock_fd, marks_fd;
    pthread_mutex_t lock; /* of everything below */
    pthread_mutex_t one_sync;
    mark *marks;     /* [docs] */
    uint8_t *states; /* [docs] doc_state */
    uint64_t end;    /* where the next document goes */
    log_file files[FILE_LIMIT];
};

/* ---- sizes ------------------------------------------------------------------------------------- */

uint64_t features_bytes(int64_t tokens, int64_t width) {
    uint64_t n;
    if (__builtin_mul_overflow((uint64_t)tokens, (uint64_t)width, &n) ||
        __builtin_mul_overflow(n, sizeof(bf16), &n))
        return UINT64_MAX;
    return n;
}

size_t features_memory(int64_t docs) {
    return sizeof(features) + (size_t)docs * (sizeof(mark) + sizeof(uint8_t));
}

/* The nearest folder above dir that is there. */
static err nearest_folder(char out[PATH_MAX], const char *dir) {
    TRY(file_join(out, PATH_MAX, *dir == '/' ? "" : ".", dir));
    while (!file_is_dir(out)) {
        char *slash = strrchr(out, '/');
        if (slash == out) slash++;
        *slash = 0;
    }
    return ERR_OK;
}

err features_check_room(const char *dir, uint64_t bytes) {
    char place[PATH_MAX], need[24], have[24], need_all[32], have_all[32];
    uint64_t room = 0;
    TRY(nearest_folder(place, dir));
    TRY(file_free_bytes(place, &room));
    if (bytes <= room) return ERR_OK;
    return err_set(ERR_REFUSED,
                   "features.store %s: taps of %s bytes (%s) are still to be written and its file "
                   "system has %s bytes (%s) free; choose a larger one, fewer taps, or no store "
                   "(\"\"), which computes taps in each epoch",
                   dir, str_thousands((long long)bytes, need_all), str_bytes((double)bytes, need),
                   str_thousands((long long)room, have_all), str_bytes((double)room, have));
}

/* ---- the folder -------------------------------------------------------------------------------- */

static err check_shape(const char *dir, const features_shape *s) {
    if (s->docs < 0 || s->width < 1 || s->docs > INT64_MAX / (int64_t)sizeof(mark) ||
        s->file_bytes > file_bytes_most)
        return err_set(ERR_RANGE,
                       "%s: a feature store of %" PRId64 " documents of width %" PRId64
                       " in files of %" PRIu64 " bytes cannot be made",
                       dir, s->docs, s->width, s->file_bytes);
    return ERR_OK;
}

/* A folder without a header is a new store when nothing but our own leavings is in it. */
static err check_empty(const char *dir) {
    char **names;
    int n;
    err e = ERR_OK;
    TRY(file_list(dir, &names, &n));
    for (int i = 0; i < n && !e; i++)
        if (strcmp(names[i], "lock") != 0 && strncmp(names[i], ".tmp-", 5) != 0)
            e = err_set(ERR_REFUSED,
                        "features.store %s is no feature store and holds %s; choose a folder of "
                        "its own",
                        dir, names[i]);
    file_names_free(names, n);
    return e;
}

static err compare_header(const json_t *o, const char *path, const char *dir,
                          const features_shape *s, uint64_t *file_bytes) {
    int64_t format = 0, width = 0, bytes = 0;
    const char *key = NULL;
    TRY(json_get_int(o, path, "format", &format));
    if (format != FORMAT)
        return err_set(ERR_REFUSED, "%s: format %" PRId64 " is not known to this program", path,
                       format);
    TRY(json_get_text(o, path, "key", &key));
    TRY(json_get_int(o, path, "width", &width));
    TRY(json_get_int(o, path, "file_bytes", &bytes));
    if (strcmp(key, s->key) != 0 || width != s->width)
        return err_set(ERR_REFUSED,
                       "features.store %s holds taps of \"%s\", %" PRId64
                       " values a token, and this run needs \"%s\", %" PRId64
                       "; choose another folder, or remove this one to have them computed again",
                       dir, key, width, s->key, s->width);
    if (bytes < 1 || (uint64_t)bytes > file_bytes_most)
        return err_set(ERR_FORMAT, "%s: file_bytes %" PRId64 " is not possible", path, bytes);
    *file_bytes = (uint64_t)bytes;
    return ERR_OK;
}

/* *found: whether dir is a store, which then fits the shape. */
static err read_header(const char *dir, const features_shape *s, int *found, uint64_t *file_bytes) {
    char path[PATH_MAX];
    json_t *o = NULL;
    TRY(file_join(path, sizeof path, dir, "features.json"));
    *found = file_exists(path);
    if (!*found) return file_exists(dir) ? check_empty(dir) : ERR_OK;
    TRY(json_read_file(&o, path));
    err e = compare_header(o, path, dir, s, file_bytes);
    json_decref(o);
    return e;
}

static err write_header(const char *dir, const features_shape *s, uint64_t file_bytes) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, dir, "features.json"));
    json_t *o = json_object();
    if (!o) return err_set(ERR_MEMORY, "%s: no memory for its text", path);
    json_object_set_new(o, "format", json_integer(FORMAT));
    json_object_set_new(o, "key", json_string(s->key));
    json_object_set_new(o, "width", json_integer(s->width));
    json_object_set_new(o, "file_bytes", json_integer((json_int_t)file_bytes));
    err e = json_write_file(o, path);
    json_decref(o);
    return e;
}

/* ---- marks ------------------------------------------------------------------------------------- */

static uint32_t check_of(const mark *m, int64_t doc) {
    return (uint32_t)XXH3_64bits_withSeed(m, offsetof(mark, check), (XXH64_hash_t)doc);
}

static int is_whole(const mark *m, int64_t doc) {
    return m->tokens && m->check == check_of(m, doc);
}

/* What is told of a table of marks. */
typedef struct marks_sum {
    uint64_t end, bytes; /* behind the last document; of the documents below shape->docs */
    int64_t torn;
} marks_sum;

/* Reads the marks of an open file; marks and states may be NULL. */
static err read_marks(int fd, const char *path, const features_shape *s, mark *marks,
                      uint8_t *states, marks_sum *sum) {
    static const mark none;
    mark some[256];
    struct stat st;
    *sum = (marks_sum){0};
    if (fstat(fd, &st) != 0) return err_errno("%s cannot be examined", path);
    const int64_t all = st.st_size / (int64_t)sizeof(mark); /* a rest is a torn mark */
    for (int64_t at = 0, n; at < all; at += n) {
        n = all - at < 256 ? all - at : 256;
        TRY(file_read_at(fd, some, (size_t)n * sizeof(mark), (uint64_t)at * sizeof(mark), path));
        for (int64_t i = 0; i < n; i++) {
            const mark *m = &some[i];
            if (!is_whole(m, at + i)) {
                sum->torn += memcmp(m, &none, sizeof none) != 0;
                continue;
            }
            const uint64_t bytes = features_bytes(m->tokens, s->width);
            if (m->offset + bytes > sum->end) sum->end = m->offset + bytes;
            if (at + i >= s->docs) continue; /* documents that left the data may come back */
            sum->bytes += bytes;
            if (marks) marks[at + i] = *m, states[at + i] = KEPT;
        }
    }
    return ERR_OK;
}

err features_stored(const char *dir, const features_shape *shape, uint64_t *bytes) {
    char path[PATH_MAX];
    int found = 0;
    uint64_t file_bytes;
    marks_sum sum;
    *bytes = 0;
    TRY(check_shape(dir, shape));
    TRY(read_header(dir, shape, &found, &file_bytes));
    TRY(file_join(path, sizeof path, dir, "marks.bin"));
    if (!found || !file_exists(path)) return ERR_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno("%s cannot be opened", path);
    err e = read_marks(fd, path, shape, NULL, NULL, &sum);
    close(fd);
    *bytes = e ? 0 : sum.bytes;
    return e;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static err open_marks(features *f, const features_shape *s) {
    char path[PATH_MAX];
    marks_sum sum;
    TRY(file_join(path, sizeof path, f->dir, "marks.bin"));
    f->marks_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->marks_fd < 0) return err_errno("%s cannot be opened", path);
    TRY(file_sync_fd(f->dir_fd, f->dir));
    TRY(mem_new((size_t)s->docs + 1, sizeof *f->marks, &f->marks));
    TRY(mem_new((size_t)s->docs + 1, sizeof *f->states, &f->states));
    TRY(read_marks(f->marks_fd, path, s, f->marks, f->states, &sum));
    f->end = sum.end;
    if (sum.torn)
        log_warn("%s: %" PRId64 " marks are torn; these documents' taps are computed again", path,
                 sum.torn);
    return ERR_OK;
}

static err open_folder(features *f, const features_shape *s) {
    char path[PATH_MAX];
    int found = 0;
    TRY(check_shape(f->dir, s));
    TRY(file_make_dirs(f->dir));
    f->dir_fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->dir_fd < 0) return err_errno("folder %s cannot be opened", f->dir);
    f->file_bytes = s->file_bytes ? s->file_bytes : file_bytes_default;
    TRY(read_header(f->dir, s, &found, &f->file_bytes)); /* before anything is put there */
    TRY(file_join(path, sizeof path, f->dir, "lock"));
    TRY(file_lock(path, &f->lock_fd));
    TRY(file_sweep(f->dir));
    if (!found) TRY(write_header(f->dir, s, f->file_bytes));
    return open_marks(f, s);
}

err features_open(features **out, const char *dir, const features_shape *shape) {
    features *f;
    *out = NULL;
    TRY(mem_new(1, sizeof *f, &f));
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->one_sync, NULL);
    f->dir_fd = f->lock_fd = f->marks_fd = -1;
    for (int i = 0; i < FILE_LIMIT; i++) f->files[i].fd = -1;
    f->docs = shape->docs;
    f->width = shape->width;
    err e = strlen(dir) < sizeof f->dir
                ? ERR_OK
                : err_set(ERR_RANGE, "the path %.60s... is longer than the system takes", dir);
    if (!e) strcpy(f->dir, dir);
    if (!e) e = open_folder(f, shape);
    if (e)
        features_close(f);
    else
        *out = f;
    return e;
}

void features_close(features *f) {
    if (!f) return;
    for (int i = 0; i < FILE_LIMIT; i++)
        if (f->files[i].fd >= 0) close(f->files[i].fd);
    if (f->marks_fd >= 0) close(f->marks_fd);
    if (f->dir_fd >= 0) close(f->dir_fd);
    file_unlock(f->lock_fd);
    mem_free(f->marks);
    mem_free(f->states);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->one_sync);
    mem_free(f);
}

/* ---- documents --------------------------------------------------------------------------------- */

void features_round(float *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = bf16_to_f32(bf16_from_f32(values[i]));
}

/* The mark of a document with these very tokens; 0: there is none. */
static int find(features *f, int64_t doc, const int32_t *tokens, int64_t n, mark *m) {
    if (doc < 0 || doc >= f->docs || n < 1) return 0;
    const uint64_t identity = XXH3_64bits(tokens, (size_t)n * sizeof *tokens);
    pthread_mutex_lock(&f->lock);
    const int there = f->states[doc] != ABSENT;
    *m = f->marks[doc];
    pthread_mutex_unlock(&f->lock);
    return there && m->tokens == n && m->identity == identity;
}

int features_has(features *f, int64_t doc, const int32_t *tokens, int64_t n) {
    mark m;
    return find(f, doc, tokens, n, &m);
}

static void path_of(const features *f, uint64_t file, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/taps-%05" PRIu64 ".bin", f->dir, file);
}

/* The descriptor of a file of the log, opened once. Under the lock. */
static err open_log(features *f, uint64_t file, int make, int *fd) {
    char path[PATH_MAX];
    path_of(f, file, path);
    if (file >= FILE_LIMIT)
        return err_set(ERR_RANGE, "%s: a feature store has at most %d files", path, FILE_LIMIT);
    *fd = f->files[file].fd;
    if (*fd >= 0) return ERR_OK;
    *fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0666);
    if (*fd < 0) return err_errno("%s cannot be opened", path);
    f->files[file].fd = *fd;
    return make ? file_sync_fd(f->dir_fd, f->dir) : ERR_OK;
}

static err damaged(const features *f, int64_t doc, const mark *m) {
    char path[PATH_MAX];
    path_of(f, m->offset / f->file_bytes, path);
    return err_set(ERR_FORMAT,
                   "%s: the taps of document %" PRId64 " (%" PRIu32 " tokens from byte %" PRIu64
                   ") are damaged; remove %s to have them computed again",
                   path, doc, m->tokens, m->offset % f->file_bytes, f->dir);
}

err features_read(features *f, int64_t doc, const int32_t *tokens, int64_t n, float *out) {
    mark m;
    char path[PATH_MAX];
    int fd;
    if (!find(f, doc, tokens, n, &m))
        return err_set(ERR_INTERNAL, "%s holds no taps of document %" PRId64, f->dir, doc);
    const uint64_t file = m.offset / f->file_bytes;
    const size_t values = (size_t)n * (size_t)f->width;
    pthread_mutex_lock(&f->lock);
    err e = open_log(f, file, 0, &fd);
    pthread_mutex_unlock(&f->lock);
    TRY(e);
    path_of(f, file, path);
    /* The bf16 values come to lie in the second half of out, from where each is spread to its place: value i
     * is read before anything is written over it. */
    char *packed = (char *)out + values * sizeof(bf16);
    e = file_read_at(fd, packed, values * sizeof(bf16), m.offset % f->file_bytes, path);
    if (e)
        return err_context(e,
                           "the taps of document %" PRId64
                           " cannot be read, remove %s to have them computed again: ",
                           doc, f->dir);
    if (XXH3_64bits_withSeed(packed, values * sizeof(bf16), (XXH64_hash_t)doc) != m.digest)
        return damaged(f, doc, &m);
    for (size_t i = 0; i < values; i++) {
        bf16 v;
        memcpy(&v, packed + i * sizeof v, sizeof v);
        out[i] = bf16_to_f32(v);
    }
    return ERR_OK;
}

/* A place for so many bytes at the log's end, within one file. */
static err reserve(features *f, uint64_t bytes, uint64_t *offset, int *fd) {
    const uint64_t size = f->file_bytes;
    if (bytes > size)
        return err_set(ERR_RANGE,
                       "%s: a document of %" PRIu64 " bytes does not fit files of %" PRIu64, f->dir,
                       bytes, size);
    pthread_mutex_lock(&f->lock);
    const uint64_t start = f->end % size + bytes > size ? (f->end / size + 1) * size : f->end;
    err e = open_log(f, start / size, 1, fd);
    if (!e) *offset = start, f->end = start + bytes;
    pthread_mutex_unlock(&f->lock);
    return e;
}

/* values taps of a document as bf16 to a file, and the digest of what was written. */
static err put(int fd, const char *path, uint64_t at, const float *taps, size_t values, int64_t doc,
               uint64_t *digest) {
    bf16 some[CHUNK];
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, (XXH64_hash_t)doc);
    for (size_t i = 0, n; i < values; i += n) {
        n = values - i < CHUNK ? values - i : CHUNK;
        for (size_t k = 0; k < n; k++) some[k] = bf16_from_f32(taps[i + k]);
        TRY(file_write_at(fd, some, n * sizeof *some, at + i * sizeof *some, path));
        XXH3_64bits_update(&state, some, n * sizeof *some);
    }
    *digest = XXH3_64bits_digest(&state);
    /* Started now, so that the next sync finds little left to wait for; its errors are the sync's. */
    (void)sync_file_range(fd, (off_t)at, (off_t)(values * sizeof *some), SYNC_FILE_RANGE_WRITE);
    return ERR_OK;
}

err features_write(features *f, int64_t doc, const int32_t *tokens, int64_t n, const float *taps) {
    mark m;
    char path[PATH_MAX];
    int fd;
    if (doc < 0 || doc >= f->docs || n < 1 || n > UINT32_MAX)
        return err_set(ERR_RANGE,
                       "%s takes documents 0 to %" PRId64 ", not %" PRId64 " of %" PRId64 " tokens",
                       f->dir, f->docs - 1, doc, n);
    if (find(f, doc, tokens, n, &m)) return ERR_OK;
    const uint64_t bytes = features_bytes(n, f->width);
    memset(&m, 0, sizeof m);
    m.identity = XXH3_64bits(tokens, (size_t)n * sizeof *tokens);
    m.tokens = (uint32_t)n;
    TRY(reserve(f, bytes, &m.offset, &fd));
    path_of(f, m.offset / f->file_bytes, path);
    err e =
        put(fd, path, m.offset % f->file_bytes, taps, (size_t)bytes / sizeof(bf16), doc, &m.digest);
    m.check = check_of(&m, doc);
    pthread_mutex_lock(&f->lock);
    if (!e) {
        f->marks[doc] = m;
        f->states[doc] = WRITTEN;
        f->files[m.offset / f->file_bytes].dirty = 1;
    } else if (f->end == m.offset + bytes) {
        f->end = m.offset;
    }
    pthread_mutex_unlock(&f->lock);
    return err_context(e,
                       "the taps of document %" PRId64
                       " cannot be kept, make room or choose another features.store: ",
                       doc);
}

/* ---- syncing ----------------------------------------------------------------------------------- */

/* Documents in state `from` go to state `to`; how many. */
static int64_t settle(features *f, doc_state from, doc_state to) {
    int64_t n = 0;
    pthread_mutex_lock(&f->lock);
    for (int64_t i = 0; i < f->docs; i++)
        if (f->states[i] == from) f->states[i] = (uint8_t)to, n++;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static err sync_data(features *f) {
    char path[PATH_MAX];
    for (uint64_t i = 0; i < FILE_LIMIT; i++) {
        pthread_mutex_lock(&f->lock);
        const int dirty = f->files[i].dirty, fd = f->files[i].fd;
        f->files[i].dirty = 0;
        pthread_mutex_unlock(&f->lock);
        if (!dirty) continue;
        path_of(f, i, path);
        TRY(file_sync_fd(fd, path));
    }
    return ERR_OK;
}

static err write_marks(features *f) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, f->dir, "marks.bin"));
    for (int64_t i = 0; i < f->docs; i++) {
        mark m;
        pthread_mutex_lock(&f->lock);
        while (i < f->docs && f->states[i] != SYNCING) i++;
        if (i < f->docs) m = f->marks[i];
        pthread_mutex_unlock(&f->lock);
        if (i < f->docs)
            TRY(file_write_at(f->marks_fd, &m, sizeof m, (uint64_t)i * sizeof m, path));
    }
    return file_sync_fd(f->marks_fd, path);
}

err features_sync(features *f) {
    pthread_mutex_lock(&f->one_sync);
    err e = ERR_OK;
    if (settle(f, WRITTEN, SYNCING)) {
        e = sync_data(f);
        if (!e) e = write_marks(f);
        settle(f, SYNCING, e ? ABSENT : KEPT);
        e = err_context(
            e,
            "the taps written since the last sync are not kept, make room or choose another features.store: ");
    }
    pthread_mutex_unlock(&f->one_sync);
    return e;
}
