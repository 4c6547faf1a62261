/* Reading safetensors: the file is mapped, its header parsed once, and every tensor becomes a view.
 *
 * Layout: u64 little-endian header length, JSON header, data. All checks of safetensors.h are made here,
 * before any value is seen, with overflow-safe arithmetic: afterwards tensor_bytes of a view is inside the
 * map. The data section must be covered exactly, from its first to its last byte; trailing bytes are
 * refused like gaps. It does not convert, copy or align values. */
#include "io/safetensors.h"
#include "core/arena.h"
#include "core/file.h"
#include "io/json.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_LIMIT = 100 * 1000 * 1000 }; /* the reference reader's limit */

struct st_file {
    char *path;
    file_map map;
    int mapped;
    json_t *header; /* tensor names and metadata are borrowed from it */
    int count;
    tensor *tensors;  /* [count], by offset */
    tensor **by_name; /* [count], sorted bytewise */
};

/* One entry while the header is read: the data section's byte range beside the view. */
typedef struct entry {
    tensor t;
    uint64_t begin, end;
    int order; /* in the header, for ties of empty tensors */
} entry;

static err bad(const st_file *f, const char *tensor_name, const char *what) {
    return err_set(ERR_FORMAT, "%s: tensor '%s': %s", f->path, tensor_name, what);
}

static err parse_shape(const st_file *f, const json_t *shape, tensor *t) {
    if (!json_is_array(shape)) return bad(f, t->name, "'shape' must be a list of integers");
    size_t n = json_array_size(shape);
    if (n > TENSOR_MAX_DIMS)
        return err_set(ERR_FORMAT, "%s: tensor '%s' has %zu dimensions; at most %d can be read",
                       f->path, t->name, n, TENSOR_MAX_DIMS);
    t->ndim = (int)n;
    /* Zero extents count as one here, so that no order of them hides an overflow. */
    int64_t bound = (int64_t)dtype_size(t->type);
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return bad(f, t->name, "'shape' must hold integers of at least 0");
        t->dim[i] = json_integer_value(d);
        if (__builtin_mul_overflow(bound, t->dim[i] > 0 ? t->dim[i] : 1, &bound))
            return bad(f, t->name, "the product of its shape does not fit 63 bits");
    }
    return ERR_OK;
}

static err parse_offsets(const st_file *f, const json_t *offsets, entry *x) {
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e) ||
        json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b))
        return bad(f, x->t.name, "'data_offsets' must be two integers 0 <= begin <= end");
    x->begin = (uint64_t)json_integer_value(b);
    x->end = (uint64_t)json_integer_value(e);
    size_t bytes = tensor_bytes(&x->t);
    if (x->end - x->begin != bytes) {
        char shape[192];
        return err_set(ERR_FORMAT,
                       "%s: tensor '%s': %s %s takes %zu bytes and its data_offsets span %" PRIu64,
                       f->path, x->t.name, dtype_name(x->t.type),
                       tensor_shape_text(&x->t, shape, sizeof shape), bytes, x->end - x->begin);
    }
    return ERR_OK;
}

static err parse_entry(const st_file *f, const char *name, const json_t *v, entry *x) {
    x->t.name = name;
    if (!json_is_object(v)) return bad(f, name, "its header entry must be an object");
    const char *key;
    const json_t *unused;
    json_object_foreach((json_t *)v, key, unused) {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return err_set(ERR_FORMAT, "%s: tensor '%s': unknown header key '%s'", f->path, name,
                           key);
    }
    const json_t *type = json_object_get(v, "dtype");
    if (!json_is_string(type)) return bad(f, name, "'dtype' is missing or no text");
    if (!dtype_parse(json_string_value(type), &x->t.type))
        return err_set(ERR_FORMAT, "%s: tensor '%s': dtype '%s' is not known to this reader",
                       f->path, name, json_string_value(type));
    TRY(parse_shape(f, json_object_get(v, "shape"), &x->t));
    return parse_offsets(f, json_object_get(v, "data_offsets"), x);
}

static err check_meta(const st_file *f, const json_t *meta) {
    if (!json_is_object(meta))
        return err_set(ERR_FORMAT, "%s: '__metadata__' must be an object of texts", f->path);
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)meta, key, v) {
        if (!json_is_string(v))
            return err_set(ERR_FORMAT, "%s: '__metadata__' entry '%s' must be text", f->path, key);
    }
    return ERR_OK;
}

