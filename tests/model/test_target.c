/* The Llama target against transformers' numbers on tiny random models, and against itself: rows, batches, chunks, threads.
 *
 * Tied and untied heads, one and three query heads per key head, all four RoPE kinds. Training forward and paged decoding
 * must both meet the fixture to 1e-4 (B27, B36), and decoding must give a row the same bits at any width, beside any
 * neighbours and on any number of threads (B49). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "model/target_check.h"
#include <string.h>

static const char *const fixtures[] = {"mha_untied", "gqa_tied", "llama3", "linear", "yarn"};
enum { FIXTURES = 5, LAYERS = 3, MAX_ROW = 1024 };

static target *load(const char *name, dev *d, int keep) {
    char path[256];
    target *t;
    target_options o = {.keep_f32 = keep};
    snprintf(path, sizeof path, "tests/fixtures/target_%s", name);
    assert_ok(target_load(&t, d, path, &o));
    return t;
}

/* Runs the training forward over documents of the given lengths; all tokens in one row. */
static void run_row(const target *t, dev *d, const int32_t *tokens, const int64_t *length, int docs,
                    const int64_t *taps, int n_taps, float *taps_out, float *logits) {
    static int32_t doc[MAX_ROW], pos[MAX_ROW];
    int64_t n = 0;
    arena *a;
    for (int k = 0; k < docs; k++)
        for (int64_t i = 0; i < length[k]; i++, n++) {
            assert_true(n < MAX_ROW);
            doc[n] = k * 3;
            pos[n] = (int32_t)i;
        }
    target_row row = {.n = n, .tokens = tokens, .document = doc, .position = pos, .taps = taps};
    row.n_taps = n_taps;
    row.taps_out = taps_out;
    row.logits_out = logits;
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(target_forward(t, d, &row, a));
    arena_stats s;
    arena_get_stats(a, &s);
    assert_int_equal(s.used, 0);
    assert_true(s.peak <= target_forward_bytes(t, n, docs, dev_threads(d)));
    arena_destroy(a);
}

static void meets_transformers(const char *name) {
    char path[256];
    dev *d = target_check_dev(2);
    target *t = load(name, d, 1);
    st_file *f;
    snprintf(path, sizeof path, "tests/fixtures/target_%s/expected.safetensors", name);
    assert_ok(safetensors_open(&f, path));
    int64_t n, h = target_get_config(t)->hidden, v = target_get_config(t)->vocab;
    int64_t *ids = target_check_i64(f, "tokens", &n);
    int32_t tokens[64];
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)ids[i];
    double *want = target_check_f64(f, "logits");
    int64_t taps[] = {2, 0, 1};
    float *got[2], *tap[2];
    for (int k = 0; k < 2; k++)
        got[k] = numbers_poisoned(n * v), tap[k] = numbers_poisoned(n * 3 * h);
    run_row(t, d, tokens, &n, 1, taps, 3, tap[0], got[0]);
    target_check_paged(t, d, tokens, n, 7, got[1], taps, 3, tap[1]);
    for (int k = 0; k < 2; k++) {
        double far = numbers_distance(got[k], want, n * v);
        for (int j = 0; j < 3; j++) {
            char key[16];
            snprintf(key, sizeof key, "tap.%d", (int)taps[j]);
            double *w = target_check_f64(f, key);
            float *mine = numbers_poisoned(n * h);
            for (int64_t i = 0; i < n; i++)
                memcpy(mine + i * h, tap[k] + (i * 3 + j) * h, (size_t)h * 4);
            double e = numbers_distance(mine, w, n * h);
            if (e > far) far = e;
            free(w), free(mine);
        }
        printf("%s %s: distance %.2g\n", name, k ? "paged" : "row", far);
        assert_true(far <= 1e-4);
        free(got[k]), free(tap[k]);
    }
    free(ids), free(want);
    safetensors_close(f);
    target_free(t);
    dev_close(d);
}
static void b27_fixtures_meet_transformers(void **state) {
    (void)state;
    for (int i = 0; i < FIXTURES; i++) meets_transformers(fixtures[i]);
}

