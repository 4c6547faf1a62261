/* The attention weights of one head as PNG.
 *
 * Weights are computed again row by row from q, k and the LSE of a finished forward: exp(scale q.k - lse) where the mask
 * shows a cell. Beside the picture's own bytes one row is held. Hidden cells have a colour of their own. */
#ifndef CLI_ATTEND_PICTURE_H
#define CLI_ATTEND_PICTURE_H
#include "cli/captures.h"
#include "flex/flex.h"

/* Beyond this many cells a side a square is the mean of several weights. */
enum { ATTEND_PICTURE_CELLS = 1024 };
/* Whether a picture of head can be made of this problem: asked before the work. */
MUST_CHECK err attend_picture_check(const flex_problem *p, int64_t head);
/* Of batch 0. c->program NULL: everything visible; score likewise: the logits as they are. Memory from mem. */
MUST_CHECK err attend_picture_png(const flex_problem *p, const flex_io *io, const captures *c,
                                  const captures *score, int64_t head, const char *path,
                                  arena *mem);

#endif
