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

/* What a walk over rows has at hand. */
typedef struct walk {
    const flex_problem *p;
    flexref_data *x;
    expr_grad *grad;        /* NULL: no score */
    double *raw, *s, *site; /* [S] scaled logits and scores; [sites] derivatives */
    int64_t *place;         /* [sites] */
    char *seen;             /* [S] */
    flex__left bad;         /* the first visible score that is NaN or +inf */
    flex__left steep;       /* the first one through which no finite gradient passes */
} walk;

static void note_left(flexref_data *x, int flag, const int64_t cell[4]) {
    if (!flag || x->left) return;
    x->left = 1;
    for (int i = 0; i < 4; i++) x->left_cell[i] = cell[i];
}

/* raw[j] = scale * q·k, s[j] its score and seen[j] for one query row; returns the maximum over visible keys, -inf when
 * there is none. */
static double score_row(walk *w, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = w->p;
    int64_t S = p->kv_len, D = p->dim, g = p->q_heads / p->kv_heads;
    const double *q = w->x->q + ((b * p->q_heads + h) * p->q_len + i) * D; /* [D] */
    const double *k = w->x->k + (b * p->kv_heads + h / g) * S * D;         /* [S, D] */
    double scale = factor(p), top = -INFINITY;
    for (int64_t j = 0; j < S; j++) {
        const int64_t cell[4] = {b, h, i, j};
        int flag = 0;
        w->seen[j] = (char)(!p->mask || expr_eval_mask(p->mask, p->env, b, h, i, j, &flag));
        note_left(w->x, flag, cell);
        if (!w->seen[j]) continue;
        double dot = 0.0;
        for (int64_t d = 0; d < D; d++) dot += q[d] * k[j * D + d];
        w->raw[j] = w->s[j] = scale * dot;
        if (w->grad) {
            flag = 0;
            w->s[j] = expr_grad_eval(w->grad, p->score_env, b, h, i, j, w->raw[j], NULL, NULL, NULL,
                                     &flag);
            note_left(w->x, flag, cell);
            if (!((float)w->s[j] < INFINITY)) /* as a float: what scores are */
                flex__report(&w->bad, cell, (float)w->s[j], (float)w->raw[j]);
        }
        if (w->s[j] > top) top = w->s[j];
    }
    return top;
}

static void forward_row(walk *w, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = w->p;
    int64_t S = p->kv_len, E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i;
    const double *v =
        w->x->v + (b * p->kv_heads + h / (p->q_heads / p->kv_heads)) * S * E; /* [S, E] */
    double *o = w->x->o + row * E, sum, top = score_row(w, b, h, i);
    double sink = p->sinks ? (double)p->sinks[h] : -INFINITY;
    if (sink > top) top = sink;
    if (top == -INFINITY) top = 0.0; /* nothing, or scores of -inf: weights of 0 */
    for (int64_t d = 0; d < E; d++) o[d] = 0.0;
    sum = exp(sink - top);
    for (int64_t j = 0; j < S; j++) {
        if (!w->seen[j]) continue;
        double weight = exp(w->s[j] - top);
        sum += weight;
        for (int64_t d = 0; d < E; d++) o[d] += weight * v[j * E + d];
    }
    w->x->lse[row] = sum == 0.0 ? -INFINITY : top + log(sum);
    for (int64_t d = 0; sum != 0.0 && d < E; d++) o[d] /= sum;
}

/* The gradient by one score, on to the logit and the captured floats; returns the gradient by q·k. */
static double through_score(walk *w, int64_t b, int64_t h, int64_t i, int64_t j, double ds) {
    double slope = 1.0, scale = factor(w->p);
    if (!w->grad || ds == 0.0) return scale * ds; /* nothing in, nothing out, whatever the slope */
    (void)expr_grad_eval(w->grad, w->p->score_env, b, h, i, j, w->raw[j], &slope, w->site, w->place,
                         NULL);
    int finite = isfinite((float)(scale * ds * slope));
    for (int k = 0; k < expr_grad_sites(w->grad); k++) {
        if (w->place[k] < 0) continue;
        finite &= isfinite((float)(ds * w->site[k]));
        w->x->d_capture[expr_grad_capture(w->grad, k)][w->place[k]] += ds * w->site[k];
    }
    if (!finite) flex__report(&w->steep, (const int64_t[4]){b, h, i, j}, NAN, (float)w->raw[j]);
    return scale * ds * slope;
}

static void backward_row(walk *w, int64_t b, int64_t h, int64_t i) {
    const flex_problem *p = w->p;
    flexref_data *x = w->x;
    int64_t S = p->kv_len, D = p->dim, E = p->v_dim, row = (b * p->q_heads + h) * p->q_len + i;
    int64_t kv = b * p->kv_heads + h / (p->q_heads / p->kv_heads);
    const double *q = x->q + row * D, *go = x->d_o + row * E, *o = x->o + row * E;
    double delta = x->d_lse ? -x->d_lse[row] : 0.0;
    for (int64_t d = 0; d < E; d++) delta += go[d] * o[d];
    (void)score_row(w, b, h, i);
    if (x->lse[row] == -INFINITY) return;
    if (p->sinks) x->d_sinks[h] -= exp((double)p->sinks[h] - x->lse[row]) * delta;
    for (int64_t j = 0; j < S; j++) {
        if (!w->seen[j]) continue;
        const double *k = x->k + (kv * S + j) * D, *v = x->v + (kv * S + j) * E;
        double weight = exp(w->s[j] - x->lse[row]), dp = 0.0;
        for (int64_t d = 0; d < E; d++) {
            dp += go[d] * v[d];
            x->dv[(kv * S + j) * E + d] += weight * go[d];
        }
        double ds = through_score(w, b, h, i, j, weight * (dp - delta));
        for (int64_t d = 0; d < D; d++) {
            x->dq[row * D + d] += ds * k[d];
            x->dk[(kv * S + j) * D + d] += ds * q[d];
        }
    }
}

