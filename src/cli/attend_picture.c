/* Weights of one head, streamed by rows into cells of a picture. Dot products are summed in double, so the
 * picture does not depend on the kernel that made o. Colours follow the logarithm: the weights of a long
 * row are small, and a linear scale would show its first rows only. */
#include "cli/attend_picture.h"
#include "cli/mask_picture.h"
#include "report/tile_map.h"
#include <math.h>
#include <string.h>

enum { CHUNK = 1024 };
static const double max_products = 6.9e10; /* about a minute of work */

err attend_picture_check(const flex_problem *p, int64_t head) {
    double products = (double)p->q_len * (double)p->kv_len * (double)p->dim;
    if (p->batch < 1) return err_set(ERR_USAGE, "--png needs a batch of at least 1 to show");
    if (head >= p->q_heads)
        return err_set(ERR_USAGE, "--png-head %lld: there are %lld query heads, counted from 0",
                       (long long)head, (long long)p->q_heads);
    if (products > max_products)
        return err_set(
            ERR_REFUSED,
            "--png: %lld x %lld weights of %lld products each are too many for a picture;"
            " at most %.0f products in all",
            (long long)p->q_len, (long long)p->kv_len, (long long)p->dim, max_products);
    return ERR_OK;
}

static double element(const flex_view *v, int64_t at) {
    return v->type == DT_F32 ? (double)((const float *)v->data)[at]
                             : (double)bf16_to_f32(((const bf16 *)v->data)[at]);
}

typedef struct weights {
    const flex_problem *p;
    const flex_io *io;
    const captures *c, *score;
    int64_t head, kv_head, step, cols;
    double scale;
    double *q, *sum;  /* [dim]; [cols] of the present line of cells */
    int64_t *seen;    /* [cols]: visible cells in sum */
    uint8_t *visible; /* [CHUNK] */
    void *scratch;
} weights;

static void add_cells(weights *w, int64_t row, int64_t from, int64_t n) {
    const flex_view *k = &w->io->k;
    double lse = (double)w->io->lse[w->head * w->p->q_len + row];
    int flag = 0;
    if (w->c->program)
        expr_tile_mask(w->c->program, &w->c->env, 0, w->head, row, 1, from, n, w->visible, n,
                       w->scratch, &flag);
    else
        memset(w->visible, 1, (size_t)n);
    for (int64_t j = 0; j < n; j++) {
        int64_t at = w->kv_head * k->sh + (from + j) * k->sl;
        double dot = 0;
        if (!w->visible[j]) continue;
        for (int64_t d = 0; d < w->p->dim; d++) dot += w->q[d] * element(k, at + d);
        dot *= w->scale;
        if (w->score->program)
            dot = (double)expr_eval_score(w->score->program, &w->score->env, 0, w->head, row,
                                          from + j, (float)dot, &flag);
        w->sum[(from + j) / w->step] += exp(dot - lse);
        w->seen[(from + j) / w->step]++;
    }
}

/* Weights from 1e-4 to 1 by their logarithm; what is smaller has the lowest colour, but not that of hidden cells. */
static uint8_t colour(double weight) {
    double part = weight > 1e-4 ? 1 + log10(weight) / 4 : 0;
    if (part > 1) part = 1;
    return (uint8_t)(TILE_MAP_LOWEST + lround(part * (TILE_MAP_HIGHEST - TILE_MAP_LOWEST)));
}

static void fill(weights *w, uint8_t *cell) {
    const flex_problem *p = w->p;
    for (int64_t top = 0; top < p->q_len; top += w->step, cell += w->cols) {
        memset(w->sum, 0, (size_t)w->cols * sizeof *w->sum);
        memset(w->seen, 0, (size_t)w->cols * sizeof *w->seen);
        for (int64_t row = top; row < top + w->step && row < p->q_len; row++) {
            for (int64_t d = 0; d < p->dim; d++)
                w->q[d] = element(&w->io->q, w->head * w->io->q.sh + row * w->io->q.sl + d);
            for (int64_t j = 0; j < p->kv_len; j += CHUNK)
                add_cells(w, row, j, p->kv_len - j < CHUNK ? p->kv_len - j : CHUNK);
        }
        for (int64_t c = 0; c < w->cols; c++)
            cell[c] = w->seen[c] ? colour(w->sum[c] / (double)w->seen[c]) : TILE_MAP_HIDDEN;
    }
}

static err caption(const weights *w, str *out) {
    char n[2][32];
    TRY(str_printf(out, "attention weights, batch 0, head %lld of %lld\n", (long long)w->head,
                   (long long)w->p->q_heads));
    if (w->c->program) TRY(mask_picture_caption(w->c, out));
    if (w->score->program) {
        TRY(str_printf(out, "score "));
        TRY(mask_picture_caption(w->score, out));
    }
    TRY(str_printf(out, "%s queries x %s keys\n", str_thousands(w->p->q_len, n[0]),
                   str_thousands(w->p->kv_len, n[1])));
    if (w->step == 1) return str_printf(out, "one square is one weight; colours by its logarithm");
    return str_printf(out,
                      "one square is the mean of the visible among %lld x %lld weights; colours by "
                      "its logarithm",
                      (long long)w->step, (long long)w->step);
}

err attend_picture_png(const flex_problem *p, const flex_io *io, const captures *c,
                       const captures *score, int64_t head, const char *path, arena *mem) {
    int64_t most = p->q_len > p->kv_len ? p->q_len : p->kv_len,
            step = most > ATTEND_PICTURE_CELLS
                       ? (most + ATTEND_PICTURE_CELLS - 1) / ATTEND_PICTURE_CELLS
                       : 1;
    int64_t rows = (p->q_len + step - 1) / step, cols = (p->kv_len + step - 1) / step;
    static const tile_map_key hidden = {TILE_MAP_HIDDEN, "hidden"};
    weights w = {
        .p = p, .io = io, .c = c, .score = score, .head = head, .step = step, .cols = cols};
    uint8_t *cell;
    str text = {0};
    err e;
    w.kv_head = head / (p->q_heads / p->kv_heads);
    w.scale = p->scale != 0 || p->zero_scale ? (double)p->scale : 1 / sqrt((double)p->dim);
    TRY(arena_alloc(mem, (size_t)p->dim, sizeof *w.q, &w.q));
    TRY(arena_alloc(mem, (size_t)cols, sizeof *w.sum, &w.sum));
    TRY(arena_alloc(mem, (size_t)cols, sizeof *w.seen, &w.seen));
    TRY(arena_alloc(mem, CHUNK, 1, &w.visible));
    TRY(arena_alloc(mem, (size_t)(rows * cols), 1, &cell));
    if (c->program) TRY(arena_alloc(mem, expr_tile_scratch(c->program, 1, CHUNK), 1, &w.scratch));
    fill(&w, cell);
    e = caption(&w, &text);
    if (!e)
        e = tile_map_png(
            &(tile_map){.caption = text.s,
                        .q_len = p->q_len,
                        .kv_len = p->kv_len,
                        .q_step = step,
                        .kv_step = step,
                        .rows = (int)rows,
                        .cols = (int)cols,
                        .panels = 1,
                        .cell = cell,
                        .key = &hidden,
                        .n_keys = memchr(cell, TILE_MAP_HIDDEN, (size_t)(rows * cols)) ? 1 : 0,
                        .weights = 1,
                        .bar_low = "<= 0.0001",
                        .bar_mid = "0.01",
                        .bar_high = "1"},
            path);
    str_free(&text);
    return e;
}
