/* Batches of sequences: making, adding, removing, and what may be asked of them. The rounds are in decode_round.c.
 *
 * A sequence takes one place of the models when it is added and gives it back when it ends, so a batch of n places can
 * serve any number of sequences one after another; handles live until they are removed. */
#include "decode/decode_private.h"
#include <math.h>
#include <string.h>

double decode_tau(const decode_stats *s) {
    return s->rounds ? (double)s->committed / (double)s->rounds : (double)NAN;
}

void decode_stats_add(decode_stats *into, const decode_stats *s) {
    into->rounds += s->rounds;
    into->committed += s->committed;
    for (int i = 0; i < DECODE_MAX_BLOCK; i++) into->histogram[i] += s->histogram[i];
    into->plain_steps += s->plain_steps;
    into->prefill_seconds += s->prefill_seconds;
    into->decode_seconds += s->decode_seconds;
}

static err check(const decode_models *m, const decode_config *cfg) {
    if (cfg->max_seqs < 1 || cfg->max_tokens < 1)
        return err_set(ERR_RANGE,
                       "a batch of %lld sequences of %lld tokens was asked for; each must be at "
                       "least 1",
                       (long long)cfg->max_seqs, (long long)cfg->max_tokens);
    if (cfg->context < 0 || cfg->context > m->context)
        return err_set(ERR_RANGE, "a context of %lld was asked for; the target has %lld",
                       (long long)cfg->context, (long long)m->context);
    if (m->block_size == 1 || m->block_size > DECODE_MAX_BLOCK)
        return err_set(ERR_RANGE, "draft blocks of %lld slots cannot be used; from 2 to %d can",
                       (long long)m->block_size, DECODE_MAX_BLOCK);
    for (int i = 0; i < cfg->n_end; i++)
        if (cfg->end_ids[i] < 0 || cfg->end_ids[i] >= m->vocab)
            return err_set(ERR_RANGE, "end token %d is outside the vocabulary of %lld",
                           (int)cfg->end_ids[i], (long long)m->vocab);
    return ERR_OK;
}

static err allocate(decode_batch *b, const decode_config *cfg) {
    size_t n = (size_t)b->max_seqs;
    size_t tokens = n * (size_t)(b->m.block_size ? b->m.block_size : 1);
    TRY(arena_create(&b->a, "decoding batch", 0));
    TRY(arena_alloc(b->a, n, sizeof *b->taken, &b->taken));
    TRY(arena_alloc(b->a, n, sizeof *b->run, &b->run));
    TRY(arena_alloc(b->a, n, sizeof *b->rows, &b->rows));
    TRY(arena_alloc(b->a, n, sizeof *b->keep, &b->keep));
    TRY(arena_alloc(b->a, n, sizeof *b->block, &b->block));
    TRY(arena_alloc(b->a, tokens, sizeof *b->tokens, &b->tokens));
    TRY(arena_alloc(b->a, tokens, sizeof *b->chosen, &b->chosen));
    TRY(arena_alloc(b->a, (size_t)cfg->n_end, sizeof *b->end_ids, &b->end_ids));
    if (cfg->n_end) memcpy(b->end_ids, cfg->end_ids, (size_t)cfg->n_end * sizeof *b->end_ids);
    return ERR_OK;
}

err decode_models_batch(decode_batch **out, const decode_models *m, const decode_config *cfg) {
    decode_batch *b = NULL;
    *out = NULL;
    err e = check(m, cfg);
    if (!e) e = mem_new(1, sizeof *b, &b);
    if (e) {
        m->free(m->ctx);
        return e;
    }
    b->m = *m;
    b->max_seqs = cfg->max_seqs;
    b->max_tokens = cfg->max_tokens;
    b->context = cfg->context ? cfg->context : m->context;
    b->n_end = cfg->n_end;
    e = allocate(b, cfg);
    if (e)
        decode_free(b);
    else
        *out = b;
    return e;
}

err decode_create(decode_batch **out, dev *d, const decode_config *cfg) {
    decode_models m;
    *out = NULL;
    if (cfg->max_seqs < 1 || cfg->max_tokens < 1)
        return err_set(ERR_RANGE,
                       "a batch of %lld sequences of %lld tokens was asked for; each must be at "
                       "least 1",
                       (long long)cfg->max_seqs, (long long)cfg->max_tokens);
    TRY(decode_models_open(&m, d, cfg));
    return decode_models_batch(out, &m, cfg);
}

static void free_seq(decode_seq *s) {
    mem_free(s->prompt);
    mem_free(s->out);
    mem_free(s);
}

