/* Decoding over scripted models: speculative text is the plain text for every end, limit, context and skill of the drafter.
 *
 * No weights: the target is a hash of the prefix (script.h), so what a correct batch must emit is known without one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "decode/script.h"
#include "support/numbers.h"

enum { MASK = 3, END = 5, OTHER_END = 6 };

typedef struct stream {
    int32_t tok[SCRIPT_LENGTH];
    int64_t n;
} stream;
static void on_token(void *ctx, int32_t token) {
    stream *s = ctx;
    s->tok[s->n++] = token;
}

static decode_batch *batch(script *s, int64_t max_seqs, int64_t max_tokens, const int32_t *ends,
                           int n_ends) {
    decode_batch *b;
    decode_models m = script_models(s);
    decode_config c = {
        .max_seqs = max_seqs, .max_tokens = max_tokens, .end_ids = ends, .n_end = n_ends};
    assert_ok(decode_models_batch(&b, &m, &c));
    return b;
}

/* Decodes one prompt of n tokens and compares with the function; returns the statistics. */
static decode_stats check_one(script *s, int64_t n, int64_t max_new, const int32_t *ends,
                              int n_ends) {
    int32_t prompt[SCRIPT_LENGTH], want[SCRIPT_LENGTH];
    decode_end why;
    decode_seq *q;
    int64_t made, running;
    stream got = {.n = 0};
    for (int64_t i = 0; i < n; i++) prompt[i] = (int32_t)(((uint64_t)i * 7 + s->seed) % 40) + 10;
    int64_t wanted = script_plain(s, prompt, n, max_new, ends, n_ends, want, &why);
    decode_batch *b =
        batch(s, 1, n + max_new < s->context ? n + max_new : s->context, ends, n_ends);
    decode_request r = {
        .prompt = prompt, .n_prompt = n, .max_new = max_new, .on_token = on_token, .ctx = &got};
    assert_ok(decode_add(b, &r, &q));
    assert_ok(decode_run(b));
    const int32_t *tok = decode_tokens(q, &made);
    assert_int_equal(made, wanted);
    if (wanted) assert_memory_equal(tok, want, (size_t)wanted * 4);
    assert_int_equal(decode_state(q), why);
    assert_int_equal(got.n, wanted);
    assert_memory_equal(got.tok, want, (size_t)wanted * 4);
    decode_stats st = *decode_get_stats(q);
    /* Rounds commit 1 + accepted each; the prefill's token is not theirs. */
    int64_t rounds = 0, committed = 0;
    for (int k = 0; k < DECODE_MAX_BLOCK; k++) {
        rounds += st.histogram[k];
        committed += st.histogram[k] * (k + 1);
    }
    assert_int_equal(rounds, st.rounds);
    assert_int_equal(committed, st.committed);
    if (wanted) assert_true(committed + st.plain_steps >= wanted - 1);
    assert_ok(decode_round(b, &running));
    assert_int_equal(running, 0);
    decode_remove(b, q);
    decode_free(b);
    assert_int_equal(s->opens, s->closes);
    return st;
}

static script make(uint64_t seed, int64_t context, int64_t block, int64_t skill) {
    script s = {.seed = seed, .context = context, .block = block, .skill = {skill}, .n_skill = 1};
    return s;
}

static void an_end_token_at_every_slot_and_as_bonus(void **state) {
    (void)state;
    const int32_t ends[] = {END, OTHER_END};
    for (int64_t skill = 0; skill <= 7; skill++)
        for (int64_t off = 0; off < 24; off++)
            for (int two = 0; two < 2; two++) {
                script s = make((uint64_t)(skill * 100 + off), 200, 8, skill);
                s.at[0].pos = 20 + off; /* the prompt has 20 tokens: off 0 is the prefill's token */
                s.at[0].token = two ? OTHER_END : END;
                s.at[1].pos = 20 + off + 2; /* another end behind it must not be reached */
                s.at[1].token = END;
                script same = s;
                decode_stats st = check_one(&s, 20, 60, ends, 2);
                if (skill == 7 && off >= 8) assert_true(st.histogram[7] > 0);
                check_one(&same, 20, 60, NULL, 0); /* without ends they are tokens like others */
            }
}

static void limits_trim_inside_accepted_drafts(void **state) {
    (void)state;
    const int64_t limit[] = {0, 1, 5, 8, 9, 17};
    for (int k = 0; k < 6; k++)
        for (int64_t skill = 0; skill <= 7; skill++) {
            script s = make((uint64_t)skill + 7, 300, 8, skill);
            check_one(&s, 11, limit[k], NULL, 0);
            script p = make((uint64_t)skill + 7, 300, 0, 0);
            decode_stats st = check_one(&p, 11, limit[k], NULL, 0);
            assert_int_equal(st.rounds, 0);
        }
}

