/* Paged decode attention: one task is a block of query rows of one sequence and kv head.
 *
 * Definition, per query row and head: for each split of PAGED_SPLIT keys, s_j is the chain of fused q[d]*k_j[d] over
 * d from 0; p_j = exp(scale*s_j - max of the split); the sum runs over 16 lanes (j mod 16) and a tree; o is the chain
 * of fused p_j*v_j over rising j. Splits are merged left to right, then the extra keys' splits. Rows are computed
 * side by side where they see the same keys, which changes no chain: hidden keys are skipped, never multiplied by 0,
 * so pages may hold anything past what a row sees. */
#include "flex/paged.h"
#include "flex/tileops.h"
#include <math.h>
#include <string.h>

enum { BLOCK_ROWS = 64, BLOCKS = PAGED_SPLIT / PAGED_PAGE };
_Static_assert((int)PAGED_PAGE == (int)TILE_PANEL, "a page is one packed panel");

typedef struct paged_scratch {
    float *q;     /* [M, dim], M = rows of the block * heads of the group, a row's heads together */
    float *panel; /* [dim, 64] keys transposed */
    float *s;     /* [M, PAGED_SPLIT] */
    float *part, *o;  /* [M, dim] of the split, and merged */
    float *max, *sum; /* [M] merged */
    int64_t *lo, *hi; /* [rows] visible keys, within the split */
} paged_scratch;

typedef struct paged_run {
    const paged_args *a;
    const tileops *ops;
    dev *d;
    int64_t group, block; /* query heads per kv head; rows per task */
} paged_run;

/* A stretch of keys: pages, or the extra keys of a draft block. */
typedef struct paged_keys {
    const float *k, *v;   /* of the kv head, at page or block 0 */
    const int32_t *pages; /* NULL: blocks of 64 follow each other */
    int64_t n;
} paged_keys;

static size_t carve(const paged_run *x, char *base, paged_scratch *s) {
    size_t m = (size_t)(x->group * x->block), dim = (size_t)x->a->dim, used = 0;
    const size_t need[] = {m * dim * 4, dim * PAGED_PAGE * 4, m * PAGED_SPLIT * 4,
                           m * dim * 4, m * dim * 4,          m * 4,
                           m * 4,       (size_t)x->block * 8, (size_t)x->block * 8};
    void *at[9];
    for (int i = 0; i < 9; i++) {
        at[i] = base ? base + used : NULL;
        used += (need[i] + 63) / 64 * 64;
    }
    *s = (paged_scratch){at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]};
    return used;
}

static int64_t block_offset(const paged_run *x, const paged_keys *keys, int64_t block) {
    return (keys->pages ? (int64_t)keys->pages[block] : block) * PAGED_PAGE * x->a->kv_heads *
           x->a->dim;
}

/* Scores of keys k0 .. k0+n-1 (one split) for m query vectors: whole blocks of 64 that overlap lo..hi-1. */
static void split_scores(const paged_run *x, const paged_scratch *s, const paged_keys *keys,
                         int64_t k0, int64_t n, int64_t m, int64_t lo, int64_t hi) {
    int64_t dim = x->a->dim, ld = x->a->kv_heads * dim;
    for (int64_t c = lo / PAGED_PAGE * PAGED_PAGE; c < hi; c += PAGED_PAGE) {
        int64_t real = n - c < PAGED_PAGE ? n - c : PAGED_PAGE,
                w = (real + TILE_LANES - 1) / TILE_LANES * TILE_LANES;
        const float *k = keys->k + block_offset(x, keys, (k0 + c) / PAGED_PAGE);
        for (int64_t d = 0; real < w && d < dim; d++)
            memset(s->panel + d * w + real, 0, (size_t)(w - real) * sizeof(float));
        x->ops->transpose(k, ld, real, dim, s->panel, w);
        const tile_mm g = {.m = m,
                           .n = w,
                           .k = dim,
                           .a = s->q,
                           .sam = dim,
                           .sak = 1,
                           .b = s->panel,
                           .ldb = w,
                           .c = s->s + c,
                           .ldc = PAGED_SPLIT};
        x->ops->gemm(&g);
    }
}

