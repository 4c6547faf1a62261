/* The parameters of a Llama target: the table of what there must be, the account against a source, and the load.
 *
 * Every parameter names one tensor of the source and every tensor serves one parameter; missing, unexpected and misshapen
 * ones are listed together in one sentence and nothing is loaded. Rows are read in parallel blocks, put back from
 * interleaved to half-split order where the source says so, rounded to bf16 once (norms too, which stay fp32 in memory) and
 * packed. A tied head must be absent or equal, value for value. */
#include "model/target_parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 96, BLOCK = 64, LISTED = 12 };

typedef struct param {
    char name[NAME];
    int64_t rows, cols; /* a vector is one row */
    int ndim;
    packed *w; /* matrices: rows row0.. of w */
    int64_t row0;
    float **vec;         /* vectors */
    int64_t head_rows;   /* > 0: rows of q or k, by heads of this many rows */
    const packed *equal; /* the head beside a tied flag: compared, not loaded */
    const target__tensor *from;
    int64_t block0; /* first of its row blocks among all */
} param;
typedef struct params {
    param *p;
    int64_t n;
    int64_t blocks, max_cols;
    target *t;
    target__source *s;
    dev *d;
} params;

static param *add(params *ps, int64_t rows, int64_t cols) {
    param *p = &ps->p[ps->n++];
    p->rows = rows;
    p->cols = cols;
    p->ndim = 2;
    return p;
}
static void add_matrix(params *ps, const char *name, packed *w, int64_t row0, int64_t rows,
                       int64_t cols, int64_t head_rows) {
    param *p = add(ps, rows, cols);
    snprintf(p->name, NAME, "%s", name);
    p->w = w;
    p->row0 = row0;
    p->head_rows = head_rows;
}
static void add_vector(params *ps, const char *name, float **vec, int64_t n) {
    param *p = add(ps, 1, n);
    snprintf(p->name, NAME, "%s", name);
    p->ndim = 1;
    p->vec = vec;
}

/* A block's tensors in both spellings. */
static const char *const layer_names[][2] = {
    {"model.layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight"},
    {"model.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight"},
    {"model.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight"},
    {"model.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight"},
    {"model.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight"},
    {"model.layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight"},
    {"model.layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight"},
    {"model.layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight"},
    {"model.layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight"},
};

static void add_layer(params *ps, int64_t i) {
    const target_config *c = &ps->t->cfg;
    target__layer *l = &ps->t->layer[i];
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    int64_t head = ps->s->interleaved ? c->head_dim : 0;
    char name[9][NAME];
    for (int k = 0; k < 9; k++) {
        const char *f = layer_names[k][ps->s->naming];
        const char *at = strstr(f, "%d");
        snprintf(name[k], NAME, "%.*s%lld%s", (int)(at - f), f, (long long)i, at + 2);
    }
    add_vector(ps, name[0], &l->attn_norm, c->hidden);
    add_matrix(ps, name[1], &l->qkv, 0, q, c->hidden, head);
    add_matrix(ps, name[2], &l->qkv, q, kv, c->hidden, head);
    add_matrix(ps, name[3], &l->qkv, q + kv, kv, c->hidden, 0);
    add_matrix(ps, name[4], &l->o, 0, c->hidden, q, 0);
    add_vector(ps, name[5], &l->mlp_norm, c->hidden);
    add_matrix(ps, name[6], &l->gate_up, 0, c->intermediate, c->hidden, 0);
    add_matrix(ps, name[7], &l->gate_up, c->intermediate, c->intermediate, c->hidden, 0);
    add_matrix(ps, name[8], &l->down, 0, c->hidden, c->intermediate, 0);
}

static const target__tensor *find(const target__source *s, const char *name) {
    for (int64_t i = 0; i < s->n; i++)
        if (strcmp(s->t[i].name, name) == 0) return &s->t[i];
    return NULL;
}

