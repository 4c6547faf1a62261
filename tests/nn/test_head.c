/* The fused head against a dense loss and gradient in double (B47): odd vocabulary, skipped rows, padded words, threads.
 *
 * Outputs and workspace hold NaN before each call. The head's weights must be unchanged after it: they are frozen. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "nn/nn.h"
#include "support/numbers.h"
#include <string.h>

typedef struct head_case {
    int64_t v, vocab, h, n;
    dtype type;
    int threads;
} head_case;
typedef struct head_data {
    arena *a;
    packed w;
    float *dense, *x, *weight; /* dense: W as held */
    int32_t *label;
} head_data;

static void make(head_data *t, const head_case *c, uint64_t seed) {
    assert_int_equal(arena_create(&t->a, "test", 0), ERR_OK);
    assert_int_equal(packed_alloc(&t->w, t->a, c->type, c->v, c->h), ERR_OK);
    t->dense = numbers_new(c->v * c->h, seed, 1, 0.3f);
    for (int64_t i = c->vocab * c->h; i < c->v * c->h; i++)
        t->dense[i] = 1e4f; /* padding would win */
    packed_set_rows(&t->w, 0, c->v, t->dense, c->h);
    packed_rows(&t->w, 0, c->v, t->dense, c->h);
    t->x = numbers_new(c->n * c->h, seed, 2, 1);
    t->weight = numbers_poisoned(c->n);
    t->label = malloc((size_t)c->n * sizeof *t->label);
    for (int64_t r = 0; r < c->n; r++) {
        t->label[r] = (int32_t)numbers_below(seed, 3, (uint64_t)r, c->vocab);
        t->weight[r] = (float)rng_uniform(seed, RNG_TEST, 4, (uint64_t)r) + 0.01f;
        if (r % 5 == 3) {
            t->weight[r] = 0;
            t->label[r] = -1; /* never looked at */
        }
    }
    if (c->n > 2) { /* one row that the label wins */
        memcpy(t->x + 2 * c->h, t->dense + t->label[2] * c->h, (size_t)c->h * 4);
        for (int64_t i = 0; i < c->h; i++) t->x[2 * c->h + i] *= 20;
    }
}
static void unmake(head_data *t) {
    free(t->dense), free(t->x), free(t->weight), free(t->label);
    arena_destroy(t->a);
}

/* A row as it must be, and how far fp32 may be from it: bounds are sums of the roundings of every term. */
typedef struct dense {
    double *p, *wide; /* [vocab] logits, then their shares; their errors, at most */
    double *dx, *dx_wide;
    double nll, nll_wide;
    int right, certain; /* certain: no rounding makes another word win or lose against the label */
} dense;

static const double U = 0x1p-24; /* half a unit in the last place of 1 */

static int64_t dense_logits(const head_data *t, const head_case *c, int64_t r, dense *o) {
    int64_t best = 0;
    for (int64_t v = 0; v < c->vocab; v++) {
        double size = 0;
        o->p[v] = 0;
        for (int64_t i = 0; i < c->h; i++) {
            const double term = (double)t->dense[v * c->h + i] * (double)t->x[r * c->h + i];
            o->p[v] += term;
            size += fabs(term);
        }
        o->wide[v] = (double)c->h * U * size;
        if (o->p[v] > o->p[best]) best = v;
    }
    const int64_t own = t->label[r];
    o->right = best == own;
    o->certain = 1;
    for (int64_t v = 0; v < c->vocab; v++)
        if (v != own && fabs(o->p[v] - o->p[own]) <= o->wide[v] + o->wide[own] &&
            o->p[best] - o->p[v] <= o->wide[v] + o->wide[best])
            o->certain = 0;
    return best;
}

static void dense_row(const head_data *t, const head_case *c, int64_t r, dense *o) {
    const int64_t own = t->label[r], best = dense_logits(t, c, r, o);
    const double m = o->p[best], own_wide = o->wide[own];
    double sum = 0, wide = 0;
    for (int64_t v = 0; v < c->vocab; v++) sum += exp(o->p[v] - m);
    o->nll = log(sum) + m - o->p[own];
    for (int64_t v = 0; v < c->vocab; v++) {
        /* exp is within 2 units in the last place of a difference that is rounded once. */
        o->wide[v] += U * fabs(o->p[v] - m) + 4 * U;
        o->p[v] = exp(o->p[v] - m) / sum;
        wide += o->p[v] * o->wide[v];
    }
    wide += 68 * U; /* positive terms: 64 in each of 16 lanes and the lanes, then in double */
    o->nll_wide = wide + own_wide + U * o->nll;
    /* E W is a sum over the vocabulary, whose roundings are as good as random: eight deviations of them. */
    const double scale = (double)t->weight[r] * 0.25,
                 adds = fmin((double)c->vocab, 8 * sqrt((double)c->vocab)) * U;
    for (int64_t i = 0; i < c->h; i++) {
        const double label = (double)t->dense[own * c->h + i];
        double value = -label, room = 4 * U * fabs(label);
        for (int64_t v = 0; v < c->vocab; v++) {
            const double term = o->p[v] * (double)t->dense[v * c->h + i];
            value += term;
            room += fabs(term) * (o->wide[v] + wide + adds + 4 * U);
        }
        o->dx[i] = scale * value;
        o->dx_wide[i] = scale * room;
    }
}

