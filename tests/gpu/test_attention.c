/* Attention kernels against the definition in double: masks x scores x types x odd shapes, on a GPU or the emulated device.
 *
 * Texts of all cases are compiled side by side by NVRTC, run through the steps that a plan writes down, and compared on
 * outputs, LSE and every gradient. Beside them: equal bits on a second run, hidden NaN, views with gaps, sliced masks,
 * loads that leave, scores that are NaN, an offset past 2^31 elements. `test_attention --bench` prints times at the
 * shapes of the PyTorch baseline, `--few` runs a part for slow tools, `--all` all cases at their lengths also when emulated
 * (minutes). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "gpu_case.h"
#include "flex/attn_dense.h"
#include "gpu_bench.h"

enum { CASES = 150 };

/* How many of the cases run, and how long they are at most: fewer under tools that slow kernels down (--few), and on the
 * emulated device. */
static int cases, longest = 300;
enum { EMULATED_CASES = 13, EMULATED_LONGEST = 140 };

static int open_gpu(void **out) {
    if (gpu_world_set_up(out)) return 1;
    gpu_world *w = *out;
    w->few = cases && cases < CASES;
    if (cases ? cases < CASES : w->own != NULL) longest = EMULATED_LONGEST;
    if (!cases) cases = (int)gpu_fewer(w, CASES, EMULATED_CASES);
    return 0;
}

/* ---- cases ---- */

typedef struct table {
    gpu_case x[CASES];
    int mask[CASES], score[CASES];
} table;

static flex_problem draw_problem(uint64_t seed, int i) {
    static const int64_t dims[][2] = {{64, 64},  {128, 128}, {128, 128}, {64, 64},   {8, 8},
                                      {80, 80},  {40, 24},   {72, 128},  {256, 256}, {192, 128},
                                      {16, 136}, {96, 96},   {136, 200}};
    static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 1}, {7, 1}, {8, 1}, {6, 2}};
    static const dtype types[] = {DT_BF16, DT_BF16, DT_F16, DT_F32};
    const int64_t *d = dims[i % 13], *h = heads[numbers_below(seed, 1, (uint64_t)i, 7)];
    const int64_t most = (d[0] > 128 || h[0] > 4) && longest > 200 ? 200 : longest;
    static const int64_t edges[] = {0, 1, 63, 64, 65, 127, 128, 129, 256, 257};
    flex_problem p = {.batch = 1 + numbers_below(seed, 2, (uint64_t)i, 2),
                      .q_heads = h[0],
                      .kv_heads = h[1],
                      .q_len = numbers_below(seed, 3, (uint64_t)i, most),
                      .kv_len = numbers_below(seed, 4, (uint64_t)i, most),
                      .dim = d[0],
                      .v_dim = d[1],
                      .type = types[numbers_below(seed, 5, (uint64_t)i, 4)]};
    if (numbers_below(seed, 6, (uint64_t)i, 4) == 0)
        p.q_len = edges[numbers_below(seed, 7, (uint64_t)i, 10)];
    if (numbers_below(seed, 8, (uint64_t)i, 4) == 0)
        p.kv_len = edges[numbers_below(seed, 9, (uint64_t)i, 10)];
    if (numbers_below(seed, 10, (uint64_t)i, 8) == 0) p.scale = -0.11f;
    if (numbers_below(seed, 11, (uint64_t)i, 16) == 0) p.scale = 0.0f, p.zero_scale = 1;
    return p;
}

/* Of a case that has run: the kernels' backward takes outputs that are rounded to their type, and so does the definition's. */
static err reference_task(void *ctx, int64_t i, int thread) {
    gpu_case *x = &((table *)ctx)->x[i];
    (void)thread;
    x->want = attn_result_new(&x->c);
    flex_io io = attn_io(&x->c, &x->want);
    TRY(flex_reference_forward(&x->c.p, &io));
    float *o = x->want.o;
    x->want.o = x->got.o;
    io = attn_io(&x->c, &x->want);
    err e = flex_reference_backward(&x->c.p, &io);
    x->want.o = o;
    return e;
}

