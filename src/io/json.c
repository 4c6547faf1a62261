/* JSON: parsing and typed getters on top of jansson.
 *
 * Every failure becomes one sentence that names the source, the place or the key, what was expected and
 * what stood there. Duplicate keys, invalid UTF-8, NUL characters and numbers beyond 64 bits are refused:
 * each would change a value in silence. It does not interpret documents; callers ask key by key. */
#include "io/json.h"
#include "core/arena.h"
#include "core/file.h"
#include <inttypes.h>
#include <string.h>

/* jansson's own words, except where they speak of its C interface. */
static const char *problem_text(const json_error_t *e) {
    switch (json_error_code(e)) {
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a NUL character cannot be kept in text";
    case json_error_duplicate_key: return "the same key appears twice";
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "text follows the end of the value";
    case json_error_stack_overflow: return "nested too deeply";
    default: return e->text;
    }
}

err json_parse(json_t **out, const char *what, const char *text, size_t n) {
    *out = NULL;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return err_set(ERR_FORMAT,
                       "%s: begins with a byte order mark; save it as UTF-8 without one", what);
    json_error_t e;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!j) {
        enum json_error_code code = json_error_code(&e);
        if (!*e.text ||
            code == json_error_out_of_memory) /* jansson's sign of a failed allocation */
            return err_set(ERR_MEMORY, "%s: no memory to read this JSON", what);
        const char *near = code == json_error_duplicate_key ? strstr(e.text, " near ") : NULL;
        return err_set(ERR_FORMAT, "%s: line %d, column %d: %s%s", what, e.line, e.column,
                       problem_text(&e), near ? near : "");
    }
    *out = j;
    return ERR_OK;
}

err json_read_file(json_t **out, const char *path) {
    *out = NULL;
    char *text = NULL;
    size_t n = 0;
    TRY(file_read(path, &text, &n));
    err e = json_parse(out, path, text, n);
    mem_free(text);
    return e;
}

typedef struct dump_sink {
    file_writer *w;
    err e;
} dump_sink;

static int dump_chunk(const char *bytes, size_t n, void *ctx) {
    dump_sink *sink = ctx;
    sink->e = file_write(sink->w, bytes, n);
    return sink->e ? -1 : 0;
}

err json_write_file(const json_t *j, const char *path) {
    dump_sink sink = {0};
    TRY(file_writer_open(&sink.w, path));
    if (json_dump_callback(j, dump_chunk, &sink, JSON_INDENT(2)) != 0 && !sink.e)
        sink.e = err_set(ERR_MEMORY, "%s: no memory to write this JSON", path);
    if (!sink.e) sink.e = file_write(sink.w, "\n", 1);
    if (sink.e) {
        file_abort(&sink.w);
        return sink.e;
    }
    return file_commit(&sink.w);
}

/* "the text 'abc'", "the number 3.5", "a list" into buf. */
static const char *describe(const json_t *v, char *buf, size_t n) {
    switch (json_typeof(v)) {
    case JSON_STRING: snprintf(buf, n, "the text '%.40s'", json_string_value(v)); break;
    case JSON_INTEGER:
        snprintf(buf, n, "the integer %" PRId64, (int64_t)json_integer_value(v));
        break;
    case JSON_REAL: snprintf(buf, n, "the real number %.17g", json_real_value(v)); break;
    case JSON_TRUE: snprintf(buf, n, "true"); break;
    case JSON_FALSE: snprintf(buf, n, "false"); break;
    case JSON_NULL: snprintf(buf, n, "null"); break;
    case JSON_ARRAY: snprintf(buf, n, "a list"); break;
    case JSON_OBJECT: snprintf(buf, n, "an object"); break;
    }
    return buf;
}

static err wrong_type(const json_t *v, const char *where, const char *key, const char *wanted) {
    char buf[96];
    return err_set(ERR_FORMAT, "%s: '%s' must be %s, not %s", where, key, wanted,
                   describe(v, buf, sizeof buf));
}

