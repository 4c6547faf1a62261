/* Writing safetensors: header first, then the tensors in the order given, published atomically.
 *
 * The JSON header is padded with spaces at its end so that the data section begins at a multiple of 64
 * bytes of the file. Names and texts must be UTF-8 and unique: what this writes, safetensors_open reads.
 * Values are written as they lie in memory (little-endian); nothing is converted. */
#include "core/arena.h"
#include "core/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold little-endian values");

static err out_of_memory(const char *path) {
    return err_set(ERR_MEMORY, "%s: no memory for the safetensors header", path);
}

static err add_meta(json_t *root, const char *path, const char *const (*meta)[2], int n) {
    if (n <= 0) return ERR_OK;
    json_t *m = json_object();
    if (!m || json_object_set_new(root, "__metadata__", m) != 0) return out_of_memory(path);
    for (int i = 0; i < n; i++) {
        if (json_object_get(m, meta[i][0]))
            return err_set(ERR_FORMAT, "%s: metadata key '%s' is given twice", path, meta[i][0]);
        json_t *v = json_string(meta[i][1]);
        if (!v || json_object_set_new(m, meta[i][0], v) != 0)
            return err_set(ERR_FORMAT, "%s: metadata '%s' is not UTF-8 text", path, meta[i][0]);
    }
    return ERR_OK;
}

/* Extents and bytes of t, checked; its entry goes into root and *at moves on. */
static err add_tensor(json_t *root, const char *path, const tensor *t, uint64_t *at) {
    if (!t->name || strcmp(t->name, "__metadata__") == 0 || json_object_get(root, t->name))
        return err_set(ERR_FORMAT, "%s: tensor name '%s' is %s", path, t->name ? t->name : "",
                       t->name && strcmp(t->name, "__metadata__") != 0 ? "given twice"
                                                                       : "not possible");
    int64_t bytes = (int64_t)dtype_size(t->type);
    json_t *shape = json_array();
    int ok = shape != NULL;
    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0 || __builtin_mul_overflow(bytes, t->dim[i], &bytes)) {
            json_decref(shape);
            return err_set(ERR_SHAPE, "%s: tensor '%s' has an impossible shape", path, t->name);
        }
        ok = ok && json_array_append_new(shape, json_integer(t->dim[i])) == 0;
    }
    uint64_t end = *at + (uint64_t)bytes;
    if (end > INT64_MAX) {
        json_decref(shape);
        return err_set(ERR_SHAPE, "%s: the tensors up to '%s' are too large for one file", path,
                       t->name);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_name(t->type), "shape", shape,
                              "data_offsets", (json_int_t)*at, (json_int_t)end);
    if (!ok || !entry) {
        json_decref(entry);
        return out_of_memory(path);
    }
    if (json_object_set_new(root, t->name, entry) != 0)
        return err_set(ERR_FORMAT, "%s: tensor name '%s' is not UTF-8", path, t->name);
    *at = end;
    return ERR_OK;
}

static err write_header(file_writer *w, const char *text, const char *path) {
    size_t n = strlen(text), padded = (n + 8 + 63) / 64 * 64 - 8;
    if (padded > 100 * 1000 * 1000)
        return err_set(ERR_REFUSED, "%s: a header of %zu bytes is beyond what readers accept", path,
                       padded);
    uint64_t length = padded;
    static const char spaces[64] =
        "                                                                ";
    TRY(file_write(w, &length, 8));
    TRY(file_write(w, text, n));
    return file_write(w, spaces, padded - n);
}

static err write_all(const char *path, const char *header, const tensor *t, int n) {
    file_writer *w = NULL;
    TRY(file_writer_open(&w, path));
    err e = write_header(w, header, path);
    for (int i = 0; i < n && !e; i++) {
        size_t bytes = tensor_bytes(&t[i]);
        if (bytes) e = file_write(w, t[i].data, bytes);
    }
    if (e) {
        file_abort(&w);
        return e;
    }
    return file_commit(&w);
}

err safetensors_write(const char *path, const tensor *t, int n, const char *const (*meta)[2],
                      int n_meta) {
    json_t *root = json_object();
    if (!root) return out_of_memory(path);
    uint64_t at = 0;
    char *text = NULL;
    err e;
    TRY_GOTO(add_meta(root, path, meta, n_meta), done);
    for (int i = 0; i < n; i++) TRY_GOTO(add_tensor(root, path, &t[i], &at), done);
    text = json_dumps(root, JSON_COMPACT);
    e = text ? write_all(path, text, t, n) : out_of_memory(path);
done:
    free(text);
    json_decref(root);
    return e;
}
