/* Recipes: loading, the field table, typed answers, canonical text.
 *
 * Order of a load: the file's fields, then overrides, then defaults, then a check that nothing required is
 * missing, so a bad value in the file is reported even where an override would hide it. The canonical text
 * names every field in the table's order with quoted text and absolute paths. What fields mean together
 * (a head dimension's divisor, taps inside the target) is not judged here. */
#include "io/recipe.h"
#include "core/file.h"
#include "io/recipe_parts.h"
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REQUIRED NULL
static const recipe_spec specs[RECIPE_FIELD_COUNT] = {
#define X(section, key, kind, def, min, max, help)                                                 \
    [RECIPE_##section##_##                                                                         \
        key] = {#section, #key, #section "." #key, KIND_##kind, def, min, max, help},
#include "io/recipe.def"
#undef X
};
#undef REQUIRED

const recipe_spec *recipe__spec(recipe_field f) { return &specs[f]; }
const char *recipe_field_name(recipe_field f) { return specs[f].name; }
const char *recipe_field_help(recipe_field f) { return specs[f].help; }

err recipe__text(recipe *r, const char **out, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *copy = NULL;
    err e = n < 0 ? err_set(ERR_INTERNAL, "a text could not be formatted")
                  : arena_alloc(r->mem, (size_t)n + 1, 1, &copy);
    if (!e) vsnprintf(copy, (size_t)n + 1, fmt, again);
    va_end(again);
    *out = copy;
    return e;
}

/* ---- finding a field --------------------------------------------------------------------------- */

static err unknown_section(const char *where, const char *section) {
    const char *names[RECIPE_FIELD_COUNT + 1] = {"drafters"};
    int n = 1;
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++)
        if (f == 0 || strcmp(specs[f].section, specs[f - 1].section) != 0)
            names[n++] = specs[f].section;
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++) {
        if (strcmp(section, specs[f].name) == 0)
            return err_set(ERR_RECIPE, "%s: '%s' is written as '%s: {%s: ...}' in a recipe", where,
                           section, specs[f].section, specs[f].key);
        if (strcmp(section, specs[f].key) == 0)
            return err_set(ERR_RECIPE, "%s: unknown section '%s'; did you mean the key %s?", where,
                           section, specs[f].name);
    }
    const char *near = str_nearest(section, names, n);
    return err_set(ERR_RECIPE, "%s: unknown section '%.80s'%s%s%s", where, section,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static err unknown_key(const char *where, const char *section, const char *key) {
    const char *names[RECIPE_FIELD_COUNT], *near = NULL;
    int n = 0;
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++)
        if (strcmp(specs[f].section, section) == 0) names[n++] = specs[f].key;
    near = str_nearest(key, names, n);
    if (near)
        return err_set(ERR_RECIPE, "%s: unknown key '%s.%.80s'; did you mean %s.%s?", where,
                       section, key, section, near);
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++)
        if (strcmp(specs[f].key, key) == 0)
            return err_set(ERR_RECIPE, "%s: unknown key '%s.%s'; did you mean %s?", where, section,
                           key, specs[f].name);
    return err_set(ERR_RECIPE, "%s: unknown key '%s.%.80s'", where, section, key);
}

err recipe__find(const char *where, const char *section, const char *key, recipe_field *f) {
    int known = 0;
    for (int i = 0; i < RECIPE_FIELD_COUNT; i++) {
        if (strcmp(specs[i].section, section) != 0) continue;
        known = 1;
        if (key && strcmp(specs[i].key, key) != 0) continue;
        *f = (recipe_field)i;
        return ERR_OK;
    }
    return known ? unknown_key(where, section, key) : unknown_section(where, section);
}

/* ---- loading ----------------------------------------------------------------------------------- */

static err apply_default(recipe *r, recipe_field f) {
    static const char where[] = "the default";
    const recipe_spec *s = &specs[f];
    int text = s->kind == KIND_TEXT || s->kind == KIND_PATH || s->kind == KIND_PATHS;
    recipe_scalar item = {s->def, !text, where};
    recipe_node node = {where, 0, 1, &item};
    return recipe__assign(r, f, FROM_DEFAULT, &node, "/");
}

