/* The drafter's decoding passes: extending its context cache, and drafting one block per sequence.
 *
 * Every product goes through packed_matmul and attention through paged_attention, so a row's bits depend on that row and its keys
 * alone: not on how context was cut into calls, nor on the other sequences. Context keys and values are written to
 * the pages once; a block's own keys and values are extra keys that are never stored. Logits are made for slots 1 and up only. */
#include "flex/paged.h"
#include "model/drafter_packed.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    EXTEND_ROWS = 256
}; /* context rows handled at once: bounds the workspace of a long prefill */

typedef struct pass {
    const drafter *dr;
    const drafter_config *c;
    dev *d;
    arena *a;
    int64_t rows;
} pass;

static err floats(arena *a, int64_t rows, int64_t width, float **out) {
    return arena_alloc_raw(a, (size_t)rows, (size_t)width * sizeof(float), out);
}

/* x [rows, heads*D]: per-head norm and rotation, in place. */
static err norm_and_rotate(const pass *p, float *x, const float *w, int64_t rows, int64_t heads,
                           const int32_t *position) {
    const int64_t dim = p->c->head_dim;
    float *rstd = NULL;
    const arena_mark m = arena_get_mark(p->a);
    TRY(floats(p->a, rows, heads, &rstd));
    TRY(nn_rmsnorm(p->d, x, dim, w, p->c->rms_eps, rows * heads, dim, x, dim, rstd));
    arena_reset(p->a, m);
    return nn_rope(p->d, &p->dr->rope, x, heads * dim, position, rows, heads, 0);
}

static err norm_rows(const pass *p, const float *x, const float *w, int64_t rows, float *y) {
    const int64_t h = p->c->hidden;
    float *rstd = NULL;
    const arena_mark m = arena_get_mark(p->a);
    TRY(floats(p->a, rows, 1, &rstd));
    TRY(nn_rmsnorm(p->d, x, h, w, p->c->rms_eps, rows, h, y, h, rstd));
    arena_reset(p->a, m);
    return ERR_OK;
}

/* ---- context ---- */

/* One stretch of a sequence: rows taps into its pages from position kv->length. */
static err extend_rows(const pass *p, kv_pool *cache, kv_seq *kv, const float *taps) {
    const drafter *dr = p->dr;
    const int64_t h = p->c->hidden, kw = p->c->kv_heads * p->c->head_dim, n = p->rows;
    float *c, *k, *v;
    int32_t *position;
    TRY(floats(p->a, n, h, &c));
    TRY(floats(p->a, n, kw, &k));
    TRY(floats(p->a, n, kw, &v));
    TRY(arena_alloc_raw(p->a, (size_t)n, sizeof *position, &position));
    for (int64_t i = 0; i < n; i++) position[i] = (int32_t)(kv->length + i);
    TRY(packed_matmul(p->d, &dr->fc, taps, dr->fc.k, n, c, h));
    TRY(norm_rows(p, c, dr->hidden_norm, n, c));
    TRY(kv_seq_reserve(cache, kv, n));
    for (int64_t layer = 0; layer < p->c->layers; layer++) {
        const drafter__packed_layer *y = &dr->layer[layer];
        TRY(packed_matmul(p->d, &y->k, c, h, n, k, kw));
        TRY(packed_matmul(p->d, &y->v, c, h, n, v, kw));
        TRY(norm_and_rotate(p, k, y->k_norm, n, p->c->kv_heads, position));
        for (int64_t i = 0; i < n; i++) {
            memcpy(kv_at_k(cache, layer, kv, kv->length + i), k + i * kw, (size_t)kw * sizeof *k);
            memcpy(kv_at_v(cache, layer, kv, kv->length + i), v + i * kw, (size_t)kw * sizeof *v);
        }
    }
    kv_seq_commit(kv, n);
    return ERR_OK;
}

