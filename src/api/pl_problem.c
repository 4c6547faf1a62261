/* Problems of the public library: a description, filled by setters, checked where it can be judged alone.
 *
 * Texts, names and scalars are copied; arrays are borrowed. Extents and expressions are judged by flex and expr when a plan
 * or mask is made, so that each rule stands in one place; pl__program_make is that step for the expressions. */
#include "api/api_private.h"
#include <math.h>
#include <string.h>

static const int64_t OFFSET_MAX = INT64_C(1) << 40;

static err create(pl_problem **out, const pl_shape *shape, pl_type type) {
    pl_problem *p;
    TRY(pl__need(shape, "pl_problem_create", "shape"));
    TRY(pl__check_size("pl_shape", shape->size, sizeof *shape, sizeof *shape));
    if (type != PL_F32 && type != PL_BF16)
        return err_set(ERR_SHAPE,
                       "pl_problem_create: q, k and v of type %d (%s) cannot be computed with; "
                       "PL_F32 and PL_BF16 can",
                       (int)type, (unsigned)type < DT_COUNT ? dtype_name((dtype)type) : "unknown");
    TRY(mem_new(1, sizeof *p, &p));
    p->shape = *shape;
    p->type = (dtype)type;
    *out = p;
    return ERR_OK;
}

pl_error pl_problem_create(pl_problem **out, const pl_shape *shape, pl_type type) {
    err e = pl__need(out, "pl_problem_create", "out");
    if (e) return pl__result(e);
    *out = NULL;
    return pl__result(create(out, shape, type));
}

void pl_problem_free(pl_problem *p) {
    if (!p) return;
    for (int i = 0; i < p->n; i++) mem_free(p->name[i]);
    mem_free(p->mask);
    mem_free(p->score);
    mem_free(p);
}

pl_error pl_problem_scale(pl_problem *p, double scale) {
    err e = pl__need(p, "pl_problem_scale", "the problem");
    if (!e && !isfinite((float)scale))
        e = err_set(ERR_RANGE, "pl_problem_scale: %g is not a finite fp32 number", scale);
    if (e) return pl__result(e);
    p->scale = (float)scale;
    p->scale_given = 1;
    return PL_OK;
}

pl_error pl_problem_tiles(pl_problem *p, int tile_q, int tile_kv) {
    err e = pl__need(p, "pl_problem_tiles", "the problem");
    if (e) return pl__result(e);
    p->tile_q = tile_q;
    p->tile_kv = tile_kv;
    return PL_OK;
}

pl_error pl_problem_mask_budget(pl_problem *p, size_t bytes) {
    err e = pl__need(p, "pl_problem_mask_budget", "the problem");
    if (!e) p->mask_budget = bytes;
    return pl__result(e);
}

pl_error pl_problem_offsets(pl_problem *p, int64_t q0, int64_t kv0) {
    err e = pl__need(p, "pl_problem_offsets", "the problem");
    if (!e && (q0 < 0 || q0 > OFFSET_MAX || kv0 < 0 || kv0 > OFFSET_MAX))
        e = err_set(ERR_RANGE, "pl_problem_offsets: q0 %lld and kv0 %lld must be from 0 to 2^40",
                    (long long)q0, (long long)kv0);
    if (e) return pl__result(e);
    p->q0 = q0;
    p->kv0 = kv0;
    return PL_OK;
}

/* *at becomes a copy of text, NULL for NULL. */
static err replace_text(char **at, const char *text) {
    char *copy = NULL;
    if (text) {
        size_t n = strlen(text) + 1;
        TRY(mem_new(n, 1, &copy));
        memcpy(copy, text, n);
    }
    mem_free(*at);
    *at = copy;
    return ERR_OK;
}

pl_error pl_problem_mask(pl_problem *p, const char *text) {
    err e = pl__need(p, "pl_problem_mask", "the problem");
    if (!e) e = replace_text(&p->mask, text);
    if (!e) p->given = NULL;
    return pl__result(e);
}

pl_error pl_problem_use_mask(pl_problem *p, const pl_mask *m) {
    err e = pl__need(p, "pl_problem_use_mask", "the problem");
    if (e) return pl__result(e);
    mem_free(p->mask);
    p->mask = NULL;
    p->given = m;
    return PL_OK;
}

pl_error pl_problem_score(pl_problem *p, const char *text) {
    err e = pl__need(p, "pl_problem_score", "the problem");
    return pl__result(e ? e : replace_text(&p->score, text));
}

pl_error pl_problem_sinks(pl_problem *p, const float *sinks) {
    err e = pl__need(p, "pl_problem_sinks", "the problem");
    if (!e && (uintptr_t)sinks % sizeof *sinks)
        e = err_set(ERR_USAGE, "pl_problem_sinks: the sinks are not aligned to 4 bytes");
    if (!e) p->sinks = sinks;
    return pl__result(e);
}

