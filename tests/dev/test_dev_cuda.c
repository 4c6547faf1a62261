/* The CUDA side of a device on a stub of the driver: opening, refusals, arenas, copies, events, modules, counters.
 *
 * The stub's memory is the process's own (tests/interpose/cuda_stub.c), so sanitizers watch it; what a real driver does is
 * tested by tests/gpu. The compiler is the stand-in of kernel_standin.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/dev_kernels.h"
#include "dev/kernel_standin.h"
#include "dev/module.h"
#include "support/says.h"
#include "support/stubs.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static files_dir dir;
static standin compiler;
static char folder[600];
static cuda_system *sys;
static dev *device;
static void *driver, *nvml;

static void *preload(const char *name) {
    char path[PATH_MAX];
    void *h = dlopen(stubs_path(name, path), RTLD_NOW);
    if (!h) fail_msg("%s", dlerror());
    return h;
}

static void open_system(void) {
    kernel_cache_config cache = {.folder = folder, .compiler = &compiler.c};
    assert_ok(cuda_system_open(&sys, &(cuda_system_config){.cache = &cache}));
}

static int set_up(void **state) {
    (void)state;
    dir = files_begin();
    standin_begin(&compiler, &dir);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    driver = preload("cuda_13");
    nvml = preload("nvml_two");
    open_system();
    assert_ok(dev_open_cuda(&device, sys, 0, &(dev_config){.threads = 1, .blas = "none"}));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    dev_close(device);
    cuda_system_close(sys);
    dlclose(driver);
    dlclose(nvml);
    files_end(&dir);
    return 0;
}

static void devices_are_read_and_told_apart(void **state) {
    (void)state;
    dev *d;
    assert_int_equal(cuda_system_devices(sys), 2);
    assert_string_equal(cuda_system_driver(sys), "13.0");
    assert_string_equal(cuda_system_device(sys, 0)->arch, "sm_90a");
    assert_string_equal(cuda_system_device(sys, 1)->arch, "");
    assert_int_equal(dev_get_kind(device), DEV_CUDA);
    assert_int_equal(dev_cuda_index(device), 0);
    assert_string_equal(dev_arch(device), "sm_90a");
    assert_says(dev_open_cuda(&d, sys, 1, NULL), ERR_REFUSED, "cuda:1", "V100", "sm_70", "sm_80");
    assert_null(d);
    assert_says(dev_open_cuda(&d, sys, 2, NULL), ERR_USAGE, "cuda:2", "2 CUDA devices");
    library_record_list l;
    assert_ok(dev_libraries(device, &l));
    assert_int_equal(l.n, 3);
    assert_string_equal(l.items[1].version, "13.0");
    assert_string_equal(l.items[2].version, "stand-in 1");
    assert_int_equal(cuda_system_parse("cuda:0"), 0);
    assert_int_equal(cuda_system_parse("cuda:17"), 17);
    assert_int_equal(cuda_system_parse("cuda:"), -1);
    assert_int_equal(cuda_system_parse("cuda:-1"), -1);
    assert_int_equal(cuda_system_parse("cuda:1x"), -1);
    assert_int_equal(cuda_system_parse("cpu:0"), -1);
    assert_ok(dev_open_cpu(&d, &(dev_config){.threads = 1, .blas = "none"}));
    assert_int_equal(dev_get_kind(d), DEV_CPU);
    dev_stream *s;
    assert_says(dev_stream_create(&s, d), ERR_INTERNAL, "CUDA device is needed");
    dev_close(d);
}

static void arenas_take_memory_once(void **state) {
    (void)state;
    dev_arena *a, *b;
    dev_address one, two;
    dev_counters c;
    uint64_t free_bytes, total;
    assert_ok(dev_arena_create(&a, device, "weights", 10000));
    assert_int_equal(dev_arena_cap(a), 10240);
    assert_ok(dev_arena_alloc(a, 1, &one));
    size_t mark = dev_arena_mark(a);
    assert_ok(dev_arena_alloc(a, 5000, &two));
    assert_int_equal(two - one, 256);
    assert_says(dev_arena_alloc(a, 5000, &two), ERR_MEMORY, "weights", "cuda:0", "5000");
    dev_arena_reset(a, mark);
    assert_ok(dev_arena_alloc(a, 9000, &two));
    assert_int_equal(dev_arena_peak(a), 256 + 9216);
    assert_ok(dev_memory(device, &free_bytes, &total));
    assert_int_equal(total, 64 << 20);
    assert_int_equal(total - free_bytes, 10240);
    dev_get_counters(device, &c);
    assert_int_equal(c.allocations, 1);
    assert_int_equal(c.device_bytes, 10240);
    /* Needed, free, and who holds the rest. */
    assert_says(dev_arena_create(&b, device, "activations", (size_t)100 << 20), ERR_MEMORY,
                "cuda:0 (NVIDIA H200 of a stub)", "100 MiB", "104857600 bytes", "activations",
                "64 MiB are free", "process 4242 (stub_trainer) holds 3.0 GiB");
    assert_null(b);
    assert_says(dev_arena_create(&b, device, "activations", SIZE_MAX), ERR_MEMORY, "activations");
    dev_arena_destroy(a);
    dev_arena_destroy(NULL);
    dev_get_counters(device, &c);
    assert_int_equal(c.device_bytes, 0);
    assert_ok(dev_arena_create(&b, device, "empty", 0));
    assert_says(dev_arena_alloc(b, 1, &one), ERR_MEMORY, "empty");
    dev_arena_destroy(b);
}

