/* Forward in bf16 tiles: the walk with the arithmetic in plain C on every CPU, and the fast forms beside it where the CPU has them.
 *
 * A plan is made as usual and then given the form to be tested. All are held to the definition in double as the fp32 forms are, and
 * fast forms to plain C operation by operation. Inputs are drawn anew in each run; failures print the case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_dense.h"
#include "flex/flex_private.h"

static const int64_t heads[][2] = {{1, 1}, {3, 1}, {3, 3}, {8, 8}, {8, 2}, {8, 1}, {9, 3}};
static const int64_t dims[] = {8, 16, 24, 32, 40, 64, 72, 128, 136, 256};
static const int32_t tiles[] = {0, 0, 8, 24, 32, 128};

enum { MOST_FORMS = 4 };
typedef struct forms {
    const tile_bf16 *t[MOST_FORMS];
    const tile_bf16 *like[MOST_FORMS]; /* the definition of a fast form, NULL for itself */
    int n;
} forms;

static forms usable(const dev *d) {
    forms f = {{tile_bf16_plain(), tile_bf16_plain_pairs()}, {NULL}, 2};
#if defined(__x86_64__)
    if (dev_has_avx512bf16(d)) {
        f.like[f.n] = tile_bf16_plain_pairs();
        f.t[f.n++] = &tile_bf16__avx512bf16;
    }
    if (dev_has_amx(d)) {
        f.like[f.n] = tile_bf16_plain();
        f.t[f.n++] = &tile_bf16__amx;
    }
#endif
    if (f.n == 2) printf("no unit for bf16 here: its arithmetic in plain C alone\n");
    return f;
}

static flex_problem draw(uint64_t seed, int i) {
    uint64_t s = seed + (uint64_t)i * 1000;
    const int64_t *h = heads[numbers_below(s, 10, 0, 7)];
    return (flex_problem){.batch = 1 + numbers_below(s, 11, 0, 2),
                          .q_heads = h[0],
                          .kv_heads = h[1],
                          .q_len = numbers_below(s, 12, 0, i % 4 ? 70 : 150),
                          .kv_len = numbers_below(s, 13, 0, i % 4 ? 70 : 150),
                          .dim = dims[numbers_below(s, 14, 0, i % 4 ? 10 : 6)],
                          .v_dim = dims[numbers_below(s, 15, 0, i % 4 ? 10 : 6)],
                          .type = DT_BF16,
                          .scale = numbers_below(s, 17, 0, 3) ? 0.0f : -0.3f,
                          .zero_scale = numbers_below(s, 20, 0, 4) == 0,
                          .tile_q = tiles[numbers_below(s, 18, 0, 6)],
                          .tile_kv = tiles[numbers_below(s, 19, 0, 6)]};
}

static void forward_io(const tile_bf16 *form, const flex_problem *p, flex_io *io, dev *d) {
    arena *a;
    flex_plan *plan;
    assert_ok(arena_create(&a, "case", 0));
    assert_ok(flex_plan_create(&plan, d, p, a));
    plan->bf16 = form;
    io->workspace = attn_workspace(plan, d);
    assert_ok(flex_forward(plan, d, io));
    free(io->workspace);
    arena_destroy(a);
}

static attn_result forward(const tile_bf16 *form, const attn_case *c, dev *d) {
    attn_result r = attn_result_new(c);
    flex_io io = attn_io(c, &r);
    forward_io(form, &c->p, &io, d);
    return r;
}

static int same_rows(const attn_case *c, const attn_result *a, const attn_result *b, int64_t row,
                     int64_t n) {
    const size_t bytes = (size_t)(n * c->p.v_dim) * sizeof(float);
    return !memcmp(a->o + row * c->p.v_dim, b->o + row * c->p.v_dim, bytes) &&
           !memcmp(a->lse + row, b->lse + row, (size_t)n * sizeof(float));
}

static void check(const attn_case *c, const char *form, const char *what, const float *got,
                  const float *want, const float *near, int64_t n) {
    const double far = attn_far(got, want, n), bound = 2 * attn_far(near, want, n) + 1e-5;
    if (!(far <= bound))
        printf(
            "%s of mask %s, B %lld H %lld/%lld L %lld S %lld D %lld Dv %lld tiles %d x %d, %s: %g\n",
            what, attn_mask_names[c->mask.kind], (long long)c->p.batch, (long long)c->p.q_heads,
            (long long)c->p.kv_heads, (long long)c->p.q_len, (long long)c->p.kv_len,
            (long long)c->p.dim, (long long)c->p.v_dim, c->p.tile_q, c->p.tile_kv, form, far);
    assert_true(far <= bound);
}

