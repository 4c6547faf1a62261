/* The target's decoding forward: new rows of several sequences at once against their paged keys.
 *
 * All rows share each matrix product; attention goes sequence by sequence through the pages. Both give a row the same bits
 * whatever stands beside it, which is what makes speculative text equal plain text. Pages are reserved first and lengths
 * raised last, so a failed step leaves every sequence as it was. Words are chosen in chunks of rows: whole logits exist
 * only where the caller asks for them. */
#include "flex/paged.h"
#include "model/target_parts.h"
#include <math.h>
#include <string.h>

enum { HEAD_ROWS = 64 };

typedef struct step {
    const target *t;
    dev *d;
    kv_pool *pool;
    const target_step *s;
    int64_t rows;
    target__rows r;
    int32_t *position;
    float *q;       /* [rows, heads * head_dim] rotated queries side by side */
    paged_seq *seq; /* one per sequence */
} step;

static err reserve(step *st) {
    const target_step *s = st->s;
    for (int64_t i = 0; i < s->n_seqs; i++) {
        kv_seq *kv = s->seqs[i].kv;
        if (kv->length + s->seqs[i].rows > st->t->cfg.context)
            return err_set(ERR_RANGE,
                           "a sequence of %lld tokens and %lld more pass the target's context of "
                           "%lld",
                           (long long)kv->length, (long long)s->seqs[i].rows,
                           (long long)st->t->cfg.context);
        TRY(kv_seq_reserve(st->pool, kv, s->seqs[i].rows));
        st->rows += s->seqs[i].rows;
    }
    return ERR_OK;
}

static err prepare(step *st, arena *a) {
    const target_step *s = st->s;
    const target_config *c = &st->t->cfg;
    int32_t *ids;
    TRY(target__rows_alloc(&st->r, st->t, st->d, st->rows, a));
    TRY(arena_alloc_raw(a, (size_t)st->rows, sizeof *ids, &ids));
    TRY(arena_alloc_raw(a, (size_t)st->rows, sizeof *st->position, &st->position));
    TRY(arena_alloc_raw(a, (size_t)(st->rows * c->heads * c->head_dim), sizeof(float), &st->q));
    TRY(arena_alloc(a, (size_t)s->n_seqs, sizeof *st->seq, &st->seq));
    int64_t at = 0;
    for (int64_t i = 0; i < s->n_seqs; i++) {
        const target_step_seq *in = &s->seqs[i];
        int64_t width = c->heads * c->head_dim;
        st->seq[i] = (paged_seq){.pages = in->kv->pages, .rows = in->rows, .first = in->kv->length};
        st->seq[i].n_keys = in->kv->length + in->rows;
        st->seq[i].q = st->q + at * width;
        st->seq[i].o = st->r.o + at * width;
        for (int64_t k = 0; k < in->rows; k++, at++) {
            ids[at] = in->tokens[k];
            st->position[at] = (int32_t)(in->kv->length + k);
        }
    }
    st->r.position = st->position;
    return nn_embed(st->d, &st->t->embed, ids, st->rows, st->r.x, c->hidden);
}

/* Moves this layer's new keys and values into the pages and the queries side by side. */
static void spread(step *st, int64_t layer) {
    const target_config *c = &st->t->cfg;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, at = 0;
    for (int64_t i = 0; i < st->s->n_seqs; i++) {
        const target_step_seq *in = &st->s->seqs[i];
        for (int64_t k = 0; k < in->rows; k++, at++) {
            const float *row = st->r.qkv + at * (q + 2 * kv);
            int64_t pos = in->kv->length + k;
            memcpy(st->q + at * q, row, (size_t)q * sizeof(float));
            memcpy(kv_at_k(st->pool, layer, in->kv, pos), row + q, (size_t)kv * sizeof(float));
            memcpy(kv_at_v(st->pool, layer, in->kv, pos), row + q + kv, (size_t)kv * sizeof(float));
        }
    }
}

