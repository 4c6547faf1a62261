/* Block masks built on a device, beside those that the host builds from a copy of the same arrays: equal run for run.
 *
 * Random masks over every capture, all element types, arrays with many elements to a leaf, loads that leave; then the same
 * through `paceline mask`, and attention over such a mask. Skipped where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "flex/blockmask_cuda.h"
#include "flex/far_arrays.h"
#include "gpu_case.h"
#include "io/safetensors.h"
#include "support/random_world.h"
#include "support/run.h"

enum { TEXT = 2000, MASKS = 60, LONG = 100000 };

/* ---- one mask, both ways ---- */

typedef struct
    both { /* the last two on the device, of arrays that stay there and of arrays that are copied */
    block_mask near, far, copied;
    err near_got, far_got, copied_got;
    char near_says[1000], far_says[1000], copied_says[1000];
    expr_value value[EXPR_MAX_CAPTURES];
    expr_env env; /* addresses on the device */
} both;

static void send(both *x, const gpu_world *w, const block_mask_args *args) {
    for (int i = 0; i < expr_capture_count(args->mask); i++) {
        x->value[i] = args->env->values[i];
        if (!expr_capture(args->mask, i)->ndim) continue;
        const size_t bytes = expr_value_bytes(&x->value[i], expr_capture(args->mask, i)->ndim);
        x->value[i].data = (const void *)(uintptr_t)gpu_copy(w, x->value[i].data, bytes);
    }
    x->env = (expr_env){x->value, args->env->q0, args->env->kv0};
}

static err build_there(block_mask *m, char says[1000], const gpu_world *w,
                       const block_mask_args *args, size_t near, arena *a) {
    blockmask_cuda *c;
    assert_ok(blockmask_cuda_open(&c, w->d, args->mask, args->env, near, a));
    const err e = blockmask_cuda_build(m, c, args, w->s, a);
    if (e) snprintf(says, 1000, "%s", err_text());
    blockmask_cuda_close(c);
    return e;
}

static void build_both(both *x, const gpu_world *w, const block_mask_args *args, arena *a) {
    memset(x, 0, sizeof *x);
    x->near_got = blockmask_build(&x->near, args, a, NULL);
    if (x->near_got) snprintf(x->near_says, sizeof x->near_says, "%s", err_text());
    block_mask_args there = *args;
    send(x, w, args);
    there.env = &x->env;
    x->far_got = build_there(&x->far, x->far_says, w, &there, 0, a);
    x->copied_got = build_there(&x->copied, x->copied_says, w, &there, BLOCKMASK_CUDA_NEAR, a);
}

static void must_agree(const both *x, uint64_t seed, const char *text) {
    const char *why = NULL;
    if (x->near_got != x->far_got || x->near_got != x->copied_got) why = "one is refused";
    if (!why && !x->near_got) why = far_arrays_differ(&x->near, &x->far);
    if (!why && !x->near_got) why = far_arrays_differ(&x->near, &x->copied);
    if (why)
        fail_msg("seed %llu: %s; host '%s', device '%s', with copied arrays '%s'\n%s",
                 (unsigned long long)seed, why, x->near_says, x->far_says, x->copied_says, text);
}

