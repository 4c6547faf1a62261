/* A group of ranks that train one drafter together: barriers and exchanges whose result depends on the ranks' order, never on timing.
 *
 * Ranks are threads of this process. An array is cut into one shard per rank; a sum is an exchange of shards, a sum in
 * rank order, and a gather: s = x0, s += x1, s += x2 …, so the same number of ranks gives the same bits wherever they
 * run. Every rank calls the same functions in the same order. With one rank nothing is touched.
 * group_abort ends every wait with ERR_STOPPED; no call waits for a rank that has failed. */
#ifndef DIST_GROUP_H
#define DIST_GROUP_H
#include "core/err.h"
#include <stddef.h>
#include <stdint.h>

enum { GROUP_MAX_RANKS = 64, GROUP_SUMS = 256 };
typedef struct group group;

MUST_CHECK err group_create(group **out, int ranks);
void group_destroy(group *g); /* NULL is fine */
int group_ranks(const group *g);
void group_abort(group *g);
/* Shard of a rank: elements [*from, *to) of n, cut at multiples of grain. */
void group_shard(int ranks, int rank, int64_t n, int64_t grain, int64_t *from, int64_t *to);

MUST_CHECK err group_barrier(group *g);
/* v[n] becomes the sum over ranks, in rank order, on every rank; n <= GROUP_SUMS. */
MUST_CHECK err group_sum(group *g, int rank, double *v, int n);
/* x [n] on every rank: the rank's own shard becomes the sum over ranks, in rank order; the rest keeps its bits. */
MUST_CHECK err group_reduce(group *g, int rank, float *x, int64_t n, int64_t grain);
/* x [n] elements of `size` bytes: every rank receives the shards of all others. */
MUST_CHECK err group_gather(group *g, int rank, void *x, int64_t n, int64_t grain, size_t size);

#endif
