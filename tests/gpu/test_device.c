/* A GPU, or the emulated device: modules from the cache, filling and converting, copies, memory as the driver sees it, and the race of threads on
 * a cold cache.
 *
 * Skipped where there is none (`make gpu-test` runs it). NVRTC compiles behind a counter, so that each kernel is seen to be
 * compiled once. Times are printed and not judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/clock.h"
#include "core/dtype.h"
#include "dev/dev_kernels.h"
#include "dev/module.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* NVRTC behind a counter. */
typedef struct counting {
    kernel_compiler c, real;
    atomic_int compiles;
} counting;

static files_dir dir;
static counting compiler;
static char folder[600], missing[2048];
static cuda_system *sys;
static dev *device;

static err count_and_compile(void *ctx, const kernel_spec *spec, const char *arch,
                             kernel_product *out) {
    counting *c = ctx;
    atomic_fetch_add(&c->compiles, 1);
    return c->real.compile(c->real.ctx, spec, arch, out);
}

static err check_arch(void *ctx, const char *arch) {
    counting *c = ctx;
    return c->real.check_arch(c->real.ctx, arch);
}

static err open_system(cuda_system **out) {
    kernel_cache_config cache = {.folder = folder, .compiler = &compiler.c};
    return cuda_system_open(out, &(cuda_system_config){.cache = &cache});
}

static err begin(void) {
    TRY(kernel_compiler_open(&compiler.real));
    compiler.c =
        (kernel_compiler){.ctx = &compiler, .compile = count_and_compile, .check_arch = check_arch};
    memcpy(compiler.c.identity, compiler.real.identity, sizeof compiler.c.identity);
    return ERR_OK;
}

static err begin_device(void) {
    TRY(open_system(&sys));
    return dev_open_cuda(&device, sys, 0, &(dev_config){.threads = 1, .blas = "none"});
}

/* ---- a kernel that faults, in a child: its context is lost ---- */

static int fault_child(void) {
    module *m;
    module_function *f;
    dev_stream *s;
    dev_address nowhere = 64;
    float one = 1;
    long long n = 1000;
    void *const args[] = {&nowhere, &one, &n};
    if (begin_device()) return 1;
    if (module_get(&m, device, dev_kernels_basic())) return 2;
    if (module_get_function(&f, m, "basic_fill_f32", 0) || dev_stream_create(&s, device)) return 3;
    if (module_launch(f, s, &(module_grid){.grid = {8}, .block = {128}}, args)) return 4;
    err e = dev_stream_wait(s);
    printf("%s\n", err_text());
    fflush(stdout);
    return e == ERR_REFUSED && strstr(err_text(), "cuda:0") &&
                   strstr(err_text(), "a kernel that ran before")
               ? 0
               : 5;
}

static void a_fault_names_the_device(void **state) {
    (void)state;
    int status;
    fflush(stdout);
    pid_t pid = fork(); /* before this process has touched the driver */
    if (!pid) _exit(begin() ? 9 : fault_child());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 1) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void need_gpu(void) {
    if (device) return;
    if (!missing[0]) {
        err e = begin();
        if (!e) e = begin_device();
        if (!e) {
            const cuda_device *i = dev_cuda_info(device);
            printf("%s, %s, driver for CUDA %s, %s\n", i->name, i->arch, cuda_system_driver(sys),
                   compiler.c.identity);
            return;
        }
        snprintf(missing, sizeof missing, "%s", err_text());
        printf("skipped: %s\n", missing);
    }
    skip();
}

/* ---- kernels ---- */

static err launch(const char *name, dev_stream *s, void *const *args, int64_t n) {
    module *m;
    module_function *f;
    unsigned blocks = (unsigned)((n + 255) / 256);
    TRY(module_get(&m, dev_stream_device(s), dev_kernels_basic()));
    TRY(module_get_function(&f, m, name, 0));
    return module_launch(
        f, s, &(module_grid){.grid = {blocks < 2000 ? blocks + 1 : 2000}, .block = {256}}, args);
}