/* ‖got - want‖ / ‖want‖ with a floor of 1e-3 per element; infinite when something is not a number. */
static double norm_far(const float *got, const float *want, int64_t n) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue;
        double e = (double)got[i] - (double)want[i];
        if (!(fabs(e) < INFINITY)) return INFINITY;
        error += e * e;
    }
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) size += (double)want[i] * (double)want[i];
    return sqrt(error / (size + 1e-6 * (double)n + 1e-12));
}

typedef struct worst {
    double far[7];
} worst;
static const char *const parts[7] = {"o", "lse", "dq", "dk", "dv", "captures", "sinks"};

/* Where sums cancel, what is left is small beside its terms: then the distance beside 1 + the largest value counts. */
static double apart(const float *got, const float *want, int64_t n) {
    return fmin(norm_far(got, want, n), attn_far(got, want, n));
}

/* Sums over cells of a head or of all heads are computed in fp32 whatever the type: the largest distance beside the terms that add to it. */
static double sums_far(const float *got, const float *want, const float *terms, int64_t n) {
    double far = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)got[i] - (double)want[i]) / ((double)terms[i] + 1e-20);
        if (!(e < INFINITY)) return INFINITY;
        far = fmax(far, e);
    }
    return far;
}

static void measure(const gpu_case *x, double far[7]) {
    const flex_problem *p = &x->c.p;
    const attn_result *g = &x->got, *w = &x->want;
    far[0] = apart(g->o, w->o, x->c.nq * p->v_dim);
    far[1] = attn_far(g->lse, w->lse, x->c.nq);
    far[2] = apart(g->dq, w->dq, x->c.nq * p->dim);
    far[3] = apart(g->dk, w->dk, x->c.nk * p->dim);
    far[4] = apart(g->dv, w->dv, x->c.nk * p->v_dim);
    far[5] = far[6] = 0;
    if (!p->sinks && !x->c.score.n_learned) return;
    attn_result near = attn_dense_run(&x->c);
    far[5] = sums_far(g->learned, w->learned, near.learned_terms, x->c.score.n_learned);
    if (p->sinks) far[6] = sums_far(g->d_sinks, w->d_sinks, near.sinks_terms, p->q_heads);
    attn_result_free(&near);
}

/* Bounds on the distances: 16-bit types by the rounding of outputs, weights and gradients, fp32 by its own. */
static const double bound16[2][7] = {{6e-3, 2e-4, 1.5e-2, 1.5e-2, 8e-3, 3e-6, 3e-6},
                                     {1e-3, 2e-4, 3e-3, 3e-3, 2e-3, 3e-6, 3e-6}};
static const double bound32[7] = {2e-6, 2e-6, 2e-5, 2e-5, 1e-5, 3e-6, 3e-6};

static int check_case(const table *t, int i, worst *w) {
    const gpu_case *x = &t->x[i];
    const flex_problem *p = &x->c.p;
    const double *bound = x->type == DT_F32 ? bound32 : bound16[x->type == DT_F16];
    double far[7];
    int bad = 0;
    measure(x, far);
    for (int k = 0; k < 7; k++) {
        if (far[k] > w->far[k]) w->far[k] = far[k];
        if (far[k] <= bound[k]) continue;
        printf(
            "case %d (%s, mask %s, score %s, B %lld H %lld/%lld L %lld S %lld D %lld/%lld scale %g): "
            "%s is %.3g apart\n",
            i, dtype_name(x->type), attn_mask_names[t->mask[i]], attn_score_names[t->score[i]],
            (long long)p->batch, (long long)p->q_heads, (long long)p->kv_heads, (long long)p->q_len,
            (long long)p->kv_len, (long long)p->dim, (long long)p->v_dim, (double)p->scale,
            parts[k], far[k]);
        bad = 1;
    }
    return bad;
}

