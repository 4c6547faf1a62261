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
#include "expr/expr_cuda.h"
#include "expr/expr_grad_private.h"
#include "expr/expr_load.h"
#include "support/files.h"
#include "support/numbers.h"
#include "support/nvrtc.h"
#include "support/random_world.h"
#include "support/says.h"

enum { PROGRAMS = 240, TEXT = 2000, BOXES = 6, SIDE = 9, MOST_SITES = 64 };
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

/* ---- random programs ---- */

typedef struct program {
    expr *e;
    expr_grad *g; /* scores */
    char text[TEXT];
} program;

typedef struct batch {
    random_world w;
    uint64_t seed;
    arena *a;
    dtype type[EXPR_MAX_CAPTURES];
    program p[PROGRAMS];
} batch;

static unsigned wanted_of(const batch *b) {
    unsigned wanted = 0;
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++)
        if (b->w.decl[i].type == EXPR_FLOAT) wanted |= 1u << i;
    return wanted;
}

static void batch_make(batch *b, int n) {
    memset(b, 0, sizeof *b);
    b->seed = b->w.state = numbers_seed();
    random_world_declare(&b->w);
    random_world_bind(&b->w, 60);
    assert_ok(arena_create(&b->a, "batch", 0));
    for (int i = 0; i < n; i++) {
        program *p = &b->p[i];
        int score = i % 2, depth = 1 + random_world_draw(&b->w, 5);
        (score ? random_expr_score : random_expr_mask)(&b->w.state, depth, p->text, TEXT);
        assert_ok(expr_compile(&p->e, score ? EXPR_SCORE : EXPR_MASK, p->text, b->w.decl,
                               RANDOM_EXPR_CAPTURES));
        if (score) assert_ok(expr_grad_create(&p->g, p->e, wanted_of(b), b->a));
        expr_cuda_types(p->e, &b->w.env, b->type);
    }
}

static void batch_free(batch *b, int n) {
    for (int i = 0; i < n; i++) expr_free(b->p[i].e);
    arena_destroy(b->a);
}

/* Every name of a family gets the program's number, so that many programs fit in one text. */
static void put_names(str *out, int number) {
    static const char *const family[] = {"mask", "score", "slope", "sites"};
    static const char *const part[] = {"tile", "q", "kv", "by_tile", "by_q", "by_kv", "cell"};
    for (int f = 0; f < 4; f++) {
        for (int k = 0; k < 14; k++) {
            const char *name = part[k / 2];
            int width = k % 2 ? 32 : 64;
            assert_ok(str_printf(out, "#undef %s_%s_%d\n#define %s_%s_%d %s_%s_%d_%d\n", family[f],
                                 name, width, family[f], name, width, family[f], name, width,
                                 number));
        }
        assert_ok(str_printf(out, "#undef %s_left\n#define %s_left %s_left_%d\n", family[f],
                             family[f], family[f], number));
    }
    assert_ok(str_printf(out,
                         "#undef sites_capture\n#define sites_capture sites_capture_%d\n#undef "
                         "SITES\n",
                         number));
}

static void put_family_call(str *out, const char *family, int width, const char *result,
                            const char *more) {
    assert_ok(str_printf(out,
                         "%s_tile_%d t; %s_q_%d r; %s_kv_%d c;\n"
                         "%s_by_tile_%d(e, b, h, &t); %s_by_q_%d(e, &t, b, h, q, &r); "
                         "%s_by_kv_%d(e, &t, b, h, kv, &c);\n"
                         "%s%s_cell_%d(e, &t, &r, &c, b, h, q, kv%s);\n",
                         family, width, family, width, family, width, family, width, family, width,
                         family, width, result, family, width, more));
}

