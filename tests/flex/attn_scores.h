/* Scores for tests of attention: a kind, its captured arrays with random values, compiled and bound.
 *
 * Float captures of every kind take gradients. attn_score_make draws one for given shapes; the text goes through the
 * language, so tests cover the same road as users. Scalars of the kinds `clamped` and `cut` are places where the score
 * has a kink or a step (attn_case_score moves them away from logits). Header only. */
#ifndef TESTS_FLEX_ATTN_SCORES_H
#define TESTS_FLEX_ATTN_SCORES_H
#include "expr/expr_grad.h"
#include "support/numbers.h"
#include <string.h>

enum {
    SCORE_NONE,
    SCORE_SAME,
    SCORE_ALIBI,
    SCORE_ALIBI_LEARNED,
    SCORE_SOFTCAP,
    SCORE_RELATIVE,
    SCORE_T5,
    SCORE_BY_Q_AND_KV,
    SCORE_BY_BATCH,
    SCORE_TWICE,
    SCORE_GENERAL,
    SCORE_DENSE,
    SCORE_GRAPH,
    SCORE_TEMPERATURE,
    SCORE_LOG,
    SCORE_GUARDED,
    SCORE_CLAMPED,
    SCORE_CUT,
    SCORE_WITHOUT_S,
    SCORE_NESTED,
    SCORE_KINDS
};
static const char *const attn_score_names[SCORE_KINDS] = {
    "none",     "same",     "alibi",   "learned alibi", "soft-cap", "relative bias", "T5 buckets",
    "q + kv",   "by batch", "twice",   "general",       "dense",    "graph",         "temperature",
    "softplus", "guarded",  "clamped", "cut",           "no s",     "nested"};

typedef struct attn_score {
    int kind, n, n_arrays;
    expr *e;
    expr_decl decl[8];
    expr_value value[8];
    expr_env env;
    void *array[8];
    unsigned wanted;     /* the float captures */
    int64_t elements[8]; /* of wanted ones */
    int64_t n_learned;   /* of all wanted ones together */
} attn_score;

static inline void attn_score_real(attn_score *s, const char *name, double v) {
    s->wanted |= 1u << s->n;
    s->elements[s->n] = 1;
    s->decl[s->n] = (expr_decl){name, EXPR_FLOAT, 0};
    s->value[s->n++] = (expr_value){.scalar.f = (float)v};
}
/* A captured float array with normal values times size, of type F32, BF16 or F64. */
static inline void attn_score_floats(attn_score *s, const char *name, const int64_t *dim, int ndim,
                                     dtype type, double size, uint64_t seed) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= dim[i];
    float *x = numbers_new(n, seed, 950 + (uint64_t)s->n, (float)size);
    void *data = x;
    if (type != DT_F32) {
        data = calloc((size_t)n + 1, dtype_size(type));
        if (!data) abort();
        for (int64_t i = 0; i < n; i++) {
            if (type == DT_BF16) ((bf16 *)data)[i] = bf16_from_f32(x[i]);
            if (type == DT_F64) ((double *)data)[i] = (double)x[i];
        }
        free(x);
    }
    s->wanted |= 1u << s->n;
    s->elements[s->n] = n;
    s->decl[s->n] = (expr_decl){name, EXPR_FLOAT, ndim};
    s->value[s->n] = (expr_value){.type = type, .data = data};
    for (int i = 0; i < ndim; i++) s->value[s->n].dim[i] = dim[i];
    s->n++;
    s->array[s->n_arrays++] = data;
}
static inline void attn_score_ints(attn_score *s, const char *name, const int64_t *dim, int ndim,
                                   int64_t below, uint64_t seed) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= dim[i];
    int32_t *x = calloc((size_t)n + 1, sizeof *x);
    if (!x) abort();
    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)numbers_below(seed, 970 + (uint64_t)s->n, (uint64_t)i, below);
    s->decl[s->n] = (expr_decl){name, EXPR_INT, ndim};
    s->value[s->n] = (expr_value){.type = DT_I32, .data = x};
    for (int i = 0; i < ndim; i++) s->value[s->n].dim[i] = dim[i];
    s->n++;
    s->array[s->n_arrays++] = x;
}

