/* The race that started it all, on a GPU or the emulated device: threads and processes with a cold kernel cache, each with its own stream and
 * lengths, building masks and running attention forward and backward at the same moment.
 *
 * Everything runs in children of a parent that never touches the driver, so any of them may be killed. NVRTC compiles behind
 * a counter that writes to a file shared by all. Results are digests of output, LSE and gradients, compared with those of one
 * thread alone. Skipped where there is no GPU. Times are printed and not judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/clock.h"
#include "core/dtype.h"
#include "dev/kernel_folder.h"
#include "flex/blockmask_cuda.h"
#include "flex/flex_cuda_run.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/says.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int emulated; /* each thread of a kernel is played by the CPU: less of everything */
static int64_t heads = 4, kv_heads = 2;
enum { LENGTHS = 16, DIM = 64, SHAPES = 1000, SCALARS = 200, NO_GPU = 77 };

static files_dir dir;
static char counts[600];
static uint64_t seed;

/* ---- NVRTC behind a counter ---- */

typedef struct counting {
    kernel_compiler c, real;
    int hang; /* stops for ever in its first compile */
} counting;

static void tell(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    files_must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
    close(fd);
}

static int told(const char *path, const char *text) {
    char *all;
    size_t n;
    int found = 0;
    if (file_read(path, &all, &n)) return 0;
    for (const char *p = all; (p = strstr(p, text)) != NULL; p++) found++;
    free(all);
    return found;
}

