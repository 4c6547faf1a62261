/* AdamW against PyTorch, schedules at their corners, and what a step that is not finite must leave alone.
 *
 * The fixture holds ten steps of torch.optim.AdamW with clipping and decay on the matrix only. B21 is worked in numbers: one
 * weight at 1.0 under a constant gradient moves by the rate each step, which bf16 alone would swallow. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "io/safetensors.h"
#include "support/numbers.h"
#include "support/says.h"
#include "adamw_alone.h"
#include "train/schedule.h"

typedef struct bench {
    arena *a;
    dev *d;
    drafter_tensor t[2];
    drafter_layout l;
    adamw w;
    float *params, *grads;
} bench;

/* A layout of one matrix and one vector, not of a real drafter: AdamW looks at offsets, counts and decay. */
static void open_bench(bench *b, const adamw_config *c, int64_t matrix, int64_t vector,
                       int threads) {
    *b = (bench){0};
    b->t[0] = (drafter_tensor){.name = "matrix", .ndim = 2, .count = matrix, .decay = 1};
    b->t[1] = (drafter_tensor){.name = "vector", .ndim = 1, .count = vector};
    b->t[1].offset = (matrix + 15) / 16 * 16;
    b->l = (drafter_layout){.n = 2, .t = b->t, .total = b->t[1].offset + (vector + 15) / 16 * 16};
    assert_ok(dev_open_cpu(&b->d, &(dev_config){.threads = threads}));
    assert_ok(arena_create(&b->a, "test", 0));
    assert_ok(adamw_create(&b->w, &b->l, c, b->a));
    assert_ok(arena_alloc(b->a, (size_t)b->l.total, sizeof(float), &b->params));
    assert_ok(arena_alloc(b->a, (size_t)b->l.total, sizeof(float), &b->grads));
}
static void close_bench(bench *b) {
    arena_destroy(b->a);
    dev_close(b->d);
}

static void load(const st_file *f, const char *name, float *to, int64_t offset, int64_t n) {
    const tensor *t = safetensors_find(f, name);
    assert_non_null(t);
    memcpy(to, (const char *)t->data + (size_t)offset * sizeof *to, (size_t)n * sizeof *to);
}

static void compare(const st_file *f, const char *name, const float *got, int64_t n) {
    float want[64];
    double w[64];
    load(f, name, want, 0, n);
    for (int64_t i = 0; i < n; i++) w[i] = (double)want[i];
    assert_true(numbers_distance(got, w, n) < 2e-6);
}