/* With sinks in every third case. Nearer than bf16 asks for: a weight keeps 16 bits. */
static void bf16_tiles_equal_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    const forms f = usable(d);
    for (int i = 0; i < 3 * MASK_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, i);
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        if (i % 3 == 0) c.p.sinks = c.sinks = numbers_new(p.q_heads, seed, 6, 1.0f);
        attn_result want = attn_result_new(&c), near = attn_dense_run(&c);
        flex_io io = attn_io(&c, &want);
        assert_ok(flex_reference_forward(&c.p, &io));
        for (int k = 0; k < f.n; k++) {
            attn_result got = forward(f.t[k], &c, d);
            check(&c, f.t[k]->name, "o", got.o, want.o, near.o, c.nq * c.p.v_dim);
            check(&c, f.t[k]->name, "lse", got.lse, want.lse, near.lse, c.nq);
            attn_result_free(&got);
        }
        attn_result_free(&want), attn_result_free(&near);
        attn_case_free(&c);
    }
    dev_close(d);
}

static void bf16_threads_change_no_bit(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d[3] = {attn_dev(1), attn_dev(2), attn_dev(3)};
    const forms f = usable(d[0]);
    for (int i = 0; i < MASK_KINDS; i++) {
        attn_case c;
        flex_problem p = draw(seed, 4 * i);
        attn_case_make(&c, &p, i, seed + (uint64_t)i);
        for (int k = 0; k < f.n; k++) {
            attn_result one = forward(f.t[k], &c, d[0]);
            for (int t = 1; t < 3; t++) {
                attn_result r = forward(f.t[k], &c, d[t]);
                assert_true(same_rows(&c, &one, &r, 0, c.nq));
                attn_result_free(&r);
            }
            attn_result_free(&one);
        }
        attn_case_free(&c);
    }
    for (int i = 0; i < 3; i++) dev_close(d[i]);
}

/* Poison in one key and its value: rows that do not see it keep every bit; where only the value is infinite, rows that see it
 * are infinite as in the definition and not NaN, in full tiles too. */
static void bf16_poison_stays_where_it_is_seen(void **state) {
    (void)state;
    enum { D = 24 };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    const forms f = usable(d);
    for (int i = 0; i < 24; i++) {
        static const int kinds[] = {MASK_CAUSAL, MASK_WINDOW, MASK_DOCUMENT,
                                    MASK_BITS,   MASK_NONE,   MASK_GAPS};
        attn_case c;
        const int keys_too = i < 12;
        flex_problem p = {.batch = 1,
                          .q_heads = 3,
                          .kv_heads = 1,
                          .q_len = 150,
                          .kv_len = 150,
                          .dim = D,
                          .v_dim = D,
                          .type = DT_BF16};
        attn_case_make(&c, &p, kinds[i % 6], seed + (uint64_t)i);
        attn_result plain[MOST_FORMS];
        for (int k = 0; k < f.n; k++) plain[k] = forward(f.t[k], &c, d);
        const int64_t bad = numbers_below(seed, 70, (uint64_t)i, c.p.kv_len);
        bf16 *key = (bf16 *)c.k + bad * D, *value = (bf16 *)c.v + bad * D;
        for (int j = 0; j < D; j++) {
            value[j] = bf16_from_f32(INFINITY);
            if (keys_too) key[j] = value[j] = bf16_from_f32(j % 2 ? NAN : -INFINITY);
        }
        for (int k = 0; k < f.n; k++) {
            attn_result r = forward(f.t[k], &c, d);
            for (int64_t row = 0; row < c.nq; row++) {
                int flag, sees = !c.mask.e || expr_eval_mask(c.mask.e, &c.mask.env, 0, 0,
                                                             row % c.p.q_len, bad, &flag);
                if (!sees)
                    assert_true(same_rows(&c, &r, &plain[k], row, 1));
                else if (keys_too)
                    assert_true(isnan(r.o[row * D]));
                else
                    assert_true(isinf(r.o[row * D]) && r.o[row * D] > 0);
            }
            attn_result_free(&r), attn_result_free(&plain[k]);
        }
        attn_case_free(&c);
    }
    dev_close(d);
}