/* part[row0 .. row0+m-1] += P V over keys lo..hi-1 of the split. */
static void add_values(const paged_run *x, const paged_scratch *s, const paged_keys *keys,
                       int64_t k0, int64_t row0, int64_t m, int64_t lo, int64_t hi) {
    int64_t dim = x->a->dim, ld = x->a->kv_heads * dim;
    for (int64_t j = lo, next; j < hi; j = next) {
        next = (j / PAGED_PAGE + 1) * PAGED_PAGE;
        if (next > hi) next = hi;
        const float *v =
            keys->v + block_offset(x, keys, (k0 + j) / PAGED_PAGE) + j % PAGED_PAGE * ld;
        const tile_mm g = {.m = m,
                           .n = dim,
                           .k = next - j,
                           .a = s->s + row0 * PAGED_SPLIT + j,
                           .sam = PAGED_SPLIT,
                           .sak = 1,
                           .b = v,
                           .ldb = ld,
                           .c = s->part + row0 * dim,
                           .ldc = dim,
                           .add = 1};
        x->ops->gemm(&g);
    }
}

/* Joins a split's (max, sum, part) to what is merged already. */
static void merge_split(const paged_run *x, const paged_scratch *s, int64_t row, float max,
                        float sum) {
    float w[TILE_LANES], top, unused;
    int64_t dim = x->a->dim;
    if (s->sum[row] == 0.0f) {
        memcpy(s->o + row * dim, s->part + row * dim, (size_t)dim * sizeof(float));
        s->max[row] = max;
        s->sum[row] = sum;
        return;
    }
    for (int i = 0; i < TILE_LANES; i++) w[i] = -INFINITY;
    w[0] = s->max[row], w[1] = max;
    x->ops->softmax_row(w, TILE_LANES, 1.0f, &top, &unused);
    x->ops->blend(s->o + row * dim, s->part + row * dim, dim, w[0], w[1]);
    s->max[row] = top;
    s->sum[row] = fmaf(s->sum[row], w[0], sum * w[1]);
}