static int by_offset(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

static int by_name(const void *pa, const void *pb) {
    const tensor *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

/* The sorted entries must tile [0, size) exactly. */
static err check_cover(const st_file *f, const entry *x, int n, uint64_t size) {
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        const char *name = x[i].t.name;
        if (x[i].begin < at)
            return err_set(ERR_FORMAT, "%s: tensor '%s' overlaps tensor '%s' by %" PRIu64 " bytes",
                           f->path, name, x[i - 1].t.name, at - x[i].begin);
        if (x[i].begin > at)
            return err_set(ERR_FORMAT,
                           "%s: %" PRIu64 " bytes before tensor '%s' belong to no tensor", f->path,
                           x[i].begin - at, name);
        if (x[i].end > size)
            return err_set(ERR_FORMAT,
                           "%s: tensor '%s' ends %" PRIu64
                           " bytes beyond the end of the file, which is "
                           "cut short; fetch it again",
                           f->path, name, x[i].end - size);
        at = x[i].end;
    }
    if (at == size) return ERR_OK;
    return err_set(ERR_FORMAT,
                   "%s: %" PRIu64 " bytes follow the last tensor%s%s%s and belong to none", f->path,
                   size - at, n ? " '" : "", n ? x[n - 1].t.name : "", n ? "'" : "");
}

/* Fills the handle's views from entries that passed. */
static err keep_entries(st_file *f, const entry *x, int n, const uint8_t *data) {
    TRY(mem_new((size_t)n, sizeof *f->tensors, &f->tensors));
    TRY(mem_new((size_t)n, sizeof *f->by_name, &f->by_name));
    f->count = n;
    for (int i = 0; i < n; i++) {
        f->tensors[i] = x[i].t;
        f->tensors[i].data = data + x[i].begin;
        f->by_name[i] = &f->tensors[i];
    }
    if (n) qsort(f->by_name, (size_t)n, sizeof *f->by_name, by_name);
    return ERR_OK;
}

static err read_entries(st_file *f, const uint8_t *data, uint64_t size) {
    entry *x = NULL;
    int n = 0;
    TRY(mem_new(json_object_size(f->header), sizeof *x, &x));
    err e = ERR_OK;
    const char *name;
    const json_t *v;
    json_object_foreach(f->header, name, v) {
        if (strcmp(name, "__metadata__") == 0) {
            TRY_GOTO(check_meta(f, v), done);
            continue;
        }
        x[n].order = n;
        TRY_GOTO(parse_entry(f, name, v, &x[n]), done);
        n++;
    }
    if (n) qsort(x, (size_t)n, sizeof *x, by_offset);
    TRY_GOTO(check_cover(f, x, n, size), done);
    e = keep_entries(f, x, n, data);
done:
    mem_free(x);
    return e;
}

static err parse(st_file *f, const uint8_t *bytes, size_t size) {
    if (size < 8)
        return err_set(ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file", f->path,
                       size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | bytes[i];
    if (n > HEADER_LIMIT)
        return err_set(ERR_FORMAT,
                       "%s: a header of %" PRIu64 " bytes is beyond the limit of %d; this is no "
                       "safetensors file or a damaged one",
                       f->path, n, HEADER_LIMIT);
    if (n > size - 8)
        return err_set(ERR_FORMAT,
                       "%s: the header says %" PRIu64
                       " bytes and the file ends after %zu; it is cut short",
                       f->path, n, size - 8);
    if (n == 0 || bytes[8] != '{')
        return err_set(ERR_FORMAT, "%s: the header does not begin with '{'", f->path);
    TRY(json_parse(&f->header, f->path, (const char *)bytes + 8, (size_t)n));
    if (json_object_size(f->header) > INT32_MAX / 2)
        return err_set(ERR_FORMAT, "%s: too many tensors", f->path);
    return read_entries(f, bytes + 8 + n, size - 8 - n);
}

static err new_file(st_file **out, const char *path) {
    st_file *f = NULL;
    TRY(mem_new(1, sizeof *f, &f));
    size_t n = strlen(path) + 1;
    err e = mem_new(n, 1, &f->path);
    if (e) {
        mem_free(f);
        return e;
    }
    memcpy(f->path, path, n);
    *out = f;
    return ERR_OK;
}

err safetensors_open(st_file **out, const char *path) {
    *out = NULL;
    st_file *f = NULL;
    TRY(new_file(&f, path));
    err e = file_map_open(&f->map, path);
    f->mapped = !e;
    if (!e) e = parse(f, f->map.data, f->map.size);
    if (e) {
        safetensors_close(f);
        return e;
    }
    *out = f;
    return ERR_OK;
}

err safetensors_open_memory(st_file **out, const char *what, const void *data, size_t n) {
    *out = NULL;
    st_file *f = NULL;
    TRY(new_file(&f, what));
    err e = parse(f, data, n);
    if (e) {
        safetensors_close(f);
        return e;
    }
    *out = f;
    return ERR_OK;
}

void safetensors_close(st_file *f) {
    if (!f) return;
    json_decref(f->header);
    if (f->mapped) file_map_close(&f->map);
    mem_free(f->tensors);
    mem_free(f->by_name);
    mem_free(f->path);
    mem_free(f);
}

int safetensors_count(const st_file *f) { return f->count; }
const tensor *safetensors_at(const st_file *f, int i) {
    return i >= 0 && i < f->count ? &f->tensors[i] : NULL;
}
const char *safetensors_path(const st_file *f) { return f->path; }

const tensor *safetensors_find(const st_file *f, const char *name) {
    tensor key = {.name = name};
    const tensor *k = &key;
    tensor **found = f->count ? bsearch(&k, f->by_name, (size_t)f->count, sizeof k, by_name) : NULL;
    return found ? *found : NULL;
}

const char *safetensors_meta(const st_file *f, const char *key) {
    return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}
