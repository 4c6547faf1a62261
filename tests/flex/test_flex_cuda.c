/* Plans for CUDA devices without one: texts, refusals, tables, steps, and what NVRTC says of a text.
 *
 * Kernels themselves are judged on a GPU (tests/gpu/test_attention.c). Here: a text follows from types, head sizes and
 * expressions and from nothing else; launches cover lengths of 0 and of all tiles; problems that no kernel takes are
 * refused in a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "attn_masks.h"
#include "attn_scores.h"
#include "flex/flex_cuda.h"
#include "support/nvrtc.h"
#include "support/says.h"

enum { SHARED = 101376 }; /* what a block has on the smallest supported devices */

static flex_problem problem(int64_t L, int64_t S, dtype type, int64_t dim) {
    return (flex_problem){.batch = 2,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .q_len = L,
                          .kv_len = S,
                          .dim = dim,
                          .v_dim = dim,
                          .type = type};
}

static arena *open_arena(void) {
    arena *a;
    assert_ok(arena_create(&a, "plans", 0));
    return a;
}

static void texts_of(const flex_problem *p, str text[FLEX_CUDA_TEXTS]) {
    arena *a = open_arena();
    flex_cuda_plan *plan;
    assert_ok(flex_cuda_plan_create(&plan, p, SHARED, a));
    for (int i = 0; i < FLEX_CUDA_TEXTS; i++) {
        memset(&text[i], 0, sizeof text[i]);
        if (i == FLEX_CUDA_CAPTURES && !p->score) continue;
        assert_ok(flex_cuda_put_text(plan, (flex_cuda_text)i, &text[i]));
    }
    arena_destroy(a);
}

/* P3: lengths, batch, heads, scalars and arrays of other sizes change no text; a type or a head size does. */
static void texts_follow_from_types_and_expressions_alone(void **state) {
    (void)state;
    const expr_decl decl[2] = {{"n", EXPR_INT, 0}, {"t", EXPR_FLOAT, 1}};
    float data[64] = {0};
    expr *mask, *score;
    assert_ok(expr_compile(&mask, EXPR_MASK, "kv <= q && q - kv < n", decl, 2));
    assert_ok(expr_compile(&score, EXPR_SCORE, "s + t[h] * float(n)", decl, 2));
    str first[FLEX_CUDA_TEXTS], other[FLEX_CUDA_TEXTS];
    for (int i = 0; i < 6; i++) {
        const expr_value value[2] = {{.scalar.i = 5 + i},
                                     {.type = DT_F32, .dim = {8 + i}, .data = data}};
        const expr_env env = {value, i, 2 * i};
        flex_problem p = problem(100 + 60 * i, 50 + 77 * i, DT_BF16, 64);
        p.batch = 1 + i, p.q_heads = 8, p.kv_heads = i % 2 ? 4 : 1, p.scale = (float)i;
        p.mask = mask, p.env = &env, p.score = score, p.score_env = &env, p.score_grads = 2;
        if (i == 4) p.type = DT_F16;
        if (i == 5) p.dim = 72;
        texts_of(&p, i ? other : first);
        for (int k = 0; i && k < FLEX_CUDA_TEXTS; k++) {
            const int same =
                other[k].n == first[k].n && !memcmp(other[k].s, first[k].s, first[k].n);
            assert_int_equal(same, i < 4);
            str_free(&other[k]);
        }
    }
    for (int k = 0; k < FLEX_CUDA_TEXTS; k++) str_free(&first[k]);
    expr_free(mask);
    expr_free(score);
}

static void refuses(const flex_problem *p, size_t shared, err code, const char *const *parts) {
    arena *a = open_arena();
    flex_cuda_plan *plan;
    says_check(flex_cuda_plan_create(&plan, p, shared, a), code, parts, __FILE__, __LINE__);
    arena_destroy(a);
}
#define REFUSES(p, shared, code, ...)                                                              \
    refuses(p, shared, code, (const char *const[]){__VA_ARGS__, NULL})

