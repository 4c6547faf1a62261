/* The frozen head, the cross-entropy on it and the gradient of its input, fused: logits exist for one chunk of rows only.
 *
 * Rows that carry no weight are left out first. A chunk's logits come from packed_matmul_part; each row is turned into
 * exp(logit - max) in place, and dX = (E W) * weight/sum - weight * W[label], where W is widened to fp32 one tile of
 * words at a time. The chunk's rows follow from the vocabulary alone (HEAD_BYTES of logits), so neither the number of
 * threads nor the number of rows beside a row changes its bits. The head itself gets no gradient: it is frozen. */
#include "dev/gemm.h"
#include "nn/lanes.h"
#include "nn/nn.h"
#include "nn/part.h"
#include <math.h>
#include <string.h>

enum { HEAD_BYTES = 32 << 20, MIN_ROWS = 16, MAX_ROWS = 256, TILE = 1024, TILE_PART = 64 };

typedef struct head_job {
    const head_args *h;
    const lanes *v;
    int64_t vocab, hidden, rows_max; /* rows of a chunk at most */
    int64_t *row;                    /* [live] rows that carry weight */
    int64_t first, rows;             /* this chunk: row[first .. first+rows) */
    float *x;                        /* [rows_max, hidden]; later the label's row of W */
    float *e;                        /* [rows_max, vocab] logits, then exp(logit - max) */
    float *acc;                      /* [rows_max, hidden] E W */
    float *tile;                     /* [TILE, hidden] */
    int64_t tile0, tile1;
    double *sum; /* [rows_max] */
} head_job;

static int64_t chunk_rows(int64_t vocab) {
    int64_t r = HEAD_BYTES / (vocab * (int64_t)sizeof(float)) / 16 * 16;
    return r < MIN_ROWS ? MIN_ROWS : r > MAX_ROWS ? MAX_ROWS : r;
}

/* Lays the workspace out; returns its bytes. base NULL: only counts. */
static size_t layout(head_job *j, char *base, int64_t rows) {
    size_t at = 0;
    int64_t r = rows < j->rows_max ? rows : j->rows_max;
    struct {
        void **p;
        int64_t bytes;
    } part[] = {
        {(void **)&j->row, rows * (int64_t)sizeof(int64_t)},
        {(void **)&j->sum, r * (int64_t)sizeof(double)},
        {(void **)&j->x, r * j->hidden * (int64_t)sizeof(float)},
        {(void **)&j->acc, r * j->hidden * (int64_t)sizeof(float)},
        {(void **)&j->tile, TILE * j->hidden * (int64_t)sizeof(float)},
        {(void **)&j->e, r * j->vocab * (int64_t)sizeof(float)},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (base) *part[i].p = base + at;
        at += ((size_t)part[i].bytes + 63) / 64 * 64;
    }
    return at;
}

size_t nn_head_bytes(const dev *d, const packed *w, int64_t rows) {
    (void)d;
    head_job j = {.vocab = w->n, .hidden = w->k, .rows_max = chunk_rows(w->n)};
    return layout(&j, NULL, rows);
}

static err check(const head_args *h, int64_t vocab) {
    if (vocab < 1 || vocab > h->w->n)
        return err_set(ERR_RANGE, "the head competes over %lld words and holds %lld",
                       (long long)vocab, (long long)h->w->n);
    for (int64_t r = 0; r < h->n; r++) {
        if (!(h->weight[r] >= 0))
            return err_set(ERR_RANGE, "loss weight %g of row %lld is negative or NaN",
                           (double)h->weight[r], (long long)r);
        if (h->weight[r] > 0 && (h->label[r] < 0 || h->label[r] >= vocab))
            return err_set(ERR_RANGE, "label %d of row %lld is outside the vocabulary of %lld",
                           (int)h->label[r], (long long)r, (long long)vocab);
    }
    return ERR_OK;
}