/* The value of key; NULL in *v only when optional and absent or null. */
static err look_up(const json_t *obj, const char *where, const char *key, int optional,
                   const json_t **v) {
    *v = NULL;
    if (!json_is_object(obj))
        return err_set(ERR_FORMAT, "%s: an object with the key '%s' was expected", where, key);
    *v = json_object_get(obj, key);
    if (optional && (!*v || json_is_null(*v))) {
        *v = NULL;
        return ERR_OK;
    }
    if (!*v) return err_set(ERR_FORMAT, "%s: '%s' is missing", where, key);
    return ERR_OK;
}

static err take_int(const json_t *v, const char *where, const char *key, int64_t *out) {
    if (!json_is_integer(v)) return wrong_type(v, where, key, "an integer");
    *out = json_integer_value(v);
    return ERR_OK;
}

static err take_real(const json_t *v, const char *where, const char *key, double *out) {
    if (!json_is_number(v)) return wrong_type(v, where, key, "a number");
    *out = json_number_value(v);
    return ERR_OK;
}

static err take_bool(const json_t *v, const char *where, const char *key, int *out) {
    if (!json_is_boolean(v)) return wrong_type(v, where, key, "true or false");
    *out = json_is_true(v);
    return ERR_OK;
}

static err take_text(const json_t *v, const char *where, const char *key, const char **out) {
    if (!json_is_string(v)) return wrong_type(v, where, key, "text");
    *out = json_string_value(v);
    return ERR_OK;
}

err json_get_int(const json_t *obj, const char *where, const char *key, int64_t *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 0, &v));
    return take_int(v, where, key, out);
}

err json_get_real(const json_t *obj, const char *where, const char *key, double *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 0, &v));
    return take_real(v, where, key, out);
}

err json_get_bool(const json_t *obj, const char *where, const char *key, int *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 0, &v));
    return take_bool(v, where, key, out);
}

err json_get_text(const json_t *obj, const char *where, const char *key, const char **out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 0, &v));
    return take_text(v, where, key, out);
}

err json_copy_text(const json_t *obj, const char *where, const char *key, char *out, size_t n) {
    const char *text = NULL;
    TRY(json_get_text(obj, where, key, &text));
    if (strlen(text) >= n)
        return err_set(ERR_FORMAT, "%s: \"%s\" is too long: %zu bytes, and %zu are the most", where,
                       key, strlen(text), n - 1);
    memcpy(out, text, strlen(text) + 1);
    return ERR_OK;
}

err json_get_int_or(const json_t *obj, const char *where, const char *key, int64_t def,
                    int64_t *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 1, &v));
    *out = def;
    return v ? take_int(v, where, key, out) : ERR_OK;
}

err json_get_real_or(const json_t *obj, const char *where, const char *key, double def,
                     double *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 1, &v));
    *out = def;
    return v ? take_real(v, where, key, out) : ERR_OK;
}

err json_get_bool_or(const json_t *obj, const char *where, const char *key, int def, int *out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 1, &v));
    *out = def;
    return v ? take_bool(v, where, key, out) : ERR_OK;
}

err json_get_text_or(const json_t *obj, const char *where, const char *key, const char *def,
                     const char **out) {
    const json_t *v;
    TRY(look_up(obj, where, key, 1, &v));
    *out = def;
    return v ? take_text(v, where, key, out) : ERR_OK;
}

err json_get_ints(const json_t *obj, const char *where, const char *key, int64_t *out, int cap,
                  int *n) {
    const json_t *v;
    *n = 0;
    TRY(look_up(obj, where, key, 0, &v));
    if (!json_is_array(v)) return wrong_type(v, where, key, "a list of integers");
    size_t count = json_array_size(v);
    if (count > (size_t)(cap < 0 ? 0 : cap))
        return err_set(ERR_FORMAT, "%s: '%s' has %zu elements and at most %d are possible", where,
                       key, count, cap);
    for (size_t i = 0; i < count; i++) {
        const json_t *x = json_array_get(v, i);
        char buf[96];
        if (!json_is_integer(x))
            return err_set(ERR_FORMAT, "%s: '%s'[%zu] must be an integer, not %s", where, key, i,
                           describe(x, buf, sizeof buf));
        out[i] = json_integer_value(x);
    }
    *n = (int)count;
    return ERR_OK;
}
