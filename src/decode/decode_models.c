/* The table of decode_models.h over a loaded target and drafter: their paged caches and the taps between them.
 *
 * verify leaves the taps of its rows in a buffer; keep crops the target's cache and extends the drafter's context with the
 * taps of the rows that stay, and only those, so both caches hold the same positions. Every pass takes its workspace
 * from one arena that is reset after it. */
#include "decode/decode_models.h"
#include <string.h>

typedef struct real {
    dev *d;
    const target *t;
    const drafter *dr;
    const drafter_config *dc; /* NULL without a drafter */
    int64_t n_places, room;   /* tokens that a place can hold */
    kv_pool *t_pool, *d_pool;
    kv_seq *t_kv, *d_kv;      /* [n_places] */
    arena *a;                 /* workspace */
    arena *own;               /* the arrays below */
    float *taps;              /* [rows of one verify, n_taps*hidden] */
    int64_t *before;          /* [n_places] target length before the last verify */
    int64_t *rows;            /* [n_places] rows of the last verify, in its order */
    target_step_seq *step;    /* [n_places] */
    drafter_ctx_seq *ctx;     /* [n_places] */
    drafter_block_seq *block; /* [n_places] */
} real;

static err open_place(void *ctx, int64_t place) {
    real *r = ctx;
    TRY(kv_seq_open(r->t_pool, &r->t_kv[place], r->room));
    if (!r->dr) return ERR_OK;
    err e = kv_seq_open(r->d_pool, &r->d_kv[place], r->room);
    if (e) kv_seq_close(r->t_pool, &r->t_kv[place]);
    return e;
}

static void close_place(void *ctx, int64_t place) {
    real *r = ctx;
    kv_seq_close(r->t_pool, &r->t_kv[place]);
    if (r->dr) kv_seq_close(r->d_pool, &r->d_kv[place]);
}

static err verify(void *ctx, const decode_rows *seqs, int64_t n, int last_only, int taps,
                  int32_t *argmax) {
    real *r = ctx;
    for (int64_t i = 0; i < n; i++) {
        kv_seq *kv = &r->t_kv[seqs[i].place];
        r->step[i] = (target_step_seq){kv, seqs[i].tokens, seqs[i].rows};
        r->before[i] = kv->length;
        r->rows[i] = seqs[i].rows;
    }
    target_step s = {.seqs = r->step, .n_seqs = n, .last_only = last_only, .argmax_out = argmax};
    if (taps && r->dc) {
        s.taps = r->dc->taps;
        s.n_taps = r->dc->n_taps;
        s.taps_out = r->taps;
    }
    return target_decode(r->t, r->d, r->t_pool, &s, r->a);
}

static err keep(void *ctx, const decode_keep *seqs, int64_t n) {
    real *r = ctx;
    int64_t at = 0, extended = 0;
    for (int64_t i = 0; i < n; at += r->rows[i++]) {
        kv_seq_crop(r->t_pool, &r->t_kv[seqs[i].place], r->before[i] + seqs[i].rows);
        if (!seqs[i].extend || !r->dc) continue;
        kv_seq *kv = &r->d_kv[seqs[i].place];
        if (kv->length != r->before[i])
            return err_set(ERR_INTERNAL,
                           "the drafter's context holds %lld tokens where the target held %lld",
                           (long long)kv->length, (long long)r->before[i]);
        int64_t width = r->dc->n_taps * r->dc->hidden;
        r->ctx[extended++] = (drafter_ctx_seq){kv, r->taps + at * width, seqs[i].rows};
    }
    if (!extended) return ERR_OK;
    arena_mark m = arena_get_mark(r->a);
    err e = drafter_extend(r->dr, r->d, r->d_pool, r->ctx, extended, r->a);
    arena_reset(r->a, m);
    return e;
}