/* B08: keys and values read in place with strides of their own, one of them 0: the same bits as contiguous ones. */
static void b08_bf16_strides(void **state) {
    (void)state;
    enum { H = 2, S = 130, D = 64, WIDE = 3 * H * D };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    const forms f = usable(d);
    attn_case c;
    flex_problem p = {.batch = 1,
                      .q_heads = 4,
                      .kv_heads = H,
                      .q_len = 77,
                      .kv_len = S,
                      .dim = D,
                      .v_dim = D,
                      .type = DT_BF16};
    attn_case_make(&c, &p, MASK_NONE, seed);
    for (int64_t i = 0; i < H * S; i++)
        memcpy((bf16 *)c.k + i * D, (bf16 *)c.k + i / S * S * D, D * sizeof(bf16));
    bf16 *wide = calloc(S * WIDE, sizeof *wide);
    assert_non_null(wide);
    for (int64_t i = 0; i < H * S; i++)
        memcpy(wide + i % S * WIDE + i / S * D, (bf16 *)c.v + i * D, D * sizeof(bf16));
    for (int k = 0; k < f.n; k++) {
        attn_result want = forward(f.t[k], &c, d), r = attn_result_new(&c);
        flex_io io = attn_io(&c, &r);
        io.k.sl = 0;
        io.v = (flex_view){DT_BF16, wide, 0, D, WIDE};
        forward_io(f.t[k], &c.p, &io, d);
        assert_true(same_rows(&c, &want, &r, 0, c.nq));
        attn_result_free(&want), attn_result_free(&r);
    }
    free(wide);
    attn_case_free(&c);
    dev_close(d);
}

/* A plan and a workspace serve many runs. Threads keep values from task to task, and not from run to run: here they have changed in
 * place. */
static void bf16_second_run_sees_new_inputs(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    const forms f = usable(d);
    for (int i = 0; i < 2 * MASK_KINDS; i++) {
        arena *a;
        flex_plan *plan;
        attn_case c;
        flex_problem p = draw(seed, 4 * i);
        p.q_len = p.kv_len = 150;
        attn_case_make(&c, &p, i % MASK_KINDS, seed + (uint64_t)i);
        for (int k = 0; k < f.n; k++) {
            assert_ok(arena_create(&a, "case", 0));
            assert_ok(flex_plan_create(&plan, d, &c.p, a));
            plan->bf16 = f.t[k];
            attn_result r = attn_result_new(&c);
            flex_io io = attn_io(&c, &r);
            io.workspace = attn_workspace(plan, d);
            for (int run = 0; run < 2; run++) {
                for (int64_t j = 0; j < c.nk * p.v_dim; j++) ((bf16 *)c.v)[j] ^= 0x8001;
                assert_ok(flex_forward(plan, d, &io));
                attn_result fresh = forward(f.t[k], &c, d);
                assert_true(same_rows(&c, &fresh, &r, 0, c.nq));
                attn_result_free(&fresh);
            }
            free(io.workspace);
            attn_result_free(&r);
            arena_destroy(a);
        }
        attn_case_free(&c);
    }
    dev_close(d);
}

/* The first cell whose load leaves is told as in fp32, also where the mask is a matter of q - kv and tiles are copies of each other. */
static void bf16_tells_loads_that_leave(void **state) {
    (void)state;
    enum { L = 200, D = 8, N = 100 };
    static const char *const texts[] = {"q >= kv && near[q - kv] > 0",
                                        "near[kv] > 0 && q + kv > 50",
                                        "q - kv < 90 && near[abs(q - kv)] > 0 || q == kv"};
    uint64_t seed = numbers_seed();
    int32_t near[N];
    dev *d = attn_dev(2);
    const forms f = usable(d);
    for (int i = 0; i < N; i++) near[i] = i % 5 != 0;
    for (int i = 0; i < 3; i++) {
        expr *e;
        const expr_decl decl = {"near", EXPR_INT, 1};
        const expr_value value = {.type = DT_I32, .dim = {N}, .data = near};
        const expr_env env = {&value, 0, 0};
        assert_ok(expr_compile(&e, EXPR_MASK, texts[i], &decl, 1));
        attn_case c;
        flex_problem p = {.batch = 1,
                          .q_heads = 2,
                          .kv_heads = 2,
                          .q_len = L,
                          .kv_len = L,
                          .dim = D,
                          .v_dim = D,
                          .type = DT_BF16};
        attn_case_make(&c, &p, MASK_NONE, seed);
        c.p.mask = e, c.p.env = &env;
        int64_t cell[4] = {0};
        for (int k = -1; k < f.n; k++) { /* first in fp32 */
            int left = 0;
            attn_result r = attn_result_new(&c);
            flex_io io = attn_io(&c, &r);
            io.left = &left;
            forward_io(k < 0 ? NULL : f.t[k], &c.p, &io, d);
            if (k < 0) memcpy(cell, io.left_cell, sizeof cell);
            assert_int_equal(left, 1);
            assert_memory_equal(cell, io.left_cell, sizeof cell);
            attn_result_free(&r);
        }
        attn_case_free(&c);
        expr_free(e);
    }
    dev_close(d);
}

