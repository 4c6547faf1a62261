/* One round: prefill what is new, draft, verify all sequences in one forward, accept a prefix, keep what was accepted.
 *
 * The target's greedy token after each fed row decides: drafts are accepted while they equal it, and the token after the
 * last accepted one is the bonus. A sequence without a draft feeds one row and commits one token; nothing else tells plain
 * from speculative decoding apart. Ends are looked for token by token among what was committed, so a limit or an end
 * token inside a block trims it; statistics count before trimming. */
#include "core/clock.h"
#include "decode/decode_private.h"
#include <string.h>

static int is_end(const decode_batch *b, int32_t token) {
    for (int i = 0; i < b->n_end; i++)
        if (b->end_ids[i] == token) return 1;
    return 0;
}

/* Appends one token and looks whether the sequence ends with it. */
static err commit(decode_batch *b, decode_seq *s, int32_t token) {
    TRY(mem_grow(&s->out, &s->cap_out, (size_t)s->n_out + 1, sizeof *s->out));
    s->out[s->n_out++] = token;
    if (is_end(b, token))
        s->state = DECODE_END_TOKEN;
    else if (s->n_out == s->max_new)
        s->state = DECODE_LIMIT;
    else if (s->n_prompt + s->n_out == b->context)
        s->state = DECODE_CONTEXT;
    if (s->on_token) s->on_token(s->ctx, token);
    return ERR_OK;
}

/* Commits in order until the sequence ends. */
static err commit_all(decode_batch *b, decode_seq *s, const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n && s->state == DECODE_RUNNING; i++) TRY(commit(b, s, tokens[i]));
    return ERR_OK;
}

/* The whole prompt in fixed chunks, alike with and without a drafter; commits the first token. */
static err prefill(decode_batch *b, decode_seq *s) {
    double start = clock_seconds();
    int32_t first = 0;
    while (s->held < s->n_prompt) {
        int64_t n = s->n_prompt - s->held;
        int last = n <= DECODE_PREFILL_ROWS;
        if (!last) n = DECODE_PREFILL_ROWS;
        decode_rows rows = {s->place, s->prompt + s->held, n};
        decode_keep keep = {s->place, n, s->drafts};
        TRY(b->m.verify(b->m.ctx, &rows, 1, 1, s->drafts, last ? &first : NULL));
        TRY(b->m.keep(b->m.ctx, &keep, 1));
        s->held += n;
    }
    TRY(commit(b, s, first));
    s->stats.prefill_seconds += clock_seconds() - start;
    if (s->state != DECODE_RUNNING) decode__close(b, s);
    return ERR_OK;
}

/* Fills run, rows and tokens; drafts for those that have room. Returns the number of sequences through n. */
static err propose(decode_batch *b, int64_t *n, int *taps) {
    int64_t at = 0, blocks = 0;
    *n = 0;
    *taps = 0;
    for (decode_seq *s = b->first; s; s = s->next) {
        if (s->state != DECODE_RUNNING) continue;
        int64_t size = s->drafts ? decode__block(b, s->held) : 1;
        int32_t *tokens = b->tokens + at;
        tokens[0] = s->out[s->n_out - 1];
        if (s->drafts) {
            b->block[blocks++] = (decode_block){s->place, tokens[0], size, tokens + 1};
            *taps = 1;
        }
        b->run[*n] = s;
        b->rows[(*n)++] = (decode_rows){s->place, tokens, size};
        at += size;
    }
    return blocks ? b->m.draft(b->m.ctx, b->block, blocks) : ERR_OK;
}

/* Takes the accepted prefix of one sequence's rows; chosen[j] is the target's token after row j. */
static err accept(decode_batch *b, decode_seq *s, const decode_rows *rows, const int32_t *chosen,
                  decode_keep *keep) {
    int64_t accepted = 0;
    while (accepted + 1 < rows->rows && rows->tokens[accepted + 1] == chosen[accepted]) accepted++;
    if (rows->rows > 1) {
        s->stats.rounds++;
        s->stats.committed += accepted + 1;
        s->stats.histogram[accepted]++;
    } else {
        s->stats.plain_steps++;
    }
    s->held += accepted + 1;
    TRY(commit_all(b, s, chosen, accepted + 1)); /* accepted drafts equal chosen */
    /* A drafter whose positions or whose room have run out is not followed any more: room never grows. */
    s->drafts = s->drafts && s->state == DECODE_RUNNING && decode__block(b, s->held) >= 2;
    *keep = (decode_keep){s->place, accepted + 1, s->drafts};
    return ERR_OK;
}

err decode__round(decode_batch *b, int64_t *running) {
    int64_t n, at = 0;
    int taps;
    *running = 0;
    for (decode_seq *s = b->first; s; s = s->next)
        if (s->state == DECODE_RUNNING && s->held < s->n_prompt) TRY(prefill(b, s));
    double start = clock_seconds();
    TRY(propose(b, &n, &taps));
    if (!n) return ERR_OK;
    TRY(b->m.verify(b->m.ctx, b->rows, n, 0, taps, b->chosen));
    for (int64_t i = 0; i < n; at += b->rows[i++].rows)
        TRY(accept(b, b->run[i], &b->rows[i], b->chosen + at, &b->keep[i]));
    TRY(b->m.keep(b->m.ctx, b->keep, n));
    double each = (clock_seconds() - start) / (double)n;
    for (int64_t i = 0; i < n; i++) {
        b->run[i]->stats.decode_seconds += each;
        if (b->run[i]->state == DECODE_RUNNING)
            ++*running;
        else
            decode__close(b, b->run[i]);
    }
    return ERR_OK;
}