static void check_conversions(dev_stream *s, dev_arena *a, int64_t n, uint64_t seed) {
    dev_address wide, half, back;
    float *x = calloc((size_t)n + 1, 4), *y = calloc((size_t)n + 1, 4);
    uint16_t *h = calloc((size_t)n + 1, 2);
    size_t mark = dev_arena_mark(a);
    const struct {
        const char *to, *from;
        int bf16;
    } types[] = {{"basic_f32_to_bf16", "basic_bf16_to_f32", 1},
                 {"basic_f32_to_f16", "basic_f16_to_f32", 0}};
    assert_non_null(x);
    assert_non_null(y);
    assert_non_null(h);
    for (int64_t i = 0; i < n; i++)
        x[i] = ldexpf((float)rng_normal(seed, RNG_TEST, (uint64_t)i, 0), (int)(i % 60) - 30);
    if (n > 4) x[0] = NAN, x[1] = INFINITY, x[2] = -0.0f, x[3] = 65520.0f, x[4] = 1e-41f;
    assert_ok(dev_arena_alloc(a, (size_t)n * 4, &wide));
    assert_ok(dev_arena_alloc(a, (size_t)n * 2 + 2, &half));
    assert_ok(dev_arena_alloc(a, (size_t)n * 4, &back));
    for (int t = 0; t < 2; t++) {
        void *const there[] = {&half, &wide, &n}, *const again[] = {&back, &half, &n};
        assert_ok(dev_copy_in(s, wide, x, (size_t)n * 4));
        assert_ok(dev_set_bytes(s, half, 0xff, (size_t)n * 2 + 2));
        assert_ok(dev_set_bytes(s, back, 0xff, (size_t)n * 4));
        assert_ok(launch(types[t].to, s, there, n));
        assert_ok(launch(types[t].from, s, again, n));
        assert_ok(dev_copy_out(s, h, half, (size_t)n * 2 + 2));
        assert_ok(dev_copy_out(s, y, back, (size_t)n * 4));
        assert_ok(dev_stream_wait(s));
        assert_int_equal(h[n], 0xffff); /* nothing past the end */
        for (int64_t i = 0; i < n; i++) {
            uint16_t want = types[t].bf16 ? bf16_from_f32(x[i]) : f16_from_f32(x[i]);
            float widened = types[t].bf16 ? bf16_to_f32(want) : f16_to_f32(want);
            if (isnan(x[i])) {
                assert_true(isnan(y[i]));
                continue;
            }
            if (h[i] != want || memcmp(&y[i], &widened, 4) != 0)
                fail_msg("%s of %a: %04x, not %04x; back %a", types[t].to, (double)x[i], h[i], want,
                         (double)y[i]);
        }
    }
    dev_arena_reset(a, mark);
    free(x);
    free(y);
    free(h);
}

