/* The state of one mask being built, shared by the files of blockmask: the list of boxes, the buffers for counting
 * single tiles, and the steps from boxes to runs to proofs. Lives for one build; keeps nothing afterwards.
 * Private to src/flex. */
#ifndef FLEX_BLOCKMASK_PRIVATE_H
#define FLEX_BLOCKMASK_PRIVATE_H
#include "expr/interval.h"
#include "flex/blockmask.h"

/* A square of 2^level tiles of one kind, cut at the mask's ends; q and k count tiles. A single tile may wait to be asked of
 * who has the arrays, with a look at loads that leave. */
enum { BLOCKMASK__ASKED = 2, BLOCKMASK__ASKED_LOADS = 3 };
typedef struct blockmask__box {
    int32_t q, k;
    uint8_t level, full; /* 0, 1, or asked */
} blockmask__box;

/* A square of 2^level tiles inside a block, and what is known of it. */
typedef struct blockmask__part {
    uint8_t q, k, level, kind;
} blockmask__part;

/* Who evaluates many cells in place of this process, as a device that has the captured arrays: boxes of one batch entry and
 * head, at most BLOCKMASK__MANY in a call. */
enum { BLOCKMASK__MANY = 8192, BLOCKMASK__ROWS = 128, BLOCKMASK__WORDS = BLOCKMASK__ROWS / 32 };
typedef struct blockmask__count {
    int some, all; /* of the box's cells are visible */
    int reaches;   /* some cell reaches a load that left; known where asked for */
    int64_t left;  /* the least visible cell that does, row by row; -1: none */
} blockmask__count;
typedef struct blockmask__far {
    interval_source
        arrays; /* leaves NULL: env's arrays can be read here all the same, and are analysed from there */
    void *ctx;
    /* loads[i]: of box i, loads that leave are looked for too */
    err (*count)(void *ctx, const interval_box *box, const uint8_t *loads, int n,
                 blockmask__count *out);
    /* Bit r % 32 of seen[slot[i]*BLOCKMASK__WORDS + r / 32] becomes 1 where row r of box i (at most BLOCKMASK__ROWS rows)
     * sees one of its keys; the others of slots 0..slots-1 become 0. */
    err (*rows)(void *ctx, const interval_box *box, const int *slot, int n, int slots,
                uint32_t *seen);
} blockmask__far;

typedef struct blockmask__builder {
    block_mask_args args;      /* tiles and budget resolved, batch and heads as stored */
    const blockmask__far *far; /* NULL: cells are evaluated here */
    const interval_tables *tables;
    interval_many *many; /* NULL: boxes are classified one by one */
    block_mask *out;
    blockmask__part
        *part[2];        /* [SIDE * SIDE] a block's boxes before and after a round of splitting */
    int64_t b, h;        /* the entry being built */
    blockmask__box *box; /* of all entries, in Z order within each */
    size_t n, cap;
    int64_t *first; /* [entries + 1] boxes of an entry */
    uint8_t *cells; /* [tile_q, tile_kv] */
    void *scratch;  /* of the tile interpreter, 64-aligned */
    size_t held;    /* bytes of cells, scratch and tables */
} blockmask__builder;

/* As blockmask_build. */
MUST_CHECK err blockmask__build(block_mask *out, const block_mask_args *args,
                                const blockmask__far *far, arena *a);
/* Boxes that were left to be asked become partial, full or nothing, in their order. */
MUST_CHECK err blockmask__ask(blockmask__builder *w);
size_t blockmask__ask_bytes(void); /* that asking takes on the heap */
/* *all: every row of the given lines of tiles (as row_start numbers them, rising) sees a key among their runs. */
MUST_CHECK err blockmask__ask_rows(blockmask__builder *w, const int64_t *line, size_t n, int *all);
/* ERR_RANGE for a visible cell that reads outside an array. */
MUST_CHECK err blockmask__leaves(const blockmask__builder *w, int64_t b, int64_t h, int64_t q,
                                 int64_t kv);
/* All boxes of entry (w->b, w->h), appended. */
MUST_CHECK err blockmask__visit(blockmask__builder *w);
/* Appends a box of one kind. */
MUST_CHECK err blockmask__push(blockmask__builder *w, int64_t q, int64_t k, int level, int full);
/* Appends what tile (q, k) is when the analysis of boxes left it open. */
MUST_CHECK err blockmask__decide_tile(blockmask__builder *w, int64_t q, int64_t k);
/* The boxes of a block of 2^level tiles, at most BLOCKMASK__SIDE, from (q, k) on, by many at a time. */
enum { BLOCKMASK__LEVEL = 6, BLOCKMASK__SIDE = 1 << BLOCKMASK__LEVEL };
MUST_CHECK err blockmask__visit_block(blockmask__builder *w, int64_t q, int64_t k, int level);
/* The cells of nq x nk tiles from (q, k) on, cut at the mask's ends. */
interval_box blockmask__cells(const blockmask__builder *w, int64_t q, int64_t k, int64_t nq,
                              int64_t nk);
/* Tiles of a box along one side that begins at `from`. */
static inline int64_t blockmask__length(int level, int64_t from, int64_t tiles) {
    int64_t side = (int64_t)1 << level;
    return side < tiles - from ? side : tiles - from;
}
/* The mask depends on q - kv alone, and tiles are square: blockmask__diagonal makes all of its runs, without boxes. */
int blockmask__is_diagonal(const blockmask__builder *w);
MUST_CHECK err blockmask__diagonal(blockmask__builder *w, arena *a);
/* Rows and columns of runs out of the boxes; fills starts, runs and bytes. */
MUST_CHECK err blockmask__runs(blockmask__builder *w, arena *a);
/* Fills no_empty_row: by full tiles, then by proof over strips of rows, then row by row. */
MUST_CHECK err blockmask__no_empty_row(blockmask__builder *w, arena *temp);
/* ERR_REFUSED when bytes on top of what is held pass the budget. */
MUST_CHECK err blockmask__afford(const blockmask__builder *w, size_t bytes);

#endif