static void nap(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static err count_and_compile(void *ctx, const kernel_spec *spec, const char *arch,
                             kernel_product *out) {
    counting *c = ctx;
    tell(counts, "began\n");
    while (c->hang) nap(1000);
    err e = c->real.compile(c->real.ctx, spec, arch, out);
    tell(counts, "ended\n");
    return e;
}

static err check_arch(void *ctx, const char *arch) {
    counting *c = ctx;
    return c->real.check_arch(c->real.ctx, arch);
}

/* ---- one step of attention ---- */

typedef struct shape {
    int64_t blocks, ctx, size; /* draft blocks of `size` slots behind ctx keys */
    uint64_t seed;
} shape;

static shape shape_of(int i) {
    if (emulated)
        return (shape){
            .blocks = 1 + i % 3, .ctx = 20 + 9 * i, .size = 8, .seed = 100 + (uint64_t)i};
    return (shape){.blocks = 5 + 3 * i, .ctx = 200 + 77 * i, .size = 16, .seed = 100 + (uint64_t)i};
}

typedef struct bound {
    const shape *s;
    expr *mask;
    expr_value values[4];
    expr_env env;
    flex_problem p;
    flex_cuda_plan *plan;
    flex_cuda_code *code;
} bound;

static err bind(bound *b, const shape *s, dev *d, arena *a) {
    static const expr_decl decls[4] = {{"anchor", EXPR_INT, 1},
                                       {"ctx", EXPR_INT, 0},
                                       {"bs", EXPR_INT, 0},
                                       {"window", EXPR_INT, 0}};
    int32_t *anchor;
    b->s = s;
    TRY(arena_alloc(a, (size_t)s->blocks, sizeof *anchor, &anchor));
    for (int64_t i = 0; i < s->blocks; i++)
        anchor[i] = (int32_t)rng_below(s->seed, RNG_TEST, 1, (uint64_t)i, (uint64_t)s->ctx);
    b->values[0] = (expr_value){.type = DT_I32, .dim = {s->blocks}, .data = anchor};
    b->values[1] = (expr_value){.scalar.i = s->ctx};
    b->values[2] = (expr_value){.scalar.i = s->size};
    b->values[3] = (expr_value){.scalar.i = 10 + (int64_t)(s->seed % 500)};
    b->env = (expr_env){.values = b->values};
    TRY(expr_compile(&b->mask, EXPR_MASK,
                     "let a = anchor[q // bs];\n"
                     "(kv < ctx && kv < a && a + q % bs - kv < window) || "
                     "(kv >= ctx && (kv - ctx) // bs == q // bs)",
                     decls, 4));
    b->p = (flex_problem){.batch = 1,
                          .q_heads = heads,
                          .kv_heads = kv_heads,
                          .q_len = s->blocks * s->size,
                          .kv_len = s->ctx + s->blocks * s->size,
                          .dim = DIM,
                          .v_dim = DIM,
                          .type = DT_BF16,
                          .mask = b->mask,
                          .env = &b->env};
    TRY(flex_cuda_plan_create(&b->plan, &b->p, (size_t)dev_cuda_info(d)->shared_block, a));
    return flex_cuda_load(&b->code, b->plan, d, 1, a);
}

typedef struct world {
    dev_stream *s;
    dev_arena *memory;
    arena *a;
} world;

static err place(world *w, const void *from, size_t bytes, dev_address *out) {
    TRY(dev_arena_alloc(w->memory, bytes + 1, out));
    return from ? dev_copy_in(w->s, *out, from, bytes) : dev_set_bytes(w->s, *out, 0xff, bytes);
}

static err random_view(world *w, uint64_t which, int64_t n_heads, int64_t len,
                       flex_cuda_view *out) {
    bf16 *x;
    const size_t n = (size_t)(n_heads * len * DIM);
    TRY(arena_alloc(w->a, n, sizeof *x, &x));
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_from_f32((float)rng_uniform(which, RNG_TEST, 2, i) - 0.5f);
    *out = (flex_cuda_view){0, n_heads * len * DIM, len * DIM, DIM};
    return place(w, x, n * sizeof *x, &out->data);
}

static err empty_view(world *w, int64_t n_heads, int64_t len, flex_cuda_view *out) {
    *out = (flex_cuda_view){0, n_heads * len * DIM, len * DIM, DIM};
    return place(w, NULL, (size_t)(n_heads * len * DIM) * 2, &out->data);
}

static err make_io(world *w, const bound *b, flex_cuda_io *io) {
    const int64_t q = b->p.q_len, kv = b->p.kv_len;
    size_t bytes;
    memset(io, 0, sizeof *io);
    TRY(random_view(w, b->s->seed * 8 + 1, heads, q, &io->q));
    TRY(random_view(w, b->s->seed * 8 + 2, kv_heads, kv, &io->k));
    TRY(random_view(w, b->s->seed * 8 + 3, kv_heads, kv, &io->v));
    TRY(random_view(w, b->s->seed * 8 + 4, heads, q, &io->d_o));
    TRY(empty_view(w, heads, q, &io->o));
    TRY(empty_view(w, heads, q, &io->dq));
    TRY(empty_view(w, kv_heads, kv, &io->dk));
    TRY(empty_view(w, kv_heads, kv, &io->dv));
    TRY(place(w, NULL, (size_t)(heads * q) * 4, &io->lse));
    TRY(place(w, b->values[0].data, (size_t)b->s->blocks * 4, &io->mask_arrays[0]));
    const void *tables = flex_cuda_tables(b->plan, &bytes);
    TRY(place(w, tables, bytes, &io->tables));
    return place(w, NULL, flex_cuda_workspace(b->plan), &io->workspace);
}

/* The tiles once more, from the array on the device: those of the plan, run for run. */
static err build_there(world *w, const bound *b, dev *d, const flex_cuda_io *io) {
    expr_value values[4];
    blockmask_cuda *c;
    block_mask m;
    const block_mask *want = flex_cuda_plan_mask(b->plan);
    memcpy(values, b->values, sizeof values);
    values[0].data = (const void *)(uintptr_t)io->mask_arrays[0];
    const expr_env env = {.values = values};
    const block_mask_args args = {b->mask,      &env,          1, heads, b->p.q_len, b->p.kv_len,
                                  want->tile_q, want->tile_kv, 0};
    TRY(blockmask_cuda_open(&c, d, b->mask, &b->env, 0, w->a));
    err e = blockmask_cuda_build(&m, c, &args, w->s, w->a);
    blockmask_cuda_close(c);
    TRY(e);
    const size_t runs = (size_t)want->row_start[want->q_tiles];
    if (m.q_tiles != want->q_tiles ||
        memcmp(m.row_start, want->row_start, (size_t)(m.q_tiles + 1) * sizeof *m.row_start) ||
        memcmp(m.row_run, want->row_run, runs * sizeof *m.row_run))
        return err_set(ERR_INTERNAL, "the device found other tiles than the host");
    return ERR_OK;
}

static err run_steps(world *w, const bound *b, const flex_cuda_io *io) {
    flex_cuda_steps steps;
    TRY(flex_cuda_forward(b->plan, io, w->a, &steps));
    TRY(flex_cuda_run(b->code, w->s, &steps));
    TRY(flex_cuda_backward(b->plan, io, w->a, &steps));
    TRY(flex_cuda_run(b->code, w->s, &steps));
    return dev_stream_wait(w->s);
}

/* Output, LSE and gradients side by side. */
static err digest_of(world *w, const bound *b, const flex_cuda_io *io, char out[33]) {
    const size_t q = (size_t)(heads * b->p.q_len * DIM) * 2,
                 kv = (size_t)(kv_heads * b->p.kv_len * DIM) * 2,
                 lse = (size_t)(heads * b->p.q_len) * 4;
    const struct {
        dev_address at;
        size_t bytes;
    } parts[] = {
        {io->o.data, q}, {io->lse, lse}, {io->dq.data, q}, {io->dk.data, kv}, {io->dv.data, kv}};
    char *all;
    size_t n = 0;
    TRY(arena_alloc(w->a, 2 * q + lse + 2 * kv, 1, &all));
    for (int i = 0; i < 5; i++) {
        TRY(dev_copy_out(w->s, all + n, parts[i].at, parts[i].bytes));
        n += parts[i].bytes;
    }
    TRY(dev_stream_wait(w->s));
    file_hash_bytes(all, n, out);
    return ERR_OK;
}

static err step(dev *d, world *w, const shape *s, char out[33]) {
    bound b = {.mask = NULL};
    flex_cuda_io io;
    const arena_mark mark = arena_get_mark(w->a);
    const size_t device_mark = dev_arena_mark(w->memory);
    err e = bind(&b, s, d, w->a);
    if (!e) e = make_io(w, &b, &io);
    if (!e) e = build_there(w, &b, d, &io);
    if (!e) e = run_steps(w, &b, &io);
    if (!e) e = digest_of(w, &b, &io, out);
    expr_free(b.mask);
    arena_reset(w->a, mark);
    dev_arena_reset(w->memory, device_mark);
    return e;
}

static err open_world(world *w, dev *d) {
    memset(w, 0, sizeof *w);
    TRY(arena_create(&w->a, "racer", 0));
    TRY(dev_stream_create(&w->s, d));
    return dev_arena_create(&w->memory, d, "racer", (size_t)96 << 20);
}

static void close_world(world *w) {
    dev_arena_destroy(w->memory);
    dev_stream_destroy(w->s);
    arena_destroy(w->a);
}

/* ---- a child: threads on one device ---- */

typedef struct racer {
    pthread_t id;
    pthread_barrier_t *start;
    dev *d;
    int first, of; /* lengths first, first + of, ... are its own */
    char (*digests)[33];
    err result;
    char text[600];
} racer;

static void *race(void *ctx) {
    racer *r = ctx;
    world w;
    r->result = open_world(&w, r->d);
    pthread_barrier_wait(r->start);
    for (int i = r->first; i < LENGTHS && !r->result; i += r->of) {
        const shape s = shape_of(i);
        r->result = step(r->d, &w, &s, r->digests[i]);
    }
    if (r->result) snprintf(r->text, sizeof r->text, "%s", err_text());
    close_world(&w);
    return NULL;
}

typedef struct child {
    const char *folder, *output;
    int threads, hang, shapes;
} child;

static int fail_child(const char *what) {
    printf("%s: %s\n", what, err_text());
    fflush(stdout);
    return 1;
}

static int race_all(dev *d, int n, char digests[LENGTHS][33]) {
    racer r[16];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        r[i] = (racer){.start = &start, .d = d, .first = i, .of = n, .digests = digests};
        if (pthread_create(&r[i].id, NULL, race, &r[i])) return 2;
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].id, NULL);
    for (int i = 0; i < n; i++) {
        if (!r[i].result) continue;
        printf("thread %d: %s\n", i, r[i].text);
        fflush(stdout);
        return 3;
    }
    return 0;
}

