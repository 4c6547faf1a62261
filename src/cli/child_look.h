/* A look that may crash, hang or print, taken in a child process of its own.
 *
 * The child fills plain bytes and sends them back; nothing of it reaches the terminal, and it has a time limit. Call it
 * while no other thread of this process computes: the child is a fork. */
#ifndef CLI_CHILD_LOOK_H
#define CLI_CHILD_LOOK_H
#include <stddef.h>

/* out[n] is zeroed, filled by look(ctx, out) in the child and copied back. fault is "" then; else it says what became of the
 * child ("ends the process (signal 11)"), and out is zero. */
void child_look(void (*look)(void *ctx, void *out), void *ctx, void *out, size_t n,
                char fault[160]);

#endif
