/* Reading and writing entries of the kernel cache: see kernel_entry.h.
 *
 * Integers are little-endian. The digest covers every byte behind it, so a flipped bit anywhere is found; the magic and
 * the digest itself are checked by being compared. */
#include "dev/kernel_entry.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGEST_AT = 8, COVERED = 40, SIZES_AT = 48, HEADER = 72, VERSION = 1 };
static const off_t most_bytes = 256 << 20; /* kernels take some 100 KB */
static const char magic[9] = "PLKERNEL";

static void put(unsigned char *p, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get(const char *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)(unsigned char)p[i] << 8 * i;
    return v;
}

err kernel_entry_make(str *out, const char *name, const char *arch, const str *recipe,
                      const kernel_product *product, double compile_ms) {
    unsigned char header[HEADER] = {0};
    char stamp[21], digest[KERNEL_KEY];
    size_t start = out->n;
    clock_utc(stamp);
    TRY(str_add(out, header, sizeof header));
    TRY(str_printf(out, "name %s\ntarget %s\nmade %s\ncompile_ms %.3f\n%s", name, arch, stamp,
                   compile_ms, product->usage ? product->usage : ""));
    TRY(str_add(out, "", 1)); /* metadata end with NUL */
    size_t meta = out->n - start - HEADER;
    TRY(str_add(out, recipe->s, recipe->n));
    TRY(str_add(out, product->image, product->size));
    unsigned char *p = (unsigned char *)out->s + start;
    memcpy(p, magic, 8);
    put(p + COVERED, VERSION, 4);
    put(p + SIZES_AT, meta, 8);
    put(p + SIZES_AT + 8, recipe->n, 8);
    put(p + SIZES_AT + 16, product->size, 8);
    file_hash_bytes(p + COVERED, out->n - start - COVERED, digest);
    memcpy(p + DIGEST_AT, digest, 32);
    return ERR_OK;
}

/* The rest of the line that starts with key, ended in place; p moves behind it. */
static char *take_line(char **p, const char *key) {
    size_t k = strlen(key), n = strcspn(*p, "\n");
    if (strncmp(*p, key, k) != 0 || (*p)[n] != '\n') return NULL;
    char *value = *p + k;
    (*p)[n] = 0;
    *p += n + 1;
    return value;
}

static err damaged(const char *path, const char *what) {
    return err_set(ERR_FORMAT, "%s is damaged: %s", path, what);
}

static err parse(kernel_entry *e, const char *path) {
    char digest[KERNEL_KEY];
    if (e->size < HEADER || memcmp(e->bytes, magic, 8) != 0)
        return damaged(path, "it is no kernel entry");
    file_hash_bytes(e->bytes + COVERED, e->size - COVERED, digest);
    if (memcmp(e->bytes + DIGEST_AT, digest, 32) != 0)
        return damaged(path, "its bytes do not have its digest");
    if (get(e->bytes + COVERED, 4) != VERSION)
        return damaged(path, "it is of another version of the format");
    uint64_t meta = get(e->bytes + SIZES_AT, 8), recipe = get(e->bytes + SIZES_AT + 8, 8),
             image = get(e->bytes + SIZES_AT + 16, 8), left = e->size - HEADER;
    if (meta > left || recipe > left - meta || image != left - meta - recipe || !meta || !image ||
        e->bytes[HEADER + meta - 1])
        return damaged(path, "its parts do not fill it");
    char *p = e->bytes + HEADER;
    e->recipe = p + meta, e->recipe_size = recipe;
    e->image = p + meta + recipe, e->image_size = image;
    e->name = take_line(&p, "name ");
    e->arch = take_line(&p, "target ");
    e->made = take_line(&p, "made ");
    char *ms = take_line(&p, "compile_ms ");
    if (!e->name || !e->arch || !e->made || !ms)
        return damaged(path, "its metadata are incomplete");
    e->compile_ms = strtod(ms, NULL);
    e->usage = p;
    return ERR_OK;
}

static err read_open(kernel_entry *out, int fd, const char *path, int touch) {
    struct stat st;
    if (fstat(fd, &st) != 0) return err_errno("%s cannot be examined", path);
    out->file = (uint64_t)st.st_ino, out->device = (uint64_t)st.st_dev;
    if (!S_ISREG(st.st_mode)) return damaged(path, "it is no file");
    if (st.st_size > most_bytes) return damaged(path, "it is larger than any kernel");
    out->size = (size_t)st.st_size;
    TRY(mem_new(out->size + 1, 1, &out->bytes));
    TRY(file_read_at(fd, out->bytes, out->size, 0, path));
    /* Read alone, as from a folder of another user, it keeps its time. */
    if (touch && futimens(fd, NULL) != 0) errno = 0;
    return ERR_OK;
}

/* Why there is something at path that cannot be opened. What lies in a folder of the user's own and is no file that he can
 * read is a damaged entry; that this process may open no more files is not. */
static err judge_unopened(kernel_entry *out, const char *path) {
    struct stat st;
    const int why = errno;
    if (lstat(path, &st) == 0) out->file = (uint64_t)st.st_ino, out->device = (uint64_t)st.st_dev;
    errno = why;
    if (why == ELOOP) return damaged(path, "it is a link, and entries are files");
    if (why == ENXIO) return damaged(path, "it is no file");
    if (why == EACCES || why == EPERM) return damaged(path, "it may not be read");
    return err_errno("%s cannot be opened", path);
}

err kernel_entry_read(kernel_entry *out, const char *path, const str *recipe, int touch) {
    memset(out, 0, sizeof *out);
    /* Not blocking: a pipe without a writer would be waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return ERR_OK;
    if (fd < 0) return judge_unopened(out, path);
    err e = read_open(out, fd, path, touch);
    close(fd);
    if (!e) e = parse(out, path);
    if (!e && recipe &&
        (recipe->n != out->recipe_size || memcmp(recipe->s, out->recipe, recipe->n) != 0))
        e = damaged(path, "it was made by another recipe");
    if (!e) return ERR_OK;
    uint64_t file = out->file, device = out->device;
    kernel_entry_free(out);
    out->file = file, out->device = device;
    return e;
}

void kernel_entry_free(kernel_entry *e) {
    mem_free(e->bytes);
    memset(e, 0, sizeof *e);
}