/* Random lengths and scalars: all of them run what was compiled before. */
static int many_shapes(dev *d, char last[33]) {
    world w;
    if (open_world(&w, d)) return fail_child("world");
    for (int i = 0; i < SHAPES + SCALARS; i++) {
        const uint64_t k = (uint64_t)i;
        if (emulated && i % 100) continue;
        shape s = {.blocks = 1 + (int64_t)rng_below(seed, RNG_TEST, 3, k, 20),
                   .ctx = 1 + (int64_t)rng_below(seed, RNG_TEST, 4, k, emulated ? 200 : 700),
                   .size = 1 + (int64_t)rng_below(seed, RNG_TEST, 5, k, 20),
                   .seed = k};
        if (i >= SHAPES) s = (shape){.blocks = 4, .ctx = 300, .size = 16, .seed = k};
        if (step(d, &w, &s, last)) return fail_child("shape");
    }
    close_world(&w);
    return 0;
}

static int child_main(const child *x) {
    counting c = {.hang = x->hang};
    cuda_system *sys;
    dev *d;
    char digests[LENGTHS][33] = {{0}}, all[33], line[200];
    if (kernel_compiler_open(&c.real)) return NO_GPU;
    c.c = (kernel_compiler){.ctx = &c, .compile = count_and_compile, .check_arch = check_arch};
    memcpy(c.c.identity, c.real.identity, sizeof c.c.identity);
    kernel_cache_config cache = {.folder = x->folder, .compiler = &c.c};
    if (cuda_system_open(&sys, &(cuda_system_config){.cache = &cache})) return NO_GPU;
    if (dev_open_cuda(&d, sys, 0, &(dev_config){.threads = 1, .blas = "none"}))
        return fail_child("device");
    emulated = strstr(dev_cuda_info(d)->name, "emulated") != NULL;
    if (emulated) heads = kv_heads = 1;
    double begun = clock_seconds();
    int bad = x->shapes ? many_shapes(d, digests[0]) : race_all(d, x->threads, digests);
    double ms = (clock_seconds() - begun) * 1e3;
    kernel_cache_stats s;
    kernel_cache_get_stats(cuda_system_cache(sys), &s);
    printf(
        "%2d threads: %5.0f ms, %d kernels, %d compiled (%.0f ms in sum), %d adopted, %d rebuilt\n",
        x->threads, ms, s.entries, s.compiled, s.compile_ms, s.adopted, s.rebuilt);
    fflush(stdout);
    file_hash_bytes(digests, sizeof digests, all);
    snprintf(line, sizeof line, "%s %d %d\n", all, s.entries, s.rebuilt);
    if (!bad) tell(x->output, line);
    dev_close(d);
    cuda_system_close(sys);
    kernel_compiler_close(&c.real);
    return bad;
}

