/* Random values for the captures of random_expr: the world that a random mask meets.
 *
 * Arrays have random extents up to a limit, shorter ones included, so that loads near their ends and beyond occur;
 * ids rise in half of the worlds. Floats hold NaN, infinities and negative zero. Header only; everything follows
 * from the state in the world. Does not compile expressions. */
#ifndef SUPPORT_RANDOM_WORLD_H
#define SUPPORT_RANDOM_WORLD_H
#include "expr/expr.h"
#include "support/random_expr.h"
#include <math.h>
#include <string.h>

enum { RANDOM_WORLD_LENGTH = 320 };

typedef struct random_world {
    uint64_t state;
    int limit; /* of extents, at most RANDOM_WORLD_LENGTH */
    expr_decl decl[RANDOM_EXPR_CAPTURES];
    expr_value value[RANDOM_EXPR_CAPTURES];
    expr_env env;
    int64_t doc[RANDOM_WORLD_LENGTH], table[RANDOM_WORLD_LENGTH];
    int32_t anchor[RANDOM_WORLD_LENGTH];
    float bias[RANDOM_WORLD_LENGTH];
    uint8_t keep[RANDOM_WORLD_LENGTH];
} random_world;

static inline int random_world_draw(random_world *w, int n) {
    return random_expr_below(&w->state, n);
}

static inline void random_world_declare(random_world *w) {
    for (int i = 0; i < RANDOM_EXPR_CAPTURES; i++) {
        const random_expr_capture *c = &random_expr_captures[i];
        w->decl[i].name = c->name;
        w->decl[i].type = c->kind == 'i' ? EXPR_INT : c->kind == 'f' ? EXPR_FLOAT : EXPR_BOOL;
        w->decl[i].ndim = c->ndim;
    }
}

static inline void random_world_array(random_world *w, int i, dtype t, const void *data) {
    w->value[i].type = t;
    w->value[i].data = data;
    w->value[i].dim[0] = random_world_draw(w, w->limit + 1);
    if (w->decl[i].ndim == 2) {
        w->value[i].dim[0] = random_world_draw(w, 9);
        w->value[i].dim[1] = random_world_draw(w, 9);
    }
}

/* New values of everything, within limit. */
static inline void random_world_bind(random_world *w, int limit) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    int sorted = random_world_draw(w, 2), id = 0;
    w->limit = limit;
    for (int i = 0; i < RANDOM_WORLD_LENGTH; i++) {
        id += random_world_draw(w, 8) == 0;
        w->doc[i] = sorted ? id : random_world_draw(w, 5);
        w->anchor[i] = sorted ? i * 3 + random_world_draw(w, 3) : random_world_draw(w, 60) - 10;
        w->table[i] = random_world_draw(w, 30) - 5;
        w->bias[i] = random_world_draw(w, 20) ? (float)(random_world_draw(w, 200) - 100) / 8
                                              : odd[random_world_draw(w, 5)];
        w->keep[i] = sorted ? i < 40 : (uint8_t)random_world_draw(w, 2);
    }
    w->value[0].scalar.i = random_world_draw(w, 50);
    w->value[1].scalar.i = random_world_draw(w, 10) - 1;
    w->value[2].scalar.f = (float)(random_world_draw(w, 100) - 30) / 4;
    w->value[3].scalar.i = random_world_draw(w, 2);
    random_world_array(w, 4, DT_I64, w->doc);
    random_world_array(w, 5, DT_I32, w->anchor);
    random_world_array(w, 6, DT_I64, w->table);
    random_world_array(w, 7, DT_F32, w->bias);
    random_world_array(w, 8, DT_BOOL, w->keep);
    w->env = (expr_env){w->value, random_world_draw(w, 3) ? 0 : random_world_draw(w, 9) - 4,
                        random_world_draw(w, 3) ? 0 : random_world_draw(w, 9) - 4};
}

#endif