static void random_masks(void **state) {
    static random_world world;
    static both x;
    static char text[TEXT];
    gpu_world *w = *state;
    const uint64_t seed = numbers_seed();
    arena *a;
    int built = 0;
    if (!w->d) skip();
    const int masks = (int)gpu_fewer(w, MASKS, 12); /* each brings a text to compile */
    random_world_declare(&world);
    assert_ok(arena_create(&a, "masks", 0));
    /* Any number of them may be refused, and most of what is looked at are those that are not. */
    for (int i = 0; i < masks || built <= masks / 2; i++) {
        if (i == 20 * masks) fail_msg("of %d masks only %d are not refused", i, built);
        static const int32_t tiles[] = {128, 64, 16, 40};
        const size_t mark = gpu_mark(w);
        expr *e;
        world.state = seed + (uint64_t)i;
        random_expr_mask(&world.state, 1 + random_world_draw(&world, 4), text, sizeof text);
        random_world_bind(&world, RANDOM_WORLD_LENGTH);
        if (random_world_draw(&world, 2))
            for (int k = 4; k < RANDOM_EXPR_CAPTURES; k++)
                if (world.decl[k].ndim == 1) world.value[k].dim[0] = RANDOM_WORLD_LENGTH;
        assert_ok(expr_compile(&e, EXPR_MASK, text, world.decl, RANDOM_EXPR_CAPTURES));
        build_both(&x, w,
                   &(block_mask_args){.mask = e,
                                      .env = &world.env,
                                      .batch = 2,
                                      .heads = 2,
                                      .q_len = 1 + random_world_draw(&world, 150),
                                      .kv_len = 1 + random_world_draw(&world, 150),
                                      .tile_q = tiles[random_world_draw(&world, 4)],
                                      .tile_kv = tiles[random_world_draw(&world, 4)]},
                   a);
        must_agree(&x, seed + (uint64_t)i, text);
        built += !x.near_got;
        expr_free(e);
        gpu_reset(w, mark);
    }
    printf("%d masks built and equal\n", built);
    arena_destroy(a);
}

/* ---- every element type, with more elements than leaves ---- */

static void fill(dtype t, void *data, uint64_t seed) {
    for (int64_t i = 0; i < LONG; i++) {
        const int64_t v = numbers_below(seed, 1, (uint64_t)(i / 50), 100) - 50 * (t != DT_U8);
        const float f = i % 7001 == 0 ? NAN : (float)v / 3.0f;
        switch (t) {
        case DT_I64: ((int64_t *)data)[i] = v * 1000000007; break;
        case DT_I32: ((int32_t *)data)[i] = (int32_t)v; break;
        case DT_I16: ((int16_t *)data)[i] = (int16_t)v; break;
        case DT_I8: ((int8_t *)data)[i] = (int8_t)v; break;
        case DT_U8: ((uint8_t *)data)[i] = (uint8_t)v; break;
        case DT_BOOL: ((uint8_t *)data)[i] = (uint8_t)(v & 1); break;
        case DT_F32: ((float *)data)[i] = f; break;
        case DT_F64: ((double *)data)[i] = (double)f; break;
        case DT_BF16: ((bf16 *)data)[i] = bf16_from_f32(f); break;
        default: ((f16 *)data)[i] = f16_from_f32(f); break;
        }
    }
}

static void every_element_type(void **state) {
    static const struct {
        dtype type;
        expr_type as;
        const char *text;
    } list[] = {
        {DT_I64, EXPR_INT, "x[q] == x[kv]"},        {DT_I32, EXPR_INT, "x[q] == x[kv] && kv <= q"},
        {DT_I16, EXPR_INT, "x[q] < x[kv + 60000]"}, {DT_I8, EXPR_INT, "x[kv] > 3"},
        {DT_U8, EXPR_INT, "x[q] % 2 == 1"},         {DT_U8, EXPR_BOOL, "x[kv] && kv <= q"},
        {DT_BOOL, EXPR_BOOL, "x[q + 99000]"},       {DT_I32, EXPR_BOOL, "x[kv] || q < 100"},
        {DT_F32, EXPR_FLOAT, "x[q] > 0.5"},         {DT_F64, EXPR_FLOAT, "x[kv] * 2.0 < x[q]"},
        {DT_BF16, EXPR_FLOAT, "x[kv] <= 5.0"},      {DT_F16, EXPR_FLOAT, "exp(x[q] / 20.0) > 0.9"},
    };
    static both x;
    static double data[LONG];
    gpu_world *w = *state;
    const uint64_t seed = numbers_seed();
    arena *a;
    if (!w->d) skip();
    assert_ok(arena_create(&a, "masks", 0));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const size_t mark = gpu_mark(w);
        const expr_decl decl = {"x", list[i].as, 1};
        const expr_value value = {.type = list[i].type, .dim = {LONG}, .data = data};
        const expr_env env = {&value, 0, 0};
        expr *e;
        fill(list[i].type, data, seed);
        assert_ok(expr_compile(&e, EXPR_MASK, list[i].text, &decl, 1));
        build_both(&x, w,
                   &(block_mask_args){.mask = e,
                                      .env = &env,
                                      .batch = 1,
                                      .heads = 1,
                                      .q_len = 501,
                                      .kv_len = 390,
                                      .tile_q = 128,
                                      .tile_kv = 64},
                   a);
        must_agree(&x, seed, list[i].text);
        assert_ok(x.near_got);
        expr_free(e);
        gpu_reset(w, mark);
    }
    arena_destroy(a);
}