static err draft(void *ctx, const decode_block *seqs, int64_t n) {
    real *r = ctx;
    for (int64_t i = 0; i < n; i++) {
        const kv_seq *kv = &r->d_kv[seqs[i].place];
        if (kv->length != r->t_kv[seqs[i].place].length)
            return err_set(ERR_INTERNAL,
                           "the drafter's context holds %lld tokens and the target's %lld",
                           (long long)kv->length, (long long)r->t_kv[seqs[i].place].length);
        r->block[i] = (drafter_block_seq){kv, seqs[i].token, seqs[i].size, seqs[i].drafts};
    }
    arena_mark m = arena_get_mark(r->a);
    err e = drafter_draft(r->dr, r->d, r->d_pool, r->block, n, NULL, r->a);
    arena_reset(r->a, m);
    return e;
}

static size_t bytes(void *ctx) {
    real *r = ctx;
    arena_stats a, own;
    arena_get_stats(r->a, &a);
    arena_get_stats(r->own, &own);
    return kv_pool_bytes(r->t_pool) + (r->dr ? kv_pool_bytes(r->d_pool) : 0) + a.reserved +
           own.reserved + sizeof *r;
}

static void free_models(void *ctx) {
    real *r = ctx;
    if (!r) return;
    kv_pool_free(r->t_pool);
    kv_pool_free(r->d_pool);
    arena_destroy(r->a);
    arena_destroy(r->own);
    mem_free(r);
}

static err allocate(real *r) {
    const target_config *c = target_get_config(r->t);
    size_t n = (size_t)r->n_places;
    TRY(arena_create(&r->a, "decoding workspace", 0));
    TRY(arena_create(&r->own, "decoding", 0));
    TRY(kv_pool_create(&r->t_pool, c->layers, c->kv_heads, c->head_dim, r->n_places * r->room,
                       r->n_places));
    TRY(arena_alloc(r->own, n, sizeof *r->t_kv, &r->t_kv));
    TRY(arena_alloc(r->own, n, sizeof *r->before, &r->before));
    TRY(arena_alloc(r->own, n, sizeof *r->rows, &r->rows));
    TRY(arena_alloc(r->own, n, sizeof *r->step, &r->step));
    if (!r->dr) return ERR_OK;
    const drafter_config *dc = r->dc;
    TRY(kv_pool_create(&r->d_pool, dc->layers, dc->kv_heads, dc->head_dim, r->n_places * r->room,
                       r->n_places));
    TRY(arena_alloc(r->own, n, sizeof *r->d_kv, &r->d_kv));
    TRY(arena_alloc(r->own, n, sizeof *r->ctx, &r->ctx));
    TRY(arena_alloc(r->own, n, sizeof *r->block, &r->block));
    int64_t rows = r->n_places * dc->block_size;
    if (rows < DECODE_PREFILL_ROWS) rows = DECODE_PREFILL_ROWS;
    return arena_alloc_raw(r->own, (size_t)(rows * dc->n_taps * dc->hidden), sizeof(float),
                           &r->taps);
}

err decode_models_open(decode_models *out, dev *d, const decode_config *cfg) {
    const target_config *c = target_get_config(cfg->t);
    real *r;
    TRY(mem_new(1, sizeof *r, &r));
    r->d = d;
    r->t = cfg->t;
    r->dr = cfg->dr;
    r->dc = cfg->dr ? drafter_get_config(cfg->dr) : NULL;
    r->n_places = cfg->max_seqs;
    /* A round may look a block past the last token that is wanted. */
    r->room = cfg->max_tokens + (r->dc ? r->dc->block_size : 0);
    if (r->room > c->context) r->room = c->context;
    err e = allocate(r);
    if (e) {
        free_models(r);
        return e;
    }
    *out = (decode_models){.ctx = r, .vocab = c->vocab, .context = c->context};
    out->block_size = r->dc ? r->dc->block_size : 0;
    out->draft_positions = r->dc ? r->dc->max_position : 0;
    out->open = open_place;
    out->close = close_place;
    out->verify = verify;
    out->keep = keep;
    out->draft = draft;
    out->bytes = bytes;
    out->free = free_models;
    return ERR_OK;
}
