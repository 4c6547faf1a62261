/* Whether a row of the engine really reaches a load that left its array.
 *
 * The engine computes all lanes of all nodes and marks where loads leave. Only when some load is marked does this pass
 * follow the guards from the root down: a node is evaluated in the lanes where a user of it is, cut by the condition
 * in front of it. Values are not computed again. */
#include "expr/expr_engine.h"
#include <string.h>

/* reach[to] |= reach[id], in the lanes where value[by] == when (by < 0: in all). */
static void pass_on(expr_engine *x, int id, int to, int by, uint8_t when) {
    if (!x->reach_on[to]) return;
    const uint8_t *restrict from = x->reach[id];
    uint8_t *restrict out = x->reach[to];
    const uint8_t *restrict guard = by < 0 ? NULL : x->value[by];
    if (guard && !expr_engine__step(x, by)) {
        if (*guard != when) return;
        guard = NULL;
    }
    const uint8_t flip = when ^ 1;
    /* Inner loops of a constant count become vector code. */
    for (int64_t i = 0; !guard && i < x->padded; i += EXPR_LANES_STEP)
        for (int j = 0; j < EXPR_LANES_STEP; j++) out[i + j] |= from[i + j];
    for (int64_t i = 0; guard && i < x->padded; i += EXPR_LANES_STEP)
        for (int j = 0; j < EXPR_LANES_STEP; j++)
            out[i + j] |= (uint8_t)(from[i + j] & (guard[i + j] ^ flip));
}

/* The marks of load id in row i, one per lane; one for all lanes where *step is 0. */
static const uint8_t *marks(const expr_engine *x, int id, int64_t i, int *step) {
    *step = expr_engine__step(x, id);
    return x->load[id].left + (x->kind[id] == KIND_DIAGONAL ? x->rows - 1 - i : 0);
}

static int is_hit(const expr_engine *x, int id, int64_t i) {
    int step;
    const uint8_t *restrict reach = x->reach[id], *restrict left = marks(x, id, i, &step);
    uint8_t hit = 0;
    for (int64_t k = 0; k < x->width; k++) hit |= reach[k] & left[k * step];
    return hit;
}

static int is_marked(const expr_engine *x, int id, int64_t i) {
    int step;
    if (x->node[id].op != IR_LOAD || !x->load[id].any_left) return 0;
    const uint8_t *left = marks(x, id, i, &step);
    return step ? memchr(left, 1, (size_t)x->width) != NULL : *left;
}

/* Which nodes have a marked load at or below them; clears their reach. */
static int find_marked(expr_engine *x, int64_t i) {
    for (int id = 0; id <= x->root; id++) {
        const ir_node *n = &x->node[id];
        uint8_t on = (uint8_t)is_marked(x, id, i);
        for (int j = 0; n->has_load && j < n->n_args; j++) on |= x->reach_on[n->arg[j]];
        x->reach_on[id] = on;
        if (on) memset(x->reach[id], 0, (size_t)x->padded);
    }
    return x->reach_on[x->root];
}

int expr_engine__left(expr_engine *x, int64_t i, const uint8_t *visible) {
    if (x->n_marked == 0 || !x->node[x->root].has_load || !find_marked(x, i)) return 0;
    if (visible)
        memcpy(x->reach[x->root], visible, (size_t)x->width);
    else
        memset(x->reach[x->root], 1, (size_t)x->width);
    for (int id = x->root; id >= 0; id--) {
        const ir_node *n = &x->node[id];
        if (!x->reach_on[id]) continue;
        if (n->op == IR_LOAD && is_marked(x, id, i) && is_hit(x, id, i)) return 1;
        int guards = n->op == IR_AND || n->op == IR_OR || n->op == IR_SELECT;
        for (int j = 0; j < n->n_args; j++) {
            uint8_t when = n->op == IR_AND || (n->op == IR_SELECT && j == 1);
            pass_on(x, id, n->arg[j], guards && j ? n->arg[0] : -1, when);
        }
    }
    return 0;
}