static err fill_table(params *ps, arena *tmp) {
    target *t = ps->t;
    const target_config *c = &t->cfg;
    int gguf = ps->s->naming == TARGET__GGUF;
    const char *head = gguf ? "output.weight" : "lm_head.weight";
    TRY(arena_alloc(tmp, (size_t)(9 * c->layers + 3), sizeof *ps->p, &ps->p));
    add_matrix(ps, gguf ? "token_embd.weight" : "model.embed_tokens.weight", &t->embed, 0, c->vocab,
               c->hidden, 0);
    for (int64_t i = 0; i < c->layers; i++) add_layer(ps, i);
    add_vector(ps, gguf ? "output_norm.weight" : "model.norm.weight", &t->norm, c->hidden);
    if (!c->tied) {
        add_matrix(ps, head, &t->head, 0, c->vocab, c->hidden, 0);
    } else if (find(ps->s, head)) {
        add_matrix(ps, head, &t->embed, 0, c->vocab, c->hidden, 0);
        ps->p[ps->n - 1].equal = &t->embed;
    }
    return ERR_OK;
}

/* One of the three lists of the account: "missing: a, b and 3 more". */
typedef struct listing {
    str text;
    int64_t n;
} listing;
static err list(listing *l, const char *what, const char *name) {
    if (l->n++ >= LISTED) return ERR_OK;
    return str_printf(&l->text, "%s%s", l->n == 1 ? what : ", ", name);
}

static int fits(const param *p, const target__tensor *t) {
    if (t->ndim != p->ndim) return 0;
    return t->ndim == 1 ? t->dim[0] == p->cols : t->dim[0] == p->rows && t->dim[1] == p->cols;
}
static err misfit(listing *l, const param *p, const target__tensor *t) {
    char text[256];
    int at = snprintf(text, sizeof text, "%s [", p->name);
    for (int k = 0; k < t->ndim; k++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", k ? ", " : "",
                       (long long)t->dim[k]);
    if (p->ndim == 1)
        snprintf(text + at, sizeof text - (size_t)at, "] instead of [%lld]", (long long)p->cols);
    else
        snprintf(text + at, sizeof text - (size_t)at, "] instead of [%lld, %lld]",
                 (long long)p->rows, (long long)p->cols);
    return list(l, "of another shape: ", text);
}

static err account_lists(params *ps, listing l[3]) {
    for (int64_t i = 0; i < ps->n; i++) {
        param *p = &ps->p[i];
        p->from = find(ps->s, p->name);
        if (!p->from) {
            TRY(list(&l[0], "missing: ", p->name));
            continue;
        }
        ps->s->t[p->from - ps->s->t].uses++;
        if (!fits(p, p->from)) TRY(misfit(&l[2], p, p->from));
        p->block0 = ps->blocks;
        ps->blocks += (p->rows + BLOCK - 1) / BLOCK;
        if (p->cols > ps->max_cols) ps->max_cols = p->cols;
    }
    for (int64_t i = 0; i < ps->s->n; i++)
        if (ps->s->t[i].uses != 1) TRY(list(&l[1], "unexpected: ", ps->s->t[i].name));
    return ERR_OK;
}

static err account(params *ps) {
    listing l[3] = {0};
    err e = account_lists(ps, l);
    str all = {0};
    for (int k = 0; !e && k < 3; k++) {
        if (!l[k].n) continue;
        e = str_printf(&all, "%s%s", all.n ? "; " : "", l[k].text.s);
        if (!e && l[k].n > LISTED)
            e = str_printf(&all, " and %lld more", (long long)(l[k].n - LISTED));
    }
    if (!e && all.n)
        e = err_set(ERR_FORMAT,
                    "%s: the tensors are not those of a Llama model of %lld layers%s (%s)",
                    ps->s->path, (long long)ps->t->cfg.layers,
                    ps->t->cfg.tied ? " with a tied head" : "", all.s);
    for (int k = 0; k < 3; k++) str_free(&l[k].text);
    str_free(&all);
    return e;
}

/* Row r of q or k in the source: the file's row 2i+j of a head's rotated rows is row i + j*half here. */
static int64_t source_row(const params *ps, const param *p, int64_t r) {
    int64_t rotary = ps->t->cfg.rope.rotary_dim;
    if (!p->head_rows || r % p->head_rows >= rotary) return r;
    int64_t k = r % p->head_rows, half = rotary / 2;
    return r - k + (k < half ? 2 * k : 2 * (k - half) + 1);
}