static void copies_and_events(void **state) {
    (void)state;
    dev_arena *a;
    dev_address p, q;
    dev_stream *s;
    dev_event *begin, *end;
    dev_counters c;
    double ms = 0;
    unsigned char *pinned, back[1000];
    void *raw;
    assert_ok(dev_arena_create(&a, device, "test", 4096));
    assert_ok(dev_arena_alloc(a, 1000, &p));
    assert_ok(dev_arena_alloc(a, 1000, &q));
    assert_ok(dev_stream_create(&s, device));
    assert_ptr_equal(dev_stream_device(s), device);
    assert_ok(dev_event_create(&begin, device));
    assert_ok(dev_event_create(&end, device));
    assert_ok(dev_pinned_create(&raw, device, 1000));
    pinned = raw;
    for (int i = 0; i < 1000; i++) pinned[i] = (unsigned char)(i * 7);
    assert_ok(dev_event_record(begin, s));
    assert_ok(dev_copy_in(s, p, pinned, 1000));
    assert_ok(dev_set_bytes(s, p + 10, 0xab, 5));
    assert_ok(dev_copy_within(s, q, p, 1000));
    assert_ok(dev_copy_out(s, back, q, 1000));
    assert_ok(dev_copy_out(s, back, q, 0));
    assert_ok(dev_event_record(end, s));
    assert_ok(dev_event_hold(s, end));
    assert_ok(dev_event_wait(end));
    assert_ok(dev_event_ms(begin, end, &ms));
    assert_true(ms > 0);
    assert_ok(dev_stream_wait(s));
    memset(pinned + 10, 0xab, 5);
    assert_memory_equal(back, pinned, 1000);
    dev_get_counters(device, &c);
    assert_int_equal(c.in_bytes, 1000);
    assert_int_equal(c.out_bytes, 1000);
    assert_int_equal(c.pinned_bytes, 1000);
    setenv("STUB_CUDA_FAULT", "700", 1);
    assert_says(dev_stream_wait(s), ERR_REFUSED, "cuStreamSynchronize", "cuda:0", "700",
                "kernel that ran before");
    unsetenv("STUB_CUDA_FAULT");
    dev_pinned_destroy(device, pinned);
    dev_event_destroy(begin);
    dev_event_destroy(end);
    dev_stream_destroy(s);
    dev_arena_destroy(a);
}

typedef struct user {
    pthread_t id;
    float value;
    err result;
    float back[100];
} user;

/* What any thread may do: its own stream and memory, the kernel of all. */
static err fill_and_read(float value, float back[100]) {
    module *m;
    module_function *f;
    dev_stream *s;
    dev_arena *a;
    dev_address p;
    long long n = 100;
    TRY(module_get(&m, device, dev_kernels_basic()));
    TRY(module_get_function(&f, m, "basic_fill_f32", 0));
    TRY(dev_stream_create(&s, device));
    TRY(dev_arena_create(&a, device, "thread", 400));
    err e = dev_arena_alloc(a, 400, &p);
    void *const args[] = {&p, &value, &n};
    if (!e) e = module_launch(f, s, &(module_grid){.grid = {1}, .block = {32}}, args);
    if (!e) e = dev_copy_out(s, back, p, 400);
    if (!e) e = dev_stream_wait(s);
    dev_arena_destroy(a);
    dev_stream_destroy(s);
    return e;
}

