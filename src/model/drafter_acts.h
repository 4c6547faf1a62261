/* What the drafter's training forward keeps for its backward, shared by the drafter_train_*.c files only.
 *
 * Letters: n context rows, R noise rows (anchors * block_size), H hidden, I MLP width, Q heads*D, K kv_heads*D. Keys and
 * values of a layer are one buffer, context rows first. Everything lies in the caller's arena but the compiled masks.
 * Not for other folders. */
#ifndef MODEL_DRAFTER_ACTS_H
#define MODEL_DRAFTER_ACTS_H
#include "model/drafter_parts.h"

typedef struct drafter__layer {
    float *x, *rstd1, *xn;     /* [R,H] input, [R], [R,H] normed */
    float *q_raw, *rstd_q, *q; /* [R,Q], [R*heads], [R,Q] normed and rotated */
    float *k_raw, *rstd_k, *k; /* [n+R,K], [(n+R)*kv_heads], [n+R,K] */
    float *v;                  /* [n+R,K] */
    float *o, *lse;            /* [R,Q], [heads,R] */
    float *mid, *rstd2, *xn2;  /* [R,H] after attention, [R], [R,H] normed */
    float *gate, *up, *act;    /* [R,I] */
} drafter__layer;

enum { DRAFTER__CAPTURES = 5 }; /* start[], anchor[], ctx, bs, window */
struct drafter_acts {
    int64_t n, rows, blocks;
    int32_t *position;         /* [n+R] for keys; noise rows' part for queries */
    int32_t *start;            /* [blocks] first row of the anchor's document */
    float *c_raw, *c_rstd, *c; /* [n,H] fc's output, [n], [n,H] context features */
    float *last, *last_rstd;   /* [R,H] input of the final norm, [R] */
    drafter__layer *layer;     /* [layers] */
    rope_table rope;
    expr *mask[2]; /* full, windowed; NULL where no layer uses it */
    flex_plan *plan[2];
    expr_env env;
    expr_value value[DRAFTER__CAPTURES];
};

/* The row's masks and plans (memory from a); released by drafter_acts_release. */
MUST_CHECK err drafter__plans(drafter_acts *t, const drafter_config *c, dev *d,
                              const drafter_row *row, arena *a);
/* Attention views of a layer, common to both directions. */
flex_io drafter__attention(const drafter_acts *t, const drafter_config *c, const drafter__layer *l);
static inline const flex_plan *drafter__plan_of(const drafter_acts *t, const drafter_config *c,
                                                int64_t layer) {
    return t->plan[c->window[layer] != 0];
}
/* What plans and workspaces take of the arena at most: q_len noise rows against kv_len keys. */
size_t drafter__attention_bytes(const drafter_config *c, int64_t q_len, int64_t kv_len,
                                int threads);
MUST_CHECK err drafter__workspace(const flex_plan *p, dev *d, int backward, arena *a, void **out);

#endif
