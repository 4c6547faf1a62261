/* Paged decode attention: against the definition in double, and bit for bit against itself row by row.
 *
 * Pages are shuffled and everything that no row may see is NaN: the rest of the last page, unused pages, and keys a
 * causal row or a window hides are only sometimes finite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flex/paged.h"
#include "support/numbers.h"
#include "support/says.h"
#include <string.h>

enum { MAX_SEQS = 8 };

typedef struct batch {
    paged_args a;
    paged_seq seq[MAX_SEQS];
    void *block[MAX_SEQS * 5 + 2];
    int n_blocks;
} batch;

static void *keep(batch *b, void *p) { return b->block[b->n_blocks++] = p; }

/* Row r of sequence q sees paged keys *lo .. *hi-1. */
static void visible(const paged_seq *q, int64_t r, int64_t *lo, int64_t *hi) {
    *lo = q->window > 0 ? q->window_pos + r - q->window + 1 : 0;
    if (*lo < 0) *lo = 0;
    *hi = q->first >= 0 && q->first + r + 1 < q->n_keys ? q->first + r + 1 : q->n_keys;
}

static void draw_sequence(batch *b, int i, uint64_t s, int64_t longest) {
    static const int64_t widths[] = {1, 1, 2, 5, 8, 16, 17};
    paged_seq *q = &b->seq[i];
    const paged_args *a = &b->a;
    uint64_t at = (uint64_t)i * 16;
    q->rows = widths[numbers_below(s, 40, at, 7)];
    q->n_keys = numbers_below(s, 41, at, longest);
    q->first = -1;
    if (numbers_below(s, 42, at,
                      2)) { /* the rows are the last positions, sometimes not all of them */
        q->first = q->n_keys - q->rows - numbers_below(s, 43, at, 2);
        if (q->first < 0) q->first = 0;
    }
    if (numbers_below(s, 44, at, 3) == 0) {
        q->window = 1 + numbers_below(s, 45, at, 300);
        q->window_pos = q->first >= 0 ? q->first : q->n_keys;
    }
    if (numbers_below(s, 46, at, 3) == 0)
        q->n_extra = 1 + numbers_below(s, 47, at, numbers_below(s, 48, at, 5) ? 17 : 300);
    int64_t row = a->kv_heads * a->dim;
    q->q = keep(b, numbers_new(q->rows * a->q_heads * a->dim, s, 50 + at, 1.0f));
    q->extra_k = keep(b, numbers_new(q->n_extra * row, s, 51 + at, 1.0f));
    q->extra_v = keep(b, numbers_new(q->n_extra * row, s, 52 + at, 1.0f));
    q->o = keep(b, numbers_poisoned(q->rows * a->q_heads * a->dim));
}

/* Gives each sequence shuffled pages and fills what is written of them; keys that no row sees stay NaN half the time. */
static void fill_pages(batch *b, uint64_t s) {
    paged_args *a = &b->a;
    int64_t need = 0, row = a->kv_heads * a->dim, used = 0;
    for (int64_t i = 0; i < a->n_seqs; i++) need += b->seq[i].n_keys / PAGED_PAGE + 1;
    int64_t *order = malloc((size_t)(need + 3) * sizeof *order);
    rng_permutation(s, RNG_TEST, 60, need + 3, order);
    float *k = keep(b, numbers_poisoned((need + 3) * PAGED_PAGE * row)),
          *v = keep(b, numbers_poisoned((need + 3) * PAGED_PAGE * row));
    int show_hidden = (int)numbers_below(s, 61, 0, 2);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        paged_seq *q = &b->seq[i];
        int32_t *pages = keep(b, malloc((size_t)(q->n_keys / PAGED_PAGE + 1) * sizeof *pages));
        for (int64_t p = 0; p <= q->n_keys / PAGED_PAGE; p++) pages[p] = (int32_t)order[used++];
        q->pages = pages;
        for (int64_t j = 0; j < q->n_keys; j++) {
            int seen = show_hidden;
            for (int64_t r = 0; r < q->rows && !seen; r++) {
                int64_t lo, hi;
                visible(q, r, &lo, &hi);
                seen = j >= lo && j < hi;
            }
            int64_t at = ((int64_t)pages[j / PAGED_PAGE] * PAGED_PAGE + j % PAGED_PAGE) * row;
            if (!seen) continue;
            numbers_fill(k + at, row, s, 1000 + (uint64_t)(i * 100000 + j), 1.0f);
            numbers_fill(v + at, row, s, 1001 + (uint64_t)(i * 100000 + j) + (1u << 30), 1.0f);
        }
    }
    free(order);
    a->k_pool = k, a->v_pool = v;
}

