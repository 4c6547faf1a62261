/* The drafter's training passes against PyTorch, against finite differences, and against leaks of the answer.
 *
 * Fixtures hold hidden states, features, per-slot loss, loss and every gradient of two tiny configurations (documents, unused
 * blocks, a window, two head ratios). The rest are properties: what a block may not see changes none of its bits,
 * and results do not depend on threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "drafter_fixture.h"
#include "support/says.h"

typedef struct result {
    float *hidden, *features, *nll, *grads;
    double loss, weight;
} result;

static float *poisoned(arena *a, int64_t n) {
    float *x = NULL;
    assert_ok(arena_alloc_raw(a, (size_t)n, sizeof *x, &x));
    numbers_poison(x, n);
    return x;
}

/* Forward, head and backward; the gradient is divided by the sum of weights. */
static result run(const fixture *f, const drafter_row *row, const float *params, dev *d,
                  int backward) {
    const int64_t h = f->cfg.hidden, r = row->n_anchors * f->cfg.block_size;
    result o = {.hidden = poisoned(f->a, r * h), .features = poisoned(f->a, row->n * h)};
    o.nll = poisoned(f->a, r);
    float *weight = poisoned(f->a, r), *dx = poisoned(f->a, r * h);
    int32_t *label = NULL;
    void *work = NULL;
    drafter_acts *acts = NULL;
    assert_ok(arena_alloc(f->a, (size_t)r, sizeof *label, &label));
    assert_ok(arena_alloc(f->a, (size_t)f->l.total, sizeof(float), &o.grads));
    assert_ok(arena_alloc_raw(f->a, nn_head_bytes(d, target_head(f->t), r), 1, &work));
    assert_ok(drafter_forward(&f->l, params, f->t, d, row, o.hidden, o.features, &acts, f->a));
    fixture_labels(f, row, label, weight);
    for (int64_t i = 0; i < r; i++) o.weight += (double)weight[i];
    head_args a = {.w = target_head(f->t), .n = r, .x = o.hidden, .ldx = h, .label = label};
    a.weight = weight;
    a.scale = 1;
    a.nll = o.nll;
    a.dx = dx;
    a.lddx = h;
    a.workspace = work;
    assert_ok(nn_head_loss(d, &a));
    for (int64_t i = 0; i < r; i++) o.loss += (double)weight[i] * (double)o.nll[i];
    o.loss /= o.weight;
    if (!backward) {
        drafter_acts_release(acts);
        return o;
    }
    assert_ok(drafter_backward(&f->l, params, d, row, acts, dx, o.grads, f->a));
    for (int64_t i = 0; i < f->l.total; i++) o.grads[i] = (float)((double)o.grads[i] / o.weight);
    return o;
}

static void against_torch(const char *name) {
    fixture f;
    fixture_open(&f, name, 2);
    result o = run(&f, &f.row, f.params, f.d, 1);
    float loss = (float)o.loss;
    assert_true(fixture_distance(&f, "out.hidden", o.hidden) <= 1e-4);
    assert_true(fixture_distance(&f, "out.features", o.features) <= 1e-4);
    assert_true(fixture_distance(&f, "out.slot_nll", o.nll) <= 1e-4);
    assert_true(fixture_distance(&f, "out.loss", &loss) <= 1e-4);
    for (int i = 0; i < f.l.n; i++) {
        char at[80];
        snprintf(at, sizeof at, "g.%s", f.l.t[i].name);
        double far = fixture_distance(&f, at, o.grads + f.l.t[i].offset);
        if (far > 1e-4) printf("%s: %g\n", at, far);
        assert_true(far <= 1e-4);
    }
    fixture_close(&f);
}
static void forward_loss_and_gradients_equal_torch_gqa1(void **s) {
    (void)s;
    against_torch("drafter_a");
}
static void forward_loss_and_gradients_equal_torch_gqa3_window_unused(void **s) {
    (void)s;
    against_torch("drafter_b");
}