static err check_missing(const recipe *r) {
    char list[512] = "";
    int n = 0;
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++) {
        if (r->values[f].origin != FROM_NOWHERE) continue;
        size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", n++ ? ", " : "", specs[f].name);
    }
    if (!n) return ERR_OK;
    return err_set(ERR_RECIPE, "%s: %s %s missing and without a default", r->path, list,
                   n > 1 ? "are" : "is");
}

/* The folder of path, or the working folder for path NULL, absolute and free of links. */
static err folder_of(const char *path, char out[PATH_MAX]) {
    char dir[PATH_MAX] = ".";
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (slash) {
        size_t n = slash == path ? 1 : (size_t)(slash - path);
        if (n >= sizeof dir) return err_set(ERR_RANGE, "%s: this path is too long", path);
        memcpy(dir, path, n);
        dir[n] = 0;
    }
    if (!realpath(dir, out)) return err_errno("%s: the folder of a recipe cannot be resolved", dir);
    return ERR_OK;
}

static err fill(recipe *r, const char *text, size_t size, const char *const *overrides, int n) {
    char here[PATH_MAX], beside[PATH_MAX];
    TRY(folder_of(r->path, beside));
    TRY(recipe__read_file(r, beside, text, size));
    if (n > 0) TRY(folder_of(NULL, here));
    for (int i = 0; i < n; i++) TRY(recipe__read_override(r, here, overrides[i]));
    for (int f = 0; f < RECIPE_FIELD_COUNT; f++)
        if (r->values[f].origin == FROM_NOWHERE && specs[f].def)
            TRY(apply_default(r, (recipe_field)f));
    TRY(check_missing(r));
    recipe__drafters_fill(r);
    return ERR_OK;
}

static err create(recipe **out, const char *name) {
    recipe *r = NULL;
    char *path = NULL;
    TRY(mem_new(1, sizeof *r, &r));
    err e = ERR_OK;
    r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!r->locale) e = err_errno("the C locale cannot be made");
    if (!e) e = arena_create(&r->mem, "recipe", 0);
    if (!e) e = arena_strdup(r->mem, name, &path);
    r->path = path;
    if (e) {
        recipe_free(r);
        return e;
    }
    *out = r;
    return ERR_OK;
}

err recipe_load_memory(recipe **out, const char *name, const char *text, size_t size,
                       const char *const *overrides, int n) {
    *out = NULL;
    recipe *r = NULL;
    TRY(create(&r, name));
    locale_t before = uselocale(r->locale);
    err e = fill(r, text, size, overrides, n);
    uselocale(before);
    if (e) {
        recipe_free(r);
        return e;
    }
    *out = r;
    return ERR_OK;
}

err recipe_load(recipe **out, const char *path, const char *const *overrides, int n) {
    char *text = NULL;
    size_t size = 0;
    *out = NULL;
    TRY(file_read(path, &text, &size));
    err e = recipe_load_memory(out, path, text, size, overrides, n);
    mem_free(text);
    return e;
}

void recipe_free(recipe *r) {
    if (!r) return;
    assert(!r->name); /* a named drafter goes with its whole recipe */
    if (r->locale) freelocale(r->locale);
    arena_destroy(r->mem);
    mem_free(r);
}

/* ---- answers ----------------------------------------------------------------------------------- */

const char *recipe_path(const recipe *r) { return r->path; }
const char *recipe_where(const recipe *r, recipe_field f) { return r->values[f].where; }
int recipe_is_auto(const recipe *r, recipe_field f) { return r->values[f].is_auto; }

int64_t recipe_int(const recipe *r, recipe_field f) {
    assert(specs[f].kind == KIND_INT || specs[f].kind == KIND_INT_OR_AUTO ||
           specs[f].kind == KIND_INT_OR_NULL);
    assert(!r->values[f].is_auto);
    return r->values[f].whole;
}

double recipe_real(const recipe *r, recipe_field f) {
    assert(specs[f].kind == KIND_REAL);
    return r->values[f].real;
}

int recipe_bool(const recipe *r, recipe_field f) {
    assert(specs[f].kind == KIND_BOOL);
    return r->values[f].truth;
}

const char *recipe_text(const recipe *r, recipe_field f) {
    assert(specs[f].kind == KIND_TEXT || specs[f].kind == KIND_PATH ||
           specs[f].kind == KIND_CHOICE || specs[f].kind == KIND_TEXT_OR_AUTO ||
           specs[f].kind == KIND_PATH_OR_AUTO);
    return r->values[f].text;
}

