/* Faults that people met in attention, as tests, and the properties that need no second implementation.
 *
 * Finite differences are taken of the definition in double; the tiles are compared with the definition elsewhere
 * (test_flex_attention.c). Views, gaps, hidden NaN, merging, empty rows, sentences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn_case.h"
#include "flex/flexref.h"
#include <sys/mman.h>

static flex_problem shape(int64_t hq, int64_t hkv, int64_t L, int64_t S, int64_t dim) {
    return (flex_problem){.batch = 1,
                          .q_heads = hq,
                          .kv_heads = hkv,
                          .q_len = L,
                          .kv_len = S,
                          .dim = dim,
                          .v_dim = dim,
                          .type = DT_F32};
}
static int all_zero(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != 0.0f) return 0;
    }
    return 1;
}
static int same_bits(const float *a, const float *b, int64_t n) {
    return !memcmp(a, b, (size_t)n * sizeof(float));
}

/* B02: two parts of the keys, merged by LSE, equal the whole; rows seen by one part, by none, by both. */
static void b02_merged_parts_equal_the_whole(void **state) {
    (void)state;
    enum { L = 64, S = 517, D = 32, CUT = 300 };
    static const char *const text = "q < 10 ? kv < 300 : q < 20 ? kv >= 300 : q != 20";
    static const int64_t cuts[] = {CUT, 0, S};
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    expr *e;
    assert_ok(expr_compile(&e, EXPR_MASK, text, NULL, 0));
    float *q = numbers_new(L * D, seed, 1, 1), *k = numbers_new(S * D, seed, 2, 1),
          *v = numbers_new(S * D, seed, 3, 1);
    for (int c = 0; c < 3; c++) {
        const int64_t from[3] = {0, 0, cuts[c]},
                      to[3] = {S, cuts[c], S}; /* the whole, then both parts */
        float *o[3], lse[3][L], merged[D], merged_lse;
        for (int part = 0; part < 3; part++) {
            arena *a;
            flex_plan *plan;
            expr_env env = {NULL, 0, from[part]};
            flex_problem p = shape(1, 1, L, to[part] - from[part], D);
            p.mask = e, p.env = &env;
            assert_ok(arena_create(&a, "part", 0));
            assert_ok(flex_plan_create(&plan, d, &p, a));
            o[part] = numbers_poisoned(L * D);
            numbers_poison(lse[part], L);
            flex_io io = {.q = attn_view(DT_F32, q, 1, L, D),
                          .k = attn_view(DT_F32, k + from[part] * D, 1, p.kv_len, D),
                          .v = attn_view(DT_F32, v + from[part] * D, 1, p.kv_len, D),
                          .o = attn_out(o[part], 1, L, D),
                          .lse = lse[part]};
            io.workspace = attn_workspace(plan, d);
            assert_ok(flex_forward(plan, d, &io));
            free(io.workspace);
            arena_destroy(a);
        }
        for (int i = 0; i < L; i++) {
            const float *const parts[2] = {o[1] + i * D, o[2] + i * D},
                               lses[2] = {lse[1][i], lse[2][i]};
            flex_merge(2, parts, lses, D, merged, &merged_lse);
            assert_true(attn_far(merged, o[0] + i * D, D) < 1e-6);
            assert_true(attn_far(&merged_lse, &lse[0][i], 1) < 1e-6);
        }
        assert_true(all_zero(o[0] + 20 * D, D) && lse[0][20] == -INFINITY);
        assert_true(lse[1][20] == -INFINITY && lse[2][20] == -INFINITY);
        for (int part = 0; part < 3; part++) free(o[part]);
    }
    free(q), free(k), free(v);
    expr_free(e);
    dev_close(d);
}

