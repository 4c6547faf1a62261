/* Scripted models for tests of decoding: a target that is a function of the whole prefix, and a drafter of chosen skill.
 *
 * The target's token after a prefix is a hash of every token in it, except at positions that a case overrides, so a wrong key
 * left in a cache changes all that follows. The drafter follows the target's own function for as many slots as the case
 * says and is wrong after that. The script checks what decoding promises: caches in step, rows within the context. */
#ifndef DECODE_SCRIPT_H
#define DECODE_SCRIPT_H
#include "decode/decode_models.h"
#include "support/says.h"
#include <stdlib.h>
#include <string.h>

enum { SCRIPT_VOCAB = 50, SCRIPT_PLACES = 4, SCRIPT_LENGTH = 512, SCRIPT_OVERRIDES = 4 };

typedef struct script_place {
    int open;
    int32_t tok[SCRIPT_LENGTH];
    int64_t n, before, draft_n;
} script_place;
typedef struct script {
    uint64_t seed;
    int64_t context, block, draft_positions;
    struct {
        int64_t pos;
        int32_t token;
    } at[SCRIPT_OVERRIDES]; /* the token at position pos, whatever the prefix; pos 0: unused */
    int64_t skill[16];      /* right drafts in the r-th draft: skill[r % n_skill] */
    int n_skill;
    int64_t drafted; /* drafts made in all */
    int64_t fail_at; /* the verify that fails, counted from 1; 0: none */
    int64_t verifies, opens, closes, freed;
    script_place place[SCRIPT_PLACES];
} script;

/* The token that follows tok[0..n). Ids below 10 come from overrides only. */
static inline int32_t script_next(const script *s, const int32_t *tok, int64_t n) {
    for (int i = 0; i < SCRIPT_OVERRIDES; i++)
        if (s->at[i].pos && s->at[i].pos == n) return s->at[i].token;
    uint64_t h = s->seed;
    for (int64_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(tok[i] + 1)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (int32_t)(h % (SCRIPT_VOCAB - 10)) + 10;
}

static inline err script_open(void *ctx, int64_t p) {
    script *s = ctx;
    assert_true(p >= 0 && p < SCRIPT_PLACES && !s->place[p].open);
    s->place[p] = (script_place){.open = 1};
    s->opens++;
    return ERR_OK;
}
static inline void script_close(void *ctx, int64_t p) {
    script *s = ctx;
    assert_true(s->place[p].open);
    s->place[p].open = 0;
    s->closes++;
}
static inline err script_verify(void *ctx, const decode_rows *q, int64_t n, int last_only, int taps,
                                int32_t *argmax) {
    script *s = ctx;
    (void)taps;
    if (++s->verifies == s->fail_at) return err_set(ERR_NUMERIC, "logit 3 of 50 is NaN");
    for (int64_t i = 0; i < n; i++) {
        script_place *p = &s->place[q[i].place];
        assert_true(p->open && q[i].rows >= 1);
        p->before = p->n;
        for (int64_t k = 0; k < q[i].rows; k++) {
            assert_true(p->n < s->context && p->n < SCRIPT_LENGTH);
            p->tok[p->n++] = q[i].tokens[k];
            if (argmax && (!last_only || k + 1 == q[i].rows))
                *argmax++ = script_next(s, p->tok, p->n);
        }
    }
    return ERR_OK;
}
static inline err script_keep(void *ctx, const decode_keep *q, int64_t n) {
    script *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        script_place *p = &s->place[q[i].place];
        p->n = p->before + q[i].rows;
        if (!q[i].extend) continue;
        assert_int_equal(p->draft_n, p->before); /* the drafter's context never lags */
        p->draft_n += q[i].rows;
        assert_true(p->draft_n <= s->draft_positions);
    }
    return ERR_OK;
}
static inline err script_draft(void *ctx, const decode_block *q, int64_t n) {
    script *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        script_place *p = &s->place[q[i].place];
        int64_t right = s->n_skill ? s->skill[s->drafted % s->n_skill] : 0;
        int32_t tok[SCRIPT_LENGTH + 64];
        s->drafted++;
        assert_int_equal(p->draft_n, p->n);
        assert_true(q[i].size >= 2 && q[i].size <= s->block);
        assert_true(p->n + q[i].size <= s->draft_positions);
        memcpy(tok, p->tok, (size_t)p->n * sizeof *tok);
        tok[p->n] = q[i].token;
        for (int64_t k = 1; k < q[i].size; k++) {
            int32_t next = script_next(s, tok, p->n + k);
            q[i].drafts[k - 1] = k <= right ? next : (next + 1) % SCRIPT_VOCAB;
            tok[p->n + k] = q[i].drafts[k - 1];
        }
    }
    return ERR_OK;
}
static inline size_t script_bytes(void *ctx) { return sizeof *(script *)ctx; }
static inline void script_free(void *ctx) { ((script *)ctx)->freed++; }

static inline decode_models script_models(script *s) {
    if (!s->draft_positions) s->draft_positions = SCRIPT_LENGTH;
    return (decode_models){.ctx = s,
                           .vocab = SCRIPT_VOCAB,
                           .context = s->context,
                           .block_size = s->block,
                           .draft_positions = s->block ? s->draft_positions : 0,
                           .open = script_open,
                           .close = script_close,
                           .verify = script_verify,
                           .keep = script_keep,
                           .draft = script_draft,
                           .bytes = script_bytes,
                           .free = script_free};
}

/* What plain greedy decoding gives, by the function alone. Returns the number of tokens. */
static inline int64_t script_plain(const script *s, const int32_t *prompt, int64_t n,
                                   int64_t max_new, const int32_t *ends, int n_ends, int32_t *out,
                                   decode_end *why) {
    int32_t tok[SCRIPT_LENGTH + 1];
    int64_t made = 0;
    memcpy(tok, prompt, (size_t)n * sizeof *tok);
    *why = max_new ? DECODE_CONTEXT : DECODE_LIMIT;
    while (made < max_new && n < s->context) {
        tok[n] = out[made++] = script_next(s, tok, n);
        n++;
        *why = made == max_new ? DECODE_LIMIT : DECODE_CONTEXT;
        for (int i = 0; i < n_ends; i++)
            if (out[made - 1] == ends[i]) {
                *why = DECODE_END_TOKEN;
                return made;
            }
    }
    return made;
}

#endif