static void loads_that_leave_are_told_alike(void **state) {
    static const char *const texts[] = {"doc[q] == doc[kv]", "kv < 40 && doc[kv] == doc[q]",
                                        "q < 50 && (kv >= 30 || doc[kv + 25] == 0)"};
    static const int32_t ids[50];
    static both x;
    gpu_world *w = *state;
    arena *a;
    if (!w->d) skip();
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 3; i++) {
        const expr_decl decl = {"doc", EXPR_INT, 1};
        const expr_value value = {.type = DT_I32, .dim = {50}, .data = ids};
        const expr_env env = {&value, 0, 0};
        expr *e;
        assert_ok(expr_compile(&e, EXPR_MASK, texts[i], &decl, 1));
        build_both(&x, w,
                   &(block_mask_args){.mask = e,
                                      .env = &env,
                                      .batch = 1,
                                      .heads = 1,
                                      .q_len = 60,
                                      .kv_len = 60,
                                      .tile_q = 16,
                                      .tile_kv = 16},
                   a);
        must_agree(&x, 0, texts[i]);
        assert_string_equal(x.near_says, x.far_says);
        assert_string_equal(x.near_says, x.copied_says);
        expr_free(e);
    }
    arena_destroy(a);
}

static void kernels_are_for_one_mask_and_its_types(void **state) {
    static const int32_t ids[50];
    gpu_world *w = *state;
    const expr_decl decl = {"doc", EXPR_INT, 1};
    expr_value value = {.type = DT_I32, .dim = {50}, .data = ids};
    const expr_env env = {&value, 0, 0};
    blockmask_cuda *c;
    block_mask m;
    arena *a;
    expr *e, *other;
    if (!w->d) skip();
    assert_ok(arena_create(&a, "masks", 0));
    assert_ok(expr_compile(&e, EXPR_MASK, "doc[kv] == 0", &decl, 1));
    assert_ok(expr_compile(&other, EXPR_MASK, "doc[kv] == 1", &decl, 1));
    assert_ok(blockmask_cuda_open(&c, w->d, e, &env, BLOCKMASK_CUDA_NEAR, a));
    assert_true(blockmask_cuda_bytes(c) > 0);
    block_mask_args args = {
        .mask = other, .env = &env, .batch = 1, .heads = 1, .q_len = 50, .kv_len = 50};
    assert_says(blockmask_cuda_build(&m, c, &args, w->s, a), ERR_USAGE, "doc[kv] == 0",
                "doc[kv] == 1");
    args.mask = e;
    value.type = DT_I64;
    assert_says(blockmask_cuda_build(&m, c, &args, w->s, a), ERR_SHAPE, "`doc`", "I64", "I32");
    blockmask_cuda_close(c);
    expr_free(other);
    assert_ok(expr_compile(&other, EXPR_MASK, "kv <= q", NULL, 0));
    args.mask = other, args.env = NULL;
    assert_ok(blockmask_cuda_open(&c, w->d, other, NULL, 0, a));
    assert_int_equal(blockmask_cuda_bytes(c), 0);
    assert_ok(blockmask_cuda_build(&m, c, &args, w->s, a));
    assert_int_equal(m.partial, 1);
    blockmask_cuda_close(c);
    expr_free(e);
    expr_free(other);
    arena_destroy(a);
}

/* ---- attention under it ---- */