int recipe_list(const recipe *r, recipe_field f, const char *const **items) {
    assert(specs[f].kind == KIND_PATHS || specs[f].kind == KIND_DEVICES);
    *items = r->values[f].texts;
    return r->values[f].n;
}

int recipe_ints(const recipe *r, recipe_field f, const int64_t **items) {
    assert(specs[f].kind == KIND_INTS_OR_AUTO);
    *items = r->values[f].ints;
    return r->values[f].n;
}

/* ---- canonical text ---------------------------------------------------------------------------- */

/* One UTF-8 character at s: its length in bytes, 0 when malformed; *code is its number. */
static int utf8_char(const unsigned char *s, uint32_t *code) {
    int n = s[0] < 0x80                   ? 1
            : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
            : (s[0] & 0xf0) == 0xe0       ? 3
            : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                          : 0;
    *code = n == 1 ? s[0] : n ? s[0] & (0x7fu >> n) : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    return n;
}

/* Double-quoted YAML; characters that YAML readers refuse, drop or fold are escaped. */
static err add_quoted(str *out, const char *text) {
    TRY(str_add(out, "\"", 1));
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        uint32_t c;
        int n = utf8_char(s, &c);
        if (!n)
            return err_set(
                ERR_RECIPE,
                "the path '%s' is not UTF-8, so a recipe cannot hold it; rename the folder", text);
        if (c == '"' || c == '\\')
            TRY(str_printf(out, "\\%c", (int)c));
        else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0x2028 || c == 0x2029 ||
                 c == 0xfeff || (c >= 0xd800 && c < 0xe000) || c == 0xfffe || c == 0xffff)
            TRY(str_printf(out, "\\u%04X", (unsigned)c));
        else
            TRY(str_add(out, s, (size_t)n));
        s += n;
    }
    return str_add(out, "\"", 1);
}

static err add_list(str *out, const recipe_value *v) {
    TRY(str_add(out, "[", 1));
    for (int i = 0; i < v->n; i++) {
        if (i) TRY(str_add(out, ", ", 2));
        if (v->texts) TRY(add_quoted(out, v->texts[i]));
        if (v->ints) TRY(str_printf(out, "%" PRId64, v->ints[i]));
    }
    return str_add(out, "]", 1);
}

err recipe__add_value(str *out, const recipe *r, recipe_field f) {
    const recipe_spec *s = &specs[f];
    const recipe_value *v = &r->values[f];
    char buf[40];
    if (v->is_auto) return str_printf(out, "%s", s->kind == KIND_INT_OR_NULL ? "null" : "auto");
    switch (s->kind) {
    case KIND_INT:
    case KIND_INT_OR_AUTO:
    case KIND_INT_OR_NULL: return str_printf(out, "%" PRId64, v->whole);
    case KIND_REAL: return str_printf(out, "%s", recipe__real_text(v->real, buf));
    case KIND_BOOL: return str_printf(out, "%s", v->truth ? "true" : "false");
    case KIND_CHOICE: return str_printf(out, "%s", v->text);
    case KIND_TEXT:
    case KIND_PATH:
    case KIND_TEXT_OR_AUTO:
    case KIND_PATH_OR_AUTO: return add_quoted(out, v->text);
    case KIND_PATHS:
    case KIND_DEVICES:
    case KIND_INTS_OR_AUTO: return add_list(out, v);
    }
    return err_set(ERR_INTERNAL, "field %s has no text", s->name);
}

err recipe__add_field(str *out, const recipe *r, recipe_field f, int depth) {
    TRY(str_printf(out, "%*s%s: ", 2 * depth, "", specs[f].key));
    TRY(recipe__add_value(out, r, f));
    return str_add(out, "\n", 1);
}

err recipe_canonical(const recipe *r, str *out) {
    locale_t before = uselocale(r->locale);
    err e = ERR_OK;
    for (int f = 0; f < RECIPE_FIELD_COUNT && !e; f++) {
        const recipe_spec *s = &specs[f];
        if (f == 0 || strcmp(s->section, specs[f - 1].section) != 0)
            e = str_printf(out, "%s:\n", s->section);
        if (!e) e = recipe__add_field(out, r, (recipe_field)f, 1);
    }
    if (!e) e = recipe__add_drafters(out, r);
    uselocale(before);
    return e;
}