static inline const char *attn_score_arrays(attn_score *s, int kind, int64_t B, int64_t H,
                                            int64_t L, int64_t S, uint64_t seed) {
    const int64_t longest = L > S ? L : S;
    switch (kind) {
    case SCORE_SAME: return "s";
    case SCORE_ALIBI: return "s - exp2(-0.5 * float(h + 1)) * float(abs(q - kv))";
    case SCORE_ALIBI_LEARNED:
        attn_score_floats(s, "slope", (int64_t[]){H}, 1, DT_F32, 0.05, seed);
        return "s + slope[h] * float(kv - q)";
    case SCORE_SOFTCAP: attn_score_real(s, "cap", 1.7); return "cap * tanh(s / cap)";
    case SCORE_RELATIVE:
        attn_score_floats(s, "rel", (int64_t[]){H, 41}, 2, DT_F32, 1, seed);
        return "s + rel[h, clamp(q - kv + 20, 0, 40)]";
    case SCORE_T5:
        attn_score_floats(s, "table", (int64_t[]){32, H}, 2, DT_BF16, 1, seed);
        return "let d = abs(q - kv); let far = 8 + int(log(float(max(d, 1)) / 8.0) / log(16.0) * 8.0);"
               "s + table[(kv > q ? 16 : 0) + (d < 8 ? d : min(far, 15)), h]";
    case SCORE_BY_Q_AND_KV:
        attn_score_floats(s, "a", (int64_t[]){L}, 1, DT_F32, 1, seed);
        attn_score_floats(s, "c", (int64_t[]){S}, 1, DT_F64, 1, seed);
        return "s * (1.0 + 0.1 * a[q]) + 0.5 * a[q] + c[kv]";
    case SCORE_BY_BATCH:
        attn_score_floats(s, "t", (int64_t[]){B, 3}, 2, DT_F32, 1, seed);
        return "s * t[b, h % 3] + t[b, 2]";
    case SCORE_TWICE:
        attn_score_floats(s, "t", (int64_t[]){longest + 1}, 1, DT_F32, 0.5, seed);
        return "s + t[q] * t[kv] + t[abs(q - kv)]";
    case SCORE_GENERAL:
        attn_score_ints(s, "id", (int64_t[]){longest}, 1, 11, seed);
        attn_score_floats(s, "emb", (int64_t[]){33}, 1, DT_F32, 0.7, seed);
        return "s + emb[(id[q] * 7 + id[kv] * 3 + h) % 33]";
    case SCORE_DENSE:
        attn_score_floats(s, "bias", (int64_t[]){H, L, S}, 3, DT_F32, 1, seed);
        return "s + bias[h, q, kv]";
    case SCORE_GRAPH:
        attn_score_ints(s, "dist", (int64_t[]){L, S}, 2, 9, seed);
        attn_score_floats(s, "near", (int64_t[]){9}, 1, DT_F32, 1, seed);
        attn_score_floats(s, "edge", (int64_t[]){H, 9}, 2, DT_F32, 1, seed);
        return "s + near[dist[q, kv]] + edge[h, dist[q, kv]]";
    case SCORE_TEMPERATURE:
        attn_score_floats(s, "temp", (int64_t[]){H}, 1, DT_F32, 0.3, seed);
        return "s * exp(temp[h])";
    case SCORE_LOG: return "log(1.0 + exp(s)) + rsqrt(1.0 + s * s) + sigmoid(s)";
    case SCORE_GUARDED:
        attn_score_floats(s, "t", (int64_t[]){longest + 1}, 1, DT_F32, 1, seed);
        /* both sides of s = 0 have the same value and two derivatives, so rounding may choose either */
        return "q > kv ? s + t[q - kv - 1] : s > 0.0 ? sqrt(s + 0.25) - 0.5 : s - s * s";
    case SCORE_CLAMPED:
        attn_score_real(s, "low", -0.8), attn_score_real(s, "high", 1.25);
        attn_score_real(s, "middle", 0), attn_score_real(s, "most", 0.5);
        return "max(clamp(s, low - 0.5, high), low) + abs(s - middle) * 0.25 + min(s, most)";
    case SCORE_CUT: attn_score_real(s, "cut", -0.7); return "s < cut ? -1.0 / 0.0 : s";
    case SCORE_WITHOUT_S:
        attn_score_floats(s, "t", (int64_t[]){S}, 1, DT_F32, 1, seed);
        attn_score_real(s, "x", 0.4);
        return "t[kv] * x + float(q % 3) / 7.0";
    case SCORE_NESTED:
        attn_score_real(s, "x", 0.3);
        attn_score_floats(s, "t", (int64_t[]){H}, 1, DT_F32, 1, seed);
        return "let y = s * x; kv < q ? (h % 2 == 0 ? y * t[h] : exp2(y)) : (kv == q ? s : y / (2.0 + t[h] * t[h]))";
    default: return NULL;
    }
}

static inline void attn_score_make(attn_score *s, int kind, int64_t B, int64_t H, int64_t L,
                                   int64_t S, uint64_t seed) {
    memset(s, 0, sizeof *s);
    s->kind = kind;
    const char *text = attn_score_arrays(s, kind, B, H, L, S, seed);
    s->env = (expr_env){s->value, 0, 0};
    for (int i = 0; i < s->n; i++) s->n_learned += s->elements[i];
    if (text && expr_compile(&s->e, EXPR_SCORE, text, s->decl, s->n)) {
        printf("score '%s': %s\n", text, err_text());
        abort();
    }
}
static inline void attn_score_free(attn_score *s) {
    expr_free(s->e);
    for (int i = 0; i < s->n_arrays; i++) free(s->array[i]);
}

#endif