/* ---- a unit beside plain C ---- */

static uint32_t *words(int64_t n, uint64_t seed, uint64_t stream) {
    return attn_tensor(DT_BF16, 2 * n, seed, stream);
}

/* *same: whether all bits were those of plain C. */
static void unit_multiplies_as_plain_c(const tile_bf16 *unit, const tile_bf16 *plain, uint64_t seed,
                                       int *same) {
    enum { LD = 160 };
    *same = 1;
    for (int i = 0; i < 40; i++) {
        const int64_t m = 16 * (1 + numbers_below(seed, 30, (uint64_t)i, 5)),
                      n = 16 * (1 + numbers_below(seed, 31, (uint64_t)i, 5)),
                      k = 32 * (1 + numbers_below(seed, 32, (uint64_t)i, 4));
        uint32_t *a = words(m * LD, seed, 1),
                 *b[2] = {words(k * LD, seed, 2), words(k * LD, seed, 3)};
        float *c[2] = {numbers_new(m * LD, seed, 4, 1.0f), numbers_new(m * LD, seed, 4, 1.0f)};
        tile_bf16_mm g = {m,  n,    k,  (const bf16 *)a, 2 * LD, b[0], i & 1 ? b[1] : NULL,
                          LD, c[0], LD, i / 2 & 1};
        plain->mm(&g);
        g.c = c[1];
        unit->open();
        unit->mm(&g);
        unit->close();
        assert_true(attn_far(c[1], c[0], m * LD) <= 1e-6);
        *same &= !memcmp(c[0], c[1], (size_t)(m * LD) * 4);
        free(a), free(b[0]), free(b[1]), free(c[0]), free(c[1]);
    }
}

static void unit_softens_as_plain_c(const tile_bf16 *unit, uint64_t seed) {
    enum { KEYS = 64, COLS = 48 };
    for (int i = 0; i < 40; i++) {
        uint8_t mask[KEYS * COLS];
        float *s = numbers_new(KEYS * COLS, seed, (uint64_t)i, 20.0f), *m[2], *l[2], *corr[2];
        uint32_t *p[2][2];
        for (int64_t x = 0; x < KEYS * COLS; x++)
            mask[x] = numbers_below(seed, 40, (uint64_t)x, 3) > i % 4;
        s[7] = NAN, s[COLS] = INFINITY, s[COLS + 9] = -INFINITY;
        for (int k = 0; k < 2; k++) {
            m[k] = numbers_new(COLS, seed, 50, 1.0f), l[k] = numbers_new(COLS, seed, 51, 1.0f);
            m[k][3] = -INFINITY, l[k][3] = 0;
            corr[k] = numbers_poisoned(COLS);
            p[k][0] = words(KEYS * COLS / 2, seed, 52), p[k][1] = words(KEYS * COLS / 2, seed, 53);
            const int64_t lo = numbers_below(seed, 54, (uint64_t)i, 32),
                          hi = lo + numbers_below(seed, 55, (uint64_t)i, KEYS - lo + 1);
            const tile_bf16_softmax t = {s,    COLS, COLS,    lo,      hi,
                                         0,    KEYS, p[k][0], p[k][1], i & 1 ? mask : NULL,
                                         COLS, 0.3f, m[k],    l[k],    corr[k]};
            (k ? unit : tile_bf16_plain())->softmax(&t);
        }
        assert_memory_equal(m[0], m[1], COLS * 4);
        for (int j = 0; j < COLS; j++) { /* a NaN's bits may differ */
            assert_true(isnan(l[0][j]) ? isnan(l[1][j]) : l[0][j] == l[1][j]);
            if (isnan(l[0][j])) continue;
            assert_true(corr[0][j] == corr[1][j]);
            for (int64_t x = j; x < KEYS * COLS / 2; x += COLS)
                assert_true(p[0][0][x] == p[1][0][x] && p[0][1][x] == p[1][1][x]);
        }
        for (int k = 0; k < 2; k++)
            free(m[k]), free(l[k]), free(corr[k]), free(p[k][0]), free(p[k][1]);
        free(s);
    }
}

