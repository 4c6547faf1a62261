/* The public library called from anywhere: 16 threads at once, from the first call on, with equal bits.
 *
 * Handles of their own, one plan for all with workspaces of their own, one device for all. Run under the thread sanitizer
 * too. Workers note what they saw; asserts are in the main thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_case.h"
#include <pthread.h>

enum { THREADS = 16, ROUNDS = 3, HEADS = 4 };

typedef struct shared {
    attn_case c;
    attn_result want;
    pthread_barrier_t gate;
    pl_device *device; /* NULL: each thread opens one */
    pl_plan *plan;     /* NULL: each thread makes one */
} shared;
typedef struct worker {
    pthread_t id;
    shared *s;
    int index, wrong;
    char text[512];
} worker;

static pl_error one_round(const worker *w, attn_result *got) {
    shared *s = w->s;
    pl_device *d = s->device;
    pl_plan *made = NULL;
    pl_io io = api_io(&s->c, got);
    pl_error e = d ? PL_OK : pl_device_open_cpu(&d, 1 + w->index % 3);
    if (!e && !s->plan) {
        pl_problem *p = api_problem(&s->c);
        e = p ? pl_plan_create(&made, p, d) : PL_ERROR_INTERNAL;
        pl_problem_free(p);
    }
    if (!e) e = api_run(s->plan ? s->plan : made, d, &io);
    pl_plan_free(made);
    if (!s->device) pl_device_free(d);
    return e;
}

/* Half of the threads fail once in between: each has its own sentence. */
static int own_sentence(const worker *w) {
    pl_problem *p;
    char name[40], wanted[40];
    const pl_shape s = {sizeof s, 1, 1, 1, 8, 8, 8, 8};
    snprintf(name, sizeof name, "lost%d + 1 == kv", w->index);
    snprintf(wanted, sizeof wanted, "`lost%d`", w->index);
    if (pl_problem_create(&p, &s, PL_F32) || pl_problem_mask(p, name)) return 0;
    pl_mask *m;
    pl_error e = pl_mask_create(&m, p, NULL);
    int ok = e == PL_ERROR_SYNTAX && !m && strstr(pl_error_text(), wanted) != NULL;
    pl_problem_free(p);
    return ok;
}

static void *work(void *arg) {
    worker *w = arg;
    pthread_barrier_wait(&w->s->gate);
    for (int i = 0; i < ROUNDS; i++) {
        attn_result got = attn_result_new(&w->s->c);
        pl_error e = one_round(w, &got);
        if (e) snprintf(w->text, sizeof w->text, "%s: %s", pl_error_name(e), pl_error_text());
        w->wrong += e != PL_OK || !api_same_result(&w->s->c, &w->s->want, &got);
        if (w->index % 2) w->wrong += !own_sentence(w);
        attn_result_free(&got);
    }
    return NULL;
}

static void run_all(shared *s) {
    worker w[THREADS];
    int wrong = 0;
    memset(w, 0, sizeof w);
    assert_int_equal(pthread_barrier_init(&s->gate, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        w[i].s = s, w[i].index = i;
        assert_int_equal(pthread_create(&w[i].id, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].id, NULL);
        if (w[i].text[0]) printf("thread %d: %s\n", i, w[i].text);
        wrong += w[i].wrong;
    }
    pthread_barrier_destroy(&s->gate);
    assert_int_equal(wrong, 0);
}

static void open_case(shared *s) {
    static const int kinds[] = {MASK_DFLASH, MASK_DOCUMENT_CAUSAL, MASK_PREFIX, MASK_HEADS};
    uint64_t seed = numbers_seed();
    flex_problem p = {.batch = 2,
                      .q_heads = HEADS,
                      .kv_heads = 2 + 2 * numbers_below(seed, 5, 0, 2),
                      .q_len = 40 + numbers_below(seed, 1, 0, 60),
                      .kv_len = 40 + numbers_below(seed, 2, 0, 60),
                      .dim = 8 * (1 + numbers_below(seed, 3, 0, 4)),
                      .v_dim = 8 * (1 + numbers_below(seed, 4, 0, 4)),
                      .type = DT_F32,
                      .tile_q = 16,
                      .tile_kv = 16};
    memset(s, 0, sizeof *s);
    attn_case_make(&s->c, &p, kinds[seed % 4], seed);
    dev *d = attn_dev(1);
    s->want = attn_run(&s->c, d);
    dev_close(d);
}
static void close_case(shared *s) {
    pl_plan_free(s->plan);
    pl_device_free(s->device);
    attn_result_free(&s->want);
    attn_case_free(&s->c);
}
static pl_plan *shared_plan(const shared *s) {
    pl_device *d;
    pl_plan *plan;
    pl_problem *p = api_problem(&s->c);
    assert_pl_ok(pl_device_open_cpu(&d, 1));
    assert_pl_ok(pl_plan_create(&plan, p, d));
    pl_problem_free(p);
    pl_device_free(d); /* a plan needs no device but to run */
    return plan;
}

static void threads_with_handles_of_their_own(void **state) {
    (void)state;
    shared s;
    open_case(&s);
    run_all(&s);
    close_case(&s);
}

static void one_plan_for_all_threads(void **state) {
    (void)state;
    shared s;
    open_case(&s);
    s.plan = shared_plan(&s);
    run_all(&s);
    close_case(&s);
}

static void one_plan_and_one_device_for_all_threads(void **state) {
    (void)state;
    shared s;
    open_case(&s);
    s.plan = shared_plan(&s);
    assert_pl_ok(pl_device_open_cpu(&s.device, 2));
    run_all(&s);
    close_case(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_with_handles_of_their_own),
        cmocka_unit_test(one_plan_for_all_threads),
        cmocka_unit_test(one_plan_and_one_device_for_all_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
