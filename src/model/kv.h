/* Paged key/value cache: pages of 64 tokens (PAGED_PAGE) for all layers of one model, fp32 on the CPU.
 *
 * A pool is allocated once; sequences take pages as they grow and give them back on crop or close. Keys of one position lie
 * together for all heads, so a new token is one copy a layer. Nothing is shared between sequences. */
#ifndef MODEL_KV_H
#define MODEL_KV_H
#include "core/arena.h"

typedef struct kv_pool kv_pool;
typedef struct kv_seq {
    int32_t *pages;
    int64_t n_pages, cap;
    int64_t length;
} kv_seq; /* length: tokens held */
MUST_CHECK err kv_pool_create(kv_pool **out, int64_t layers, int64_t kv_heads, int64_t dim,
                              int64_t max_tokens, int64_t max_seqs);
void kv_pool_free(kv_pool *p);
size_t kv_pool_bytes(const kv_pool *p);
int64_t kv_pool_free_pages(const kv_pool *p);
/* max_tokens: room in its page list. */
MUST_CHECK err kv_seq_open(kv_pool *p, kv_seq *s, int64_t max_tokens);
void kv_seq_close(kv_pool *p, kv_seq *s);
/* Room for n more tokens (takes pages; ERR_MEMORY naming the tokens held by the pool), then kv_seq_commit raises length. */
MUST_CHECK err kv_seq_reserve(kv_pool *p, kv_seq *s, int64_t n);
void kv_seq_commit(kv_seq *s, int64_t n);
void kv_seq_crop(kv_pool *p, kv_seq *s, int64_t length);
/* K and V pools of a layer, as flex/paged.h wants them; where position pos of s lies: [kv_heads, dim] (one contiguous block). */
float *kv_layer_k(const kv_pool *p, int64_t layer);
float *kv_layer_v(const kv_pool *p, int64_t layer);
float *kv_at_k(const kv_pool *p, int64_t layer, const kv_seq *s, int64_t pos);
float *kv_at_v(const kv_pool *p, int64_t layer, const kv_seq *s, int64_t pos);

#endif