static void b36_capture_singly_batched_split_and_chunked(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = target_check_dev(2);
    target *t = load("gqa_tied", d, 0);
    const int64_t length[7] = {1, 128, 2, 65, 33, 17, 64}, h = target_get_config(t)->hidden;
    const int64_t taps[2] = {0, 2};
    int64_t total = 0, at = 0;
    for (int k = 0; k < 7; k++) total += length[k];
    int32_t tokens[MAX_ROW];
    for (int64_t i = 0; i < total; i++)
        tokens[i] = (int32_t)numbers_below(seed, 1, (uint64_t)i, 61);
    float *single = numbers_poisoned(total * 2 * h), *batch = numbers_poisoned(total * 2 * h);
    float *split = numbers_poisoned(total * 2 * h), *chunk = numbers_poisoned(total * 2 * h);
    double *want = malloc((size_t)(total * 2 * h) * sizeof *want);
    run_row(t, d, tokens, length, 7, taps, 2, batch, NULL);
    run_row(t, d, tokens, length, 3, taps, 2, split, NULL);
    int64_t first = length[0] + length[1] + length[2];
    run_row(t, d, tokens + first, length + 3, 4, taps, 2, split + first * 2 * h, NULL);
    for (int k = 0; k < 7; at += length[k++]) {
        run_row(t, d, tokens + at, &length[k], 1, taps, 2, single + at * 2 * h, NULL);
        target_check_paged(t, d, tokens + at, length[k], 32, NULL, taps, 2, chunk + at * 2 * h);
    }
    for (int64_t i = 0; i < total * 2 * h; i++) want[i] = (double)single[i];
    /* Rounding makes 1e-6 of it. */
    assert_true(numbers_distance(batch, want, total * 2 * h) < 1e-5);
    assert_true(numbers_distance(split, want, total * 2 * h) < 1e-5);
    assert_true(numbers_distance(chunk, want, total * 2 * h) < 1e-5);
    /* Another token changes what follows it in its document and nothing else. */
    tokens[10] = (tokens[10] + 1) % 61;
    float *other = numbers_poisoned(total * 2 * h);
    run_row(t, d, tokens, length, 7, taps, 2, other, NULL);
    assert_memory_equal(other, batch, (size_t)(10 * 2 * h) * 4);
    assert_memory_not_equal(other + 10 * 2 * h, batch + 10 * 2 * h, (size_t)(2 * h) * 4);
    int64_t end = length[0] + length[1];
    assert_memory_equal(other + end * 2 * h, batch + end * 2 * h,
                        (size_t)((total - end) * 2 * h) * 4);
    free(single), free(batch), free(split), free(chunk), free(want), free(other);
    target_free(t);
    dev_close(d);
}

static void b49_row_bits_do_not_depend_on_width_or_neighbours(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    dev *d = target_check_dev(2);
    target *t = load("llama3", d, 0);
    const target_config *c = target_get_config(t);
    enum { N = 100 };
    int32_t tokens[9][N];
    float *plain = numbers_poisoned(N * c->vocab), *wide = numbers_poisoned(N * c->vocab);
    for (int s = 0; s < 9; s++)
        for (int i = 0; i < N; i++)
            tokens[s][i] = (int32_t)numbers_below(seed, (uint64_t)s, (uint64_t)i, c->vocab);
    target_check_paged(t, d, tokens[0], N, 1, plain, NULL, 0, NULL);
    for (int64_t w = 2; w <= 17; w++) {
        target_check_paged(t, d, tokens[0], N, w, wide, NULL, 0, NULL);
        assert_memory_equal(plain, wide, (size_t)(N * c->vocab) * 4);
    }
    for (int threads = 1; threads <= 3; threads += 2) {
        dev *e = target_check_dev(threads);
        target_check_paged(t, e, tokens[0], N, 13, wide, NULL, 0, NULL);
        assert_memory_equal(plain, wide, (size_t)(N * c->vocab) * 4);
        dev_close(e);
    }
    /* Sequence 0 one row at a time among eight others that take 1..8 rows. */
    kv_pool *p;
    kv_seq kv[9];
    arena *a;
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(kv_pool_create(&p, c->layers, c->kv_heads, c->head_dim, 9 * N, 9));
    for (int s = 0; s < 9; s++) assert_ok(kv_seq_open(p, &kv[s], N));
    for (int64_t i = 0; i < 12; i++) {
        target_step_seq seq[9];
        int32_t best[9], whole;
        for (int s = 0; s < 9; s++)
            seq[s] = (target_step_seq){&kv[s], tokens[s] + kv[s].length, s ? s : 1};
        target_step st = {
            .seqs = seq, .n_seqs = 9, .last_only = 1, .logits_out = wide, .argmax_out = best};
        assert_ok(target_decode(t, d, p, &st, a));
        assert_memory_equal(plain + i * c->vocab, wide, (size_t)c->vocab * 4);
        for (int s = 0; s < 9; s++) {
            assert_ok(nn_argmax(wide + s * c->vocab, c->vocab, &whole));
            assert_int_equal(best[s], whole);
        }
    }
    for (int s = 0; s < 9; s++) kv_seq_close(p, &kv[s]);
    kv_pool_free(p);
    arena_destroy(a);
    free(plain), free(wide);
    target_free(t);
    dev_close(d);
}