/* A DFlash mask with chosen anchors: keys are context, then slots. */
static void dflash(attn_mask *m, int64_t context, int64_t width, const int32_t *anchors,
                   int64_t blocks) {
    memset(m, 0, sizeof *m);
    attn_mask_int(m, "context", context);
    attn_mask_int(m, "width", width);
    int32_t *anchor = attn_mask_array(m, "anchor", blocks);
    memcpy(anchor, anchors, (size_t)blocks * sizeof *anchor);
    m->kind = MASK_DFLASH, m->batch = 1, m->q_len = blocks * width,
    m->kv_len = context + blocks * width;
    m->env = (expr_env){m->value, 0, 0};
    assert_ok(expr_compile(
        &m->e, EXPR_MASK,
        "anchor[q // width] >= 0 && (kv < context ? kv < anchor[q // width] : (kv - context) // width == q // width)",
        m->decl, m->n));
}
static void case_with_mask(attn_case *c, flex_problem p, const attn_mask *m, uint64_t seed) {
    p.q_len = m->q_len, p.kv_len = m->kv_len;
    attn_case_make(c, &p, MASK_NONE, seed);
    c->mask = *m;
    c->p.mask = m->e, c->p.env = &c->mask.env;
}

/* B05: 37 sorted anchors over 1024 keys, last anchor below the end, so that the last context columns are never seen. */
static void b05_unseen_columns_have_zero_gradients(void **state) {
    (void)state;
    enum { CONTEXT = 1024, WIDTH = 16, BLOCKS = 37 };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    int32_t anchor[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        anchor[i] = 5 + 26 * i + (int32_t)numbers_below(seed, 1, (uint64_t)i, 20);
    attn_mask m;
    attn_case c;
    dflash(&m, CONTEXT, WIDTH, anchor, BLOCKS);
    case_with_mask(&c, shape(2, 1, 0, 0, 32), &m, seed);
    assert_int_equal(c.p.q_len, 592);
    assert_int_equal(c.p.kv_len, 1616);
    attn_result got = attn_run(&c, d), want = attn_reference(&c);
    int64_t first = anchor[BLOCKS - 1];
    assert_true(all_zero(got.dk + first * 32, (CONTEXT - first) * 32));
    assert_true(all_zero(got.dv + first * 32, (CONTEXT - first) * 32));
    assert_true(!all_zero(got.dk + (first - 1) * 32, 32));
    assert_true(attn_far(got.o, want.o, c.nq * 32) < 1e-5);
    assert_true(attn_far(got.dq, want.dq, c.nq * 32) < 1e-5);
    assert_true(attn_far(got.dk, want.dk, c.nk * 32) < 1e-5);
    assert_true(attn_far(got.dv, want.dv, c.nk * 32) < 1e-5);
    attn_result_free(&got), attn_result_free(&want);
    attn_case_free(&c);
    dev_close(d);
}

/* B12: blocks closer than their width do not see each other, nor their anchors: gradients there are exactly zero. */
static void b12_a_block_gets_no_gradient_from_what_it_must_not_see(void **state) {
    (void)state;
    enum { CONTEXT = 64, WIDTH = 16, BLOCKS = 4, D = 16 };
    static const int32_t anchor[BLOCKS] = {10, 14, 15, 30};
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int block = 0; block < BLOCKS; block++) {
        attn_mask m;
        attn_case c;
        dflash(&m, CONTEXT, WIDTH, anchor, BLOCKS);
        case_with_mask(&c, shape(1, 1, 0, 0, D), &m, seed);
        for (int64_t i = 0; i < c.nq; i++) { /* only this block's outputs carry a gradient */
            if (i / WIDTH == block) continue;
            memset(c.d_o + i * D, 0, D * sizeof(float));
            c.d_lse[i] = 0;
        }
        attn_result r = attn_run(&c, d);
        for (int64_t j = 0; j < c.nk; j++) {
            int sees = j < CONTEXT ? j < anchor[block] : (j - CONTEXT) / WIDTH == block;
            assert_true(all_zero(r.dk + j * D, D) == !sees);
            assert_true(all_zero(r.dv + j * D, D) == !sees);
        }
        attn_result_free(&r);
        attn_case_free(&c);
    }
    dev_close(d);
}

