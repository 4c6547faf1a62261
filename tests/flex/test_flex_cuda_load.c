/* Loading a plan's kernels on stubs of driver and compiler: each is compiled once, side by side, the first failure is told, and
 * shapes and scalars compile nothing.
 *
 * The compiler is the stand-in of dev/kernel_standin.h, which lets a compile go on only when others run beside it; the
 * driver is tests/interpose/cuda_stub.c, which runs nothing. No GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/pool.h"
#include "dev/kernel_standin.h"
#include "flex/blockmask_cuda.h"
#include "flex/flex_cuda_run.h"
#include "support/numbers.h"
#include "support/says.h"
#include "support/stubs.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { KERNELS = 6 }; /* forward, rows, both gradients, captures, check */

static files_dir dir;
static standin compiler;
static char folder[600];
static cuda_system *sys;
static dev *device;
static void *driver;
static expr *mask, *score;
static arena *mem;
static flex_cuda_plan *plan;

static float floats[64];
static const int32_t ids[200];
static const expr_value mask_value = {.type = DT_I32, .dim = {100}, .data = ids};
static const expr_value score_value = {.type = DT_F32, .dim = {64}, .data = floats};
static const expr_env mask_env = {&mask_value, 0, 0}, score_env = {&score_value, 0, 0};

static void open_device(void) {
    const kernel_cache_config cache = {.folder = folder, .compiler = &compiler.c};
    assert_ok(cuda_system_open(&sys, &(cuda_system_config){.cache = &cache}));
    assert_ok(dev_open_cuda(&device, sys, 0, &(dev_config){.threads = 1, .blas = "none"}));
}
static void close_device(void) {
    dev_close(device);
    cuda_system_close(sys);
}

static int set_up(void **state) {
    char path[PATH_MAX];
    const expr_decl id = {"doc", EXPR_INT, 1}, bias = {"bias", EXPR_FLOAT, 1};
    (void)state;
    dir = files_begin();
    standin_begin(&compiler, &dir);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    setenv("STUB_CUDA_ANY", "1", 1);
    driver = dlopen(stubs_path("cuda_13", path), RTLD_NOW);
    if (!driver) fail_msg("%s", dlerror());
    assert_ok(arena_create(&mem, "plan", 0));
    /* doc is shorter than the lengths: loads are checked by a kernel of their own */
    assert_ok(expr_compile(&mask, EXPR_MASK, "q < 100 && kv < 90 + q && doc[q] == 0", &id, 1));
    assert_ok(expr_compile(&score, EXPR_SCORE, "s + bias[q - kv + 30]", &bias, 1));
    const flex_problem p = {.batch = 1,
                            .q_heads = 2,
                            .kv_heads = 1,
                            .q_len = 200,
                            .kv_len = 200,
                            .dim = 64,
                            .v_dim = 64,
                            .type = DT_BF16,
                            .mask = mask,
                            .env = &mask_env,
                            .score = score,
                            .score_env = &score_env,
                            .score_grads = 1};
    assert_ok(flex_cuda_plan_create(&plan, &p, 99 * 1024, mem));
    open_device();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    close_device();
    arena_destroy(mem);
    expr_free(mask);
    expr_free(score);
    dlclose(driver);
    unsetenv("STUB_CUDA_ANY");
    files_end(&dir);
    return 0;
}

static void kernels_of_a_plan_are_compiled_side_by_side(void **state) {
    (void)state;
    flex_cuda_code *code;
    const int cpus = pool_cpus();
    compiler.meet = cpus < KERNELS ? cpus : KERNELS;
    assert_ok(flex_cuda_load(&code, plan, device, 1, mem));
    assert_int_equal(atomic_load(&compiler.compiles), KERNELS);
    assert_int_equal(atomic_load(&compiler.lonely), 0);
    assert_int_equal(atomic_load(&compiler.most), compiler.meet); /* and never more */
    if (cpus == 1) printf("one usable CPU: nothing can run side by side\n");
    /* Loaded again, by this handle and by the next process: nothing is compiled. */
    compiler.meet = 0;
    assert_ok(flex_cuda_load(&code, plan, device, 1, mem));
    close_device();
    open_device();
    assert_ok(flex_cuda_load(&code, plan, device, 1, mem));
    assert_int_equal(atomic_load(&compiler.compiles), KERNELS);
}

