/* A drafter fixture from PyTorch, opened: config, layout, weights, row, a target with its embedding and head, expectations.
 *
 * The target is a tiny GGUF made on the spot whose embedding and head are the fixture's (bf16 values, so nothing is rounded).
 * Used by the drafter's tests only; made by tools/fixtures/make_drafter.py. */
#ifndef DRAFTER_FIXTURE_H
#define DRAFTER_FIXTURE_H
#include "io/safetensors.h"
#include "model/drafter.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/tiny_gguf.h"

typedef struct fixture {
    st_file *file;
    arena *a;
    dev *d;
    target *t;
    files_dir dir;
    drafter_config cfg;
    drafter_layout l;
    float *params;
    drafter_row row;
    int64_t *loss_mask; /* [n] */
    double gamma;
} fixture;

static inline float *fixture_floats(const fixture *f, const char *name) {
    const tensor *t = safetensors_find(f->file, name);
    files_must(t != NULL, name);
    float *x = malloc((size_t)tensor_count(t) * sizeof *x);
    files_must(x != NULL, name);
    dtype_to_f32(t->type, t->data, x, (size_t)tensor_count(t));
    return x;
}
static inline int64_t fixture_count(const fixture *f, const char *name) {
    return tensor_count(safetensors_find(f->file, name));
}
static inline int64_t *fixture_ints(const fixture *f, const char *name) {
    const tensor *t = safetensors_find(f->file, name);
    files_must(t != NULL, name);
    int64_t *x = malloc((size_t)tensor_count(t) * sizeof *x);
    files_must(x != NULL, name);
    dtype_to_i64(t->type, t->data, x, (size_t)tensor_count(t));
    return x;
}
static inline int32_t *fixture_i32(fixture *f, const char *name) {
    int64_t *x = fixture_ints(f, name), n = fixture_count(f, name);
    int32_t *y = NULL;
    files_must(!arena_alloc(f->a, (size_t)n, sizeof *y, &y), name);
    for (int64_t i = 0; i < n; i++) y[i] = (int32_t)x[i];
    free(x);
    return y;
}

static inline void fixture_fill(void *ctx, const char *name, float *w, int64_t rows, int64_t cols) {
    const char *from = strcmp(name, "token_embd.weight") == 0 ? "embedding"
                       : strcmp(name, "output.weight") == 0   ? "head"
                                                              : NULL;
    if (!from) return;
    float *x = fixture_floats(ctx, from);
    memcpy(w, x, (size_t)(rows * cols) * sizeof *w);
    free(x);
}

static inline void fixture_target(fixture *f) {
    tiny_gguf g = tiny_gguf_default(f->cfg.vocab, 1);
    g.layers = f->cfg.target_layers;
    g.hidden = f->cfg.hidden;
    g.head_dim = g.hidden / g.heads;
    g.fill = fixture_fill;
    g.ctx = f;
    const char *path = files_at(&f->dir, "t.gguf");
    files_must(!tiny_gguf_write(path, &g), err_text());
    files_must(!target_load(&f->t, f->d, path, NULL), err_text());
}

static inline void fixture_config(fixture *f) {
    int64_t *c = fixture_ints(f, "config");
    drafter_config *k = &f->cfg;
    *k = (drafter_config){.layers = c[0], .hidden = c[1], .intermediate = c[2], .heads = c[3]};
    k->kv_heads = c[4];
    k->head_dim = c[5];
    k->block_size = c[6];
    k->n_taps = (int)c[7];
    k->vocab = c[8];
    k->mask_token = (int32_t)c[9];
    f->gamma = (double)c[10];
    k->target_layers = 4;
    for (int i = 0; i < k->n_taps; i++) k->taps[i] = i;
    for (int64_t i = 0; i < k->layers; i++) k->window[i] = c[12 + i];
    k->rms_eps = 1e-6f;
    k->max_position = 256;
    k->rope =
        (rope_config){.head_dim = c[5], .rotary_dim = c[5], .theta = (double)c[11], .factor = 1};
    free(c);
}

static inline void fixture_open(fixture *f, const char *name, int threads) {
    char path[256];
    *f = (fixture){.dir = files_begin()};
    snprintf(path, sizeof path, "tests/fixtures/drafter/%s.safetensors", name);
    files_must(!safetensors_open(&f->file, path), err_text());
    files_must(!arena_create(&f->a, "test", 0), err_text());
    files_must(!dev_open_cpu(&f->d, &(dev_config){.threads = threads}), err_text());
    fixture_config(f);
    files_must(!drafter_layout_make(&f->l, &f->cfg, f->a), err_text());
    fixture_target(f);
    files_must(!arena_alloc(f->a, (size_t)f->l.total, sizeof(float), &f->params), err_text());
    for (int i = 0; i < f->l.n; i++) {
        char at[80];
        snprintf(at, sizeof at, "w.%s", f->l.t[i].name);
        float *w = fixture_floats(f, at);
        memcpy(f->params + f->l.t[i].offset, w, (size_t)f->l.t[i].count * sizeof *w);
        free(w);
    }
    f->row = (drafter_row){.n = fixture_count(f, "in.tokens"),
                           .tokens = fixture_i32(f, "in.tokens"),
                           .document = fixture_i32(f, "in.document"),
                           .position = fixture_i32(f, "in.position"),
                           .n_anchors = fixture_count(f, "in.anchor"),
                           .anchor = fixture_i32(f, "in.anchor"),
                           .taps = fixture_floats(f, "in.taps")};
    f->loss_mask = fixture_ints(f, "in.loss_mask");
}

static inline void fixture_close(fixture *f) {
    free((void *)(uintptr_t)f->row.taps);
    free(f->loss_mask);
    target_free(f->t);
    dev_close(f->d);
    arena_destroy(f->a);
    safetensors_close(f->file);
    files_end(&f->dir);
}

/* Largest distance of got from the fixture's tensor, relative to its largest value. */
static inline double fixture_distance(const fixture *f, const char *name, const float *got) {
    const int64_t n = fixture_count(f, name);
    float *want = fixture_floats(f, name);
    double *w = malloc((size_t)n * sizeof *w);
    files_must(w != NULL, name);
    for (int64_t i = 0; i < n; i++) w[i] = (double)want[i];
    double far = numbers_distance(got, w, n);
    free(w);
    free(want);
    return far;
}

/* Labels and weights of a row over the fixture's context, as docs/NUMERICS.md states them. */
static inline void fixture_labels(const fixture *f, const drafter_row *r, int32_t *label,
                                  float *weight) {
    const int64_t bs = f->cfg.block_size;
    for (int64_t i = 0; i < r->n_anchors * bs; i++) {
        const int64_t a = r->anchor[i / bs], k = i % bs, p = a + k;
        const int on =
            a >= 0 && k > 0 && p < r->n && r->document[p] == r->document[a] && f->loss_mask[p];
        label[i] = on ? r->tokens[p] : 0;
        weight[i] = on ? (float)exp(-(double)(k - 1) / f->gamma) : 0;
    }
}

#endif
