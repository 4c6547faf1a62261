/* Paged key/value cache: one pool of pages per model, page lists per sequence.
 *
 * A page id stands for the same place in every layer's K and V. Free pages are a stack of ids, lowest first at the start.
 * The memory is taken when the pool is made and becomes resident as pages are first written. Pages hold what was
 * written last: positions from a sequence's length on are undefined and never read. Not thread safe. */
#include "model/kv.h"
#include "flex/paged.h"
#include <string.h>

struct kv_pool {
    arena *a;
    int64_t layers, kv_heads, dim, pages, layer_size; /* layer_size: elements of one layer's K */
    float *k, *v; /* [layers][pages][PAGED_PAGE][kv_heads][dim] */
    int32_t *free_pages;
    int64_t n_free;
};

static int64_t pages_for(int64_t tokens) { return (tokens + PAGED_PAGE - 1) / PAGED_PAGE; }

static err allocate(kv_pool *p) {
    size_t layer = (size_t)p->layer_size * sizeof(float);
    TRY(arena_create(&p->a, "key/value cache", 0));
    TRY(arena_alloc_raw(p->a, (size_t)p->layers, layer, &p->k));
    TRY(arena_alloc_raw(p->a, (size_t)p->layers, layer, &p->v));
    return arena_alloc_raw(p->a, (size_t)p->pages, sizeof *p->free_pages, &p->free_pages);
}

err kv_pool_create(kv_pool **out, int64_t layers, int64_t kv_heads, int64_t dim, int64_t max_tokens,
                   int64_t max_seqs) {
    *out = NULL;
    if (layers < 1 || kv_heads < 1 || dim < 1 || max_tokens < 1 || max_seqs < 1)
        return err_set(ERR_RANGE,
                       "a key/value cache of %lld layers, %lld heads of %lld, %lld tokens and %lld "
                       "sequences was asked for; each must be at least 1",
                       (long long)layers, (long long)kv_heads, (long long)dim,
                       (long long)max_tokens, (long long)max_seqs);
    kv_pool *p;
    /* A page each beside the tokens, because a sequence's last page may be partly used. */
    int64_t pages = pages_for(max_tokens) + max_seqs;
    if (pages > INT32_MAX)
        return err_set(ERR_RANGE, "a key/value cache of %lld tokens needs more page ids than exist",
                       (long long)max_tokens);
    TRY(mem_new(1, sizeof *p, &p));
    p->layers = layers;
    p->kv_heads = kv_heads;
    p->dim = dim;
    p->pages = p->n_free = pages;
    p->layer_size = pages * PAGED_PAGE * kv_heads * dim;
    err e = allocate(p);
    if (e) {
        kv_pool_free(p);
        return e;
    }
    for (int64_t i = 0; i < pages; i++) p->free_pages[i] = (int32_t)(pages - 1 - i);
    *out = p;
    return ERR_OK;
}

void kv_pool_free(kv_pool *p) {
    if (!p) return;
    arena_destroy(p->a);
    mem_free(p);
}

size_t kv_pool_bytes(const kv_pool *p) {
    arena_stats s;
    arena_get_stats(p->a, &s);
    return s.reserved + sizeof *p;
}

int64_t kv_pool_free_pages(const kv_pool *p) { return p->n_free; }

err kv_seq_open(kv_pool *p, kv_seq *s, int64_t max_tokens) {
    (void)p;
    *s = (kv_seq){.cap = pages_for(max_tokens)};
    return mem_new((size_t)(s->cap ? s->cap : 1), sizeof *s->pages, &s->pages);
}

void kv_seq_close(kv_pool *p, kv_seq *s) {
    kv_seq_crop(p, s, 0);
    mem_free(s->pages);
    *s = (kv_seq){0};
}

err kv_seq_reserve(kv_pool *p, kv_seq *s, int64_t n) {
    int64_t need = pages_for(s->length + n);
    if (need > s->cap)
        return err_set(ERR_RANGE,
                       "a sequence of %lld tokens was opened and %lld are to be held; open it with "
                       "more room",
                       (long long)(s->cap * PAGED_PAGE), (long long)(s->length + n));
    if (need - s->n_pages > p->n_free)
        return err_set(
            ERR_MEMORY,
            "the key/value cache holds %lld tokens in all and has no room for %lld more; "
            "run fewer or shorter sequences at once",
            (long long)(p->pages * PAGED_PAGE), (long long)n);
    while (s->n_pages < need) s->pages[s->n_pages++] = p->free_pages[--p->n_free];
    return ERR_OK;
}

void kv_seq_commit(kv_seq *s, int64_t n) { s->length += n; }

void kv_seq_crop(kv_pool *p, kv_seq *s, int64_t length) {
    if (length < s->length) s->length = length;
    while (s->n_pages > pages_for(s->length)) p->free_pages[p->n_free++] = s->pages[--s->n_pages];
}

float *kv_layer_k(const kv_pool *p, int64_t layer) { return p->k + layer * p->layer_size; }
float *kv_layer_v(const kv_pool *p, int64_t layer) { return p->v + layer * p->layer_size; }

static int64_t place(const kv_pool *p, const kv_seq *s, int64_t pos) {
    return ((int64_t)s->pages[pos / PAGED_PAGE] * PAGED_PAGE + pos % PAGED_PAGE) * p->kv_heads *
           p->dim;
}
float *kv_at_k(const kv_pool *p, int64_t layer, const kv_seq *s, int64_t pos) {
    return kv_layer_k(p, layer) + place(p, s, pos);
}
float *kv_at_v(const kv_pool *p, int64_t layer, const kv_seq *s, int64_t pos) {
    return kv_layer_v(p, layer) + place(p, s, pos);
}