static err layers(step *st) {
    const target_step *s = st->s;
    const target_config *c = &st->t->cfg;
    paged_args p = {.q_heads = c->heads, .kv_heads = c->kv_heads, .dim = c->head_dim};
    p.scale = 1.0f / sqrtf((float)c->head_dim);
    p.seqs = st->seq;
    p.n_seqs = s->n_seqs;
    for (int64_t i = 0; i < c->layers; i++) {
        TRY(target__before_attention(&st->r, i));
        spread(st, i);
        p.k_pool = kv_layer_k(st->pool, i);
        p.v_pool = kv_layer_v(st->pool, i);
        TRY(paged_attention(st->d, &p));
        TRY(target__after_attention(&st->r, i));
        if (s->taps_out) target__store_taps(&st->r, i, s->taps, s->n_taps, s->taps_out);
    }
    return ERR_OK;
}

/* Rows that need words, moved together to the front of y; returns their number. */
static int64_t gather_rows(step *st) {
    int64_t h = st->t->cfg.hidden, at = 0;
    if (!st->s->last_only) return st->rows;
    for (int64_t i = 0; i < st->s->n_seqs; i++) {
        at += st->s->seqs[i].rows;
        memmove(st->r.x + i * h, st->r.x + (at - 1) * h, (size_t)h * sizeof(float));
    }
    return st->s->n_seqs;
}

typedef struct choice {
    const float *logits;
    int64_t vocab;
    int32_t *out;
} choice;
static err choose(void *ctx, int64_t row, int thread) {
    const choice *c = ctx;
    (void)thread;
    return nn_argmax(c->logits + row * c->vocab, c->vocab, &c->out[row]);
}

static err words(step *st, arena *a) {
    const target *t = st->t;
    const target_step *s = st->s;
    int64_t h = t->cfg.hidden, v = t->cfg.vocab, n = gather_rows(st);
    float *logits = s->logits_out;
    TRY(nn_rmsnorm(st->d, st->r.x, h, t->norm, t->cfg.rms_eps, n, h, st->r.y, h, NULL));
    if (!logits)
        TRY(arena_alloc_raw(a, (size_t)((n < HEAD_ROWS ? n : HEAD_ROWS) * v), sizeof(float),
                            &logits));
    for (int64_t i = 0; i < n; i += HEAD_ROWS) {
        int64_t rows = n - i < HEAD_ROWS ? n - i : HEAD_ROWS;
        float *out = s->logits_out ? logits + i * v : logits;
        TRY(packed_matmul(st->d, &t->head, st->r.y + i * h, h, rows, out, v));
        if (!s->argmax_out) continue;
        choice c = {.logits = out, .vocab = v, .out = s->argmax_out + i};
        TRY(pool_run(dev_pool(st->d), rows, choose, &c));
    }
    return ERR_OK;
}

static err run(step *st, arena *a) {
    TRY(reserve(st));
    if (!st->rows) return ERR_OK;
    TRY(prepare(st, a));
    TRY(layers(st));
    return st->s->logits_out || st->s->argmax_out ? words(st, a) : ERR_OK;
}

err target_decode(const target *t, dev *d, kv_pool *kv, const target_step *s, arena *a) {
    step st = {.t = t, .d = d, .pool = kv, .s = s};
    TRY(target__check_taps(t, s->taps, s->n_taps));
    for (int64_t i = 0; i < s->n_seqs; i++)
        if (s->seqs[i].rows < 1)
            return err_set(ERR_RANGE,
                           "sequence %lld of a decoding step has %lld rows; at least one "
                           "is needed",
                           (long long)i, (long long)s->seqs[i].rows);
    arena_mark m = arena_get_mark(a);
    err e = run(&st, a);
    arena_reset(a, m);
    for (int64_t i = 0; i < s->n_seqs; i++) {
        if (e)
            kv_seq_crop(kv, s->seqs[i].kv, s->seqs[i].kv->length);
        else
            kv_seq_commit(s->seqs[i].kv, s->seqs[i].rows);
    }
    return e;
}
