/* The handle: compile, what the program captures, and the check of bound values.
 *
 * One arena holds source, declarations and program. Compiling is parse → finish → verify; nothing is
 * kept of the parse. A compiled program is immutable, so no lock is needed anywhere. */
#include "expr/expr.h"
#include "expr/expr_lanes.h"
#include "expr/expr_load.h"
#include "expr/ir.h"
#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 1 << 20 };

static err copy_decls(expr *e, const expr_decl *decls, int n) {
    TRY(arena_alloc(e->memory, (size_t)n, sizeof *e->decls, &e->decls));
    e->n_decls = n;
    for (int i = 0; i < n; i++) {
        char *name;
        TRY(arena_strdup(e->memory, decls[i].name, &name));
        e->decls[i] = decls[i];
        e->decls[i].name = name;
    }
    return ERR_OK;
}

static err compile_into(expr *e, ir_build *b, const char *text, const expr_decl *decls, int n) {
    int root;
    TRY(arena_strdup(e->memory, text, &e->source));
    TRY(copy_decls(e, decls, n));
    TRY(ir__parse(b, e->role, e->source, e->decls, n, &root));
    TRY(ir__finish(b, root, e->memory, &e->prog));
    return ir__verify(&e->prog, e->decls, n);
}

err expr_compile(expr **out, expr_role role, const char *text, const expr_decl *decls,
                 int n_decls) {
    *out = NULL;
    if (n_decls < 0 || n_decls > EXPR_MAX_CAPTURES)
        return err_set(ERR_USAGE, "an expression can capture at most %d values, not %d",
                       EXPR_MAX_CAPTURES, n_decls);
    if (strnlen(text, MAX_TEXT) == MAX_TEXT)
        return err_set(ERR_SYNTAX, "a mask or score has at most %d characters; this text is longer",
                       MAX_TEXT - 1);
    err e = ERR_OK;
    expr *x = NULL;
    ir_build *b = NULL;
    TRY_GOTO(mem_new(1, sizeof *x, &x), done);
    TRY_GOTO(ir__build_new(&b, IR_MAX_NODES + IR_SLACK), done);
    x->role = role;
    x->lanes = expr_lanes__choose();
    TRY_GOTO(arena_create(&x->memory, "expr", 0), done);
    TRY_GOTO(compile_into(x, b, text, decls, n_decls), done);
    *out = x;
    x = NULL;
done:
    mem_free(b);
    expr_free(x);
    return e;
}

void expr_free(expr *e) {
    if (!e) return;
    arena_destroy(e->memory);
    mem_free(e);
}

const char *expr_source(const expr *e) { return e->source; }
int expr_capture_count(const expr *e) { return e->n_decls; }
const expr_decl *expr_capture(const expr *e, int i) { return &e->decls[i]; }
unsigned expr_uses(const expr *e) { return e->prog.node[e->prog.n - 1].uses & 15u; }

static err check_array(const expr_decl *d, const expr_value *v) {
    static const char *const kinds[] = {"conditions", "integers", "floats"};
    int64_t count = 1;
    if (!expr_load__fits(d->type, v->type))
        return err_set(ERR_SHAPE,
                       "captured array `%s` is used as %s and is bound to values of type %s",
                       d->name, kinds[d->type],
                       v->type >= 0 && v->type < DT_COUNT ? dtype_name(v->type) : "?");
    for (int i = 0; i < d->ndim; i++) {
        if (v->dim[i] < 0)
            return err_set(ERR_SHAPE,
                           "captured array `%s` has extent %lld in dimension %d; extents "
                           "are 0 or more",
                           d->name, (long long)v->dim[i], i);
        if (__builtin_mul_overflow(count, v->dim[i], &count))
            return err_set(ERR_SHAPE, "captured array `%s` has more elements than 63 bits count",
                           d->name);
    }
    if (count > 0 && !v->data)
        return err_set(ERR_SHAPE, "captured array `%s` has %lld elements and no data", d->name,
                       (long long)count);
    return ERR_OK;
}

int64_t expr_value_count(const expr_value *v, int ndim) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= v->dim[i];
    return n;
}

size_t expr_value_bytes(const expr_value *v, int ndim) {
    return ndim ? (size_t)expr_value_count(v, ndim) * dtype_size(v->type) : 0;
}

err expr_check_env(const expr *e, const expr_env *env) {
    if (e->n_decls > 0 && (!env || !env->values))
        return err_set(ERR_USAGE, "captured value `%s` is not given", e->decls[0].name);
    for (int i = 0; i < e->n_decls; i++)
        if (e->decls[i].ndim > 0) TRY(check_array(&e->decls[i], &env->values[i]));
    return ERR_OK;
}
