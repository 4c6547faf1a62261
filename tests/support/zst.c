/* Compressed fixtures for tests: zstd frames of known size, decompressed in one go.
 *
 * Fixtures are small and ours, so there is no streaming and no recovery: what cannot be read ends the test
 * program with a line that names the file. */
#include "support/zst.h"
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

static void fail(const char *what, const char *path) {
    fprintf(stderr, "test fixture: %s: %s\n", path, what);
    abort();
}

static char *read_all(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) fail("cannot be opened (tests run from the repository's root)", path);
    char *data = NULL;
    size_t cap = 0, got;
    *n = 0;
    do {
        cap = cap ? 2 * cap : 1 << 16;
        data = realloc(data, cap);
        if (!data) fail("no memory", path);
        got = fread(data + *n, 1, cap - *n, f);
        *n += got;
    } while (*n == cap);
    fclose(f);
    return data;
}

char *zst_read(const char *path, size_t *n) {
    size_t packed_n;
    char *packed = read_all(path, &packed_n);
    /* a stream written through a pipe does not record its size: grow until it fits */
    ZSTD_DStream *s = ZSTD_createDStream();
    ZSTD_inBuffer in = {packed, packed_n, 0};
    ZSTD_outBuffer out = {NULL, 0, 0};
    size_t rc = 1;
    while (rc != 0) {
        if (out.pos + 1 >= out.size) {
            out.size = out.size ? 2 * out.size : 1 << 16;
            out.dst = realloc(out.dst, out.size);
            if (!out.dst) fail("no memory", path);
        }
        size_t before_in = in.pos, before_out = out.pos;
        ZSTD_outBuffer part = {out.dst, out.size - 1, out.pos};
        rc = ZSTD_decompressStream(s, &part, &in);
        out.pos = part.pos;
        if (ZSTD_isError(rc)) fail(ZSTD_getErrorName(rc), path);
        if (rc != 0 && in.pos == before_in && out.pos == before_out && out.pos + 1 < out.size)
            fail("is cut short", path);
    }
    ZSTD_freeDStream(s);
    free(packed);
    *n = out.pos;
    ((char *)out.dst)[out.pos] = 0;
    return out.dst;
}

void zst_temp_dir(char *dir) {
    snprintf(dir, 256, "%s/paceline-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir)) fail("cannot be made", dir);
}

void zst_temp_remove(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.' || strlen(e->d_name) > 2) unlink(path);
    }
    closedir(d);
    rmdir(dir);
}

const char *zst_write_temp(const char *dir, const char *name, const void *data, size_t n,
                           char *path) {
    snprintf(path, 512, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) fail("cannot be written", path);
    return path;
}
