/* What the files of flex share: the plan's insides, checks, and the walk over tiles.
 *
 * A task is one query tile (or key tile) of one kv head with a few query heads of its group side by side; tasks are
 * fixed by shapes, so results do not depend on threads. Private to src/flex. */
#ifndef FLEX_FLEX_PRIVATE_H
#define FLEX_FLEX_PRIVATE_H
#include "expr/expr_score.h"
#include "flex/flex.h"
#include "flex/tile_bf16.h"
#include "flex/tileops.h"
#include <pthread.h>

/* How backward sums gradients of captured floats (flex_sums.c): slots of row tasks, each with sums of its own. */
typedef struct flex__sums {
    int wanted[EXPR_MAX_CAPTURES], n_wanted; /* captures */
    int64_t elements[EXPR_MAX_CAPTURES];     /* by capture */
    uint8_t direct
        [EXPR_MAX_CAPTURES]; /* by capture: added to the result itself, which no other slot touches */
    int64_t at[EXPR_MAX_CAPTURES]; /* by capture: first double in a slot's sums */
    int64_t slot_elements;         /* doubles of one slot */
    int64_t slots;                 /* row_tasks where nothing is wanted: a slot is a task */
    const int64_t *start, *task;   /* [slots + 1], [row_tasks]; NULL where a slot is a task */
} flex__sums;

struct flex_plan {
    flex_problem p; /* scale, tiles and budget resolved */
    block_mask mask;
    const tileops *ops;
    const tile_bf16 *bf16; /* forward's products, NULL: in fp32 by ops */
    int64_t group;         /* query heads per kv head */
    int64_t share;         /* query heads of a group done side by side in a task */
    int64_t shares;        /* tasks per kv head: ceil(group / share) */
    int64_t row_tasks, col_tasks;
    const int64_t *row_order,
        *all_order; /* longest first; all_order: slots of rows, then slots + columns, for backward */
    const int64_t
        *chunk_start; /* [chunks + 1] in row_order: what a thread takes at once in forward */
    int64_t chunks;
    size_t mask_scratch; /* expr_tile_scratch of the largest tile */
    expr_grad *grad;     /* NULL: no score */
    size_t score_scratch;
    flex__sums sums;
    double visited;
    int reference; /* PACELINE_REFERENCE: runs go through the definition */
};

/* Reports of one kind of fault: the least cell wins, whichever thread finds it. */
typedef struct flex__left {
    pthread_mutex_t lock;
    int found;
    int64_t cell[4];
    float value, logit; /* of a score that is not finite */
} flex__left;
void flex__report(flex__left *f, const int64_t cell[4], float value, float logit);
/* Whether a fault at this cell would be the first one so far. */
int flex__is_first(flex__left *f, const int64_t cell[4]);

MUST_CHECK err flex__check_problem(const flex_problem *p);
MUST_CHECK err flex__check_io(const flex_problem *p, const flex_io *io, int backward);

/* The same runs on a CUDA device, copies included; no workspace is used. */
MUST_CHECK err flex__on_device(const flex_plan *p, dev *d, flex_io *io, int backward);

