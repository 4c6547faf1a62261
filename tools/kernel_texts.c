/* Writes the texts of attention kernels, and of those that build block masks, for a list of head sizes, types, masks and scores, to be compiled by
 * nvrtc_check: what a machine without a GPU can hold kernels to.
 *
 * Usage: kernel_texts FOLDER. Prints one path a line. The masks and scores are those of the gallery that differ most in
 * what they put into a kernel. */
#include "flex/blockmask_cuda.h"
#include "flex/flex_cuda.h"
#include "flex/paged_cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hooks {
    const char *name, *mask, *score;
    unsigned wanted; /* captures of the score */
} hooks;

static const expr_decl decls[] = {
    {"n", EXPR_INT, 0}, {"anchor", EXPR_INT, 1}, {"doc", EXPR_INT, 1}, {"bias", EXPR_FLOAT, 2}};
enum { DECLS = sizeof decls / sizeof *decls };
static const hooks list[] = {
    {"plain", NULL, NULL, 0},
    {"causal", "kv <= q", NULL, 0},
    {"dflash",
     "let a = anchor[q // 16]; a >= 0 && (kv < n ? kv < a && doc[kv] == doc[a] : (kv - n) // 16 == "
     "q // 16)",
     NULL, 0},
    {"softcap", "kv <= q", "30.0 * tanh(s / 30.0)", 0},
    {"bias", "kv <= q && doc[q] == doc[kv]", "s + bias[h, clamp(q - kv, 0, 127)]", 8},
};
/* Which hooks at which type and head sizes. */
typedef struct variant {
    dtype type;
    int64_t dim[2];
    int hooks;
} variant;
enum { PLAIN, CAUSAL, DFLASH, SOFTCAP, BIAS };
static const variant variants[] = {
    {DT_BF16, {64, 64}, CAUSAL},   {DT_BF16, {128, 128}, PLAIN},   {DT_BF16, {128, 128}, CAUSAL},
    {DT_BF16, {128, 128}, DFLASH}, {DT_BF16, {128, 128}, SOFTCAP}, {DT_BF16, {128, 128}, BIAS},
    {DT_BF16, {256, 256}, DFLASH}, {DT_BF16, {80, 40}, DFLASH},    {DT_BF16, {192, 128}, BIAS},
    {DT_F16, {128, 128}, DFLASH},  {DT_F32, {128, 128}, BIAS},
};
static const char *const part[FLEX_CUDA_TEXTS] = {"forward", "rows",     "dq",
                                                  "dkv",     "captures", "check"};

static int write_text(const char *folder, const flex_cuda_plan *p, int which, const char *name) {
    char path[512];
    str text = {0};
    snprintf(path, sizeof path, "%s/%s_%s.cu", folder, part[which], name);
    int bad = flex_cuda_put_text(p, (flex_cuda_text)which, &text) != ERR_OK;
    FILE *f = bad ? NULL : fopen(path, "wb");
    bad = !f || fwrite(text.s, 1, text.n, f) != text.n;
    if (f && fclose(f)) bad = 1;
    str_free(&text);
    if (bad) fprintf(stderr, "%s: cannot be written (%s)\n", path, err_text());
    if (!bad) puts(path);
    return bad;
}

/* A kernel_visit; ctx: the path. */
static err write_spec(void *ctx, const kernel_spec *spec) {
    FILE *f = fopen(ctx, "wb");
    size_t n = strlen(spec->source->text);
    int ok = f && fwrite(spec->source->text, 1, n, f) == n;
    if (f && fclose(f)) ok = 0;
    if (ok) puts(ctx);
    return ok ? ERR_OK : err_errno("%s", (const char *)ctx);
}

static int write_paged(const char *folder, dtype type, int64_t dim) {
    char path[512];
    snprintf(path, sizeof path, "%s/paged_%s_d%d.cu", folder, dtype_name(type), (int)dim);
    if (paged_cuda_visit(type, dim, write_spec, path) == ERR_OK) return 0;
    fprintf(stderr, "%s\n", err_text());
    return 1;
}