static void what_no_kernel_takes_is_refused(void **state) {
    (void)state;
    flex_problem p = problem(10, 10, DT_BF16, 128);
    REFUSES(&p, 48 * 1024, ERR_REFUSED, "head dimensions 128 and 128", "49152", "shared memory");
    p.dim = 20;
    REFUSES(&p, SHARED, ERR_SHAPE, "20", "multiple of 8");
    p = problem(10, 10, DT_BF16, 64);
    p.tile_q = 64;
    REFUSES(&p, SHARED, ERR_RANGE, "64 x 128", "multiples of 128");
    p = problem(INT64_C(1) << 36, 10, DT_BF16, 64);
    REFUSES(&p, SHARED, ERR_REFUSED, "more than one launch", "split the batch");
    p = problem(10, 10, DT_I8, 64);
    REFUSES(&p, SHARED, ERR_SHAPE, "I8");
    for (int64_t dim = 8; dim <= 256; dim += 8) { /* every head size fits the smallest devices */
        for (int64_t v_dim = 8; v_dim <= 256; v_dim += 8) {
            arena *a = open_arena();
            flex_cuda_plan *plan;
            p = problem(1, 1, DT_BF16, dim);
            p.v_dim = v_dim;
            assert_ok(flex_cuda_plan_create(&plan, &p, SHARED, a));
            arena_destroy(a);
        }
    }
}

static flex_cuda_io some_io(void) {
    flex_cuda_io io = {.lse = 256, .d_lse = 256, .tables = 256, .workspace = 256, .d_sinks = 256};
    flex_cuda_view *views[] = {&io.q, &io.k, &io.v, &io.o, &io.d_o, &io.dq, &io.dk, &io.dv};
    for (int i = 0; i < 8; i++) *views[i] = (flex_cuda_view){256, 8192, 4096, 64};
    for (int i = 0; i < EXPR_MAX_CAPTURES; i++) io.d_capture[i] = io.score_arrays[i] = 256;
    return io;
}

static unsigned blocks_of(const flex_cuda_steps *s, const char *function) {
    for (int i = 0; i < s->n; i++)
        if (s->step[i].function && !strcmp(s->step[i].function, function))
            return s->step[i].grid[0];
    return 0;
}

static void steps_cover_all_rows_and_keys(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{0, 0}, {0, 5}, {5, 0}, {1, 1}, {128, 129}, {300, 1000}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        arena *a = open_arena();
        flex_cuda_plan *plan;
        flex_cuda_steps s;
        const int64_t L = lengths[i][0], S = lengths[i][1];
        const flex_problem p = problem(L, S, DT_BF16, 128);
        const flex_cuda_io io = some_io();
        assert_ok(flex_cuda_plan_create(&plan, &p, SHARED, a));
        assert_ok(flex_cuda_forward(plan, &io, a, &s));
        assert_int_equal(blocks_of(&s, "flex_forward"), (L + 127) / 128 * 8);
        assert_ok(flex_cuda_backward(plan, &io, a, &s));
        assert_int_equal(blocks_of(&s, "flex_delta"), (8 * L + 7) / 8);
        assert_int_equal(blocks_of(&s, "flex_dq"), (L + 127) / 128 * 8);
        assert_int_equal(blocks_of(&s, "flex_dkv"), (S + 127) / 128 * 4);
        arena_destroy(a);
    }
}

