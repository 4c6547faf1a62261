/* The state of one mask being built, shared by the files of blockmask: the list of boxes, the buffers for counting
 * single tiles, and the steps from boxes to runs to proofs. Lives for one build; keeps nothing afterwards.
 * Private to src/flex. */
#ifndef FLEX_BLOCKMASK_PRIVATE_H
#define FLEX_BLOCKMASK_PRIVATE_H
#include "expr/interval.h"
#include "flex/blockmask.h"

/* A rectangle of tiles of one kind; q and k count tiles. */
typedef struct blockmask__box {
    int32_t q, k, nq, nk;
    int32_t full;
} blockmask__box;

typedef struct blockmask__builder {
    block_mask_args args; /* tiles and budget resolved, batch and heads as stored */
    const interval_tables *tables;
    block_mask *out;
    int64_t b, h;        /* the entry being built */
    blockmask__box *box; /* of all entries, in Z order within each */
    size_t n, cap;
    int64_t *first; /* [entries + 1] boxes of an entry */
    uint8_t *cells; /* [tile_q, tile_kv] */
    void *scratch;  /* of the tile interpreter, 64-aligned */
    size_t held;    /* bytes of cells, scratch and tables */
} blockmask__builder;

/* All boxes of entry (w->b, w->h), appended. */
MUST_CHECK err blockmask__visit(blockmask__builder *w);
/* Rows and columns of runs out of the boxes; fills starts, runs and bytes. */
MUST_CHECK err blockmask__runs(blockmask__builder *w, arena *a);
/* Whether every row of every entry sees a key: by full tiles, then by proof over strips of rows, then row by row. */
int blockmask__no_empty_row(blockmask__builder *w);
/* ERR_REFUSED when bytes on top of what is held pass the budget. */
MUST_CHECK err blockmask__afford(const blockmask__builder *w, size_t bytes);

#endif
