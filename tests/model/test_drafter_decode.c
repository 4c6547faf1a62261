/* The drafter's decoding form against its training form, and the independence that exact decoding rests on.
 *
 * With equal weights, logits of every slot at every anchor agree with the training pass. Bits of a draft depend neither on how
 * context was cut into calls nor on the other sequences. A saved folder decodes as the packed weights did.
 * The context cache is filled with NaN first, so a stale key would show. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "drafter_fixture.h"
#include "support/says.h"

static void poison_pool(kv_pool *p, const drafter_config *c, int64_t pages) {
    const int64_t n = pages * 64 * c->kv_heads * c->head_dim;
    for (int64_t i = 0; i < c->layers; i++) {
        numbers_poison(kv_layer_k(p, i), n);
        numbers_poison(kv_layer_v(p, i), n);
    }
}

static void open_pool(const fixture *f, kv_pool **p) {
    const drafter_config *c = &f->cfg;
    assert_ok(kv_pool_create(p, c->layers, c->kv_heads, c->head_dim, 512, 8));
    poison_pool(*p, c, kv_pool_free_pages(*p));
}

/* Logits [n_anchors*bs, V] of the training pass. */
static float *training_logits(const fixture *f) {
    const int64_t r = f->row.n_anchors * f->cfg.block_size, h = f->cfg.hidden, v = f->cfg.vocab;
    float *hidden = numbers_poisoned(r * h), *logits = numbers_poisoned(r * v);
    assert_ok(drafter_forward(&f->l, f->params, f->t, f->d, &f->row, hidden, NULL, NULL, f->a));
    packed_matmul_ref(target_head(f->t), hidden, h, r, logits, v);
    free(hidden);
    return logits;
}

/* The first `length` context rows of anchor a's document, in steps of `cut` rows. */
static void extend(const fixture *f, const drafter *dr, kv_pool *p, kv_seq *s, int64_t a,
                   int64_t cut) {
    const int64_t width = f->cfg.n_taps * f->cfg.hidden, length = f->row.position[a];
    for (int64_t at = 0; at < length; at += cut) {
        drafter_ctx_seq c = {.kv = s, .rows = length - at < cut ? length - at : cut};
        c.taps = f->row.taps + (a - length + at) * width;
        assert_ok(drafter_extend(dr, f->d, p, &c, 1, f->a));
    }
    assert_int_equal(s->length, length);
}

static void compare_slots(const fixture *f, const float *got, const float *want, int64_t slots) {
    const int64_t v = f->cfg.vocab;
    for (int64_t k = 1; k < slots; k++) {
        double size = 0, far = 0;
        for (int64_t i = 0; i < v; i++) {
            const double w = (double)want[k * v + i], g = (double)got[(k - 1) * v + i];
            far = fmax(far, fabs(w - g));
            size = fmax(size, fabs(w));
            assert_true(isfinite(g));
        }
        assert_true(far <= 1e-4 * size);
    }
}

static void against_training(const char *name) {
    fixture f;
    fixture_open(&f, name, 2);
    const int64_t bs = f.cfg.block_size, v = f.cfg.vocab;
    drafter *dr = NULL;
    kv_pool *p = NULL;
    assert_ok(drafter_pack(&dr, &f.l, f.params, DT_F32, f.t));
    float *want = training_logits(&f), *got = numbers_poisoned((bs - 1) * v);
    for (int64_t b = 0; b < f.row.n_anchors; b++) {
        const int32_t a = f.row.anchor[b];
        if (a < 0) continue;
        open_pool(&f, &p);
        kv_seq s;
        int32_t drafts[64];
        assert_ok(kv_seq_open(p, &s, 512));
        extend(&f, dr, p, &s, a, 7);
        drafter_block_seq block = {
            .kv = &s, .token = f.row.tokens[a], .size = bs, .drafts = drafts};
        assert_ok(drafter_draft(dr, f.d, p, &block, 1, got, f.a));
        compare_slots(&f, got, want + b * bs * v, bs);
        for (int64_t k = 1; k < bs; k++) {
            int32_t best;
            assert_ok(nn_argmax(got + (k - 1) * v, v, &best));
            assert_int_equal(best, drafts[k - 1]);
        }
        kv_seq_close(p, &s);
        kv_pool_free(p);
    }
    free(want);
    free(got);
    drafter_free(dr);
    fixture_close(&f);
}
static void training_logits_equal_decoders_gqa1(void **s) {
    (void)s;
    against_training("drafter_a");
}
static void training_logits_equal_decoders_window(void **s) {
    (void)s;
    against_training("drafter_b");
}

