/* The micro-batch: drafter forward, fused head and loss, drafter backward.
 *
 * Sums run over slots in order, in double, so they depend on neither threads nor placement. A loss that is not finite is not an
 * error here: it makes the update a bad one, which the optimizer's check finds and the run counts. */
#include "train/step.h"
#include "train/labels.h"

typedef struct memory {
    float *hidden;    /* [R, H] */
    float *d_hidden;  /* [R, H] */
    float *nll;       /* [R] */
    float *weight;    /* [R] */
    int32_t *label;   /* [R] */
    uint8_t *correct; /* [R] */
    void *head;
} memory;

static size_t block(int64_t rows, int64_t bytes) {
    return ((size_t)rows * (size_t)bytes + 63) / 64 * 64 + 64;
}

size_t step_bytes(dev *d, const target *t, const drafter_layout *l, int64_t tokens,
                  int64_t anchors) {
    const int64_t r = anchors * l->cfg.block_size, row = l->cfg.hidden * (int64_t)sizeof(float);
    const size_t own = 2 * block(r, row) + 4 * block(r, 4) +
                       block(1, (int64_t)nn_head_bytes(d, target_head(t), r));
    return own + drafter_train_bytes(l, tokens, anchors, dev_threads(d)) + 4096;
}

static err take(const step *s, int64_t r, int backward, memory *m) {
    const drafter_config *c = &s->layout->cfg;
    const size_t row = (size_t)c->hidden * sizeof(float);
    TRY(arena_alloc_raw(s->work, (size_t)r, row, &m->hidden));
    m->d_hidden = NULL;
    if (backward) TRY(arena_alloc_raw(s->work, (size_t)r, row, &m->d_hidden));
    TRY(arena_alloc_raw(s->work, (size_t)r, sizeof(float), &m->nll));
    TRY(arena_alloc_raw(s->work, (size_t)r, sizeof(float), &m->weight));
    TRY(arena_alloc_raw(s->work, (size_t)r, sizeof(int32_t), &m->label));
    TRY(arena_alloc_raw(s->work, (size_t)r, 1, &m->correct));
    return arena_alloc_raw(s->work, nn_head_bytes(s->d, target_head(s->t), r), 1, &m->head);
}

static err run_head(const step *s, int64_t r, const memory *m) {
    const int64_t h = s->layout->cfg.hidden;
    head_args a = {.w = target_head(s->t), .vocab = s->layout->cfg.vocab, .n = r, .scale = 1};
    a.x = m->hidden;
    a.ldx = h;
    a.label = m->label;
    a.weight = m->weight;
    a.nll = m->nll;
    a.dx = m->d_hidden;
    a.lddx = h;
    a.correct = m->correct;
    a.workspace = m->head;
    return nn_head_loss(s->d, &a);
}

static void add_sums(const step *s, int64_t r, const memory *m, step_sums *sums) {
    const int64_t bs = s->layout->cfg.block_size;
    for (int64_t i = 0; i < r; i++) {
        if (!(m->weight[i] > 0)) continue;
        sums->loss += (double)m->weight[i] * (double)m->nll[i];
        sums->weight += (double)m->weight[i];
        sums->slots[i % bs]++;
        sums->correct[i % bs] += m->correct[i];
    }
}

static err run_row(const step *s, const data_row *row, const float *taps, const int32_t *anchor,
                   int64_t n_anchors, const float *params, float *grads, step_sums *sums,
                   float *nll_out) {
    const int64_t bs = s->layout->cfg.block_size, r = n_anchors * bs;
    memory m;
    TRY(take(s, r, grads != NULL, &m));
    const drafter_row dr = {.n = row->n,
                            .tokens = row->tokens,
                            .document = row->document,
                            .position = row->position,
                            .n_anchors = n_anchors,
                            .anchor = anchor,
                            .taps = taps};
    drafter_acts *acts = NULL;
    TRY(drafter_forward(s->layout, params, s->t, s->d, &dr, m.hidden, NULL, grads ? &acts : NULL,
                        s->work));
    labels_make(row, anchor, n_anchors, bs, s->decay, m.label, m.weight);
    err e = run_head(s, r, &m);
    if (!e && grads)
        e = drafter_backward(s->layout, params, s->d, &dr, acts, m.d_hidden, grads, s->work);
    drafter_acts_release(acts);
    if (e) return e;
    add_sums(s, r, &m, sums);
    for (int64_t i = 0; nll_out && i < r; i++) nll_out[i] = m.nll[i];
    return ERR_OK;
}

err step_row(const step *s, const data_row *row, const float *taps, const int32_t *anchor,
             int64_t n_anchors, const float *params, float *grads, step_sums *sums,
             float *nll_out) {
    sums->rows++;
    sums->tokens += row->n;
    sums->anchors += n_anchors;
    if (!n_anchors) return ERR_OK;
    const arena_mark mark = arena_get_mark(s->work);
    err e = run_row(s, row, taps, anchor, n_anchors, params, grads, sums, nll_out);
    arena_reset(s->work, mark);
    return e;
}
