/* Recipe values: a YAML node against one row of the field table.
 *
 * YAML's own guesses about types are not used: the field's kind decides how the text is read, numbers are
 * decimal as in JSON, truth is true or false. Whatever a person could have meant otherwise (3x, 010, 0x10,
 * 1_000, yes, "3") is refused with what was expected, what stood there and how to write it.
 * It checks one value at a time; what several fields mean together is checked by those who use them. */
#include "io/recipe_parts.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One value being read: for the sentences, and where its memory comes from. */
typedef struct reading {
    recipe *r;
    const recipe_spec *spec;
    const char *name; /* of the field, in sentences */
    const char *base;
} reading;

static const char *got(const recipe_scalar *s, char *buf, size_t n) {
    if (s->plain && !*s->text) return "nothing";
    snprintf(buf, n, "%s'%.80s'", s->plain ? "" : "the quoted text ", s->text);
    return buf;
}

static err refuse(const reading *x, const recipe_scalar *s, const char *wanted, const char *hint) {
    char buf[128];
    return err_set(ERR_RECIPE, "%s: %s must be %s, got %s%s%s", s->where, x->name, wanted,
                   got(s, buf, sizeof buf), hint ? "; " : "", hint ? hint : "");
}

static err refuse_list(const reading *x, const recipe_node *node, const char *wanted) {
    return err_set(ERR_RECIPE, "%s: %s must be %s, got a list", node->where, x->name, wanted);
}

/* ---- numbers ----------------------------------------------------------------------------------- */

static size_t digits(const char *s) { return strspn(s, "0123456789"); }

/* -?(0|[1-9][0-9]*), returns its length or 0. */
static size_t whole_part(const char *s) {
    size_t sign = *s == '-', n = digits(s + sign);
    return n == 0 || (n > 1 && s[sign] == '0') ? 0 : sign + n;
}

static int is_whole(const char *s) {
    size_t n = whole_part(s);
    return n && !s[n];
}

/* JSON's number: whole part, fraction, exponent. */
static int is_number(const char *s) {
    size_t n = whole_part(s);
    if (!n) return 0;
    s += n;
    if (*s == '.') {
        n = digits(s + 1);
        if (!n) return 0;
        s += n + 1;
    }
    if (*s == 'e' || *s == 'E') {
        s += 1 + (s[1] == '+' || s[1] == '-');
        n = digits(s);
        if (!n) return 0;
        s += n;
    }
    return !*s;
}

/* How to write what was probably meant; NULL when nothing fits. */
static const char *number_hint(const recipe_scalar *s, int whole) {
    const char *t = s->text + (*s->text == '-' || *s->text == '+');
    if (!s->plain && is_number(s->text)) return "remove the quotes";
    if (!s->plain) return NULL;
    if (*s->text == '+') return "write it without '+'";
    if (digits(t) && strchr(t, '_')) return "write it without underscores";
    if (t[0] == '0' && t[1] && strchr("xXoObB", t[1])) return "write it in decimal digits";
    if (digits(t) > 1 && t[0] == '0')
        return "write it without leading zeros, which some readers take for octal";
    if (whole && is_number(s->text)) return "write it in digits alone";
    if (!strcasecmp(t, ".inf") || !strcasecmp(t, "inf") || !strcasecmp(t, "infinity") ||
        !strcasecmp(t, ".nan") || !strcasecmp(t, "nan"))
        return "only finite numbers are possible";
    if (t[0] == '.' && digits(t + 1)) return "write a digit before the point";
    return NULL;
}

const char *recipe__real_text(double v, char buf[40]) {
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(buf, 40, "%.*g", precision, v);
        int exponent = strstr(buf, "e+") && fabs(v) < 1e15; /* 10 rather than 1e+01 */
        if (strtod(buf, NULL) == v && !exponent) break;
    }
    return buf;
}

static err out_of_range(const reading *x, const recipe_scalar *s) {
    char low[40], high[40];
    int whole = x->spec->kind != KIND_REAL;
    if (whole) {
        snprintf(low, sizeof low, "%.0f", x->spec->min);
        snprintf(high, sizeof high, "%.0f", x->spec->max);
    } else {
        recipe__real_text(x->spec->min, low);
        recipe__real_text(x->spec->max, high);
    }
    return err_set(ERR_RECIPE, "%s: %s must be between %s and %s, got %.80s", s->where, x->name,
                   low, high, s->text);
}

static err take_whole(const reading *x, const recipe_scalar *s, const char *wanted, int64_t *out) {
    if (!s->plain || !is_whole(s->text)) return refuse(x, s, wanted, number_hint(s, 1));
    errno = 0;
    long long v = strtoll(s->text, NULL, 10);
    if (errno || (double)v < x->spec->min || (double)v > x->spec->max) return out_of_range(x, s);
    *out = v;
    return ERR_OK;
}

static err take_real(const reading *x, const recipe_scalar *s, double *out) {
    if (!s->plain || !is_number(s->text)) return refuse(x, s, "a number", number_hint(s, 0));
    double v = strtod(s->text, NULL);
    if (!isfinite(v) || v < x->spec->min || v > x->spec->max) return out_of_range(x, s);
    *out = v + 0.0; /* -0 becomes 0, so that equal recipes print equal */
    return ERR_OK;
}

