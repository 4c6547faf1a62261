/* Layers on the CPU, forward and backward side by side. fp32 activations; rows are the leading dimension.
 *
 * Letters: n rows, H hidden, I MLP width, D head dim, V vocabulary. Every op is parallel over fixed row or column blocks and
 * sums in an order fixed by shapes: bits do not depend on the thread count. Backward functions say for
 * each gradient whether they write (=) or accumulate (+=). Definitions in plain loops: nn_*_ref in tests' reach. */
#ifndef NN_NN_H
#define NN_NN_H
#include "core/arena.h"
#include "dev/dev.h"
#include "dev/packed.h"

/* RMSNorm: y = x * rsqrt(mean(x²) + eps) * w over the last dim (w may be NULL: no weight). In-place y == x allowed in forward.
 * rstd[n] is kept for backward. ldx/ldy: row strides in elements (heads of a fused buffer are normed in place). */
MUST_CHECK err nn_rmsnorm(dev *d, const float *x, int64_t ldx, const float *w, float eps, int64_t n,
                          int64_t dim, float *y, int64_t ldy, float *rstd);
/* dx = (or += when add_dx), dw += (NULL: frozen). x is the forward's input. */
MUST_CHECK err nn_rmsnorm_back(dev *d, const float *dy, int64_t lddy, const float *x, int64_t ldx,
                               const float *w, const float *rstd, int64_t n, int64_t dim, float *dx,
                               int64_t lddx, int add_dx, float *dw);

/* RoPE. Frequencies are made once in double; angle = position * inv_freq, its cosine and sine times mscale, are double too
 * and rounded once. */
typedef enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } rope_kind;
typedef enum rope_pairing {
    ROPE_HALF,
    ROPE_INTERLEAVED
} rope_pairing; /* (i, i+d/2) or (2i, 2i+1) */
typedef struct rope_config {
    rope_kind kind;
    rope_pairing pairing;
    int64_t head_dim, rotary_dim; /* dims rotary_dim.. stay as they are */
    double theta, factor;
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn: 32, 1 */
    double attention_factor;     /* yarn: 0 = 0.1 ln(factor) + 1 */
    int64_t original_length;     /* llama3, yarn */
} rope_config;
MUST_CHECK err nn_rope_check(const rope_config *c);
/* inv_freq[rotary_dim/2], and the magnitude factor. */
MUST_CHECK err nn_rope_freqs(const rope_config *c, double *inv_freq, double *mscale);
typedef struct rope_table {
    rope_config cfg;
    float *cos, *sin;
    int64_t positions;
} rope_table; /* [positions][rotary_dim/2] */
MUST_CHECK err nn_rope_table(rope_table *out, const rope_config *c, int64_t positions, arena *a);
/* Rotates heads heads of x[n][heads][head_dim] (row stride ldx) in place at position[n]. back 1: the transpose (gradient). */
MUST_CHECK err nn_rope(dev *d, const rope_table *t, float *x, int64_t ldx, const int32_t *position,
                       int64_t n, int64_t heads, int back);

/* SwiGLU: y = silu(g) * u, element-wise. back: dg =, du = from dy, g, u. */
MUST_CHECK err nn_swiglu(dev *d, const float *g, const float *u, int64_t n, float *y);
MUST_CHECK err nn_swiglu_back(dev *d, const float *dy, const float *g, const float *u, int64_t n,
                              float *dg, float *du);

/* The same on rows of a fused product: gu[n][2*width] holds gate then up; y[n][width]. */
MUST_CHECK err nn_swiglu_rows(dev *d, const float *gu, int64_t n, int64_t width, float *y);

/* y += x */
MUST_CHECK err nn_add(dev *d, float *y, const float *x, int64_t n);

/* Trainable linear in fp32: W [out, in] row-major. y = x W^T (or += with add_y). */
MUST_CHECK err nn_linear(dev *d, const float *w, int64_t out, int64_t in, const float *x,
                         int64_t ldx, int64_t n, float *y, int64_t ldy, int add_y);
/* dx = dy W (+= with add_dx; NULL: not wanted); dw += dy^T x (NULL: frozen). */
MUST_CHECK err nn_linear_back(dev *d, const float *w, int64_t out, int64_t in, const float *x,
                              int64_t ldx, const float *dy, int64_t lddy, int64_t n, float *dx,
                              int64_t lddx, int add_dx, float *dw);

/* Rows of an embedding held packed. Ids outside [0, w->n) are ERR_RANGE naming the first. */
MUST_CHECK err nn_embed(dev *d, const packed *w, const int32_t *ids, int64_t n, float *y,
                        int64_t ldy);

/* Fused frozen head + cross-entropy + dX, in chunks of rows and vocabulary tiles: logits never exist whole.
 * Row r has label[r] and weight[r] >= 0 (0: row is skipped, its dx is 0 and nll 0).
 * nll[r] = logsumexp(logits) - logits[label]; dx[r] = weight[r] * scale * d nll / d x. correct[r] = 1 when argmax (lowest id) == label.
 * vocab limits the ids that compete (padding rows past it never do). Workspace: nn_head_bytes. */
typedef struct head_args {
    const packed *w; /* [V, H] */
    int64_t vocab;   /* 0: w->n */
    int64_t n;
    const float *x;
    int64_t ldx;          /* [n, H] */
    const int32_t *label; /* [n] */
    const float *weight;  /* [n] */
    float scale;
    float *nll; /* [n] */
    float *dx;
    int64_t lddx;     /* [n, H] or NULL: forward only */
    uint8_t *correct; /* [n] or NULL */
    void *workspace;  /* nn_head_bytes(w, rows), 64-aligned */
} head_args;
size_t nn_head_bytes(const dev *d, const packed *w, int64_t rows);
MUST_CHECK err nn_head_loss(dev *d, const head_args *h);
/* The only argmax of the project: lowest id wins ties; NaN is ERR_NUMERIC; all -inf is ERR_NUMERIC. */
MUST_CHECK err nn_argmax(const float *logits, int64_t n, int32_t *out);

#endif
