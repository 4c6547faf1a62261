/* RMSNorm: y = x * rsqrt(mean(x^2) + eps) * w, forward and backward, one row at a time.
 *
 * Forward and dx run over fixed blocks of rows. dw is a sum over rows: tasks own columns and add rows in order, in
 * blocks of 64 rows that are summed before they join the total, which keeps the error of long sums small.
 * With r = rstd: dx = r*(dy*w) - x * r^3/dim * sum(dy*w*x). */
#include "nn/lanes.h"
#include "nn/nn.h"
#include "nn/part.h"
#include <math.h>
#include <string.h>

enum { ROWS = 32, COLS = 16, SUM_ROWS = 64 };

typedef struct norm_job {
    const lanes *v;
    const float *x, *dy, *w;
    float *y, *rstd, *dx, *dw;
    int64_t ldx, ldy, lddy, lddx, n, dim;
    const float *rstd_in;
    float eps;
    int add_dx;
} norm_job;

static err check(const char *what, int64_t n, int64_t dim, int64_t ld) {
    if (n < 0 || dim < 1 || ld < dim)
        return err_set(ERR_SHAPE,
                       "%s: %lld rows of %lld elements with row stride %lld do not form a matrix",
                       what, (long long)n, (long long)dim, (long long)ld);
    return ERR_OK;
}

static err forward_part(void *ctx, int64_t part, int thread) {
    const norm_job *j = ctx;
    (void)thread;
    for (int64_t r = part * ROWS; r < part__end(part, ROWS, j->n); r++) {
        const float *x = j->x + r * j->ldx;
        float mean = j->v->sumsq(x, j->dim) / (float)j->dim;
        float s = 1.0f / sqrtf(mean + j->eps);
        if (j->rstd) j->rstd[r] = s;
        j->v->scale(j->y + r * j->ldy, x, s, j->w, j->dim);
    }
    return ERR_OK;
}

err nn_rmsnorm(dev *d, const float *x, int64_t ldx, const float *w, float eps, int64_t n,
               int64_t dim, float *y, int64_t ldy, float *rstd) {
    TRY(check("RMSNorm", n, dim, ldx < ldy ? ldx : ldy));
    norm_job j = {.v = lanes__of(d), .x = x, .w = w, .y = y, .rstd = rstd, .ldx = ldx, .ldy = ldy};
    j.n = n;
    j.dim = dim;
    j.eps = eps;
    return part__run(d, part__count(n, ROWS), n * dim, forward_part, &j);
}

static err back_part(void *ctx, int64_t part, int thread) {
    const norm_job *j = ctx;
    (void)thread;
    for (int64_t r = part * ROWS; r < part__end(part, ROWS, j->n); r++) {
        const float *x = j->x + r * j->ldx, *dy = j->dy + r * j->lddy;
        float s = j->rstd_in[r];
        float c = j->v->dot3(dy, x, j->w, j->dim) * s * s * s / (float)j->dim;
        j->v->norm_back(j->dx + r * j->lddx, dy, j->w, x, s, c, j->add_dx, j->dim);
    }
    return ERR_OK;
}

static err weight_part(void *ctx, int64_t part, int thread) {
    const norm_job *j = ctx;
    (void)thread;
    int64_t c0 = part * COLS, cols = part__end(part, COLS, j->dim) - c0;
    float total[COLS] = {0}, block[COLS];
    for (int64_t r0 = 0; r0 < j->n; r0 += SUM_ROWS) {
        int64_t r1 = r0 + SUM_ROWS < j->n ? r0 + SUM_ROWS : j->n;
        memset(block, 0, sizeof block);
        for (int64_t r = r0; r < r1; r++)
            j->v->muladd(block, j->dy + r * j->lddy + c0, j->x + r * j->ldx + c0, j->rstd_in[r],
                         cols);
        j->v->add(total, block, cols);
    }
    j->v->add(j->dw + c0, total, cols);
    return ERR_OK;
}

err nn_rmsnorm_back(dev *d, const float *dy, int64_t lddy, const float *x, int64_t ldx,
                    const float *w, const float *rstd, int64_t n, int64_t dim, float *dx,
                    int64_t lddx, int add_dx, float *dw) {
    TRY(check("RMSNorm backward", n, dim, ldx < lddy ? ldx : lddy));
    norm_job j = {.v = lanes__of(d), .x = x, .dy = dy, .w = w, .dx = dx, .dw = dw, .ldx = ldx};
    j.lddy = lddy;
    j.lddx = lddx;
    j.n = n;
    j.dim = dim;
    j.rstd_in = rstd;
    j.add_dx = add_dx;
    /* dw first: dx may be written over dy. */
    if (dw) TRY(part__run(d, part__count(dim, COLS), n * dim, weight_part, &j));
    if (dx) TRY(part__run(d, part__count(n, ROWS), n * dim, back_part, &j));
    return ERR_OK;
}