/* ---- captures ---- */

static err set_capture(pl_problem *p, const char *function, const char *name, expr_type type,
                       int ndim, const expr_value *value) {
    TRY(pl__need(p, function, "the problem"));
    TRY(pl__need(name, function, "the name"));
    int i = 0;
    while (i < p->n && strcmp(p->name[i], name) != 0) i++;
    if (i == EXPR_MAX_CAPTURES)
        return err_set(ERR_RANGE,
                       "%s: `%.60s` would be one captured value more than the %d that "
                       "a problem may have",
                       function, name, EXPR_MAX_CAPTURES);
    if (i == p->n) {
        TRY(replace_text(&p->name[i], name));
        p->n++;
    }
    p->decl[i] = (expr_decl){.name = p->name[i], .type = type, .ndim = ndim};
    p->value[i] = *value;
    return ERR_OK;
}

pl_error pl_problem_int(pl_problem *p, const char *name, int64_t value) {
    const expr_value v = {.scalar.i = value};
    return pl__result(set_capture(p, "pl_problem_int", name, EXPR_INT, 0, &v));
}

pl_error pl_problem_float(pl_problem *p, const char *name, float value) {
    const expr_value v = {.scalar.f = value};
    return pl__result(set_capture(p, "pl_problem_float", name, EXPR_FLOAT, 0, &v));
}

pl_error pl_problem_bool(pl_problem *p, const char *name, int value) {
    const expr_value v = {.scalar.i = value != 0};
    return pl__result(set_capture(p, "pl_problem_bool", name, EXPR_BOOL, 0, &v));
}

static err set_array(pl_problem *p, const char *name, pl_type type, int ndim,
                     const int64_t *extents, const void *data) {
    TRY(pl__need(name, "pl_problem_array", "the name"));
    TRY(pl__need(extents, "pl_problem_array", "extents"));
    if ((unsigned)type >= DT_COUNT)
        return err_set(ERR_SHAPE, "pl_problem_array: `%.60s` is of type %d, which is none", name,
                       (int)type);
    if (ndim < 1 || ndim > EXPR_MAX_NDIM)
        return err_set(ERR_SHAPE,
                       "pl_problem_array: `%.60s` has %d dimensions; 1 to %d can be "
                       "read",
                       name, ndim, EXPR_MAX_NDIM);
    if ((uintptr_t)data % dtype_size((dtype)type))
        return err_set(ERR_USAGE,
                       "pl_problem_array: the data of `%.60s` are not aligned to the %zu bytes of "
                       "their elements",
                       name, dtype_size((dtype)type));
    expr_value v = {.type = (dtype)type, .data = data};
    memcpy(v.dim, extents, (size_t)ndim * sizeof *extents);
    const expr_type as = dtype_is_float(v.type) ? EXPR_FLOAT
                         : v.type == DT_BOOL    ? EXPR_BOOL
                                                : EXPR_INT;
    return set_capture(p, "pl_problem_array", name, as, ndim, &v);
}

pl_error pl_problem_array(pl_problem *p, const char *name, pl_type type, int ndim,
                          const int64_t *extents, const void *data) {
    return pl__result(set_array(p, name, type, ndim, extents, data));
}

static err want_gradient(pl_problem *p, const char *name, int wanted) {
    TRY(pl__need(p, "pl_problem_gradient", "the problem"));
    TRY(pl__need(name, "pl_problem_gradient", "the name"));
    int i = 0;
    while (i < p->n && strcmp(p->name[i], name) != 0) i++;
    if (i == p->n)
        return err_set(ERR_USAGE, "pl_problem_gradient: `%.60s` has no value yet; give it first",
                       name);
    p->gradients = (p->gradients & ~(1u << i)) | (wanted ? 1u << i : 0);
    return ERR_OK;
}

pl_error pl_problem_gradient(pl_problem *p, const char *name, int wanted) {
    return pl__result(want_gradient(p, name, wanted));
}

/* ---- expressions ---- */

err pl__program_make(pl__program *out, const pl_problem *p) {
    memcpy(out->value, p->value, sizeof out->value);
    out->env = (expr_env){.values = out->value, .q0 = p->q0, .kv0 = p->kv0};
    if (p->mask) TRY(expr_compile(&out->mask, EXPR_MASK, p->mask, p->decl, p->n));
    if (p->score) TRY(expr_compile(&out->score, EXPR_SCORE, p->score, p->decl, p->n));
    return ERR_OK;
}

void pl__program_free(pl__program *x) {
    expr_free(x->mask);
    expr_free(x->score);
    x->mask = x->score = NULL;
}