/* A kernel_visit for the texts of block masks: the same leaves for all masks, cells of each. */
typedef struct block_texts {
    const char *folder, *mask;
} block_texts;
static err write_block_text(void *ctx, const kernel_spec *spec) {
    const block_texts *x = ctx;
    const int leaves = strstr(spec->name, "leaves") != NULL;
    char path[512];
    if (leaves && x->mask != list[DFLASH].name) return ERR_OK;
    snprintf(path, sizeof path, "%s/blockmask_%s_%s.cu", x->folder, leaves ? "leaves" : "cells",
             leaves ? "of_all" : x->mask);
    return write_spec(path, spec);
}

static int write_block_texts(const char *folder, const hooks *h, const expr_env *env) {
    block_texts x = {folder, h->name};
    expr *mask = NULL;
    err e = expr_compile(&mask, EXPR_MASK, h->mask, decls, DECLS);
    if (!e) e = blockmask_cuda_each(mask, env, write_block_text, &x);
    expr_free(mask);
    if (e) fprintf(stderr, "%s\n", err_text());
    return e != ERR_OK;
}

static err make_problem(flex_problem *p, const hooks *h, const expr_env *env, dtype type,
                        const int64_t dim[2]) {
    expr *mask = NULL, *score = NULL;
    if (h->mask) TRY(expr_compile(&mask, EXPR_MASK, h->mask, decls, DECLS));
    if (h->score) TRY(expr_compile(&score, EXPR_SCORE, h->score, decls, DECLS));
    *p = (flex_problem){.batch = 1,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .q_len = 128,
                        .kv_len = 128,
                        .dim = dim[0],
                        .v_dim = dim[1],
                        .type = type,
                        .mask = mask,
                        .env = env,
                        .score = score,
                        .score_env = env,
                        .score_grads = h->wanted};
    return ERR_OK;
}

/* All texts of one problem; those that no mask changes are written for the first hooks alone. */
static int write_problem(const char *folder, const hooks *h, const expr_env *env, dtype type,
                         const int64_t dim[2]) {
    flex_problem p;
    flex_cuda_plan *plan;
    arena *a;
    char name[128];
    int bad = 0;
    if (arena_create(&a, "texts", 0) || make_problem(&p, h, env, type, dim) ||
        flex_cuda_plan_create(&plan, &p, 99 * 1024, a)) {
        fprintf(stderr, "%s: %s\n", h->name, err_text());
        return 1;
    }
    snprintf(name, sizeof name, "%s_d%d_%d_%s", dtype_name(type), (int)dim[0], (int)dim[1],
             h->name);
    for (int which = 0; which < FLEX_CUDA_TEXTS; which++) {
        int wanted = flex_cuda_needs(plan, (flex_cuda_text)which, 0) ||
                     flex_cuda_needs(plan, (flex_cuda_text)which, 1);
        if (which == FLEX_CUDA_ROWS && h == &list[DFLASH]) wanted = 0;
        if (wanted) bad |= write_text(folder, plan, which, name);
    }
    arena_destroy(a);
    expr_free((expr *)p.mask);
    expr_free((expr *)p.score);
    return bad;
}

int main(int argc, char **argv) {
    static const int32_t ids[128] = {0};
    static const float floats[128] = {0};
    const expr_value values[DECLS] = {{.scalar.i = 64},
                                      {.type = DT_I32, .dim = {8}, .data = ids},
                                      {.type = DT_I32, .dim = {128}, .data = ids},
                                      {.type = DT_F32, .dim = {1, 128}, .data = floats}};
    const expr_env env = {values, 0, 0};
    int bad = argc != 2;
    for (size_t i = 0; !bad && i < sizeof variants / sizeof *variants; i++) {
        const variant *v = &variants[i];
        bad |= write_problem(argv[1], &list[v->hooks], &env, v->type, v->dim);
    }
    bad = bad || write_block_texts(argv[1], &list[DFLASH], &env) ||
          write_block_texts(argv[1], &list[BIAS], &env);
    static const int64_t paged_dims[] = {64, 80, 128, 256};
    for (size_t i = 0; !bad && i < sizeof paged_dims / sizeof *paged_dims; i++) {
        bad |= write_paged(argv[1], i % 2 ? DT_F16 : DT_BF16, paged_dims[i]);
        if (i % 2 == 0) bad |= write_paged(argv[1], DT_F32, paged_dims[i]);
    }
    return bad;
}
