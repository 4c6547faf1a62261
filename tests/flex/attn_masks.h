/* Masks for tests of attention: a kind, random parameters, and the arrays they need, compiled and bound.
 *
 * attn_mask_make draws one; lengths may be changed by the kind (DFlash ties L and S). Header only; the expression is
 * compiled through the language, so tests cover the same road as users. */
#ifndef TESTS_FLEX_ATTN_MASKS_H
#define TESTS_FLEX_ATTN_MASKS_H
#include "expr/expr.h"
#include "support/numbers.h"
#include <string.h>

enum {
    MASK_NONE,
    MASK_CAUSAL,
    MASK_WINDOW,
    MASK_DOCUMENT,
    MASK_DOCUMENT_CAUSAL,
    MASK_DFLASH,
    MASK_PREFIX,
    MASK_BITS,
    MASK_GAPS,
    MASK_HEADS,
    MASK_HIDDEN,
    MASK_ANY_LENGTH, /* the kinds below it work on lengths of the caller's choice */
    MASK_KINDS = MASK_ANY_LENGTH
};
static const char *const attn_mask_names[] = {
    "none",   "causal", "window", "document", "document+causal", "dflash",
    "prefix", "bits",   "gaps",   "heads",    "hidden"};

typedef struct attn_mask {
    int kind;
    int64_t batch, q_len, kv_len;
    expr *e; /* NULL for MASK_NONE */
    expr_decl decl[8];
    expr_value value[8];
    expr_env env;
    int n;
    void *array[4];
    int n_arrays;
} attn_mask;

static inline void attn_mask_int(attn_mask *m, const char *name, int64_t v) {
    m->decl[m->n] = (expr_decl){name, EXPR_INT, 0};
    m->value[m->n++] = (expr_value){.scalar.i = v};
}
/* A zeroed int32 array of n elements, captured as name. */
static inline int32_t *attn_mask_array(attn_mask *m, const char *name, int64_t n) {
    int32_t *x = calloc((size_t)n + 1, sizeof *x);
    if (!x) abort();
    m->decl[m->n] = (expr_decl){name, EXPR_INT, 1};
    m->value[m->n++] = (expr_value){.type = DT_I32, .dim = {n}, .data = x};
    m->array[m->n_arrays++] = x;
    return x;
}
static inline void attn_mask_documents(attn_mask *m, int64_t n, uint64_t seed) {
    int32_t *doc = attn_mask_array(m, "doc", n), id = 0;
    int64_t mean = 1 + numbers_below(seed, 901, 0, 60);
    for (int64_t i = 0; i < n; i++) doc[i] = id += numbers_below(seed, 902, (uint64_t)i, mean) == 0;
}
static inline const char *attn_mask_dflash(attn_mask *m, uint64_t seed) {
    int64_t width = 1 + numbers_below(seed, 903, 0, 16),
            context = numbers_below(seed, 904, 0, 200) + 1;
    int64_t blocks = numbers_below(seed, 905, 0, 14);
    m->q_len = blocks * width;
    m->kv_len = context + blocks * width;
    attn_mask_int(m, "width", width);
    attn_mask_int(m, "context", context);
    attn_mask_documents(m, context, seed);
    int32_t *anchor = attn_mask_array(m, "anchor", blocks), at = 0;
    for (int64_t i = 0; i < blocks; i++) {
        at += (int32_t)numbers_below(seed, 906, (uint64_t)i, 2 * context / (blocks + 1) + 1);
        anchor[i] = numbers_below(seed, 907, (uint64_t)i, 6) == 0 || at >= context ? -1 : at;
    }
    return "let a = anchor[q // width]; a >= 0 && (kv < context ? kv < a && doc[kv] == doc[a] : (kv - context) // width == q // width)";
}
/* Random bits by position, some rows all hidden. */
static inline void attn_mask_bits(attn_mask *m, uint64_t seed) {
    int64_t share = 1 + numbers_below(seed, 908, 0, 100);
    uint8_t *bits = calloc((size_t)(m->q_len * m->kv_len) + 1, 1);
    if (!bits) abort();
    for (int64_t i = 0; i < m->q_len * m->kv_len; i++)
        bits[i] = numbers_below(seed, 909, (uint64_t)(i / m->kv_len), 7) > 0 &&
                  numbers_below(seed, 910, (uint64_t)i, 100) < share;
    m->decl[m->n] = (expr_decl){"bits", EXPR_BOOL, 2};
    m->value[m->n++] = (expr_value){.type = DT_BOOL, .dim = {m->q_len, m->kv_len}, .data = bits};
    m->array[m->n_arrays++] = bits;
}

/* Draws a mask of a kind; q_len and kv_len are wishes. Aborts when the language refuses its own text. */
static inline void attn_mask_make(attn_mask *m, int kind, int64_t batch, int64_t q_len,
                                  int64_t kv_len, uint64_t seed) {
    const char *text = NULL;
    int64_t longest = q_len > kv_len ? q_len : kv_len;
    memset(m, 0, sizeof *m);
    m->kind = kind, m->batch = batch, m->q_len = q_len, m->kv_len = kv_len;
    switch (kind) {
    case MASK_NONE: break;
    case MASK_CAUSAL: text = "q >= kv"; break;
    case MASK_WINDOW:
        attn_mask_int(m, "w", 1 + numbers_below(seed, 900, 0, 150));
        text = "q >= kv && q - kv < w";
        break;
    case MASK_DOCUMENT: attn_mask_documents(m, longest, seed), text = "doc[q] == doc[kv]"; break;
    case MASK_DOCUMENT_CAUSAL:
        attn_mask_documents(m, longest, seed), text = "doc[q] == doc[kv] && kv <= q";
        break;
    case MASK_DFLASH: text = attn_mask_dflash(m, seed); break;
    case MASK_PREFIX: {
        int32_t *n = attn_mask_array(m, "prefix", batch);
        for (int64_t b = 0; b < batch; b++)
            n[b] = (int32_t)numbers_below(seed, 911, (uint64_t)b, kv_len + 1);
        text = "kv < prefix[b] || kv <= q";
        break;
    }
    case MASK_BITS: attn_mask_bits(m, seed), text = "bits[q, kv]"; break;
    case MASK_GAPS: text = "q % 5 != 2 && kv <= q + 3"; break;
    case MASK_HEADS: text = "h % 2 == 0 ? kv <= q : (q + kv) % 3 == h % 3 || kv > q + 40"; break;
    default: text = "kv < 0"; break;
    }
    m->env = (expr_env){m->value, 0, 0};
    if (text && expr_compile(&m->e, EXPR_MASK, text, m->decl, m->n)) {
        printf("mask '%s': %s\n", text, err_text());
        abort();
    }
}
static inline void attn_mask_free(attn_mask *m) {
    expr_free(m->e);
    for (int i = 0; i < m->n_arrays; i++) free(m->array[i]);
}

#endif