static void kernels_agree_with_the_cpu(void **state) {
    (void)state;
    need_gpu();
    dev_stream *s;
    dev_arena *a;
    uint64_t seed = numbers_seed();
    assert_ok(dev_stream_create(&s, device));
    assert_ok(dev_arena_create(&a, device, "conversions", (size_t)64 << 20));
    const int64_t sizes[] = {0, 1, 5, 255, 257, 4099, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_conversions(s, a, sizes[i], seed + i);
    dev_arena_destroy(a);
    dev_stream_destroy(s);
}

/* ---- memory ---- */

static void memory_is_what_the_driver_sees(void **state) {
    (void)state;
    need_gpu();
    dev_arena *a, *b;
    dev_address p;
    dev_counters c, later;
    uint64_t before, with, after, total;
    const size_t cap = (size_t)3 << 30;
    assert_ok(dev_memory(device, &before, &total));
    assert_ok(dev_arena_create(&a, device, "three GiB", cap));
    assert_ok(dev_memory(device, &with, &total));
    printf("before %llu, with %llu: %lld bytes for %zu\n", (unsigned long long)before,
           (unsigned long long)with, (long long)(before - with), cap);
    assert_true(before - with >= cap && before - with <= cap + ((size_t)4 << 20));
    dev_get_counters(device, &c);
    for (int i = 0; i < 1000; i++) { /* a steady step: no allocation, no byte more */
        size_t mark = dev_arena_mark(a);
        assert_ok(dev_arena_alloc(a, (size_t)i << 20, &p));
        dev_arena_reset(a, mark);
    }
    dev_get_counters(device, &later);
    assert_int_equal(c.allocations, later.allocations);
    assert_ok(dev_memory(device, &after, &total));
    assert_int_equal(after, with);
    err e = dev_arena_create(&b, device, "far too much", (size_t)1 << 42);
    printf("%s\n", err_text());
    assert_int_equal(e, ERR_MEMORY);
    assert_non_null(strstr(err_text(), "far too much"));
    assert_non_null(strstr(err_text(), "are free"));
    dev_arena_destroy(a);
    assert_ok(dev_memory(device, &after, &total));
    assert_int_equal(after, before);
}

/* ---- the race ---- */

typedef struct racer {
    pthread_t id;
    pthread_barrier_t *start;
    dev *d;
    int64_t n;
    float value, *back;
    err result;
    char text[512];
} racer;

static err race_step(racer *r) {
    dev_stream *s;
    dev_arena *a;
    dev_address p = 0;
    TRY(dev_stream_create(&s, r->d));
    TRY(dev_arena_create(&a, r->d, "racer", (size_t)r->n * 4));
    err e = dev_arena_alloc(a, (size_t)r->n * 4, &p);
    void *const args[] = {&p, &r->value, &r->n};
    for (int i = 0; i < 20 && !e; i++) e = launch("basic_fill_f32", s, args, r->n);
    if (!e) e = dev_copy_out(s, r->back, p, (size_t)r->n * 4);
    if (!e) e = dev_stream_wait(s);
    dev_arena_destroy(a);
    dev_stream_destroy(s);
    return e;
}

static void *race(void *ctx) {
    racer *r = ctx;
    pthread_barrier_wait(r->start);
    r->result = race_step(r);
    if (r->result) snprintf(r->text, sizeof r->text, "%s", err_text());
    return NULL;
}

/* n threads on one device handle, nothing cached. */
static void race_of(int n) {
    racer r[16];
    pthread_barrier_t start;
    cuda_system *s;
    dev *d;
    dev_counters c;
    assert_ok(file_remove_tree(folder));
    assert_ok(open_system(&s));
    assert_ok(dev_open_cuda(&d, s, 0, &(dev_config){.threads = 1, .blas = "none"}));
    int before = atomic_load(&compiler.compiles);
    pthread_barrier_init(&start, NULL, (unsigned)n);
    double begun = clock_seconds();
    for (int i = 0; i < n; i++) {
        r[i] = (racer){.start = &start, .d = d, .n = 1000 + 777 * i, .value = (float)i + 0.25f};
        r[i].back = calloc((size_t)r[i].n, 4);
        assert_non_null(r[i].back);
        assert_int_equal(pthread_create(&r[i].id, NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].id, NULL);
    printf("%2d threads on a cold cache: %.0f ms, %d compile\n", n, (clock_seconds() - begun) * 1e3,
           atomic_load(&compiler.compiles) - before);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++) {
        if (r[i].result) fail_msg("thread %d: %s", i, r[i].text);
        for (int64_t k = 0; k < r[i].n; k++) assert_true(r[i].back[k] == r[i].value);
        free(r[i].back);
    }
    assert_int_equal(atomic_load(&compiler.compiles) - before, 1);
    dev_get_counters(d, &c);
    assert_int_equal(c.modules, 1);
    assert_int_equal(c.launches, 20 * n);
    dev_close(d);
    cuda_system_close(s);
}

static void threads_race_on_a_cold_cache(void **state) {
    (void)state;
    need_gpu();
    race_of(3);
    race_of(8);
    race_of(16);
}

static void warm_starts_compile_nothing(void **state) {
    (void)state;
    need_gpu();
    cuda_system *s;
    dev *d;
    module *m;
    module_function *f;
    int before = atomic_load(&compiler.compiles);
    setenv("PACELINE_NO_COMPILE", "1", 1);
    double begun = clock_seconds();
    assert_ok(open_system(&s));
    assert_ok(dev_open_cuda(&d, s, 0, &(dev_config){.threads = 1, .blas = "none"}));
    double opened = clock_seconds();
    assert_ok(module_get(&m, d, dev_kernels_basic()));
    assert_ok(module_get_function(&f, m, "basic_fill_f32", 0));
    printf("warm: system and device %.1f ms, module and function %.2f ms\n", (opened - begun) * 1e3,
           (clock_seconds() - opened) * 1e3);
    unsetenv("PACELINE_NO_COMPILE");
    module_usage u = module_function_usage(f);
    printf("basic_fill_f32: %d registers, %d local, %d shared, %d threads a block\n", u.registers,
           u.local_bytes, u.shared_bytes, u.max_threads);
    assert_true(u.registers > 0 && u.max_threads > 0);
    assert_int_equal(u.local_bytes, 0);
    assert_says(module_get_function(&f, m, "no_such_kernel", 0), ERR_REFUSED, "no_such_kernel",
                "fill and convert", "cuda:0");
    assert_says(module_get_function(&f, m, "basic_fill_f32", 300 << 10), ERR_REFUSED,
                "shared memory", "cuda:0");
    dev_close(d);
    cuda_system_close(s);
    assert_int_equal(atomic_load(&compiler.compiles), before);
}

static int set_up(void **state) {
    (void)state;
    dir = files_begin();
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    dev_close(device);
    cuda_system_close(sys);
    kernel_compiler_close(&compiler.real);
    files_end(&dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_names_the_device),
        cmocka_unit_test(kernels_agree_with_the_cpu),
        cmocka_unit_test(memory_is_what_the_driver_sees),
        cmocka_unit_test(threads_race_on_a_cold_cache),
        cmocka_unit_test(warm_starts_compile_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
