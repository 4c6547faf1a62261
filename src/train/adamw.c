/* AdamW: one pass for the norm, one for the update, both over fixed chunks of the flat buffer.
 *
 * The arithmetic follows the usual definition element by element in fp32, with the two bias corrections and the step
 * size made in double. Gaps between tensors are zero in every buffer and stay zero.
 * It decides nothing about when to stop; the caller counts bad steps. */
#include "train/adamw.h"
#include "dist/group.h"
#include <assert.h>
#include <float.h>
#include <math.h>

enum { CHUNK = ADAMW_CHUNK };

int64_t adamw_chunks(const drafter_layout *l) { return (l->total + CHUNK - 1) / CHUNK; }

size_t adamw_share_bytes(const drafter_layout *l) {
    return (size_t)adamw_chunks(l) * sizeof(double) + 64;
}

size_t adamw_bytes(const drafter_layout *l) {
    return 2 * ((size_t)l->total * sizeof(float) + 64) + adamw_share_bytes(l);
}

err adamw_create(adamw *out, const drafter_layout *layout, const adamw_config *cfg, arena *a) {
    *out = (adamw){.cfg = *cfg, .layout = layout, .end = adamw_chunks(layout)};
    TRY(arena_alloc(a, (size_t)layout->total, sizeof(float), &out->m));
    TRY(arena_alloc(a, (size_t)layout->total, sizeof(float), &out->v));
    return arena_alloc(a, (size_t)out->end, sizeof(double), &out->partial);
}

err adamw_share(adamw *out, const adamw *whole, int ranks, int rank, arena *a) {
    const int64_t n = adamw_chunks(whole->layout);
    *out = *whole;
    group_shard(ranks, rank, n, 1, &out->first, &out->end);
    return arena_alloc(a, (size_t)n, sizeof(double), &out->partial);
}

typedef struct job {
    adamw *w;
    float *params;
    const float *grads;
    float g_scale; /* 1 / sum of weights, times the clip */
    float keep1, take1, keep2, take2, step_size, root2, eps, shrink;
} job;

static err norm_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    job *j = ctx;
    const int64_t total = j->w->layout->total, start = (j->w->first + task) * CHUNK;
    const int64_t end = start + CHUNK < total ? start + CHUNK : total;
    double sum[4] = {0};
    for (int64_t i = start; i + 4 <= end; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += (double)j->grads[i + k] * (double)j->grads[i + k];
    assert((end - start) % 4 == 0); /* totals are multiples of 16 */
    j->w->partial[start / CHUNK] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    return ERR_OK;
}

/* Elements start..end-1 of the buffer, which belong to one tensor. */
static void update(const job *j, int64_t start, int64_t end, float shrink) {
    float *p = j->params, *m = j->w->m, *v = j->w->v;
    for (int64_t i = start; i < end; i++) {
        float g = j->grads[i] * j->g_scale;
        float mi = j->keep1 * m[i] + j->take1 * g;
        float vi = j->keep2 * v[i] + j->take2 * (g * g);
        m[i] = mi;
        v[i] = vi;
        /* Without the guard an eps of 0 would give 0/0 where no gradient ever came. */
        float change = mi != 0 ? mi / (sqrtf(vi) / j->root2 + j->eps) : 0;
        p[i] = p[i] * shrink - j->step_size * change;
    }
}

static err update_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    job *j = ctx;
    const drafter_layout *l = j->w->layout;
    const int64_t start = (j->w->first + task) * CHUNK, end = start + CHUNK;
    for (int i = 0; i < l->n; i++) {
        int64_t from = l->t[i].offset, to = from + l->t[i].count;
        if (to <= start) continue;
        if (from >= end) break;
        update(j, from > start ? from : start, to < end ? to : end,
               l->t[i].decay ? j->shrink : 1.0f);
    }
    return ERR_OK;
}

err adamw_norm(adamw *w, dev *d, const float *grads) {
    job j = {.w = w, .grads = grads};
    return pool_run(dev_pool(d), w->end - w->first, norm_task, &j);
}

err adamw_apply(adamw *w, dev *d, double lr, double scale, float *params, const float *grads,
                adamw_report *report) {
    const adamw_config *c = &w->cfg;
    job j = {.w = w, .params = params, .grads = grads};
    double sum = 0;
    for (int64_t i = 0; i < adamw_chunks(w->layout); i++) sum += w->partial[i];
    double norm = sqrt(sum) * fabs(scale);
    /* The epsilon keeps the clipped norm at or below the limit, as torch's clip does. */
    double clip = c->clip > 0 && norm > c->clip ? c->clip / (norm + 1e-6) : 1;
    *report = (adamw_report){.grad_norm = norm, .clip_scale = clip};
    double used = norm * clip;
    if (!isfinite(norm) || !isfinite(scale) || used * used > (double)FLT_MAX) {
        report->bad = 1;
        return ERR_OK;
    }
    w->steps++;
    j.g_scale = (float)(scale * clip);
    j.keep1 = (float)c->beta1;
    j.take1 = (float)(1 - c->beta1);
    j.keep2 = (float)c->beta2;
    j.take2 = (float)(1 - c->beta2);
    j.step_size = (float)(lr / (1 - pow(c->beta1, (double)w->steps)));
    j.root2 = (float)sqrt(1 - pow(c->beta2, (double)w->steps));
    j.eps = (float)c->eps;
    j.shrink = (float)(1 - lr * c->weight_decay);
    return pool_run(dev_pool(d), w->end - w->first, update_task, &j);
}
