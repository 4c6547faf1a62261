/* CUDA text of expressions: golden files, the same text compiled as C against the definition, and by NVRTC.
 *
 * Hooks are plain C apart from qualifiers and a few intrinsics, so a shim makes them a shared library: random programs
 * are compared with the interpreter bit for bit, values, slopes, sites and loads that left, in 64 bits and, where it is
 * proven enough, in 32. `test_expr_cuda --write` writes tests/fixtures/cuda_text anew. Skipped parts say so. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <time.h>
#include <unistd.h>
#include "cuda_batch.h"
#include "support/files.h"
#include "support/nvrtc.h"

enum { CELLS = 486 };
static const char *const folder = "tests/fixtures/cuda_text";

/* ---- golden text ---- */

typedef struct golden {
    const char *name, *mask, *score;
    expr_decl decl[4];
    int n;
    unsigned wanted;
    dtype type[EXPR_MAX_CAPTURES];
} golden;

static const golden goldens[] = {
    {.name = "causal_window",
     .mask = "kv <= q && q - kv < w",
     .decl = {{"w", EXPR_INT, 0}},
     .n = 1},
    {.name = "documents",
     .mask = "doc[q] == doc[kv] && kv <= q",
     .decl = {{"doc", EXPR_INT, 1}},
     .n = 1,
     .type = {DT_I32}},
    {.name = "dflash",
     .mask =
         "let block = q // 16; anchor[block] >= 0 && (kv < n ? kv < anchor[block] && doc[kv] == "
         "doc[anchor[block]] : (kv - n) // 16 == block)",
     .decl = {{"n", EXPR_INT, 0}, {"anchor", EXPR_INT, 1}, {"doc", EXPR_INT, 1}},
     .n = 3,
     .type = {0, DT_I64, DT_I32}},
    {.name = "floats",
     .mask = "exp(float(q - kv) / x) > 0.1 || floor(bias[h, q] * 0.5) == -0.0",
     .decl = {{"x", EXPR_FLOAT, 0}, {"bias", EXPR_FLOAT, 2}},
     .n = 2,
     .type = {0, DT_BF16}},
    {.name = "softcap", .score = "30.0 * tanh(s / 30.0)"},
    {.name = "alibi_learned",
     .score = "s + slope[h] * float(kv - q)",
     .decl = {{"slope", EXPR_FLOAT, 1}},
     .n = 1,
     .wanted = 1,
     .type = {DT_F32}},
    {.name = "guarded",
     .score = "q > kv ? s + t[q - kv - 1] * x : -s * s",
     .decl = {{"t", EXPR_FLOAT, 1}, {"x", EXPR_FLOAT, 0}},
     .n = 2,
     .wanted = 3,
     .type = {DT_F16}},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

static void make_golden(const golden *g, str *out) {
    expr *e;
    const char *text = g->mask ? g->mask : g->score;
    assert_ok(expr_compile(&e, g->mask ? EXPR_MASK : EXPR_SCORE, text, g->decl, g->n));
    assert_ok(str_printf(out, "/* %s */\n", text));
    if (g->mask) assert_ok(expr_cuda_mask(out, e, g->type));
    if (g->score) {
        arena *a;
        expr_grad *grad;
        assert_ok(arena_create(&a, "golden", 0));
        assert_ok(expr_grad_create(&grad, e, g->wanted, a));
        assert_ok(expr_cuda_score(out, e, g->type));
        assert_ok(expr_cuda_slope(out, grad, g->type));
        if (g->wanted) assert_ok(expr_cuda_sites(out, grad, g->type));
        arena_destroy(a);
    }
    expr_free(e);
}

static void golden_path(const golden *g, char path[256]) {
    snprintf(path, 256, "%s/%s.txt", folder, g->name);
}

static void text_equals_the_golden_files(void **state) {
    (void)state;
    for (int i = 0; i < GOLDENS; i++) {
        char path[256], *want;
        size_t n;
        str text = {0};
        golden_path(&goldens[i], path);
        make_golden(&goldens[i], &text);
        files_must(!file_read(path, &want, &n), path);
        if (n != text.n || memcmp(want, text.s, n))
            fail_msg("%s differs from the text made now:\n%s\n(test_expr_cuda --write writes it)",
                     path, text.s);
        mem_free(want);
        str_free(&text);
    }
}

static void write_goldens(void) {
    for (int i = 0; i < GOLDENS; i++) {
        char path[256];
        str text = {0};
        golden_path(&goldens[i], path);
        make_golden(&goldens[i], &text);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(text.s, 1, text.n, f) != text.n || fclose(f)) abort();
        str_free(&text);
    }
}

