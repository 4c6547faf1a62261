/* Block masks whose arrays the builder cannot read: equal, run for run, to those built from a copy that it can.
 *
 * Questions are answered from the copy by the definition (far_arrays.h); the kernels that answer them on a device have
 * tests of their own. Random masks, arrays of many elements to a leaf, more questions than one call takes, and
 * refusals. Seeds come from the clock and are printed. Usage: test_blockmask_far [MASKS] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "far_arrays.h"
#include "support/random_world.h"
#include "support/says.h"

enum { TEXT = 4000 };
static int masks = 3000;

typedef struct
    both { /* asked: the builder reads the arrays, and still has its questions answered */
    block_mask near, far, asked;
    err near_got, far_got, asked_got;
    char near_says[1000], far_says[1000], asked_says[1000];
    far_arrays f;
} both;

static void build_both(both *x, const block_mask_args *args, arena *a) {
    memset(x, 0, sizeof *x);
    far_arrays_make(&x->f, args->mask, args->env);
    x->near_got = blockmask_build(&x->near, args, a, NULL);
    if (x->near_got) snprintf(x->near_says, sizeof x->near_says, "%s", err_text());
    block_mask_args there = *args;
    there.env = &x->f.env;
    x->far_got = blockmask__build(&x->far, &there, &x->f.far, a);
    if (x->far_got) snprintf(x->far_says, sizeof x->far_says, "%s", err_text());
    blockmask__far asking = x->f.far;
    asking.arrays = (interval_source){0};
    x->asked_got = blockmask__build(&x->asked, args, &asking, a);
    if (x->asked_got) snprintf(x->asked_says, sizeof x->asked_says, "%s", err_text());
}

/* Why they differ, or NULL. */
static const char *differ(const both *x) {
    if (x->near_got != x->far_got || x->near_got != x->asked_got) return "one is refused";
    if (x->near_got) return NULL;
    const char *why = far_arrays_differ(&x->near, &x->far);
    return why ? why : far_arrays_differ(&x->near, &x->asked);
}

static void must_agree(const both *x, uint64_t seed, const char *text) {
    const char *why = differ(x);
    if (why)
        fail_msg("seed %llu: %s; near '%s', far '%s', asked '%s'\n%s", (unsigned long long)seed,
                 why, x->near_says, x->far_says, x->asked_says, text);
}

/* ---- random masks ---- */

static void one_mask(random_world *w, uint64_t seed, arena *a, int64_t *built, both *x) {
    static const int32_t tiles[] = {128, 64, 16, 8, 64, 40};
    static char text[TEXT];
    expr *e;
    w->state = seed;
    random_expr_mask(&w->state, 1 + random_world_draw(w, 4), text, sizeof text);
    random_world_bind(w, RANDOM_WORLD_LENGTH);
    block_mask_args args = {.env = &w->env,
                            .batch = 2,
                            .heads = 3,
                            .q_len = 1 + random_world_draw(w, 150),
                            .kv_len = 1 + random_world_draw(w, 150),
                            .tile_q = tiles[random_world_draw(w, 6)],
                            .tile_kv = tiles[random_world_draw(w, 6)]};
    if (random_world_draw(w, 2)) /* arrays that cover the lengths: masks without refusals */
        for (int i = 4; i < RANDOM_EXPR_CAPTURES; i++)
            if (w->decl[i].ndim == 1) w->value[i].dim[0] = RANDOM_WORLD_LENGTH;
    assert_ok(expr_compile(&e, EXPR_MASK, text, w->decl, RANDOM_EXPR_CAPTURES));
    args.mask = e;
    build_both(x, &args, a);
    must_agree(x, seed, text);
    *built += !x->near_got;
    expr_free(e);
}

