/* Byte-pair merging of one piece: of all neighbouring pairs the one of lowest rank is joined, the leftmost
 * first, until no pair is left that the merge list holds.
 *
 * Short pieces (nearly all) keep the ranks of their pairs in an array and scan it; long ones keep a heap
 * of candidates over a linked list, so a megabyte without a break costs n log n. A byte that the vocabulary
 * cannot spell gives no symbol and its neighbours meet, as in the reference. It does not split text. */
#include "text/tokenizer_private.h"
#include "core/arena.h"
#include <string.h>

enum { SHORT = 48 }; /* above this many symbols the heap wins */

static uint64_t slot_of(uint64_t pair, uint64_t mask) {
    pair *= 0x9e3779b97f4a7c15u;
    return (pair ^ pair >> 32) & mask;
}

err tokenizer__bpe_reserve(tokenizer__bpe *b, int64_t n_merges) {
    uint64_t slots = 16;
    while (slots < (uint64_t)n_merges * 2) slots *= 2;
    TRY(mem_new(slots, sizeof *b->slot, &b->slot));
    b->mask = slots - 1;
    for (uint64_t i = 0; i < slots; i++) b->slot[i].pair = UINT64_MAX;
    return ERR_OK;
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void tokenizer__bpe_add(tokenizer__bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
    uint64_t pair = pair_of(left, right), i = slot_of(pair, b->mask);
    while (b->slot[i].pair != UINT64_MAX && b->slot[i].pair != pair) i = (i + 1) & b->mask;
    b->slot[i] = (tokenizer__merge){pair, rank, id};
}

static const tokenizer__merge *find(const tokenizer__bpe *b, int32_t left, int32_t right) {
    uint64_t pair = pair_of(left, right);
    for (uint64_t i = slot_of(pair, b->mask);; i = (i + 1) & b->mask) {
        if (b->slot[i].pair == pair) return &b->slot[i];
        if (b->slot[i].pair == UINT64_MAX) return NULL;
    }
}

static int32_t rank_of(const tokenizer__bpe *b, int32_t left, int32_t right) {
    const tokenizer__merge *m = find(b, left, right);
    return m ? m->rank : INT32_MAX;
}

/* Merges id[0..n) in place, returns how many symbols remain. */
static size_t merge_short(const tokenizer__bpe *b, int32_t *id, size_t n) {
    int32_t rank[SHORT]; /* [n-1] of the pair (i, i+1) */
    for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        id[best] = find(b, id[best], id[best + 1])->id;
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        if (best + 2 < n) memmove(rank + best, rank + best + 1, (n - best - 2) * sizeof *rank);
        n--;
        if (best + 1 < n) rank[best] = rank_of(b, id[best], id[best + 1]);
        if (best > 0) rank[best - 1] = rank_of(b, id[best - 1], id[best]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= v) break;
        heap[i] = heap[child];
    }
    heap[i] = v;
}

static void push(uint64_t *heap, size_t *n, uint64_t v) {
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > v; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = v;
}

static void offer(const tokenizer__bpe *b, tokenizer__bpe_scratch *c, size_t *n_heap,
                  int32_t left) {
    int32_t right = left < 0 ? -1 : c->next[left];
    if (right < 0) return;
    const tokenizer__merge *m = find(b, c->id[left], c->id[right]);
    if (m) push(c->heap, n_heap, (uint64_t)m->rank << 32 | (uint32_t)left);
}

/* Merges the list of n symbols; what remains is the list from index 0. A merge keeps the left symbol's place,
 * so the symbol at index 0 lives on; a candidate whose pair has changed since is recognised by its rank. */
static void merge_long(const tokenizer__bpe *b, tokenizer__bpe_scratch *c, int32_t n) {
    size_t n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        c->prev[i] = i - 1;
        c->next[i] = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < n; i++) {
        const tokenizer__merge *m = find(b, c->id[i], c->id[i + 1]);
        if (m) c->heap[n_heap++] = (uint64_t)m->rank << 32 | (uint32_t)i;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(c->heap, n_heap, i);
    while (n_heap > 0) {
        uint64_t top = c->heap[0];
        c->heap[0] = c->heap[--n_heap];
        if (n_heap > 0) sift_down(c->heap, n_heap, 0);
        int32_t left = (int32_t)(top & 0xffffffffu), right = c->next[left];
        if (c->id[left] < 0 || right < 0) continue;
        const tokenizer__merge *m = find(b, c->id[left], c->id[right]);
        if (!m || (uint64_t)m->rank != top >> 32) continue;
        c->id[left] = m->id;
        c->id[right] = -1;
        c->next[left] = c->next[right];
        if (c->next[left] >= 0) c->prev[c->next[left]] = left;
        offer(b, c, &n_heap, c->prev[left]);
        offer(b, c, &n_heap, left);
    }
}

void tokenizer__bpe_scratch_free(tokenizer__bpe_scratch *c) {
    mem_free(c->id);
    mem_free(c->prev);
    mem_free(c->next);
    mem_free(c->heap);
    *c = (tokenizer__bpe_scratch){0};
}

static err piece_long(const tokenizer__bpe *b, tokenizer__bpe_scratch *c, const char *piece,
                      size_t n, int32_t *out, size_t *added) {
    if (n >= INT32_MAX / 4)
        return err_set(ERR_RANGE, "a text of %zu bytes without a break is too long to tokenize", n);
    TRY(mem_grow(&c->id, &c->id_cap, n, sizeof *c->id));
    TRY(mem_grow(&c->prev, &c->prev_cap, n, sizeof *c->prev));
    TRY(mem_grow(&c->next, &c->next_cap, n, sizeof *c->next));
    TRY(mem_grow(&c->heap, &c->heap_cap, 2 * n,
                 sizeof *c->heap)); /* a merge takes one, offers two */
    int32_t symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[(unsigned char)piece[i]];
        if (id >= 0) c->id[symbols++] = id;
    }
    *added = 0;
    if (symbols == 0) return ERR_OK;
    merge_long(b, c, symbols);
    for (int32_t i = 0; i >= 0; i = c->next[i]) out[(*added)++] = c->id[i];
    return ERR_OK;
}

err tokenizer__bpe_piece(const tokenizer__bpe *b, tokenizer__bpe_scratch *c, const char *piece,
                         size_t n, int32_t **ids, size_t *n_ids, size_t *cap) {
    if (n > SHORT) {
        TRY(mem_grow(ids, cap, *n_ids + n, sizeof **ids));
        size_t added = 0;
        TRY(piece_long(b, c, piece, n, *ids + *n_ids, &added));
        *n_ids += added;
        return ERR_OK;
    }
    int32_t id[SHORT];
    size_t symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t one = b->byte_id[(unsigned char)piece[i]];
        if (one >= 0) id[symbols++] = one;
    }
    if (symbols == 0) return ERR_OK;
    symbols = merge_short(b, id, symbols);
    TRY(mem_grow(ids, cap, *n_ids + symbols, sizeof **ids));
    memcpy(*ids + *n_ids, id, symbols * sizeof *id);
    *n_ids += symbols;
    return ERR_OK;
}