/* ---- as C ---- */

static const char shim[] =
    "#include <math.h>\n#include <string.h>\n#define PX_FN static inline\n#define EXPORT\n"
    "static inline float __fadd_rn(float x, float y) { return x + y; }\n"
    "static inline float __fsub_rn(float x, float y) { return x - y; }\n"
    "static inline float __fmul_rn(float x, float y) { return x * y; }\n"
    "static inline float __fdiv_rn(float x, float y) { return x / y; }\n"
    "static inline float __fsqrt_rn(float x) { return sqrtf(x); }\n"
    "static inline float __ll2float_rn(long long x) { return (float)x; }\n"
    "static inline float __int2float_rn(int x) { return (float)x; }\n"
    "static inline float __uint_as_float(unsigned x) { float f; memcpy(&f, &x, 4); return f; }\n"
    "static inline double __dadd_rn(double x, double y) { return x + y; }\n"
    "static inline double __dsub_rn(double x, double y) { return x - y; }\n"
    "static inline double __dmul_rn(double x, double y) { return x * y; }\n"
    "static inline double __ddiv_rn(double x, double y) { return x / y; }\n"
    "static inline double __dsqrt_rn(double x) { return sqrt(x); }\n"
    "static inline long long __double_as_longlong(double x) { long long i; memcpy(&i, &x, 8); return i; }\n"
    "static inline double __longlong_as_double(long long i) { double x; memcpy(&x, &i, 8); return x; }\n" CUDA_BATCH_EXACT;

typedef void (*run_fn)(const px_env *, int, long long, long long, long long, long long, float,
                       float *, long long *, float *);

/* Compiles text with the host's compiler; NULL where there is none. */
static void *host_library(const str *text) {
    char path[] = "/tmp/cuda_text_XXXXXX", source[64], object[64], command[400];
    if (!mkdtemp(path)) return NULL;
    snprintf(source, sizeof source, "%s/x.c", path);
    snprintf(object, sizeof object, "%s/x.so", path);
    FILE *f = fopen(source, "wb");
    if (!f || fwrite(text->s, 1, text->n, f) != text->n || fclose(f)) return NULL;
    snprintf(command, sizeof command,
             "cc -std=c11 -O1 -ffp-contract=off -w -shared -fPIC -o %s %s -lm", object, source);
    int failed = system("command -v cc >/dev/null 2>&1") != 0;
    void *library = NULL;
    if (!failed) {
        assert_int_equal(system(command), 0);
        library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
        assert_non_null(library);
    }
    unlink(object), unlink(source), rmdir(path);
    return library;
}

static void text_as_c_equals_the_definition(void **state) {
    (void)state;
    cuda_batch *b = malloc(sizeof *b);
    str text = {0};
    int64_t cells = 0, narrow = 0;
    assert_non_null(b);
    cuda_batch_make(b, CUDA_BATCH);
    assert_ok(str_add(&text, shim, sizeof shim - 1));
    assert_ok(expr_cuda_prelude(&text));
    for (int i = 0; i < CUDA_BATCH; i++) cuda_batch_put(&text, b, i);
    void *library = host_library(&text);
    for (int i = 0; library && i < CUDA_BATCH; i++) {
        char name[32];
        run_fn run;
        const void *arrays[EXPR_MAX_CAPTURES] = {NULL};
        px_env env;
        snprintf(name, sizeof name, "run_%d", i);
        void *f = dlsym(library, name);
        assert_non_null(f);
        memcpy(&run, &f, sizeof run);
        if (b->p[i].g && expr_grad_sites(b->p[i].g) > CUDA_BATCH_SITES) continue;
        for (int k = 0; k < RANDOM_EXPR_CAPTURES; k++) arrays[k] = b->w.value[k].data;
        expr_cuda_fill(&env, b->p[i].e, &b->w.env, arrays);
        int fits = cuda_batch_fits_32(b, i);
        narrow += fits;
        for (int k = 0; k < CELLS; k++) {
            int64_t at[4];
            const float s = cuda_batch_cell(b, at);
            for (int width = 64; width >= (fits ? 32 : 64); width /= 2) {
                float out[4] = {NAN, NAN, NAN, NAN}, d[CUDA_BATCH_SITES];
                long long place[CUDA_BATCH_SITES];
                run(&env, width, at[0], at[1], at[2], at[3], s, out, place, d);
                cuda_batch_check(b, i, width, at, s, out, place, d);
            }
            cells++;
        }
    }
    if (!library)
        printf("skipped: no compiler `cc` on this machine\n");
    else
        printf("%d programs, %lld cells equal; %lld programs in 32 bits too\n", CUDA_BATCH,
               (long long)cells, (long long)narrow);
    if (library) assert_true(narrow > 10);
    if (library) dlclose(library);
    str_free(&text);
    cuda_batch_free(b, CUDA_BATCH);
    free(b);
}

