/* Random programs as CUDA text with one function each, and what their results have to be.
 *
 * The text compiles as C behind a shim and as CUDA alike; results are compared with the definition bit for bit: values,
 * loads that left, slopes, places and derivatives of sites. CUDA_BATCH_EXACT makes scores take the exact functions, which
 * kernels replace by near ones. Header only. */
#ifndef TESTS_EXPR_CUDA_BATCH_H
#define TESTS_EXPR_CUDA_BATCH_H
#include "eval_nodes.h"
#include "expr/expr_cuda.h"
#include "expr/expr_grad_private.h"
#include "support/numbers.h"
#include "support/random_world.h"
#include "support/says.h"
#include <math.h>

enum { CUDA_BATCH = 240, CUDA_BATCH_TEXT = 2000, CUDA_BATCH_SITES = 64 };
#define CUDA_BATCH_EXACT                                                                           \
    "#define PX_NEAR_IS_EXACT\n#define px_real_div_near px_real_div\n"                             \
    "#define px_real_exp_near px_real_exp\n#define px_real_exp2_near px_real_exp2\n"               \
    "#define px_real_log_near px_real_log\n#define px_real_rsqrt_near px_real_rsqrt\n"             \
    "#define px_real_tanh_near px_real_tanh\n#define px_real_sigmoid_near px_real_sigmoid\n"

typedef struct cuda_program {
    expr *e;
    expr_grad *g; /* scores */
    char text[CUDA_BATCH_TEXT];
} cuda_program;

typedef struct cuda_batch {
    random_world w;
    uint64_t seed;
    arena *a;
    dtype type[EXPR_MAX_CAPTURES];
    cuda_program p[CUDA_BATCH];
} cuda_batch;

static inline unsigned cuda_batch_wanted(const cuda_batch *b) {
    unsigned wanted = 0;
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++)
        if (b->w.decl[i].type == EXPR_FLOAT) wanted |= 1u << i;
    return wanted;
}

static inline void cuda_batch_make(cuda_batch *b, int n) {
    memset(b, 0, sizeof *b);
    b->seed = b->w.state = numbers_seed();
    random_world_declare(&b->w);
    random_world_bind(&b->w, 60);
    assert_ok(arena_create(&b->a, "batch", 0));
    for (int i = 0; i < n; i++) {
        cuda_program *p = &b->p[i];
        int score = i % 2, depth = 1 + random_world_draw(&b->w, 5);
        (score ? random_expr_score : random_expr_mask)(&b->w.state, depth, p->text,
                                                       CUDA_BATCH_TEXT);
        assert_ok(expr_compile(&p->e, score ? EXPR_SCORE : EXPR_MASK, p->text, b->w.decl,
                               RANDOM_EXPR_CAPTURES));
        if (score) assert_ok(expr_grad_create(&p->g, p->e, cuda_batch_wanted(b), b->a));
        expr_cuda_types(p->e, &b->w.env, b->type);
    }
}

static inline void cuda_batch_free(cuda_batch *b, int n) {
    for (int i = 0; i < n; i++) expr_free(b->p[i].e);
    arena_destroy(b->a);
}

/* Every name of a family gets the program's number, so that many programs fit in one text. */
static inline void cuda_batch_put_names(str *out, int number) {
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

static inline void cuda_batch_put_call(str *out, const char *family, int width, const char *result,
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
static inline void cuda_batch_put(str *out, const cuda_batch *b, int i) {
    const cuda_program *p = &b->p[i];
    cuda_batch_put_names(out, i);
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
        if (!p->g) cuda_batch_put_call(out, "mask", width, "out[0] = (float)", "");
        if (p->g) {
            assert_ok(str_printf(out, "{ "));
            cuda_batch_put_call(out, "score", width, "out[0] = ", ", s");
            assert_ok(str_printf(out, "} { "));
            cuda_batch_put_call(out, "slope", width, "out[2] = ", ", s, &out[3]");
            assert_ok(str_printf(out, "} { "));
            cuda_batch_put_call(out, "sites", width, "", ", s, place, d");
            assert_ok(str_printf(out, "}\n"));
        }
        assert_ok(str_printf(out, "}\n"));
    }
    assert_ok(str_printf(out, "out[1] = (float)%s_left(e, b, h, q, kv%s);\n}\n",
                         p->g ? "score" : "mask", p->g ? ", s" : ""));
}

static inline int cuda_batch_same(float x, float y) {
    return x == y ? signbit(x) == signbit(y) : x != x && y != y;
}

#define CUDA_BATCH_DIFFERS(b, i, what, width, at)                                                  \
    fail_msg("seed %llu, width %d, %s differs at b %lld h %lld q %lld kv %lld of\n%s",             \
             (unsigned long long)(b)->seed, width, what, (long long)(at)[0], (long long)(at)[1],   \
             (long long)(at)[2], (long long)(at)[3], (b)->p[i].text)

static inline void cuda_batch_check_grad(const cuda_batch *b, int i, int width, const int64_t at[4],
                                         float s, const float *out, const long long *place,
                                         const float *d) {
    static ir_val v[IR_MAX_GRAD];
    static int64_t where[IR_MAX_GRAD];
    const expr_grad *g = b->p[i].g;
    eval_nodes(&g->prog, &b->w.env, at, s, v, where);
    if (!cuda_batch_same(out[2], v[g->value].f))
        CUDA_BATCH_DIFFERS(b, i, "slope's value", width, at);
    if (!cuda_batch_same(out[3], g->d_s < 0 ? 0.0f : v[g->d_s].f))
        CUDA_BATCH_DIFFERS(b, i, "slope", width, at);
    for (int k = 0; k < g->n_sites; k++) {
        const ir_node *load = &g->prog.node[g->site[k].load];
        int64_t want = load->op == IR_LOAD ? where[g->site[k].load] : 0;
        if (place[k] != want) CUDA_BATCH_DIFFERS(b, i, "a place", width, at);
        if (!cuda_batch_same(d[k], g->site[k].d < 0 ? 0.0f : v[g->site[k].d].f))
            CUDA_BATCH_DIFFERS(b, i, "a site's derivative", width, at);
    }
}

/* Results of text at one cell against the definition. */
static inline void cuda_batch_check(const cuda_batch *b, int i, int width, const int64_t at[4],
                                    float s, const float *out, const long long *place,
                                    const float *d) {
    const cuda_program *p = &b->p[i];
    int left = 0;
    float want = p->g ? expr_eval_score(p->e, &b->w.env, at[0], at[1], at[2], at[3], s, &left)
                      : (float)expr_eval_mask(p->e, &b->w.env, at[0], at[1], at[2], at[3], &left);
    if (!cuda_batch_same(out[0], want)) CUDA_BATCH_DIFFERS(b, i, "the value", width, at);
    if (out[1] != (float)left) CUDA_BATCH_DIFFERS(b, i, "what left", width, at);
    if (p->g) cuda_batch_check_grad(b, i, width, at, s, out, place, d);
}
/* A cell near the ends of arrays, and a logit. */
static inline float cuda_batch_cell(cuda_batch *b, int64_t at[4]) {
    at[0] = random_world_draw(&b->w, 2), at[1] = random_world_draw(&b->w, 3);
    at[2] = random_world_draw(&b->w, 80), at[3] = random_world_draw(&b->w, 80);
    return (float)(random_world_draw(&b->w, 2001) - 1000) / 250.0f;
}
static inline int cuda_batch_fits_32(const cuda_batch *b, int i) {
    return expr_cuda_prove(b->p[i].e, &b->w.env, (int64_t[4]){2, 3, 80, 80}) & EXPR_CUDA_FITS_32;
}

#endif
