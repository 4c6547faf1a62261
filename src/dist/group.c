/* Groups of threads: one barrier that can be aborted, and exchanges through the ranks' own pointers.
 *
 * An exchange shows each rank's buffer to the others between two barriers. A rank writes only its own shard while the others
 * read only theirs of its buffer, so nothing is copied that need not be. Not for ranks of other processes. */
#include "dist/group.h"
#include "core/arena.h"
#include <pthread.h>
#include <string.h>

struct group {
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int inside;
    uint64_t round;
    int aborted;
    void *shown[GROUP_MAX_RANKS];
};

err group_create(group **out, int ranks) {
    group *g = NULL;
    *out = NULL;
    if (ranks < 1 || ranks > GROUP_MAX_RANKS)
        return err_set(ERR_RANGE, "a group of %d ranks is not possible; 1 to %d are", ranks,
                       GROUP_MAX_RANKS);
    TRY(mem_new(1, sizeof *g, &g));
    g->ranks = ranks;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->turn, NULL);
    *out = g;
    return ERR_OK;
}

void group_destroy(group *g) {
    if (!g) return;
    pthread_cond_destroy(&g->turn);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

int group_ranks(const group *g) { return g->ranks; }

void group_abort(group *g) {
    pthread_mutex_lock(&g->lock);
    g->aborted = 1;
    pthread_cond_broadcast(&g->turn);
    pthread_mutex_unlock(&g->lock);
}

void group_shard(int ranks, int rank, int64_t n, int64_t grain, int64_t *from, int64_t *to) {
    const int64_t grains = (n + grain - 1) / grain;
    *from = grains * rank / ranks * grain;
    *to = grains * (rank + 1) / ranks * grain;
    if (*from > n) *from = n;
    if (*to > n) *to = n;
}

/* Waits for all ranks. */
static err meet(group *g) {
    pthread_mutex_lock(&g->lock);
    const uint64_t mine = g->round;
    if (!g->aborted && ++g->inside == g->ranks) {
        g->inside = 0;
        g->round++;
        pthread_cond_broadcast(&g->turn);
    }
    while (g->round == mine && !g->aborted) pthread_cond_wait(&g->turn, &g->lock);
    /* A round that was completed counts, also when the group was aborted just after. */
    const int done = g->round != mine;
    pthread_mutex_unlock(&g->lock);
    return done ? ERR_OK : err_set(ERR_STOPPED, "another rank of the group has ended");
}

/* Shows p to the others; it may be read until the next meeting. */
static err show(group *g, int rank, void *p) {
    g->shown[rank] = p; /* no one reads it now: the last exchange ended with a meeting */
    return meet(g);
}

err group_barrier(group *g) { return g->ranks == 1 ? ERR_OK : meet(g); }

err group_sum(group *g, int rank, double *v, int n) {
    double sum[GROUP_SUMS];
    if (n > GROUP_SUMS)
        return err_set(ERR_INTERNAL, "%d sums in one exchange; %d fit", n, GROUP_SUMS);
    if (g->ranks == 1) return ERR_OK;
    TRY(show(g, rank, v));
    for (int i = 0; i < n; i++) {
        sum[i] = ((const double *)g->shown[0])[i];
        for (int r = 1; r < g->ranks; r++) sum[i] += ((const double *)g->shown[r])[i];
    }
    TRY(meet(g)); /* all have read */
    memcpy(v, sum, (size_t)n * sizeof *v);
    return ERR_OK;
}

enum { STRIP = 4096 }; /* elements summed at a time: they stay in the first cache */

err group_reduce(group *g, int rank, float *x, int64_t n, int64_t grain) {
    int64_t from, to;
    if (g->ranks == 1) return ERR_OK;
    group_shard(g->ranks, rank, n, grain, &from, &to);
    TRY(show(g, rank, x));
    for (int64_t at = from; at < to; at += STRIP) {
        float s[STRIP];
        const int64_t m = to - at < STRIP ? to - at : STRIP;
        memcpy(s, (const float *)g->shown[0] + at, (size_t)m * sizeof *s);
        for (int r = 1; r < g->ranks; r++) {
            const float *other = (const float *)g->shown[r] + at;
            for (int64_t i = 0; i < m; i++) s[i] += other[i];
        }
        memcpy(x + at, s, (size_t)m * sizeof *s);
    }
    return meet(g);
}

err group_gather(group *g, int rank, void *x, int64_t n, int64_t grain, size_t size) {
    if (g->ranks == 1) return ERR_OK;
    TRY(show(g, rank, x));
    for (int r = 0; r < g->ranks; r++) {
        int64_t from, to;
        if (r == rank) continue;
        group_shard(g->ranks, r, n, grain, &from, &to);
        memcpy((char *)x + (size_t)from * size, (const char *)g->shown[r] + (size_t)from * size,
               (size_t)(to - from) * size);
    }
    return meet(g);
}