static void random_masks_equal_those_of_a_copy(void **state) {
    static random_world w;
    static both x;
    const uint64_t seed = numbers_seed();
    int64_t built = 0, asked = 0;
    const int n = masks;
    arena *a;
    (void)state;
    random_world_declare(&w);
    assert_ok(arena_create(&a, "masks", 0));
    const arena_mark mark = arena_get_mark(a);
    for (int i = 0; i < n; i++) {
        one_mask(&w, seed + (uint64_t)i, a, &built, &x);
        asked += x.f.tiles > 0;
        arena_reset(a, mark);
    }
    print_message("%lld of %d masks built and equal, %lld asked for tiles\n", (long long)built, n,
                  (long long)asked);
    if (n >= 100) assert_true(built > n / 2 && built < n && asked > n / 10);
    arena_destroy(a);
}

/* ---- masks that people use, with arrays of several elements to a leaf ---- */

enum { LONG = 100000 };

typedef struct named {
    const char *name, *text;
    int64_t q_len, kv_len;
    int32_t tile;
} named;

static const named list[] = {
    {"documents", "doc[q] == doc[kv] && kv <= q", 3000, 3000, 128},
    {"documents apart", "mixed[q] == mixed[kv]", 1500, 1500, 64},
    {"far documents", "doc[q + 90000] == doc[kv + 90011]", 2000, 2000, 128},
    {"anchors", "let a = anchor[q // 16]; kv < n ? kv < a : (kv - n) // 16 == q // 16", 2048, 4096,
     128},
    {"floats", "bias[q] > 0.5 && weight[kv] < 3.0", 900, 900, 128},
    {"conditions", "keep[kv] && (q - kv) % 3 == 0", 700, 900, 64},
    {"diagonal", "q - kv >= -500 && anchor[q - kv + 500] % 2 == 0", 1000, 500, 128},
    {"nothing", "keep[q] && doc[kv] < 0", 300, 300, 128},
};

typedef struct arrays {
    int32_t doc[LONG], mixed[LONG];
    int64_t anchor[2000];
    float bias[LONG];
    bf16 weight[LONG];
    uint8_t keep[LONG];
} arrays;

static const expr_decl decls[] = {{"doc", EXPR_INT, 1},      {"mixed", EXPR_INT, 1},
                                  {"anchor", EXPR_INT, 1},   {"bias", EXPR_FLOAT, 1},
                                  {"weight", EXPR_FLOAT, 1}, {"keep", EXPR_BOOL, 1},
                                  {"n", EXPR_INT, 0}};
enum { DECLS = sizeof decls / sizeof *decls };

static void fill_arrays(arrays *x, uint64_t seed) {
    int32_t id = 0, other = 0;
    for (int64_t i = 0; i < LONG; i++) {
        if (numbers_below(seed, 1, (uint64_t)i, 200) == 0) id++;
        if (numbers_below(seed, 2, (uint64_t)i, 70) == 0)
            other = (int32_t)numbers_below(seed, 3, (uint64_t)i, 1000) - 500;
        x->doc[i] = id, x->mixed[i] = other;
        x->bias[i] = (float)numbers_below(seed, 4, (uint64_t)i, 1000) / 900.0f;
        if (i % 5000 == 0) x->bias[i] = NAN;
        x->weight[i] = bf16_from_f32((float)numbers_below(seed, 5, (uint64_t)i, 100) / 30.0f);
        x->keep[i] = (uint8_t)(numbers_below(seed, 6, (uint64_t)(i / 40), 2) * 7);
    }
    for (int64_t i = 0; i < 2000; i++)
        x->anchor[i] = i * 16 + numbers_below(seed, 7, (uint64_t)i, 16);
}

