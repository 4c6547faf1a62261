/* The engine over tiles of scores, and the sums for captured floats.
 *
 * A site's elements follow its class: the same for the whole tile, per lane, per row, per diagonal or per cell. The
 * first, second and fourth are summed as vectors over the rows, in fp32 over one tile at most, and added to the
 * caller's sums when the tile ends; the others are added row by row. Every order is fixed by the tile alone. */
#include "expr/expr_score.h"
#include "expr/expr_engine.h"
#include "expr/expr_grad_private.h"
#include <string.h>

typedef struct site_sum {
    float *sum; /* [lanes padded], or [rows + lanes padded] for diagonals; NULL: added row by row */
    int64_t n;  /* of the present tile */
} site_sum;

struct expr_score {
    expr_engine engine;
    const expr_grad *g;
    expr_score_mode mode;
    const expr_score_sums *sums;
    float *s;         /* [padded] */
    float *gradient;  /* [padded] */
    float *products;  /* [padded] */
    uint8_t *visible; /* [padded] */
    site_sum *site;
};

static size_t round_up(size_t n) { return (n + 63) / 64 * 64; }

static void *take(char **at, size_t bytes) {
    void *out = *at;
    *at += round_up(bytes);
    return out;
}

static size_t own_bytes(const expr_grad *g, int64_t rows, int64_t lanes) {
    size_t padded = (size_t)expr_engine__padded(lanes), sites = (size_t)g->n_sites;
    return round_up(sizeof(expr_score)) + 3 * round_up(padded * 4) + round_up(padded) +
           round_up(sites * sizeof(site_sum)) +
           sites * round_up(((size_t)rows + padded) * sizeof(float));
}

size_t expr_score_scratch(const expr_grad *g, int64_t rows, int64_t lanes) {
    return own_bytes(g, rows, lanes) + expr_engine__scratch(&g->prog, rows, lanes);
}

static int is_summed(const expr_engine *x, int load) {
    return x->kind[load] != KIND_ROW && x->kind[load] != KIND_CELL;
}

expr_score *expr_score_open(const expr_grad *g, const expr_env *env, int q_lanes,
                            expr_score_mode mode, int64_t rows, int64_t lanes, void *scratch) {
    char *at = scratch;
    size_t padded = (size_t)expr_engine__padded(lanes);
    expr_score *x = take(&at, sizeof *x);
    int root[2 + 2 * IR_MAX_NODES], n = 0;
    x->g = g;
    x->mode = mode;
    x->s = take(&at, padded * sizeof(float));
    x->gradient = take(&at, padded * sizeof(float));
    x->products = take(&at, padded * sizeof(float));
    x->visible = take(&at, padded);
    x->site = take(&at, (size_t)g->n_sites * sizeof *x->site);
    for (int i = 0; i < g->n_sites; i++)
        x->site[i].sum = take(&at, ((size_t)rows + padded) * sizeof(float));
    root[n++] = g->value;
    if (mode >= EXPR_SCORE_SLOPE) root[n++] = g->d_s;
    for (int i = 0; mode == EXPR_SCORE_CAPTURES && i < g->n_sites; i++) {
        root[n++] = g->site[i].d;
        root[n++] = g->site[i].load;
    }
    expr_engine__open(&x->engine, &g->prog, root, n, env, g->score->lanes, q_lanes, rows, lanes,
                      at);
    return x;
}

void expr_score_begin(expr_score *x, const expr_score_tile *t, const expr_score_sums *sums) {
    expr_engine *e = &x->engine;
    expr_engine__begin(e, t->b, t->h, t->q, t->kv, t->rows, t->lanes);
    x->sums = sums;
    for (int i = 0; x->mode == EXPR_SCORE_CAPTURES && i < x->g->n_sites; i++) {
        site_sum *s = &x->site[i];
        int load = x->g->site[i].load;
        s->n = e->kind[load] == KIND_DIAGONAL ? t->rows - 1 + e->padded : e->padded;
        if (is_summed(e, load)) memset(s->sum, 0, (size_t)s->n * sizeof *s->sum);
    }
}

static void copy_row(const expr_engine *e, int id, float *out) {
    const float *v = e->value[id];
    if (expr_engine__step(e, id))
        memcpy(out, v, (size_t)e->width * sizeof *out);
    else
        for (int64_t i = 0; i < e->width; i++) out[i] = *v;
}