static void b53_context_ends(void **state) {
    (void)state;
    const int64_t prompt[] = {47, 48, 49, 61, 62, 63, 64};
    for (int k = 0; k < 7; k++)
        for (int64_t skill = 0; skill <= 15; skill += 5) {
            uint64_t seed = (uint64_t)(k * 31 + skill);
            script s = make(seed, 64, 16, skill), p = make(seed, 64, 0, 0);
            check_one(&s, prompt[k], 100, NULL, 0);
            check_one(&p, prompt[k], 100, NULL, 0);
            script far =
                make(seed, 64, 16, skill); /* the drafter's positions end before this prompt */
            far.draft_positions = 32;
            decode_stats st = check_one(&far, prompt[k], 100, NULL, 0);
            assert_int_equal(st.rounds, 0);
        }
}

static void b53_drafter_limit_is_shorter(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 40; n++)
        for (int64_t skill = 0; skill <= 15; skill += 3) {
            script s = make((uint64_t)(n * 100 + skill), 64, 16, skill);
            s.draft_positions = 32;
            decode_stats st = check_one(&s, n, 100, NULL, 0);
            assert_true(st.plain_steps > 0);
            assert_true((st.rounds > 0) == (n <= 30));
        }
}

static void b35_a_mask_token_from_the_target_is_text(void **state) {
    (void)state;
    const int32_t ends[] = {END};
    for (int64_t skill = 0; skill <= 7; skill++) {
        script s = make(77, 200, 8, skill);
        s.at[0].pos = 25;
        s.at[0].token = MASK;
        s.at[1].pos = 29;
        s.at[1].token = MASK;
        check_one(&s, 20, 40, ends, 1);
    }
}

static void b56_tau_counts_bonus_and_histogram_counts_drafts(void **state) {
    (void)state;
    script s = make(5, 500, 5, 0);
    const int64_t runs[] = {4, 0, 2, 2};
    memcpy(s.skill, runs, sizeof runs);
    s.n_skill = 4;
    decode_stats st = check_one(&s, 9, 13, NULL, 0); /* 1 by the prefill, then 5 + 1 + 3 + 3 */
    assert_int_equal(st.rounds, 4);
    assert_int_equal(st.committed, 12);
    assert_true(decode_tau(&st) == 3.0);
    assert_int_equal(st.histogram[0], 1);
    assert_int_equal(st.histogram[2], 2);
    assert_int_equal(st.histogram[4], 1);
    s.drafted = s.opens = s.closes = 0;
    st = check_one(&s, 9, 3, NULL, 0); /* counted before the limit trims it */
    assert_int_equal(st.committed, 5);
    decode_stats sum = {0};
    assert_true(isnan(decode_tau(&sum)));
    decode_stats_add(&sum, &st);
    decode_stats_add(&sum, &st);
    assert_int_equal(sum.committed, 10);
    assert_int_equal(sum.histogram[4], 2);
}

enum { TALKS = 23 };
typedef struct crowd {
    decode_seq *q[TALKS];
    int32_t prompt[TALKS][64];
    int64_t n[TALKS], limit[TALKS], next, done;
} crowd;

static void fill_places(crowd *c, decode_batch *b) {
    int64_t open = 0;
    for (int64_t i = 0; i < c->next; i++)
        open += c->q[i] && decode_state(c->q[i]) == DECODE_RUNNING;
    while (c->next < TALKS && open < SCRIPT_PLACES) {
        decode_request r = {
            .prompt = c->prompt[c->next], .n_prompt = c->n[c->next], .max_new = c->limit[c->next]};
        assert_ok(decode_add(b, &r, &c->q[c->next]));
        open += decode_state(c->q[c->next++]) == DECODE_RUNNING;
    }
    if (open < SCRIPT_PLACES) return;
    decode_seq *none;
    decode_request r = {.prompt = c->prompt[0], .n_prompt = 1, .max_new = 1};
    assert_says(decode_add(b, &r, &none), ERR_REFUSED, "4 places");
    assert_null(none);
}

static void collect(crowd *c, const script *s, decode_batch *b, const int32_t *ends) {
    int32_t want[SCRIPT_LENGTH];
    for (int64_t i = 0; i < c->next; i++) {
        decode_end why;
        int64_t made;
        if (!c->q[i] || decode_state(c->q[i]) == DECODE_RUNNING) continue;
        int64_t wanted = script_plain(s, c->prompt[i], c->n[i], c->limit[i], ends, 1, want, &why);
        const int32_t *tok = decode_tokens(c->q[i], &made);
        assert_int_equal(made, wanted);
        if (made) assert_memory_equal(tok, want, (size_t)made * 4);
        assert_int_equal(decode_state(c->q[i]), why);
        decode_remove(b, c->q[i]);
        c->q[i] = NULL;
        c->done++;
    }
}