/* ---- truth, text, choices ---------------------------------------------------------------------- */

static err take_bool(const reading *x, const recipe_scalar *s, int *out) {
    static const char *const others[] = {"yes", "no", "on", "off", "y", "n", "true", "false"};
    *out = strcmp(s->text, "true") == 0;
    if (s->plain && (*out || strcmp(s->text, "false") == 0)) return ERR_OK;
    const char *hint = NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcasecmp(s->text, others[i]) == 0)
            hint = s->plain ? "write true or false, in small letters"
                            : "write true or false, without quotes";
    return refuse(x, s, "true or false", hint);
}

static int is_null(const recipe_scalar *s) {
    return s->plain && (!*s->text || strcmp(s->text, "~") == 0 || strcasecmp(s->text, "null") == 0);
}

static err take_text(const reading *x, const recipe_scalar *s, const char *wanted,
                     const char **out) {
    int may_be_empty = x->spec->def && !*x->spec->def;
    if (is_null(s)) return refuse(x, s, wanted, may_be_empty ? "write \"\" for none" : NULL);
    if (!*s->text && !may_be_empty) return refuse(x, s, wanted, "it cannot be empty");
    *out = s->text;
    return ERR_OK;
}

static err take_choice(const reading *x, const recipe_scalar *s, const char **out) {
    char list[256], wanted[320];
    const char *words[16];
    int n = 0;
    size_t length = strcspn(x->spec->help, ":");
    snprintf(list, sizeof list, "%.*s", (int)length, x->spec->help);
    size_t at = 0;
    snprintf(wanted, sizeof wanted, "one of");
    for (char *save = NULL, *w = strtok_r(list, "|", &save); w && n < 16;
         w = strtok_r(NULL, "|", &save)) {
        words[n++] = w;
        at = strlen(wanted);
        snprintf(wanted + at, sizeof wanted - at, "%s%s", n > 1 ? ", " : " ", w);
        if (strcmp(w, s->text) == 0) {
            *out = s->text;
            return ERR_OK;
        }
    }
    if (n == 1) snprintf(wanted, sizeof wanted, "%s", words[0]);
    const char *near = str_nearest(s->text, words, n);
    char hint[96];
    snprintf(hint, sizeof hint, "did you mean %s?", near ? near : "");
    return refuse(x, s, wanted, near && n > 1 ? hint : NULL);
}

/* ---- paths and devices ------------------------------------------------------------------------- */

/* base has no links and no "..", so leading "./" and "../" of the text may be resolved by name. */
static err resolve(const reading *x, const recipe_scalar *s, const char **out) {
    const char *text = s->text;
    size_t n = strlen(x->base);
    if (!*text || *text == '/') {
        *out = text;
        return ERR_OK;
    }
    if (text[0] == '~' && (!text[1] || text[1] == '/'))
        return refuse(x, s, "a path", "'~' is not expanded here; write the whole path");
    while (n && x->base[n - 1] == '/') n--;
    for (;;) {
        if (strncmp(text, "./", 2) == 0) {
            text += 2;
        } else if (strncmp(text, "../", 3) == 0) {
            text += 3;
            while (n && x->base[n - 1] != '/') n--;
            while (n && x->base[n - 1] == '/') n--;
        } else if (*text == '/') {
            text++;
        } else {
            break;
        }
    }
    return recipe__text(x->r, out, "%.*s/%s", (int)n, x->base, text);
}

static err take_path(const reading *x, const recipe_scalar *s, const char *wanted,
                     const char **out) {
    TRY(take_text(x, s, wanted, out));
    return resolve(x, s, out);
}

static err take_paths(const reading *x, const recipe_node *node, recipe_value *v) {
    if (node->n == 0)
        return err_set(ERR_RECIPE, "%s: %s must be a path or a list of paths, got an empty list",
                       node->where, x->name);
    TRY(arena_alloc(x->r->mem, (size_t)node->n, sizeof *v->texts, &v->texts));
    for (int i = 0; i < node->n; i++) {
        TRY(take_path(x, &node->items[i], "a path", &v->texts[i]));
        for (int k = 0; k < i; k++)
            if (strcmp(v->texts[k], v->texts[i]) == 0)
                return err_set(ERR_RECIPE, "%s: %s names %s twice", node->items[i].where, x->name,
                               v->texts[i]);
    }
    v->n = node->n;
    return ERR_OK;
}

static int is_device(const char *s) {
    if (strncmp(s, "cpu", 3) == 0)
        s += 3;
    else if (strncmp(s, "cuda", 4) == 0)
        s += 4;
    else
        return 0;
    return !*s || (*s == ':' && s[1] != '-' && is_whole(s + 1) && strlen(s) <= 5);
}

/* cpu is cpu:0 in other words. */
static int same_device(const char *a, const char *b) {
    const size_t na = strcspn(a, ":"), nb = strcspn(b, ":");
    return na == nb && strncmp(a, b, na) == 0 &&
           strcmp(a[na] ? a + na : ":0", b[nb] ? b + nb : ":0") == 0;
}

