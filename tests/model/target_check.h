/* What the tests of the target share: a loaded fixture with what transformers computed for it, and a paged run.
 *
 * A fixture is loaded with keep_f32, so its bf16 weights are exact and fp32 arithmetic is what differs. Include after
 * cmocka.h; asserts, so for the main thread only. */
#ifndef MODEL_TARGET_CHECK_H
#define MODEL_TARGET_CHECK_H
#include "io/safetensors.h"
#include "model/target.h"
#include "support/numbers.h"
#include "support/says.h"

static inline dev *target_check_dev(int threads) {
    dev *d = NULL;
    dev_config c = {.threads = threads};
    assert_ok(dev_open_cpu(&d, &c));
    return d;
}

static inline double *target_check_f64(const st_file *f, const char *name) {
    const tensor *t = safetensors_find(f, name);
    assert_non_null(t);
    double *x = malloc((size_t)tensor_count(t) * sizeof *x);
    dtype_to_f64(t->type, t->data, x, (size_t)tensor_count(t));
    return x;
}
static inline int64_t *target_check_i64(const st_file *f, const char *name, int64_t *n) {
    const tensor *t = safetensors_find(f, name);
    assert_non_null(t);
    *n = tensor_count(t);
    int64_t *x = malloc((size_t)*n * sizeof *x);
    dtype_to_i64(t->type, t->data, x, (size_t)*n);
    return x;
}

/* Decodes tokens through a fresh cache in steps of at most step rows; logits [n, V], taps [n, n_taps*H] (may be NULL). */
static inline void target_check_paged(const target *t, dev *d, const int32_t *tokens, int64_t n,
                                      int64_t step, float *logits, const int64_t *taps, int n_taps,
                                      float *taps_out) {
    const target_config *c = target_get_config(t);
    kv_pool *pool_;
    kv_seq kv;
    arena *a;
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(kv_pool_create(&pool_, c->layers, c->kv_heads, c->head_dim, n, 1));
    assert_ok(kv_seq_open(pool_, &kv, n));
    for (int64_t i = 0; i < n; i += step) {
        target_step_seq seq = {&kv, tokens + i, n - i < step ? n - i : step};
        target_step s = {.seqs = &seq, .n_seqs = 1, .taps = taps, .n_taps = n_taps};
        if (logits) s.logits_out = logits + i * c->vocab;
        if (taps_out) s.taps_out = taps_out + i * n_taps * c->hidden;
        assert_ok(target_decode(t, d, pool_, &s, a));
        assert_int_equal(kv.length, i + seq.rows);
    }
    arena_stats as;
    arena_get_stats(a, &as);
    assert_int_equal(as.used, 0);
    kv_seq_close(pool_, &kv);
    kv_pool_free(pool_);
    arena_destroy(a);
}

#endif
