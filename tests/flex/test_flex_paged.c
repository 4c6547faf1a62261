/* Paged decode attention: against the definition in double, and bit for bit against itself row by row.
 *
 * Pages are shuffled and everything that no row may see is NaN: the rest of the last page, unused pages, and keys a
 * causal row or a window hides are only sometimes finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "paged_batch.h"
#include "support/says.h"

static dev *open_dev(int threads, const char *isa) {
    dev *d;
    const dev_config cfg = {.threads = threads, .blas = "none"};
    if (isa) setenv("PACELINE_ISA", isa, 1);
    assert_ok(dev_open_cpu(&d, &cfg));
    if (isa) unsetenv("PACELINE_ISA");
    return d;
}

/* Whether a row is what it should be. An average of thousands of values may be much smaller than they are, and is rounded as they are: five
 * times, at a size of 4. */
static int is_near(const float *got, const double *want, int64_t n) {
    double size = 0, far = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)got[i] - want[i]);
        if (!(e < INFINITY)) return 0;
        far = fmax(far, e), size = fmax(size, fabs(want[i]));
    }
    return far <= 1e-5 * size + 5 * 4 * 0x1p-24;
}

static void equals_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2, NULL);
    double *w = malloc(sizeof *w * 4096), o[256];
    for (int i = 0; i < 40; i++) {
        paged_batch b;
        paged_batch_draw(&b, seed + (uint64_t)i, i % 10 ? 200 : 1100);
        assert_ok(paged_attention(d, &b.a));
        for (int64_t s = 0; s < b.a.n_seqs; s++) {
            for (int64_t row = 0; row < b.seq[s].rows * b.a.q_heads; row++) {
                paged_batch_define(&b.a, &b.seq[s], row / b.a.q_heads, row % b.a.q_heads, w, o);
                const float *got = b.seq[s].o + row * b.a.dim;
                if (!is_near(got, o, b.a.dim))
                    fail_msg("draw %d, sequence %lld, row %lld: %g", i, (long long)s,
                             (long long)row, numbers_distance(got, o, b.a.dim));
            }
        }
        paged_batch_drop(&b);
    }
    free(w);
    dev_close(d);
}

/* Each row alone, as a sequence of its own, must give the bits it had in the batch. */
static int rows_alone_agree(const paged_batch *b, dev *d) {
    int64_t width = b->a.q_heads * b->a.dim;
    float *o = numbers_poisoned(width);
    int ok = 1;
    for (int64_t s = 0; s < b->a.n_seqs; s++) {
        for (int64_t r = 0; r < b->seq[s].rows; r++) {
            paged_seq one = b->seq[s];
            paged_args a = b->a;
            one.rows = 1, one.q += r * width, one.o = o, one.window_pos += r;
            if (one.first >= 0) one.first += r;
            a.seqs = &one, a.n_seqs = 1;
            assert_ok(paged_attention(d, &a));
            ok = ok && !memcmp(o, b->seq[s].o + r * width, (size_t)width * sizeof(float));
        }
    }
    free(o);
    return ok;
}

static void a_row_does_not_feel_the_others(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2, NULL);
    for (int i = 0; i < 40; i++) {
        paged_batch b;
        paged_batch_draw(&b, seed + (uint64_t)i, i % 10 ? 300 : 1100);
        assert_ok(paged_attention(d, &b.a));
        assert_true(rows_alone_agree(&b, d));
        paged_batch_drop(&b);
    }
    dev_close(d);
}

/* Threads 1 to 3 and every instruction set of this CPU. */
static void threads_and_instruction_sets_agree(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d[6] = {open_dev(1, NULL),   open_dev(2, NULL),       open_dev(3, NULL),
                 open_dev(2, "avx2"), open_dev(1, "portable"), open_dev(2, "avx512")};
    for (int i = 0; i < 20; i++) {
        paged_batch b;
        float *first[PAGED_BATCH_SEQS];
        paged_batch_draw(&b, seed + (uint64_t)i, 400);
        for (int j = 0; j < 6; j++) {
            assert_ok(paged_attention(d[j], &b.a));
            for (int64_t s = 0; s < b.a.n_seqs; s++) {
                size_t n = (size_t)(b.seq[s].rows * b.a.q_heads * b.a.dim) * sizeof(float);
                if (j == 0) memcpy(first[s] = malloc(n), b.seq[s].o, n);
                assert_memory_equal(first[s], b.seq[s].o, n);
                numbers_poison(b.seq[s].o, (int64_t)(n / sizeof(float)));
            }
        }
        for (int64_t s = 0; s < b.a.n_seqs; s++) free(first[s]);
        paged_batch_drop(&b);
    }
    for (int i = 0; i < 6; i++) dev_close(d[i]);
}

/* A row's prefix of keys decides it: keys added after what it sees change no bit (a cache that grows). */
static void later_keys_change_nothing(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2, NULL);
    for (int i = 0; i < 20; i++) {
        paged_batch b;
        paged_batch_draw(&b, seed + (uint64_t)i, 600);
        int64_t n = b.seq[0].rows * b.a.q_heads * b.a.dim;
        if (b.seq[0].first < 0 || b.seq[0].n_keys < b.seq[0].first + b.seq[0].rows) {
            paged_batch_drop(&b);
            continue;
        }
        b.a.n_seqs = 1;
        assert_ok(paged_attention(d, &b.a));
        float *whole = malloc((size_t)n * sizeof(float));
        memcpy(whole, b.seq[0].o, (size_t)n * sizeof(float));
        b.seq[0].n_keys = b.seq[0].first + b.seq[0].rows;
        assert_ok(paged_attention(d, &b.a));
        assert_memory_equal(whole, b.seq[0].o, (size_t)n * sizeof(float));
        free(whole);
        paged_batch_drop(&b);
    }
    dev_close(d);
}

static void nothing_seen_gives_zero_and_bad_shapes_say_so(void **state) {
    (void)state;
    dev *d = open_dev(1, NULL);
    float q[16] = {1}, o[16];
    numbers_poison(o, 16);
    paged_seq s = {.rows = 1, .first = -1, .q = q, .o = o};
    paged_args a = {.q_heads = 2, .kv_heads = 1, .dim = 8, .scale = 1, .seqs = &s, .n_seqs = 1};
    assert_ok(paged_attention(d, &a));
    for (int i = 0; i < 16; i++) assert_true(o[i] == 0.0f);
    a.kv_heads = 3;
    assert_says(paged_attention(d, &a), ERR_SHAPE, "2 query heads", "3 key/value heads");
    a.kv_heads = 1, a.dim = 12;
    assert_says(paged_attention(d, &a), ERR_SHAPE, "12", "multiple of 8");
    a.dim = 8, s.n_keys = 5;
    assert_says(paged_attention(d, &a), ERR_USAGE, "sequence 0");
    s.n_keys = -1;
    assert_says(paged_attention(d, &a), ERR_RANGE, "sequence 0", "-1 keys");
    a.n_seqs = 0;
    assert_ok(paged_attention(d, &a));
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_definition),
        cmocka_unit_test(a_row_does_not_feel_the_others),
        cmocka_unit_test(threads_and_instruction_sets_agree),
        cmocka_unit_test(later_keys_change_nothing),
        cmocka_unit_test(nothing_seen_gives_zero_and_bad_shapes_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