void decode_free(decode_batch *b) {
    if (!b) return;
    for (decode_seq *s = b->first, *next; s; s = next) {
        next = s->next;
        decode__close(b, s);
        free_seq(s);
    }
    b->m.free(b->m.ctx);
    arena_destroy(b->a);
    mem_free(b);
}

size_t decode_bytes(const decode_batch *b) {
    arena_stats s;
    arena_get_stats(b->a, &s);
    return s.reserved + sizeof *b + b->m.bytes(b->m.ctx);
}

static err check_request(const decode_batch *b, const decode_request *r) {
    if (r->n_prompt < 1)
        return err_set(ERR_RANGE, "the prompt is empty; at least one token is needed");
    if (r->n_prompt > b->context)
        return err_set(ERR_RANGE,
                       "the prompt has %lld tokens and the context holds %lld; shorten the prompt",
                       (long long)r->n_prompt, (long long)b->context);
    if (r->max_new < 0)
        return err_set(ERR_RANGE, "%lld new tokens were asked for", (long long)r->max_new);
    int64_t need = r->max_new < b->context - r->n_prompt ? r->n_prompt + r->max_new : b->context;
    if (need > b->max_tokens)
        return err_set(ERR_RANGE,
                       "the prompt's %lld and %lld new tokens need room for %lld; the batch was "
                       "made for %lld tokens a sequence",
                       (long long)r->n_prompt, (long long)r->max_new, (long long)need,
                       (long long)b->max_tokens);
    for (int64_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= b->m.vocab)
            return err_set(ERR_RANGE,
                           "token %d at position %lld of the prompt is outside the vocabulary of "
                           "%lld",
                           (int)r->prompt[i], (long long)i, (long long)b->m.vocab);
    if (b->n_open == b->max_seqs)
        return err_set(ERR_REFUSED,
                       "all %lld places of the batch are taken; wait for a sequence to end",
                       (long long)b->max_seqs);
    return ERR_OK;
}

static err take_place(decode_batch *b, decode_seq *s) {
    int64_t i = 0;
    while (b->taken[i]) i++;
    TRY(b->m.open(b->m.ctx, i));
    b->taken[i] = 1;
    b->n_open++;
    s->place = i;
    return ERR_OK;
}

void decode__close(decode_batch *b, decode_seq *s) {
    if (s->place < 0) return;
    b->m.close(b->m.ctx, s->place);
    b->taken[s->place] = 0;
    b->n_open--;
    s->place = -1;
}

int64_t decode__block(const decode_batch *b, int64_t held) {
    int64_t size = b->m.block_size;
    if (b->m.draft_positions - held < size) size = b->m.draft_positions - held;
    /* Drafts and bonus fill positions held+1 .. context-1 at most. */
    if (b->context - 1 - held < size) size = b->context - 1 - held;
    return size;
}

err decode_add(decode_batch *b, const decode_request *r, decode_seq **out) {
    decode_seq *s;
    *out = NULL;
    TRY(check_request(b, r));
    TRY(mem_new(1, sizeof *s, &s));
    s->place = -1;
    err e = mem_new((size_t)r->n_prompt, sizeof *s->prompt, &s->prompt);
    if (!e && r->max_new > 0 && r->n_prompt < b->context) e = take_place(b, s);
    if (e) {
        free_seq(s);
        return e;
    }
    memcpy(s->prompt, r->prompt, (size_t)r->n_prompt * sizeof *s->prompt);
    s->n_prompt = r->n_prompt;
    s->max_new = r->max_new;
    s->on_token = r->on_token;
    s->ctx = r->ctx;
    s->drafts = decode__block(b, r->n_prompt) >= 2;
    if (s->place < 0) s->state = r->max_new > 0 ? DECODE_CONTEXT : DECODE_LIMIT;
    decode_seq **at = &b->first;
    while (*at) at = &(*at)->next;
    *at = *out = s;
    return ERR_OK;
}

void decode_remove(decode_batch *b, decode_seq *s) {
    decode_seq **at = &b->first;
    while (*at && *at != s) at = &(*at)->next;
    if (!*at) return;
    *at = s->next;
    decode__close(b, s);
    free_seq(s);
}

err decode_round(decode_batch *b, int64_t *running) {
    if (b->failed)
        return err_set(ERR_REFUSED, "an earlier round of this batch failed; make a new batch");
    err e = decode__round(b, running);
    if (e) b->failed = 1;
    return e;
}

err decode_run(decode_batch *b) {
    int64_t running = 1;
    while (running) TRY(decode_round(b, &running));
    return ERR_OK;
}

const int32_t *decode_tokens(const decode_seq *s, int64_t *n) {
    *n = s->n_out;
    return s->out;
}
decode_end decode_state(const decode_seq *s) { return s->state; }
const decode_stats *decode_get_stats(const decode_seq *s) { return &s->stats; }
