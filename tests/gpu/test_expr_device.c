/* Generated text on a GPU or the emulated device against the interpreter: random masks, scores, slopes and sites, bit for bit.
 *
 * Many programs in one kernel file, a thread a cell, in 64 bits and where it is proven enough in 32. Scores take the exact
 * functions here; how far the near ones are is measured beside them. Skipped without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "expr/cuda_batch.h"
#include "gpu_case.h"

enum { PROGRAMS = 80, CELLS = 512, TEXTS = 4 };

/* The programs first, first + TEXTS and so on, each with a kernel over cells. */
static void put_text(str *out, const cuda_batch *b, int first) {
    assert_ok(str_printf(out, CUDA_BATCH_EXACT "#define EXPORT static __device__\n"));
    assert_ok(expr_cuda_prelude(out));
    for (int i = first; i < PROGRAMS; i += TEXTS) {
        cuda_batch_put(out, b, i);
        assert_ok(str_printf(
            out,
            "extern \"C\" __global__ void all_%d(const __grid_constant__ px_env e, int width, const "
            "px_i64 *at, const float *s, float *out, px_i64 *place, float *d) {\n"
            "const int i = blockIdx.x * 128 + threadIdx.x;\n"
            "run_%d(&e, width, at[4 * i], at[4 * i + 1], at[4 * i + 2], at[4 * i + 3], s[i], out + 4 "
            "* i, place + %d * i, d + %d * i);\n}\n",
            i, i, CUDA_BATCH_SITES, CUDA_BATCH_SITES));
    }
}

typedef struct building {
    const gpu_world *w;
    const cuda_batch *b;
    module *m[TEXTS];
} building;

static err build(void *ctx, int64_t i, int thread) {
    building *x = ctx;
    str text = {0};
    (void)thread;
    put_text(&text, x->b, (int)i);
    const kernel_text source = {"programs.cu", text.s};
    const kernel_spec spec = {.name = "random programs", .source = &source};
    err e = module_get(&x->m[i], x->w->d, &spec);
    str_free(&text);
    return e;
}

typedef struct cells {
    int64_t at[CELLS * 4];
    float s[CELLS], out[CELLS * 4], d[CELLS * CUDA_BATCH_SITES];
    int64_t place[CELLS * CUDA_BATCH_SITES];
} cells;

static void run_program(const gpu_world *w, cuda_batch *b, int i, module *m, cells *c, int width) {
    module_function *f;
    px_env env;
    char name[32];
    const void *arrays[EXPR_MAX_CAPTURES] = {NULL};
    flex_cuda_address there[EXPR_MAX_CAPTURES] = {0};
    const size_t mark = gpu_mark(w);
    for (int k = 0; k < CELLS; k++) c->s[k] = cuda_batch_cell(b, &c->at[4 * k]);
    gpu_arrays(w, b->p[i].e, &b->w.env, there);
    for (int k = 0; k < EXPR_MAX_CAPTURES; k++) arrays[k] = (void *)(uintptr_t)there[k];
    expr_cuda_fill(&env, b->p[i].e, &b->w.env, arrays);
    dev_address at = gpu_copy(w, c->at, sizeof c->at), s = gpu_copy(w, c->s, sizeof c->s),
                out = gpu_new(w, sizeof c->out, 0xff), place = gpu_new(w, sizeof c->place, 0xff),
                d = gpu_new(w, sizeof c->d, 0xff);
    void *const args[] = {&env, &width, &at, &s, &out, &place, &d};
    snprintf(name, sizeof name, "all_%d", i);
    assert_ok(module_get_function(&f, m, name, 0));
    assert_ok(module_launch(f, w->s, &(module_grid){.grid = {CELLS / 128}, .block = {128}}, args));
    gpu_out(w, c->out, out, sizeof c->out);
    gpu_out(w, c->place, place, sizeof c->place);
    gpu_out(w, c->d, d, sizeof c->d);
    gpu_reset(w, mark);
}

