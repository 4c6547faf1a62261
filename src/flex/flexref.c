/* The definition: softmax attention cell by cell in double, and its gradient.
 *
 * One loop per index, no tiles, no tricks: this is what every other form is compared with and what
 * PACELINE_REFERENCE=1 runs. Deliberately slow (the mask is evaluated per cell) and single-threaded. */
#include "flex/flexref.h"
#include "flex/flex_private.h"
#include <math.h>

static double factor(const flex_problem *p) {
    return p->scale != 0.0f || p->zero_scale ? (double)p->scale : 1.0 / sqrt((double)p->dim);
}

/* s[j] = scale * q·k and seen[j] for one query row; returns the maximum over visible keys, -inf when there is none. */
static double score_row(const flex_problem *p, flexref_data *x, int64_t b, int64_t h, int64_t i,
                        double *s, char *seen) {
    int64_t S = p->kv_len, D = p->dim, g = p->q_heads / p->kv_heads;
    const double *q = x->q + ((b * p->q_heads + h) * p->q_len + i) * D; /* [D] */
    const double *k = x->k + (b * p->kv_heads + h / g) * S * D;         /* [S, D] */
    double scale = factor(p), top = -INFINITY;
    for (int64_t j = 0; j < S; j++) {
        int flag = 0;
        seen[j] = (char)(!p->mask || expr_eval_mask(p->mask, p->env, b, h, i, j, &flag));
        if (flag && !x->left) {
            x->left = 1;
            x->left_cell[0] = b, x->left_cell[1] = h, x->left_cell[2] = i, x->left_cell[3] = j;
        }
        if (!seen[j]) continue;
        double dot = 0.0;
        for (int64_t d = 0; d < D; d++) dot += q[d] * k[j * D + d];
        s[j] = scale * dot;
        if (s[j] > top) top = s[j];
    }
    return top;
}

static void forward_row(const flex_problem *p, flexref_data *x, int64_t b, int64_t h, int64_t i,
                        double *s, char *seen) {
    int64_t S = p->kv_len, E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i;
    const double *v =
        x->v + (b * p->kv_heads + h / (p->q_heads / p->kv_heads)) * S * E; /* [S, E] */
    double *o = x->o + row * E, sum = 0.0, top = score_row(p, x, b, h, i, s, seen);
    int any = 0;
    for (int64_t d = 0; d < E; d++) o[d] = 0.0;
    for (int64_t j = 0; j < S; j++) {
        if (!seen[j]) continue;
        double w = exp(s[j] - top);
        any = 1;
        sum += w;
        for (int64_t d = 0; d < E; d++) o[d] += w * v[j * E + d];
    }
    x->lse[row] = any ? top + log(sum) : -INFINITY;
    for (int64_t d = 0; any && d < E; d++) o[d] /= sum;
}

static void backward_row(const flex_problem *p, flexref_data *x, int64_t b, int64_t h, int64_t i,
                         double *s, char *seen) {
    int64_t S = p->kv_len, D = p->dim, E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i;
    int64_t kv = b * p->kv_heads + h / (p->q_heads / p->kv_heads);
    double scale = factor(p);
    const double *q = x->q + row * D, *go = x->d_o + row * E, *o = x->o + row * E;
    double delta = x->d_lse ? -x->d_lse[row] : 0.0;
    for (int64_t d = 0; d < E; d++) delta += go[d] * o[d];
    (void)score_row(p, x, b, h, i, s, seen);
    for (int64_t j = 0; j < S; j++) {
        if (!seen[j]) continue;
        const double *k = x->k + (kv * S + j) * D, *v = x->v + (kv * S + j) * E;
        double w = exp(s[j] - x->lse[row]), dp = 0.0;
        for (int64_t d = 0; d < E; d++) {
            dp += go[d] * v[d];
            x->dv[(kv * S + j) * E + d] += w * go[d];
        }
        double ds = scale * w * (dp - delta);
        for (int64_t d = 0; d < D; d++) {
            x->dq[row * D + d] += ds * k[d];
            x->dk[(kv * S + j) * D + d] += ds * q[d];
        }
    }
}

typedef void (*row_fn)(const flex_problem *, flexref_data *, int64_t, int64_t, int64_t, double *,
                       char *);

static err each_row(const flex_problem *p, flexref_data *x, row_fn fn) {
    double *s;
    char *seen = NULL;
    err e = ERR_OK;
    TRY(mem_new((size_t)p->kv_len + 1, sizeof(double), &s));
    TRY_GOTO(mem_new((size_t)p->kv_len + 1, 1, &seen), out);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->q_heads; h++) {
            for (int64_t i = 0; i < p->q_len; i++) fn(p, x, b, h, i, s, seen);
        }
    }
out:
    mem_free(s);
    mem_free(seen);
    return e;
}

err flexref_forward(const flex_problem *p, flexref_data *x) {
    x->left = 0;
    return each_row(p, x, forward_row);
}

err flexref_backward(const flex_problem *p, flexref_data *x) {
    int64_t nq = p->batch * p->q_heads * p->q_len, nk = p->batch * p->kv_heads * p->kv_len;
    x->left = 0;
    for (int64_t i = 0; i < nq * p->dim; i++) x->dq[i] = 0.0;
    for (int64_t i = 0; i < nk * p->dim; i++) x->dk[i] = 0.0;
    for (int64_t i = 0; i < nk * p->v_dim; i++) x->dv[i] = 0.0;
    return each_row(p, x, backward_row);
}

