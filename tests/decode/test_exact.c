/* Decoding over real weights: greedy speculative text equals plain text token for token, alone and in a batch (B49).
 *
 * The target is a tiny random Llama. It is decoded plainly, then with a random drafter (whose drafts are mostly wrong), then with an
 * oracle that proposes the plain text with errors at random slots, so that every length of accepted prefix and the cropping
 * after it is met. Memory must not grow from one sequence to the next. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "decode/decode_models.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include "support/tiny_gguf.h"
#include <string.h>

enum { VOCAB = 97, PROMPTS = 10, NEW = 70, CONTEXT = 256, BLOCK = 8, PLACES = 4 };

typedef struct bench {
    dev *d;
    files_dir dir;
    target *t;
    uint64_t seed;
    int32_t prompt[PROMPTS][200];
    int64_t n[PROMPTS];
    int32_t plain[PROMPTS][NEW];
    int64_t n_plain[PROMPTS];
    int32_t end;
} bench;

/* Decodes prompt i alone in batch b. */
static void run_one(const bench *x, decode_batch *b, int i, decode_stats *st, int32_t *out,
                    int64_t *n) {
    decode_seq *q;
    decode_request r = {.prompt = x->prompt[i], .n_prompt = x->n[i], .max_new = NEW};
    assert_ok(decode_add(b, &r, &q));
    assert_ok(decode_run(b));
    const int32_t *tok = decode_tokens(q, n);
    memcpy(out, tok, (size_t)*n * sizeof *tok);
    decode_stats_add(st, decode_get_stats(q));
    decode_remove(b, q);
}

static int make(void **state) {
    bench *x = calloc(1, sizeof *x);
    dev_config dc = {.threads = 2};
    x->seed = numbers_seed();
    x->dir = files_begin();
    assert_ok(dev_open_cpu(&x->d, &dc));
    tiny_gguf g = tiny_gguf_default(VOCAB, x->seed);
    g.context = CONTEXT;
    assert_ok(tiny_gguf_write(files_at(&x->dir, "t.gguf"), &g));
    assert_ok(target_load(&x->t, x->d, files_at(&x->dir, "t.gguf"), NULL));
    x->end = 11;
    decode_batch *b;
    decode_config c = {
        .t = x->t, .max_seqs = 1, .max_tokens = CONTEXT, .end_ids = &x->end, .n_end = 1};
    assert_ok(decode_create(&b, x->d, &c));
    decode_stats st = {0};
    for (int i = 0; i < PROMPTS; i++) {
        x->n[i] = i == 0 ? 1 : i == 1 ? 199 : 1 + numbers_below(x->seed, 5, (uint64_t)i, 90);
        for (int64_t k = 0; k < x->n[i]; k++)
            x->prompt[i][k] = (int32_t)numbers_below(x->seed, 10 + (uint64_t)i, (uint64_t)k, VOCAB);
        run_one(x, b, i, &st, x->plain[i], &x->n_plain[i]);
        assert_true(x->n_plain[i] >= 1);
    }
    assert_int_equal(st.rounds, 0);
    decode_free(b);
    *state = x;
    return 0;
}
static int unmake(void **state) {
    bench *x = *state;
    target_free(x->t);
    dev_close(x->d);
    files_end(&x->dir);
    free(x);
    return 0;
}

static drafter *random_drafter(const bench *x, dtype type, int64_t positions) {
    drafter_config c = {.layers = 2,
                        .hidden = 32,
                        .intermediate = 40,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 8,
                        .block_size = BLOCK};
    c.taps[1] = 1;
    c.n_taps = 2;
    c.target_layers = 2;
    c.vocab = VOCAB;
    c.mask_token = 3;
    c.rms_eps = 1e-6f;
    c.window[1] = 16;
    c.rope = (rope_config){.head_dim = 8, .rotary_dim = 8, .theta = 10000, .factor = 1};
    c.max_position = positions;
    arena *a;
    drafter_layout l;
    drafter *dr;
    assert_ok(drafter_config_check(&c));
    assert_ok(arena_create(&a, "test", 0));
    assert_ok(drafter_layout_make(&l, &c, a));
    float *params = calloc((size_t)l.total, sizeof *params);
    drafter_init(&l, (int64_t)x->seed, params);
    assert_ok(drafter_pack(&dr, &l, params, type, x->t));
    free(params);
    arena_destroy(a);
    return dr;
}

static void b49_with_a_random_drafter(void **state) {
    const bench *x = *state;
    for (int k = 0; k < 3; k++) {
        int64_t positions = k == 2 ? 64 : CONTEXT;
        drafter *dr = random_drafter(x, k == 1 ? DT_F32 : DT_BF16, positions);
        decode_batch *b;
        decode_config c = {.t = x->t,
                           .dr = dr,
                           .max_seqs = 1,
                           .max_tokens = CONTEXT,
                           .end_ids = &x->end,
                           .n_end = 1};
        decode_stats st = {0};
        size_t bytes = 0;
        assert_ok(decode_create(&b, x->d, &c));
        for (int i = 1; i <= PROMPTS;
             i++) { /* the longest prompt first: later ones must not take more */
            int32_t got[NEW];
            int64_t n;
            run_one(x, b, i % PROMPTS, &st, got, &n);
            assert_int_equal(n, x->n_plain[i % PROMPTS]);
            assert_memory_equal(got, x->plain[i % PROMPTS], (size_t)n * 4);
            if (i == 1) bytes = decode_bytes(b);
        }
        if (k < 2) assert_int_equal(decode_bytes(b), bytes); /* 2: the first prompts never draft */
        if (k < 2) assert_true(st.rounds > 0);
        printf("tau %.2f over %lld rounds, %lld plain steps\n", decode_tau(&st),
               (long long)st.rounds, (long long)st.plain_steps);
        decode_free(b);
        drafter_free(dr);
    }
}