static void unit_packs_as_plain_c(const tile_bf16 *unit, uint64_t seed) {
    enum { LD = 272, MOST = 96 };
    for (int i = 0; i < 40; i++) {
        const int64_t n = 1 + numbers_below(seed, 60, (uint64_t)i, MOST),
                      dim = 8 * (1 + numbers_below(seed, 61, (uint64_t)i, 32));
        bf16 *v = attn_tensor(DT_BF16, MOST * LD, seed, 62);
        uint32_t *to[2] = {words(LD * MOST / 2, seed, 63), words(LD * MOST / 2, seed, 63)};
        if (i % 3 == 0) v[(n - 1) * LD + dim - 1] = bf16_from_f32(i & 1 ? NAN : INFINITY);
        v[dim] = bf16_from_f32(NAN); /* behind a row */
        for (int k = 0; k < 2; k++)
            assert_int_equal(
                (k ? unit : tile_bf16_plain())->pack_values(v, LD, n, dim, to[k], MOST / 2),
                i % 3 != 0);
        assert_memory_equal(to[0], to[1], LD * MOST / 2 * 4);
        tile_bf16_plain()->turn((const uint32_t *)v, LD / 2, 96, 128, to[0], MOST);
        unit->turn((const uint32_t *)v, LD / 2, 96, 128, to[1], MOST);
        assert_memory_equal(to[0], to[1], LD * MOST / 2 * 4);
        free(v), free(to[0]), free(to[1]);
    }
}

static void units_compute_as_plain_c(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(1);
    const forms f = usable(d);
    for (int k = 0; k < f.n; k++) {
        int same;
        if (!f.like[k]) continue;
        unit_multiplies_as_plain_c(f.t[k], f.like[k], seed, &same);
        unit_softens_as_plain_c(f.t[k], seed);
        unit_packs_as_plain_c(f.t[k], seed);
        printf("%s: products have %s bits as in plain C\n", f.t[k]->name,
               same ? "the same" : "other");
        if (f.like[k] == tile_bf16_plain_pairs()) assert_true(same);
    }
    dev_close(d);
    if (f.n == 2) skip();
}

/* PACELINE_ISA bounds the form, and the plan says which one runs. */
static void the_plan_names_the_form(void **state) {
    (void)state;
    static const char *const isa[] = {"avx2", "avx512", "avx512bf16", "amx"};
    for (int i = 0; i < 4; i++) {
        arena *a;
        flex_plan *plan;
        str text = {0};
        setenv("PACELINE_ISA", isa[i], 1);
        dev *d = attn_dev(1);
        unsetenv("PACELINE_ISA");
        flex_problem p = {.batch = 1,
                          .q_heads = 1,
                          .kv_heads = 1,
                          .q_len = 8,
                          .kv_len = 8,
                          .dim = 8,
                          .v_dim = 8,
                          .type = DT_BF16};
        const int pairs = dev_avx512bf16_pays(d), tiles_too = dev_has_amx(d);
        if (i < 2) assert_false(dev_has_avx512bf16(d));
        if (i == 2) assert_int_equal(pairs, dev_has_avx512bf16(d)); /* it was asked for */
#if defined(__x86_64__)
        if (i == 3) assert_int_equal(pairs, dev_has_avx512bf16(d) && !__builtin_cpu_is("intel"));
#endif
        if (i < 3) assert_false(tiles_too);
        assert_ok(arena_create(&a, "case", 0));
        assert_ok(flex_plan_create(&plan, d, &p, a));
        assert_ok(flex_plan_explain(plan, &text));
        assert_int_equal(strstr(text.s, "AMX") != NULL, tiles_too);
        assert_int_equal(strstr(text.s, "AVX512-BF16") != NULL, pairs && !tiles_too);
        assert_true((plan->bf16 != NULL) == (pairs || tiles_too));
        str_free(&text);
        arena_destroy(a);
        dev_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_tiles_equal_definition),
        cmocka_unit_test(bf16_threads_change_no_bit),
        cmocka_unit_test(bf16_poison_stays_where_it_is_seen),
        cmocka_unit_test(b08_bf16_strides),
        cmocka_unit_test(bf16_second_run_sees_new_inputs),
        cmocka_unit_test(bf16_tells_loads_that_leave),
        cmocka_unit_test(units_compute_as_plain_c),
        cmocka_unit_test(the_plan_names_the_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
