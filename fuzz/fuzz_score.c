/* Fuzzing scores: any text either compiles or is refused with a sentence.
 *
 * What compiles must have a derivative or a sentence why not, print to a text that compiles to the same values, and give
 * the same floats by the plain definition and by tiles, along keys and along queries; sums for captured floats must stay
 * inside their arrays. Captures and extents are fixed; only the text varies. */
#include "expr/expr_score.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { L = 9, S = 13, SIDE = 16, N_DECLS = 5 };

static const int32_t doc[S] = {0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, -1, -1};
static const float table[L][3] = {{0.5f, -1.0f, 2.0f}, {0.0f, 3.0f, 1e30f}};
static const float bias[S] = {0.25f, -2.0f, 1.0f};

static const expr_decl decls[N_DECLS] = {{"doc", EXPR_INT, 1},
                                         {"t", EXPR_FLOAT, 2},
                                         {"bias", EXPR_FLOAT, 1},
                                         {"n", EXPR_INT, 0},
                                         {"x", EXPR_FLOAT, 0}};
static const expr_value values[N_DECLS] = {
    {.type = DT_I32, .dim = {S}, .data = doc},  {.type = DT_F32, .dim = {L, 3}, .data = table},
    {.type = DT_F32, .dim = {S}, .data = bias}, {.scalar.i = 5, .type = DT_I64},
    {.scalar.f = 0.25f, .type = DT_F32},
};
static const expr_env env = {.values = values};

static float logit(int64_t q, int64_t kv) { return (float)(q * 7 - kv * 3) / 8.0f; }
static int same(float x, float y) { return x == y ? signbit(x) == signbit(y) : x != x && y != y; }

static void compare_tile(const expr *e, const expr_grad *g, int q_lanes) {
    double sum[3][L * 3 + S] = {{0}};
    expr_score_sums sums = {.wide = {[1] = sum[0], [2] = sum[1], [4] = sum[2]}};
    const int64_t rows = q_lanes ? S : L, lanes = q_lanes ? L : S;
    void *scratch = aligned_alloc(64, (expr_score_scratch(g, SIDE, SIDE) + 63) / 64 * 64);
    if (!scratch) return;
    expr_score *x = expr_score_open(g, &env, q_lanes, EXPR_SCORE_CAPTURES, SIDE, SIDE, scratch);
    const expr_score_tile t = {.b = 1, .h = 1, .rows = rows, .lanes = lanes};
    expr_score_begin(x, &t, &sums);
    for (int64_t i = 0; i < rows; i++) {
        float s[SIDE], d[SIDE];
        int left = 0;
        for (int64_t j = 0; j < lanes; j++) {
            s[j] = q_lanes ? logit(j, i) : logit(i, j);
            d[j] = (float)(i - j);
        }
        int met = expr_score_row(x, i, s, 1.0f, NULL);
        for (int64_t j = 0; j < lanes; j++) {
            int64_t q = q_lanes ? j : i, kv = q_lanes ? i : j;
            float want = expr_eval_score(e, &env, 1, 1, q, kv, logit(q, kv), &left);
            if (!same(want, s[j])) abort();
        }
        if (left != (met & EXPR_SCORE_LEFT)) abort();
        (void)expr_score_row_grad(x, i, d, 0.5f);
    }
    expr_score_end(x);
    free(scratch);
}

static void check_print(const expr *e) {
    str text = {0};
    expr *again = NULL;
    if (expr_print(e, &text)) abort();
    if (expr_compile(&again, EXPR_SCORE, text.s, decls, N_DECLS)) abort();
    for (int64_t i = 0; i < L * S; i++) {
        int f = 0, g = 0;
        float s = logit(i / S, i % S);
        if (!same(expr_eval_score(e, &env, 1, 1, i / S, i % S, s, &f),
                  expr_eval_score(again, &env, 1, 1, i / S, i % S, s, &g)) ||
            f != g)
            abort();
    }
    expr_free(again);
    str_free(&text);
}

static void check_score(const expr *e) {
    arena *a = NULL;
    expr_grad *g;
    const unsigned wanted = 1u << 1 | 1u << 2 | 1u << 4;
    if (arena_create(&a, "fuzz", 0)) return;
    if (expr_grad_create(&g, e, wanted, a)) {
        if (!*err_text()) abort();
    } else {
        expr_grad_fault f;
        compare_tile(e, g, 0);
        compare_tile(e, g, 1);
        if (expr_grad_leaves(g, &env, 1, 1, 3, 4, &f) && f.capture > 2) abort();
    }
    arena_destroy(a);
    check_print(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[1024];
    expr *e = NULL;
    if (size >= sizeof text || memchr(data, 0, size)) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (expr_compile(&e, EXPR_SCORE, text, decls, N_DECLS)) {
        if (!*err_text()) abort();
        return 0;
    }
    if (expr_check_env(e, &env) == ERR_OK) check_score(e);
    expr_free(e);
    return 0;
}