/* ---- by NVRTC ---- */

static void every_random_text_compiles(void **state) {
    enum { N = 60 };
    (void)state;
    nvrtc n;
    if (!nvrtc_open(&n)) {
        printf("skipped: no NVRTC on this machine\n");
        return;
    }
    cuda_batch *b = malloc(sizeof *b);
    str text = {0};
    size_t size;
    assert_non_null(b);
    cuda_batch_make(b, N);
    assert_ok(str_printf(&text, "#define EXPORT extern \"C\" __global__\n"));
    assert_ok(expr_cuda_prelude(&text));
    for (int i = 0; i < N; i++) cuda_batch_put(&text, b, i);
    char *cubin = nvrtc_cubin(&n, text.s, "hooks", "sm_80", &size, NULL);
    if (!cubin) fail_msg("seed %llu: a text does not compile", (unsigned long long)b->seed);
    free(cubin);
    str_free(&text);
    cuda_batch_free(b, N);
    free(b);
}

static void what_is_proven_of_a_score(void **state) {
    (void)state;
    const expr_decl decl[2] = {{"t", EXPR_INT, 1}, {"n", EXPR_INT, 0}};
    static const struct {
        const char *text;
        dtype type;
        int64_t n, length;
        unsigned holds; /* 1 fits, 2 inside */
    } cases[] = {
        {"s + float(q - kv)", DT_I32, 0, 1 << 20, 3},
        {"s + float(q - kv)", DT_I32, 0, INT64_C(1) << 33, 2},
        {"s + float(q * kv)", DT_I32, 0, 1 << 20, 2},
        {"s + float(t[q])", DT_I64, 0, 101, 0},
        {"s + float(t[q])", DT_I64, 0, 100, 2},
        {"s + float(t[q])", DT_I32, 0, 100, 3},
        {"s + float(t[q + 1])", DT_I32, 0, 100, 1},
        {"s + float(t[clamp(q - kv + 50, 0, 99)])", DT_I32, 0, 10000, 3},
        {"s + float(t[q] + 1)", DT_I32, 0, 100, 2},
        {"s + float(min(q, n) * 3)", DT_I32, INT64_C(1) << 30, 100, 3},
        {"s + float(n)", DT_I32, INT64_C(1) << 31, 100, 2},
        {"s + float(int(s))", DT_I32, 0, 100, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expr *e;
        const expr_value value[2] = {{.type = cases[i].type, .dim = {100}},
                                     {.scalar.i = cases[i].n}};
        const expr_env env = {value, 0, 0};
        assert_ok(expr_compile(&e, EXPR_SCORE, cases[i].text, decl, 2));
        unsigned holds =
            expr_cuda_prove(e, &env, (int64_t[4]){2, 8, cases[i].length, cases[i].length});
        if (holds != cases[i].holds) fail_msg("%s: %u", cases[i].text, holds);
        expr_free(e);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--write")) {
        write_goldens();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_equals_the_golden_files),
        cmocka_unit_test(text_as_c_equals_the_definition),
        cmocka_unit_test(every_random_text_compiles),
        cmocka_unit_test(what_is_proven_of_a_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
