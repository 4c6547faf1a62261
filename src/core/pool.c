/* Thread pool: one run at a time, open to whoever comes in time.
 *
 * The caller publishes a run (generation + 1), wakes the workers, and takes tasks itself from one atomic
 * counter. A worker that is awake enters the run and takes tasks too; when the tasks are gone the caller
 * closes the run and waits only for those that entered, so a tiny run never waits for a sleeper.
 * Tasks start in order of their numbers: when task t fails, all lower ones have started and will
 * finish, so the failure with the lowest number is always seen, whatever the threads did.
 * An idle worker looks at the generation for some microseconds before it sleeps; with more threads
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

enum { TEXT_MAX = 2048, MAX_THREADS = 1024, SPINS = 1000, MAX_CPUS = 16384 };

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
    pthread_mutex_t lock;    /* guards what follows up to the atomics */
    pthread_cond_t wake, done;
    int open, stop, sleeping;
    int64_t n;
    pool_task fn;
    void *ctx;
    err code; /* of failed task `first_failed` */
    char text[TEXT_MAX];
    _Atomic int64_t next, first_failed;
    _Atomic uint64_t generation;
    atomic_int active; /* workers inside the run; changed under lock, read by the spinning caller */
};

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

static void *worker_main(void *argument) {
    worker *w = argument;
    pool *p = w->owner;
    uint64_t seen = 0;
    atomic_store(&p->seats[w->index].system_id, gettid());
    for (;;) {
        for (int i = 0; i < p->spins && atomic_load(&p->generation) == seen; i++) relax();
        pthread_mutex_lock(&p->lock);
        while (!p->stop && (!p->open || atomic_load(&p->generation) == seen)) {
            seen = atomic_load(&p->generation); /* a run that closed before we came is over */
            p->sleeping++;
            pthread_cond_wait(&p->wake, &p->lock);
            p->sleeping--;
        }
        if (p->stop) break;
        seen = atomic_load(&p->generation);
        int64_t n = p->n;
        pool_task fn = p->fn;
        void *ctx = p->ctx;
        atomic_fetch_add(&p->active, 1);
        pthread_mutex_unlock(&p->lock);
        take_tasks(p, n, fn, ctx, w->index);
        pthread_mutex_lock(&p->lock);
        if (atomic_fetch_sub(&p->active, 1) == 1) pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
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
    atomic_fetch_add(&p->generation, 1);
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
    pthread_mutex_lock(&p->lock);
    p->n = n;
    p->fn = fn;
    p->ctx = ctx;
    p->code = ERR_OK;
    p->open = p->threads > 1 && n > 1;
    if (p->open) {
        atomic_fetch_add(&p->generation, 1);
        int64_t helpers = n - 1 < p->sleeping ? n - 1 : p->sleeping;
        if (helpers == p->sleeping)
            pthread_cond_broadcast(&p->wake);
        else
            for (int64_t i = 0; i < helpers; i++) pthread_cond_signal(&p->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

static err close_run(pool *p) {
    pthread_mutex_lock(&p->lock);
    p->open = 0;
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->spins && atomic_load(&p->active); i++) relax();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->active)) pthread_cond_wait(&p->done, &p->lock);
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