/* Loss and exponentials of one row of the chunk. */
static err row_part(void *ctx, int64_t i, int thread) {
    const head_job *j = ctx;
    const head_args *h = j->h;
    int64_t r = j->row[j->first + i];
    float *e = j->e + i * j->vocab, own = e[h->label[r]];
    int nan;
    (void)thread;
    float m = j->v->max(e, j->vocab, &nan);
    if (h->correct) {
        int64_t id = 0;
        while (id < j->vocab && e[id] != m) id++;
        h->correct[r] = !nan && id == h->label[r];
    }
    j->sum[i] = j->v->exp_sum(e, m, j->vocab);
    h->nll[r] = (float)(log(j->sum[i]) + ((double)m - (double)own));
    return ERR_OK;
}

static err widen_part(void *ctx, int64_t part, int thread) {
    const head_job *j = ctx;
    (void)thread;
    int64_t a = part * TILE_PART, b = part__end(part, TILE_PART, j->tile1 - j->tile0);
    packed_rows(j->h->w, j->tile0 + a, b - a, j->tile + a * j->hidden, j->hidden);
    return ERR_OK;
}

static err dx_part(void *ctx, int64_t i, int thread) {
    const head_job *j = ctx;
    const head_args *h = j->h;
    int64_t r = j->row[j->first + i];
    float c = h->weight[r] * h->scale, *label = j->x + i * j->hidden, *dx = h->dx + r * h->lddx;
    (void)thread;
    packed_row(h->w, h->label[r], label);
    memcpy(dx, j->acc + i * j->hidden, (size_t)j->hidden * sizeof(float));
    j->v->axpby(dx, -c, label, (float)((double)c / j->sum[i]), j->hidden);
    return ERR_OK;
}

static err chunk(dev *d, head_job *j) {
    const head_args *h = j->h;
    for (int64_t i = 0; i < j->rows; i++)
        memcpy(j->x + i * j->hidden, h->x + j->row[j->first + i] * h->ldx,
               (size_t)j->hidden * sizeof(float));
    TRY(packed_matmul_part(d, h->w, 0, j->vocab, j->x, j->hidden, j->rows, j->e, j->vocab));
    TRY(part__run(d, j->rows, j->rows * j->vocab, row_part, j));
    if (!h->dx) return ERR_OK;
    for (j->tile0 = 0; j->tile0 < j->vocab; j->tile0 = j->tile1) {
        j->tile1 = j->tile0 + TILE < j->vocab ? j->tile0 + TILE : j->vocab;
        int64_t words = j->tile1 - j->tile0;
        TRY(part__run(d, part__count(words, TILE_PART), words * j->hidden, widen_part, j));
        gemm_args g = {.m = j->rows, .n = j->hidden, .k = words, .alpha = 1};
        g.beta = j->tile0 ? 1.0f : 0.0f;
        g.a = j->e + j->tile0;
        g.lda = j->vocab;
        g.b = j->tile;
        g.ldb = j->hidden;
        g.c = j->acc;
        g.ldc = j->hidden;
        TRY(gemm_f32(d, &g));
    }
    return part__run(d, j->rows, j->rows * j->hidden, dx_part, j);
}

err nn_head_loss(dev *d, const head_args *h) {
    head_job j = {.h = h, .v = lanes__of(d), .hidden = h->w->k};
    j.vocab = h->vocab ? h->vocab : h->w->n;
    TRY(check(h, j.vocab));
    j.rows_max = chunk_rows(h->w->n);
    layout(&j, h->workspace, h->n);
    int64_t live = 0;
    for (int64_t r = 0; r < h->n; r++) {
        if (h->weight[r] > 0) {
            j.row[live++] = r;
            continue;
        }
        h->nll[r] = 0;
        if (h->correct) h->correct[r] = 0;
        if (h->dx) memset(h->dx + r * h->lddx, 0, (size_t)j.hidden * sizeof(float));
    }
    for (j.first = 0; j.first < live; j.first += j.rows) {
        j.rows = live - j.first < j.rows_max ? live - j.first : j.rows_max;
        TRY(chunk(d, &j));
    }
    return ERR_OK;
}
