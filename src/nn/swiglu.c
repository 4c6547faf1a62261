/* SwiGLU, silu(g) * u, and element-wise addition: forward and backward over fixed blocks of elements.
 *
 * silu(g) = g * sigmoid(g); its derivative is sigmoid(g) * (1 + g * (1 - sigmoid(g))). Past |g| = 87 the exponential is
 * clamped, where silu is 0 or g to the last bit that counts. dg may be written over g, du over u, either over dy. */
#include "nn/lanes.h"
#include "nn/nn.h"
#include "nn/part.h"

enum { BLOCK = 4096 };

typedef struct wise_job {
    const lanes *v;
    const float *g, *u, *dy;
    float *y, *dg, *du;
    int64_t n;
} wise_job;

static err swiglu_part(void *ctx, int64_t part, int thread) {
    const wise_job *j = ctx;
    (void)thread;
    int64_t i = part * BLOCK, n = part__end(part, BLOCK, j->n) - i;
    j->v->silu_mul(j->y + i, j->g + i, j->u + i, n);
    return ERR_OK;
}

err nn_swiglu(dev *d, const float *g, const float *u, int64_t n, float *y) {
    wise_job j = {.v = lanes__of(d), .g = g, .u = u, .y = y, .n = n};
    return part__run(d, part__count(n, BLOCK), n, swiglu_part, &j);
}

typedef struct rows_job {
    const lanes *v;
    const float *gu;
    float *y;
    int64_t n, width;
} rows_job;

static err rows_part(void *ctx, int64_t r, int thread) {
    const rows_job *j = ctx;
    (void)thread;
    const float *g = j->gu + 2 * r * j->width;
    j->v->silu_mul(j->y + r * j->width, g, g + j->width, j->width);
    return ERR_OK;
}

err nn_swiglu_rows(dev *d, const float *gu, int64_t n, int64_t width, float *y) {
    rows_job j = {.v = lanes__of(d), .gu = gu, .y = y, .n = n, .width = width};
    return part__run(d, n, n * width, rows_part, &j);
}

static err swiglu_back_part(void *ctx, int64_t part, int thread) {
    const wise_job *j = ctx;
    (void)thread;
    int64_t i = part * BLOCK, n = part__end(part, BLOCK, j->n) - i;
    j->v->silu_back(j->dg + i, j->du + i, j->dy + i, j->g + i, j->u + i, n);
    return ERR_OK;
}

err nn_swiglu_back(dev *d, const float *dy, const float *g, const float *u, int64_t n, float *dg,
                   float *du) {
    wise_job j = {.v = lanes__of(d), .dy = dy, .g = g, .u = u, .dg = dg, .du = du, .n = n};
    return part__run(d, part__count(n, BLOCK), n, swiglu_back_part, &j);
}

static err add_part(void *ctx, int64_t part, int thread) {
    const wise_job *j = ctx;
    (void)thread;
    int64_t i = part * BLOCK, n = part__end(part, BLOCK, j->n) - i;
    j->v->add(j->y + i, j->u + i, n);
    return ERR_OK;
}

err nn_add(dev *d, float *y, const float *x, int64_t n) {
    wise_job j = {.v = lanes__of(d), .u = x, .y = y, .n = n};
    return part__run(d, part__count(n, BLOCK), n, add_part, &j);
}
