/* SmolLM2-135M-Instruct out of its GGUF against transformers on the same bf16-rounded weights.
 *
 * Needs the model file: models/SmolLM2-135M-Instruct.Q4_1.gguf, where `make demo-model` puts it, else the same file under
 * PACELINE_TEST_DATA/models; without it the test says skipped. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/clock.h"
#include "core/file.h"
#include "model/target_check.h"
#include <string.h>

static const char *const file_name = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

static int find(char path[1024]) {
    const char *data = getenv("PACELINE_TEST_DATA");
    snprintf(path, 1024, "%s", file_name);
    if (file_exists(path)) return 1;
    if (!data) return 0;
    snprintf(path, 1024, "%s/%s", data, file_name);
    return file_exists(path);
}

/* Columns of the kept words and rows, as the fixture holds them. */
static double distance(const float *all, int64_t width, const int64_t *rows, int64_t n_rows,
                       const int64_t *cols, int64_t n_cols, const double *want) {
    float *kept = numbers_poisoned(n_rows * n_cols);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t k = 0; k < n_cols; k++)
            kept[r * n_cols + k] = all[rows[r] * width + (cols ? cols[k] : k)];
    double far = numbers_distance(kept, want, n_rows * n_cols);
    free(kept);
    return far;
}

static void logits_and_taps_meet_transformers(void **state) {
    (void)state;
    char path[1024];
    if (!find(path)) {
        printf("skipped: %s is not here\n", file_name);
        skip();
    }
    dev *d = target_check_dev(2);
    target *t;
    double start = clock_seconds();
    assert_ok(target_load(&t, d, path, NULL));
    printf("loaded in %.2f s\n", clock_seconds() - start);
    const target_config *c = target_get_config(t);
    assert_int_equal(c->layers, 30);
    assert_true(c->tied && c->n_eos == 1 && c->eos[0] == 2 && c->bos == 1);
    assert_true(target_head(t)->data == target_embedding(t)->data);
    st_file *f;
    assert_ok(safetensors_open(&f, "tests/fixtures/smollm2_logits.safetensors"));
    int64_t n, n_rows, n_words, one;
    int64_t *ids = target_check_i64(f, "tokens", &n), *rows = target_check_i64(f, "rows", &n_rows);
    int64_t *words = target_check_i64(f, "words", &n_words),
            *best = target_check_i64(f, "argmax", &one);
    double *want = target_check_f64(f, "logits"), *tap15 = target_check_f64(f, "tap.15"),
           *tap29 = target_check_f64(f, "tap.29");
    int32_t tokens[128], doc[128] = {0}, pos[128];
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)ids[i], pos[i] = (int32_t)i;
    float *logits = numbers_poisoned(n * c->vocab), *taps = numbers_poisoned(n * 2 * c->hidden);
    const int64_t tap[2] = {15, 29};
    for (int paged = 0; paged < 2; paged++) {
        numbers_poison(logits, n * c->vocab);
        numbers_poison(taps, n * 2 * c->hidden);
        if (paged) {
            target_check_paged(t, d, tokens, n, 50, logits, tap, 2, taps);
        } else {
            arena *a;
            target_row row = {.n = n,
                              .tokens = tokens,
                              .document = doc,
                              .position = pos,
                              .taps = tap,
                              .n_taps = 2,
                              .taps_out = taps,
                              .logits_out = logits};
            assert_ok(arena_create(&a, "test", 0));
            assert_ok(target_forward(t, d, &row, a));
            arena_destroy(a);
        }
        double e = distance(logits, c->vocab, rows, n_rows, words, n_words, want);
        double e15 = distance(taps, 2 * c->hidden, rows, n_rows, NULL, c->hidden, tap15);
        double e29 =
            distance(taps + c->hidden, 2 * c->hidden, rows, n_rows, NULL, c->hidden, tap29);
        printf("%s: logits %.2g, taps %.2g and %.2g\n", paged ? "paged" : "row", e, e15, e29);
        assert_true(e <= 1e-4 && e15 <= 1e-4 && e29 <= 1e-4);
        for (int64_t r = 0; r < n_rows; r++) {
            int32_t id;
            assert_ok(nn_argmax(logits + rows[r] * c->vocab, c->vocab, &id));
            assert_int_equal(id, best[r]);
        }
    }
    free(ids), free(rows), free(words), free(best), free(want), free(tap15), free(tap29),
        free(logits), free(taps);
    safetensors_close(f);
    target_free(t);
    dev_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_and_taps_meet_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