static void b49_in_a_batch_with_a_random_drafter(void **state) {
    const bench *x = *state;
    drafter *dr = random_drafter(x, DT_BF16, CONTEXT);
    decode_batch *b;
    decode_config c = {.t = x->t,
                       .dr = dr,
                       .max_seqs = PLACES,
                       .max_tokens = CONTEXT,
                       .end_ids = &x->end,
                       .n_end = 1};
    assert_ok(decode_create(&b, x->d, &c));
    decode_seq *q[PROMPTS] = {0};
    int next = 0, done = 0;
    while (done < PROMPTS) {
        int64_t running;
        while (next < PROMPTS && next - done < PLACES) {
            decode_request r = {.prompt = x->prompt[next], .n_prompt = x->n[next], .max_new = NEW};
            assert_ok(decode_add(b, &r, &q[next++]));
        }
        assert_ok(decode_round(b, &running));
        for (int i = 0; i < next; i++) {
            int64_t n;
            if (!q[i] || decode_state(q[i]) == DECODE_RUNNING) continue;
            const int32_t *got = decode_tokens(q[i], &n);
            assert_int_equal(n, x->n_plain[i]);
            assert_memory_equal(got, x->plain[i], (size_t)n * 4);
            decode_remove(b, q[i]);
            q[i] = NULL;
            done++;
        }
    }
    decode_free(b);
    drafter_free(dr);
}

/* The real target's table with a drafter that knows the plain text. */
typedef struct oracle {
    decode_models real;
    const bench *x;
    int64_t held[PLACES], draws;
    int of[PLACES]; /* prompt in a place */
    int next;
} oracle;
static err oracle_open(void *ctx, int64_t p) {
    oracle *o = ctx;
    o->held[p] = 0;
    o->of[p] = o->next++;
    return o->real.open(o->real.ctx, p);
}
static void oracle_close(void *ctx, int64_t p) {
    oracle *o = ctx;
    o->real.close(o->real.ctx, p);
}
static err oracle_verify(void *ctx, const decode_rows *q, int64_t n, int last_only, int taps,
                         int32_t *argmax) {
    oracle *o = ctx;
    (void)taps;
    return o->real.verify(o->real.ctx, q, n, last_only, 0, argmax);
}
static err oracle_keep(void *ctx, const decode_keep *q, int64_t n) {
    oracle *o = ctx;
    for (int64_t i = 0; i < n; i++) o->held[q[i].place] += q[i].rows;
    return o->real.keep(o->real.ctx, q, n);
}
static err oracle_draft(void *ctx, const decode_block *q, int64_t n) {
    oracle *o = ctx;
    for (int64_t i = 0; i < n; i++) {
        int who = o->of[q[i].place];
        int64_t at = o->held[q[i].place] - o->x->n[who];
        int64_t right = numbers_below(o->x->seed, 77, (uint64_t)o->draws++, BLOCK);
        assert_int_equal(q[i].token, o->x->plain[who][at]);
        for (int64_t k = 1; k < q[i].size; k++) {
            int32_t next = at + k < o->x->n_plain[who] ? o->x->plain[who][at + k] : 0;
            q[i].drafts[k - 1] = k <= right ? next : (next + 1) % VOCAB;
        }
    }
    return ERR_OK;
}
static size_t oracle_bytes(void *ctx) {
    return ((oracle *)ctx)->real.bytes(((oracle *)ctx)->real.ctx);
}
static void oracle_free(void *ctx) { ((oracle *)ctx)->real.free(((oracle *)ctx)->real.ctx); }

static void b49_with_an_oracle_in_a_batch(void **state) {
    const bench *x = *state;
    oracle o = {.x = x};
    decode_config c = {
        .t = x->t, .max_seqs = PLACES, .max_tokens = CONTEXT, .end_ids = &x->end, .n_end = 1};
    assert_ok(decode_models_open(&o.real, x->d, &c));
    decode_models m = o.real;
    m.ctx = &o;
    m.block_size = BLOCK;
    m.draft_positions = CONTEXT;
    m.open = oracle_open;
    m.close = oracle_close;
    m.verify = oracle_verify;
    m.keep = oracle_keep;
    m.draft = oracle_draft;
    m.bytes = oracle_bytes;
    m.free = oracle_free;
    decode_batch *b;
    decode_stats st = {0};
    decode_seq *q[PROMPTS] = {0};
    assert_ok(decode_models_batch(&b, &m, &c));
    int done = 0;
    while (done < PROMPTS) {
        int64_t running;
        while (o.next < PROMPTS && o.next - done < PLACES) {
            int i = o.next;
            decode_request r = {.prompt = x->prompt[i], .n_prompt = x->n[i], .max_new = NEW};
            assert_ok(decode_add(b, &r, &q[i]));
        }
        assert_ok(decode_round(b, &running));
        for (int i = 0; i < o.next; i++) {
            int64_t n;
            if (!q[i] || decode_state(q[i]) == DECODE_RUNNING) continue;
            const int32_t *got = decode_tokens(q[i], &n);
            assert_int_equal(n, x->n_plain[i]);
            assert_memory_equal(got, x->plain[i], (size_t)n * 4);
            decode_stats_add(&st, decode_get_stats(q[i]));
            decode_remove(b, q[i]);
            q[i] = NULL;
            done++;
        }
    }
    printf("tau %.2f over %lld rounds\n", decode_tau(&st), (long long)st.rounds);
    assert_true(st.rounds < 20 || decode_tau(&st) > 1.5);
    decode_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b49_with_a_random_drafter),
        cmocka_unit_test(b49_in_a_batch_with_a_random_drafter),
        cmocka_unit_test(b49_with_an_oracle_in_a_batch),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