static void gallery_equals_the_definition(void **data) {
    const gpu_world *w = *data;
    worst worst_of[3];
    uint64_t seed = numbers_seed();
    int bad = 0, broken = 0;
    if (!w->d) skip();
    table *t = calloc(1, sizeof *t);
    assert_non_null(t);
    memset(worst_of, 0, sizeof worst_of);
    const int first = cases < CASES ? (int)numbers_below(seed, 30, 0, CASES) : 0; /* some of them */
    for (int i = 0; i < cases; i++) {
        const int at = (first + i) % CASES;
        const flex_problem p = draw_problem(seed, at);
        t->mask[i] = at % MASK_KINDS;
        t->score[i] = at % 2 ? 0 : at / 2 % SCORE_KINDS;
        gpu_case_make(&t->x[i], &p, t->mask[i], t->score[i], at % 5 == 0, seed + (uint64_t)at);
        gpu_case_plan(&t->x[i], w);
    }
    gpu_cases_load(t->x, cases, w);
    for (int i = 0; i < cases; i++) {
        gpu_case *x = &t->x[i];
        int left;
        int64_t cell[4];
        gpu_case_run(x, w);
        broken += flex_cuda_judge(x->plan, x->words, &left, cell) != ERR_OK;
    }
    assert_ok(pool_run(w->threads, cases, reference_task, t));
    for (int i = 0; i < cases; i++) {
        const gpu_case *x = &t->x[i];
        bad += check_case(t, i, &worst_of[x->type == DT_F32 ? 0 : x->type == DT_BF16 ? 1 : 2]);
    }
    dev_counters used;
    dev_get_counters(w->d, &used);
    printf("%d cases, %d modules; largest distances:\n", cases, (int)used.modules);
    for (int k = 0; k < 7; k++)
        printf("  %-9s fp32 %.2g, bf16 %.2g, fp16 %.2g\n", parts[k], worst_of[0].far[k],
               worst_of[1].far[k], worst_of[2].far[k]);
    for (int i = 0; i < cases; i++) gpu_case_free(&t->x[i]);
    free(t);
    assert_int_equal(broken, 0);
    assert_int_equal(bad, 0);
}

/* ---- properties ---- */

static int same_result(const gpu_case *x, const attn_result *a, const attn_result *b) {
    const flex_problem *p = &x->c.p;
    return !memcmp(a->o, b->o, (size_t)(x->c.nq * p->v_dim) * 4) &&
           !memcmp(a->lse, b->lse, (size_t)x->c.nq * 4) &&
           !memcmp(a->dq, b->dq, (size_t)(x->c.nq * p->dim) * 4) &&
           !memcmp(a->dk, b->dk, (size_t)(x->c.nk * p->dim) * 4) &&
           !memcmp(a->dv, b->dv, (size_t)(x->c.nk * p->v_dim) * 4) &&
           !memcmp(a->learned, b->learned, (size_t)x->c.score.n_learned * 4);
}

static flex_problem plain_problem(dtype type, int64_t L, int64_t S, int64_t dim) {
    return (flex_problem){.batch = 1,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .q_len = L,
                          .kv_len = S,
                          .dim = dim,
                          .v_dim = dim,
                          .type = type};
}

static void a_second_run_gives_equal_bits(void **data) {
    const gpu_world *w = *data;
    uint64_t seed = numbers_seed();
    if (!w->d) skip();
    static const int scores[] = {SCORE_NONE, SCORE_GENERAL, SCORE_DENSE, SCORE_T5};
    for (int i = 0; i < 4; i++) {
        gpu_case x;
        const flex_problem p =
            plain_problem(DT_BF16, gpu_fewer(w, 700, 150), gpu_fewer(w, 650, 140), 64);
        gpu_case_make(&x, &p, MASK_DOCUMENT_CAUSAL, scores[i], 1, seed);
        gpu_case_plan(&x, w);
        gpu_cases_load(&x, 1, w);
        gpu_case_run(&x, w);
        attn_result first = x.got;
        for (int again = 0; again < (int)gpu_fewer(w, 3, 1); again++) {
            gpu_case_run(&x, w);
            assert_true(same_result(&x, &first, &x.got));
            attn_result_free(&x.got);
        }
        x.got = first;
        gpu_case_free(&x);
    }
}

