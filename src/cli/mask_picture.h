/* Pictures of a block mask: as lines for a terminal and as PNG.
 *
 * Tiles come from the mask's runs; small masks are shown cell by cell, evaluated from the expression. Memory follows
 * the picture, never the mask. Layout and colours are report/tile_map.h's. */
#ifndef CLI_MASK_PICTURE_H
#define CLI_MASK_PICTURE_H
#include "cli/captures.h"
#include "flex/blockmask.h"

enum { MASK_PICTURE_CELLS = 512, MASK_PICTURE_LINES = 40 };
/* Cell by cell up to MASK_PICTURE_CELLS a side; a few batches and heads as panels. Memory from mem. */
MUST_CHECK err mask_picture_png(const block_mask *m, const captures *c, const char *path,
                                arena *mem);
/* The first batch and head within `width` columns and MASK_PICTURE_LINES lines, added to out. */
MUST_CHECK err mask_picture_text(const block_mask *m, const captures *c, int width, arena *mem,
                                 str *out);
/* An expression on one line, and the captured scalars' values, for captions. */
MUST_CHECK err mask_picture_caption(const captures *c, str *out);

#endif