/* B22: unused blocks (anchor -1) give output 0, LSE -inf and zero gradients, whatever their inputs and gradients hold. */
static void b22_unused_blocks_contribute_exactly_nothing(void **state) {
    (void)state;
    enum { WIDTH = 8, D = 24 };
    static const int32_t anchor[] = {3, -1, 9, -1, -1};
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_mask m;
    attn_case c;
    dflash(&m, 20, WIDTH, anchor, 5);
    case_with_mask(&c, shape(3, 1, 0, 0, D), &m, seed);
    attn_result plain = attn_run(&c, d);
    float *q = c.q;
    for (int64_t i = 0; i < c.nq; i++) {
        if (anchor[i % c.p.q_len / WIDTH] >= 0) continue;
        assert_true(all_zero(plain.o + i * D, D) && plain.lse[i] == -INFINITY &&
                    all_zero(plain.dq + i * D, D));
        numbers_poison(q + i * D, D);
        numbers_poison(c.d_o + i * D, D);
        c.d_lse[i] = NAN;
    }
    size_t size = (size_t)(c.nq * D) * sizeof(float);
    float *before = malloc(2 * size);
    memcpy(before, c.q, size), memcpy(before + c.nq * D, c.d_o, size);
    attn_result r = attn_run(&c, d);
    assert_memory_equal(before, c.q, size); /* inputs are not touched */
    assert_memory_equal(before + c.nq * D, c.d_o, size);
    free(before);
    assert_true(same_bits(r.o, plain.o, c.nq * D) && same_bits(r.dq, plain.dq, c.nq * D));
    assert_true(same_bits(r.dk, plain.dk, c.nk * D) && same_bits(r.dv, plain.dv, c.nk * D));
    for (int64_t j = 0; j < 5 * WIDTH; j++) {
        if (anchor[j / WIDTH] >= 0) continue;
        assert_true(all_zero(r.dk + (20 + j) * D, D) && all_zero(r.dv + (20 + j) * D, D));
    }
    attn_result_free(&plain), attn_result_free(&r);
    attn_case_free(&c);
    dev_close(d);
}

/* NaN and Inf in keys that some rows see and others do not: rows that do not see them keep every bit, and keys too. */
static void hidden_nan_changes_no_bit(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int i = 0; i < 24; i++) {
        static const int kinds[] = {MASK_CAUSAL, MASK_WINDOW, MASK_DOCUMENT,
                                    MASK_BITS,   MASK_DFLASH, MASK_GAPS};
        attn_case c;
        flex_problem p = shape(3, 1, 90, 110, 24);
        p.type = i % 2 ? DT_BF16 : DT_F32;
        attn_case_make(&c, &p, kinds[i % 6], seed + (uint64_t)i);
        attn_result plain = attn_run(&c, d);
        int64_t bad = c.p.kv_len ? numbers_below(seed, 70, (uint64_t)i, c.p.kv_len) : -1;
        float poison[24];
        for (int j = 0; j < 24; j++)
            poison[j] = j % 3 == 0 ? NAN : j % 3 == 1 ? INFINITY : -INFINITY;
        size_t bytes = 24 * dtype_size(p.type);
        if (bad >= 0) dtype_from_f32(p.type, poison, (char *)c.k + (size_t)bad * bytes, 24);
        if (bad >= 0) dtype_from_f32(p.type, poison, (char *)c.v + (size_t)bad * bytes, 24);
        size_t size = (size_t)c.nk * bytes;
        char *before = malloc(2 * size + 1);
        memcpy(before, c.v, size), memcpy(before + size, c.k, size);
        attn_result r = attn_run(&c, d);
        assert_memory_equal(before, c.v, size); /* inputs are not touched */
        assert_memory_equal(before + size, c.k, size);
        free(before);
        for (int64_t row = 0; row < c.nq; row++) {
            int flag, sees = bad >= 0 && expr_eval_mask(c.mask.e, &c.mask.env, 0, 0,
                                                        row % c.p.q_len, bad, &flag);
            if (sees) assert_true(!isfinite(r.o[row * 24]) && !isfinite(r.dq[row * 24]));
            if (sees) continue;
            assert_true(same_bits(r.o + row * 24, plain.o + row * 24, 24));
            assert_true(same_bits(r.lse + row, plain.lse + row, 1));
            assert_true(same_bits(r.dq + row * 24, plain.dq + row * 24, 24));
        }
        attn_result_free(&plain), attn_result_free(&r);
        attn_case_free(&c);
    }
    dev_close(d);
}