static void draw(batch *b, uint64_t s, int64_t longest) {
    static const int64_t heads[][2] = {{1, 1}, {3, 1}, {9, 3}, {8, 2}, {4, 4}, {71, 1}};
    static const int64_t dims[] = {8, 24, 64, 64, 128, 256};
    memset(b, 0, sizeof *b);
    const int64_t *h = heads[numbers_below(s, 62, 0, 6)];
    b->a = (paged_args){
        .q_heads = h[0], .kv_heads = h[1], .dim = dims[numbers_below(s, 63, 0, 6)], .seqs = b->seq};
    b->a.scale = (float)(1 / sqrt((double)b->a.dim));
    b->a.n_seqs = 1 + numbers_below(s, 64, 0, MAX_SEQS);
    for (int i = 0; i < b->a.n_seqs; i++) draw_sequence(b, i, s, longest);
    fill_pages(b, s);
}
static void drop(batch *b) {
    for (int i = 0; i < b->n_blocks; i++) free(b->block[i]);
}

/* One row and head in double; w: room for all keys. */
static void define(const paged_args *a, const paged_seq *q, int64_t r, int64_t h, double *w,
                   double *o) {
    int64_t kvh = h / (a->q_heads / a->kv_heads), row = a->kv_heads * a->dim, lo, hi,
            n = q->n_keys + q->n_extra;
    const float *x = q->q + (r * a->q_heads + h) * a->dim;
    double top = -INFINITY, sum = 0;
    visible(q, r, &lo, &hi);
    for (int64_t d = 0; d < a->dim; d++) o[d] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = 0; j < n; j++) {
            if (j < q->n_keys && (j < lo || j >= hi)) continue;
            int64_t at =
                j < q->n_keys
                    ? ((int64_t)q->pages[j / PAGED_PAGE] * PAGED_PAGE + j % PAGED_PAGE) * row
                    : (j - q->n_keys) * row;
            const float *k = (j < q->n_keys ? a->k_pool : q->extra_k) + at + kvh * a->dim;
            const float *v = (j < q->n_keys ? a->v_pool : q->extra_v) + at + kvh * a->dim;
            if (pass == 0) {
                w[j] = 0;
                for (int64_t d = 0; d < a->dim; d++) w[j] += (double)x[d] * (double)k[d];
                w[j] *= (double)a->scale;
                if (w[j] > top) top = w[j];
            } else {
                double p = exp(w[j] - top);
                sum += p;
                for (int64_t d = 0; d < a->dim; d++) o[d] += p * (double)v[d];
            }
        }
    }
    for (int64_t d = 0; sum > 0 && d < a->dim; d++) o[d] /= sum;
}

static dev *open_dev(int threads, const char *isa) {
    dev *d;
    const dev_config cfg = {.threads = threads, .blas = "none"};
    if (isa) setenv("PACELINE_ISA", isa, 1);
    assert_ok(dev_open_cpu(&d, &cfg));
    if (isa) unsetenv("PACELINE_ISA");
    return d;
}

static void equals_the_definition(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2, NULL);
    double *w = malloc(sizeof *w * 4096), o[256];
    for (int i = 0; i < 40; i++) {
        batch b;
        draw(&b, seed + (uint64_t)i, i % 10 ? 200 : 1100);
        assert_ok(paged_attention(d, &b.a));
        for (int64_t s = 0; s < b.a.n_seqs; s++) {
            for (int64_t row = 0; row < b.seq[s].rows * b.a.q_heads; row++) {
                define(&b.a, &b.seq[s], row / b.a.q_heads, row % b.a.q_heads, w, o);
                double far = numbers_distance(b.seq[s].o + row * b.a.dim, o, b.a.dim);
                if (!(far < 2e-5))
                    printf("draw %d, sequence %lld, row %lld: %g\n", i, (long long)s,
                           (long long)row, far);
                assert_true(far < 2e-5);
            }
        }
        drop(&b);
    }
    free(w);
    dev_close(d);
}

/* Each row alone, as a sequence of its own, must give the bits it had in the batch. */
static int rows_alone_agree(const batch *b, dev *d) {
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
        batch b;
        draw(&b, seed + (uint64_t)i, i % 10 ? 300 : 1100);
        assert_ok(paged_attention(d, &b.a));
        assert_true(rows_alone_agree(&b, d));
        drop(&b);
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
        batch b;
        float *first[MAX_SEQS];
        draw(&b, seed + (uint64_t)i, 400);
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
        drop(&b);
    }
    for (int i = 0; i < 6; i++) dev_close(d[i]);
}

/* A row's prefix of keys decides it: keys added after what it sees change no bit (a cache that grows). */
static void later_keys_change_nothing(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = open_dev(2, NULL);
    for (int i = 0; i < 20; i++) {
        batch b;
        draw(&b, seed + (uint64_t)i, 600);
        int64_t n = b.seq[0].rows * b.a.q_heads * b.a.dim;
        if (b.seq[0].first < 0 || b.seq[0].n_keys < b.seq[0].first + b.seq[0].rows) {
            drop(&b);
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
        drop(&b);
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