/* Each tensor moved along its own gradient: the loss moves as the gradient says. */
static void gradients_equal_finite_differences(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 2);
    const uint64_t seed = numbers_seed();
    result o = run(&f, &f.row, f.params, f.d, 1);
    float *p = NULL;
    assert_ok(arena_alloc(f.a, (size_t)f.l.total, sizeof *p, &p));
    memcpy(p, f.params, (size_t)f.l.total * sizeof *p);
    for (int i = 0; i < f.l.n; i++) {
        /* Along the tensor's own gradient the derivative is its squared norm: no entry is too small to see. */
        const drafter_tensor *t = &f.l.t[i];
        const float *g = o.grads + t->offset;
        double square = 0;
        for (int64_t e = 0; e < t->count; e++) square += (double)g[e] * (double)g[e];
        const double step = 4e-3 * (1 + rng_uniform(seed, RNG_TEST, 1, (uint64_t)i)) / sqrt(square);
        double side[2];
        for (int k = 0; k < 2; k++) {
            for (int64_t e = 0; e < t->count; e++)
                p[t->offset + e] =
                    (float)((double)f.params[t->offset + e] + (k ? -step : step) * (double)g[e]);
            const arena_mark m = arena_get_mark(f.a);
            side[k] = run(&f, &f.row, p, f.d, 0).loss;
            arena_reset(f.a, m);
        }
        memcpy(p + t->offset, f.params + t->offset, (size_t)t->count * sizeof *p);
        const double slope = (side[0] - side[1]) / (2 * step);
        const double allowed = 0.02 * square + 2e-6 / step; /* the loss itself is fp32 */
        if (fabs(slope - square) > allowed)
            printf("%s: slope %g, gradient %g\n", t->name, slope, square);
        assert_true(fabs(slope - square) <= allowed);
    }
    fixture_close(&f);
}

/* Block b's rows of two runs, bit for bit. */
static int same_block(const fixture *f, const result *x, const result *y, int64_t b) {
    const int64_t w = f->cfg.block_size * f->cfg.hidden;
    return memcmp(x->hidden + b * w, y->hidden + b * w, (size_t)w * sizeof(float)) == 0;
}

static void b12_no_block_sees_its_answer_or_another_block(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_a", 2);
    enum { N = 64 };
    /* One document of 64 tokens, blocks that overlap each other's positions. */
    static const int32_t anchors[] = {10, 14, 15, 30};
    int32_t document[N] = {0}, position[N], tokens[N], changed[N];
    float *taps = numbers_new(N * f.cfg.n_taps * f.cfg.hidden, 5, 1, 1);
    for (int i = 0; i < N; i++) position[i] = i, tokens[i] = i;
    drafter_row row = {.n = N, .tokens = tokens, .document = document, .position = position};
    row.n_anchors = 4;
    row.anchor = anchors;
    row.taps = taps;
    result base = run(&f, &row, f.params, f.d, 0);
    const int64_t width = f.cfg.n_taps * f.cfg.hidden;
    for (int64_t p = 0; p < N; p++) {
        const float keep = taps[p * width];
        taps[p * width] = NAN; /* the strongest change: it must not even be multiplied by zero */
        result o = run(&f, &row, f.params, f.d, 0);
        taps[p * width] = keep + 1;
        result moved = run(&f, &row, f.params, f.d, 0);
        taps[p * width] = keep;
        for (int64_t b = 0; b < 4; b++) {
            assert_int_equal(same_block(&f, &base, &o, b), p >= anchors[b]);
            assert_int_equal(same_block(&f, &base, &moved, b), p >= anchors[b]);
        }
    }
    for (int64_t b = 0; b < 4; b++) {
        memcpy(changed, tokens, sizeof tokens);
        changed[anchors[b]] = 90;
        row.tokens = changed;
        result o = run(&f, &row, f.params, f.d, 0);
        for (int64_t c = 0; c < 4; c++) assert_int_equal(same_block(&f, &base, &o, c), c != b);
    }
    free(taps);
    fixture_close(&f);
}

static void b13_documents_of_a_row_do_not_touch(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 2);
    result base = run(&f, &f.row, f.params, f.d, 0);
    /* Every tap of document 0 changes; blocks of the others keep their bits. */
    const int64_t width = f.cfg.n_taps * f.cfg.hidden;
    float *taps = (float *)(uintptr_t)f.row.taps;
    for (int64_t i = 0; i < f.row.n; i++)
        if (f.row.document[i] == 0) taps[i * width] += 1;
    result o = run(&f, &f.row, f.params, f.d, 0);
    for (int64_t b = 0; b < f.row.n_anchors; b++) {
        const int32_t a = f.row.anchor[b];
        const int other = a < 0 || f.row.document[a] != 0 || a == 0;
        assert_int_equal(same_block(&f, &base, &o, b), other);
    }
    fixture_close(&f);
}

