/* Evaluation: pack a snapshot, decode the prompts a few at a time, add up what the decoder counted.
 *
 * Sequences of a batch do not influence one another (exact decoding), so the batch size changes the time and nothing else.
 * A failure to decode is an error of the run: a drafter that cannot be decoded with is not worth training on. */
#include "train/evaluate.h"
#include "flex/paged.h"
#include <string.h>

/* How many tokens stand before the first supervised one; 0: that is no prompt, or one without room to answer. */
static int64_t prompt_of(const data_doc *d, int64_t context) {
    int64_t n = 0;
    while (n < d->n && !d->loss[n]) n++;
    return n + 1 < context ? n : 0;
}

err evaluate_prepare(evaluate_set *out, const data_set *held, const target *t, int64_t limit,
                     int64_t max_new, arena *a) {
    const target_config *c = target_get_config(t);
    *out = (evaluate_set){.max_new = max_new, .end_ids = c->eos, .n_end = c->n_eos};
    TRY(arena_alloc(a, (size_t)limit, sizeof *out->prompt, &out->prompt));
    TRY(arena_alloc(a, (size_t)limit, sizeof *out->length, &out->length));
    for (int64_t i = 0; i < data_count(held) && out->n < limit; i++) {
        data_doc d;
        int32_t *own;
        TRY(data_fetch(held, i, &d));
        const int64_t n = prompt_of(&d, c->context);
        if (n < 1) continue;
        TRY(arena_alloc(a, (size_t)n, sizeof *own, &own));
        memcpy(own, d.tokens, (size_t)n * sizeof *own);
        out->prompt[out->n] = own;
        out->length[out->n++] = n;
        if (n > out->longest) out->longest = n;
    }
    if (!out->n)
        return err_set(ERR_RANGE,
                       "no held-out document has a prompt that fits the target's context of %lld "
                       "tokens; give other rows in data.validation",
                       (long long)c->context);
    return ERR_OK;
}

static int64_t batch_of(const evaluate_set *s) {
    return s->n < EVALUATE_BATCH ? s->n : EVALUATE_BATCH;
}

/* With a block to spare, so that the last rounds draft whole blocks like all others. */
static int64_t room(const evaluate_set *s, const target *t, int64_t block_size) {
    const int64_t n = s->longest + s->max_new + block_size;
    const int64_t context = target_get_config(t)->context;
    return n < context ? n : context;
}

size_t evaluate_bytes(const evaluate_set *s, const target *t, const drafter_layout *l) {
    const target_config *c = target_get_config(t);
    const drafter_config *k = &l->cfg;
    const size_t seqs = (size_t)batch_of(s), slots = (size_t)k->block_size;
    const size_t tokens = (size_t)(room(s, t, k->block_size) + 2 * PAGED_PAGE) * seqs;
    const size_t target_kv = (size_t)(c->layers * c->kv_heads * c->head_dim) * 2 * tokens;
    const size_t own_kv = (size_t)(k->layers * k->kv_heads * k->head_dim) * 2 * tokens;
    const size_t taps = (size_t)(k->n_taps * k->hidden) * tokens;
    const size_t wide = (size_t)(c->vocab + 8 * (c->intermediate + c->hidden)) * 2 * slots * seqs;
    const size_t prefill = (size_t)(6 * (c->intermediate + c->hidden)) * (size_t)s->longest;
    const size_t rope = (size_t)(c->context + k->block_size) * (size_t)k->head_dim;
    return (size_t)l->total * sizeof(bf16) +
           (target_kv + own_kv + taps + wide + prefill + rope) * sizeof(float) + ((size_t)4 << 20);
}

static err one_batch(const evaluate_set *s, decode_batch *b, int64_t from, int64_t n,
                     decode_stats *stats) {
    decode_seq *seq[EVALUATE_BATCH] = {NULL};
    for (int64_t i = 0; i < n; i++) {
        const decode_request r = {
            .prompt = s->prompt[from + i], .n_prompt = s->length[from + i], .max_new = s->max_new};
        TRY(decode_add(b, &r, &seq[i]));
    }
    TRY(decode_run(b));
    for (int64_t i = 0; i < n; i++) {
        decode_stats_add(stats, decode_get_stats(seq[i]));
        decode_remove(b, seq[i]);
    }
    return ERR_OK;
}

err evaluate_run(const evaluate_set *s, dev *d, const target *t, const drafter_layout *l,
                 const float *params, err (*beat)(void *ctx), void *ctx, decode_stats *stats) {
    drafter *dr = NULL;
    decode_batch *b = NULL;
    *stats = (decode_stats){0};
    TRY(drafter_pack(&dr, l, params, DT_BF16, t));
    const decode_config cfg = {.t = t,
                               .dr = dr,
                               .max_seqs = batch_of(s),
                               .max_tokens = room(s, t, l->cfg.block_size),
                               .end_ids = s->end_ids,
                               .n_end = s->n_end};
    err e = decode_create(&b, d, &cfg);
    for (int64_t i = 0; !e && i < s->n; i += EVALUATE_BATCH) {
        if (beat) e = beat(ctx);
        if (!e)
            e = one_batch(s, b, i, s->n - i < EVALUATE_BATCH ? s->n - i : EVALUATE_BATCH, stats);
    }
    if (b) decode_free(b);
    drafter_free(dr);
    return e ? err_context(e, "evaluation: ") : ERR_OK;
}
