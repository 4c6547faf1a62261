/* Fuzzing the mask language: any text either compiles or is refused with a sentence.
 *
 * What compiles must print to a text that compiles to the same values, must give equal cells by the plain
 * definition and by the tile interpreter, and the verdict of interval analysis must hold for the box of all
 * cells and for single cells. Captures and extents are fixed; only the text varies. */
#include "expr/interval.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { B = 2, H = 2, L = 9, S = 13 };

static const int32_t doc[S] = {0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, -1, -1};
static const float table[L][3] = {{0.5f, -1.0f, 2.0f}, {0.0f, 3.0f, 1e30f}};
static const uint8_t keep[S] = {1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1};

static const expr_decl decls[] = {{"doc", EXPR_INT, 1},
                                  {"t", EXPR_FLOAT, 2},
                                  {"keep", EXPR_INT, 1},
                                  {"n", EXPR_INT, 0},
                                  {"x", EXPR_FLOAT, 0}};
static const expr_value values[] = {
    {.type = DT_I32, .dim = {S}, .data = doc}, {.type = DT_F32, .dim = {L, 3}, .data = table},
    {.type = DT_U8, .dim = {S}, .data = keep}, {.scalar.i = 5, .type = DT_I64},
    {.scalar.f = 0.25f, .type = DT_F32},
};
static const expr_env env = {.values = values};

/* Every cell of one batch entry and head by the tile interpreter and by the definition. */
static void compare_cells(const expr *e, int64_t b, int64_t h, int *all, int *none) {
    uint8_t tile[L * S];
    int flag_tile = 0, flag = 0;
    void *scratch = aligned_alloc(64, (expr_tile_scratch(e, L, S) + 63) / 64 * 64 + 64);
    if (!scratch) return;
    expr_tile_mask(e, &env, b, h, 0, L, 0, S, tile, S, scratch, &flag_tile);
    free(scratch);
    for (int64_t q = 0; q < L; q++) {
        for (int64_t kv = 0; kv < S; kv++) {
            int seen = expr_eval_mask(e, &env, b, h, q, kv, &flag);
            if (seen != tile[q * S + kv]) abort();
            *all &= seen;
            *none &= !seen;
        }
    }
    if (flag != flag_tile) abort();
}

static void check_intervals(const expr *e, int all, int none) {
    arena *a = NULL;
    interval_tables *t = NULL;
    if (arena_create(&a, "fuzz", 0)) return;
    if (interval_tables_create(&t, e, &env, a) == ERR_OK) {
        interval_box box = {0, B - 1, 0, H - 1, 0, L - 1, 0, S - 1};
        interval_verdict v = interval_classify(e, &env, t, &box, NULL);
        if ((v == INTERVAL_ALL && !all) || (v == INTERVAL_NONE && !none)) abort();
        for (int64_t kv = 0; kv < S; kv++) {
            int flag = 0, seen = expr_eval_mask(e, &env, 1, 0, 4, kv, &flag);
            box = (interval_box){1, 1, 0, 0, 4, 4, kv, kv};
            v = interval_classify(e, &env, t, &box, NULL);
            if ((v == INTERVAL_ALL && !seen) || (v == INTERVAL_NONE && seen)) abort();
        }
    }
    arena_destroy(a);
}

/* The printed program compiles and gives the same cells. */
static void check_print(const expr *e) {
    str text = {0};
    expr *again = NULL;
    if (expr_print(e, &text)) abort();
    if (expr_compile(&again, EXPR_MASK, text.s, decls, sizeof decls / sizeof *decls)) abort();
    for (int64_t i = 0; i < L * S; i++) {
        int f = 0, g = 0;
        if (expr_eval_mask(e, &env, 1, 1, i / S, i % S, &f) !=
                expr_eval_mask(again, &env, 1, 1, i / S, i % S, &g) ||
            f != g)
            abort();
    }
    expr_free(again);
    str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[1024];
    expr *e = NULL;
    if (size >= sizeof text || memchr(data, 0, size)) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (expr_compile(&e, EXPR_MASK, text, decls, sizeof decls / sizeof *decls)) {
        if (!*err_text()) abort();
        return 0;
    }
    if (expr_check_env(e, &env) == ERR_OK) {
        int all = 1, none = 1;
        for (int64_t b = 0; b < B; b++)
            for (int64_t h = 0; h < H; h++) compare_cells(e, b, h, &all, &none);
        check_intervals(e, all, none);
        check_print(e);
    }
    expr_free(e);
    return 0;
}