/* One split for all rows of the block; lo and hi of each row are set, relative to k0. */
static void one_split(const paged_run *x, const paged_scratch *s, const paged_keys *keys,
                      int64_t k0, int64_t n, int64_t rows) {
    int64_t g = x->group, lo = n, hi = 0, common_lo = 0, common_hi = n;
    for (int64_t r = 0; r < rows; r++) {
        if (s->lo[r] > common_lo) common_lo = s->lo[r];
        if (s->hi[r] < common_hi) common_hi = s->hi[r];
        if (s->lo[r] >= s->hi[r]) continue;
        if (s->lo[r] < lo) lo = s->lo[r];
        if (s->hi[r] > hi) hi = s->hi[r];
    }
    if (lo >= hi) return;
    split_scores(x, s, keys, k0, n, rows * g, lo, hi);
    int64_t from = lo / TILE_LANES * TILE_LANES,
            to = (hi + TILE_LANES - 1) / TILE_LANES * TILE_LANES;
    float max[BLOCK_ROWS], sum[BLOCK_ROWS];
    memset(s->part, 0, (size_t)(rows * g * x->a->dim) * sizeof(float));
    if (common_lo < common_hi)
        lo = common_lo, hi = common_hi;
    else
        lo = hi = 0; /* each row alone */
    for (int64_t base = 0; base < rows * g;
         base += BLOCK_ROWS) { /* more than once only for very wide groups */
        int64_t end = base + BLOCK_ROWS < rows * g ? base + BLOCK_ROWS : rows * g;
        for (int64_t i = base; i < end; i++) {
            float *row = s->s + i * PAGED_SPLIT;
            for (int64_t j = from; j < s->lo[i / g]; j++) row[j] = -INFINITY;
            for (int64_t j = s->hi[i / g] > from ? s->hi[i / g] : from; j < to; j++)
                row[j] = -INFINITY;
            x->ops->softmax_row(row + from, to - from, x->a->scale, &max[i - base], &sum[i - base]);
            if (lo == hi)
                add_values(x, s, keys, k0, i, 1, s->lo[i / g], s->hi[i / g]);
            else
                add_values(x, s, keys, k0, i, 1, s->lo[i / g], lo);
        }
        if (lo < hi) add_values(x, s, keys, k0, base, end - base, lo, hi);
        for (int64_t i = base; i < end; i++) {
            if (lo < hi) add_values(x, s, keys, k0, i, 1, hi, s->hi[i / g]);
            if (sum[i - base] != 0.0f) merge_split(x, s, i, max[i - base], sum[i - base]);
        }
    }
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

static void all_splits(const paged_run *x, const paged_scratch *s, const paged_seq *q, int64_t row0,
                       int64_t rows, const paged_keys *keys, int extra) {
    for (int64_t k0 = 0; k0 < keys->n; k0 += PAGED_SPLIT) {
        int64_t n = keys->n - k0 < PAGED_SPLIT ? keys->n - k0 : PAGED_SPLIT;
        for (int64_t r = 0; r < rows; r++) {
            int64_t i = row0 + r, lo = 0, hi = keys->n;
            if (!extra && q->first >= 0 && q->first + i + 1 < hi) hi = q->first + i + 1;
            if (!extra && q->window > 0) lo = q->window_pos + i - q->window + 1;
            s->lo[r] = clamp(lo - k0, 0, n);
            s->hi[r] = clamp(hi - k0, 0, n);
        }
        one_split(x, s, keys, k0, n, rows);
    }
}

static void run_block(const paged_run *x, const paged_scratch *s, const paged_seq *q,
                      int64_t kv_head, int64_t row0) {
    const paged_args *a = x->a;
    int64_t rows = q->rows - row0 < x->block ? q->rows - row0 : x->block, g = x->group,
            dim = a->dim, at = kv_head * dim;
    for (int64_t r = 0; r < rows; r++)
        memcpy(s->q + r * g * dim, q->q + ((row0 + r) * a->q_heads + kv_head * g) * dim,
               (size_t)(g * dim) * sizeof(float));
    memset(s->sum, 0, (size_t)(rows * g) * sizeof(float));
    memset(s->o, 0, (size_t)(rows * g * dim) * sizeof(float));
    if (q->n_keys > 0) {
        const paged_keys keys = {a->k_pool + at, a->v_pool + at, q->pages, q->n_keys};
        all_splits(x, s, q, row0, rows, &keys, 0);
    }
    if (q->n_extra > 0) {
        const paged_keys keys = {q->extra_k + at, q->extra_v + at, NULL, q->n_extra};
        all_splits(x, s, q, row0, rows, &keys, 1);
    }
    for (int64_t i = 0; i < rows * g; i++) {
        float *o = q->o + ((row0 + i / g) * a->q_heads + kv_head * g + i % g) * dim;
        for (int64_t d = 0; d < dim; d++)
            o[d] = s->sum[i] == 0.0f ? 0.0f : s->o[i * dim + d] / s->sum[i];
    }
}

static int64_t seq_tasks(const paged_run *x, const paged_seq *q) {
    return (q->rows + x->block - 1) / x->block * x->a->kv_heads;
}

static err paged_task(void *ctx, int64_t task, int thread) {
    const paged_run *x = ctx;
    const paged_seq *q = x->a->seqs;
    paged_scratch s;
    for (; task >= seq_tasks(x, q); q++) task -= seq_tasks(x, q);
    (void)carve(x, dev_scratch(x->d, thread), &s);
    run_block(x, &s, q, task % x->a->kv_heads, task / x->a->kv_heads * x->block);
    return ERR_OK;
}

static err check(const paged_args *a) {
    if (a->kv_heads < 1 || a->q_heads < 1 || a->q_heads % a->kv_heads)
        return err_set(ERR_SHAPE,
                       "paged attention: %lld query heads cannot share %lld key/value heads evenly",
                       (long long)a->q_heads, (long long)a->kv_heads);
    if (a->dim < 8 || a->dim > 256 || a->dim % 8)
        return err_set(
            ERR_SHAPE,
            "paged attention: head dimension is %lld; it must be a multiple of 8 from 8 to 256",
            (long long)a->dim);
    for (int64_t i = 0; i < a->n_seqs; i++) {
        const paged_seq *q = &a->seqs[i];
        if (q->rows < 0 || q->n_keys < 0 || q->n_extra < 0)
            return err_set(
                ERR_RANGE,
                "paged attention: sequence %lld has %lld rows, %lld keys and %lld extra keys; none may be negative",
                (long long)i, (long long)q->rows, (long long)q->n_keys, (long long)q->n_extra);
        if ((q->n_keys && (!q->pages || !a->k_pool || !a->v_pool)) ||
            (q->n_extra && (!q->extra_k || !q->extra_v)))
            return err_set(ERR_USAGE,
                           "paged attention: sequence %lld has keys but no memory that holds them",
                           (long long)i);
    }
    return ERR_OK;
}

err paged_attention(dev *d, const paged_args *a) {
    TRY(check(a));
    paged_run x = {.a = a,
                   .ops = tileops_get_exact(dev_get_isa(d)),
                   .d = d,
                   .group = a->q_heads / a->kv_heads};
    paged_scratch s;
    int64_t tasks = 0;
    x.block = x.group < BLOCK_ROWS ? BLOCK_ROWS / x.group : 1;
    for (int64_t i = 0; i < a->n_seqs; i++) tasks += seq_tasks(&x, &a->seqs[i]);
    TRY(dev_scratch_reserve(d, carve(&x, NULL, &s)));
    return pool_run(dev_pool(d), tasks, paged_task, &x);
}
