/* Groups and rings between threads: sums in rank order bit for bit, order of entries, back-pressure, ends that reach everyone.
 *
 * Threads fill plain arrays; all assertions are made by the main thread afterwards. Sizes are odd and shards may be
 * empty. Runs under the thread sanitizer too. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/arena.h"
#include "dist/group.h"
#include "dist/ring.h"
#include "support/numbers.h"
#include "support/says.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* ---- groups ---- */

enum { RANKS = 5, MOST = 70001 };
typedef struct member {
    group *g;
    int rank;
    int64_t n, grain;
    float *x;
    double v[7];
    int64_t *ids;
    err e;
} member;

static err exchange(member *m) {
    TRY(group_sum(m->g, m->rank, m->v, 7));
    TRY(group_reduce(m->g, m->rank, m->x, m->n, m->grain));
    TRY(group_gather(m->g, m->rank, m->x, m->n, m->grain, sizeof *m->x));
    return group_gather(m->g, m->rank, m->ids, m->n, m->grain, sizeof *m->ids);
}
static void *member_run(void *p) {
    member *m = p;
    m->e = exchange(m);
    return NULL;
}

static void one_exchange(int ranks, int64_t n, int64_t grain, uint64_t seed) {
    member m[RANKS];
    pthread_t thread[RANKS];
    group *g = NULL;
    float *want = NULL;
    double sums[7] = {0};
    assert_ok(group_create(&g, ranks));
    assert_ok(mem_new((size_t)n, sizeof *want, &want));
    for (int r = 0; r < ranks; r++) {
        int64_t from, to;
        m[r] = (member){.g = g, .rank = r, .n = n, .grain = grain};
        assert_ok(mem_new((size_t)n, sizeof *m[r].x, &m[r].x));
        assert_ok(mem_new((size_t)n, sizeof *m[r].ids, &m[r].ids));
        numbers_fill(m[r].x, n, seed, (uint64_t)r, 1);
        for (int64_t i = 0; i < n; i++) want[i] = r ? want[i] + m[r].x[i] : m[r].x[i];
        for (int i = 0; i < 7; i++) {
            m[r].v[i] = (double)m[r].x[i % n] * 3.7;
            sums[i] = r ? sums[i] + m[r].v[i] : m[r].v[i];
        }
        group_shard(ranks, r, n, grain, &from, &to);
        for (int64_t i = from; i < to; i++) m[r].ids[i] = 1000 * r + i;
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, member_run, &m[r]), 0);
    for (int r = 0; r < ranks; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(m[r].e, ERR_OK);
        assert_memory_equal(m[r].x, want, (size_t)n * sizeof *want);
        assert_memory_equal(m[r].v, sums, sizeof sums);
        assert_memory_equal(m[r].ids, m[0].ids, (size_t)n * sizeof *m[r].ids);
    }
    for (int r = 0; r < ranks; r++) {
        mem_free(m[r].x);
        mem_free(m[r].ids);
    }
    mem_free(want);
    group_destroy(g);
}

static void sums_are_in_rank_order_on_every_rank(void **state) {
    (void)state;
    const uint64_t seed = numbers_seed();
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        one_exchange(ranks, MOST, 16384, seed);
        one_exchange(ranks, 7, 16, seed + 1); /* shards without an element */
        one_exchange(ranks, 4099, 16, seed + 2);
    }
}

static void shards_cover_everything_once(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int64_t n = 0; n < 200; n += 13) {
            int64_t at = 0, from, to;
            for (int r = 0; r < ranks; r++) {
                group_shard(ranks, r, n, 16, &from, &to);
                assert_int_equal(from, at);
                assert_true(to >= from && (from % 16 == 0 || from == n));
                at = to;
            }
            assert_int_equal(at, n);
        }
}

static void an_abort_ends_every_wait(void **state) {
    (void)state;
    member m[3];
    pthread_t thread[3];
    float x[16] = {0};
    int64_t ids[16] = {0};
    group *g = NULL;
    assert_ok(group_create(&g, 4)); /* the fourth never comes */
    for (int r = 0; r < 3; r++) {
        m[r] = (member){.g = g, .rank = r, .n = 16, .grain = 16, .x = x, .ids = ids};
        assert_int_equal(pthread_create(&thread[r], NULL, member_run, &m[r]), 0);
    }
    usleep(20000);
    group_abort(g);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        assert_int_equal(m[r].e, ERR_STOPPED);
    }
    assert_int_equal(group_barrier(g), ERR_STOPPED); /* later calls as well */
    group_destroy(g);
    assert_says(group_create(&g, 0), ERR_RANGE, "0 ranks");
}

/* ---- rings ---- */

enum { ENTRIES = 2000, PRODUCERS = 3, CAPACITY = 4 };
typedef struct pipe_state {
    ring *r;
    _Atomic int64_t next, released;
    _Atomic int too_far;
    int64_t slot[CAPACITY];
} pipe_state;

static void *produce(void *p) {
    pipe_state *s = p;
    for (;;) {
        const int64_t n = atomic_fetch_add(&s->next, 1);
        if (n >= ENTRIES) return NULL;
        if (n % 97 == 0) usleep(300); /* finished out of order */
        const int slot = ring_reserve(s->r, n);
        if (slot < 0) return NULL;
        if (n - atomic_load(&s->released) >= CAPACITY) atomic_store(&s->too_far, 1);
        s->slot[slot] = n;
        ring_place(s->r, n);
    }
}

static void entries_come_in_order_and_never_too_far_ahead(void **state) {
    (void)state;
    pipe_state s = {0};
    pthread_t thread[PRODUCERS];
    ring_stats stats;
    assert_ok(ring_create(&s.r, CAPACITY));
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, produce, &s), 0);
    for (int64_t n = 0; n < ENTRIES; n++) {
        const int slot = ring_take(s.r);
        assert_true(slot >= 0);
        assert_int_equal(s.slot[slot], n);
        if (n % 53 == 0) usleep(200);
        atomic_store(&s.released, n + 1);
        ring_release(s.r);
    }
    for (int i = 0; i < PRODUCERS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_false(atomic_load(&s.too_far));
    ring_get_stats(s.r, &stats);
    assert_int_equal(stats.passed, ENTRIES);
    assert_int_equal(stats.fill, 0);
    assert_int_equal(stats.capacity, CAPACITY);
    ring_destroy(s.r);
}

static void a_closed_ring_lets_everyone_go(void **state) {
    (void)state;
    pipe_state s = {0};
    pthread_t thread[PRODUCERS];
    ring_stats stats;
    assert_ok(ring_create(&s.r, CAPACITY));
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, produce, &s), 0);
    do { /* until the ring is full and somebody waits for room */
        usleep(1000);
        ring_get_stats(s.r, &stats);
        assert_true(stats.fill <= CAPACITY);
    } while (stats.fill < CAPACITY || stats.producer_wait <= 0);
    ring_close(s.r);
    for (int i = 0; i < PRODUCERS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(ring_take(s.r), -1);
    assert_int_equal(ring_reserve(s.r, 0), -1);
    ring_destroy(s.r);
    assert_says(ring_create(&s.r, 0), ERR_RANGE, "0 entries");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_in_rank_order_on_every_rank),
        cmocka_unit_test(shards_cover_everything_once),
        cmocka_unit_test(an_abort_ends_every_wait),
        cmocka_unit_test(entries_come_in_order_and_never_too_far_ahead),
        cmocka_unit_test(a_closed_ring_lets_everyone_go),
    };
    return cmocka_run_group_tests_name("groups and rings", tests, NULL, NULL);
}
