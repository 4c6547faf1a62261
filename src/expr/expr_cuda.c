/* Writes hooks: one pass over the nodes for each function, each node in the function of its class.
 *
 * A node's level is what it stands still in (ir_class): tile, row, column or cell; diagonals are computed per cell.
 * A function computes the nodes of its level and stores those that another level reads. Constants are written where
 * they are used, floats in hexadecimal, so that no digit is lost. */
#include "expr/expr_cuda.h"
#include "expr/expr_grad_private.h"
#include "expr/expr_load.h"
#include "expr/interval_rules.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TILE, ROW, COLUMN, CELL, LEVELS };

typedef struct writer {
    str *out;
    const char *name; /* of the family */
    const ir_prog *p;
    const dtype *type;
    int width, near, alone; /* near: a score; alone: everything in one function */
    const int *root;
    int n_roots;
    uint8_t need[IR_MAX_GRAD + IR_SLACK], stored[IR_MAX_GRAD + IR_SLACK];
} writer;

#define S(id, text)
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda)         \
    [IR_##id] = #cuda,
static const char *const functions[IR_OP_COUNT] = {
#include "expr/ops.def"
};
#undef S
#undef X

/* ---- facts ---- */

static int level_of(const writer *w, int id) {
    static const uint8_t level[] = {[IR_FIXED] = TILE,
                                    [IR_BY_Q] = ROW,
                                    [IR_BY_KV] = COLUMN,
                                    [IR_DIAGONAL] = CELL,
                                    [IR_CELL] = CELL};
    return w->alone ? CELL : level[ir__class(&w->p->node[id])];
}

static void find_needed(writer *w) {
    memset(w->need, 0, sizeof w->need);
    memset(w->stored, 0, sizeof w->stored);
    for (int i = 0; i < w->n_roots; i++) {
        w->need[w->root[i]] = 1;
        if (level_of(w, w->root[i]) != CELL) w->stored[w->root[i]] = 1;
    }
    for (int i = w->p->n - 1; i >= 0; i--) {
        const ir_node *n = &w->p->node[i];
        for (int k = 0; w->need[i] && k < n->n_args; k++) {
            w->need[n->arg[k]] = 1;
            if (level_of(w, n->arg[k]) != level_of(w, i)) w->stored[n->arg[k]] = 1;
        }
    }
    for (int i = 0; i < w->p->n; i++)
        if (w->p->node[i].op == IR_CONST) w->need[i] = w->stored[i] = 0;
}

static const char *type_of(const writer *w, int id) {
    uint8_t type = w->p->node[id].type;
    if (type == EXPR_INT) return w->width == 64 ? "px_i64" : "px_i32";
    return type == EXPR_FLOAT ? "float" : "int";
}

/* ---- operands ---- */

static err put_float(str *out, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (v - v != 0.0f) return str_printf(out, "px_float_of_bits(0x%08" PRIx32 "u)", bits);
    return str_printf(out, bits >> 31 ? "(%af)" : "%af", (double)v);
}

static err put_constant(const writer *w, const ir_node *n) {
    if (n->type == EXPR_FLOAT) return put_float(w->out, n->k.f);
    if (n->type == EXPR_BOOL) return str_printf(w->out, "%d", n->k.i != 0);
    const char *cast = w->width == 64 ? "" : "(px_i32)";
    if (n->k.i == INT64_MIN) return str_printf(w->out, "%s(-9223372036854775807LL - 1)", cast);
    return str_printf(w->out, n->k.i < 0 ? "%s(%" PRId64 "LL)" : "%s%" PRId64 "LL", cast, n->k.i);
}

/* A node as operand inside the function of a level. */
static err put_operand(const writer *w, int level, int id) {
    static const char *const from[] = {"t->", "r->", "c->", ""};
    const ir_node *n = &w->p->node[id];
    if (n->op == IR_CONST) return put_constant(w, n);
    int home = level_of(w, id);
    return str_printf(w->out, "%sv%d", home == level ? "" : from[home], id);
}

static err put_call(const writer *w, int level, const char *name, const ir_node *n) {
    TRY(str_printf(w->out, "%s(", name));
    for (int i = 0; i < n->n_args; i++) {
        if (i) TRY(str_printf(w->out, ", "));
        TRY(put_operand(w, level, n->arg[i]));
    }
    return str_printf(w->out, ")");
}

static err put_joined(const writer *w, int level, const ir_node *n, const char *a, const char *b) {
    TRY(put_operand(w, level, n->arg[0]));
    TRY(str_printf(w->out, " %s ", a));
    TRY(put_operand(w, level, n->arg[1]));
    if (!b) return ERR_OK;
    TRY(str_printf(w->out, " %s ", b));
    return put_operand(w, level, n->arg[2]);
}

/* ---- nodes ---- */

static err put_place(const writer *w, int level, const ir_node *n) {
    char name[32];
    snprintf(name, sizeof name, "px_at%d", n->n_args);
    TRY(str_printf(w->out, "%s(&e->value[%d]", name, n->slot));
    for (int i = 0; i < n->n_args; i++) {
        TRY(str_printf(w->out, ", "));
        TRY(put_operand(w, level, n->arg[i]));
    }
    return str_printf(w->out, ")");
}

static err put_load(const writer *w, int level, const ir_node *n) {
    static const char *const element[DT_COUNT] = {
        [DT_F32] = "f32", [DT_F64] = "f64",  [DT_F16] = "f16", [DT_BF16] = "bf16",
        [DT_I8] = "i8",   [DT_U8] = "u8",    [DT_I16] = "i16", [DT_I32] = "i32",
        [DT_I64] = "i64", [DT_BOOL] = "bool"};
    if (n->type == EXPR_INT && w->width == 32) TRY(str_printf(w->out, "(px_i32)"));
    TRY(str_printf(w->out, "px_load_%s(&e->value[%d], ", element[w->type[n->slot]], n->slot));
    TRY(put_place(w, level, n));
    return str_printf(w->out, n->type == EXPR_BOOL ? ") != 0" : ")");
}

static err put_variable(const writer *w, const ir_node *n) {
    static const char *const text[] = {"b", "h", "px_add64(q, e->q0)", "px_add64(kv, e->kv0)", "s"};
    const char *cast = n->slot != IR_S && w->width == 32 ? "(px_i32)" : "";
    return str_printf(w->out, "%s%s", cast, text[n->slot]);
}

static err put_scalar(const writer *w, const ir_node *n) {
    if (n->type == EXPR_FLOAT) return str_printf(w->out, "e->value[%d].f", n->slot);
    if (n->type == EXPR_BOOL) return str_printf(w->out, "e->value[%d].i != 0", n->slot);
    return str_printf(w->out, "%se->value[%d].i", w->width == 32 ? "(px_i32)" : "", n->slot);
}

static err put_value(const writer *w, int level, const ir_node *n) {
    switch (n->op) {
    case IR_VAR: return put_variable(w, n);
    case IR_SCALAR: return put_scalar(w, n);
    case IR_LOAD: return put_load(w, level, n);
    case IR_AND: return put_joined(w, level, n, "&", NULL);
    case IR_OR: return put_joined(w, level, n, "|", NULL);
    case IR_SELECT: return put_joined(w, level, n, "?", ":");
    default: break;
    }
    char name[64];
    const char *f = functions[n->op];
    int integers = ir__ops[n->op].argument == EXPR_INT || n->op == IR_TO_I;
    snprintf(name, sizeof name, "%s%s%s", f, integers ? (w->width == 64 ? "64" : "32") : "",
             w->near && !strncmp(f, "px_real_", 8) ? "_near" : "");
    return put_call(w, level, name, n);
}

static err put_nodes(const writer *w, int level) {
    for (int i = 0; i < w->p->n; i++) {
        if (!w->need[i] || level_of(w, i) != level) continue;
        TRY(str_printf(w->out, "    const %s v%d = ", type_of(w, i), i));
        TRY(put_value(w, level, &w->p->node[i]));
        TRY(str_printf(w->out, ";\n"));
    }
    return ERR_OK;
}

/* ---- functions ---- */

static const char *const level_name[] = {"tile", "q", "kv"};

static err put_struct(const writer *w, int level) {
    int n = 0;
    TRY(str_printf(w->out, "typedef struct %s_%s_%d {\n", w->name, level_name[level], w->width));
    for (int i = 0; i < w->p->n; i++) {
        if (!w->stored[i] || level_of(w, i) != level) continue;
        TRY(str_printf(w->out, "    %s v%d;\n", type_of(w, i), i));
        n++;
    }
    if (n == 0) TRY(str_printf(w->out, "    char none;\n"));
    return str_printf(w->out, "} %s_%s_%d;\n", w->name, level_name[level], w->width);
}

static err put_filler(const writer *w, int level) {
    const char *name = w->name, *what = level_name[level];
    const char *into = level == TILE ? "t" : level == ROW ? "r" : "c";
    int width = w->width;
    TRY(str_printf(w->out, "PX_FN void %s_by_%s_%d(const px_env *e, ", name, what, width));
    if (level != TILE) TRY(str_printf(w->out, "const %s_tile_%d *t, ", name, width));
    TRY(str_printf(w->out, "px_i64 b, px_i64 h, %s%s_%s_%d *%s) {\n",
                   level == ROW      ? "px_i64 q, "
                   : level == COLUMN ? "px_i64 kv, "
                                     : "",
                   name, what, width, into));
    TRY(put_nodes(w, level));
    for (int i = 0; i < w->p->n; i++) {
        if (w->stored[i] && level_of(w, i) == level)
            TRY(str_printf(w->out, "    %s->v%d = v%d;\n", into, i, i));
    }
    return str_printf(w->out, "}\n");
}

/* The structs and their fillers, then the head of the cell's function: `result NAME_cell_W(..., more) {`. */
static err put_levels(const writer *w, const char *result, const char *more) {
    for (int i = 0; i < CELL; i++) {
        TRY(put_struct(w, i));
        TRY(put_filler(w, i));
    }
    TRY(str_printf(w->out, "PX_FN %s %s_cell_%d(const px_env *e", result, w->name, w->width));
    for (int i = 0; i < CELL; i++)
        TRY(str_printf(w->out, ", const %s_%s_%d *%c", w->name, level_name[i], w->width, "trc"[i]));
    return str_printf(w->out, ", px_i64 b, px_i64 h, px_i64 q, px_i64 kv%s) {\n", more);
}

static err put_return(const writer *w, int id) {
    TRY(str_printf(w->out, "    return "));
    TRY(put_operand(w, CELL, id));
    return str_printf(w->out, ";\n}\n");
}

/* ---- loads that left ---- */

/* Terms of `left` for the arguments of a node: those that may be reached, behind their guards. */
static err put_left_terms(const writer *w, const ir_node *n, int *terms) {
    int guarded = n->op == IR_AND || n->op == IR_OR || n->op == IR_SELECT;
    for (int i = 0; i < n->n_args; i++) {
        if (!w->p->node[n->arg[i]].has_load) continue;
        if ((*terms)++) TRY(str_printf(w->out, " | "));
        if (!guarded || i == 0) {
            TRY(str_printf(w->out, "l%d", n->arg[i]));
            continue;
        }
        int when = n->op == IR_AND || (n->op == IR_SELECT && i == 1);
        TRY(str_printf(w->out, when ? "(" : "(!"));
        TRY(put_operand(w, CELL, n->arg[0]));
        TRY(str_printf(w->out, " & l%d)", n->arg[i]));
    }
    return ERR_OK;
}

static err put_left_node(const writer *w, int id) {
    const ir_node *n = &w->p->node[id];
    int terms = 0;
    TRY(str_printf(w->out, "    const int l%d = ", id));
    if (n->op == IR_LOAD) {
        TRY(put_place(w, CELL, n));
        TRY(str_printf(w->out, " < 0"));
        terms++;
    }
    TRY(put_left_terms(w, n, &terms));
    return str_printf(w->out, ";\n");
}

/* int NAME_left(e, b, h, q, kv[, s]): in 64 bits, nothing hoisted; runs ask only where loads are not proven inside. */
static err put_left(writer *w) {
    int root = w->root[0], loads = w->p->node[root].has_load;
    w->width = 64;
    w->alone = 1;
    find_needed(w);
    TRY(str_printf(
        w->out, "PX_FN int %s_left(const px_env *e, px_i64 b, px_i64 h, px_i64 q, px_i64 kv%s) {\n",
        w->name, w->near ? ", float s" : ""));
    if (loads) TRY(put_nodes(w, CELL));
    for (int i = 0; loads && i < w->p->n; i++)
        if (w->need[i] && w->p->node[i].has_load) TRY(put_left_node(w, i));
    w->alone = 0;
    if (!loads) return str_printf(w->out, "    return 0;\n}\n");
    return str_printf(w->out, "    return l%d;\n}\n", root);
}

/* ---- families ---- */

static err new_writer(writer **out, str *text, const char *name, const ir_prog *p,
                      const dtype *type) {
    TRY(mem_new(1, sizeof **out, out));
    (*out)->out = text;
    (*out)->name = name;
    (*out)->p = p;
    (*out)->type = type;
    return ERR_OK;
}

static err put_plain(writer *w, const char *result, const char *more) {
    for (w->width = 64; w->width >= 32; w->width /= 2) {
        find_needed(w);
        TRY(put_levels(w, result, more));
        TRY(put_nodes(w, CELL));
        TRY(put_return(w, w->root[0]));
    }
    return put_left(w);
}

err expr_cuda_mask(str *out, const expr *mask, const dtype *type) {
    writer *w;
    int root = mask->prog.n - 1;
    TRY(new_writer(&w, out, "mask", &mask->prog, type));
    w->root = &root, w->n_roots = 1;
    err e = put_plain(w, "int", "");
    mem_free(w);
    return e;
}

err expr_cuda_score(str *out, const expr *score, const dtype *type) {
    writer *w;
    int root = score->prog.n - 1;
    TRY(new_writer(&w, out, "score", &score->prog, type));
    w->root = &root, w->n_roots = 1, w->near = 1;
    err e = put_plain(w, "float", ", float s");
    mem_free(w);
    return e;
}

static err put_slope(writer *w) {
    for (w->width = 64; w->width >= 32; w->width /= 2) {
        find_needed(w);
        TRY(put_levels(w, "float", ", float s, float *d_s"));
        TRY(put_nodes(w, CELL));
        TRY(str_printf(w->out, "    *d_s = "));
        if (w->n_roots == 1)
            TRY(put_float(w->out, 0.0f));
        else
            TRY(put_operand(w, CELL, w->root[1]));
        TRY(str_printf(w->out, ";\n"));
        TRY(put_return(w, w->root[0]));
    }
    return ERR_OK;
}

err expr_cuda_slope(str *out, const expr_grad *g, const dtype *type) {
    writer *w;
    int root[2] = {g->value, g->d_s};
    TRY(new_writer(&w, out, "slope", &g->prog, type));
    w->root = root, w->n_roots = g->d_s < 0 ? 1 : 2, w->near = 1;
    err e = put_slope(w);
    mem_free(w);
    return e;
}

/* Places need the indices of their loads, not the loads; so the roots are derivatives and indices. */
static err put_sites(writer *w, const expr_grad *g) {
    for (w->width = 64; w->width >= 32; w->width /= 2) {
        find_needed(w);
        TRY(put_levels(w, "void", ", float s, px_i64 *place, float *d"));
        TRY(put_nodes(w, CELL));
        for (int i = 0; i < g->n_sites; i++) {
            const ir_node *load = &g->prog.node[g->site[i].load];
            TRY(str_printf(w->out, "    place[%d] = ", i));
            if (load->op == IR_LOAD)
                TRY(put_place(w, CELL, load));
            else
                TRY(str_printf(w->out, "0"));
            TRY(str_printf(w->out, ";\n    d[%d] = ", i));
            TRY(g->site[i].d < 0 ? put_float(w->out, 0.0f) : put_operand(w, CELL, g->site[i].d));
            TRY(str_printf(w->out, ";\n"));
        }
        TRY(str_printf(w->out, "}\n"));
    }
    TRY(str_printf(w->out, "#define SITES %d\nPX_FN int sites_capture(int k) {\n", g->n_sites));
    for (int i = 0; i + 1 < g->n_sites; i++)
        TRY(str_printf(w->out, "    if (k == %d) return %d;\n", i, g->site[i].capture));
    return str_printf(w->out, "    return %d;\n}\n",
                      g->n_sites ? g->site[g->n_sites - 1].capture : -1);
}

err expr_cuda_sites(str *out, const expr_grad *g, const dtype *type) {
    writer *w;
    int *root, n = 0;
    TRY(mem_new((size_t)g->n_sites * (1 + EXPR_MAX_NDIM) + 1, sizeof *root, &root));
    for (int i = 0; i < g->n_sites; i++) {
        const ir_node *load = &g->prog.node[g->site[i].load];
        if (g->site[i].d >= 0) root[n++] = g->site[i].d;
        for (int k = 0; k < load->n_args; k++) root[n++] = load->arg[k];
    }
    err e = new_writer(&w, out, "sites", &g->prog, type);
    if (!e) {
        w->root = root, w->n_roots = n, w->near = 1;
        e = put_sites(w, g);
        mem_free(w);
    }
    mem_free(root);
    return e;
}

void expr_cuda_types(const expr *e, const expr_env *env, dtype type[EXPR_MAX_CAPTURES]) {
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++)
        type[i] = i < e->n_decls && e->decls[i].ndim ? env->values[i].type : DT_F32;
}