/* ---- the parent ---- */

static pid_t start(const char *folder, const char *output, int threads, int hang, int shapes) {
    static char paths[64][700];
    static int used;
    char *f = paths[used++ % 64], *o = paths[used++ % 64];
    snprintf(f, 700, "%s", files_at(&dir, folder));
    snprintf(o, 700, "%s", files_at(&dir, output));
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    const child x = {f, o, threads, hang, shapes};
    _exit(child_main(&x));
}

static int code_of(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* What a child that ended well has written: digest, kernels, rebuilt. */
static void result_of(const char *output, char digest[33], int *kernels, int *rebuilt) {
    char *text;
    size_t n;
    assert_ok(file_read(files_at(&dir, output), &text, &n));
    assert_int_equal(sscanf(text, "%32s %d %d", digest, kernels, rebuilt), 3);
    free(text);
}

static char alone[33]; /* the results of one thread */
static int n_kernels;

static void need_gpu(void) {
    static int missing;
    int rebuilt;
    if (!alone[0] && !missing) {
        int code = code_of(start("alone", "alone.out", 1, 0, 0));
        missing = code == NO_GPU;
        if (missing)
            printf("skipped: no GPU that can be used\n");
        else
            assert_int_equal(code, 0);
        if (!missing) result_of("alone.out", alone, &n_kernels, &rebuilt);
    }
    if (missing) skip();
}

static void threads_with_a_cold_cache(void **state) {
    (void)state;
    static const int n[] = {3, 8, 16};
    need_gpu();
    for (int i = 0; i < 3; i++) {
        char folder[16], output[16], digest[33];
        int kernels, rebuilt, before = told(counts, "ended");
        snprintf(folder, sizeof folder, "cold%d", n[i]);
        snprintf(output, sizeof output, "cold%d.out", n[i]);
        assert_int_equal(code_of(start(folder, output, n[i], 0, 0)), 0);
        result_of(output, digest, &kernels, &rebuilt);
        assert_string_equal(digest, alone);
        assert_int_equal(kernels, n_kernels);
        assert_int_equal(told(counts, "ended") - before, n_kernels);
    }
}

static void flip_one_entry(const char *folder) {
    kernel_folder f;
    kernel_folder_item *items;
    int n;
    char path[PATH_MAX];
    assert_ok(kernel_folder_open(&f, files_at(&dir, folder), 0));
    assert_ok(kernel_folder_list(&f, &items, &n));
    assert_int_equal(n, n_kernels);
    assert_ok(kernel_folder_path(&f, items[n / 2].key, path));
    mem_free(items);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -1000, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -1000, SEEK_END);
    fputc(byte ^ 8, file);
    assert_int_equal(fclose(file), 0);
}

