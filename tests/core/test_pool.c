/* The thread pool: every task once, the lowest failure wins, tiny runs, queued callers, refused nesting.
 *
 * Tasks write plain memory where no two may overlap, so the thread sanitizer judges the pool too. Asserts
 * are made in the main thread; tasks only count. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/pool.h"

static pool *make(int threads) {
    pool *p;
    assert_int_equal(pool_create(&p, threads), ERR_OK);
    assert_int_equal(pool_threads(p), threads);
    return p;
}

typedef struct counts {
    atomic_int hits[1000];
    atomic_int bad_thread;
    int threads;
} counts;

static err count_task(void *ctx, int64_t task, int thread) {
    counts *c = ctx;
    atomic_fetch_add(&c->hits[task], 1);
    if (thread < 0 || thread >= c->threads) atomic_store(&c->bad_thread, 1);
    return ERR_OK;
}

static void every_task_runs_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        pool *p = make(threads);
        static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, -1};
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            counts *c = calloc(1, sizeof *c);
            c->threads = threads;
            assert_int_equal(pool_run(p, sizes[s], count_task, c), ERR_OK);
            for (int64_t i = 0; i < 1000; i++)
                assert_int_equal(atomic_load(&c->hits[i]), i < sizes[s]);
            assert_int_equal(atomic_load(&c->bad_thread), 0);
            free(c);
        }
        pool_destroy(p);
    }
}

typedef struct gate {
    pool *p;
    atomic_int inside, open;
} gate;

static err wait_at_gate(void *ctx, int64_t task, int thread) {
    gate *g = ctx;
    (void)task;
    (void)thread;
    atomic_fetch_add(&g->inside, 1);
    while (!atomic_load(&g->open)) usleep(1000);
    return ERR_OK;
}

static void *run_to_gate(void *ctx) {
    gate *g = ctx;
    return pool_run(g->p, 3, wait_at_gate, g) ? ctx : NULL;
}

static void it_shows_what_its_threads_work_at(void **state) {
    enum { THREADS = 4 };
    gate g = {.p = make(THREADS)};
    pool_view v[THREADS + 1];
    pthread_t caller;
    void *failed;
    int busy = 0, tasks = 0;
    (void)state;
    assert_int_equal(pool_look(g.p, v, THREADS + 1), THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(v[i].fn, 0);
    assert_int_equal(pthread_create(&caller, NULL, run_to_gate, &g), 0);
    while (atomic_load(&g.inside) < 3) usleep(1000);
    usleep(50000);
    assert_int_equal(pool_look(g.p, v, 2), 2);
    assert_int_equal(pool_look(g.p, v, THREADS + 1), THREADS);
    for (int i = 0; i < THREADS; i++) {
        if (!v[i].fn) continue;
        busy++;
        assert_int_equal(v[i].fn, (uintptr_t)wait_at_gate);
        assert_int_equal(v[i].n, 3);
        assert_true(v[i].task >= 0 && v[i].task < 3 && v[i].seconds > 0);
        assert_true((v[i].system_id != 0) == (i > 0));
        tasks |= 1 << v[i].task;
    }
    assert_int_equal(busy, 3); /* the fourth found no task */
    assert_int_equal(tasks, 7);
    atomic_store(&g.open, 1);
    pthread_join(caller, &failed);
    assert_null(failed);
    pool_look(g.p, v, THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(v[i].fn, 0);
    pool_destroy(g.p);
}

typedef struct slots {
    int64_t value[8];
} slots;

static err slot_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    slots *s = ctx;
    s->value[task]++; /* plain memory: a task that overlapped the next run would be a race */
    return ERR_OK;
}

static void ten_thousand_tiny_runs(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        pool *p = make(threads);
        slots s = {{0}};
        for (int run = 0; run < 10000; run++)
            assert_int_equal(pool_run(p, 1 + run % 8, slot_task, &s), ERR_OK);
        for (int i = 0; i < 8; i++) assert_int_equal(s.value[i], 10000 - 1250 * i);
        pool_destroy(p);
    }
}

typedef struct failing {
    int64_t every, from;
    atomic_int ran;
    int slow_first;
} failing;

