/* Shared by the drafter_*.c files only: the config as JSON, the order of a layer's tensors, and the packed form.
 *
 * A layer's tensors are addressed by number, DRAFTER__PER_LAYER to a layer, then the three shared ones:
 * the table of drafter_layout.c is the only place that knows names and shapes.
 * Not for other folders. */
#ifndef MODEL_DRAFTER_PARTS_H
#define MODEL_DRAFTER_PARTS_H
#include "io/json.h"
#include "model/drafter.h"

enum {
    DRAFTER__NORM1, /* input_layernorm [H] */
    DRAFTER__Q,     /* [heads*D, H] */
    DRAFTER__K,     /* [kv_heads*D, H] */
    DRAFTER__V,     /* [kv_heads*D, H] */
    DRAFTER__O,     /* [H, heads*D] */
    DRAFTER__QNORM, /* [D] */
    DRAFTER__KNORM, /* [D] */
    DRAFTER__NORM2, /* post_attention_layernorm [H] */
    DRAFTER__GATE,  /* [I, H] */
    DRAFTER__UP,    /* [I, H] */
    DRAFTER__DOWN,  /* [H, I] */
    DRAFTER__PER_LAYER
};
enum { DRAFTER__FC /* [H, taps*H] */, DRAFTER__HIDDEN_NORM, DRAFTER__NORM, DRAFTER__SHARED };

/* Offset of a layer's tensor, or of a shared one, in the flat buffer. */
static inline int64_t drafter__at(const drafter_layout *l, int64_t layer, int which) {
    return l->t[layer * DRAFTER__PER_LAYER + which].offset;
}
static inline int64_t drafter__shared(const drafter_layout *l, int which) {
    return l->t[l->cfg.layers * DRAFTER__PER_LAYER + which].offset;
}

/* config.json as it is written; type is the stored weights' type. NULL when memory runs out. */
json_t *drafter__config_json(const drafter_config *c, dtype type);
/* The reading half; where names the file in sentences. */
MUST_CHECK err drafter__config_parse(drafter_config *c, const json_t *j, const char *where);

#endif
