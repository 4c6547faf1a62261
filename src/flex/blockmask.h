/* Block masks: which tiles of a mask are empty, partial or full, as runs, in both directions.
 *
 * Built by interval analysis over boxes of tiles, splitting a box only while undecided; what stays undecided at one tile is
 * counted exactly, so the result equals brute force tile by tile. Memory follows the runs, bounded by budget bytes:
 * beyond it ERR_REFUSED with the number needed so far. B and H are 1 where the mask is proven not to change with b or h. */
#ifndef FLEX_BLOCKMASK_H
#define FLEX_BLOCKMASK_H
#include "core/arena.h"
#include "dev/dev.h"
#include "expr/expr.h"
#include "expr/interval_proofs.h"

typedef struct block_run {
    int32_t start, length;
    int32_t full;
} block_run; /* tiles start..start+length-1; full 1, partial 0 */

typedef struct block_mask {
    int64_t batch, heads; /* extents stored: the problem's, or 1 where nothing depends on it */
    int64_t q_len, kv_len;
    int32_t tile_q, tile_kv;
    int64_t q_tiles, kv_tiles;
    /* Row r = (b*heads + h)*q_tiles + qt has runs row_run[row_start[r] .. row_start[r+1]), by start, not touching if alike. */
    const int64_t *row_start;
    const block_run *row_run;
    /* Column c = (b*heads + h)*kv_tiles + kt, runs over query tiles: the exact transpose. */
    const int64_t *col_start;
    const block_run *col_run;
    int64_t empty, partial, full; /* tiles over stored batch and heads */
    int64_t undecided;            /* tiles the analysis left to counting */
    size_t bytes, peak_bytes;     /* of the mask; of building it */
    double build_ms;              /* tables and both directions */
    int no_empty_row;             /* every query row sees at least one key: proven or counted */
    interval_proofs proofs; /* over all cells; names of arrays in it belong to the expression */
    int may_leave; /* some load is not proven inside its array in a visible or evaluated cell */
    int given;     /* read from lists: nothing was proven, and flags say the cautious thing */
} block_mask;

typedef struct block_mask_args {
    const expr *mask; /* NULL: everything visible */
    const expr_env *env;
    int64_t batch, heads; /* the problem's extents */
    int64_t q_len, kv_len;
    int32_t tile_q, tile_kv; /* 0: 128 */
    size_t budget;           /* 0: 256 MiB */
} block_mask_args;

/* The mask's memory is from a; what building needs besides is on the heap and gone afterwards. d may be NULL.
 * ERR_RANGE when a visible cell reads outside a captured array, ERR_REFUSED beyond the budget. */
MUST_CHECK err blockmask_build(block_mask *out, const block_mask_args *args, arena *a, dev *d);
/* Brute force over every cell, for tests: kinds[((b*heads + h)*q_tiles + qt)*kv_tiles + kt] = 0 empty, 1 partial, 2 full,
 * over all of args' batch and heads. */
MUST_CHECK err blockmask_brute(const block_mask_args *args, uint8_t *kinds);

/* In words: tiles, bytes, proofs. */
MUST_CHECK err blockmask_explain(const block_mask *m, str *out);

#endif