int expr_score_row(expr_score *x, int64_t i, float *s, float scale, const uint8_t *visible) {
    expr_engine *e = &x->engine;
    int met = 0;
    for (int64_t k = 0; k < e->width; k++) x->s[k] = s[k] * scale;
    for (int64_t k = e->width; k < e->padded; k++) x->s[k] = 0.0f;
    expr_engine__row(e, i, x->s);
    if (expr_engine__left(e, i, visible)) met |= EXPR_SCORE_LEFT;
    copy_row(e, x->g->value, s);
    memcpy(x->products, s, (size_t)e->width * sizeof *s); /* padded with zeros, as is visible */
    memset(x->products + e->width, 0, (size_t)(e->padded - e->width) * sizeof *s);
    if (e->width < e->padded && visible) {
        memcpy(x->visible, visible, (size_t)e->width);
        memset(x->visible + e->width, 0, (size_t)(e->padded - e->width));
        visible = x->visible;
    }
    if (e->lanes->is_bad(x->products, visible, e->padded)) met |= EXPR_SCORE_BAD;
    return met;
}

float expr_score_logit(const expr_score *x, int64_t lane) { return x->s[lane]; }

static void add(const expr_score_sums *to, int capture, int64_t at, double v) {
    if (at < 0) return;
    if (to->wide[capture])
        to->wide[capture][at] += v;
    else
        to->narrow[capture][at] += (float)v;
}

/* Where load reads: its elements for the present row (the whole tile unless it differs by row), NULL for a scalar. */
static const int64_t *places(const expr_engine *e, int load) {
    return e->node[load].op == IR_LOAD ? e->load[load].place : NULL;
}

static int collect(expr_score *x, int site, int64_t i) {
    expr_engine *e = &x->engine;
    const expr_grad__site *at = &x->g->site[site];
    const float *d = e->value[at->d];
    int step = expr_engine__step(e, at->d), kind = e->kind[at->load];
    const int64_t *place = places(e, at->load);
    if (is_summed(e, at->load)) {
        int64_t skip = kind == KIND_DIAGONAL ? e->rows - 1 - i : 0;
        return e->lanes->gather(x->site[site].sum + skip, x->gradient, d, step, e->padded);
    }
    memset(x->products, 0, (size_t)e->padded * sizeof(float));
    int bad = e->lanes->gather(x->products, x->gradient, d, step, e->padded);
    if (kind == KIND_ROW) {
        double sum = 0.0;
        for (int64_t k = 0; k < e->width; k++) sum += (double)x->products[k];
        add(x->sums, at->capture, *place, sum);
    } else {
        for (int64_t k = 0; k < e->width; k++)
            add(x->sums, at->capture, place[k], (double)x->products[k]);
    }
    return bad;
}

int expr_score_row_grad(expr_score *x, int64_t i, float *g, float scale) {
    expr_engine *e = &x->engine;
    int bad = 0, d = x->g->d_s;
    memcpy(x->gradient, g, (size_t)e->width * sizeof *g);
    memset(x->gradient + e->width, 0, (size_t)(e->padded - e->width) * sizeof *g);
    for (int k = 0; x->mode == EXPR_SCORE_CAPTURES && k < x->g->n_sites; k++)
        bad |= collect(x, k, i);
    bad |= e->lanes->chain(x->gradient, e->value[d], expr_engine__step(e, d), scale, e->padded);
    memcpy(g, x->gradient, (size_t)e->width * sizeof *g);
    return bad ? EXPR_SCORE_BAD : 0;
}

static void add_fixed(expr_score *x, int site) {
    const expr_engine *e = &x->engine;
    const expr_grad__site *at = &x->g->site[site];
    const int64_t *place = places(e, at->load);
    double sum = 0.0;
    for (int64_t k = 0; k < e->width; k++) sum += (double)x->site[site].sum[k];
    add(x->sums, at->capture, place ? *place : 0, sum);
}

void expr_score_end(expr_score *x) {
    const expr_engine *e = &x->engine;
    for (int i = 0; x->mode == EXPR_SCORE_CAPTURES && i < x->g->n_sites; i++) {
        const expr_grad__site *at = &x->g->site[i];
        int kind = e->kind[at->load];
        int64_t n = kind == KIND_DIAGONAL ? e->rows - 1 + e->width : e->width;
        if (!is_summed(e, at->load)) continue;
        if (kind == KIND_FIXED) {
            add_fixed(x, i);
            continue;
        }
        const int64_t *place = places(e, at->load);
        for (int64_t k = 0; k < n; k++)
            add(x->sums, at->capture, place[k], (double)x->site[i].sum[k]);
    }
}
