/* Fuzzing the mask language: any text either compiles or is refused with a sentence.
 *
 * What compiles must print to a text that compiles to the same values, must give equal cells by the plain
 * definition and by the tile interpreter, and what interval analysis says must hold: verdicts for the box of all
 * cells and for single cells, one by one and many at a time, proofs, and the tiles of the block mask. Captures and extents are fixed; only the text varies. */
#include "expr/interval_proofs.h"
#include "flex/blockmask.h"
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

/* A row of single cells many at a time, and the proofs over all cells. */
static void check_many(const expr *e) {
    const interval_box all = {0, B - 1, 0, H - 1, 0, L - 1, 0, S - 1};
    arena *a = NULL;
    interval_tables *t = NULL;
    interval_many *m = NULL;
    interval_spans s;
    uint8_t verdict[INTERVAL_MANY];
    interval_proofs p;
    int left = 0;
    if (arena_create(&a, "fuzz", 0)) return;
    if (!interval_tables_create(&t, e, &env, a) && !interval_many_create(&m, t, &all, a) && m) {
        for (int kv = 0; kv < S; kv++) s.q0[kv] = s.q1[kv] = 3, s.kv0[kv] = s.kv1[kv] = kv;
        interval_many_classify(m, 1, 1, S, &s, verdict);
        for (int kv = 0; kv < S; kv++) {
            int flag = 0, seen = expr_eval_mask(e, &env, 1, 1, 3, kv, &flag);
            if ((verdict[kv] == INTERVAL_ALL && !seen) || (verdict[kv] == INTERVAL_NONE && seen) ||
                (verdict[kv] < INTERVAL_LEAVES && flag))
                abort();
            left |= flag;
        }
        if (!interval_prove(&p, t, &all, a) && p.inside == p.n_loads && left) abort();
    }
    arena_destroy(a);
}

static int kind_in(const block_mask *m, int64_t line, int64_t at) {
    for (int64_t r = m->row_start[line]; r < m->row_start[line + 1]; r++)
        if (at >= m->row_run[r].start && at < m->row_run[r].start + m->row_run[r].length)
            return 1 + m->row_run[r].full;
    return 0;
}

/* Tiles of 4 x 4 against every cell. */
static void check_tiles(const expr *e) {
    enum { TILES = (L + 3) / 4 * ((S + 3) / 4) };
    uint8_t kinds[B * H * TILES];
    const block_mask_args args = {.mask = e,
                                  .env = &env,
                                  .batch = B,
                                  .heads = H,
                                  .q_len = L,
                                  .kv_len = S,
                                  .tile_q = 4,
                                  .tile_kv = 4};
    block_mask m;
    arena *a = NULL;
    if (arena_create(&a, "fuzz", 0)) return;
    if (!blockmask_build(&m, &args, a, NULL) && !blockmask_brute(&args, kinds))
        for (int64_t i = 0; i < B * H * TILES; i++) {
            int64_t entry =
                (m.batch == 1 ? 0 : i / TILES / H) * m.heads + (m.heads == 1 ? 0 : i / TILES % H);
            int64_t tile = i % TILES;
            if (kind_in(&m, entry * m.q_tiles + tile / m.kv_tiles, tile % m.kv_tiles) != kinds[i])
                abort();
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
        check_many(e);
        check_tiles(e);
        check_print(e);
    }
    expr_free(e);
    return 0;
}