static void random_programs_equal_the_interpreter(void **data) {
    const gpu_world *w = *data;
    if (!w->d) skip();
    cuda_batch *b = malloc(sizeof *b);
    cells *c = malloc(sizeof *c);
    int64_t compared = 0;
    assert_non_null(b);
    assert_non_null(c);
    cuda_batch_make(b, PROGRAMS);
    building x = {.w = w, .b = b};
    assert_ok(pool_run(w->threads, TEXTS, build, &x));
    for (int i = 0; i < PROGRAMS; i++) {
        if (b->p[i].g && expr_grad_sites(b->p[i].g) > CUDA_BATCH_SITES) continue;
        for (int width = 64; width >= (cuda_batch_fits_32(b, i) ? 32 : 64); width /= 2) {
            run_program(w, b, i, x.m[i % TEXTS], c, width);
            for (int k = 0; k < CELLS; k++, compared++)
                cuda_batch_check(b, i, width, &c->at[4 * k], c->s[k], &c->out[4 * k],
                                 (const long long *)&c->place[CUDA_BATCH_SITES * k],
                                 &c->d[CUDA_BATCH_SITES * k]);
        }
    }
    printf("%d programs, %lld cells equal\n", PROGRAMS, (long long)compared);
    cuda_batch_free(b, PROGRAMS);
    free(b);
    free(c);
}

static const char *const near_functions[] = {
    "exp(s)",     "exp2(s)", "log(abs(s) + 0.001)", "rsqrt(abs(s) + 0.001)", "tanh(s)",
    "sigmoid(s)", "s / 3.7"};
enum { FUNCTIONS = sizeof near_functions / sizeof *near_functions, LOGITS = 1 << 16 };

static void put_near(str *out, int k) {
    const dtype none[EXPR_MAX_CAPTURES] = {DT_F32};
    expr *e;
    assert_ok(expr_compile(&e, EXPR_SCORE, near_functions[k], NULL, 0));
    cuda_batch_put_names(out, k);
    assert_ok(expr_cuda_score(out, e, none));
    assert_ok(str_printf(out,
                         "extern \"C\" __global__ void near_%d(const float *x, float *y) {\n"
                         "const int i = blockIdx.x * 128 + threadIdx.x;\npx_env env, *e = &env;\n"
                         "const px_i64 b = 0, h = 0, q = 0, kv = 0; const float s = x[i];\n",
                         k));
    cuda_batch_put_call(out, "score", 64, "y[i] = ", ", s");
    assert_ok(str_printf(out, "}\n"));
    expr_free(e);
}

/* Units in the last place between the near functions of scores and the definition, logits from -20 to 20. */
static void near_functions_are_near(void **data) {
    const gpu_world *w = *data;
    if (!w->d) skip();
    str text = {0};
    module *m;
    float *s = malloc(LOGITS * sizeof *s), *got = malloc(LOGITS * sizeof *got);
    assert_non_null(s);
    assert_non_null(got);
    for (int i = 0; i < LOGITS; i++) s[i] = (float)(i - LOGITS / 2) / (float)(LOGITS / 40);
    assert_ok(expr_cuda_prelude(&text));
    for (int k = 0; k < FUNCTIONS; k++) put_near(&text, k);
    const kernel_text source = {"near.cu", text.s};
    assert_ok(module_get(&m, w->d, &(kernel_spec){.name = "near functions", .source = &source}));
    dev_address x = gpu_copy(w, s, LOGITS * sizeof *s), y = gpu_new(w, LOGITS * sizeof *s, 0xff);
    for (int k = 0; k < FUNCTIONS; k++) {
        expr *e;
        module_function *f;
        char name[32];
        double far = 0;
        void *const args[] = {&x, &y};
        snprintf(name, sizeof name, "near_%d", k);
        assert_ok(expr_compile(&e, EXPR_SCORE, near_functions[k], NULL, 0));
        assert_ok(module_get_function(&f, m, name, 0));
        assert_ok(
            module_launch(f, w->s, &(module_grid){.grid = {LOGITS / 128}, .block = {128}}, args));
        gpu_out(w, got, y, LOGITS * sizeof *s);
        for (int i = 0; i < LOGITS; i++) {
            int flag = 0;
            const float want = expr_eval_score(e, NULL, 0, 0, 0, 0, s[i], &flag);
            const double unit = fabs((double)nextafterf(want, INFINITY) - (double)want),
                         ulps = fabs((double)got[i] - (double)want) / unit;
            if (!(ulps <= far)) far = ulps == ulps ? ulps : (double)INFINITY;
        }
        printf("  %-24s %.1f units in the last place\n", near_functions[k], far);
        assert_true(far <= 8.0);
        expr_free(e);
    }
    str_free(&text);
    free(s);
    free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_equal_the_interpreter),
        cmocka_unit_test(near_functions_are_near),
    };
    return cmocka_run_group_tests(tests, gpu_world_set_up, gpu_world_tear_down);
}