/* Drafts of three sequences together equal, bit for bit, each alone with its context cut otherwise. */
static void bits_do_not_depend_on_neighbours_or_cuts(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 3);
    static const int64_t anchors[3] = {28, 31, 55}, sizes[3] = {8, 5, 2};
    const int64_t v = f.cfg.vocab;
    drafter *dr = NULL;
    kv_pool *p = NULL;
    kv_seq seq[3];
    drafter_block_seq block[3];
    int32_t drafts[3][8], alone_drafts[8];
    assert_ok(drafter_pack(&dr, &f.l, f.params, DT_BF16, f.t));
    open_pool(&f, &p);
    for (int i = 0; i < 3; i++) {
        assert_ok(kv_seq_open(p, &seq[i], 512));
        extend(&f, dr, p, &seq[i], anchors[i], 1 + 3 * i);
        block[i] = (drafter_block_seq){&seq[i], f.row.tokens[anchors[i]], sizes[i], drafts[i]};
    }
    float *all = numbers_poisoned(12 * v), *one = numbers_poisoned(7 * v), *at = all;
    assert_ok(drafter_draft(dr, f.d, p, block, 3, all, f.a));
    for (int i = 0; i < 3; i++) {
        kv_seq alone;
        assert_ok(kv_seq_open(p, &alone, 512));
        extend(&f, dr, p, &alone, anchors[i], 1000);
        drafter_block_seq b = {&alone, f.row.tokens[anchors[i]], sizes[i], alone_drafts};
        assert_ok(drafter_draft(dr, f.d, p, &b, 1, one, f.a));
        assert_memory_equal(at, one, (size_t)((sizes[i] - 1) * v) * sizeof *one);
        assert_memory_equal(drafts[i], alone_drafts, (size_t)(sizes[i] - 1) * sizeof **drafts);
        at += (sizes[i] - 1) * v;
        kv_seq_close(p, &alone);
    }
    for (int i = 0; i < 3; i++) kv_seq_close(p, &seq[i]);
    drafter_block_seq wrong = block[0];
    wrong.size = 9;
    assert_says(drafter_draft(dr, f.d, p, &wrong, 1, NULL, f.a), ERR_RANGE, "9 slots",
                "blocks of 8");
    free(all);
    free(one);
    kv_pool_free(p);
    drafter_free(dr);
    fixture_close(&f);
}

static void saved_folder_drafts_the_same(void **s) {
    (void)s;
    fixture f;
    fixture_open(&f, "drafter_b", 2);
    const int64_t v = f.cfg.vocab, bs = f.cfg.block_size;
    const uint64_t seed = numbers_seed();
    for (int64_t i = 0; i < f.l.total; i++) /* values that bf16 has to round */
        f.params[i] *= 1 + 0.01f * (float)rng_uniform(seed, RNG_TEST, 9, (uint64_t)i);
    static const dtype types[] = {DT_BF16, DT_F32};
    float *got[2] = {numbers_poisoned((bs - 1) * v), numbers_poisoned((bs - 1) * v)};
    for (int k = 0; k < 2; k++) {
        char dir[600];
        drafter *dr[2] = {NULL, NULL};
        kv_pool *p = NULL;
        snprintf(dir, sizeof dir, "%s", files_at(&f.dir, k ? "d32" : "d16"));
        assert_ok(drafter_save(&f.l, f.params, types[k], dir));
        assert_ok(drafter_pack(&dr[0], &f.l, f.params, types[k], f.t));
        assert_ok(drafter_load(&dr[1], dir, f.t));
        assert_int_equal(drafter_bytes(dr[0]), drafter_bytes(dr[1]));
        for (int i = 0; i < 2; i++) {
            kv_seq q;
            int32_t drafts[8];
            open_pool(&f, &p);
            assert_ok(kv_seq_open(p, &q, 512));
            extend(&f, dr[i], p, &q, 28, 100);
            drafter_block_seq b = {&q, 5, bs, drafts};
            assert_ok(drafter_draft(dr[i], f.d, p, &b, 1, got[i], f.a));
            kv_seq_close(p, &q);
            kv_pool_free(p);
            drafter_free(dr[i]);
        }
        assert_memory_equal(got[0], got[1], (size_t)((bs - 1) * v) * sizeof **got);
    }
    free(got[0]);
    free(got[1]);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_logits_equal_decoders_gqa1),
        cmocka_unit_test(training_logits_equal_decoders_window),
        cmocka_unit_test(bits_do_not_depend_on_neighbours_or_cuts),
        cmocka_unit_test(saved_folder_drafts_the_same),
    };
    return cmocka_run_group_tests_name("drafter decoding", tests, NULL, NULL);
}