static void a_batch_gives_each_sequence_its_own_text(void **state) {
    (void)state;
    uint64_t seed = numbers_seed();
    const int32_t ends[] = {END};
    script s = make(seed, 300, 8, 0);
    for (int i = 0; i < 16; i++) s.skill[i] = numbers_below(seed, 1, (uint64_t)i, 8);
    s.n_skill = 16;
    s.at[0].pos = 40;
    s.at[0].token = END;
    crowd c = {.next = 0};
    for (int i = 0; i < TALKS; i++) {
        c.n[i] = 1 + numbers_below(seed, 2, (uint64_t)i, 60);
        c.limit[i] = numbers_below(seed, 3, (uint64_t)i, 50);
        for (int64_t k = 0; k < c.n[i]; k++)
            c.prompt[i][k] = (int32_t)numbers_below(seed, 10 + (uint64_t)i, (uint64_t)k, 40) + 10;
    }
    decode_batch *b = batch(&s, SCRIPT_PLACES, 300, ends, 1);
    while (c.done < TALKS) {
        int64_t running;
        fill_places(&c, b);
        assert_ok(decode_round(b, &running));
        collect(&c, &s, b, ends);
    }
    decode_free(b);
    assert_int_equal(s.opens, s.closes);
    assert_int_equal(s.freed, 1);
}

static void bad_requests_are_sentences(void **state) {
    (void)state;
    script s = make(1, 64, 8, 3);
    const int32_t bad_end[] = {50};
    decode_batch *b;
    decode_seq *q;
    decode_models m = script_models(&s);
    decode_config c = {.max_seqs = 1, .max_tokens = 40, .end_ids = bad_end, .n_end = 1};
    assert_says(decode_models_batch(&b, &m, &c), ERR_RANGE, "end token 50");
    c.n_end = 0;
    c.context = 65;
    assert_says(decode_models_batch(&b, &m, &c), ERR_RANGE, "context of 65");
    c.context = 0;
    s.block = 1;
    m = script_models(&s);
    assert_says(decode_models_batch(&b, &m, &c), ERR_RANGE, "blocks of 1");
    assert_int_equal(s.freed, 3);
    s.block = 8;
    b = batch(&s, 1, 40, NULL, 0);
    int32_t prompt[70] = {0};
    decode_request r = {.prompt = prompt, .n_prompt = 65, .max_new = 1};
    assert_says(decode_add(b, &r, &q), ERR_RANGE, "65 tokens", "holds 64", "shorten");
    r.n_prompt = 0;
    assert_says(decode_add(b, &r, &q), ERR_RANGE, "empty");
    r.n_prompt = 30;
    r.max_new = 11;
    assert_says(decode_add(b, &r, &q), ERR_RANGE, "30", "11", "40 tokens a sequence");
    r.max_new = -1;
    assert_says(decode_add(b, &r, &q), ERR_RANGE, "-1 new tokens");
    r.max_new = 10;
    prompt[4] = 50;
    assert_says(decode_add(b, &r, &q), ERR_RANGE, "token 50 at position 4");
    decode_free(b);
}

static void a_failed_round_ends_the_batch(void **state) {
    (void)state;
    script s = make(1, 64, 8, 3);
    int32_t prompt[5] = {10, 11, 12, 13, 14};
    int64_t running, n;
    decode_seq *q;
    s.fail_at = 3;
    decode_batch *b = batch(&s, 2, 60, NULL, 0);
    decode_request r = {.prompt = prompt, .n_prompt = 5, .max_new = 30};
    assert_ok(decode_add(b, &r, &q));
    assert_ok(decode_round(b, &running));
    assert_says(decode_run(b), ERR_NUMERIC, "NaN");
    assert_says(decode_round(b, &running), ERR_REFUSED, "failed");
    decode_tokens(q, &n);
    assert_int_equal(n, 5); /* the prefill's and the first round's */
    decode_free(b);
    assert_int_equal(s.opens, s.closes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_end_token_at_every_slot_and_as_bonus),
        cmocka_unit_test(limits_trim_inside_accepted_drafts),
        cmocka_unit_test(b53_context_ends),
        cmocka_unit_test(b53_drafter_limit_is_shorter),
        cmocka_unit_test(b35_a_mask_token_from_the_target_is_text),
        cmocka_unit_test(b56_tau_counts_bonus_and_histogram_counts_drafts),
        cmocka_unit_test(a_batch_gives_each_sequence_its_own_text),
        cmocka_unit_test(bad_requests_are_sentences),
        cmocka_unit_test(a_failed_round_ends_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