static err nothing(void *ctx, const kernel_spec *spec) {
    (void)ctx, (void)spec;
    return ERR_OK;
}

/* A forward alone needs the checks and one kernel; the rest is not compiled for it. */
static void what_a_run_does_not_need_is_not_compiled(void **state) {
    (void)state;
    flex_cuda_code *code;
    assert_ok(flex_cuda_load(&code, plan, device, 0, mem));
    assert_int_equal(atomic_load(&compiler.compiles), 2);
    assert_ok(flex_cuda_each(plan, 1, nothing, NULL));
    assert_int_equal(atomic_load(&compiler.compiles), 2);
}

static void the_first_failure_is_told_and_the_rest_can_be_had_later(void **state) {
    (void)state;
    flex_cuda_code *code;
    atomic_store(&compiler.failures, KERNELS);
    assert_says(flex_cuda_load(&code, plan, device, 1, mem), ERR_REFUSED, "attention forward",
                "BF16", "refused by the stand-in");
    atomic_store(&compiler.failures, 0);
    const int before = atomic_load(&compiler.compiles);
    assert_ok(flex_cuda_load(&code, plan, device, 1, mem));
    assert_int_equal(atomic_load(&compiler.compiles), before + KERNELS);
    setenv("PACELINE_NO_COMPILE", "1", 1);
    close_device();
    open_device();
    assert_ok(flex_cuda_load(&code, plan, device, 1, mem));
    unsetenv("PACELINE_NO_COMPILE");
}

typedef struct loader {
    pthread_t id;
    arena *a;
    err result;
} loader;

static void *load(void *ctx) {
    loader *l = ctx;
    kernel_list list;
    const kernel_image *image;
    /* the stub's driver is not for threads: the cache's half of loading, as module_get_all does it */
    l->result = kernel_list_create(&list);
    if (!l->result) l->result = flex_cuda_each(plan, 1, kernel_list_add, &list);
    if (!l->result) l->result = kernel_list_compile(&list, dev_cuda_cache(device), "sm_90a", 4);
    for (int i = 0; i < list.n && !l->result; i++)
        l->result = kernel_cache_get(dev_cuda_cache(device), &list.specs[i], "sm_90a", &image);
    kernel_list_destroy(&list);
    return NULL;
}

static void b16_sixteen_threads_compile_each_kernel_once(void **state) {
    (void)state;
    loader l[16];
    atomic_store(&compiler.sleep_ms, 30);
    for (int i = 0; i < 16; i++) assert_int_equal(pthread_create(&l[i].id, NULL, load, &l[i]), 0);
    for (int i = 0; i < 16; i++) pthread_join(l[i].id, NULL);
    for (int i = 0; i < 16; i++) assert_int_equal(l[i].result, ERR_OK);
    assert_int_equal(atomic_load(&compiler.compiles), KERNELS);
}

/* ---- what was compiled for one shape serves all ---- */

static const expr_decl drafts[] = {{"anchor", EXPR_INT, 1}, {"doc", EXPR_INT, 1},
                                   {"n", EXPR_INT, 0},      {"size", EXPR_INT, 0},
                                   {"window", EXPR_INT, 0}, {"cap", EXPR_FLOAT, 0}};
enum { SHAPES = 1000, SCALARS = 200, LONGEST = 400, DRAFTS = sizeof drafts / sizeof *drafts };

typedef struct any_shape {
    int32_t anchor[LONGEST], doc[LONGEST];
    expr_value value[DRAFTS];
    expr_env env;
    expr *mask, *score;
} any_shape;

