/* The mask and score language: text → checked, typed program (docs/LANGUAGE.md).
 *
 * A program is an expression over b, h, q, kv (64-bit integers), captured scalars and captured arrays. Compiling looks
 * at names and types only: values, extents and lengths are bound per run (expr_env), so a new length compiles nothing.
 * A program is immutable after expr_compile and may be used from any number of threads.
 * Floats in masks are fp32, rounded at each operation. Integers are 64-bit; // and % floor. */
#ifndef EXPR_EXPR_H
#define EXPR_EXPR_H
#include "core/arena.h"
#include "core/dtype.h"
#include "core/str.h"

typedef struct expr expr;
typedef enum expr_role {
    EXPR_MASK,
    EXPR_SCORE
} expr_role; /* gives a boolean / a float (may use s) */

/* What a program may capture: declared before compiling, bound to values later by the same order. */
typedef enum expr_type { EXPR_BOOL, EXPR_INT, EXPR_FLOAT } expr_type;
typedef struct expr_decl {
    const char *name;
    expr_type
        type; /* arrays: INT reads integer and BOOL elements by value, BOOL the same as "not zero", FLOAT float ones */
    int ndim; /* 0: a scalar */
} expr_decl;

enum { EXPR_MAX_CAPTURES = 16, EXPR_MAX_NDIM = 4 };
typedef struct expr_value {
    union {
        int64_t i;
        float f;
    } scalar;   /* ndim 0 */
    dtype type; /* arrays: element type of data (I64, I32, U8, BOOL, F32, BF16…) */
    int64_t dim[EXPR_MAX_NDIM];
    const void *data; /* contiguous row-major */
} expr_value;
typedef struct expr_env {
    const expr_value *values; /* one per declaration */
    int64_t q0, kv0;          /* added to q and kv (sliced masks); 0 usually */
} expr_env;

/* ERR_SYNTAX with line, column, caret and a hint; the sentence may span lines ("...\n  text\n     ^"). */
MUST_CHECK err expr_compile(expr **out, expr_role role, const char *text, const expr_decl *decls,
                            int n_decls);
void expr_free(expr *e);
const char *expr_source(const expr *e);
int expr_capture_count(const expr *e);
const expr_decl *expr_capture(const expr *e, int i);
/* Elements of a bound array, 1 for ndim 0. Extents must have passed expr_check_env. */
int64_t expr_value_count(const expr_value *v, int ndim);
size_t expr_value_bytes(const expr_value *v, int ndim); /* of its elements, 0 for ndim 0 */
/* Checks bound values against declarations: ranks, types, extents ≥ 0; sentence names the capture. */
MUST_CHECK err expr_check_env(const expr *e, const expr_env *env);
/* Which index variables the program names (after folding): bit 0 b, 1 h, 2 q, 3 kv. */
unsigned expr_uses(const expr *e);
/* Prints the program in a form that parses back to the same program. */
MUST_CHECK err expr_print(const expr *e, str *out);

/* Evaluation; env may be NULL when nothing is captured. The plain definition, one cell: *flag is set to 1 when a load left its array (it then yields 0). */
int expr_eval_mask(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q, int64_t kv,
                   int *flag);
/* The same for a score, s being the scaled logit: floats in fp32, rounded at each operation. Its derivative and the
 * double definition are in expr_grad.h. */
float expr_eval_score(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q,
                      int64_t kv, float s, int *flag);
/* Tile interpreter: cells [q_start, q_start+nq) x [kv_start, kv_start+nkv) as bytes 0/1, out[i*ld + j].
 * Same values as the definition; vectorised over cells, work hoisted per row/column where it depends on one index.
 * scratch: at least expr_tile_scratch(e, nq, nkv) bytes, 64-aligned. */
size_t expr_tile_scratch(const expr *e, int64_t nq, int64_t nkv);
void expr_tile_mask(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q_start,
                    int64_t nq, int64_t kv_start, int64_t nkv, uint8_t *out, int64_t ld,
                    void *scratch, int *flag);

#endif