/* Address of row (b, h, l). */
static inline const void *flex__at(const flex_view *v, int64_t b, int64_t h, int64_t l) {
    return (const char *)v->data +
           (b * v->sb + h * v->sh + l * v->sl) * (int64_t)dtype_size(v->type);
}
static inline float *flex__out_at(const flex_out *o, int64_t b, int64_t h, int64_t l) {
    return o->data + b * o->sb + h * o->sh + l * o->sl;
}
static inline int64_t flex__min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t flex__pad(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Index of the stored (batch, head) entry of a mask for the problem's (b, h). */
static inline int64_t flex__line(const block_mask *m, int64_t b, int64_t h) {
    return (m->batch == 1 ? 0 : b) * m->heads + (m->heads == 1 ? 0 : h);
}

/* A task, decoded: kv head, query heads h0 .. h0+heads-1 of its group, rows start .. start+n-1 of its tile, n padded to 16. */
typedef struct flex__task {
    int64_t b, kv_head, h0, heads, tile, start, n, pad;
} flex__task;
flex__task flex__row_task(const flex_plan *p, int64_t index);
flex__task flex__col_task(const flex_plan *p, int64_t index);

/* Rows of a view, as fp32 [n, dim] with leading dimension *ld: in place when fp32, contiguous and not wanted apart, else
 * copied to buf. */
const float *flex__rows(const tileops *ops, const flex_view *v, int64_t b, int64_t h, int64_t l,
                        int64_t n, int64_t dim, float *buf, int apart);
/* Rows transposed into panels of 64 columns: panel c holds [dim, min(64, pad - 64c)] floats, zeros past n. */
void flex__panels(const tileops *ops, const float *rows, int64_t n, int64_t pad, int64_t dim,
                  float *dst);
/* S[m, ld] = A[m, k] times panels of pad columns. */
void flex__times_panels(const tileops *ops, const float *a, int64_t m, int64_t k,
                        const float *panels, int64_t pad, float *s, int64_t ld);

/* One tile of mask bytes [nq, ld] by the expression, 0 past nk; reports loads that left. */
void flex__mask_tile(const flex_plan *p, int64_t b, int64_t h, int64_t q0, int64_t nq, int64_t k0,
                     int64_t nk, uint8_t *out, int64_t ld, void *scratch, flex__left *left);

/* The tile of a row task against keys k0 .., also transposed: out_t[key, pad], 0 past n. */
void flex__mask_tile_t(const flex_plan *p, const flex__task *t, int64_t k0, int64_t nk,
                       uint8_t *out, uint8_t *out_t, void *scratch, flex__left *left);
/* Columns of a partial tile are done in strips of one head, each with the keys that any of its queries sees: what a mask hides at
 * the edge of a window costs nothing. Leaving hidden keys out changes no bit: their terms are exactly 0. */
enum { FLEX__STRIP = 32 };
typedef struct flex__strip {
    int64_t x, width; /* columns x .. x+width of S^T: 16 or 32 */
    int64_t g, i;     /* head in the task, first query row */
    int64_t lo, hi;   /* keys of the tile; lo = hi: none */
} flex__strip;
/* The strip that begins at column x. mask: [nk, pad], NULL: all of the tile. Backward's column tasks have keys along columns and
 * nk queries along rows. */
flex__strip flex__strip_at(const flex__task *t, int64_t x, int64_t nk, const uint8_t *mask);
/* S[lo..hi, x..x+width] = A[lo..hi, k] times the strip's columns of the panels. S has pad columns, as have the panels. */
void flex__strip_times_panels(const tileops *ops, const flex__strip *c, const float *a, int64_t k,
                              const float *panels, int64_t pad, float *s);
/* C[i.., n] of the strip's head += S^T B[lo..hi, n]. s: [.., cols]; rows: of one head in C. */
void flex__strip_into(const tileops *ops, const flex__strip *c, const float *s, int64_t cols,
                      const float *b, int64_t n, int64_t rows, float *to);
/* Query rows of a row task's heads, side by side (head g at column g*pad), packed. rows: room for [heads*pad, dim]. */
void flex__pack_queries(const flex_plan *p, const flex_view *v, const flex__task *t, int64_t dim,
                        float *rows, float *panels);
void flex__tell_left(const flex__left *left, flex_io *io);

/* A score at work in one thread: lanes along q (rows are keys) or along kv. */
typedef struct flex__scores {
    const flex_plan *p;
    expr_score *x;
    int q_lanes;
    flex__left *left, *bad, *steep; /* loads that left; scores and gradients that are not finite */
    const expr_score_sums *sums;
} flex__scores;
typedef struct flex__score_tile {
    expr_score_tile at;
    float *s, *dp; /* [rows, ld]; dp in backward */
    int64_t ld;
    const uint8_t *mask; /* [rows, ldm], NULL: all visible */
    int64_t ldm;
} flex__score_tile;
void flex__scores_open(flex__scores *f, expr_score_mode mode, void *scratch);
/* s := score(scale * s). */
void flex__scores_forward(flex__scores *f, const flex__score_tile *t);
/* As tileops' grad_cols (q_lanes) or grad_rows, through the score. lse, delta: per query, padded like columns. */
void flex__scores_grad(flex__scores *f, const flex__score_tile *t, int64_t cols, const float *lse,
                       const float *delta);
/* ERR_NUMERIC for what was reported. */
MUST_CHECK err flex__scores_tell(const flex__left *bad, const flex__left *steep);

/* Of the problem: the score with its captures. Of the plan: its program with derivatives; loads proven to leave. */
MUST_CHECK err flex__check_score(const flex_problem *p);
MUST_CHECK err flex__plan_score(flex_plan *p, arena *a);
MUST_CHECK err flex__plan_leaves(const flex_plan *p);
MUST_CHECK err flex__explain_score(const flex_plan *p, str *out);
/* Slots for the wanted captures; after tasks and their costs are known. */
MUST_CHECK err flex__plan_sums(flex_plan *p, const int64_t *row_cost, arena *a);
size_t flex__sums_bytes(const flex_plan *p);
/* Before the run: zeros. Of one slot: where its gradients go. After: the sums over slots, in order. */
MUST_CHECK err flex__sums_clear(const flex_plan *p, dev *d, const flex_io *io, double *slots);
expr_score_sums flex__sums_of(const flex_plan *p, const flex_io *io, double *slots, int64_t slot);
MUST_CHECK err flex__sums_finish(const flex_plan *p, dev *d, const flex_io *io, double *slots);
MUST_CHECK err flex__check_sinks(const flex_problem *p);

/* Forward over the key tiles of a row task through p->bf16 (flex_bf16.c). Buffers as in forward: m and l [N], which begin at -inf
 * and 0; N = heads * pad. */
typedef struct flex__bf16_buffers {
    void *tiles; /* flex__bf16_bytes, 64-aligned */
    float *m, *l, *corr;
    uint8_t *mask; /* [tile_q, tile_kv] */
    void *expr;
    flex__left *left;
} flex__bf16_buffers;
size_t flex__bf16_bytes(const flex_plan *p);
/* Before a run, for each thread's tiles: what is kept in them belongs to other inputs. */
void flex__bf16_begin(const flex_plan *p, void *tiles);
void flex__bf16_walk(const flex_plan *p, const flex_io *io, const flex__task *t, int64_t line,
                     const flex__bf16_buffers *b);
/* After it: the task's rows of o, the sums of values times b->corr. */
void flex__bf16_write(const flex_plan *p, const flex_io *io, const flex__task *t,
                      const flex__bf16_buffers *b);

/* Cuts 64-aligned pieces off a block; with base NULL it only counts. */
typedef struct flex__carver {
    char *base;
    size_t used;
} flex__carver;
static inline void *flex__carve(flex__carver *c, int64_t bytes) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += (size_t)flex__pad(bytes, 64);
    return at;
}

/* Products C[m, n] += A B, one for each of heads heads, over cells that a mask hides one by one; B is shared by the
 * heads and is the caller's own copy. A(i, k) = a[i + k*sak]; cell (i, k) is seen when mask[i + k*sk]. */
typedef struct flex__masked_mm {
    int64_t heads, m, n, k;
    const float *a;
    int64_t sak, a_head;
    float *b; /* [k, n] */
    float *c;
    int64_t c_head;      /* leading dimension n */
    const uint8_t *mask; /* NULL: all seen, B is not changed */
    int64_t sk;
} flex__masked_mm;
/* What must be done before any of the products: rows of B that are not finite are added for the cells that see them alone and
 * made zero, so that 0 * NaN never happens. */
void flex__take_out(const tileops *ops, const flex__masked_mm *g);

#endif