static void check_attention(const gpu_world *w, dtype type, uint64_t seed) {
    const flex_problem shape = {.batch = 1,
                                .q_heads = 2,
                                .kv_heads = 1,
                                .q_len = 200,
                                .kv_len = 231,
                                .dim = 64,
                                .v_dim = 64,
                                .type = type};
    static gpu_case x[2]; /* tiles by the host, by the device */
    static both m;
    arena *a;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 2; i++) gpu_case_make(&x[i], &shape, MASK_DOCUMENT_CAUSAL, 0, 0, seed);
    gpu_case_plan(&x[0], w);
    const flex_problem *p = &x[1].c.p;
    build_both(&m, w,
               &(block_mask_args){.mask = p->mask,
                                  .env = p->env,
                                  .batch = p->batch,
                                  .heads = p->q_heads,
                                  .q_len = p->q_len,
                                  .kv_len = p->kv_len},
               a);
    assert_ok(m.far_got);
    flex_problem q = *p;
    q.type = type, q.tile_q = q.tile_kv = 0, q.blocks = &m.far, q.env = &m.env;
    assert_ok(arena_create(&x[1].a, "gpu case", 0));
    assert_ok(
        flex_cuda_plan_create(&x[1].plan, &q, (size_t)dev_cuda_info(w->d)->shared_block, x[1].a));
    assert_false(flex_cuda_needs(x[1].plan, FLEX_CUDA_CHECK, 0)); /* its loads are proven */
    gpu_cases_load(x, 2, w);
    for (int i = 0; i < 2; i++) gpu_case_run(&x[i], w);
    assert_memory_equal(x[0].got.o, x[1].got.o, (size_t)(x[0].c.nq * p->v_dim) * 4);
    assert_memory_equal(x[0].got.dq, x[1].got.dq, (size_t)(x[0].c.nq * p->dim) * 4);
    assert_memory_equal(x[0].got.dk, x[1].got.dk, (size_t)(x[0].c.nk * p->dim) * 4);
    for (int i = 0; i < 2; i++) gpu_case_free(&x[i]);
    arena_destroy(a);
}

/* Tiles found by the device give the bits of tiles found by the host; the plan gets arrays that only the device can read. */
static void attention_under_it_is_the_same(void **state) {
    gpu_world *w = *state;
    if (!w->d) skip();
    check_attention(w, DT_BF16, numbers_seed());
    check_attention(w, DT_F32, numbers_seed());
    gpu_reset(w, 0);
}

/* ---- as a user asks for it ---- */

static void the_command_builds_there(void **state) {
    static int32_t doc[1000];
    gpu_world *w = *state;
    char cache[700], path[700];
    run_result here, there;
    if (!w->d) skip();
    for (int i = 0; i < 1000; i++) doc[i] = i / 170 * 7 % 5;
    snprintf(path, sizeof path, "%s", files_at(&w->dir, "arrays.safetensors"));
    snprintf(cache, sizeof cache, "PACELINE_CACHE=%s", files_at(&w->dir, "kernels"));
    const tensor t = {"doc", DT_I32, 1, {1000}, doc};
    assert_ok(safetensors_write(path, &t, 1, NULL, 0));
    const char *args[] = {"mask",   "doc[q] == doc[kv] && kv <= q + 3",
                          "--q",    "1000",
                          "--kv",   "997",
                          "--in",   path,
                          "--json", NULL,
                          NULL,     NULL};
    run_program(&here, (const char *const[]){cache, NULL}, args);
    args[9] = "--device", args[10] = "cuda:0";
    run_program(&there, (const char *const[]){cache, NULL}, args);
    if (here.code || there.code) fail_msg("%s\n%s", here.text, there.text);
    const size_t tiles = strcspn(here.text, "}");
    assert_int_equal(strncmp(here.text, there.text, tiles), 0);
    assert_non_null(strstr(here.text, "\"device\": \"cpu\", \"device_bytes\": 0"));
    assert_non_null(strstr(there.text, "\"device\": \"cuda:0\""));
    args[8] = "--explain";
    run_program(&there, (const char *const[]){cache, NULL}, args);
    printf("%s", there.text);
    if (!strstr(there.text, "3.9 KiB of captured arrays there")) fail_msg("%s", there.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_masks),
        cmocka_unit_test(every_element_type),
        cmocka_unit_test(loads_that_leave_are_told_alike),
        cmocka_unit_test(kernels_are_for_one_mask_and_its_types),
        cmocka_unit_test(attention_under_it_is_the_same),
        cmocka_unit_test(the_command_builds_there),
    };
    return cmocka_run_group_tests(tests, gpu_world_set_up, gpu_world_tear_down);
}
