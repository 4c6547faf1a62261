/* A bounded ring of numbered entries between roles: several producers, one consumer, in the order of the numbers.
 *
 * Entries are numbered 0, 1, 2 … by what they are, not by when they are ready: entry n goes to slot n mod capacity, and a
 * producer waits until the consumer has released entry n - capacity (back-pressure). The consumer takes
 * entries in order and waits for the next one. The lowest entry that is missing can always be placed, so roles that
 * place what they have computed cannot block each other for ever. It moves no data: slots are the owner's memory. */
#ifndef DIST_RING_H
#define DIST_RING_H
#include "core/err.h"
#include <stdint.h>

typedef struct ring ring;
typedef struct ring_stats {
    int64_t fill, capacity;              /* entries placed and not yet released */
    int64_t passed;                      /* entries released so far */
    double producer_wait, consumer_wait; /* seconds, the present wait included */
} ring_stats;

MUST_CHECK err ring_create(ring **out, int capacity);
void ring_destroy(ring *r); /* NULL is fine; no one may be inside */
/* The slot for entry n, when it is free to be filled; -1 when the ring is closed. */
int ring_reserve(ring *r, int64_t n);
void ring_place(ring *r, int64_t n); /* entry n is filled */
/* The slot of the next entry, when it is filled; -1 when the ring is closed. It stays the consumer's until
 * ring_release. */
int ring_take(ring *r);
void ring_release(ring *r);
/* Ends every wait, now and later: for a failure, or when the consumer has all it wanted. */
void ring_close(ring *r);
void ring_get_stats(ring *r, ring_stats *out);

#endif
