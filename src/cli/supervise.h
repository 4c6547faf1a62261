/* `train --supervise N`: a parent that runs the trainer as its child and starts it again after a crash.
 *
 * Again after a signal or a failure, up to N times, with pauses that grow while nothing is gained. Not after done or a stop by request, nor
 * when it was refused (recipe, plan, data, a folder in use: it would be again), and not when it failed in the same way at the same update
 * without a new checkpoint: that would go on for ever.
 * SIGINT, SIGTERM and SIGHUP are passed on. The child is killed when the parent dies, however it dies. */
#ifndef CLI_SUPERVISE_H
#define CLI_SUPERVISE_H
#include "cli/args.h"

enum { SUPERVISE_MAX = 1000 };
/* a: the arguments of train, given to the child again without --supervise (and without --fresh once it has begun). run: its folder.
 * Returns what the last child's exit code says: ERR_OK, ERR_USAGE (2), ERR_STOPPED (3), else the cause; without a text where the child
 * gave the whole reason itself. */
MUST_CHECK err supervise(const args *a, const char *run, int64_t restarts);

#endif