/* Four processes of four threads on one empty folder, one killed in a compile; then an entry with a flipped byte. */
static void b16_processes_with_a_cold_cache(void **state) {
    (void)state;
    char output[16], digest[33];
    int kernels, rebuilt, before, began;
    pid_t pids[4];
    need_gpu();
    before = told(counts, "ended");
    began = told(counts, "began");
    pids[0] = start("four", "four0.out", 4, 1, 0);
    for (int i = 0; i < 300000 && told(counts, "began") == began; i++) nap(1);
    assert_true(told(counts, "began") > began);
    for (int i = 1; i < 4; i++) {
        snprintf(output, sizeof output, "four%d.out", i);
        pids[i] = start("four", output, 4, 0, 0);
    }
    nap(700); /* the others come to wait for what it compiles */
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(code_of(pids[0]), 128 + SIGKILL);
    for (int i = 1; i < 4; i++) assert_int_equal(code_of(pids[i]), 0);
    for (int i = 1; i < 4; i++) {
        snprintf(output, sizeof output, "four%d.out", i);
        result_of(output, digest, &kernels, &rebuilt);
        assert_string_equal(digest, alone);
        assert_int_equal(rebuilt, 0);
    }
    assert_int_equal(told(counts, "ended") - before, n_kernels);
    flip_one_entry("four");
    assert_int_equal(code_of(start("four", "flipped.out", 8, 0, 0)), 0);
    result_of("flipped.out", digest, &kernels, &rebuilt);
    assert_string_equal(digest, alone);
    assert_int_equal(rebuilt, 1);
    assert_int_equal(told(counts, "ended") - before, n_kernels + 1);
}

/* Moved away as a whole: to empty it while files are made in it could fail here. */
static void b16_the_folder_vanishes(void **state) {
    (void)state;
    char digest[33], folder[600];
    int kernels, rebuilt, status, gone = 0;
    need_gpu();
    pid_t pid = start("vanishing", "vanishing.out", 8, 0, 0);
    snprintf(folder, sizeof folder, "%s", files_at(&dir, "vanishing"));
    while (waitpid(pid, &status, WNOHANG) == 0) {
        char aside[32];
        snprintf(aside, sizeof aside, "aside%d", gone);
        if (rename(folder, files_at(&dir, aside)) == 0) gone++; /* it may not be there just now */
        nap(20);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(gone > 0);
    result_of("vanishing.out", digest, &kernels, &rebuilt);
    assert_string_equal(digest, alone);
}

static void cold_equals_warm(void **state) {
    (void)state;
    char digest[33];
    int kernels, rebuilt;
    need_gpu();
    int before = told(counts, "began");
    setenv("PACELINE_NO_COMPILE", "1", 1);
    int warm = code_of(start("alone", "warm.out", 16, 0, 0));
    int shapes = code_of(start("alone", "shapes.out", 1, 0, 1));
    unsetenv("PACELINE_NO_COMPILE");
    assert_int_equal(warm, 0);
    assert_int_equal(shapes, 0);
    result_of("warm.out", digest, &kernels, &rebuilt);
    assert_string_equal(digest, alone);
    result_of("shapes.out", digest, &kernels, &rebuilt);
    assert_int_equal(kernels, n_kernels);
    assert_int_equal(told(counts, "began"), before);
}

static int set_up(void **state) {
    (void)state;
    dir = files_begin();
    snprintf(counts, sizeof counts, "%s", files_at(&dir, "counts"));
    seed = numbers_seed();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    files_end(&dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_with_a_cold_cache),
        cmocka_unit_test(b16_processes_with_a_cold_cache),
        cmocka_unit_test(b16_the_folder_vanishes),
        cmocka_unit_test(cold_equals_warm),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