typedef struct head_out {
    float *nll, *dx;
    uint8_t *right;
} head_out;
static void run(const head_data *t, const head_case *c, int threads, head_out *o,
                int forward_only) {
    dev *d;
    dev_config dc = {.threads = threads};
    assert_int_equal(dev_open_cpu(&d, &dc), ERR_OK);
    size_t bytes = nn_head_bytes(d, &t->w, c->n);
    char *ws = aligned_alloc(64, bytes + 64);
    memset(ws, 0xff, bytes + 64);
    o->nll = numbers_poisoned(c->n);
    o->dx = numbers_poisoned(c->n * c->h);
    o->right = malloc((size_t)c->n);
    memset(o->right, 7, (size_t)c->n);
    head_args a = {.w = &t->w,
                   .vocab = c->vocab == c->v ? 0 : c->vocab,
                   .n = c->n,
                   .x = t->x,
                   .ldx = c->h,
                   .label = t->label};
    a.weight = t->weight;
    a.scale = 0.25f;
    a.nll = o->nll;
    a.dx = forward_only ? NULL : o->dx;
    a.lddx = c->h;
    a.correct = o->right;
    a.workspace = ws;
    assert_int_equal(nn_head_loss(d, &a), ERR_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal((unsigned char)ws[bytes + (size_t)i], 0xff); /* guard */
    free(ws);
    dev_close(d);
}
static void drop(head_out *o) { free(o->nll), free(o->dx), free(o->right); }

static void check_case(const head_case *c, uint64_t seed) {
    head_data t;
    head_out o, again;
    make(&t, c, seed);
    char *before = malloc(packed_bytes(c->type, c->v, c->h));
    memcpy(before, t.w.data, packed_bytes(c->type, c->v, c->h));
    run(&t, c, c->threads, &o, 0);
    assert_memory_equal(before, t.w.data, packed_bytes(c->type, c->v, c->h));
    dense w = {.p = malloc((size_t)c->vocab * 16), .dx = malloc((size_t)c->h * 16)};
    double worst = 0;
    int64_t unclear = 0;
    w.wide = w.p + c->vocab;
    w.dx_wide = w.dx + c->h;
    for (int64_t r = 0; r < c->n; r++) {
        if (t.weight[r] == 0) {
            assert_true(o.nll[r] == 0 && o.right[r] == 0);
            for (int64_t i = 0; i < c->h; i++) assert_true(o.dx[r * c->h + i] == 0);
            continue;
        }
        dense_row(&t, c, r, &w);
        assert_true(fabs(w.nll - (double)o.nll[r]) <= w.nll_wide);
        assert_true(o.right[r] == w.right || (!w.certain && o.right[r] == !w.right));
        unclear += !w.certain;
        for (int64_t i = 0; i < c->h; i++) {
            const double far = fabs(w.dx[i] - (double)o.dx[r * c->h + i]);
            assert_true(far <= w.dx_wide[i]);
            worst = fmax(worst, far / w.dx_wide[i]);
        }
    }
    printf(
        "V %lld: the gradient's errors reach %.2g of what they may, %lld rows with two best words\n",
        (long long)c->v, worst, (long long)unclear);
    assert_true(unclear <= c->n / 10 + 2);
    run(&t, c, 3, &again, 0);
    assert_memory_equal(o.nll, again.nll, (size_t)c->n * 4);
    assert_memory_equal(o.dx, again.dx, (size_t)(c->n * c->h) * 4);
    drop(&again);
    run(&t, c, 2, &again, 1);
    assert_memory_equal(o.nll, again.nll, (size_t)c->n * 4);
    assert_true(isnan(again.dx[0]));
    drop(&again), drop(&o);
    free(before), free(w.p), free(w.dx);
    unmake(&t);
}

static void b47_chunked_head_equals_dense(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    head_case c[] = {{4099, 4099, 32, 1000, DT_F32, 2},
                     {4099, 4099, 48, 40, DT_BF16, 1},
                     {1024, 1000, 24, 300, DT_F32, 2},
                     {17, 17, 8, 5, DT_F32, 1}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) check_case(&c[i], seed + i);
}

static void nothing_to_do_is_fine(void **state) {
    (void)state;
    head_case c = {50, 50, 8, 10, DT_F32, 1};
    head_data t;
    head_out o;
    make(&t, &c, 1);
    for (int64_t r = 0; r < c.n; r++) t.weight[r] = 0;
    run(&t, &c, 1, &o, 0);
    for (int64_t i = 0; i < c.n * c.h; i++) assert_true(o.dx[i] == 0);
    drop(&o);
    unmake(&t);
}

static void bad_rows_are_refused(void **state) {
    (void)state;
    head_case c = {50, 40, 8, 10, DT_F32, 1};
    head_data t;
    dev *d;
    dev_config dc = {.threads = 1};
    make(&t, &c, 1);
    assert_int_equal(dev_open_cpu(&d, &dc), ERR_OK);
    float nll[10];
    void *ws = aligned_alloc(64, nn_head_bytes(d, &t.w, c.n));
    head_args a = {.w = &t.w,
                   .vocab = 40,
                   .n = c.n,
                   .x = t.x,
                   .ldx = c.h,
                   .label = t.label,
                   .weight = t.weight,
                   .scale = 1,
                   .nll = nll,
                   .workspace = ws};
    t.label[4] = 40;
    assert_int_equal(nn_head_loss(d, &a), ERR_RANGE);
    assert_non_null(strstr(err_text(), "label 40 of row 4"));
    t.label[4] = 0;
    t.weight[6] = NAN;
    assert_int_equal(nn_head_loss(d, &a), ERR_RANGE);
    assert_non_null(strstr(err_text(), "row 6"));
    t.weight[6] = 1;
    a.vocab = 51;
    assert_int_equal(nn_head_loss(d, &a), ERR_RANGE);
    free(ws);
    dev_close(d);
    unmake(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b47_chunked_head_equals_dense),
        cmocka_unit_test(nothing_to_do_is_fine),
        cmocka_unit_test(bad_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