/* One exported function per program: everything at one cell. out: value; left; of scores the slope's value and d_s. */
static void put_program(str *out, const batch *b, int i) {
    const program *p = &b->p[i];
    put_names(out, i);
    if (!p->g)
        assert_ok(expr_cuda_mask(out, p->e, b->type));
    else {
        assert_ok(expr_cuda_score(out, p->e, b->type));
        assert_ok(expr_cuda_slope(out, p->g, b->type));
        assert_ok(expr_cuda_sites(out, p->g, b->type));
    }
    assert_ok(str_printf(out,
                         "EXPORT void run_%d(const px_env *e, int width, px_i64 b, px_i64 h, "
                         "px_i64 q, px_i64 kv, float s, float *out, px_i64 *place, float *d) {\n",
                         i));
    for (int width = 64; width >= 32; width /= 2) {
        assert_ok(str_printf(out, "if (width == %d) {\n", width));
        if (!p->g) put_family_call(out, "mask", width, "out[0] = (float)", "");
        if (p->g) {
            assert_ok(str_printf(out, "{ "));
            put_family_call(out, "score", width, "out[0] = ", ", s");
            assert_ok(str_printf(out, "} { "));
            put_family_call(out, "slope", width, "out[2] = ", ", s, &out[3]");
            assert_ok(str_printf(out, "} { "));
            put_family_call(out, "sites", width, "", ", s, place, d");
            assert_ok(str_printf(out, "}\n"));
        }
        assert_ok(str_printf(out, "}\n"));
    }
    assert_ok(str_printf(out, "out[1] = (float)%s_left(e, b, h, q, kv%s);\n}\n",
                         p->g ? "score" : "mask", p->g ? ", s" : ""));
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
    "static inline double __longlong_as_double(long long i) { double x; memcpy(&x, &i, 8); return x; }\n"
    "#define PX_NEAR_IS_EXACT\n"
    "#define px_real_div_near px_real_div\n#define px_real_exp_near px_real_exp\n#define px_real_exp2_near px_real_exp2\n"
    "#define px_real_log_near px_real_log\n#define px_real_rsqrt_near px_real_rsqrt\n"
    "#define px_real_tanh_near px_real_tanh\n#define px_real_sigmoid_near px_real_sigmoid\n";

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

static int same(float x, float y) { return x == y ? signbit(x) == signbit(y) : x != x && y != y; }

/* All nodes of a program with derivatives at one cell in fp32, loads giving 0 outside: what text computes. */
static void eval_grad(const batch *b, const expr_grad *g, const int64_t at[4], float s, ir_val *v,
                      int64_t *place) {
    const expr_env *env = &b->w.env;
    for (int i = 0; i < g->prog.n; i++) {
        const ir_node *n = &g->prog.node[i];
        const ir_val *x = &v[n->arg[0]], *y = &v[n->arg[1]];
        int64_t index[EXPR_MAX_NDIM];
        switch (n->op) {
        case IR_CONST: v[i] = n->k; break;
        case IR_VAR:
            if (n->slot == IR_S)
                v[i].f = s;
            else
                v[i].i = at[n->slot] + (n->slot == IR_Q    ? env->q0
                                        : n->slot == IR_KV ? env->kv0
                                                           : 0);
            break;
        case IR_SCALAR:
            if (n->type == EXPR_FLOAT)
                v[i].f = env->values[n->slot].scalar.f;
            else
                v[i].i = env->values[n->slot].scalar.i;
            break;
        case IR_LOAD:
            for (int k = 0; k < n->n_args; k++) index[k] = v[n->arg[k]].i;
            place[i] = expr_load__place(&env->values[n->slot], n->n_args, index);
            v[i] = (ir_val){0};
            if (place[i] >= 0)
                v[i] = expr_load__element(&env->values[n->slot], (expr_type)n->type, place[i]);
            break;
        case IR_AND: v[i].i = x->i && y->i; break;
        case IR_OR: v[i].i = x->i || y->i; break;
        case IR_SELECT: v[i] = x->i ? *y : v[n->arg[2]]; break;
        default: v[i] = ir__apply((ir_op)n->op, *x, n->n_args > 1 ? *y : *x);
        }
    }
}

#define DIFFERS(b, i, what, width, at)                                                             \
    fail_msg("seed %llu, width %d, %s differs at b %lld h %lld q %lld kv %lld of\n%s",             \
             (unsigned long long)(b)->seed, width, what, (long long)(at)[0], (long long)(at)[1],   \
             (long long)(at)[2], (long long)(at)[3], (b)->p[i].text)

static void check_grad(const batch *b, int i, int width, const int64_t at[4], float s,
                       const float *out, const long long *place, const float *d) {
    static ir_val v[IR_MAX_GRAD];
    static int64_t where[IR_MAX_GRAD];
    const expr_grad *g = b->p[i].g;
    eval_grad(b, g, at, s, v, where);
    if (!same(out[2], v[g->value].f)) DIFFERS(b, i, "slope's value", width, at);
    if (!same(out[3], g->d_s < 0 ? 0.0f : v[g->d_s].f)) DIFFERS(b, i, "slope", width, at);
    for (int k = 0; k < g->n_sites; k++) {
        const ir_node *load = &g->prog.node[g->site[k].load];
        int64_t want = load->op == IR_LOAD ? where[g->site[k].load] : 0;
        if (place[k] != want) DIFFERS(b, i, "a place", width, at);
        if (!same(d[k], g->site[k].d < 0 ? 0.0f : v[g->site[k].d].f))
            DIFFERS(b, i, "a site's derivative", width, at);
    }
}

static void check_cell(const batch *b, int i, int width, run_fn run, const px_env *env,
                       const int64_t at[4], float s) {
    const program *p = &b->p[i];
    float out[4] = {NAN, NAN, NAN, NAN}, d[MOST_SITES];
    long long place[MOST_SITES];
    int left = 0;
    float want = p->g ? expr_eval_score(p->e, &b->w.env, at[0], at[1], at[2], at[3], s, &left)
                      : (float)expr_eval_mask(p->e, &b->w.env, at[0], at[1], at[2], at[3], &left);
    run(env, width, at[0], at[1], at[2], at[3], s, out, place, d);
    if (!same(out[0], want)) DIFFERS(b, i, "the value", width, at);
    if (out[1] != (float)left) DIFFERS(b, i, "what left", width, at);
    if (p->g) check_grad(b, i, width, at, s, out, place, d);
}

static void text_as_c_equals_the_definition(void **state) {
    (void)state;
    batch *b = malloc(sizeof *b);
    str text = {0};
    int64_t cells = 0, narrow = 0;
    assert_non_null(b);
    batch_make(b, PROGRAMS);
    assert_ok(str_add(&text, shim, sizeof shim - 1));
    assert_ok(expr_cuda_prelude(&text));
    for (int i = 0; i < PROGRAMS; i++) put_program(&text, b, i);
    void *library = host_library(&text);
    for (int i = 0; library && i < PROGRAMS; i++) {
        char name[32];
        run_fn run;
        const void *arrays[EXPR_MAX_CAPTURES] = {NULL};
        px_env env;
        snprintf(name, sizeof name, "run_%d", i);
        void *f = dlsym(library, name);
        assert_non_null(f);
        memcpy(&run, &f, sizeof run);
        if (b->p[i].g && expr_grad_sites(b->p[i].g) > MOST_SITES) continue;
        for (int k = 0; k < RANDOM_EXPR_CAPTURES; k++) arrays[k] = b->w.value[k].data;
        expr_cuda_fill(&env, b->p[i].e, &b->w.env, arrays);
        int fits =
            expr_cuda_prove(b->p[i].e, &b->w.env, (int64_t[4]){2, 3, 80, 80}) & EXPR_CUDA_FITS_32;
        narrow += fits;
        for (int k = 0; k < BOXES * SIDE * SIDE; k++) {
            const int64_t at[4] = {random_world_draw(&b->w, 2), random_world_draw(&b->w, 3),
                                   random_world_draw(&b->w, 80), random_world_draw(&b->w, 80)};
            float s = (float)(random_world_draw(&b->w, 2001) - 1000) / 250.0f;
            check_cell(b, i, 64, run, &env, at, s);
            if (fits) check_cell(b, i, 32, run, &env, at, s);
            cells++;
        }
    }
    if (!library)
        printf("skipped: no compiler `cc` on this machine\n");
    else
        printf("%d programs, %lld cells equal; %lld programs in 32 bits too\n", PROGRAMS,
               (long long)cells, (long long)narrow);
    if (library) assert_true(narrow > 10);
    if (library) dlclose(library);
    str_free(&text);
    batch_free(b, PROGRAMS);
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
    batch *b = malloc(sizeof *b);
    str text = {0};
    size_t size;
    assert_non_null(b);
    batch_make(b, N);
    assert_ok(str_printf(&text, "#define EXPORT extern \"C\" __global__\n"));
    assert_ok(expr_cuda_prelude(&text));
    for (int i = 0; i < N; i++) put_program(&text, b, i);
    char *cubin = nvrtc_cubin(&n, text.s, "hooks", "sm_80", &size, NULL);
    if (!cubin) fail_msg("seed %llu: a text does not compile", (unsigned long long)b->seed);
    free(cubin);
    str_free(&text);
    batch_free(b, N);
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