typedef void (*row_fn)(walk *w, int64_t b, int64_t h, int64_t i);

static err prepare(walk *w, arena *a) {
    const flex_problem *p = w->p;
    size_t row = (size_t)p->kv_len + 1, sites = 1;
    if (p->score) {
        TRY(expr_grad_create(&w->grad, p->score, p->score_grads, a));
        sites += (size_t)expr_grad_sites(w->grad);
    }
    TRY(arena_alloc(a, row, sizeof(double), &w->raw));
    TRY(arena_alloc(a, row, sizeof(double), &w->s));
    TRY(arena_alloc(a, row, 1, &w->seen));
    TRY(arena_alloc(a, sites, sizeof(double), &w->site));
    return arena_alloc(a, sites, sizeof(int64_t), &w->place);
}

static err each_row(const flex_problem *p, flexref_data *x, row_fn fn) {
    walk w = {.p = p,
              .x = x,
              .bad.lock = PTHREAD_MUTEX_INITIALIZER,
              .steep.lock = PTHREAD_MUTEX_INITIALIZER};
    arena *a;
    err e = ERR_OK;
    TRY(flex__check_sinks(p));
    TRY(arena_create(&a, "definition", 0));
    TRY_GOTO(prepare(&w, a), out);
    x->left = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->q_heads; h++) {
            for (int64_t i = 0; i < p->q_len; i++) fn(&w, b, h, i);
        }
    }
    e = flex__scores_tell(&w.bad, &w.steep);
out:
    arena_destroy(a);
    return e;
}

err flexref_forward(const flex_problem *p, flexref_data *x) { return each_row(p, x, forward_row); }

static int64_t capture_elements(const flex_problem *p, int c) {
    return expr_value_count(&p->score_env->values[c], expr_capture(p->score, c)->ndim);
}

static int is_wanted(const flex_problem *p, int c) { return p->score && (p->score_grads >> c & 1); }

err flexref_backward(const flex_problem *p, flexref_data *x) {
    int64_t nq = p->batch * p->q_heads * p->q_len, nk = p->batch * p->kv_heads * p->kv_len;
    for (int64_t i = 0; i < nq * p->dim; i++) x->dq[i] = 0.0;
    for (int64_t i = 0; i < nk * p->dim; i++) x->dk[i] = 0.0;
    for (int64_t i = 0; i < nk * p->v_dim; i++) x->dv[i] = 0.0;
    for (int64_t h = 0; p->sinks && h < p->q_heads; h++) x->d_sinks[h] = 0.0;
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) {
        for (int64_t i = 0; is_wanted(p, c) && i < capture_elements(p, c); i++)
            x->d_capture[c][i] = 0.0;
    }
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

/* Double sums for captures and sinks, in one block. */
static err widen_learned(const flex_problem *p, flexref_data *x, double **block) {
    int64_t n = p->sinks ? p->q_heads : 0;
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) n += is_wanted(p, c) ? capture_elements(p, c) : 0;
    TRY(mem_new((size_t)n + 1, sizeof(double), block));
    double *at = *block;
    x->d_sinks = at;
    at += p->sinks ? p->q_heads : 0;
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) {
        if (!is_wanted(p, c)) continue;
        x->d_capture[c] = at;
        at += capture_elements(p, c);
    }
    return ERR_OK;
}

static void round_learned(const flex_problem *p, const flexref_data *x, flex_io *io) {
    for (int64_t h = 0; p->sinks && h < p->q_heads; h++) io->d_sinks[h] = (float)x->d_sinks[h];
    for (int c = 0; c < EXPR_MAX_CAPTURES; c++) {
        for (int64_t i = 0; is_wanted(p, c) && i < capture_elements(p, c); i++)
            io->d_capture[c][i] = (float)x->d_capture[c][i];
    }
}

err flex_reference_backward(const flex_problem *p, flex_io *io) {
    flexref_data x;
    double *block = NULL, *learned = NULL;
    err e = ERR_OK;
    TRY(flex__check_problem(p));
    TRY(flex__check_io(p, io, 1));
    TRY(widen_inputs(p, io, 1, &x, &block));
    TRY_GOTO(widen_learned(p, &x, &learned), done);
    TRY_GOTO(flexref_backward(p, &x), done);
    round_learned(p, &x, io);
    scatter(x.dq, p->batch, p->q_heads, p->q_len, p->dim, &io->dq);
    scatter(x.dk, p->batch, p->kv_heads, p->kv_len, p->dim, &io->dk);
    scatter(x.dv, p->batch, p->kv_heads, p->kv_len, p->v_dim, &io->dv);
    report_left(&x, io);
done:
    mem_free(block);
    mem_free(learned);
    return e;
}

enum { MERGE_AT_ONCE = 64 };

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
    for (int64_t d0 = 0; d0 < dv; d0 += MERGE_AT_ONCE) {
        double acc[MERGE_AT_ONCE] = {0};
        int64_t width = dv - d0 < MERGE_AT_ONCE ? dv - d0 : MERGE_AT_ONCE;
        for (int i = 0; i < n; i++) {
            double w = exp((double)lse[i] - (double)top);
            if (w == 0.0) continue; /* an empty part may hold anything */
            for (int64_t d = 0; d < width; d++) acc[d] += w * (double)o[i][d0 + d];
        }
        for (int64_t d = 0; d < width; d++) out[d0 + d] = (float)(acc[d] / sum);
    }
    *out_lse = (float)((double)top + log(sum));
}