static void crop_and_go_on_equals_a_straight_run(void **state) {
    (void)state;
    dev *d = target_check_dev(2);
    target *t = load("mha_untied", d, 0);
    const target_config *c = target_get_config(t);
    int32_t tokens[90], wrong[20];
    for (int i = 0; i < 90; i++) tokens[i] = (i * 7 + 3) % 61;
    for (int i = 0; i < 20; i++) wrong[i] = (i * 11 + 1) % 61;
    float *want = numbers_poisoned(90 * c->vocab), *got = numbers_poisoned(90 * c->vocab);
    target_check_paged(t, d, tokens, 90, 90, want, NULL, 0, NULL);
    kv_pool *p;
    kv_seq kv;
    arena *a;
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(kv_pool_create(&p, c->layers, c->kv_heads, c->head_dim, 128, 1));
    assert_ok(kv_seq_open(p, &kv, 128));
    target_step_seq first = {&kv, tokens, 60}, bad = {&kv, wrong, 20},
                    rest = {&kv, tokens + 60, 30};
    target_step s = {.seqs = &first, .n_seqs = 1};
    assert_ok(target_decode(t, d, p, &s, a));
    s.seqs = &bad;
    assert_ok(target_decode(t, d, p, &s, a));
    kv_seq_crop(p, &kv, 60);
    s.seqs = &rest;
    s.logits_out = got;
    assert_ok(target_decode(t, d, p, &s, a));
    assert_memory_equal(want + 60 * c->vocab, got, (size_t)(30 * c->vocab) * 4);
    kv_seq_close(p, &kv);
    kv_pool_free(p);
    arena_destroy(a);
    free(want), free(got);
    target_free(t);
    dev_close(d);
}

static void bad_calls_change_nothing(void **state) {
    (void)state;
    dev *d = target_check_dev(1);
    target *t = load("gqa_tied", d, 0);
    const target_config *c = target_get_config(t);
    kv_pool *p;
    kv_seq kv;
    arena *a;
    int32_t tokens[200] = {0};
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(kv_pool_create(&p, c->layers, c->kv_heads, c->head_dim, 256, 1));
    assert_ok(kv_seq_open(p, &kv, 256));
    int64_t pages = kv_pool_free_pages(p);
    target_step_seq seq = {&kv, tokens, 129};
    target_step s = {.seqs = &seq, .n_seqs = 1};
    assert_says(target_decode(t, d, p, &s, a), ERR_RANGE, "context of 128");
    seq.rows = 0;
    assert_says(target_decode(t, d, p, &s, a), ERR_RANGE, "0 rows");
    seq.rows = 3;
    tokens[1] = 61;
    assert_says(target_decode(t, d, p, &s, a), ERR_RANGE, "token id 61 at position 1");
    assert_int_equal(kv.length, 0);
    assert_int_equal(kv_pool_free_pages(p), pages);
    int64_t tap = LAYERS;
    float out[24];
    int32_t zero = 0;
    target_row row = {.n = 1,
                      .tokens = &zero,
                      .document = &zero,
                      .position = &zero,
                      .taps = &tap,
                      .n_taps = 1,
                      .taps_out = out};
    assert_says(target_forward(t, d, &row, a), ERR_RANGE, "tap 3", "3 layers");
    kv_seq_close(p, &kv);
    kv_pool_free(p);
    arena_destroy(a);
    target_free(t);
    dev_close(d);
}

static void every_failing_allocation_leaves_the_sequence(void **state) {
    (void)state;
    dev *d = target_check_dev(1);
    target *t = load("gqa_tied", d, 0);
    const target_config *c = target_get_config(t);
    kv_pool *p;
    kv_seq kv;
    arena *a;
    int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, best[9], doc[9] = {0},
            pos[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    int64_t tap = 2, failures[2] = {0, 0};
    float *out = numbers_poisoned(9 * c->hidden);
    assert_ok(kv_pool_create(&p, c->layers, c->kv_heads, c->head_dim, 64, 1));
    assert_ok(kv_seq_open(p, &kv, 64));
    int64_t pages = kv_pool_free_pages(p);
    target_step_seq seq = {&kv, tokens, 9};
    target_step s = {.seqs = &seq, .n_seqs = 1, .argmax_out = best};
    target_row row = {.n = 9,
                      .tokens = tokens,
                      .document = doc,
                      .position = pos,
                      .taps = &tap,
                      .n_taps = 1,
                      .taps_out = out};
    for (int kind = 0; kind < 2; kind++)
        for (uint64_t n = 1;; n++) {
            assert_ok(arena_create(&a, "test", 0));
            arena_fail_at(a, n);
            err e = kind ? target_forward(t, d, &row, a) : target_decode(t, d, p, &s, a);
            arena_stats as;
            arena_get_stats(a, &as);
            assert_int_equal(as.used, 0);
            arena_destroy(a);
            if (!e) break;
            assert_int_equal(e, ERR_MEMORY);
            assert_int_equal(kv.length, kind ? 9 : 0);
            if (!kind) assert_int_equal(kv_pool_free_pages(p), pages);
            failures[kind]++;
        }
    assert_true(failures[0] > 5 && failures[1] > 5);
    kv_seq_close(p, &kv);
    kv_pool_free(p);
    free(out);
    target_free(t);
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b27_fixtures_meet_transformers),
        cmocka_unit_test(b36_capture_singly_batched_split_and_chunked),
        cmocka_unit_test(b49_row_bits_do_not_depend_on_width_or_neighbours),
        cmocka_unit_test(crop_and_go_on_equals_a_straight_run),
        cmocka_unit_test(bad_calls_change_nothing),
        cmocka_unit_test(every_failing_allocation_leaves_the_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