static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER; /* the stub's memory is not for threads */

static void *use(void *ctx) {
    user *u = ctx;
    module *m;
    u->result = module_get(&m, device, dev_kernels_basic());
    pthread_mutex_lock(&alone);
    if (!u->result) u->result = fill_and_read(u->value, u->back);
    pthread_mutex_unlock(&alone);
    return NULL;
}

static void threads_load_a_kernel_once(void **state) {
    (void)state;
    user u[8];
    dev_counters c;
    atomic_store(&compiler.sleep_ms, 50);
    for (int i = 0; i < 8; i++) {
        u[i].value = (float)i + 0.5f;
        assert_int_equal(pthread_create(&u[i].id, NULL, use, &u[i]), 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(u[i].id, NULL);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(u[i].result, ERR_OK);
        for (int k = 0; k < 100; k++) assert_true(u[i].back[k] == u[i].value);
    }
    dev_get_counters(device, &c);
    assert_int_equal(c.modules, 1);
    assert_int_equal(c.launches, 8);
    assert_int_equal(atomic_load(&compiler.compiles), 1);
}

static void functions_are_checked(void **state) {
    (void)state;
    module *m;
    module_function *f, *g;
    assert_ok(module_get(&m, device, dev_kernels_basic()));
    assert_ok(module_get_function(&f, m, "basic_fill_f32", 0));
    assert_ok(module_get_function(&g, m, "basic_fill_f32", 90000));
    assert_ptr_equal(f, g);
    assert_int_equal(module_function_usage(f).registers, 24);
    assert_int_equal(module_function_usage(f).max_threads, 1024);
    assert_says(module_get_function(&g, m, "basic_fill_f32", 99001), ERR_REFUSED, "basic_fill_f32",
                "fill and convert", "100001", "100000", "cuda:0");
    assert_says(module_get_function(&g, m, "basic_fill_f64", 0), ERR_REFUSED, "cuModuleGetFunction",
                "basic_fill_f64", "fill and convert", "cuda:0", "CUDA_ERROR_NOT_FOUND");
    assert_null(g);
    atomic_store(&compiler.failures, 1);
    kernel_spec other = *dev_kernels_basic();
    const char *const options[] = {"-DOTHER"};
    other.options = options, other.n_options = 1;
    assert_says(module_get(&m, device, &other), ERR_REFUSED, "'fill and convert'", "stand-in");
}

static void b58_drivers_that_do_not_serve(void **state) {
    (void)state;
    cuda_system *s;
    kernel_cache_config cache = {.folder = folder, .compiler = &compiler.c};
    cuda_system_config cfg = {.cache = &cache};
    dir = files_begin();
    standin_begin(&compiler, &dir);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "cache"));
    void *h = preload("cuda_13");
    setenv("STUB_CUDA_VERSION", "11040", 1);
    assert_says(cuda_system_open(&s, &cfg), ERR_REFUSED, "CUDA driver 11.4", "12.0", "install");
    unsetenv("STUB_CUDA_VERSION");
    setenv("STUB_CUDA_INIT", "100", 1);
    assert_says(cuda_system_open(&s, &cfg), ERR_REFUSED, "sees no GPU", "CUDA_VISIBLE_DEVICES",
                "doctor");
    setenv("STUB_CUDA_INIT", "999", 1);
    assert_says(cuda_system_open(&s, &cfg), ERR_REFUSED, "cuInit", "999", "doctor");
    unsetenv("STUB_CUDA_INIT");
    snprintf(compiler.c.identity, sizeof compiler.c.identity, "NVRTC 14.1 build 00");
    assert_says(cuda_system_open(&s, &cfg), ERR_REFUSED, "CUDA 13.0", "14.1");
    assert_null(s);
    dlclose(h);
    files_end(&dir);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b58_drivers_that_do_not_serve),
        TEST(devices_are_read_and_told_apart),
        TEST(arenas_take_memory_once),
        TEST(copies_and_events),
        TEST(threads_load_a_kernel_once),
        TEST(functions_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