/* The same for all keys hidden from everybody at once: dK and dV keep their bits too. */
static void nan_in_every_unseen_key_changes_no_bit(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    for (int i = 0; i < 12; i++) {
        attn_case c;
        flex_problem p = shape(2, 2, 70, 150, 16);
        attn_case_make(&c, &p,
                       i % 3 == 0   ? MASK_DFLASH
                       : i % 3 == 1 ? MASK_CAUSAL
                                    : MASK_GAPS,
                       seed + (uint64_t)i);
        attn_result plain = attn_run(&c, d);
        int64_t planted = 0;
        for (int64_t j = 0; j < c.nk; j++) {
            int seen = 0, flag;
            for (int64_t q = 0; q < c.p.q_len && !seen; q++)
                seen = expr_eval_mask(c.mask.e, &c.mask.env, 0, 0, q, j % c.p.kv_len, &flag);
            if (seen) continue;
            numbers_poison((float *)c.k + j * 16, 16);
            numbers_poison((float *)c.v + j * 16, 16);
            planted++;
        }
        if (i % 3) assert_true(planted > 0);
        attn_result r = attn_run(&c, d);
        assert_true(same_bits(r.o, plain.o, c.nq * 16) && same_bits(r.lse, plain.lse, c.nq));
        assert_true(same_bits(r.dq, plain.dq, c.nq * 16) && same_bits(r.dk, plain.dk, c.nk * 16) &&
                    same_bits(r.dv, plain.dv, c.nk * 16));
        attn_result_free(&plain), attn_result_free(&r);
        attn_case_free(&c);
    }
    dev_close(d);
}

/* Copies contiguous [heads, len, dim] into a view whose gaps are NaN; returns the buffer. */
static float *spread(const float *src, int64_t heads, int64_t len, int64_t dim, int64_t sh,
                     int64_t sl, int64_t size) {
    float *dst = numbers_poisoned(size);
    for (int64_t i = 0; i < heads * len; i++)
        memcpy(dst + i / len * sh + i % len * sl, src + i * dim, (size_t)dim * sizeof(float));
    return dst;
}
static int unspread_same(const float *got, const float *want, int64_t heads, int64_t len,
                         int64_t dim, int64_t sh, int64_t sl) {
    for (int64_t i = 0; i < heads * len; i++) {
        if (!same_bits(got + i / len * sh + i % len * sl, want + i * dim, dim)) return 0;
    }
    return 1;
}

