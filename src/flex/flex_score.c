/* Scores on tiles: the engine row by row between the products, and reports of faults.
 *
 * Only the real rows and lanes of a tile go through the expression; padding keeps its raw products, which nothing
 * reads. In backward a row's score gives its weights and the gradient by the score at once, so the values of the row
 * are still in place when the derivative is applied. A fault is looked for cell by cell only in rows that have one. */
#include "flex/flex_private.h"
#include <math.h>
#include <string.h>

static int is_before(const int64_t a[4], const int64_t b[4]) {
    for (int i = 0; i < 4; i++) {
        if (a[i] != b[i]) return a[i] < b[i];
    }
    return 0;
}

int flex__is_first(flex__left *f, const int64_t cell[4]) {
    pthread_mutex_lock(&f->lock);
    int first = !f->found || is_before(cell, f->cell);
    pthread_mutex_unlock(&f->lock);
    return first;
}

void flex__report(flex__left *f, const int64_t cell[4], float value, float logit) {
    pthread_mutex_lock(&f->lock);
    if (!f->found || is_before(cell, f->cell)) {
        memcpy(f->cell, cell, sizeof f->cell);
        f->found = 1;
        f->value = value;
        f->logit = logit;
    }
    pthread_mutex_unlock(&f->lock);
}

void flex__scores_open(flex__scores *f, expr_score_mode mode, void *scratch) {
    const flex_problem *q = &f->p->p;
    int64_t rows = f->q_lanes ? q->tile_kv : q->tile_q, lanes = f->q_lanes ? q->tile_q : q->tile_kv;
    f->x = expr_score_open(f->p->grad, q->score_env, f->q_lanes, mode, rows, lanes, scratch);
}

/* ---- faults ---- */

static void cell_of(const flex__scores *f, const flex__score_tile *t, int64_t i, int64_t lane,
                    int64_t cell[4]) {
    cell[0] = t->at.b;
    cell[1] = t->at.h;
    cell[2] = t->at.q + (f->q_lanes ? lane : i);
    cell[3] = t->at.kv + (f->q_lanes ? i : lane);
}

static int is_fault(const flex__scores *f, int kind, const int64_t cell[4], float value,
                    float logit) {
    int flag = 0;
    if (kind == EXPR_SCORE_BAD) return !(value < INFINITY);
    (void)expr_eval_score(f->p->p.score, f->p->p.score_env, cell[0], cell[1], cell[2], cell[3],
                          logit, &flag);
    return flag;
}

/* The row's first cell with this fault, unless an earlier one is known. */
static void find_fault(flex__scores *f, const flex__score_tile *t, int64_t i, int kind,
                       flex__left *to) {
    const float *s = t->s + i * t->ld;
    const uint8_t *mask = t->mask ? t->mask + i * t->ldm : NULL;
    for (int64_t lane = 0; lane < t->at.lanes; lane++) {
        int64_t cell[4];
        cell_of(f, t, i, lane, cell);
        if (mask && !mask[lane]) continue;
        if (!flex__is_first(to, cell)) return;
        float logit = expr_score_logit(f->x, lane);
        if (!is_fault(f, kind, cell, s[lane], logit)) continue;
        flex__report(to, cell, s[lane], logit);
        return;
    }
}

/* Which lane's contribution to a captured value it was: the first one whose slope is not finite. */
static void find_steep_site(flex__scores *f, const flex__score_tile *t, int64_t i) {
    enum { MOST = 256 };
    double site[MOST];
    int n = expr_grad_sites(f->p->grad);
    int64_t cell[4];
    for (int64_t lane = 0; n <= MOST && lane < t->at.lanes; lane++) {
        float logit = expr_score_logit(f->x, lane);
        if (t->mask && !t->mask[i * t->ldm + lane]) continue;
        cell_of(f, t, i, lane, cell);
        (void)expr_grad_eval(f->p->grad, f->p->p.score_env, cell[0], cell[1], cell[2], cell[3],
                             (double)logit, NULL, site, NULL, NULL);
        for (int k = 0; k < n; k++) {
            if (isfinite((float)site[k])) continue;
            flex__report(f->steep, cell, NAN, logit);
            return;
        }
    }
    cell_of(f, t, i, 0, cell); /* a product that overflows: the row is as near as it gets */
    flex__report(f->steep, cell, NAN, expr_score_logit(f->x, 0));
}