static void ten_steps_equal_torch(void **s) {
    (void)s;
    bench b;
    st_file *f = NULL;
    const adamw_config c = {
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
    assert_ok(safetensors_open(&f, "tests/fixtures/drafter/adamw.safetensors"));
    open_bench(&b, &c, 35, 13, 2);
    const int64_t at = b.t[1].offset;
    load(f, "matrix", b.params, 0, 35);
    load(f, "vector", b.params + at, 0, 13);
    int clipped = 0;
    for (int64_t i = 0; i < 10; i++) {
        double lr;
        float norm;
        adamw_report r;
        memcpy(&lr, (const char *)safetensors_find(f, "rates")->data + i * 8, 8);
        load(f, "norms", &norm, i, 1);
        load(f, "grad_matrix", b.grads, i * 35, 35);
        load(f, "grad_vector", b.grads + at, i * 13, 13);
        /* The division by the sum of weights happens inside: four times the gradient, a quarter of the scale. */
        for (int64_t k = 0; k < b.l.total; k++) b.grads[k] *= 4;
        assert_ok(adamw_step(&b.w, b.d, lr, 0.25, b.params, b.grads, &r));
        assert_false(r.bad);
        assert_true(fabs(r.grad_norm - (double)norm) < 1e-5 * (double)norm);
        clipped += r.clip_scale < 1;
    }
    assert_true(clipped > 2 && clipped < 10);
    compare(f, "out.matrix", b.params, 35);
    compare(f, "out.vector", b.params + at, 13);
    compare(f, "out.m_matrix", b.w.m, 35);
    compare(f, "out.v_matrix", b.w.v, 35);
    compare(f, "out.m_vector", b.w.m + at, 13);
    compare(f, "out.v_vector", b.w.v + at, 13);
    safetensors_close(f);
    close_bench(&b);
}

static void b21_small_steps_add_up_in_fp32(void **s) {
    (void)s;
    bench b;
    const adamw_config c = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    open_bench(&b, &c, 16, 1, 1);
    const int64_t at = b.t[1].offset;
    b.params[at] = 1;
    float stored = 1;
    for (int i = 0; i < 100; i++) {
        adamw_report r;
        b.grads[at] = 0.3f;
        assert_ok(adamw_step(&b.w, b.d, 6e-4, 1, b.params, b.grads, &r));
        stored = bf16_to_f32(bf16_from_f32(stored - 6e-4f)); /* what a bf16 weight would do */
    }
    assert_true(fabs((double)b.params[at] - 0.94) < 1e-5);
    assert_true(bf16_to_f32(bf16_from_f32(b.params[at])) == 0.94140625f);
    assert_true(stored == 1.0f);
    close_bench(&b);
}

static void b22_a_step_that_is_not_finite_changes_no_bit(void **s) {
    (void)s;
    bench b;
    const adamw_config c = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    open_bench(&b, &c, 40000, 100, 3);
    const uint64_t seed = numbers_seed();
    numbers_fill(b.params, b.l.total, seed, 1, 1);
    numbers_fill(b.grads, b.l.total, seed, 2, 1);
    adamw_report r;
    assert_ok(adamw_step(&b.w, b.d, 1e-3, 1, b.params, b.grads, &r));
    const size_t bytes = (size_t)b.l.total * sizeof(float);
    float *copy = malloc(3 * bytes);
    assert_non_null(copy);
    memcpy(copy, b.params, bytes);
    memcpy(copy + b.l.total, b.w.m, bytes);
    memcpy(copy + 2 * b.l.total, b.w.v, bytes);
    const float poison[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (int i = 0; i < 4; i++) {
        const int64_t at = numbers_below(seed, 3, (uint64_t)i, b.l.total);
        const float keep = b.grads[at];
        b.grads[at] = poison[i];
        assert_ok(adamw_step(&b.w, b.d, 1e-3, 1, b.params, b.grads, &r));
        assert_true(r.bad);
        b.grads[at] = keep;
        assert_memory_equal(copy, b.params, bytes);
        assert_memory_equal(copy + b.l.total, b.w.m, bytes);
        assert_memory_equal(copy + 2 * b.l.total, b.w.v, bytes);
        assert_int_equal(b.w.steps, 1);
    }
    assert_ok(adamw_step(&b.w, b.d, 1e-3, NAN, b.params, b.grads, &r));
    assert_true(r.bad);
    free(copy);
    close_bench(&b);
}

static void bits_do_not_depend_on_threads(void **s) {
    (void)s;
    const adamw_config c = {
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 0.5};
    const uint64_t seed = numbers_seed();
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        bench b;
        adamw_report r;
        open_bench(&b, &c, 70001, 33, threads);
        for (int i = 0; i < 3; i++) {
            numbers_fill(b.grads, b.l.total, seed, (uint64_t)i, 1);
            assert_ok(adamw_step(&b.w, b.d, 1e-3, 0.1, b.params, b.grads, &r));
        }
        if (!first) {
            first = malloc((size_t)b.l.total * sizeof *first);
            assert_non_null(first);
            memcpy(first, b.params, (size_t)b.l.total * sizeof *first);
        }
        assert_memory_equal(first, b.params, (size_t)b.l.total * sizeof *first);
        close_bench(&b);
    }
    free(first);
}

/* Two steps by `ranks` shards in turn, their sums of squares gathered by hand. */
static void step_in_shards(bench *b, int ranks, uint64_t seed) {
    adamw share[4];
    adamw_report r[4];
    const int64_t chunks = adamw_chunks(&b->l);
    for (int k = 0; k < ranks; k++) assert_ok(adamw_share(&share[k], &b->w, ranks, k, b->a));
    for (int i = 0; i < 2; i++) {
        numbers_fill(b->grads, b->l.total, seed, (uint64_t)i, 1);
        for (int k = 0; k < ranks; k++) assert_ok(adamw_norm(&share[k], b->d, b->grads));
        for (int k = 0; k < ranks; k++)
            for (int o = 0; o < ranks; o++)
                memcpy(share[k].partial + share[o].first, share[o].partial + share[o].first,
                       (size_t)(share[o].end - share[o].first) * sizeof(double));
        for (int k = 0; k < ranks; k++) {
            assert_ok(adamw_apply(&share[k], b->d, 1e-3, 0.1, b->params, b->grads, &r[k]));
            assert_memory_equal(&r[k], &r[0], sizeof r[0]);
        }
    }
    assert_int_equal(share[0].first, 0);
    assert_int_equal(share[ranks - 1].end, chunks);
}

static void bits_do_not_depend_on_ranks(void **s) {
    (void)s;
    const adamw_config c = {
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 0.5};
    const uint64_t seed = numbers_seed();
    bench one, many;
    adamw_report r;
    for (int ranks = 1; ranks <= 4; ranks++) {
        open_bench(&one, &c, 70001, 33, 2);
        open_bench(&many, &c, 70001, 33, 2);
        for (int i = 0; i < 2; i++) {
            numbers_fill(one.grads, one.l.total, seed, (uint64_t)i, 1);
            assert_ok(adamw_step(&one.w, one.d, 1e-3, 0.1, one.params, one.grads, &r));
        }
        step_in_shards(&many, ranks, seed);
        const size_t bytes = (size_t)one.l.total * sizeof(float);
        assert_memory_equal(one.params, many.params, bytes);
        assert_memory_equal(one.w.m, many.w.m, bytes);
        assert_memory_equal(one.w.v, many.w.v, bytes);
        close_bench(&one);
        close_bench(&many);
    }
}

static void schedules_at_their_corners(void **s) {
    (void)s;
    schedule c = {.kind = SCHEDULE_COSINE, .peak = 1, .min_lr = 0.1, .warmup = 0.1, .updates = 100};
    assert_true(fabs(schedule_rate(&c, 0) - 0.1) < 1e-12);
    assert_true(fabs(schedule_rate(&c, 9) - 1) < 1e-12);
    assert_true(fabs(schedule_rate(&c, 10) - 1) < 1e-12);
    assert_true(fabs(schedule_rate(&c, 55) - 0.55) < 1e-12);
    assert_true(fabs(schedule_rate(&c, 100) - 0.1) < 1e-12);
    for (int64_t u = 11; u < 100; u++) assert_true(schedule_rate(&c, u) < schedule_rate(&c, u - 1));
    c.kind = SCHEDULE_WSD;
    for (int64_t u = 10; u <= 80; u++) assert_true(schedule_rate(&c, u) == 1);
    assert_true(fabs(schedule_rate(&c, 90) - 0.55) < 1e-12);
    assert_true(fabs(schedule_rate(&c, 100) - 0.1) < 1e-12);
    c.kind = SCHEDULE_CONSTANT;
    assert_true(schedule_rate(&c, 99) == 1);
    c.warmup = 0;
    assert_true(schedule_rate(&c, 0) == 1);
    c.kind = SCHEDULE_COSINE;
    c.updates = 1;
    assert_true(schedule_rate(&c, 0) == 1);
    schedule_kind k;
    assert_true(schedule_parse("wsd", &k) && k == SCHEDULE_WSD);
    assert_false(schedule_parse("linear", &k));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_equal_torch),
        cmocka_unit_test(b21_small_steps_add_up_in_fp32),
        cmocka_unit_test(b22_a_step_that_is_not_finite_changes_no_bit),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(bits_do_not_depend_on_ranks),
        cmocka_unit_test(schedules_at_their_corners),
    };
    return cmocka_run_group_tests_name("AdamW and schedules", tests, NULL, NULL);
}