/* B08: every second row, [S, H, D] seen as [H, S, D], slices of one fused buffer; gaps NaN, three calls, zero inputs. */
static void b08_strides_are_honoured(void **state) {
    (void)state;
    enum { H = 3, L = 77, D = 24, FUSED = 3 * H * D };
    uint64_t seed = numbers_seed();
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(H, H, L, L, D);
    attn_case_make(&c, &p, MASK_WINDOW, seed);
    for (int zero = 0; zero < 2; zero++) {
        if (zero) memset(c.q, 0, (size_t)(c.nq * D) * 4), memset(c.k, 0, (size_t)(c.nk * D) * 4);
        attn_result want = attn_run(&c, d);
        /* sh, sl of q, k, v */
        static const int64_t stride[3][6] = {{L * D, D, 2 * L * D, 2 * D, L * D, D},
                                             {D, H * D, 2 * L * D, 2 * D, D, H * D},
                                             {D, FUSED, D, FUSED, D, FUSED}};
        for (int way = 0; way < 3; way++) {
            const int64_t *s = stride[way];
            enum { SIZE = 2 * H * L * D + L * FUSED };
            float *q = spread(c.q, H, L, D, s[0], s[1], SIZE),
                  *k = spread(c.k, H, L, D, s[2], s[3], SIZE);
            float *v = spread(c.v, H, L, D, s[4], s[5], SIZE);
            for (int call = 0; call < 3; call++) {
                attn_result r = attn_result_new(&c);
                float *dk = numbers_poisoned(SIZE), *o = numbers_poisoned(SIZE);
                flex_io io = attn_io(&c, &r);
                io.q = (flex_view){DT_F32, q, 0, s[0], s[1]};
                io.k = (flex_view){DT_F32, k, 0, s[2], s[3]};
                io.v = (flex_view){DT_F32, v, 0, s[4], s[5]};
                io.dk = (flex_out){dk, 0, s[2], s[3]};
                io.o = (flex_out){o, 0, s[0], s[1]};
                attn_run_io(&c.p, &io, d);
                assert_true(unspread_same(o, want.o, H, L, D, s[0], s[1]));
                assert_true(unspread_same(dk, want.dk, H, L, D, s[2], s[3]));
                assert_true(same_bits(r.dq, want.dq, c.nq * D) &&
                            same_bits(r.dv, want.dv, c.nk * D));
                if (zero) assert_true(all_zero(r.dq, c.nq * D) && all_zero(want.dk, c.nk * D));
                free(dk), free(o);
                attn_result_free(&r);
            }
            free(q), free(k), free(v);
        }
        attn_result_free(&want);
    }
    attn_case_free(&c);
    dev_close(d);
}

/* B07: keys with a row stride of 90,112 elements: the last of 24,000 rows starts past element 2^31. */
static void b07_offsets_past_two_to_the_31(void **state) {
    (void)state;
    enum { S = 24000, D = 8 };
    const int64_t stride = 90112;
    uint64_t seed = numbers_seed();
    size_t bytes = (size_t)(stride * S) * sizeof(bf16);
    bf16 *k = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (k == MAP_FAILED) {
        printf("skipped: 4 GiB of address space cannot be had\n");
        skip();
    }
    (void)madvise(k, bytes, MADV_NOHUGEPAGE); /* a small page a row, not 4 GiB in large ones */
    assert_true(stride * (S - 1) > INT32_MAX);
    dev *d = attn_dev(2);
    attn_case c;
    flex_problem p = shape(1, 1, 3, S, D);
    p.type = DT_BF16;
    attn_case_make(&c, &p, MASK_NONE, seed);
    attn_result want = attn_run(&c, d), r = attn_result_new(&c);
    for (int64_t j = 0; j < S; j++)
        memcpy(k + j * stride, (const bf16 *)c.k + j * D, D * sizeof(bf16));
    flex_io io = attn_io(&c, &r);
    io.k = (flex_view){DT_BF16, k, 0, 0, stride};
    attn_run_io(&c.p, &io, d);
    assert_true(same_bits(r.o, want.o, c.nq * D) && same_bits(r.dq, want.dq, c.nq * D));
    assert_true(same_bits(r.dk, want.dk, c.nk * D) && same_bits(r.dv, want.dv, c.nk * D));
    munmap(k, bytes);
    attn_result_free(&want), attn_result_free(&r);
    attn_case_free(&c);
    dev_close(d);
}

/* ---- the definition's gradients against finite differences ---- */