err drafter_extend(const drafter *dr, dev *d, kv_pool *cache, const drafter_ctx_seq *seqs,
                   int64_t n_seqs, arena *a) {
    pass p = {.dr = dr, .c = &dr->cfg, .d = d, .a = a};
    const arena_mark m = arena_get_mark(a);
    for (int64_t s = 0; s < n_seqs; s++)
        for (int64_t at = 0; at < seqs[s].rows; at += p.rows) {
            p.rows = seqs[s].rows - at < EXTEND_ROWS ? seqs[s].rows - at : EXTEND_ROWS;
            TRY(extend_rows(&p, cache, seqs[s].kv, seqs[s].taps + at * dr->fc.k));
            arena_reset(a, m);
        }
    return ERR_OK;
}

/* ---- drafting ---- */

typedef struct draft {
    pass p;
    const kv_pool *cache;
    const drafter_block_seq *seqs;
    int64_t n_seqs;
    int32_t *position; /* [rows] */
    paged_seq *view;   /* [n_seqs] */
    float *x;          /* [rows,H] residual stream */
    float *xn;         /* [rows,H] */
    float *q, *o;      /* [rows,heads*D] */
    float *k, *v;      /* [rows,kv_heads*D] */
    float *gate, *up;  /* [rows,I] */
} draft;

static err draft_memory(draft *w) {
    const drafter_config *c = w->p.c;
    const int64_t n = w->p.rows, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    TRY(arena_alloc_raw(w->p.a, (size_t)n, sizeof *w->position, &w->position));
    TRY(arena_alloc(w->p.a, (size_t)w->n_seqs, sizeof *w->view, &w->view));
    TRY(floats(w->p.a, n, c->hidden, &w->x));
    TRY(floats(w->p.a, n, c->hidden, &w->xn));
    TRY(floats(w->p.a, n, q, &w->q));
    TRY(floats(w->p.a, n, q, &w->o));
    TRY(floats(w->p.a, n, kv, &w->k));
    TRY(floats(w->p.a, n, kv, &w->v));
    TRY(floats(w->p.a, n, c->intermediate, &w->gate));
    return floats(w->p.a, n, c->intermediate, &w->up);
}

static err draft_start(draft *w) {
    const drafter_config *c = w->p.c;
    int32_t *ids = NULL;
    TRY(arena_alloc_raw(w->p.a, (size_t)w->p.rows, sizeof *ids, &ids));
    int64_t at = 0;
    for (int64_t s = 0; s < w->n_seqs; s++) {
        const drafter_block_seq *b = &w->seqs[s];
        if (b->size < 2 || b->size > c->block_size)
            return err_set(ERR_RANGE,
                           "a draft of %" PRId64
                           " slots was asked of a drafter with blocks of %" PRId64,
                           b->size, c->block_size);
        for (int64_t k = 0; k < b->size; k++) {
            ids[at + k] = k ? c->mask_token : b->token;
            w->position[at + k] = (int32_t)(b->kv->length + k);
        }
        w->view[s] = (paged_seq){.pages = b->kv->pages,
                                 .n_keys = b->kv->length,
                                 .rows = b->size,
                                 .first = -1,
                                 .window_pos = b->kv->length,
                                 .q = w->q + at * c->heads * c->head_dim,
                                 .extra_k = w->k + at * c->kv_heads * c->head_dim,
                                 .extra_v = w->v + at * c->kv_heads * c->head_dim,
                                 .n_extra = b->size,
                                 .o = w->o + at * c->heads * c->head_dim};
        at += b->size;
    }
    return nn_embed(w->p.d, target_embedding(w->p.dr->target), ids, w->p.rows, w->x, c->hidden);
}