/* A row of draft blocks behind n keys, as training has them; shapes stand still while scalars are drawn. */
static flex_problem draw_shape(any_shape *x, uint64_t seed, uint64_t i, int scalars) {
    const uint64_t at = scalars ? 0 : i;
    const int64_t n = 1 + numbers_below(seed, 1, at, 300),
                  size = 1 + numbers_below(seed, 2, at, 16),
                  blocks = 1 + numbers_below(seed, 3, at, 6);
    for (int64_t k = 0; k < LONGEST; k++) x->doc[k] = (int32_t)(k / 37);
    for (int64_t k = 0; k < blocks; k++) x->anchor[k] = (int32_t)(k * n / blocks);
    x->value[0] = (expr_value){.type = DT_I32, .dim = {blocks}, .data = x->anchor};
    x->value[1] = (expr_value){.type = DT_I32, .dim = {n}, .data = x->doc};
    x->value[2].scalar.i = n, x->value[3].scalar.i = size;
    x->value[4].scalar.i = 1 + numbers_below(seed, 4, i, 500);
    x->value[5].scalar.f = 1.0f + (float)numbers_below(seed, 5, i, 1000) / 7.0f;
    x->env = (expr_env){x->value, 0, 0};
    const int64_t kv_heads = 1 + numbers_below(seed, 6, at, 3);
    return (flex_problem){.batch = 1 + numbers_below(seed, 7, at, 2),
                          .q_heads = kv_heads * (1 + numbers_below(seed, 8, at, 4)),
                          .kv_heads = kv_heads,
                          .q_len = blocks * size,
                          .kv_len = n + blocks * size,
                          .dim = 64,
                          .v_dim = 64,
                          .type = DT_BF16,
                          .scale = 0.01f * (float)(1 + numbers_below(seed, 9, i, 100)),
                          .mask = x->mask,
                          .env = &x->env,
                          .score = x->score,
                          .score_env = &x->env};
}

static void load_shape(any_shape *x, uint64_t seed, uint64_t i, int scalars) {
    flex_cuda_plan *p;
    flex_cuda_code *code;
    blockmask_cuda *m;
    arena *a;
    const flex_problem q = draw_shape(x, seed, i, scalars);
    assert_ok(arena_create(&a, "shape", 0));
    assert_ok(flex_cuda_plan_create(&p, &q, 99 * 1024, a));
    assert_ok(flex_cuda_load(&code, p, device, 1, a));
    assert_ok(blockmask_cuda_open(&m, device, q.mask, q.env, BLOCKMASK_CUDA_NEAR, a));
    blockmask_cuda_close(m);
    arena_destroy(a);
}

static void cold_equals_warm_for_a_thousand_shapes(void **state) {
    static any_shape x;
    const uint64_t seed = numbers_seed();
    (void)state;
    assert_ok(expr_compile(&x.mask, EXPR_MASK,
                           "let a = anchor[q // size]; kv < n ? kv < a && doc[kv] == doc[a] && "
                           "a + q % size - kv < window : (kv - n) // size == q // size",
                           drafts, DRAFTS));
    assert_ok(expr_compile(&x.score, EXPR_SCORE, "cap * tanh(s / cap)", drafts, DRAFTS));
    load_shape(&x, seed, 0, 0);
    const int compiled = atomic_load(&compiler.compiles);
    assert_int_equal(compiled,
                     6); /* forward, rows, both gradients; leaves and cells of its masks */
    setenv("PACELINE_NO_COMPILE", "1", 1);
    close_device();
    open_device();
    for (uint64_t i = 1; i <= SHAPES; i++) load_shape(&x, seed, i, 0);
    for (uint64_t i = 1; i <= SCALARS; i++) load_shape(&x, seed, i, 1);
    unsetenv("PACELINE_NO_COMPILE");
    assert_int_equal(atomic_load(&compiler.compiles), compiled);
    expr_free(x.mask);
    expr_free(x.score);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(kernels_of_a_plan_are_compiled_side_by_side),
        TEST(what_a_run_does_not_need_is_not_compiled),
        TEST(the_first_failure_is_told_and_the_rest_can_be_had_later),
        TEST(b16_sixteen_threads_compile_each_kernel_once),
        TEST(cold_equals_warm_for_a_thousand_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