typedef struct doubles {
    double *x[12]; /* q k v d_o d_lse | o lse | dq dk dv | scratch o, lse */
    int64_t n[12];
} doubles;

static double loss(const flex_problem *p, const doubles *y) {
    flexref_data f = {.q = y->x[0], .k = y->x[1], .v = y->x[2], .o = y->x[10], .lse = y->x[11]};
    double sum = 0;
    assert_ok(flexref_forward(p, &f));
    for (int64_t i = 0; i < y->n[3]; i++) sum += f.o[i] * y->x[3][i];
    for (int64_t i = 0; i < y->n[4]; i++) sum += f.lse[i] == -INFINITY ? 0 : f.lse[i] * y->x[4][i];
    return sum;
}

static void gradients_are_finite_differences(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    for (int kind = 0; kind < MASK_KINDS; kind++) {
        attn_mask m;
        attn_mask_make(&m, kind, 2, 7, 9, seed + (uint64_t)kind);
        if (kind == MASK_DFLASH && m.q_len > 40)
            m.q_len = 40; /* rows of a DFlash mask may be cut */
        flex_problem p = shape(4, 2, m.q_len, m.kv_len, 8);
        p.batch = 2, p.v_dim = 16, p.mask = m.e, p.env = &m.env;
        int64_t nq = 8 * p.q_len, nk = 4 * p.kv_len;
        doubles y = {.n = {nq * 8, nk * 8, nk * 16, nq * 16, nq, nq * 16, nq, nq * 8, nk * 8,
                           nk * 16, nq * 16, nq}};
        for (int i = 0; i < 12; i++) {
            y.x[i] = calloc((size_t)y.n[i] + 1, sizeof(double));
            for (int64_t j = 0; i < 5 && j < y.n[i]; j++)
                y.x[i][j] = rng_normal(seed, RNG_TEST, (uint64_t)(kind * 16 + i), (uint64_t)j);
        }
        flexref_data f = {.q = y.x[0],
                          .k = y.x[1],
                          .v = y.x[2],
                          .o = y.x[5],
                          .lse = y.x[6],
                          .d_o = y.x[3],
                          .d_lse = y.x[4],
                          .dq = y.x[7],
                          .dk = y.x[8],
                          .dv = y.x[9]};
        assert_ok(flexref_forward(&p, &f));
        assert_ok(flexref_backward(&p, &f));
        for (int t = 0; t < 60; t++) {
            int which = t % 3;
            if (y.n[which] == 0) continue;
            int64_t at = numbers_below(seed, 80, (uint64_t)(kind * 64 + t), y.n[which]);
            double keep = y.x[which][at], h = 1e-5, hi, lo, want;
            y.x[which][at] = keep + h, hi = loss(&p, &y);
            y.x[which][at] = keep - h, lo = loss(&p, &y);
            y.x[which][at] = keep, want = (hi - lo) / (2 * h);
            double got = y.x[7 + which][at];
            if (!(fabs(got - want) < 1e-6 * (1 + fabs(want))))
                printf("mask %s, input %d [%lld]: %g, not %g\n", attn_mask_names[kind], which,
                       (long long)at, got, want);
            assert_true(fabs(got - want) < 1e-6 * (1 + fabs(want)));
        }
        for (int i = 0; i < 12; i++) free(y.x[i]);
        attn_mask_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b02_merged_parts_equal_the_whole),
        cmocka_unit_test(b05_unseen_columns_have_zero_gradients),
        cmocka_unit_test(b07_offsets_past_two_to_the_31),
        cmocka_unit_test(b08_strides_are_honoured),
        cmocka_unit_test(b12_a_block_gets_no_gradient_from_what_it_must_not_see),
        cmocka_unit_test(b22_unused_blocks_contribute_exactly_nothing),
        cmocka_unit_test(hidden_nan_changes_no_bit),
        cmocka_unit_test(nan_in_every_unseen_key_changes_no_bit),
        cmocka_unit_test(gradients_are_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