static void masks_of_long_arrays(void **state) {
    static both x;
    int64_t far = 0, asked = 0;
    const uint64_t seed = numbers_seed();
    arrays *data = malloc(sizeof *data);
    arena *a;
    (void)state;
    if (!data) abort();
    fill_arrays(data, seed);
    const expr_value values[DECLS] = {{.type = DT_I32, .dim = {LONG}, .data = data->doc},
                                      {.type = DT_I32, .dim = {LONG}, .data = data->mixed},
                                      {.type = DT_I64, .dim = {2000}, .data = data->anchor},
                                      {.type = DT_F32, .dim = {LONG}, .data = data->bias},
                                      {.type = DT_BF16, .dim = {LONG}, .data = data->weight},
                                      {.type = DT_U8, .dim = {LONG}, .data = data->keep},
                                      {.scalar.i = 2048}};
    const expr_env env = {values, 0, 0};
    assert_ok(arena_create(&a, "masks", 0));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const named *m = &list[i];
        expr *e;
        assert_ok(expr_compile(&e, EXPR_MASK, m->text, decls, DECLS));
        build_both(&x,
                   &(block_mask_args){.mask = e,
                                      .env = &env,
                                      .batch = 1,
                                      .heads = 1,
                                      .q_len = m->q_len,
                                      .kv_len = m->kv_len,
                                      .tile_q = m->tile,
                                      .tile_kv = m->tile},
                   a);
        must_agree(&x, seed, m->text);
        assert_ok(x.near_got);
        printf("%-16s %lld tiles and %lld boxes of rows asked for in %lld calls\n", m->name,
               (long long)x.f.tiles, (long long)x.f.rows, (long long)x.f.calls);
        far += x.far.undecided, asked += x.asked.undecided;
        expr_free(e);
    }
    printf("%lld tiles undecided, and %lld where arrays can be read\n", (long long)far,
           (long long)asked);
    assert_true(asked < far); /* of all: of one mask leaves may happen to tell more */
    arena_destroy(a);
    free(data);
}

/* Leaves of one element are the array: ids in no order, whose classes collide, are told apart without a question. */
static void short_arrays_lose_nothing(void **state) {
    enum { TOKENS = 6000 };
    static both x;
    static int32_t doc[TOKENS];
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {TOKENS}, .data = doc};
    const expr_env env = {&value, 0, 0};
    const uint64_t seed = numbers_seed();
    int32_t id = 0;
    arena *a;
    expr *e;
    (void)state;
    for (uint64_t i = 0; i < TOKENS; i++) {
        if (numbers_below(seed, 1, i, 40) == 0) id = (int32_t)numbers_below(seed, 2, i, 100000);
        doc[i] = id;
    }
    assert_ok(arena_create(&a, "masks", 0));
    assert_ok(expr_compile(&e, EXPR_MASK, "doc[q] == doc[kv]", &decl, 1));
    build_both(&x,
               &(block_mask_args){.mask = e,
                                  .env = &env,
                                  .batch = 1,
                                  .heads = 1,
                                  .q_len = TOKENS,
                                  .kv_len = TOKENS,
                                  .tile_q = 64,
                                  .tile_kv = 64},
               a);
    assert_ok(x.near_got);
    must_agree(&x, seed, expr_source(e));
    assert_true(x.near.empty > 1000);
    assert_int_equal(x.f.nothing, 0);
    expr_free(e);
    arena_destroy(a);
}

/* More undecided tiles, and more runs of one row of tiles, than one call takes. */
static void more_questions_than_a_call_takes(void **state) {
    static both x;
    enum { HASHES = 1 << 18 }; /* eight to a leaf, so that single cells do not tell */
    static int32_t hash[HASHES];
    const expr_decl decl = {"hash", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {HASHES}, .data = hash};
    const expr_env env = {&value, 0, 0};
    const uint64_t seed = numbers_seed();
    arena *a;
    expr *e;
    (void)state;
    for (uint64_t i = 0; i < HASHES; i++) hash[i] = (int32_t)numbers_below(seed, 1, i, 1000);
    assert_ok(arena_create(&a, "masks", 0));
    /* Few cells a tile, so that tiles of all kinds occur; the last rows see nothing until their last keys. */
    assert_ok(expr_compile(&e, EXPR_MASK, "hash[(q * 3100 + kv * 170) % 262144] < 600", &decl, 1));
    build_both(&x,
               &(block_mask_args){.mask = e,
                                  .env = &env,
                                  .batch = 1,
                                  .heads = 1,
                                  .q_len = 301,
                                  .kv_len = 303,
                                  .tile_q = 2,
                                  .tile_kv = 2},
               a);
    assert_ok(x.near_got);
    must_agree(&x, seed, expr_source(e));
    assert_true(x.f.tiles > 2 * BLOCKMASK__MANY && x.near.full && x.near.partial && x.near.empty);
    expr_free(e);
    assert_ok(expr_compile(&e, EXPR_MASK,
                           "kv % 8 == 0 && (q < 200 || kv > 160000) && hash[kv % 1024] >= 0", &decl,
                           1));
    build_both(&x,
               &(block_mask_args){.mask = e,
                                  .env = &env,
                                  .batch = 1,
                                  .heads = 1,
                                  .q_len = 260,
                                  .kv_len = 160010,
                                  .tile_q = 256,
                                  .tile_kv = 4},
               a);
    assert_ok(x.near_got);
    must_agree(&x, seed, expr_source(e));
    assert_true(x.near.no_empty_row);
    assert_true(x.f.rows > 2 * BLOCKMASK__MANY);
    expr_free(e);
    arena_destroy(a);
}

