/* Thread pool: one run at a time, open to whoever comes in time.
 *
 * The caller publishes a run (generation + 1), wakes the workers, and takes tasks itself from one atomic
 * counter. A worker that is awake enters the run and takes tasks too; when the tasks are gone the caller
 * closes the run and waits only for those that entered, so a tiny run never waits for a sleeper.
 * Entering and leaving is one atomic word, the gate: all workers come at the same moment, and at a lock
 * they would queue. The lock is for those that sleep and for failures.
 * Tasks start in order of their numbers: when task t fails, all lower ones have started and will
 * finish, so the failure with the lowest number is always seen, whatever the threads did.
 * An idle worker looks at the gate for some microseconds before it sleeps; with more threads
 * than CPUs it sleeps at once. No stealing, no nesting, no priorities.
 * What a thread works at it writes to a seat of its own, for whoever looks into a run that stands still: threads of a pool take
 * no signals, so they cannot be asked. */
#include "core/pool.h"
#include "core/arena.h"
#include "core/thread.h"
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MAX = 2048, MAX_THREADS = 1024, SPINS = 2000, MAX_CPUS = 16384 };

typedef struct worker {
    pool *owner;
    pthread_t id;
    int index; /* 1..threads-1; the caller is 0 */
} worker;

/* What one thread does: written by it alone, read by pool_look. A cache line each. */
typedef struct seat {
    _Atomic uintptr_t fn; /* 0: nothing */
    _Atomic int64_t task, n, since, system_id;
    char apart[24];
} seat;

struct pool {
    int threads, spins;
    worker *workers; /* [threads - 1] started ones */
    seat *seats;     /* [threads] */
    int started;
    pthread_mutex_t callers; /* held for a whole run */
    /* Of a run; written while nobody is inside. */
    int64_t n;
    pool_task fn;
    void *ctx;
    pthread_mutex_t lock; /* guards what follows up to the atomics */
    pthread_cond_t wake, done;
    int stop, sleeping;
    err code; /* of failed task `first_failed` */
    char text[TEXT_MAX];
    _Atomic int64_t next, first_failed;
    _Atomic uint64_t
        gate; /* generation of the run, whether it is open, how many workers are inside */
};

#define INSIDE     UINT64_C(0xffff) /* mask of the gate's count */
#define OPEN       UINT64_C(0x10000)
#define GENERATION UINT64_C(0x20000) /* one generation */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void note_failure(pool *p, int64_t task, err code) {
    pthread_mutex_lock(&p->lock);
    if (task < atomic_load(&p->first_failed)) {
        atomic_store(&p->first_failed, task);
        p->code = code;
        snprintf(p->text, sizeof p->text, "%s", err_text());
    }
    pthread_mutex_unlock(&p->lock);
}

/* Of the clock's last tick, some milliseconds old: it costs next to nothing. */
static int64_t coarse_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sit(seat *s, int64_t task, int64_t n, pool_task fn) {
    atomic_store_explicit(&s->task, task, memory_order_relaxed);
    atomic_store_explicit(&s->n, n, memory_order_relaxed);
    atomic_store_explicit(&s->since, coarse_ns(), memory_order_relaxed);
    atomic_store_explicit(&s->fn, (uintptr_t)fn, memory_order_release);
}

static void take_tasks(pool *p, int64_t n, pool_task fn, void *ctx, int thread) {
    seat *s = &p->seats[thread];
    for (;;) {
        int64_t task = atomic_fetch_add(&p->next, 1);
        if (task >= n || task > atomic_load(&p->first_failed)) break;
        sit(s, task, n, fn);
        err e = fn(ctx, task, thread);
        if (e) note_failure(p, task, e);
    }
    atomic_store_explicit(&s->fn, 0, memory_order_relaxed);
}

/* Whether a run is open that is not the one of generation seen. */
static int is_new(uint64_t gate, uint64_t seen) {
    return (gate & OPEN) && gate / GENERATION != seen;
}

/* Enters a new run. */
static int enter(pool *p, uint64_t *seen) {
    uint64_t gate = atomic_load(&p->gate);
    while (is_new(gate, *seen)) {
        if (!atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) continue;
        *seen = gate / GENERATION;
        return 1;
    }
    return 0;
}

/* The last to leave a closed run tells the caller, who may sleep. */
static void leave(pool *p) {
    const uint64_t before = atomic_fetch_sub(&p->gate, 1);
    if ((before & OPEN) || (before & INSIDE) != 1) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

/* Sleeps until there is a new run; 0: the pool ends. */
static int wait_for_run(pool *p, uint64_t seen) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !is_new(atomic_load(&p->gate), seen)) {
        p->sleeping++;
        pthread_cond_wait(&p->wake, &p->lock);
        p->sleeping--;
    }
    const int go_on = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *worker_main(void *argument) {
    worker *w = argument;
    pool *p = w->owner;
    uint64_t seen = 0;
    atomic_store(&p->seats[w->index].system_id, gettid());
    for (;;) {
        for (int i = 0; i < p->spins && !is_new(atomic_load(&p->gate), seen); i++) relax();
        if (enter(p, &seen)) {
            take_tasks(p, p->n, p->fn, p->ctx, w->index);
            leave(p);
        } else if (!wait_for_run(p, seen)) {
            return NULL;
        }
    }
}

