/* state.json of a checkpoint, shared by checkpoint.c and checkpoint_state.c only.
 *
 * Reading is strict: every key must be there with its type.
 * Not for other folders or files. */
#ifndef TRAIN_CHECKPOINT_PARTS_H
#define TRAIN_CHECKPOINT_PARTS_H
#include "train/checkpoint.h"

MUST_CHECK err checkpoint__write_state(const char *path, const checkpoint_state *s);
MUST_CHECK err checkpoint__read_state(const char *path, checkpoint_state *s);

#endif