/* Tiles with more to do come first; slots of captures stay within their bound. */
static void tables_and_workspace_are_as_stated(void **state) {
    (void)state;
    arena *a = open_arena();
    flex_cuda_plan *plan;
    attn_mask mask;
    attn_score score;
    size_t bytes;
    flex_problem p = problem(1000, 1000, DT_BF16, 64);
    attn_mask_make(&mask, MASK_CAUSAL, 2, 1000, 1000, 1);
    attn_score_make(&score, SCORE_DENSE, 2, 4, 1000, 1000, 1);
    p.mask = mask.e, p.env = &mask.env;
    p.score = score.e, p.score_env = &score.env, p.score_grads = score.wanted;
    assert_ok(flex_cuda_plan_create(&plan, &p, SHARED, a));
    const char *tables = flex_cuda_tables(plan, &bytes);
    const block_mask *m = flex_cuda_plan_mask(plan);
    assert_int_equal(m->q_tiles, 8);
    const int32_t *row_order = (const int32_t *)(const void *)(tables + bytes - 512),
                  *col_order = (const int32_t *)(const void *)(tables + bytes - 256);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(row_order[i], 7 - i);
        assert_int_equal(col_order[i], i);
    }
    str words = {0};
    assert_ok(flex_cuda_explain(plan, &words));
    static const char *const says[] = {"mma.sync",          "BF16",
                                       "gradients by keys", "partial",
                                       "32 bits",           "added in place by 4000 warps",
                                       "tiles visited",     "dense fp32 scores would take 31 MiB"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(words.s, says[i])) fail_msg("'%s' is not in:\n%s", says[i], words.s);
    str_free(&words);
    /* A dense bias is added to in place: the workspace holds two words and delta. */
    assert_int_equal(flex_cuda_workspace(plan), 256 + (2 * 4 * 1000 * 4 + 255) / 256 * 256);
    arena_destroy(a);
    attn_mask_free(&mask);
    attn_score_free(&score);
}

static void what_a_run_met_is_said(void **state) {
    (void)state;
    arena *a = open_arena();
    flex_cuda_plan *plan;
    int left = 7;
    int64_t cell[4];
    const flex_problem p = problem(10, 20, DT_BF16, 64);
    assert_ok(flex_cuda_plan_create(&plan, &p, SHARED, a));
    assert_ok(flex_cuda_judge(plan, (uint64_t[]){UINT64_MAX, UINT64_MAX}, &left, cell));
    assert_int_equal(left, 0);
    assert_ok(flex_cuda_judge(plan, (uint64_t[]){((1 * 4 + 3) * 10 + 6) * 20 + 19, UINT64_MAX},
                              &left, cell));
    assert_int_equal(left, 1);
    assert_memory_equal(cell, ((int64_t[]){1, 3, 6, 19}), sizeof cell);
    says_check(flex_cuda_judge(plan, (uint64_t[]){UINT64_MAX, (1 * 4 + 2) * 10 + 9}, &left, cell),
               ERR_NUMERIC, (const char *const[]){"b 1, h 2, q 9", "NaN", NULL}, __FILE__,
               __LINE__);
    arena_destroy(a);
}

static void a_text_of_each_kind_compiles(void **state) {
    (void)state;
    nvrtc n;
    if (!nvrtc_open(&n)) {
        printf("skipped: no NVRTC on this machine\n");
        skip();
    }
    attn_mask mask;
    attn_score score;
    flex_problem p = problem(100, 100, DT_BF16, 32);
    attn_mask_make(&mask, MASK_DOCUMENT_CAUSAL, 2, 100, 100, 1);
    attn_score_make(&score, SCORE_TWICE, 2, 4, 100, 100, 1);
    p.mask = mask.e, p.env = &mask.env;
    p.score = score.e, p.score_env = &score.env, p.score_grads = score.wanted;
    for (int plain = 0; plain < 2; plain++) {
        str text[FLEX_CUDA_TEXTS];
        if (plain) p.type = DT_F32;
        texts_of(&p, text);
        for (int i = 0; i < FLEX_CUDA_TEXTS; i++) {
            size_t size;
            char *cubin = plain && i == FLEX_CUDA_DKV
                              ? malloc(1) /* fp32 has it in the text of dq */
                              : nvrtc_cubin(&n, text[i].s, "attention", "sm_80", &size, NULL);
            assert_non_null(cubin);
            free(cubin);
            str_free(&text[i]);
        }
    }
    attn_mask_free(&mask);
    attn_score_free(&score);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_follow_from_types_and_expressions_alone),
        cmocka_unit_test(what_no_kernel_takes_is_refused),
        cmocka_unit_test(steps_cover_all_rows_and_keys),
        cmocka_unit_test(tables_and_workspace_are_as_stated),
        cmocka_unit_test(what_a_run_met_is_said),
        cmocka_unit_test(a_text_of_each_kind_compiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