/* ---- values ---- */

void expr_cuda_fill(px_env *out, const expr *e, const expr_env *env, const void *const *arrays) {
    memset(out, 0, sizeof *out);
    if (!env) return;
    out->q0 = env->q0, out->kv0 = env->kv0;
    for (int i = 0; i < e->n_decls; i++) {
        const expr_value *v = &env->values[i];
        px_value *to = &out->value[i];
        if (e->decls[i].ndim == 0) {
            if (e->decls[i].type == EXPR_FLOAT)
                to->f = v->scalar.f;
            else
                to->i = v->scalar.i;
            continue;
        }
        to->data = arrays[i];
        for (int k = 0; k < e->decls[i].ndim; k++) to->dim[k] = v->dim[k];
    }
}

/* The range of a node: rules for operations, the whole type for what comes from arrays of more than 32 bits or from s. */
static interval_range range_of(const ir_node *n, const expr_env *env, const int64_t extent[4],
                               const interval_range *at) {
    interval_range x = n->n_args ? at[n->arg[0]] : interval__unknown((expr_type)n->type);
    switch (n->op) {
    case IR_CONST: return (interval_range){n->k, n->k, 0};
    case IR_VAR:
        if (n->slot == IR_S) return interval__unknown(EXPR_FLOAT);
        x = interval__ints(0, extent[n->slot] - 1);
        if (n->slot == IR_Q || n->slot == IR_KV) {
            int64_t by = !env ? 0 : n->slot == IR_Q ? env->q0 : env->kv0;
            x = interval__rules[IR_ADD_I](IR_ADD_I, x, interval__ints(by, by));
        }
        return x;
    case IR_SCALAR:
        if (n->type != EXPR_INT) return interval__unknown((expr_type)n->type);
        return interval__ints(env->values[n->slot].scalar.i, env->values[n->slot].scalar.i);
    case IR_LOAD:
        if (n->type == EXPR_INT && env->values[n->slot].type != DT_I64)
            return interval__ints(INT32_MIN, INT32_MAX);
        return interval__unknown((expr_type)n->type);
    case IR_AND:
    case IR_OR: return interval__ints(0, 1);
    case IR_SELECT: return interval__join((expr_type)n->type, at[n->arg[1]], at[n->arg[2]]);
    default: return interval__rules[n->op]((ir_op)n->op, x, n->n_args > 1 ? at[n->arg[1]] : x);
    }
}

static int is_inside(const ir_node *n, const expr_value *v, const interval_range *at) {
    for (int k = 0; k < n->n_args; k++) {
        const interval_range *index = &at[n->arg[k]];
        if (index->lo.i < 0 || index->hi.i >= v->dim[k]) return 0;
    }
    return 1;
}

unsigned expr_cuda_prove(const expr *score, const expr_env *env, const int64_t extent[4]) {
    interval_range at[IR_MAX_NODES + IR_SLACK];
    unsigned holds = EXPR_CUDA_FITS_32 | EXPR_CUDA_INSIDE;
    for (int i = 0; i < score->prog.n; i++) {
        const ir_node *n = &score->prog.node[i];
        at[i] = range_of(n, env, extent, at);
        if (n->type == EXPR_INT && (at[i].lo.i < INT32_MIN || at[i].hi.i > INT32_MAX))
            holds &= ~(unsigned)EXPR_CUDA_FITS_32;
        if (n->op == IR_LOAD && !is_inside(n, &env->values[n->slot], at))
            holds &= ~(unsigned)EXPR_CUDA_INSIDE;
    }
    return holds;
}