static void b22_unused_blocks_and_no_blocks_add_nothing(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 2);
    result with = run(&f, &f.row, f.params, f.d, 1);
    drafter_row fewer = f.row;
    while (fewer.anchor[fewer.n_anchors - 1] < 0) fewer.n_anchors--;
    assert_true(fewer.n_anchors < f.row.n_anchors);
    result without = run(&f, &fewer, f.params, f.d, 1);
    double far = 0, size = 0;
    for (int64_t i = 0; i < f.l.total; i++) {
        assert_true(isfinite(with.grads[i]));
        far = fmax(far, fabs((double)with.grads[i] - (double)without.grads[i]));
        size = fmax(size, fabs((double)without.grads[i]));
    }
    assert_true(far <= 1e-6 * size);
    assert_true(fabs(with.loss - without.loss) <= 1e-6 * with.loss);
    for (int64_t i = fewer.n_anchors * f.cfg.block_size * f.cfg.hidden;
         i < f.row.n_anchors * f.cfg.block_size * f.cfg.hidden; i++)
        assert_true(isfinite(with.hidden[i]));
    drafter_row none = f.row;
    none.n_anchors = 0;
    drafter_acts *acts = NULL;
    float *zero = poisoned(f.a, 1);
    assert_ok(drafter_forward(&f.l, f.params, f.t, f.d, &none, zero, NULL, &acts, f.a));
    drafter_acts_release(acts);
    fixture_close(&f);
}

static void bits_do_not_depend_on_threads(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 1);
    result one = run(&f, &f.row, f.params, f.d, 1);
    for (int threads = 2; threads <= 3; threads++) {
        dev *d = NULL;
        assert_ok(dev_open_cpu(&d, &(dev_config){.threads = threads}));
        result o = run(&f, &f.row, f.params, d, 1);
        assert_memory_equal(one.grads, o.grads, (size_t)f.l.total * sizeof(float));
        assert_memory_equal(one.nll, o.nll,
                            (size_t)(f.row.n_anchors * f.cfg.block_size) * sizeof(float));
        dev_close(d);
    }
    fixture_close(&f);
}

static void stated_bytes_are_enough_and_failures_leave_cleanly(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 2);
    const int64_t r = f.row.n_anchors * f.cfg.block_size, h = f.cfg.hidden;
    float *hidden = poisoned(f.a, r * h), *dx = numbers_new(r * h, 3, 3, 1), *grads = NULL;
    assert_ok(arena_alloc(f.a, (size_t)f.l.total, sizeof *grads, &grads));
    arena *a = NULL;
    assert_ok(arena_create(&a, "step", drafter_train_bytes(&f.l, f.row.n, f.row.n_anchors, 2)));
    const arena_mark start = arena_get_mark(a);
    int failed = 0;
    for (uint64_t at = 1;; at++) {
        drafter_acts *acts = NULL;
        arena_fail_at(a, at);
        err e = drafter_forward(&f.l, f.params, f.t, f.d, &f.row, hidden, NULL, &acts, a);
        if (!e) e = drafter_backward(&f.l, f.params, f.d, &f.row, acts, dx, grads, a);
        drafter_acts_release(acts);
        arena_fail_at(a, 0);
        arena_reset(a, start);
        if (!e) break;
        assert_int_equal(e, ERR_MEMORY);
        failed++;
    }
    assert_true(failed > 40);
    arena_destroy(a);
    free(dx);
    fixture_close(&f);
}

static void bad_rows_are_refused(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_a", 1);
    float *hidden = poisoned(f.a, f.row.n_anchors * f.cfg.block_size * f.cfg.hidden);
    int32_t anchor[16], position[64];
    drafter_row row = f.row;
    memcpy(anchor, row.anchor, (size_t)row.n_anchors * sizeof *anchor);
    row.anchor = anchor;
    anchor[2] = (int32_t)row.n;
    assert_says(drafter_forward(&f.l, f.params, f.t, f.d, &row, hidden, NULL, NULL, f.a), ERR_RANGE,
                "anchor 48 of block 2", "48 tokens");
    row.anchor = f.row.anchor;
    memcpy(position, row.position, (size_t)row.n * sizeof *position);
    position[15] = 14;
    row.position = position;
    assert_says(drafter_forward(&f.l, f.params, f.t, f.d, &row, hidden, NULL, NULL, f.a), ERR_RANGE,
                "positions from 0");
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_loss_and_gradients_equal_torch_gqa1),
        cmocka_unit_test(forward_loss_and_gradients_equal_torch_gqa3_window_unused),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(b12_no_block_sees_its_answer_or_another_block),
        cmocka_unit_test(b13_documents_of_a_row_do_not_touch),
        cmocka_unit_test(b22_unused_blocks_and_no_blocks_add_nothing),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(stated_bytes_are_enough_and_failures_leave_cleanly),
        cmocka_unit_test(bad_rows_are_refused),
    };
    return cmocka_run_group_tests_name("drafter training", tests, NULL, NULL);
}
