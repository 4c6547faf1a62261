/* The drafter's attention mask as a flex expression, and the plans of one row.
 *
 * A block sees the keys of its anchor's document strictly before the anchor, and all slots of itself; an unused block (anchor -1)
 * sees nothing. A windowed layer also asks (anchor + slot) - kv < window of context keys; inside the block both
 * directions stay open. The documents of a row are contiguous, so one start per block says the document.
 * Layers of equal window share a plan. It knows nothing of weights. */
#include "model/drafter_acts.h"
#include "model/mask_kernels.h"
#include <inttypes.h>

#define OWN_BLOCK "(kv >= ctx && (kv - ctx) // bs == blk && anchor[blk] >= 0)"
static const char *const mask_text[2] = {
    "let blk = q // bs;\n"
    "(kv < ctx && kv >= start[blk] && kv < anchor[blk]) || " OWN_BLOCK,
    "let blk = q // bs;\n"
    "(kv < ctx && kv >= start[blk] && kv < anchor[blk] && anchor[blk] + q % bs - kv < window) "
    "|| " OWN_BLOCK};

static void bind(drafter_acts *t, const drafter_config *c, const drafter_row *row, int64_t window) {
    t->value[0] = (expr_value){.type = DT_I32, .dim = {t->blocks}, .data = t->start};
    t->value[1] = (expr_value){.type = DT_I32, .dim = {t->blocks}, .data = row->anchor};
    t->value[2] = (expr_value){.scalar.i = t->n};
    t->value[3] = (expr_value){.scalar.i = c->block_size};
    t->value[4] = (expr_value){.scalar.i = window};
    t->env = (expr_env){.values = t->value};
}

/* Tiles hold three numbers per run and direction; with alternating tiles every tile is a run. */
static size_t mask_budget(int64_t q_len, int64_t kv_len) {
    size_t tiles = (size_t)(q_len / 32 + 1) * (size_t)(kv_len / 32 + 1);
    return (size_t)1 << 20 > tiles * 64 ? (size_t)1 << 20 : tiles * 64;
}

static const expr_decl decls[DRAFTER__CAPTURES] = {{"start", EXPR_INT, 1},
                                                   {"anchor", EXPR_INT, 1},
                                                   {"ctx", EXPR_INT, 0},
                                                   {"bs", EXPR_INT, 0},
                                                   {"window", EXPR_INT, 0}};

/* The window of windowed layers, 0: none; *full: some layer has none. */
static int64_t windows(const drafter_config *c, int *full) {
    int64_t window = 0;
    *full = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        if (c->window[i])
            window = c->window[i];
        else
            *full = 1;
    }
    return window;
}

/* One block behind one key. */
static err visit_mask(int w, const drafter_config *c, dtype type, size_t shared, kernel_visit visit,
                      void *ctx, arena *a) {
    static const int32_t zero[1] = {0};
    const expr_value values[DRAFTER__CAPTURES] = {{.type = DT_I32, .dim = {1}, .data = zero},
                                                  {.type = DT_I32, .dim = {1}, .data = zero},
                                                  {.scalar.i = 1},
                                                  {.scalar.i = c->block_size},
                                                  {.scalar.i = c->block_size}};
    const expr_env env = {.values = values};
    expr *mask;
    TRY(expr_compile(&mask, EXPR_MASK, mask_text[w], decls, DRAFTER__CAPTURES));
    const mask_kernels k = {.mask = mask,
                            .env = &env,
                            .q_len = c->block_size,
                            .kv_len = 1 + c->block_size,
                            .head_dim = c->head_dim,
                            .type = type,
                            .shared = shared,
                            .backward = 1};
    err e = mask_kernels_visit(&k, visit, ctx, a);
    expr_free(mask);
    return e;
}

err drafter_kernels(const drafter_config *c, dtype type, size_t shared, kernel_visit visit,
                    void *ctx) {
    arena *a;
    int full;
    const int64_t window = windows(c, &full);
    TRY(arena_create(&a, "kernels of a drafter", 0));
    err e = full ? visit_mask(0, c, type, shared, visit, ctx, a) : ERR_OK;
    if (!e && window) e = visit_mask(1, c, type, shared, visit, ctx, a);
    arena_destroy(a);
    return e;
}

err drafter__plans(drafter_acts *t, const drafter_config *c, dev *d, const drafter_row *row,
                   arena *a) {
    int full;
    const int64_t window = windows(c, &full);
    bind(t, c, row, window);
    for (int w = 0; w < 2; w++) {
        if (w ? !window : !full) continue;
        TRY(expr_compile(&t->mask[w], EXPR_MASK, mask_text[w], decls, DRAFTER__CAPTURES));
        flex_problem p = {.batch = 1, .q_heads = c->heads, .kv_heads = c->kv_heads, .type = DT_F32};
        p.q_len = t->rows;
        p.kv_len = t->n + t->rows;
        p.dim = p.v_dim = c->head_dim;
        p.mask = t->mask[w];
        p.env = &t->env;
        p.mask_budget = mask_budget(p.q_len, p.kv_len);
        TRY(flex_plan_create(&t->plan[w], d, &p, a));
    }
    return ERR_OK;
}

size_t drafter__attention_bytes(const drafter_config *c, int64_t q_len, int64_t kv_len,
                                int threads) {
    const size_t tasks = (size_t)c->heads * (size_t)(q_len / 32 + 2) * 2 +
                         (size_t)c->kv_heads * (size_t)(kv_len / 32 + 2);
    const size_t plan = mask_budget(q_len, kv_len) + tasks * sizeof(int64_t) + 4096;
    const size_t delta = (size_t)c->heads * (size_t)q_len * sizeof(float) + 64;
    /* A thread holds a few tiles of at most 256 columns, the score tiles and the mask's registers. */
    const size_t thread =
        (size_t)10 * 256 * (size_t)c->head_dim * sizeof(float) + ((size_t)2 << 20);
    return 2 * plan + delta + thread * (size_t)threads;
}

void drafter_acts_release(drafter_acts *t) {
    if (!t) return;
    for (int w = 0; w < 2; w++) {
        expr_free(t->mask[w]);
        t->mask[w] = NULL;
    }
}

flex_io drafter__attention(const drafter_acts *t, const drafter_config *c,
                           const drafter__layer *l) {
    const int64_t dim = c->head_dim, qw = c->heads * dim, kw = c->kv_heads * dim;
    flex_io io = {.lse = l->lse};
    (void)t;
    io.q = (flex_view){DT_F32, l->q, 0, dim, qw};
    io.k = (flex_view){DT_F32, l->k, 0, dim, kw};
    io.v = (flex_view){DT_F32, l->v, 0, dim, kw};
    io.o = (flex_out){l->o, 0, dim, qw};
    return io;
}

err drafter__workspace(const flex_plan *p, dev *d, int backward, arena *a, void **out) {
    const int threads = dev_threads(d);
    size_t bytes =
        backward ? flex_backward_workspace(p, threads) : flex_forward_workspace(p, threads);
    return arena_alloc_raw(a, bytes, 1, out);
}
