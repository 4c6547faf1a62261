/* Opening GGUF files: one pass over header, metadata and tensor table, then the checks of the data section.
 *
 * The file is mapped and stays mapped; metadata values and tensor data are pointers into it, names of
 * tensors are copied to be terminated. A cursor gives bytes only after comparing with what is left, and
 * every count is compared with the bytes left before memory is taken for it, so a damaged count costs
 * nothing. It does not judge which keys or tensors a model needs. */
#include "io/gguf_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are read as they lie in the file");

typedef struct cursor {
    const char *path;
    const uint8_t *base;
    size_t at, size;
} cursor;

static err take(cursor *c, size_t n, const uint8_t **out, const char *what) {
    if (n > c->size - c->at)
        return err_set(ERR_FORMAT,
                       "%s: the file ends at byte %zu inside %s; it is cut short or damaged",
                       c->path, c->size, what);
    *out = c->base + c->at;
    c->at += n;
    return ERR_OK;
}

static err take_u32(cursor *c, uint32_t *out, const char *what) {
    const uint8_t *p = NULL;
    TRY(take(c, 4, &p, what));
    memcpy(out, p, 4);
    return ERR_OK;
}

static err take_u64(cursor *c, uint64_t *out, const char *what) {
    const uint8_t *p = NULL;
    TRY(take(c, 8, &p, what));
    memcpy(out, p, 8);
    return ERR_OK;
}

static err take_text(cursor *c, const char **s, size_t *n, const char *what) {
    uint64_t len = 0;
    const uint8_t *p = NULL;
    TRY(take_u64(c, &len, what));
    if (len > c->size - c->at)
        return err_set(ERR_FORMAT, "%s: %s at byte %zu says %" PRIu64 " bytes and %zu are left",
                       c->path, what, c->at, len, c->size - c->at);
    TRY(take(c, (size_t)len, &p, what));
    *s = (const char *)p;
    *n = (size_t)len;
    return ERR_OK;
}

/* A count of things that take at least `least` bytes each. */
static err check_count(const cursor *c, uint64_t n, size_t least, const char *what) {
    if (n <= (c->size - c->at) / least && n <= INT32_MAX) return ERR_OK;
    return err_set(ERR_FORMAT, "%s: %" PRIu64 " %s cannot be in the %zu bytes that are left",
                   c->path, n, what, c->size - c->at);
}

