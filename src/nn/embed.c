/* Embedding rows out of packed storage: the frozen table that a drafter borrows from its target.
 *
 * Every id is checked before any row is read, so a bad id names itself instead of reading past the table. There is no
 * gradient: the table is frozen. */
#include "nn/nn.h"
#include "nn/part.h"

enum { ROWS = 16 };

typedef struct embed_job {
    const packed *w;
    const int32_t *ids;
    float *y;
    int64_t n, ldy;
} embed_job;

static err embed_part(void *ctx, int64_t part, int thread) {
    const embed_job *j = ctx;
    (void)thread;
    for (int64_t r = part * ROWS; r < part__end(part, ROWS, j->n); r++)
        packed_row(j->w, j->ids[r], j->y + r * j->ldy);
    return ERR_OK;
}

err nn_embed(dev *d, const packed *w, const int32_t *ids, int64_t n, float *y, int64_t ldy) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->n)
            return err_set(ERR_RANGE,
                           "token id %d at position %lld is outside the embedding of %lld rows",
                           (int)ids[i], (long long)i, (long long)w->n);
    embed_job j = {.w = w, .ids = ids, .y = y, .n = n, .ldy = ldy};
    return part__run(d, part__count(n, ROWS), n * w->k, embed_part, &j);
}