static err take_devices(const reading *x, const recipe_node *node, recipe_value *v) {
    static const char wanted[] = "auto, a device such as cpu:0 or cuda:1, or a list of devices";
    if (!node->is_list && strcmp(node->items[0].text, "auto") == 0) {
        v->is_auto = 1;
        return ERR_OK;
    }
    if (node->n == 0)
        return err_set(ERR_RECIPE, "%s: %s must be %s, got an empty list", node->where, x->name,
                       wanted);
    TRY(arena_alloc(x->r->mem, (size_t)node->n, sizeof *v->texts, &v->texts));
    for (int i = 0; i < node->n; i++) {
        const recipe_scalar *s = &node->items[i];
        if (!is_device(s->text)) return refuse(x, s, wanted, NULL);
        for (int k = 0; k < i; k++)
            if (same_device(v->texts[k], s->text))
                return err_set(ERR_RECIPE, "%s: %s names the device %s twice", s->where, x->name,
                               s->text);
        v->texts[i] = s->text;
    }
    v->n = node->n;
    return ERR_OK;
}

static err take_ints(const reading *x, const recipe_node *node, recipe_value *v) {
    static const char wanted[] = "auto or a list of integers such as [1, 9, 17]";
    if (!node->is_list) {
        v->is_auto = strcmp(node->items[0].text, "auto") == 0;
        return v->is_auto ? ERR_OK : refuse(x, &node->items[0], wanted, NULL);
    }
    if (node->n == 0)
        return err_set(ERR_RECIPE, "%s: %s must be %s, got an empty list", node->where, x->name,
                       wanted);
    TRY(arena_alloc(x->r->mem, (size_t)node->n, sizeof *v->ints, &v->ints));
    for (int i = 0; i < node->n; i++)
        TRY(take_whole(x, &node->items[i], "a list of integers", &v->ints[i]));
    v->n = node->n;
    return ERR_OK;
}

/* ---- one node ---------------------------------------------------------------------------------- */

static err take_scalar(const reading *x, const recipe_scalar *s, recipe_value *v) {
    switch (x->spec->kind) {
    case KIND_INT: return take_whole(x, s, "an integer", &v->whole);
    case KIND_REAL: return take_real(x, s, &v->real);
    case KIND_BOOL: return take_bool(x, s, &v->truth);
    case KIND_TEXT: return take_text(x, s, "text", &v->text);
    case KIND_PATH: return take_path(x, s, "a path", &v->text);
    case KIND_CHOICE: return take_choice(x, s, &v->text);
    case KIND_TEXT_OR_AUTO:
        TRY(take_text(x, s, "auto or a name", &v->text));
        v->is_auto = strcmp(v->text, "auto") == 0;
        return ERR_OK;
    case KIND_PATH_OR_AUTO:
        v->text = s->text;
        v->is_auto = strcmp(s->text, "auto") == 0;
        return v->is_auto ? ERR_OK : take_path(x, s, "auto or a path", &v->text);
    case KIND_INT_OR_AUTO:
        v->is_auto = strcmp(s->text, "auto") == 0;
        return v->is_auto ? ERR_OK : take_whole(x, s, "an integer or auto", &v->whole);
    case KIND_INT_OR_NULL:
        v->is_auto = s->plain && strcmp(s->text, "null") == 0;
        if (!v->is_auto && is_null(s))
            return refuse(x, s, "an integer or null", "write null for none");
        return v->is_auto ? ERR_OK : take_whole(x, s, "an integer or null", &v->whole);
    case KIND_PATHS:
    case KIND_DEVICES:
    case KIND_INTS_OR_AUTO: break;
    }
    return err_set(ERR_INTERNAL, "field %s has no reader", x->name);
}

static const char *single_value(recipe_kind kind) {
    switch (kind) {
    case KIND_INT:
    case KIND_INT_OR_AUTO:
    case KIND_INT_OR_NULL: return "a single integer";
    case KIND_REAL: return "a single number";
    case KIND_BOOL: return "true or false";
    case KIND_PATH:
    case KIND_PATH_OR_AUTO: return "a single path";
    default: return "a single text";
    }
}

err recipe__assign(recipe *r, recipe_field f, recipe_origin origin, const recipe_node *node,
                   const char *base) {
    reading x = {r, recipe__spec(f), NULL, base};
    recipe_value v = {.origin = origin, .where = node->where};
    err e;
    TRY(recipe__field_name(r, f, &x.name));
    switch (x.spec->kind) {
    case KIND_PATHS: e = take_paths(&x, node, &v); break;
    case KIND_DEVICES: e = take_devices(&x, node, &v); break;
    case KIND_INTS_OR_AUTO: e = take_ints(&x, node, &v); break;
    default:
        e = node->is_list ? refuse_list(&x, node, single_value(x.spec->kind))
                          : take_scalar(&x, &node->items[0], &v);
    }
    if (e) return e;
    r->values[f] = v;
    return ERR_OK;
}