/* ---- refusals ---- */

static void refusals_are_those_of_a_copy(void **state) {
    static both x;
    static const char *const texts[] = {
        "doc[q] == doc[kv]",           /* leaves where it is visible */
        "doc[q + 100] == 0",           /* never inside */
        "kv < 40 && doc[kv] == doc[q]" /* leaves for later queries */
    };
    static const int32_t ids[50];
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {50}, .data = ids};
    const expr_env env = {&value, 0, 0};
    arena *a;
    (void)state;
    assert_ok(arena_create(&a, "masks", 0));
    for (int i = 0; i < 3; i++) {
        expr *e;
        assert_ok(expr_compile(&e, EXPR_MASK, texts[i], &decl, 1));
        const block_mask_args args = {.mask = e,
                                      .env = &env,
                                      .batch = 1,
                                      .heads = 1,
                                      .q_len = 60,
                                      .kv_len = 60,
                                      .tile_q = 16,
                                      .tile_kv = 16};
        build_both(&x, &args, a);
        assert_int_equal(x.near_got, ERR_RANGE);
        assert_int_equal(x.far_got, ERR_RANGE);
        assert_string_equal(x.near_says, x.far_says);
        assert_string_equal(x.near_says, x.asked_says);
        expr_free(e);
    }
    arena_destroy(a);
}

static err fails(void *ctx, const interval_box *box, const uint8_t *loads, int n,
                 blockmask__count *out) {
    (void)ctx, (void)box, (void)loads, (void)n, (void)out;
    return err_set(ERR_REFUSED, "the device is lost");
}
static err no_leaves(void *ctx, int capture, int64_t elements, int64_t block, interval_leaf *out) {
    (void)ctx, (void)capture, (void)elements, (void)block, (void)out;
    return err_set(ERR_REFUSED, "the device is lost");
}

static void what_the_device_says_is_passed_on(void **state) {
    static const int32_t ids[50];
    const expr_decl decl = {"doc", EXPR_INT, 1};
    const expr_value value = {.type = DT_I32, .dim = {50}, .data = ids};
    const expr_env env = {&value, 0, 0};
    static far_arrays f;
    block_mask m;
    arena *a;
    expr *e;
    (void)state;
    assert_ok(arena_create(&a, "masks", 0));
    assert_ok(expr_compile(&e, EXPR_MASK, "doc[kv] == 0 && kv <= q", &decl, 1));
    far_arrays_make(&f, e, &env);
    const block_mask_args args = {
        .mask = e, .env = &f.env, .batch = 1, .heads = 1, .q_len = 50, .kv_len = 50};
    f.far.count = fails;
    assert_says(blockmask__build(&m, &args, &f.far, a), ERR_REFUSED, "the device is lost");
    f.far.arrays.leaves = no_leaves;
    assert_says(blockmask__build(&m, &args, &f.far, a), ERR_REFUSED, "the device is lost");
    expr_free(e);
    arena_destroy(a);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_masks_equal_those_of_a_copy),
        cmocka_unit_test(masks_of_long_arrays),
        cmocka_unit_test(short_arrays_lose_nothing),
        cmocka_unit_test(more_questions_than_a_call_takes),
        cmocka_unit_test(refusals_are_those_of_a_copy),
        cmocka_unit_test(what_the_device_says_is_passed_on),
    };
    if (argc > 1 && atoi(argv[1]) > 0) masks = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