int gguf__compare(const char *a, size_t na, const char *b, size_t nb) {
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int by_key(const void *pa, const void *pb) {
    const gguf_value *const *a = pa, *const *b = pb;
    return gguf__compare((*a)->key, (*a)->key_len, (*b)->key, (*b)->key_len);
}

static int by_name(const void *pa, const void *pb) {
    const gguf_tensor *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

const gguf_value *gguf__find(const gguf *g, const char *key, size_t n) {
    gguf_value wanted = {.key = key, .key_len = n};
    const gguf_value *k = &wanted, **found;
    found = g->n_values ? bsearch(&k, g->by_key, (size_t)g->n_values, sizeof k, by_key) : NULL;
    return found ? *found : NULL;
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name) {
    gguf_tensor wanted = {.name = name};
    const gguf_tensor *k = &wanted, **found;
    found = g->n_tensors ? bsearch(&k, g->by_name, (size_t)g->n_tensors, sizeof k, by_name) : NULL;
    return found ? *found : NULL;
}

/* ---- metadata ---------------------------------------------------------------------------------- */

static err bad_key(const cursor *c, const gguf_value *v, const char *what) {
    int n = (int)(v->key_len < 100 ? v->key_len : 100);
    return err_set(ERR_FORMAT, "%s: metadata key '%.*s': %s", c->path, n, v->key, what);
}

static err parse_texts(gguf *g, cursor *c, gguf_value *v) {
    TRY(check_count(c, (uint64_t)v->count, 8, "texts of a metadata array"));
    TRY(arena_alloc(g->mem, (size_t)v->count, sizeof *v->text_at, &v->text_at));
    size_t begin = c->at;
    for (int64_t i = 0; i < v->count; i++) {
        const char *s;
        size_t n;
        v->text_at[i] = c->at - begin;
        TRY(take_text(c, &s, &n, "a metadata text"));
    }
    return ERR_OK;
}

static err parse_value(gguf *g, cursor *c, gguf_value *v) {
    uint64_t count = 1;
    TRY(take_u32(c, &v->type, "a metadata type"));
    if (v->type == GGUF_ARRAY) {
        v->is_array = 1;
        TRY(take_u32(c, &v->type, "a metadata type"));
        TRY(take_u64(c, &count, "a metadata array's length"));
        if (v->type == GGUF_ARRAY) return bad_key(c, v, "arrays of arrays are not read");
    }
    if (!gguf__value_name(v->type)) {
        char what[64];
        snprintf(what, sizeof what, "value type %" PRIu32 " is unknown", v->type);
        return bad_key(c, v, what);
    }
    size_t size = gguf__value_size(v->type);
    TRY(check_count(c, count, size ? size : 8, "metadata values"));
    v->count = (int64_t)count;
    v->data = c->base + c->at;
    if (v->type == GGUF_STRING) return parse_texts(g, c, v);
    TRY(take(c, (size_t)count * size, &v->data, "a metadata value"));
    for (int64_t i = 0; v->type == GGUF_BOOL && i < v->count; i++)
        if (v->data[i] > 1) return bad_key(c, v, "a bool must be 0 or 1");
    return ERR_OK;
}

static err parse_values(gguf *g, cursor *c, uint64_t n) {
    TRY(check_count(c, n, 8 + 4 + 1, "metadata entries"));
    TRY(arena_alloc(g->mem, (size_t)n, sizeof *g->values, &g->values));
    TRY(arena_alloc(g->mem, (size_t)n, sizeof *g->by_key, &g->by_key));
    for (uint64_t i = 0; i < n; i++) {
        gguf_value *v = &g->values[i];
        TRY(take_text(c, &v->key, &v->key_len, "a metadata key"));
        if (!v->key_len || memchr(v->key, 0, v->key_len))
            return bad_key(c, v, "a key must have characters, and none of them NUL");
        TRY(parse_value(g, c, v));
        g->by_key[i] = v;
    }
    g->n_values = (int)n;
    if (n) qsort(g->by_key, (size_t)n, sizeof *g->by_key, by_key);
    for (uint64_t i = 1; i < n; i++)
        if (by_key(&g->by_key[i - 1], &g->by_key[i]) == 0)
            return bad_key(c, g->by_key[i], "the key appears twice");
    return ERR_OK;
}

static err read_alignment(gguf *g, const cursor *c) {
    static const char key[] = "general.alignment";
    g->alignment = 32;
    const gguf_value *v = gguf__find(g, key, sizeof key - 1);
    if (!v) return ERR_OK;
    uint32_t a = 0;
    if (v->is_array || v->type != GGUF_U32) return bad_key(c, v, "the alignment must be a u32");
    memcpy(&a, v->data, 4);
    if (a == 0 || (a & (a - 1))) return bad_key(c, v, "the alignment must be a power of two");
    g->alignment = a;
    return ERR_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------- */

static err bad_tensor(const cursor *c, const gguf_tensor *t, const char *what) {
    return err_set(ERR_FORMAT, "%s: tensor '%s': %s", c->path, t->name, what);
}

static err parse_name(gguf *g, cursor *c, gguf_tensor *t) {
    const char *s;
    size_t n;
    char *copy = NULL;
    TRY(take_text(c, &s, &n, "a tensor name"));
    if (!n || memchr(s, 0, n))
        return err_set(ERR_FORMAT, "%s: the tensor name before byte %zu is empty or holds a NUL",
                       c->path, c->at);
    TRY(arena_alloc(g->mem, n + 1, 1, &copy));
    memcpy(copy, s, n);
    t->name = copy;
    return ERR_OK;
}

/* Extents (the file has the innermost first) and the bytes that they take. */
static err parse_extents(cursor *c, gguf_tensor *t, uint32_t ndim, const uint64_t *inner_first) {
    int64_t values, block_bytes, blocks = 1;
    if (!gguf__block(t->ggml_type, &values, &block_bytes)) {
        char what[80];
        snprintf(what, sizeof what, "type number %d is unknown to this reader", t->ggml_type);
        return bad_tensor(c, t, what);
    }
    t->ndim = ndim ? (int)ndim : 1;
    t->dim[0] = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        if (inner_first[i] > INT64_MAX) return bad_tensor(c, t, "an extent does not fit 63 bits");
        t->dim[ndim - 1 - i] = (int64_t)inner_first[i];
    }
    int64_t width = t->dim[t->ndim - 1];
    if (width % values) {
        char what[96];
        snprintf(what, sizeof what, "rows of %" PRId64 " values are no whole blocks of type %s",
                 width, gguf_type_name(t->ggml_type));
        return bad_tensor(c, t, what);
    }
    /* Zero extents count as one in the bound, so that no order of them hides an overflow. */
    int64_t bound = block_bytes;
    for (int i = 0; i < t->ndim; i++) {
        int64_t extent = i == t->ndim - 1 ? width / values : t->dim[i];
        if (__builtin_mul_overflow(bound, extent > 0 ? extent : 1, &bound) ||
            (i == t->ndim - 1 && __builtin_mul_overflow(bound, values, &(int64_t){0})))
            return bad_tensor(c, t, "the product of its extents does not fit 63 bits");
        blocks *= extent;
    }
    t->bytes = (size_t)(blocks * block_bytes);
    return ERR_OK;
}

static err parse_tensor(gguf *g, cursor *c, gguf_tensor *t, uint64_t *offset) {
    uint32_t ndim = 0, type = 0;
    uint64_t dims[4] = {0};
    TRY(parse_name(g, c, t));
    TRY(take_u32(c, &ndim, "a tensor entry"));
    if (ndim > 4) return bad_tensor(c, t, "more than 4 dimensions");
    for (uint32_t i = 0; i < ndim; i++) TRY(take_u64(c, &dims[i], "a tensor entry"));
    TRY(take_u32(c, &type, "a tensor entry"));
    TRY(take_u64(c, offset, "a tensor entry"));
    t->ggml_type = type > INT32_MAX ? INT32_MAX : (int)type;
    return parse_extents(c, t, ndim, dims);
}

/* The data section: tensors in table order, each at the padded end of the one before, and nothing after
 * the last one but its own padding. */
static err place_tensors(gguf *g, const cursor *c, const uint64_t *offsets) {
    uint64_t mask = g->alignment - 1, begin = ((uint64_t)c->at + mask) & ~mask, at = 0;
    if (g->n_tensors == 0 && begin > c->size)
        begin = c->size; /* padding without data is optional */
    uint64_t room = begin <= c->size ? c->size - begin : 0, end = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        if (offsets[i] != at)
            return err_set(ERR_FORMAT,
                           "%s: tensor '%s' begins at %" PRIu64 " of the data and %" PRIu64
                           " was expected: overlap, gap or damage",
                           c->path, t->name, offsets[i], at);
        if (at > room || t->bytes > room - at)
            return err_set(
                ERR_FORMAT,
                "%s: tensor '%s' needs %zu bytes at %" PRIu64
                " of the data, beyond the end of the file, which is cut short; fetch it again",
                c->path, t->name, t->bytes, at);
        t->data = c->base + begin + at;
        end = at + t->bytes;
        at = (end + mask) & ~mask;
    }
    if (room > at)
        return err_set(
            ERR_FORMAT, "%s: %" PRIu64 " bytes follow the last tensor%s%s%s and belong to none",
            c->path, room - at, g->n_tensors ? " '" : "",
            g->n_tensors ? g->tensors[g->n_tensors - 1].name : "", g->n_tensors ? "'" : "");
    return ERR_OK;
}

static err parse_tensors(gguf *g, cursor *c, uint64_t n) {
    uint64_t *offsets = NULL;
    TRY(check_count(c, n, 8 + 1 + 4 + 4 + 8, "tensor entries"));
    TRY(arena_alloc(g->mem, (size_t)n, sizeof *g->tensors, &g->tensors));
    TRY(arena_alloc(g->mem, (size_t)n, sizeof *g->by_name, &g->by_name));
    TRY(arena_alloc(g->mem, (size_t)n, sizeof *offsets, &offsets));
    for (uint64_t i = 0; i < n; i++) {
        TRY(parse_tensor(g, c, &g->tensors[i], &offsets[i]));
        g->by_name[i] = &g->tensors[i];
    }
    g->n_tensors = (int)n;
    if (n) qsort(g->by_name, (size_t)n, sizeof *g->by_name, by_name);
    for (uint64_t i = 1; i < n; i++)
        if (by_name(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return bad_tensor(c, g->by_name[i], "the name appears twice");
    return place_tensors(g, c, offsets);
}

/* ---- the whole file ---------------------------------------------------------------------------- */

static err parse(gguf *g, const uint8_t *data, size_t size) {
    cursor c = {g->path, data, 0, size};
    const uint8_t *magic = NULL;
    uint64_t n_tensors = 0, n_values = 0;
    TRY(take(&c, 4, &magic, "the magic number"));
    if (memcmp(magic, "GGUF", 4) != 0) return err_set(ERR_FORMAT, "%s: not a GGUF file", g->path);
    TRY(take_u32(&c, &g->version, "the version"));
    if (g->version != 2 && g->version != 3) {
        int swapped = (g->version & 0xffff) == 0 && g->version != 0;
        return err_set(ERR_REFUSED,
                       swapped ? "%s: a big-endian GGUF file (version field %" PRIu32
                                 ") is not read"
                               : "%s: GGUF version %" PRIu32 " is not read; versions 2 and 3 are",
                       g->path, g->version);
    }
    TRY(take_u64(&c, &n_tensors, "the number of tensors"));
    TRY(take_u64(&c, &n_values, "the number of metadata entries"));
    TRY(parse_values(g, &c, n_values));
    TRY(read_alignment(g, &c));
    return parse_tensors(g, &c, n_tensors);
}

static err create(gguf **out, const char *what) {
    gguf *g = NULL;
    char *name = NULL;
    TRY(mem_new(1, sizeof *g, &g));
    err e;
    TRY_GOTO(arena_create(&g->mem, "gguf", 0), fail);
    TRY_GOTO(arena_strdup(g->mem, what, &name), fail);
    g->path = name;
    *out = g;
    return ERR_OK;
fail:
    gguf_close(g);
    return e;
}

err gguf_open(gguf **out, const char *path) {
    *out = NULL;
    gguf *g = NULL;
    TRY(create(&g, path));
    err e = file_map_open(&g->map, path);
    g->mapped = !e;
    if (!e) e = parse(g, g->map.data, g->map.size);
    if (e) {
        gguf_close(g);
        return e;
    }
    *out = g;
    return ERR_OK;
}

err gguf_open_memory(gguf **out, const char *what, const void *data, size_t n) {
    *out = NULL;
    gguf *g = NULL;
    TRY(create(&g, what));
    err e = parse(g, data, n);
    if (e) {
        gguf_close(g);
        return e;
    }
    *out = g;
    return ERR_OK;
}

void gguf_close(gguf *g) {
    if (!g) return;
    if (g->mapped) file_map_close(&g->map);
    arena_destroy(g->mem);
    mem_free(g);
}

const char *gguf_path(const gguf *g) { return g->path; }
int gguf_version(const gguf *g) { return (int)g->version; }
int gguf_tensor_count(const gguf *g) { return g->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf *g, int i) {
    return i >= 0 && i < g->n_tensors ? &g->tensors[i] : NULL;
}

const char *gguf_shape_text(const gguf_tensor *t, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    for (int i = 0; i < t->ndim; i++) {
        int r = snprintf(buf + at, n - at, "%s%" PRId64 "%s", i ? ", " : "[", t->dim[i],
                         i == t->ndim - 1 ? "]" : "");
        if (r < 0 || (size_t)r >= n - at) break;
        at += (size_t)r;
    }
    return buf;
}
