/* Captured values of a mask or score: see captures.h. A name is captured when it stands as an identifier in the
 * text; --let wins over nothing: the same name in both places is refused, since either could be
 * meant. */
#include "cli/captures.h"
#include "cli/args.h"
#include "core/arena.h"
#include <ctype.h>
#include <string.h>

static int is_word(int c) { return isalnum(c) || c == '_'; }

static int mentions(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *p = text; (p = strstr(p, name)); p++)
        if ((p == text || !is_word((unsigned char)p[-1])) && !is_word((unsigned char)p[n]))
            return 1;
    return 0;
}

static int is_whole_number(const char *text) {
    text += *text == '-' || *text == '+';
    return *text && text[strspn(text, "0123456789")] == 0;
}

static int find(const captures *c, const char *name, size_t len) {
    for (int i = 0; i < c->n; i++)
        if (strlen(c->decl[i].name) == len && !memcmp(c->decl[i].name, name, len)) return i;
    return -1;
}

static err room(const captures *c) {
    if (c->n < EXPR_MAX_CAPTURES) return ERR_OK;
    return err_set(ERR_RANGE, "one expression names more than %d captured values",
                   EXPR_MAX_CAPTURES);
}

static int is_reserved(const char *name) {
    return !strcmp(name, "q") || !strcmp(name, "k") || !strcmp(name, "v") || !strcmp(name, "do") ||
           !strcmp(name, "dlse");
}

static err add_array(captures *c, const tensor *t) {
    expr_value *v = &c->value[c->n];
    TRY(room(c));
    if (t->ndim < 1 || t->ndim > EXPR_MAX_NDIM)
        return err_set(ERR_SHAPE, "captured array '%s' has %d dimensions; 1 to %d are possible",
                       t->name, t->ndim, EXPR_MAX_NDIM);
    c->decl[c->n].name = t->name;
    c->decl[c->n].ndim = t->ndim;
    c->decl[c->n].type =
        t->type == DT_F32 || t->type == DT_F64 || t->type == DT_F16 || t->type == DT_BF16
            ? EXPR_FLOAT
        : t->type == DT_BOOL ? EXPR_BOOL
                             : EXPR_INT;
    v->type = t->type;
    for (int i = 0; i < t->ndim; i++) v->dim[i] = t->dim[i];
    v->data = t->data;
    if ((uintptr_t)t->data % dtype_size(t->type)) {
        TRY(mem_new(tensor_bytes(t) + 1, 1, &c->copy[c->n]));
        memcpy(c->copy[c->n], t->data, tensor_bytes(t));
        v->data = c->copy[c->n];
    }
    c->n++;
    return ERR_OK;
}

/* ERR_USAGE when no text uses the name; *skip when only the other one does. */
static err check_use(expr_role role, const char *text, const char *other, const char *name,
                     const char *let, int *skip) {
    *skip = !mentions(text, name);
    if (!*skip || (other && mentions(other, name))) return ERR_OK;
    if (other)
        return err_set(ERR_USAGE, "--let %s: neither the mask nor the score uses `%s`", let, name);
    return err_set(ERR_USAGE, "--let %s: the %s does not use `%s`", let,
                   role == EXPR_MASK ? "mask" : "score", name);
}

static err add_scalar(captures *c, expr_role role, const char *text, const char *other,
                      const char *let) {
    int skip;
    const char *eq = strchr(let, '=');
    double real;
    int64_t whole;
    char *name;
    if (!eq || eq == let) return err_set(ERR_USAGE, "--let needs name=value, not '%s'", let);
    if (find(c, let, (size_t)(eq - let)) >= 0)
        return err_set(ERR_USAGE, "'%.*s' is given twice (by --let, or by --let and as an array)",
                       (int)(eq - let), let);
    TRY(room(c));
    TRY(mem_new((size_t)(eq - let) + 1, 1,
                &c->copy[c->n])); /* holds the name: scalars have no data to copy */
    name = c->copy[c->n];
    memcpy(name, let, (size_t)(eq - let));
    TRY(check_use(role, text, other, name, let, &skip));
    if (skip) {
        mem_free(name);
        c->copy[c->n] = NULL;
        return ERR_OK;
    }
    c->decl[c->n].name = name;
    c->decl[c->n].type = EXPR_INT;
    if (args_parse_int(eq + 1, &whole)) {
        c->value[c->n].scalar.i = whole;
    } else if (!strcmp(eq + 1, "true") || !strcmp(eq + 1, "false")) {
        c->decl[c->n].type = EXPR_BOOL;
        c->value[c->n].scalar.i = eq[1] == 't';
    } else if (is_whole_number(eq + 1)) { /* as a float it would mean another number */
        return err_set(ERR_USAGE, "--let %s: the value does not fit 64 bits", let);
    } else if (args_parse_real(eq + 1, &real)) {
        c->decl[c->n].type = EXPR_FLOAT;
        c->value[c->n].scalar.f = (float)real;
    } else {
        return err_set(ERR_USAGE,
                       "--let %s: the value must be a whole number, a finite real, true or false",
                       let);
    }
    c->n++;
    return ERR_OK;
}

err captures_open(captures *c, expr_role role, const char *text, const char *other,
                  const st_file *file, const char *const *let, int n_let) {
    memset(c, 0, sizeof *c);
    for (int i = 0; file && i < safetensors_count(file); i++) {
        const tensor *t = safetensors_at(file, i);
        if (!is_reserved(t->name) && mentions(text, t->name)) TRY(add_array(c, t));
    }
    for (int i = 0; i < n_let; i++) TRY(add_scalar(c, role, text, other, let[i]));
    TRY(expr_compile(&c->program, role, text, c->decl, c->n));
    c->env.values = c->value;
    return expr_check_env(c->program, &c->env);
}

void captures_close(captures *c) {
    expr_free(c->program);
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++) mem_free(c->copy[i]);
}
