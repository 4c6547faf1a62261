/* Modules of a plan and launches of its steps: see flex_cuda_run.h.
 *
 * A text is a whole kernel, so its spec has no headers and no options; its name says for people what it is made for. */
#include "flex/flex_cuda_run.h"
#include "flex/flex_cuda_private.h"
#include <stdio.h>
#include <string.h>

enum { BOTH, MATRIX, PLAIN };
/* The functions of each text, and which form has them. */
static const struct {
    flex_cuda_text text;
    const char *name;
    int form;
} functions[] = {
    {FLEX_CUDA_FORWARD, "flex_forward", MATRIX}, {FLEX_CUDA_FORWARD, "flex_plain_forward", PLAIN},
    {FLEX_CUDA_ROWS, "flex_delta", BOTH},        {FLEX_CUDA_ROWS, "flex_sinks", BOTH},
    {FLEX_CUDA_DQ, "flex_dq", MATRIX},           {FLEX_CUDA_DQ, "flex_plain_dq", PLAIN},
    {FLEX_CUDA_DQ, "flex_plain_dkv", PLAIN},     {FLEX_CUDA_DKV, "flex_dkv", MATRIX},
    {FLEX_CUDA_CAPTURES, "flex_captures", BOTH}, {FLEX_CUDA_CAPTURES, "flex_captures_sum", BOTH},
    {FLEX_CUDA_CHECK, "flex_check", BOTH}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

struct flex_cuda_code {
    module_function *function[FUNCTIONS]; /* NULL: not needed */
};

static int is_needed(const flex_cuda_plan *p, flex_cuda_text text, int backward) {
    return flex_cuda_needs(p, text, 0) || (backward && flex_cuda_needs(p, text, 1));
}

static unsigned shared_of(const flex_cuda_plan *p, flex_cuda_text text) {
    if (p->plain) return 0;
    if (text == FLEX_CUDA_FORWARD) return p->forward.shared;
    return text == FLEX_CUDA_DQ ? p->dq.shared : text == FLEX_CUDA_DKV ? p->dkv.shared : 0;
}

static err visit_text(const flex_cuda_plan *p, flex_cuda_text text, kernel_visit visit, void *ctx) {
    static const char *const what[FLEX_CUDA_TEXTS] = {
        "forward",           "rows before backward",  "gradients by queries",
        "gradients by keys", "gradients of captures", "checks of loads"};
    char name[128];
    str body = {0};
    snprintf(name, sizeof name, "attention %s, %s, head sizes %lld and %lld", what[text],
             dtype_name(p->p.type), (long long)p->p.dim, (long long)p->p.v_dim);
    err e = flex_cuda_put_text(p, text, &body);
    const kernel_text source = {"attention.cu", body.s};
    const kernel_spec spec = {.name = name, .source = &source};
    if (!e) e = visit(ctx, &spec);
    str_free(&body);
    return e;
}

err flex_cuda_each(const flex_cuda_plan *p, int backward, kernel_visit visit, void *ctx) {
    for (int i = 0; i < FLEX_CUDA_TEXTS; i++)
        if (is_needed(p, (flex_cuda_text)i, backward))
            TRY(visit_text(p, (flex_cuda_text)i, visit, ctx));
    return ERR_OK;
}

/* The functions of a text that its plan's form has. */
static err find_functions(flex_cuda_code *c, const flex_cuda_plan *p, flex_cuda_text text,
                          module *m) {
    for (int i = 0; i < FUNCTIONS; i++) {
        if (functions[i].text != text) continue;
        if (functions[i].form != BOTH && functions[i].form != (p->plain ? PLAIN : MATRIX)) continue;
        TRY(module_get_function(&c->function[i], m, functions[i].name, shared_of(p, text)));
    }
    return ERR_OK;
}

static err load(flex_cuda_code *c, const flex_cuda_plan *p, dev *d, int backward, kernel_list *l) {
    module *m[FLEX_CUDA_TEXTS];
    int n = 0; /* in the list, which has the texts in their order */
    TRY(flex_cuda_each(p, backward, kernel_list_add, l));
    TRY(module_get_all(m, d, l));
    for (int text = 0; text < FLEX_CUDA_TEXTS; text++)
        if (is_needed(p, (flex_cuda_text)text, backward))
            TRY(find_functions(c, p, (flex_cuda_text)text, m[n++]));
    return ERR_OK;
}

err flex_cuda_load(flex_cuda_code **out, const flex_cuda_plan *p, dev *d, int backward, arena *a) {
    kernel_list l;
    TRY(arena_alloc(a, 1, sizeof **out, out));
    TRY(kernel_list_create(&l));
    err e = load(*out, p, d, backward, &l);
    kernel_list_destroy(&l);
    return e;
}

static err launch(const flex_cuda_code *c, dev_stream *s, const flex_cuda_step *x) {
    void *const args[] = {(void *)(uintptr_t)x->args};
    const module_grid grid = {{x->grid[0], x->grid[1]}, {x->block}, x->shared};
    for (int i = 0; i < FUNCTIONS; i++) {
        if (functions[i].text == x->text && !strcmp(functions[i].name, x->function) &&
            c->function[i])
            return module_launch(c->function[i], s, &grid, args);
    }
    return err_set(ERR_USAGE, "attention: kernel %s was not loaded; load it with backward",
                   x->function);
}

err flex_cuda_run(const flex_cuda_code *c, dev_stream *s, const flex_cuda_steps *steps) {
    for (int i = 0; i < steps->n; i++) {
        const flex_cuda_step *x = &steps->step[i];
        TRY(x->function ? launch(c, s, x)
                        : dev_set_bytes(s, x->fill, x->fill_value, x->fill_bytes));
    }
    return ERR_OK;
}