static err draft_attention(draft *w, int64_t layer) {
    const drafter_config *c = w->p.c;
    const drafter__packed_layer *y = &w->p.dr->layer[layer];
    const int64_t n = w->p.rows, h = c->hidden, q = c->heads * c->head_dim,
                  kv = c->kv_heads * c->head_dim;
    TRY(norm_rows(&w->p, w->x, y->norm1, n, w->xn));
    TRY(packed_matmul(w->p.d, &y->q, w->xn, h, n, w->q, q));
    TRY(packed_matmul(w->p.d, &y->k, w->xn, h, n, w->k, kv));
    TRY(packed_matmul(w->p.d, &y->v, w->xn, h, n, w->v, kv));
    TRY(norm_and_rotate(&w->p, w->q, y->q_norm, n, c->heads, w->position));
    TRY(norm_and_rotate(&w->p, w->k, y->k_norm, n, c->kv_heads, w->position));
    for (int64_t s = 0; s < w->n_seqs; s++) w->view[s].window = c->window[layer];
    paged_args args = {.q_heads = c->heads, .kv_heads = c->kv_heads, .dim = c->head_dim};
    args.scale = (float)(1 / sqrt((double)c->head_dim));
    args.k_pool = kv_layer_k(w->cache, layer);
    args.v_pool = kv_layer_v(w->cache, layer);
    args.seqs = w->view;
    args.n_seqs = w->n_seqs;
    TRY(paged_attention(w->p.d, &args));
    TRY(packed_matmul(w->p.d, &y->o, w->o, q, n, w->xn, h));
    return nn_add(w->p.d, w->x, w->xn, n * h);
}

static err draft_mlp(draft *w, int64_t layer) {
    const drafter__packed_layer *y = &w->p.dr->layer[layer];
    const int64_t n = w->p.rows, h = w->p.c->hidden, i = w->p.c->intermediate;
    TRY(norm_rows(&w->p, w->x, y->norm2, n, w->xn));
    TRY(packed_matmul(w->p.d, &y->gate, w->xn, h, n, w->gate, i));
    TRY(packed_matmul(w->p.d, &y->up, w->xn, h, n, w->up, i));
    TRY(nn_swiglu(w->p.d, w->gate, w->up, n * i, w->gate));
    TRY(packed_matmul(w->p.d, &y->down, w->gate, i, n, w->xn, h));
    return nn_add(w->p.d, w->x, w->xn, n * h);
}

/* Final norm, then head and argmax of every slot but the anchors'. */
static err draft_choose(draft *w, float *logits_out) {
    const int64_t h = w->p.c->hidden, vocab = w->p.c->vocab;
    float *logits = logits_out;
    TRY(norm_rows(&w->p, w->x, w->p.dr->norm, w->p.rows, w->xn));
    int64_t out = 0, in = 0;
    for (int64_t s = 0; s < w->n_seqs; s++) {
        memmove(w->xn + out * h, w->xn + (in + 1) * h,
                (size_t)((w->seqs[s].size - 1) * h) * sizeof(float));
        out += w->seqs[s].size - 1;
        in += w->seqs[s].size;
    }
    if (!logits) TRY(floats(w->p.a, out, vocab, &logits));
    TRY(packed_matmul(w->p.d, target_head(w->p.dr->target), w->xn, h, out, logits, vocab));
    for (int64_t s = 0; s < w->n_seqs; s++)
        for (int64_t k = 1; k < w->seqs[s].size; k++, logits += vocab) {
            err e = nn_argmax(logits, vocab, &w->seqs[s].drafts[k - 1]);
            if (e) return err_context(e, "drafting slot %" PRId64 ": ", k);
        }
    return ERR_OK;
}

static err draft_run(draft *w, float *logits_out) {
    TRY(draft_memory(w));
    TRY(draft_start(w));
    for (int64_t i = 0; i < w->p.c->layers; i++) {
        TRY(draft_attention(w, i));
        TRY(draft_mlp(w, i));
    }
    return draft_choose(w, logits_out);
}

err drafter_draft(const drafter *dr, dev *d, const kv_pool *cache, const drafter_block_seq *seqs,
                  int64_t n_seqs, float *logits_out, arena *a) {
    draft w = {.p = {.dr = dr, .c = &dr->cfg, .d = d, .a = a},
               .cache = cache,
               .seqs = seqs,
               .n_seqs = n_seqs};
    for (int64_t s = 0; s < n_seqs; s++) w.p.rows += seqs[s].size;
    const arena_mark m = arena_get_mark(a);
    err e = w.p.rows ? draft_run(&w, logits_out) : ERR_OK;
    arena_reset(a, m);
    return e;
}
