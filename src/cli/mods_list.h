/* The gallery, printed: names, expressions, what they capture, and the PyTorch functions they equal.
 *
 * For people, or as one JSON array for scripts (the fixtures' script reads it). The table itself is flex/mods.h; nothing is
 * evaluated here. */
#ifndef CLI_MODS_LIST_H
#define CLI_MODS_LIST_H
#include "core/err.h"

MUST_CHECK err mods_list(int json);

#endif
