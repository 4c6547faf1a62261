/* Block masks as padded lists of tiles, the form PyTorch's BlockMask has, in and out; and given masks against their expression.
 *
 * Lists are int32, contiguous: counts [batch, heads, rows], indices [batch, heads, rows, columns], rows by query tiles
 * (kv_*) or by key tiles (q_*). "Partial" lists hold tiles whose cells the expression decides one by one, "full" lists tiles
 * that are visible whole. What stands behind a row's count is not read. */
#ifndef FLEX_BLOCKMASK_LISTS_H
#define FLEX_BLOCKMASK_LISTS_H
#include "flex/blockmask.h"

typedef struct blockmask_side {
    const int32_t *count, *index;           /* partial tiles */
    const int32_t *full_count, *full_index; /* NULL, both: none is full */
} blockmask_side;

typedef struct blockmask_lists {
    int64_t batch, heads; /* 1: for all */
    int64_t q_len, kv_len;
    int32_t tile_q, tile_kv;
    blockmask_side kv; /* for each query tile */
    blockmask_side q;  /* for each key tile; count NULL: not given */
} blockmask_lists;

/* Refused with a sentence that names list and tile: counts or indices out of range, a tile twice, partial and full at
 * once, lists by key tiles that differ from those by query tiles. What only an expression knows (proofs, empty rows)
 * is left at "not proven". budget 0: 256 MiB. Memory from a. */
MUST_CHECK err blockmask_import(block_mask *out, const blockmask_lists *lists, size_t budget,
                                arena *a);
/* Both sides, indices rising, -1 behind the counts. */
MUST_CHECK err blockmask_export(blockmask_lists *out, const block_mask *m, arena *a);
/* Whether given tiles say what args' expression says: ERR_RANGE names the first tile that is listed as full or left out
 * although cells differ. Tiles listed as partial are never wrong; *loose (or NULL) counts those that need not be. */
MUST_CHECK err blockmask_check(const block_mask *given, const block_mask_args *args,
                               int64_t *loose);
/* The same mask with entries of their own for all of batch and heads, each 1 in m or as there. budget as above. Memory from a. */
MUST_CHECK err blockmask_spread(block_mask *out, const block_mask *m, int64_t batch, int64_t heads,
                                size_t budget, arena *a);
/* ERR_SHAPE with both extents when a mask was built for other lengths, batch or heads than the tensors have. */
MUST_CHECK err blockmask_fits(const block_mask *m, int64_t batch, int64_t heads, int64_t q_len,
                              int64_t kv_len);

#endif