/* Keys that no row of a block of queries sees, and queries that no key sees, may hold anything. */
static void hidden_nan_does_not_spread(void **data) {
    const gpu_world *w = *data;
    uint64_t seed = numbers_seed();
    if (!w->d) skip();
    const int64_t n = gpu_fewer(w, 300, 100),
                  keys = gpu_fewer(w, 300, 240); /* some steps of a tile each */
    for (int i = 0; i < 6; i++) {
        gpu_case x;
        const dtype type = i % 3 == 0 ? DT_BF16 : i % 3 == 1 ? DT_F16 : DT_F32;
        flex_problem p = plain_problem(type, n, keys, i < 3 ? 64 : 136);
        expr *e;
        const expr_env env = {NULL, 0, 0};
        gpu_case_make(&x, &p, MASK_NONE, 0, 0, seed);
        assert_ok(
            expr_compile(&e, EXPR_MASK, "kv % 3 != 1 && q % 50 != 5 && kv <= q + 140", NULL, 0));
        x.c.p.mask = e, x.c.p.env = &env;
        gpu_case_plan(&x, w);
        gpu_cases_load(&x, 1, w);
        gpu_case_run(&x, w);
        attn_result clean = x.got;
        const size_t size = dtype_size(type);
        for (int64_t row = 0; row < 2 * keys; row++) {
            if (row % keys % 3 != 1) continue;
            memset((char *)x.k + (size_t)(row * p.dim) * size, 0xff, (size_t)p.dim * size);
            memset((char *)x.v + (size_t)(row * p.dim) * size, 0xff, (size_t)p.dim * size);
        }
        for (int64_t row = 0; row < 4 * n; row++) {
            if (row % n % 50 != 5) continue;
            memset((char *)x.q + (size_t)(row * p.dim) * size, 0xff, (size_t)p.dim * size);
            memset((char *)x.d_o + (size_t)(row * p.dim) * size, 0xff, (size_t)p.dim * size);
        }
        gpu_case_run(&x, w);
        assert_true(same_result(&x, &clean, &x.got));
        attn_result_free(&clean);
        gpu_case_free(&x);
        expr_free(e);
    }
}