static err failing_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    failing *f = ctx;
    atomic_fetch_add(&f->ran, 1);
    if (task < f->from || task % f->every != 0) return ERR_OK;
    /* The lowest failing task is the last to say so. */
    if (f->slow_first && task < f->from + f->every) usleep(2000);
    return err_set(task % 2 ? ERR_IO : ERR_FORMAT, "task %lld went wrong", (long long)task);
}

static void the_lowest_failure_wins_with_its_text(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        pool *p = make(threads);
        for (int round = 0; round < 20; round++) {
            failing f = {.every = 3, .from = round, .slow_first = round % 2};
            int64_t first = (round + 2) / 3 * 3;
            char text[64];
            snprintf(text, sizeof text, "task %lld went wrong", (long long)first);
            err_clear();
            assert_int_equal(pool_run(p, 500, failing_task, &f), first % 2 ? ERR_IO : ERR_FORMAT);
            assert_string_equal(err_text(), text);
            assert_true(atomic_load(&f.ran) >= first + 1);
            if (threads == 1)
                assert_int_equal(atomic_load(&f.ran), first + 1); /* the rest is skipped */
        }
        counts *c = calloc(1, sizeof *c); /* and the pool is whole afterwards */
        c->threads = threads;
        assert_int_equal(pool_run(p, 100, count_task, c), ERR_OK);
        for (int i = 0; i < 100; i++) assert_int_equal(atomic_load(&c->hits[i]), 1);
        free(c);
        pool_destroy(p);
    }
}

typedef struct nested {
    pool *inner, *own;
    atomic_int refused, sum;
} nested;

static err inner_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    atomic_fetch_add(&((nested *)ctx)->sum, (int)task);
    return ERR_OK;
}

static err outer_task(void *ctx, int64_t task, int thread) {
    (void)task;
    (void)thread;
    nested *n = ctx;
    if (pool_run(n->own, 3, inner_task, n) == ERR_INTERNAL) atomic_fetch_add(&n->refused, 1);
    return pool_run(n->inner, 5, inner_task, n); /* another pool is fine, and callers queue */
}

static void own_pool_is_refused_and_another_is_fine(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        nested n = {.inner = make(2), .own = make(threads)};
        assert_int_equal(pool_run(n.own, 40, outer_task, &n), ERR_OK);
        assert_int_equal(atomic_load(&n.refused), 40);
        assert_int_equal(atomic_load(&n.sum), 400);
        pool_destroy(n.own);
        pool_destroy(n.inner);
    }
}

typedef struct caller {
    pool *p;
    int64_t sum;
    err result;
    atomic_llong total;
} caller;

static err add_task(void *ctx, int64_t task, int thread) {
    (void)thread;
    atomic_fetch_add(&((caller *)ctx)->total, task);
    return ERR_OK;
}

static void *call_often(void *ctx) {
    caller *c = ctx;
    for (int i = 0; i < 300 && !c->result; i++) c->result = pool_run(c->p, 10, add_task, c);
    return NULL;
}

static void callers_of_several_threads_queue(void **state) {
    (void)state;
    pool *p = make(3);
    caller c[4];
    pthread_t t[4];
    memset(c, 0, sizeof c);
    for (int i = 0; i < 4; i++) {
        c[i].p = p;
        assert_int_equal(pthread_create(&t[i], NULL, call_often, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c[i].result, ERR_OK);
        assert_int_equal(atomic_load(&c[i].total), 300 * 45);
    }
    pool_destroy(p);
}

static void limits(void **state) {
    (void)state;
    pool *p;
    assert_int_equal(pool_create(&p, 0), ERR_RANGE);
    assert_null(p);
    assert_int_equal(pool_create(&p, 1025), ERR_RANGE);
    assert_non_null(strstr(err_text(), "1025"));
    assert_true(pool_cpus() >= 1);
    pool_destroy(NULL);
    for (int i = 0; i < 200; i++)
        pool_destroy(make(1 + i % 8)); /* started and ended without a run */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(it_shows_what_its_threads_work_at),
        cmocka_unit_test(ten_thousand_tiny_runs),
        cmocka_unit_test(the_lowest_failure_wins_with_its_text),
        cmocka_unit_test(own_pool_is_refused_and_another_is_fine),
        cmocka_unit_test(callers_of_several_threads_queue),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
