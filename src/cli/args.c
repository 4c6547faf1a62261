/* Command-line options: see args.h. Linear searches: tables have a dozen entries.
 * Abbreviations of option names are not accepted, so a script never changes meaning when an option
 * is added. */
#include "cli/args.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int spec_count(const arg_spec *spec) {
    int n = 0;
    while (spec[n].name) n++;
    return n;
}

static int spec_find(const arg_spec *spec, const char *name, size_t len) {
    for (int i = 0; spec[i].name; i++)
        if (strlen(spec[i].name) == len && !memcmp(spec[i].name, name, len)) return i;
    return -1;
}

static err unknown_option(const arg_spec *spec, const char *word, size_t len) {
    const char *names[ARGS_MAX_SPECS];
    char given[128];
    int n = spec_count(spec);
    for (int i = 0; i < n; i++) names[i] = spec[i].name;
    snprintf(given, sizeof given, "%.*s", (int)(len < 120 ? len : 120), word);
    const char *near = str_nearest(given, names, n);
    if (near) return err_set(ERR_USAGE, "unknown option %s; did you mean %s?", given, near);
    return err_set(ERR_USAGE, "unknown option %s; --help lists the options", given);
}

static err take_value(args *a, int i, const char *value) {
    if (a->spec[i].kind == ARG_MANY) {
        if (a->n_many == ARGS_MAX_MANY)
            return err_set(ERR_USAGE, "%s is given more than %d times", a->spec[i].name,
                           ARGS_MAX_MANY);
        a->many[a->n_many] = value;
        a->many_spec[a->n_many++] = i;
        return ERR_OK;
    }
    if (a->value[i]) return err_set(ERR_USAGE, "%s is given twice", a->spec[i].name);
    a->value[i] = value;
    return ERR_OK;
}

static err take_option(args *a, int argc, char *const *argv, int *at) {
    const char *word = argv[*at], *eq = strchr(word, '=');
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    if (len == 6 && !memcmp(word, "--help", 6)) {
        a->help = 1;
        return ERR_OK;
    }
    int i = spec_find(a->spec, word, len);
    if (i < 0) return unknown_option(a->spec, word, len);
    if (a->spec[i].kind == ARG_FLAG) {
        if (eq) return err_set(ERR_USAGE, "%s takes no value", a->spec[i].name);
        a->value[i] = "1";
        return ERR_OK;
    }
    if (eq) return take_value(a, i, eq + 1);
    if (*at + 1 >= argc) return err_set(ERR_USAGE, "%s needs a value: %s", word, a->spec[i].meta);
    return take_value(a, i, argv[++*at]);
}

err args_parse(args *a, const arg_spec *spec, int argc, char *const *argv, int min_pos,
               int max_pos) {
    int only_positional = 0;
    memset(a, 0, sizeof *a);
    a->spec = spec;
    for (int i = 0; i < argc; i++) {
        if (!only_positional && !strcmp(argv[i], "--")) {
            only_positional = 1;
        } else if (!only_positional && !strcmp(argv[i], "-h")) {
            a->help = 1;
        } else if (!only_positional && argv[i][0] == '-' && argv[i][1] == '-') {
            TRY(take_option(a, argc, argv, &i));
        } else {
            if (a->n_positional == ARGS_MAX_POSITIONAL)
                return err_set(ERR_USAGE, "more than %d arguments", ARGS_MAX_POSITIONAL);
            a->positional[a->n_positional++] = argv[i];
        }
    }
    if (a->help) return ERR_OK;
    if (a->n_positional < min_pos)
        return err_set(ERR_USAGE, "%d argument%s needed, %d given; see --help", min_pos,
                       min_pos == 1 ? " is" : "s are", a->n_positional);
    if (a->n_positional > max_pos)
        return err_set(ERR_USAGE, "unexpected argument '%s'; see --help", a->positional[max_pos]);
    return ERR_OK;
}

static int index_of(const args *a, const char *name) {
    return spec_find(a->spec, name, strlen(name));
}

int args_has(const args *a, const char *name) {
    const char *one;
    int i = index_of(a, name);
    return i >= 0 && (a->value[i] || args_many(a, name, &one, 1));
}

const char *args_text(const args *a, const char *name, const char *def) {
    int i = index_of(a, name);
    return i >= 0 && a->value[i] ? a->value[i] : def;
}

err args_need(const args *a, const char *name, const char **out) {
    *out = args_text(a, name, NULL);
    if (*out) return ERR_OK;
    return err_set(ERR_USAGE, "%s is needed; see --help", name);
}

int args_parse_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) return 0;
    *out = v;
    return 1;
}

int args_parse_real(const char *text, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return 0;
    *out = v;
    return 1;
}

err args_int(const args *a, const char *name, int64_t def, int64_t min, int64_t max, int64_t *out) {
    const char *text = args_text(a, name, NULL);
    *out = def;
    if (!text) return ERR_OK;
    if (!args_parse_int(text, out))
        return err_set(ERR_USAGE, "%s needs a whole number, not '%s'", name, text);
    if (*out < min || *out > max)
        return err_set(ERR_USAGE, "%s is %s; it must be between %lld and %lld", name, text,
                       (long long)min, (long long)max);
    return ERR_OK;
}

err args_real(const args *a, const char *name, double def, double *out) {
    const char *text = args_text(a, name, NULL);
    *out = def;
    if (!text) return ERR_OK;
    if (!args_parse_real(text, out))
        return err_set(ERR_USAGE, "%s needs a finite number, not '%s'", name, text);
    return ERR_OK;
}

int args_many(const args *a, const char *name, const char **out, int cap) {
    int i = index_of(a, name), n = 0;
    for (int j = 0; j < a->n_many && n < cap; j++)
        if (a->many_spec[j] == i) out[n++] = a->many[j];
    return n;
}

err args_help(const arg_spec *spec, str *out) {
    for (int i = 0; spec[i].name; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", spec[i].name, spec[i].meta ? " " : "",
                 spec[i].meta ? spec[i].meta : "");
        TRY(str_printf(out, "  %-26s %s\n", left, spec[i].help));
    }
    return ERR_OK;
}