static err check_finite(const params *ps, const param *p, int64_t r, const float *x) {
    for (int64_t i = 0; i < p->cols; i++)
        if (!isfinite(x[i]))
            return err_set(ERR_NUMERIC,
                           "%s: tensor '%s' holds a value that is not finite in row "
                           "%lld",
                           ps->s->path, p->name, (long long)r);
    return ERR_OK;
}

static err check_equal(const params *ps, const param *p, int64_t r, float *x, float *held) {
    packed_row(p->equal, r, held);
    for (int64_t i = 0; i < p->cols; i++) {
        float v = ps->t->held == DT_BF16 ? bf16_to_f32(bf16_from_f32(x[i])) : x[i];
        if (v != held[i])
            return err_set(ERR_FORMAT,
                           "%s: the head is tied to the embedding, and '%s' differs from it in row "
                           "%lld; correct tie_word_embeddings or the file",
                           ps->s->path, p->name, (long long)r);
    }
    return ERR_OK;
}

static err load_block(void *ctx, int64_t task, int thread) {
    const params *ps = ctx;
    int64_t lo = 0, hi = ps->n; /* the last parameter whose block0 <= task */
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (ps->p[mid].block0 <= task)
            lo = mid;
        else
            hi = mid;
    }
    const param *p = &ps->p[lo];
    float *x = dev_scratch(ps->d, thread), *held = x + p->cols;
    int64_t r0 = (task - p->block0) * BLOCK, r1 = r0 + BLOCK < p->rows ? r0 + BLOCK : p->rows;
    for (int64_t r = r0; r < r1; r++) {
        TRY(ps->s->row(ps->s, p->from, source_row(ps, p, r), x));
        TRY(check_finite(ps, p, r, x));
        if (p->equal) {
            TRY(check_equal(ps, p, r, x, held));
        } else if (p->w) {
            packed_set_rows(p->w, p->row0 + r, 1, x, p->cols);
        } else {
            for (int64_t i = 0; i < p->cols; i++)
                (*p->vec)[i] = ps->t->held == DT_BF16 ? bf16_to_f32(bf16_from_f32(x[i])) : x[i];
        }
    }
    return ERR_OK;
}

static err take_memory(target *t) {
    const target_config *c = &t->cfg;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, h = c->hidden;
    TRY(packed_alloc(&t->embed, t->a, t->held, c->vocab, h));
    if (c->tied)
        t->head = t->embed;
    else
        TRY(packed_alloc(&t->head, t->a, t->held, c->vocab, h));
    TRY(arena_alloc(t->a, (size_t)h, sizeof(float), &t->norm));
    for (int64_t i = 0; i < c->layers; i++) {
        target__layer *l = &t->layer[i];
        TRY(packed_alloc(&l->qkv, t->a, t->held, q + 2 * kv, h));
        TRY(packed_alloc(&l->o, t->a, t->held, h, q));
        TRY(packed_alloc(&l->gate_up, t->a, t->held, 2 * c->intermediate, h));
        TRY(packed_alloc(&l->down, t->a, t->held, h, c->intermediate));
        TRY(arena_alloc(t->a, (size_t)h, sizeof(float), &l->attn_norm));
        TRY(arena_alloc(t->a, (size_t)h, sizeof(float), &l->mlp_norm));
    }
    return ERR_OK;
}

err target__load_weights(target *t, target__source *s, dev *d, arena *tmp) {
    params ps = {.t = t, .s = s, .d = d};
    TRY(arena_alloc(t->a, (size_t)t->cfg.layers, sizeof *t->layer, &t->layer));
    TRY(fill_table(&ps, tmp));
    TRY(account(&ps)); /* before the memory is taken: a bad file must not cost gigabytes */
    TRY(take_memory(t));
    /* The scratch holds two rows: the second for the comparison of a tied head. */
    TRY(dev_scratch_reserve(d, (size_t)ps.max_cols * 2 * sizeof(float)));
    int64_t compared = ps.p[ps.n - 1].equal ? ps.blocks - ps.p[ps.n - 1].block0 : 0;
    TRY(pool_run(dev_pool(d), ps.blocks - compared, load_block, &ps));
    if (!compared) return ERR_OK;
    /* Only once the embedding is whole. */
    for (int64_t b = ps.blocks - compared; b < ps.blocks; b++) TRY(load_block(&ps, b, 0));
    return ERR_OK;
}
