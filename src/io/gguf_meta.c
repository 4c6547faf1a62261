/* GGUF metadata: typed answers with a sentence when a key is missing or of another type.
 *
 * Values stay in the file and are read when asked for. Any integer width serves an integer, any number a
 * real; text is handed out as a pointer into the file with its length, as it need not be terminated.
 * Arrays are read by element; nothing here interprets a key's meaning. */
#include "core/dtype.h"
#include "io/gguf_parts.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} value_types[GGUF_TYPES] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

size_t gguf__value_size(uint32_t type) { return type < GGUF_TYPES ? value_types[type].size : 0; }
const char *gguf__value_name(uint32_t type) {
    return type < GGUF_TYPES ? value_types[type].name : NULL;
}

static uint64_t little(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static const uint8_t *element(const gguf_value *v, int64_t i) {
    return v->data + (size_t)i * gguf__value_size(v->type);
}

/* 1 and *out for integers that fit; 0 for other types; -1 beyond int64. */
static int int_at(const gguf_value *v, int64_t i, int64_t *out) {
    const uint8_t *p = element(v, i);
    switch (v->type) {
    case GGUF_U8: *out = *p; return 1;
    case GGUF_I8: *out = (int8_t)*p; return 1;
    case GGUF_U16: *out = (int64_t)little(p, 2); return 1;
    case GGUF_I16: *out = (int16_t)little(p, 2); return 1;
    case GGUF_U32: *out = (int64_t)little(p, 4); return 1;
    case GGUF_I32: *out = (int32_t)little(p, 4); return 1;
    case GGUF_I64: *out = (int64_t)little(p, 8); return 1;
    case GGUF_U64: *out = (int64_t)little(p, 8); return *out < 0 ? -1 : 1;
    default: return 0;
    }
}

static int real_at(const gguf_value *v, int64_t i, double *out) {
    int64_t whole = 0;
    float f;
    if (v->type == GGUF_F32) {
        memcpy(&f, element(v, i), sizeof f);
        *out = (double)f;
    } else if (v->type == GGUF_F64) {
        memcpy(out, element(v, i), sizeof *out);
    } else if (v->type == GGUF_U64) {
        *out = (double)little(element(v, i), 8);
    } else {
        if (int_at(v, i, &whole) != 1) return 0;
        *out = (double)whole;
    }
    return 1;
}

static void text_at(const gguf_value *v, int64_t i, const char **s, size_t *n) {
    const uint8_t *p = v->data + v->text_at[i];
    *n = (size_t)little(p, 8);
    *s = (const char *)p + 8;
}

static err get(const gguf *g, const char *key, int array, const gguf_value **v) {
    *v = gguf__find(g, key, strlen(key));
    if (!*v) return err_set(ERR_FORMAT, "%s: metadata key '%s' is missing", g->path, key);
    if ((*v)->is_array != array)
        return err_set(ERR_FORMAT, "%s: metadata key '%s' must be %s", g->path, key,
                       array ? "an array" : "a single value");
    return ERR_OK;
}

static err get_element(const gguf *g, const char *key, int64_t i, const gguf_value **v) {
    TRY(get(g, key, 1, v));
    if (i < 0 || i >= (*v)->count)
        return err_set(ERR_RANGE,
                       "%s: metadata array '%s' has %" PRId64 " elements and number %" PRId64
                       " was asked for",
                       g->path, key, (*v)->count, i);
    return ERR_OK;
}

static err wrong_type(const gguf *g, const char *key, const gguf_value *v, const char *wanted) {
    return err_set(ERR_FORMAT, "%s: metadata key '%s' holds %s where %s is needed", g->path, key,
                   gguf__value_name(v->type), wanted);
}

static err take_int(const gguf *g, const char *key, const gguf_value *v, int64_t i, int64_t *out) {
    int r = int_at(v, i, out);
    if (r < 0)
        return err_set(ERR_RANGE, "%s: metadata key '%s' does not fit a signed 64-bit integer",
                       g->path, key);
    return r ? ERR_OK : wrong_type(g, key, v, "an integer");
}

int gguf_has(const gguf *g, const char *key) { return gguf__find(g, key, strlen(key)) != NULL; }

err gguf_get_int(const gguf *g, const char *key, int64_t *out) {
    const gguf_value *v;
    TRY(get(g, key, 0, &v));
    return take_int(g, key, v, 0, out);
}

err gguf_get_real(const gguf *g, const char *key, double *out) {
    const gguf_value *v;
    TRY(get(g, key, 0, &v));
    return real_at(v, 0, out) ? ERR_OK : wrong_type(g, key, v, "a number");
}

err gguf_get_bool(const gguf *g, const char *key, int *out) {
    const gguf_value *v;
    TRY(get(g, key, 0, &v));
    if (v->type != GGUF_BOOL) return wrong_type(g, key, v, "a bool");
    *out = *v->data;
    return ERR_OK;
}

err gguf_get_text(const gguf *g, const char *key, const char **s, size_t *n) {
    const gguf_value *v;
    TRY(get(g, key, 0, &v));
    if (v->type != GGUF_STRING) return wrong_type(g, key, v, "text");
    text_at(v, 0, s, n);
    return ERR_OK;
}

err gguf_array_count(const gguf *g, const char *key, int64_t *n) {
    const gguf_value *v;
    TRY(get(g, key, 1, &v));
    *n = v->count;
    return ERR_OK;
}

err gguf_array_text(const gguf *g, const char *key, int64_t i, const char **s, size_t *n) {
    const gguf_value *v;
    TRY(get_element(g, key, i, &v));
    if (v->type != GGUF_STRING) return wrong_type(g, key, v, "text");
    text_at(v, i, s, n);
    return ERR_OK;
}

err gguf_array_int(const gguf *g, const char *key, int64_t i, int64_t *out) {
    const gguf_value *v;
    TRY(get_element(g, key, i, &v));
    return take_int(g, key, v, i, out);
}

err gguf_array_real(const gguf *g, const char *key, int64_t i, double *out) {
    const gguf_value *v;
    TRY(get_element(g, key, i, &v));
    return real_at(v, i, out) ? ERR_OK : wrong_type(g, key, v, "a number");
}

int gguf_key_count(const gguf *g) { return g->n_values; }

err gguf_key_at(const gguf *g, int i, const char **key, size_t *key_len, char *text, size_t n) {
    if (i < 0 || i >= g->n_values)
        return err_set(ERR_RANGE, "%s: there are %d metadata keys and number %d was asked for",
                       g->path, g->n_values, i);
    const gguf_value *v = &g->values[i];
    const char *type = gguf__value_name(v->type), *s = NULL;
    size_t len = 0;
    int64_t whole = 0;
    double real = 0;
    *key = v->key;
    *key_len = v->key_len;
    if (v->is_array) {
        snprintf(text, n, "[%" PRId64 "] %s", v->count, type);
    } else if (v->type == GGUF_STRING) {
        text_at(v, 0, &s, &len);
        snprintf(text, n, "%s %.*s", type, (int)(len < 1000 ? len : 1000), s);
    } else if (v->type == GGUF_BOOL) {
        snprintf(text, n, "%s %s", type, *v->data ? "true" : "false");
    } else if (v->type == GGUF_U64) {
        snprintf(text, n, "%s %" PRIu64, type, little(v->data, 8));
    } else if (int_at(v, 0, &whole) == 1) {
        snprintf(text, n, "%s %" PRId64, type, whole);
    } else if (real_at(v, 0, &real)) {
        snprintf(text, n, "%s %.9g", type, real);
    }
    return ERR_OK;
}
