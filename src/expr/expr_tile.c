/* A mask over a rectangle of cells: the engine with lanes along kv.
 *
 * Columns and rows go in chunks, so that scratch memory does not grow with the rectangle. Same values as the
 * definition; a flag is raised where a cell reaches a load that left its array. */
#include "expr/expr_engine.h"
#include "expr/ops.h"
#include <string.h>

enum { COLUMNS = 256, ROWS = 128 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

size_t expr_tile_scratch(const expr *e, int64_t nq, int64_t nkv) {
    return expr_engine__scratch(&e->prog, least(nq, ROWS), least(nkv, COLUMNS));
}

static void write_row(const expr_engine *x, uint8_t *out) {
    const uint8_t *value = x->value[x->root];
    if (expr_engine__step(x, x->root))
        memcpy(out, value, (size_t)x->width);
    else
        memset(out, *value, (size_t)x->width);
}

void expr_tile_mask(const expr *e, const expr_env *env, int64_t b, int64_t h, int64_t q_start,
                    int64_t nq, int64_t kv_start, int64_t nkv, uint8_t *out, int64_t ld,
                    void *scratch, int *flag) {
    expr_engine x;
    const int root = e->prog.n - 1;
    if (nq <= 0 || nkv <= 0) return;
    expr_engine__open(&x, &e->prog, &root, 1, env, e->lanes, 0, least(nq, ROWS),
                      least(nkv, COLUMNS), scratch);
    for (int64_t top = 0; top < nq; top += ROWS) {
        int64_t rows = least(nq - top, ROWS);
        for (int64_t j = 0; j < nkv; j += COLUMNS) {
            expr_engine__begin(&x, b, h, ops_add(q_start, top), ops_add(kv_start, j), rows,
                               least(nkv - j, COLUMNS));
            for (int64_t i = 0; i < rows; i++) {
                expr_engine__row(&x, i, NULL);
                write_row(&x, out + (top + i) * ld + j);
                if (flag && !*flag) *flag = expr_engine__left(&x, i, NULL);
            }
        }
    }
}
