/* The ring: one lock, two conditions, one filled flag per slot.
 *
 * Entries are rows of thousands of tokens, so a lock per entry costs nothing beside them; what counts is that no wake-up
 * is lost and that closing reaches everyone. Waiting time is kept for `status`. No data is touched here. */
#include "dist/ring.h"
#include "core/arena.h"
#include "core/clock.h"
#include <pthread.h>

struct ring {
    pthread_mutex_t lock;
    pthread_cond_t room, filled;
    int capacity, closed;
    int64_t next;  /* entry that the consumer takes next or holds */
    uint8_t *full; /* [capacity] */
    int64_t fill;
    double producer_wait, consumer_wait;
    int producers_waiting;
    double producer_since,
        consumer_since; /* of the present wait; producers': summed start times; 0: none */
};

err ring_create(ring **out, int capacity) {
    ring *r = NULL;
    *out = NULL;
    if (capacity < 1) return err_set(ERR_RANGE, "a ring of %d entries cannot hold any", capacity);
    TRY(mem_new(1, sizeof *r, &r));
    err e = mem_new((size_t)capacity, 1, &r->full);
    if (e) {
        mem_free(r);
        return e;
    }
    r->capacity = capacity;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->room, NULL);
    pthread_cond_init(&r->filled, NULL);
    *out = r;
    return ERR_OK;
}

void ring_destroy(ring *r) {
    if (!r) return;
    pthread_cond_destroy(&r->filled);
    pthread_cond_destroy(&r->room);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->full);
    mem_free(r);
}

int ring_reserve(ring *r, int64_t n) {
    pthread_mutex_lock(&r->lock);
    if (!r->closed && n >= r->next + r->capacity) {
        const double start = clock_seconds();
        r->producers_waiting++;
        r->producer_since += start;
        while (!r->closed && n >= r->next + r->capacity) pthread_cond_wait(&r->room, &r->lock);
        r->producers_waiting--;
        r->producer_since -= start;
        r->producer_wait += clock_seconds() - start;
    }
    const int slot = r->closed ? -1 : (int)(n % r->capacity);
    pthread_mutex_unlock(&r->lock);
    return slot;
}

void ring_place(ring *r, int64_t n) {
    pthread_mutex_lock(&r->lock);
    r->full[n % r->capacity] = 1;
    r->fill++;
    if (n == r->next) pthread_cond_signal(&r->filled);
    pthread_mutex_unlock(&r->lock);
}

int ring_take(ring *r) {
    pthread_mutex_lock(&r->lock);
    const int64_t at = r->next % r->capacity;
    if (!r->closed && !r->full[at]) {
        r->consumer_since = clock_seconds();
        while (!r->closed && !r->full[at]) pthread_cond_wait(&r->filled, &r->lock);
        r->consumer_wait += clock_seconds() - r->consumer_since;
        r->consumer_since = 0;
    }
    const int slot = r->closed ? -1 : (int)at;
    pthread_mutex_unlock(&r->lock);
    return slot;
}

void ring_release(ring *r) {
    pthread_mutex_lock(&r->lock);
    r->full[r->next % r->capacity] = 0;
    r->fill--;
    r->next++;
    pthread_cond_broadcast(&r->room);
    pthread_mutex_unlock(&r->lock);
}

void ring_close(ring *r) {
    pthread_mutex_lock(&r->lock);
    r->closed = 1;
    pthread_cond_broadcast(&r->room);
    pthread_cond_broadcast(&r->filled);
    pthread_mutex_unlock(&r->lock);
}

void ring_get_stats(ring *r, ring_stats *out) {
    pthread_mutex_lock(&r->lock);
    const double now = clock_seconds();
    *out = (ring_stats){.fill = r->fill,
                        .capacity = r->capacity,
                        .passed = r->next,
                        .producer_wait =
                            r->producer_wait + r->producers_waiting * now - r->producer_since,
                        .consumer_wait = r->consumer_wait};
    if (r->consumer_since > 0) out->consumer_wait += now - r->consumer_since;
    pthread_mutex_unlock(&r->lock);
}