/* ---- strided views in and out ---- */

static void gather(const flex_view *v, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                   double *dst) {
    float f;
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t l = 0; l < len; l++) {
                const char *row = flex__at(v, b, h, l);
                for (int64_t d = 0; d < dim; d++) {
                    dtype_to_f32(v->type, row + (size_t)d * dtype_size(v->type), &f, 1);
                    *dst++ = (double)f;
                }
            }
        }
    }
}

static void scatter(const double *src, int64_t batch, int64_t heads, int64_t len, int64_t dim,
                    flex_out *o) {
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t l = 0; l < len; l++) {
                float *row = o->data + b * o->sb + h * o->sh + l * o->sl;
                for (int64_t d = 0; d < dim; d++) row[d] = (float)*src++;
            }
        }
    }
}

/* Carves one heap block into the double copies of inputs; outputs follow for the direction asked for. */
static err widen_inputs(const flex_problem *p, const flex_io *io, int backward, flexref_data *x,
                        double **block) {
    size_t rq = (size_t)(p->batch * p->q_heads * p->q_len),
           rk = (size_t)(p->batch * p->kv_heads * p->kv_len);
    size_t D = (size_t)p->dim, E = (size_t)p->v_dim;
    size_t need =
        rq * (D + E + 1) + rk * (D + E) + (backward ? rq * (D + E + 1) + rk * (D + E) : 0);
    double *at;
    TRY(mem_new(need + 1, sizeof(double), &at));
    *block = at;
    double *q = at, *k = q + rq * D, *v = k + rk * D;
    gather(&io->q, p->batch, p->q_heads, p->q_len, p->dim, q);
    gather(&io->k, p->batch, p->kv_heads, p->kv_len, p->dim, k);
    gather(&io->v, p->batch, p->kv_heads, p->kv_len, p->v_dim, v);
    *x = (flexref_data){.q = q, .k = k, .v = v, .o = v + rk * E};
    x->lse = x->o + rq * E;
    if (!backward) return ERR_OK;
    double *d_o = x->lse + rq, *d_lse = d_o + rq * E;
    flex_view o = {DT_F32, io->o.data, io->o.sb, io->o.sh, io->o.sl};
    gather(&o, p->batch, p->q_heads, p->q_len, p->v_dim, x->o);
    gather(&io->d_o, p->batch, p->q_heads, p->q_len, p->v_dim, d_o);
    for (size_t i = 0; i < rq; i++) {
        x->lse[i] = (double)io->lse[i];
        if (io->d_lse) d_lse[i] = (double)io->d_lse[i];
    }
    x->d_o = d_o;
    x->d_lse = io->d_lse ? d_lse : NULL;
    x->dq = d_lse + rq;
    x->dk = x->dq + rq * D;
    x->dv = x->dk + rk * D;
    return ERR_OK;
}

static void report_left(const flexref_data *x, flex_io *io) {
    if (!x->left) return;
    if (io->left) *io->left = 1;
    for (int i = 0; i < 4; i++) io->left_cell[i] = x->left_cell[i];
}

err flex_reference_forward(const flex_problem *p, flex_io *io) {
    flexref_data x;
    double *block = NULL;
    TRY(flex__check_problem(p));
    TRY(flex__check_io(p, io, 0));
    TRY(widen_inputs(p, io, 0, &x, &block));
    err e = flexref_forward(p, &x);
    if (!e) {
        scatter(x.o, p->batch, p->q_heads, p->q_len, p->v_dim, &io->o);
        for (int64_t i = 0; io->lse && i < p->batch * p->q_heads * p->q_len; i++)
            io->lse[i] = (float)x.lse[i];
        report_left(&x, io);
    }
    mem_free(block);
    return e;
}

err flex_reference_backward(const flex_problem *p, flex_io *io) {
    flexref_data x;
    double *block = NULL;
    TRY(flex__check_problem(p));
    TRY(flex__check_io(p, io, 1));
    TRY(widen_inputs(p, io, 1, &x, &block));
    err e = flexref_backward(p, &x);
    if (!e) {
        scatter(x.dq, p->batch, p->q_heads, p->q_len, p->dim, &io->dq);
        scatter(x.dk, p->batch, p->kv_heads, p->kv_len, p->dim, &io->dk);
        scatter(x.dv, p->batch, p->kv_heads, p->kv_len, p->v_dim, &io->dv);
        report_left(&x, io);
    }
    mem_free(block);
    return e;
}

void flex_merge(int n, const float *const *o, const float *lse, int64_t dv, float *out,
                float *out_lse) {
    float top = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (lse[i] > top || lse[i] != lse[i]) top = lse[i];
        if (top != top) break; /* a NaN part makes the row NaN */
    }
    for (int64_t d = 0; d < dv; d++) out[d] = 0.0f;
    *out_lse = -INFINITY;
    if (top == -INFINITY) return;
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += exp((double)lse[i] - (double)top);
    for (int64_t d = 0; d < dv; d++) {
        double acc = 0.0;
        for (int i = 0; i < n; i++) {
            double w = exp((double)lse[i] - (double)top);
            if (w != 0.0) acc += w * (double)o[i][d]; /* an empty part may hold anything */
        }
        out[d] = (float)(acc / sum);
    }
    *out_lse = (float)((double)top + log(sum));
}