static void rows_that_are_not_aligned_give_the_same(void **data) {
    const gpu_world *w = *data;
    uint64_t seed = numbers_seed();
    if (!w->d) skip();
    gpu_case x;
    const flex_problem p = plain_problem(DT_BF16, 150, 200, 72);
    enum { GAP = 3 };
    gpu_case_make(&x, &p, MASK_WINDOW, 0, 0, seed);
    gpu_case_plan(&x, w);
    gpu_cases_load(&x, 1, w);
    gpu_case_run(&x, w);
    const size_t mark = gpu_mark(w);
    flex_cuda_io io = gpu_case_io(&x, w);
    flex_cuda_view *views[] = {&io.q, &io.k, &io.v, &io.o, &io.d_o, &io.dq, &io.dk, &io.dv};
    const void *from[] = {x.q, x.k, x.v, NULL, x.d_o, NULL, NULL, NULL};
    for (int i = 0; i < 8; i++) { /* one element in front, GAP behind each row */
        const int64_t rows = i == 0 || (i > 2 && i < 6) ? x.c.nq : x.c.nk, wide = p.dim + GAP;
        uint16_t *host = calloc((size_t)(rows * wide + 1), 2);
        assert_non_null(host);
        for (int64_t r = 0; from[i] && r < rows; r++)
            memcpy(host + 1 + r * wide, (const uint16_t *)from[i] + r * p.dim, (size_t)p.dim * 2);
        const int64_t len = rows == x.c.nq ? p.q_len : p.kv_len, heads = rows == x.c.nq ? 4 : 2;
        *views[i] = (flex_cuda_view){gpu_copy(w, host, (size_t)(rows * wide + 1) * 2) + 2,
                                     heads * len * wide, len * wide, wide};
        free(host);
    }
    gpu_case_steps(&x, w, &io, 0);
    gpu_case_steps(&x, w, &io, 1);
    const float *want[] = {x.got.o, x.got.dq, x.got.dk, x.got.dv};
    const flex_cuda_view *got[] = {&io.o, &io.dq, &io.dk, &io.dv};
    for (int i = 0; i < 4; i++) {
        const int64_t rows = i < 2 ? x.c.nq : x.c.nk, wide = p.dim + GAP;
        uint16_t *host = malloc((size_t)(rows * wide) * 2);
        assert_non_null(host);
        gpu_out(w, host, got[i]->data, (size_t)(rows * wide) * 2 - 2 * GAP);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t d = 0; d < p.dim; d++) {
                const float v = bf16_to_f32(host[r * wide + d]);
                assert_true(v == want[i][r * p.dim + d]);
            }
            for (int64_t d = p.dim; r + 1 < rows && d < wide; d++)
                assert_int_equal(host[r * wide + d], 0);
        }
        free(host);
    }
    gpu_reset(w, mark);
    gpu_case_free(&x);
}

/* B07: keys and values 2^31 elements and more into their tensors. */
static void b07_offsets_past_32_bits(void **data) {
    const gpu_world *w = *data;
    if (!w->d) skip();
    gpu_case x;
    uint64_t seed = numbers_seed(), free_bytes, total;
    const flex_problem p = plain_problem(DT_BF16, 130, 300, 64);
    const int64_t apart = INT64_C(1) << 23;
    const size_t bytes = (size_t)(apart * p.kv_len) * 2;
    dev_arena *far;
    assert_ok(dev_memory(w->d, &free_bytes, &total));
    if (free_bytes < bytes + (1u << 30)) {
        printf("skipped: 6 GiB of device memory are needed\n");
        skip();
    }
    gpu_case_make(&x, &p, MASK_CAUSAL, 0, 0, seed);
    gpu_case_plan(&x, w);
    gpu_cases_load(&x, 1, w);
    gpu_case_run(&x, w);
    attn_result near = x.got;
    const size_t mark = gpu_mark(w);
    flex_cuda_io io = gpu_case_io(&x, w);
    assert_ok(dev_arena_create(&far, w->d, "far apart", bytes));
    dev_address at;
    assert_ok(dev_arena_alloc(far, bytes, &at));
    for (int64_t r = 0; r < p.kv_len; r++) {
        for (int64_t h = 0; h < 2; h++) {
            const size_t row = (size_t)((h * p.kv_len + r) * p.dim) * 2;
            const dev_address to = at + (uint64_t)(r * apart + h * 256) * 2;
            assert_ok(dev_copy_in(w->s, to, (const char *)x.k + row, (size_t)p.dim * 2));
            assert_ok(dev_copy_in(w->s, to + 256, (const char *)x.v + row, (size_t)p.dim * 2));
        }
    }
    io.k = (flex_cuda_view){at, 0, 256, apart}, io.v = (flex_cuda_view){at + 256, 0, 256, apart};
    gpu_case_steps(&x, w, &io, 0);
    gpu_case_steps(&x, w, &io, 1);
    x.got = gpu_case_back(&x, w, &io);
    assert_true(same_result(&x, &near, &x.got));
    dev_arena_destroy(far);
    gpu_reset(w, mark);
    attn_result_free(&near);
    gpu_case_free(&x);
}

/* P1: the size at which dense fp32 scores would take 298 GB, and windows over 8k, 64k and 512k keys: memory beside inputs
 * and outputs, as the driver sees it, is the plan's and follows the length. */