static err start_workers(pool *p) {
    int failed = 0;
    for (int i = 0; i < p->threads - 1 && !failed; i++) {
        p->workers[i] = (worker){.owner = p, .index = i + 1};
        failed = thread_start(&p->workers[i].id, POOL_STACK, THREAD_NO_SIGNALS, worker_main,
                              &p->workers[i]);
        if (!failed) p->started++;
    }
    if (!failed) return ERR_OK;
    errno = failed;
    return err_errno("thread %d of %d could not be started; ask for fewer threads", p->started + 2,
                     p->threads);
}

err pool_create(pool **out, int threads) {
    *out = NULL;
    if (threads < 1 || threads > MAX_THREADS)
        return err_set(ERR_RANGE, "%d threads were asked for; a pool has 1 to %d", threads,
                       MAX_THREADS);
    pool *p;
    TRY(mem_new(1, sizeof *p, &p));
    err e = mem_new((size_t)threads, sizeof *p->workers, &p->workers);
    if (!e) e = mem_new((size_t)threads, sizeof *p->seats, &p->seats);
    if (e) {
        mem_free(p->workers);
        mem_free(p);
        return e;
    }
    p->threads = threads;
    p->spins = threads <= pool_cpus() ? SPINS : 0;
    pthread_mutexattr_t
        checking; /* so that a run inside a task of the same thread is told, not hung */
    pthread_mutexattr_init(&checking);
    pthread_mutexattr_settype(&checking, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&p->callers, &checking);
    pthread_mutexattr_destroy(&checking);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    e = start_workers(p);
    if (e) {
        pool_destroy(p);
        return e;
    }
    *out = p;
    return ERR_OK;
}

void pool_destroy(pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->callers);
    mem_free(p->workers);
    mem_free(p->seats);
    mem_free(p);
}

int pool_look(const pool *p, pool_view *out, int cap) {
    const int n = p->threads < cap ? p->threads : cap;
    const int64_t now = coarse_ns();
    for (int i = 0; i < n; i++) {
        const seat *s = &p->seats[i];
        out[i].fn = atomic_load_explicit(&s->fn, memory_order_acquire);
        out[i].task = atomic_load_explicit(&s->task, memory_order_relaxed);
        out[i].n = atomic_load_explicit(&s->n, memory_order_relaxed);
        out[i].system_id = atomic_load(&s->system_id);
        const int64_t since = atomic_load_explicit(&s->since, memory_order_relaxed);
        out[i].seconds = now > since ? (double)(now - since) * 1e-9 : 0;
    }
    return n;
}

int pool_threads(const pool *p) { return p->threads; }

static void open_run(pool *p, int64_t n, pool_task fn, void *ctx) {
    atomic_store(&p->next, 0);
    atomic_store(&p->first_failed, INT64_MAX);
    p->n = n;
    p->fn = fn;
    p->ctx = ctx;
    p->code = ERR_OK;
    if (p->threads == 1 || n == 1) return;
    const uint64_t last = atomic_load(&p->gate) / GENERATION;
    atomic_store(&p->gate, (last + 1) * GENERATION + OPEN);
    pthread_mutex_lock(&p->lock);
    const int64_t helpers = n - 1 < p->sleeping ? n - 1 : p->sleeping;
    if (helpers == p->sleeping)
        pthread_cond_broadcast(&p->wake);
    else
        for (int64_t i = 0; i < helpers; i++) pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static err close_run(pool *p) {
    uint64_t inside = atomic_fetch_and(&p->gate, ~OPEN) & INSIDE;
    for (int i = 0; i < p->spins && inside; i++) {
        relax();
        inside = atomic_load(&p->gate) & INSIDE;
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->gate) & INSIDE) pthread_cond_wait(&p->done, &p->lock);
    err code = p->code;
    if (code) err_set(code, "%s", p->text);
    pthread_mutex_unlock(&p->lock);
    return code;
}

err pool_run(pool *p, int64_t n, pool_task fn, void *ctx) {
    if (n <= 0) return ERR_OK;
    for (int i = 0; i < p->started; i++)
        if (pthread_equal(p->workers[i].id, pthread_self()))
            return err_set(ERR_INTERNAL, "a task of a thread pool started a run on its own pool");
    if (pthread_mutex_lock(&p->callers) != 0)
        return err_set(ERR_INTERNAL, "a task of a thread pool started a run on its own pool");
    open_run(p, n, fn, ctx);
    take_tasks(p, n, fn, ctx, 0);
    err e = close_run(p);
    pthread_mutex_unlock(&p->callers);
    return e;
}

/* The first line of a small kernel file, or 0. */
static int read_line(const char *path, char *line, int size) {
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int ok = fgets(line, size, f) != NULL;
    fclose(f);
    return ok;
}

/* CPUs that the cgroup's quota allows, rounded up; 0 when there is no quota. */
static int quota_cpus(void) {
    char line[128];
    long long quota = 0, period = 0;
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2) return 0; /* "max 100000" */
    } else {
        if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line)) return 0;
        quota = atoll(line);
        if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof line)) return 0;
        period = atoll(line);
    }
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = (quota + period - 1) / period;
    return cpus > MAX_CPUS ? MAX_CPUS : (int)cpus;
}

int pool_cpus(void) {
    int n = 0;
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    if (set && sched_getaffinity(0, size, set) == 0) n = CPU_COUNT_S(size, set);
    CPU_FREE(set);
    int quota = quota_cpus();
    if (quota && quota < n) n = quota;
    if (n > MAX_THREADS) n = MAX_THREADS;
    return n < 1 ? 1 : n;
}