static void find_steep(flex__scores *f, const flex__score_tile *t, int64_t i, const float *g) {
    for (int64_t lane = 0; lane < t->at.lanes; lane++) {
        int64_t cell[4];
        cell_of(f, t, i, lane, cell);
        if (!flex__is_first(f->steep, cell)) return;
        if (isfinite(g[lane])) continue;
        flex__report(f->steep, cell, g[lane], expr_score_logit(f->x, lane));
        return;
    }
    find_steep_site(f, t, i);
}

static void row_forward(flex__scores *f, const flex__score_tile *t, int64_t i) {
    const uint8_t *mask = t->mask ? t->mask + i * t->ldm : NULL;
    int met = expr_score_row(f->x, i, t->s + i * t->ld, f->p->p.scale, mask);
    if (met & EXPR_SCORE_LEFT) find_fault(f, t, i, EXPR_SCORE_LEFT, f->left);
    if (met & EXPR_SCORE_BAD) find_fault(f, t, i, EXPR_SCORE_BAD, f->bad);
}

static void row_backward(flex__scores *f, const flex__score_tile *t, int64_t i, float *g) {
    if (expr_score_row_grad(f->x, i, g, f->p->p.scale) & EXPR_SCORE_BAD) find_steep(f, t, i, g);
}

/* ---- tiles ---- */

void flex__scores_forward(flex__scores *f, const flex__score_tile *t) {
    expr_score_begin(f->x, &t->at, NULL);
    for (int64_t i = 0; i < t->at.rows; i++) row_forward(f, t, i);
}

void flex__scores_grad(flex__scores *f, const flex__score_tile *t, int64_t cols, const float *lse,
                       const float *delta) {
    const tileops *ops = f->p->ops;
    expr_score_begin(f->x, &t->at, f->sums);
    for (int64_t i = 0; i < t->at.rows; i++) {
        /* With queries along columns dS takes the place of s, else of dp: P is still needed there. */
        float *s = t->s + i * t->ld, *dp = t->dp + i * t->ld;
        const int64_t query = f->q_lanes ? 0 : i;
        row_forward(f, t, i);
        const tile_scores row = {.s = s,
                                 .dp = dp,
                                 .ld = t->ld,
                                 .rows = 1,
                                 .cols = cols,
                                 .mask = t->mask ? t->mask + i * t->ldm : NULL,
                                 .ldm = t->ldm,
                                 .scale = 1.0f,
                                 .lse = lse + query,
                                 .delta = delta + query};
        (f->q_lanes ? ops->grad_cols : ops->grad_rows)(&row);
        row_backward(f, t, i, f->q_lanes ? s : dp);
    }
    expr_score_end(f->x);
}

err flex__scores_tell(const flex__left *bad, const flex__left *steep) {
    const int64_t *c = bad->cell;
    if (bad->found)
        return err_set(
            ERR_NUMERIC,
            "attention: the score is %s at b %lld, h %lld, q %lld, kv %lld, the first such visible "
            "cell, where s is %g; change the score there or hide the cell (-inf hides it)",
            bad->value != bad->value ? "NaN" : "+inf", (long long)c[0], (long long)c[1],
            (long long)c[2], (long long)c[3], (double)bad->logit);
    c = steep->cell;
    if (steep->found)
        return err_set(
            ERR_NUMERIC,
            "attention: the gradient through the score is not finite at b %lld, h %lld, q %lld, "
            "kv %lld, the first such visible cell, where s is %g; the score's slope has no value there",
            (long long)c[0], (long long)c[1], (long long)c[2], (long long)c[3],
            (double)steep->logit);
    return ERR_OK;
}