static void never_dense_forward_and_backward(void **data) {
    const gpu_world *w = *data;
    uint64_t free_bytes, total;
    if (w->own) {
        gpu_bench_some(w, GPU_SMALL, GPU_BENCHES, 1);
        return;
    }
    if (!w->d || cases < CASES) skip();
    assert_ok(dev_memory(w->d, &free_bytes, &total));
    if (free_bytes < UINT64_C(24) << 30) {
        printf("skipped: 24 GiB of device memory are needed\n");
        skip();
    }
    gpu_bench_some(w, GPU_LARGE, GPU_SMALL, 3);
}

static void loads_that_leave_and_broken_scores_are_told(void **data) {
    const gpu_world *w = *data;
    uint64_t seed = numbers_seed();
    if (!w->d) skip();
    for (int i = 0; i < 6; i++) {
        gpu_case x;
        const dtype type = i % 2 ? DT_F32 : DT_BF16;
        const flex_problem p = plain_problem(type, 200, 180, 64);
        static const int32_t array[100];
        const expr_decl decl = {"t", EXPR_INT, 1};
        const expr_value value = {.type = DT_I32, .dim = {100}, .data = array};
        const expr_env env = {&value, 0, 0};
        static const char *const masks[] = {"kv < 7 || (q >= 120 && t[q - 40] == 1)", "kv <= q",
                                            "kv <= q"};
        static const char *const scores[] = {NULL, "h == 2 && q > 99 ? s + float(t[kv]) : s",
                                             "h == 1 && q == 150 && kv == 30 ? log(-1.0) : s"};
        expr *mask, *score = NULL;
        int left;
        int64_t cell[4] = {0};
        gpu_case_make(&x, &p, MASK_NONE, 0, 0, seed);
        assert_ok(expr_compile(&mask, EXPR_MASK, masks[i / 2], &decl, 1));
        if (scores[i / 2]) assert_ok(expr_compile(&score, EXPR_SCORE, scores[i / 2], &decl, 1));
        x.c.p.mask = mask, x.c.p.env = &env;
        x.c.p.score = score, x.c.p.score_env = &env;
        gpu_case_plan(&x, w);
        gpu_cases_load(&x, 1, w);
        gpu_case_run_some(&x, w, 0);
        if (i / 2 == 2) {
            says_check(flex_cuda_judge(x.plan, x.words, &left, cell), ERR_NUMERIC,
                       (const char *const[]){"h 1", "q 150", "NaN", NULL}, __FILE__, __LINE__);
            assert_int_equal(left, 0);
        } else {
            static const int64_t want[2][4] = {{0, 0, 140, 7}, {0, 2, 100, 100}};
            assert_ok(flex_cuda_judge(x.plan, x.words, &left, cell));
            assert_int_equal(left, 1);
            assert_memory_equal(cell, want[i / 2], sizeof cell);
        }
        gpu_case_free(&x);
        expr_free(mask);
        expr_free(score);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gallery_equals_the_definition),
        cmocka_unit_test(a_second_run_gives_equal_bits),
        cmocka_unit_test(hidden_nan_does_not_spread),
        cmocka_unit_test(rows_that_are_not_aligned_give_the_same),
        cmocka_unit_test(b07_offsets_past_32_bits),
        cmocka_unit_test(never_dense_forward_and_backward),
        cmocka_unit_test(loads_that_leave_and_broken_scores_are_told),
    };
    if (argc > 1 && !strcmp(argv[1], "--few")) cases = 12;
    if (argc > 1 && !strcmp(argv[1], "--all")) cases = CASES;
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        void *w;
        if (open_gpu(&w)) return 1;
        if (((gpu_world *)w)->d) gpu_bench_some(w, 0, GPU_LARGE, 20);
        return gpu_world_tear_down(&w);
    }
    return cmocka_run_group_tests(tests, open_gpu, gpu_world_tear_down);
}
